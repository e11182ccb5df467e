"""How the kernels of a nest are launched on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.kernel.group import Buffer
from tilewright.llvm.bulk_copies import Box


@dataclass(frozen=True)
class Launch:
    """One kernel: its name, its blocks (functions of the sizes), the threads of a block, bytes of
    shared memory to allocate, the buffers that it takes, the tensor maps that it takes last, the
    buffers that are read before it needs anything of earlier launches (kernel/early.py), and
    whether it waits for these itself."""

    symbol: str
    blocks: tuple[Dim, Dim, Dim]
    threads: tuple[int, int, int]
    shared: int
    arguments: tuple[str, ...]
    boxes: tuple[Box, ...] = ()
    cluster: int = 1  # neighbouring blocks along x that run at the same time
    early: tuple[str, ...] = ()
    waits: bool = False


@dataclass(frozen=True)
class Kernels:
    """A nest as code for a GPU. `scratch` is memory between launches, and counters; `dims` sizes
    that each kernel takes after its buffers. All addresses are multiples of `alignment`."""

    text: str
    launches: tuple[Launch, ...]
    arguments: tuple[Buffer, ...]
    scratch: tuple[Buffer, ...]
    dims: tuple[str, ...]
    alignment: int


def blocks_of(x: Launch, sizes: dict[str, int]) -> tuple[int, int, int]:
    """How many blocks a launch has for given sizes."""
    a, b, c = (int(D.evaluate(d, sizes)) for d in x.blocks)
    return a, b, c


def scratch_bytes(b: Buffer, sizes: dict[str, int]) -> int:
    return prod(int(D.evaluate(d, sizes)) for d in b.shape) * b.dtype.bytes
