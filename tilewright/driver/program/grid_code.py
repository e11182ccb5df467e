"""How nests become code of GPUs, and programs of it: PTX and a list of launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

from tilewright.base.errors import Invalid, Unsupported
from tilewright.base.events import Log
from tilewright.driver.program.kernel_process import Request
from tilewright.driver.program.stages import KernelStages, Stages
from tilewright.ir.dim import Dim
from tilewright.ir.target import Target
from tilewright.kernel.group import Buffer, Group
from tilewright.kernel.library import library_calls, without_library
from tilewright.kernel.nest import Nest
from tilewright.llvm.entry import Action, Branch, Entry, Loop, calls_of
from tilewright.llvm.grid import emit_kernels
from tilewright.llvm.launch import Launch
from tilewright.llvm.tasks import TaskCode, emit_tasks
from tilewright.runtime.cuda.assembling import assembled
from tilewright.runtime.cuda.image import (
    EntryImage,
    KernelImage,
    Scratch,
    Size,
    Steps,
    TaskParts,
    TasksImage,
    Work,
    from_bytes,
    to_bytes,
)
from tilewright.runtime.cuda.machine import Machine
from tilewright.runtime.cuda.program import CudaProgram
from tilewright.runtime.cuda.tasks import graph_of
from tilewright.runtime.program import Details, Program
from tilewright.runtime.program_data import ProgramData


def grid_image(nest: Nest, group: Group, target: Target, request: Request) -> bytes:
    """A kernel of a GPU, as another process requests it."""
    code = Grids(target, None, request.one_kernel, request.assembles, request.overlap)
    return code.kernel(nest, group, Stages().kernel(group.name))()


class Grids:
    """Code of GPUs."""

    def __init__(
        self,
        target: Target,
        machine: Machine | None,
        one_kernel: bool,
        assembles: bool,
        overlap: bool = False,
    ) -> None:
        self.target, self.machine = target, machine
        self.one_kernel, self.assembles, self.overlap = one_kernel, assembles, overlap
        named = ("one kernel", one_kernel), (" assembled", assembles), (" overlapping", overlap)
        self.form = "".join(name for name, there in named if there)
        self._images: dict[str, KernelImage] = {}  # of kernels that may become tasks

    def known(self, symbol: str, image: bytes) -> None:
        if self.one_kernel:
            self._images[symbol] = from_bytes(KernelImage, image)

    def kernel(self, nest: Nest, group: Group, stages: KernelStages) -> Callable[[], bytes]:
        calls = library_calls(nest)
        legal = stages.legal(without_library(nest), self.target)
        made = emit_kernels(legal, self.target, waits=self.overlap)
        names = tuple(b.name for b in (*group.inputs, *group.outputs))
        scratch = tuple(Scratch(b.name, _bytes(b), b.scope == "counter") for b in made.scratch)
        parts = None
        if self.one_kernel:
            parts = _task_parts(legal, self.target)
            if calls:
                parts = TaskParts(refused=f"{group.name} is computed by a library")
        sizes = group.dims(), made.dims
        image = KernelImage(made.launches, names, scratch, *sizes, b"", calls, parts)
        if self.one_kernel:
            self._images[group.name] = image

        def compiled() -> bytes:
            if not made.launches:
                return to_bytes(KernelImage, image)
            ptx = stages.ptx(made.text, self.target)
            code = assembled(ptx, self.target.cpu) if self.assembles else b""
            return to_bytes(KernelImage, replace(image, ptx=ptx, cubin=code))

        return compiled

    def entry(
        self, entries: Sequence[Entry], stages: Stages, marks: bool, log: Log
    ) -> Callable[[], bytes]:
        if marks:
            raise Unsupported("profiles are taken of programs on the CPU only")
        steps = tuple(map(_steps, entries))
        if not self.one_kernel:
            image = to_bytes(EntryImage, EntryImage(steps))
            return lambda: image
        try:
            code = self._one_kernel(steps)
        except Unsupported as why:
            refused = why.what
            log.add("one kernel", f"the program is not one kernel: {refused}")
            return lambda: to_bytes(EntryImage, EntryImage(steps, refused=refused))

        def compiled() -> bytes:
            ptx = stages.tasks(code.text, self.target, lambda: self._graph(steps[-1], code))
            tasks = TasksImage(code.threads, code.shared, code.words, code.kinds, ptx)
            return to_bytes(EntryImage, EntryImage(steps, tasks))

        return compiled

    def _one_kernel(self, entries: Sequence[Steps]) -> TaskCode:
        """The code of all kernels of a program as tasks of one."""
        assert self.target.grid is not None
        if len(entries) > 1:
            raise Unsupported("it branches on data or has loops")
        used = dict.fromkeys(a.symbol for a in entries[-1].actions if isinstance(a, Work))
        modules: list[tuple[str, Sequence[Launch], int]] = []
        for symbol in used:
            parts, sizes = self._images[symbol].tasks or TaskParts(), len(self._images[symbol].dims)
            if parts.refused:
                raise Unsupported(parts.refused)
            modules.append((parts.text.decode(), parts.launches, sizes))
        return emit_tasks(modules, self.target.grid)

    def _graph(self, steps: Steps, code: TaskCode) -> str:
        """The task graph as text: of known sizes, on as many blocks as the target has at least."""
        if steps.dims:
            return "the phases depend on sizes\n"
        assert self.target.grid is not None
        blocks = self.target.grid.multiprocessors * code.blocks
        return str(graph_of(steps, self._images, code.kinds, code.threads, blocks))

    def load(self, data: ProgramData, details: Details, prologue: Program | None) -> Program:
        if self.machine is None:
            raise Invalid(
                f"code for {data.target.name} runs on a GPU, and none was named",
                hint="compile with CUDA tensors",
            )
        return CudaProgram(data, self.machine, details, prologue)


def _task_parts(legal: Nest, target: Target) -> TaskParts:
    try:
        made = emit_kernels(legal, target, tasks=True)
    except Unsupported as why:
        return TaskParts(refused=why.what)
    return TaskParts(made.text.encode(), made.launches)


def _bytes(b: Buffer) -> Dim:
    return prod(b.shape, start=b.dtype.bytes)


def _steps(e: Entry) -> Steps:
    return Steps(e.symbol, tuple(s for a in e.actions for s in _works(a)), e.dims)


def _works(a: Action) -> tuple[Work | Branch | Loop, ...]:
    if isinstance(a, (Branch, Loop)):
        return (a,)
    return tuple(
        Work(
            c.symbol,
            c.args,
            tuple(Size(d) if isinstance(d, str) else Size(value=d) for d in c.dims),
            c.sizes,
            c.written,
        )
        for c in calls_of(a)
    )
