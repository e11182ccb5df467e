"""Options of a compilation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from tilewright.ir.target import Target

if TYPE_CHECKING:  # loaded only where something is compiled
    from tilewright.ir.passes import Pass
    from tilewright.ir.pipeline import Pipeline
    from tilewright.tune.choose import Chooser


_PASSES = "tilewright.driver.program.default_passes"


def default_passes() -> ModuleType:
    """The module with the passes: loaded where something is compiled, or a list of passes is
    given."""
    return import_module(_PASSES)


@dataclass(frozen=True)
class Options:
    target: Target | None = None  # None: as TILEWRIGHT_TARGET says, or this machine
    # What is done to the graph before fusion: `tw.passes()`, edited, or its text; None: the default
    passes: Pipeline | str | Sequence[Pass] | None = None
    # "search": a search among equal graphs, taken where it is measured to be faster
    optimize: str = ""
    # "strict": sums are added in the order of their definition, and nothing is folded that rounds
    precision: str = "reassociate"
    # 16-bit results are rounded between operators, as eager's are; False: a kernel computes in
    # float32 and rounds what it stores
    round_between: bool = True
    validate: bool = False  # every stage is judged against the one before it; a wrong one raises
    profile: bool = False  # the program's details.marks then show where time goes
    dump: Path | None = None  # where stages are written; None: as TILEWRIGHT_DUMP says
    resume: Path | None = None  # where edited stages are read; None: as TILEWRIGHT_RESUME says
    schedules: Mapping[str, str] = field(default_factory=dict)  # traces by the names of kernels
    # How the schedules of other kernels are chosen: a name of tune/choosers.py, or a chooser of
    # one's own; "auto": as TILEWRIGHT_CHOOSE says
    choose: str | Chooser = "auto"
    tune_seconds: int = 0  # that timing may take per program; 0: as TILEWRIGHT_TUNE_SECONDS says
    # On a GPU: all kernels of a program are tasks of one, where that is possible
    one_kernel: bool = False
    # Results that are new values of inputs, by their numbers: programs of a processor write them
    # there themselves where they can (`Program.updated`)
    updates: tuple[tuple[int, int], ...] = ()
    # Inputs whose values nobody needs after a call: programs of a processor may have others in
    # their memory, or give it back (`Program.spent`)
    spent: tuple[int, ...] = ()
    # The memory of results is new for each call: others may lie there until they are written
    fresh_results: bool = False
    # Of a processor's program: pages of the arena and of `spent` inputs go back to the system as
    # soon as nobody needs them, where fewer are in use at once then (graph/freed.py)
    give_back: bool = False
