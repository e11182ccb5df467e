"""What a target folder provides: the presets of one architecture, and how to describe a host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.base.machine import CacheSizes
from tilewright.ir.target import Target
from tilewright.llvm.objects import HostCpu
from tilewright.runtime.pool_ir import pool_ir


@dataclass(frozen=True)
class Host:
    """Everything known of the machine before an architecture makes a target of it."""

    cpu: HostCpu
    flags: frozenset[str]
    caches: CacheSizes
    cores: int


# What code calls of the C library, which every system of such machines has.
C_LIBRARY = frozenset({"malloc", "free", "memcpy", "memmove", "memset"})


def _system_pool(target: Target) -> str:
    return pool_ir(target.arch, target.pointer_bits)


@dataclass(frozen=True)
class Family:
    """One architecture: its names in triples, named presets, and detection.

    `system` are names that code may leave open, because the system or the linker defines them;
    `support` is LLVM text that defines others which LLVM's code or kernels call; `pool` gives that
    of the thread pool.
    """

    name: str
    architectures: tuple[str, ...]
    presets: tuple[Target, ...]
    describe: Callable[[Host], Target]
    system: frozenset[str] = C_LIBRARY
    support: str = ""
    pool: Callable[[Target], str] = _system_pool
