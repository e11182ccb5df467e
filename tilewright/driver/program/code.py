"""How nests become code of a machine, and programs of it: objects and one entry function for
processors; for GPUs see grid_code.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from tilewright.base import knobs
from tilewright.base.events import Log
from tilewright.driver.program.stages import KernelStages, Stages
from tilewright.graph.cost import products_wait_for_memory
from tilewright.ir.node import Graph
from tilewright.ir.target import Target
from tilewright.kernel.group import Group
from tilewright.kernel.nest import Nest
from tilewright.llvm.emit import emit
from tilewright.llvm.entry import Entry, emit_entries
from tilewright.llvm.objects import cached_object
from tilewright.runtime.program import Details, Program
from tilewright.runtime.program_data import ProgramData

if TYPE_CHECKING:  # loaded where there is a GPU, as is all that compiles for one
    from tilewright.runtime.cuda.machine import Machine

_GRIDS = "tilewright.driver.program.grid_code"
# What the matrix units of a GPU do in the time that it reads a byte in: 150 to 300 by model.
FLOPS_PER_BYTE = 200


class Code(Protocol):
    """The code of one machine."""

    form: str  # what distinguishes kernels of one target from others in the cache
    one_kernel: bool  # of a GPU: are kernels tasks of one?
    assembles: bool
    overlap: bool  # do kernels wait for earlier ones themselves?

    def known(self, symbol: str, image: bytes) -> None:
        """A kernel that was compiled before."""
        ...

    def kernel(self, nest: Nest, group: Group, stages: KernelStages) -> Callable[[], bytes]:
        """Writes a kernel; what is returned compiles it, on any thread."""
        ...

    def entry(
        self, entries: Sequence[Entry], stages: Stages, marks: bool, log: Log
    ) -> Callable[[], bytes]:
        """The same of the order of kernels; the last entry is the program's own."""
        ...

    def load(self, data: ProgramData, details: Details, prologue: Program | None) -> Program: ...


def code_for(
    graph: Graph, target: Target, machine: Machine | None, one_kernel: bool = False
) -> Code:
    """The code of a graph on a target; programs for a GPU run on the machine, as one kernel if
    possible."""
    if target.grid is None:
        return Objects(target)
    assembles = machine is not None and machine.assembles
    return import_module(_GRIDS).Grids(target, machine, one_kernel, assembles, _overlaps(graph))


def _overlaps(graph: Graph) -> bool:
    """Should kernels begin before the one before them ends? What is between kernels counts where
    these wait for memory; where they compute all the time, others that begin are in their way."""
    asked = knobs.overlap.get()
    return products_wait_for_memory(graph, FLOPS_PER_BYTE) if asked == "auto" else asked == "1"


def code_kinds(code: Code) -> tuple[bool, bool, bool]:
    """What kind of code of a GPU it is, for a Request."""
    return code.one_kernel, code.assembles, code.overlap


class Objects:
    """Code of processors."""

    form, one_kernel, assembles, overlap = "", False, False, False

    def known(self, symbol: str, image: bytes) -> None:
        """An object needs no other one."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def kernel(self, nest: Nest, group: Group, stages: KernelStages) -> Callable[[], bytes]:
        text = emit(stages.legal(nest, self.target), self.target)
        return lambda: stages.compiled(text, self.target)

    def entry(
        self, entries: Sequence[Entry], stages: Stages, marks: bool, log: Log
    ) -> Callable[[], bytes]:
        # It fills in arguments, a few instructions for each: what optimising took, no call saves.
        text = stages.entry(emit_entries(entries, marks))
        return lambda: cached_object(text, self.target, log, quick=True)

    def load(self, data: ProgramData, details: Details, prologue: Program | None) -> Program:
        marks = details.marks
        symbols = {"tw_mark": marks.address()} if marks is not None else {}
        return Program(data, details, prologue, symbols)
