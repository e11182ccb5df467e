"""How nests become code of a machine, and programs of it: objects and one entry function for
processors; PTX and a list of launches for GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Protocol

from tilewright.base.errors import Invalid, Unsupported
from tilewright.base.events import Log
from tilewright.driver.program.stages import KernelStages, Stages
from tilewright.ir.dim import Dim
from tilewright.ir.target import Target
from tilewright.kernel.group import Buffer, Group
from tilewright.kernel.library import library_calls, without_library
from tilewright.kernel.nest import Nest
from tilewright.llvm.emit import emit
from tilewright.llvm.entry import Action, Branch, Entry, calls_of, emit_entries
from tilewright.llvm.grid import emit_kernels
from tilewright.llvm.objects import cached_object
from tilewright.runtime.cuda.image import (
    EntryImage,
    KernelImage,
    Scratch,
    Size,
    Steps,
    Work,
    to_bytes,
)
from tilewright.runtime.cuda.machine import Machine
from tilewright.runtime.cuda.program import CudaProgram
from tilewright.runtime.program import Details, Program
from tilewright.runtime.program_data import ProgramData


class Code(Protocol):
    """The code of one machine."""

    def kernel(self, nest: Nest, group: Group, stages: KernelStages) -> Callable[[], bytes]:
        """Writes a kernel; what is returned compiles it, on any thread."""
        ...

    def entry(
        self, entries: Sequence[Entry], stages: Stages, marks: bool, log: Log
    ) -> Callable[[], bytes]:
        """The same of the order of kernels; the last entry is the program's own."""
        ...

    def load(self, data: ProgramData, details: Details, prologue: Program | None) -> Program: ...


def code_for(target: Target, machine: Machine | None) -> Code:
    """The code of a target; programs for a GPU run on the machine."""
    return Objects(target) if target.grid is None else Grids(target, machine)


def loaded(
    data: ProgramData, details: Details, prologue: Program | None, machine: Machine | None
) -> Program:
    """A program in this process: on its target's machine."""
    if data.target.grid is None:
        marks = details.marks
        symbols = {"tw_mark": marks.address()} if marks is not None else {}
        return Program(data, details, prologue, symbols)
    if machine is None:
        raise Invalid(
            f"code for {data.target.name} runs on a GPU, and none was named",
            hint="compile with CUDA tensors",
        )
    return CudaProgram(data, machine, details, prologue)


class Objects:
    """Code of processors."""

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
        return loaded(data, details, prologue, None)


class Grids:
    """Code of GPUs."""

    def __init__(self, target: Target, machine: Machine | None) -> None:
        self.target, self.machine = target, machine

    def kernel(self, nest: Nest, group: Group, stages: KernelStages) -> Callable[[], bytes]:
        calls = library_calls(nest)
        made = emit_kernels(stages.legal(without_library(nest), self.target), self.target)
        names = tuple(b.name for b in (*group.inputs, *group.outputs))
        scratch = tuple(Scratch(b.name, _bytes(b)) for b in made.scratch)

        def compiled() -> bytes:
            ptx = stages.ptx(made.text, self.target) if made.launches else b""
            image = KernelImage(made.launches, names, scratch, group.dims(), made.dims, ptx, calls)
            return to_bytes(KernelImage, image)

        return compiled

    def entry(
        self, entries: Sequence[Entry], stages: Stages, marks: bool, log: Log
    ) -> Callable[[], bytes]:
        if marks:
            raise Unsupported("profiles are taken of programs on the CPU only")
        image = to_bytes(EntryImage, EntryImage(tuple(map(_steps, entries))))
        return lambda: image

    def load(self, data: ProgramData, details: Details, prologue: Program | None) -> Program:
        return loaded(data, details, prologue, self.machine)


def _bytes(b: Buffer) -> Dim:
    return prod(b.shape, start=b.dtype.bytes)


def _steps(e: Entry) -> Steps:
    return Steps(e.symbol, tuple(s for a in e.actions for s in _works(a)), e.dims)


def _works(a: Action) -> tuple[Work | Branch, ...]:
    if isinstance(a, Branch):
        return (a,)
    return tuple(
        Work(
            c.symbol,
            c.args,
            tuple(Size(d) if isinstance(d, str) else Size(value=d) for d in c.dims),
        )
        for c in calls_of(a)
    )
