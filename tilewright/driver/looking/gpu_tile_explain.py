"""`tw.explain` of a tile kernel on a GPU: which instruction does each stage, what the copy engine
brings and what it does not, with the reason, and the steps of the schedule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from tilewright.base.errors import Refused
from tilewright.driver.looking.tables import bytes_text, new_table, short_place
from tilewright.kernel.defaults.grid_tile_copies import Copies
from tilewright.kernel.nest import Loop, Nest, Store, own_loops, walk
from tilewright.kernel.step import Step, apply, parse_trace
from tilewright.kernel.steps.distribute import Distribute
from tilewright.kernel.steps.roles import Roles
from tilewright.lang.tile.ir import Place


@dataclass(frozen=True)
class GpuStage:
    name: str
    into: str
    by: str
    where: str


@dataclass(frozen=True)
class GpuTileReport:
    """One specialisation of a kernel on a GPU."""

    kernel: Any  # CompiledKernel
    target: str
    threads: tuple[int, int, int]
    shared: int  # bytes
    stages: tuple[GpuStage, ...]
    notes: tuple[str, ...]
    trace: str

    def page(self) -> Iterator[Any]:
        x, y, z = self.threads
        yield Text(f"{self.kernel.name} on {self.target}", style="bold")
        memory = bytes_text(self.shared)
        yield Text(f"  {x * y * z} threads of a block, {memory} of shared memory")
        for note in self.notes:
            yield Text(f"  note: {note}", style="yellow", no_wrap=True, overflow="ignore")
        table = new_table("stage", "computes", "runs by", "where")
        for s in self.stages:
            table.add_row(s.name, s.into, s.by, short_place(s.where) if s.where else "")
        yield Text("")
        yield table
        steps = "\n".join(f"  {line}" for line in self.trace.splitlines())
        yield Text(f"\nschedule\n{steps}", no_wrap=True, overflow="ignore")


def explain_gpu_tile(kernel: Any) -> GpuTileReport:
    forms = kernel.launchable.make_forms()
    n: Nest = forms.form
    (launch,) = forms.kernels.launches or (None,)
    return GpuTileReport(
        kernel,
        forms.target.name,
        (1, 1, 1) if launch is None else launch.threads,
        sum(b.dtype.bytes * _cells(b.shape) for b in n.buffers if b.scope == "shared"),
        tuple(_stages(n, forms.lowered.places)),
        tuple(notes(forms.lowered.nest, parse_trace(forms.trace), forms.target)),
        forms.trace,
    )


def _cells(shape: tuple[Any, ...]) -> int:
    out = 1
    for d in shape:
        out *= d
    return out


def _stages(n: Nest, places: dict[str, Place]) -> Iterator[GpuStage]:
    seen: set[str] = set()
    for s, path in walk(n.body):
        if not isinstance(s, Store) or s.stage in seen:
            continue
        seen.add(s.stage)
        by = next((q.instruction for q in path if q.instruction), "")
        lanes = next((q.extent for q in own_loops(path, s.stage) if q.kind == "lane"), 1)
        plain = f"threads, {lanes} neighbours at a time" if lanes != 1 else "threads"
        copied = ", in the background" if s.asynchronous else ""
        into = f"{s.buffer} {n.buffer(s.buffer).scope}"
        yield GpuStage(s.stage, into, f"{by or plain}{copied}", str(places.get(s.stage) or ""))


def notes(naive: Nest, trace: tuple[Step, ...], target: Any) -> Iterator[str]:
    """What was asked for and is not done: copies of the copy engine, a warp that issues them."""
    at = next((k for k, x in enumerate(trace) if isinstance(x, Distribute)), None)
    if at is None:
        return
    share = trace[at]
    assert isinstance(share, Distribute)
    done = dict(text.split(" = ") for text in share.products)
    near = next((x.near for x in trace if hasattr(x, "near")), ())
    before = apply(naive, trace[:at])
    found = Copies(before, target, done, frozenset(), near)
    late = {stage: "no loop can fetch it ahead" for stage in found.chosen if stage not in done}
    for stage, why in {**found.left, **late}.items():
        yield f"{stage} reads a tensor descriptor by plain loads: {why}"
    special = naive.are("specialised")
    if special and not any(isinstance(x, Roles) for x in trace):
        why = _no_roles(before, share)
        yield f"no warp of its own issues copies in {', '.join(special)}: {why}"


def _no_roles(before: Nest, share: Distribute) -> str:
    n = share.apply(before)
    loops = [x for x, _ in walk(n.body) if isinstance(x, Loop) and x.kind == "serial"]
    for loop in loops:
        if not loop.axis.stage:
            try:
                Roles(loop.name, 2).apply(n)
            except Refused as why:
                return why.what.partition("): ")[2] or why.what
    return "there is no room for two versions of its operands"
