"""A request to compile: a function and descriptions of its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilewright.lang.tile.front.frontend import translate
from tilewright.lang.tile.front.functions import Argument, TileFunction
from tilewright.lang.tile.front.overflow import assert_no_overflow
from tilewright.lang.tile.front.sweep import sweep
from tilewright.lang.tile.ir import Block, Kernel, Operation, walk
from tilewright.lang.tile.lowering.state import APART, Aliasing


@dataclass(frozen=True)
class Request:
    """What is to be made launchable."""

    function: TileFunction
    arguments: Mapping[str, Argument]
    debug: bool = False  # are asserts checked?
    sanitize: bool = True  # and overflows of integers, while debugging?
    aliasing: Aliasing = APART  # which of the arguments are into the same memory
    wraps: bool = False  # may integers of 32 bits overflow in a launch?
    warps: int = 4  # of a block, on a GPU
    stages: int = 3  # of a loop whose loads run ahead, on a GPU

    def kernel(self) -> Kernel:
        return translated(self.function, self.arguments, self.debug, self.sanitize)


def translated(
    function: TileFunction, arguments: Mapping[str, Argument], debug: bool, sanitize: bool = False
) -> Kernel:
    """The kernel for these arguments. Asserts are part of it only while debugging."""
    kernel = translate(function, arguments)
    if debug and sanitize:
        kernel = assert_no_overflow(kernel)
    if not debug and any(map(_is_for_debugging, walk(kernel.body))):
        kernel = sweep(replace(kernel, body=_without_asserts(kernel.body)))
    return kernel


def _is_for_debugging(o: Operation) -> bool:
    return o.name == "assert" and not o.attrs.get("always")


def _without_asserts(block: Block) -> Block:
    kept = (o for o in block.operations if not _is_for_debugging(o))
    inside = (replace(o, blocks=tuple(map(_without_asserts, o.blocks))) for o in kept)
    return replace(block, operations=tuple(inside))
