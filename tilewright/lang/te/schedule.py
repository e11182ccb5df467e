"""Schedules in TVM's spelling: a mutable-looking face over an immutable trace of kernel steps.

Every call makes one or more steps and applies them at once: one that is wrong is refused there, in
words, and the schedule stays as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Union

from tilewright.base.errors import Invalid, Refused
from tilewright.kernel.group import Group
from tilewright.kernel.nest import Loop, Nest, find, start
from tilewright.kernel.step import Step, Trace
from tilewright.kernel.steps.barrier import Synchronise
from tilewright.kernel.steps.bind import Bind
from tilewright.kernel.steps.cache_write import CacheWrite
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.compute_inline import ComputeInline
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.materialise import Materialise
from tilewright.kernel.steps.parallel import Parallel
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.rfactor import RFactor
from tilewright.kernel.steps.set_scope import SetScope
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.storage_align import StorageAlign
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.steps.vectorize import Vectorize
from tilewright.kernel.text import nest_text

from .expression import Operation, Tensor
from .scalars import IterVar
from .stages import group_of

Key = Union[Tensor, Operation]

# TVM's words for memory which this machine has one of.
_SCOPES = {"global": "local"}


_GRID = {"blockIdx": "block", "threadIdx": "thread"}


@dataclass(frozen=True)
class ThreadAxis:
    """One axis of a grid: `kind` is what a loop bound to it becomes."""

    kind: str


def thread_axis(tag: str) -> ThreadAxis:
    """`thread_axis("blockIdx.x")`, `thread_axis("threadIdx.y")`: what `bind` binds to."""
    what, _, axis = tag.partition(".") if isinstance(tag, str) else ("", "", "")
    if what not in _GRID or axis not in ("x", "y", "z"):
        raise Invalid(f"there is no thread axis {tag!r}", hint="blockIdx or threadIdx, .x .y or .z")
    return ThreadAxis(f"{_GRID[what]}.{axis}")


@dataclass
class _Axes:
    """What a schedule knows about the loops of one stage."""

    op: Operation
    loops: dict[IterVar, str]  # of the axes that are loops now
    gone: dict[IterVar, str]  # what became of the others


def create_schedule(ops: Key | Sequence[Key]) -> Schedule:
    """The schedule of the operations asked for: one naive nest per stage."""
    several = list(ops) if isinstance(ops, (tuple, list)) else [ops]
    outputs = [_tensor(x) for x in several]
    if not outputs:
        raise Invalid("there is nothing to schedule", hint="write te.create_schedule(C.op)")
    return Schedule(outputs)


def _tensor(x: object) -> Tensor:
    if isinstance(x, Operation):
        return x.tensor
    if isinstance(x, Tensor):
        return x
    raise Invalid(f"{x!r} is neither a tensor nor an operation", hint="give C or C.op")


class Schedule:
    """`s[C]` is the handle of a stage, `s.trace` the steps so far, `str(s)` the loops."""

    group: Group
    nest: Nest
    trace: Trace

    def __init__(self, outputs: Sequence[Tensor]) -> None:
        self.outputs = tuple(dict.fromkeys(outputs))
        self.group, self._names = group_of(self.outputs)
        self.nest, self.trace = start(self.group), ()
        self._axes: dict[str, _Axes] = {}
        for t, name in self._names.items():
            self._know(t, name)

    def _know(self, t: Tensor, name: str) -> None:
        loops = {a: f"{name}.i{k}" for k, a in enumerate(t.op.axis)}
        loops |= {a: f"{name}.r{k}" for k, a in enumerate(t.op.reduce_axis)}
        self._names[t] = name
        self._axes[name] = _Axes(t.op, loops, {})

    def __getitem__(self, key: Key) -> StageHandle:
        return StageHandle(self, self.name_of(key))

    def name_of(self, key: Key) -> str:
        """The stage or buffer that a tensor is here."""
        t = _tensor(key)
        name = self._names.get(t)
        if name is None:
            known = ", ".join(self._names.values())
            raise Invalid(f"{t.name} is not part of this schedule", hint=f"it has {known}")
        return name

    def apply(self, *steps: Step) -> None:
        """Append kernel steps; all of them or, when one is refused, none."""
        nest = self.nest
        for s in steps:
            nest = s.apply(nest)
        self.nest, self.trace = nest, (*self.trace, *steps)

    def synchronise(self) -> None:
        """Barriers where threads of a block read what others wrote; the last step of all."""
        self.apply(Synchronise())

    def cache_write(self, tensor: Key, scope: str = "global") -> Tensor:
        """The tensor is computed in a buffer of its own, which is copied when it is done; the
        buffer's tensor is returned."""
        t, name = _tensor(tensor), self.name_of(tensor)
        known = self._axes[name]
        if known.gone or any(b.name == name for b in self.group.inputs):
            why = "is an input" if not known.gone else "is scheduled already"
            raise Refused(
                f"cache_write of {name}, which {why}", hint="cache a result, first of all"
            )
        into = self._unused(f"{name}_{scope}")
        self.apply(CacheWrite(name, into), *self._scoped(into, scope))
        axes, over = (
            tuple(IterVar(a.name, a.extent, a.kind) for a in found)
            for found in (known.op.axis, known.op.reduce_axis)
        )
        made = self._made(t, into, axes, over)
        for a in known.op.reduce_axis:
            known.gone[a] = f"a loop of {into} now"
            known.loops.pop(a, None)
        known.op = Operation(t, known.op.axis)
        return made

    def cache_read(self, tensor: Key, scope: str, readers: Key | Sequence[Key]) -> Tensor:
        """A stage reads a copy of the tensor, whose tensor is returned."""
        t, name = _tensor(tensor), self.name_of(tensor)
        single = isinstance(readers, (Tensor, Operation))
        several: list[Key] = [readers] if single else list(readers)
        if len(several) != 1:
            raise Refused(
                f"cache_read of {name} for {len(several)} readers: a copy serves one stage",
                hint="call it once for each reader",
            )
        into = self._unused(f"{name}_{scope}")
        reader = self.name_of(several[0])
        self.apply(Materialise(name, reader, into), *self._scoped(into, scope))
        axes = tuple(IterVar(f"i{k}", d) for k, d in enumerate(t.shape))
        return self._made(t, into, axes, ())

    def rfactor(self, tensor: Key, axis: IterVar) -> Tensor:
        """The reduction's axis becomes an axis of partial results, whose tensor is returned (the
        factored axis first); the stage then reduces over that axis only."""
        t, name = _tensor(tensor), self.name_of(tensor)
        known, loop = self._axes[name], self.loop(name, axis)
        into = self._unused(f"{name}_rf")
        self.apply(RFactor(name, (loop,), into))
        data = {id(a) for a in known.op.axis}
        twins = {a: IterVar(a.name, a.extent, a.kind) for a in known.loops}
        rest = [a for a in known.loops if a is not axis and id(a) not in data]
        front = (twins[axis], *(twins[a] for a in known.op.axis))
        made = self._made(t, into, front, tuple(twins[a] for a in rest))
        self._axes[into].loops = {
            twins[a]: into + x.removeprefix(name) for a, x in known.loops.items()
        }
        for a in rest:
            known.gone[a] = f"a loop of {into} now"
            del known.loops[a]
        known.op = Operation(t, known.op.axis, (axis,))
        return made

    def _made(
        self, t: Tensor, name: str, axes: tuple[IterVar, ...], over: tuple[IterVar, ...]
    ) -> Tensor:
        made = Tensor(name, tuple(a.extent for a in axes), t.dtype)
        made.op = Operation(made, axes, over)
        self._know(made, name)
        return made

    def _unused(self, name: str) -> str:
        taken, k, out = {b.name for b in self.nest.buffers}, 0, name
        while out in taken:
            k += 1
            out = f"{name}_{k}"
        return out

    def _scoped(self, name: str, scope: str) -> tuple[Step, ...]:
        scope = _SCOPES.get(scope, scope)
        return () if scope == "local" else (SetScope(name, scope),)

    def loop(self, stage: str, axis: object) -> str:
        """The loop that an axis of a stage is now."""
        known = self._axes[stage]
        if isinstance(axis, IterVar) and axis in known.loops:
            return known.loops[axis]
        if isinstance(axis, IterVar) and axis in known.gone:
            raise Refused(f"{axis.name} of {stage} is {known.gone[axis]}")
        names = ", ".join(a.name for a in known.loops) or "none"
        raise Refused(f"{axis!r} is not an axis of {stage}", hint=f"its axes are {names}")

    def replaced(self, stage: str, old: Sequence[IterVar], new: dict[IterVar, str]) -> None:
        """Axes of a stage that a step has turned into others."""
        known = self._axes[stage]
        for a in old:
            known.gone[a] = f"{', '.join(x.name for x in new)} now"
            del known.loops[a]
        known.loops |= new

    def __str__(self) -> str:
        return nest_text(self.nest)


class StageHandle:
    """One stage of a schedule; its methods are TVM's."""

    def __init__(self, schedule: Schedule, name: str) -> None:
        self.schedule, self.name = schedule, name

    @property
    def op(self) -> Operation:
        return self.schedule._axes[self.name].op

    def _loop(self, axis: object) -> str:
        return self.schedule.loop(self.name, axis)

    def _axis(self, loop: str, name: str, kind: str) -> IterVar:
        found: list[tuple[Loop, object]] = list(find(self.schedule.nest, loop))
        return IterVar(name, found[0][0].extent if found else 1, kind)

    def split(
        self, parent: IterVar, factor: int | None = None, nparts: int | None = None
    ) -> tuple[IterVar, IterVar]:
        """The axis as two: `factor` iterations inside, or `nparts` outside."""
        loop = self._loop(parent)
        if (factor is None) == (nparts is None):
            raise Refused(f"split of {loop}: say factor= or nparts=, one of them")
        self.schedule.apply(Split(loop, factor or 0, nparts or 0))
        outer = self._axis(f"{loop}.0", f"{parent.name}.outer", parent.kind)
        inner = self._axis(f"{loop}.1", f"{parent.name}.inner", parent.kind)
        self.schedule.replaced(self.name, [parent], {outer: f"{loop}.0", inner: f"{loop}.1"})
        return outer, inner

    def tile(
        self, x: IterVar, y: IterVar, x_factor: int, y_factor: int
    ) -> tuple[IterVar, IterVar, IterVar, IterVar]:
        """Two axes as four: the tiles, then the places in a tile."""
        a, b = self._loop(x), self._loop(y)
        order = (f"{a}.0", f"{b}.0", f"{a}.1", f"{b}.1")
        self.schedule.apply(Split(a, x_factor), Split(b, y_factor), Reorder(order))
        new = []
        for axis, stem in ((x, a), (y, b)):
            pair = [self._axis(f"{stem}.{k}", f"{axis.name}.{w}", axis.kind) for k, w in _PARTS]
            names = {p: f"{stem}.{k}" for p, (k, _) in zip(pair, _PARTS, strict=True)}
            self.schedule.replaced(self.name, [axis], names)
            new.append(pair)
        return new[0][0], new[1][0], new[0][1], new[1][1]

    def fuse(self, outer: IterVar, inner: IterVar) -> IterVar:
        """Two axes, one right inside the other, as one."""
        a, b = self._loop(outer), self._loop(inner)
        into = f"{self.name}.f{len(self.schedule._axes[self.name].gone)}"
        self.schedule.apply(Fuse(a, b, into))
        made = self._axis(into, f"{outer.name}.{inner.name}.fused", outer.kind)
        self.schedule.replaced(self.name, [outer, inner], {made: into})
        return made

    def reorder(self, *axes: IterVar) -> None:
        """The axes in this order, outermost first."""
        self.schedule.apply(Reorder(tuple(self._loop(a) for a in axes)))

    def _ragged(self, loop: str) -> bool:
        return all(not isinstance(x.extent, int) for x, _ in find(self.schedule.nest, loop))

    def vectorize(self, axis: IterVar) -> None:
        """The iterations are the lanes of a vector; a ragged one is masked."""
        loop = self._loop(axis)
        self.schedule.apply(Vectorize(loop, self._ragged(loop)))

    def unroll(self, axis: IterVar) -> None:
        """The iterations are written out."""
        loop = self._loop(axis)
        self.schedule.apply(Unroll(loop, self._ragged(loop)))

    def parallel(self, axis: IterVar) -> None:
        """The iterations may run on several threads."""
        self.schedule.apply(Parallel(self._loop(axis)))

    def bind(self, axis: IterVar, thread: ThreadAxis) -> None:
        """The iterations are the blocks of a grid or the threads of a block."""
        if not isinstance(thread, ThreadAxis):
            raise Invalid(f"{thread!r} is no thread axis", hint='te.thread_axis("threadIdx.x")')
        self.schedule.apply(Bind(self._loop(axis), thread.kind))

    def storage_align(self, axis: IterVar, factor: int, offset: int = 0) -> None:
        """Rows of the stage's buffer start `offset` elements after multiples of `factor`."""
        places = [k for k, a in enumerate(self.op.axis) if a is axis]
        if not places:
            names = ", ".join(a.name for a in self.op.axis) or "none"
            what = f"{axis!r} is no axis of {self.name} as it was written"
            raise Refused(what, hint=f"its axes are {names}")
        self.schedule.apply(StorageAlign(self.name, places[0], factor, offset))

    def peel(self, axis: IterVar) -> None:
        """The ragged last iteration of a split axis becomes a copy."""
        self.schedule.apply(Peel(self._loop(axis)))

    def compute_at(self, parent: StageHandle, axis: IterVar) -> None:
        """The stage is computed inside an axis of the one which reads it."""
        self.schedule.apply(ComputeAt(self.name, self.schedule.loop(parent.name, axis)))

    def compute_inline(self) -> None:
        """The stage disappears into what reads it."""
        self.schedule.apply(ComputeInline(self.name))

    def set_scope(self, scope: str) -> None:
        """Where the stage's buffer lives."""
        self.schedule.apply(SetScope(self.name, _SCOPES.get(scope, scope)))


_PARTS = ((0, "outer"), (1, "inner"))
