"""Checking a launch: run it step by step and report what no compiled kernel may do.

    report = check(kernel, grid, arguments, uninitialised=("out",))

finds accesses outside the arguments, values that were never defined and reach memory, an address or
a branch, and programs that touch the same element in no order, one of them writing. The kernel is
translated first, so that findings have the places of the compiler; TILEWRIGHT_CHECK_TILES=1 does
the same to the Python of every launch that runs step by step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.lang.tile.front.frontend import translate
from tilewright.lang.tile.front.functions import TileFunction
from tilewright.lang.tile.ir import Kernel, renumbered
from tilewright.lang.tile.stepping.eager import bind_all, interpret
from tilewright.lang.tile.stepping.findings import CheckFailed, Finding, Report
from tilewright.lang.tile.stepping.raw_memory import Memory
from tilewright.lang.tile.stepping.watching import CheckingBuilder

__all__ = ["CheckFailed", "Finding", "Report", "check", "check_kernel"]


def check(
    function: TileFunction,
    grid: Sequence[int],
    arguments: Mapping[str, Any],
    *,
    uninitialised: Sequence[str] = (),
    raises: bool = True,
) -> Report:
    """Check one launch; `uninitialised` names the arguments that the caller gives as empty memory.
    Findings are an error at the end (`CheckFailed`) unless `raises` is false."""
    bound = bind_all(function, arguments)
    kernel = translate(function, {name: argument for name, (argument, _) in bound.items()})
    leaves = [leaf for _, given in bound.values() for leaf in given]
    names = (name for name, _ in leaves)
    kernel = renumbered(kernel, dict(zip(kernel.arguments, names, strict=True)))
    given = [x for _, x in leaves]
    return check_kernel(kernel, grid, given, uninitialised=uninitialised, raises=raises)


def check_kernel(
    kernel: Kernel,
    grid: Sequence[int],
    arguments: Sequence[Any],
    *,
    uninitialised: Sequence[str] = (),
    raises: bool = True,
) -> Report:
    """The same for a kernel that is translated."""
    builder = CheckingBuilder(
        Memory(), grid, kernel=kernel.name, uninitialised=uninitialised, raises=raises
    )
    interpret(kernel, grid, arguments, builder)
    return builder.report
