"""What a target folder provides: the presets of one architecture, and how to describe a host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tilewright.base.machine import CacheSizes
from tilewright.ir.target import Target
from tilewright.llvm.objects import HostCpu
from tilewright.runtime.pool_ir import pool_ir
from tilewright.targets.systems import system_of


@dataclass(frozen=True)
class Host:
    """Everything known of the machine before an architecture makes a target of it."""

    cpu: HostCpu
    flags: frozenset[str]
    caches: CacheSizes
    cores: int

    def target(self, features: tuple[str, ...], **facts: Any) -> Target:
        """This machine with such features, and what its architecture knows of those."""
        return Target(
            name="host",
            triple=self.cpu.triple,
            cpu=self.cpu.cpu,
            features=features,
            l1=self.caches.l1,
            l2=self.caches.l2,
            l3=self.caches.l3,
            cores=self.cores,
            **facts,
        )


# What code calls of the C library, which every system of such machines has.
C_LIBRARY = frozenset({"malloc", "free", "memcpy", "memmove", "memset"})


def _system_pool(target: Target) -> str:
    return pool_ir(target.arch, target.pointer_bits, system_of(target).name)


@dataclass(frozen=True)
class Family:
    """One architecture: its names in triples, named presets, and detection.

    `system` are names that code may leave open, because the system or the linker defines them;
    `support` is LLVM text that defines others which LLVM's code or kernels call; `pool` gives that
    of the thread pool. `module`: linked code is one file that has everything inside, the pool too,
    and not a shared object beside others of its process. `tests` say how a program finds out
    whether the processor has a feature, by LLVM's name of it: words that all have to hold.
    `cpuid:LEAF:SUBLEAF:REGISTER:BIT` and `xcr0:MASK` ask an x86 processor and what its system
    saves (on request, where Linux wants one), `hwcap:BIT` and `hwcap2:BIT` what Linux tells every
    process, `validate:HEX` an engine whether it takes that module, `run:HEX` whether the function
    that this module exports gives a number other than 0, `shared` whether threads may share memory.
    """

    name: str
    architectures: tuple[str, ...]
    presets: tuple[Target, ...]
    describe: Callable[[Host], Target]
    system: frozenset[str] = C_LIBRARY
    support: str = ""
    pool: Callable[[Target], str] = _system_pool
    module: bool = False
    tests: Mapping[str, str] = field(default_factory=dict)


def linux_tests(bits: Mapping[str, str]) -> dict[str, str]:
    """Tests of features, of words such as `neon:1` for each word that Linux tells a process."""
    pairs = ((word, x.split(":")) for word, listed in bits.items() for x in listed.split())
    return {feature: f"{word}:{bit}" for word, (feature, bit) in pairs}
