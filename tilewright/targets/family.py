"""What a target folder provides: the presets of one architecture, and how to describe a host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.base.machine import CacheSizes
from tilewright.ir.target import Target
from tilewright.llvm.objects import HostCpu


@dataclass(frozen=True)
class Host:
    """Everything known of the machine before an architecture makes a target of it."""

    cpu: HostCpu
    flags: frozenset[str]
    caches: CacheSizes
    cores: int


@dataclass(frozen=True)
class Family:
    """One architecture: its names in triples, named presets, and detection."""

    name: str
    architectures: tuple[str, ...]
    presets: tuple[Target, ...]
    describe: Callable[[Host], Target]
