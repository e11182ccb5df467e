"""Schedules in TVM's spelling: a mutable-looking face over an immutable trace of kernel steps.

Every call makes one or more steps and applies them at once: one that is wrong is refused there, in
words, and the schedule stays as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Union, overload

from tilewright.base.errors import Invalid, Refused
from tilewright.kernel.axis import moved
from tilewright.kernel.group import PRECISIONS, Group
from tilewright.kernel.nest import Nest, loop_names, start
from tilewright.kernel.step import Step, Trace, apply
from tilewright.kernel.steps.barrier import Synchronise
from tilewright.kernel.steps.cache_read import CacheRead
from tilewright.kernel.steps.cache_write import CacheWrite
from tilewright.kernel.steps.compute_inline import ComputeInline
from tilewright.kernel.steps.compute_with import ComputeWith
from tilewright.kernel.steps.rfactor import RFactor
from tilewright.kernel.steps.set_scope import SetScope
from tilewright.kernel.text import nest_text

from .expression import Operation, Tensor
from .finish import finished
from .handle import StageHandle, scope_named, thread_axis
from .scalars import IterVar
from .show import present
from .stages import group_of

__all__ = ["Schedule", "create_schedule", "thread_axis"]

Key = Union[Tensor, Operation]


@dataclass
class StageAxes:
    """What a schedule knows about the loops of one stage."""

    op: Operation
    loops: dict[IterVar, str]  # of the axes that are loops now
    gone: dict[IterVar, str]  # the others, and what replaced them


def create_schedule(ops: Key | Sequence[Key], precision: str = "reassociate") -> Schedule:
    """The schedule of these operations: one naive nest per stage. Under the precision
    "strict" no step may change the order in which floats are added up."""
    if precision not in PRECISIONS:
        raise Invalid(f"there is no precision {precision!r}", hint=" or ".join(PRECISIONS))
    several = list(ops) if isinstance(ops, (tuple, list)) else [ops]
    outputs: list[Tensor] = []
    for x in several:
        outputs += x.outputs if isinstance(x, Operation) else (_tensor(x),)
    if not outputs:
        raise Invalid("there is nothing to schedule", hint="write te.create_schedule(C.op)")
    return Schedule(outputs, precision)


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

    def __init__(self, outputs: Sequence[Tensor], precision: str = "reassociate") -> None:
        self.outputs = tuple(dict.fromkeys(outputs))
        group, self._names = group_of(self.outputs)
        self.group = replace(group, precision=precision)
        self.nest, self.trace = start(self.group), ()
        self._axes: dict[str, StageAxes] = {}
        for t, name in self._names.items():
            self._know(t, name)
        self._joined: set[Operation] = set()
        for op in dict.fromkeys(t.op for t in self._names):
            self._join(op)

    def _join(self, op: Operation) -> None:
        """Several outputs of one operation are one stage to their user: components of a reduction
        that only others read disappear into those, outputs of the same shape share their loops."""
        stage, *others = (op.tensor, *(t for t in op.outputs if t is not op.tensor))
        if stage not in op.outputs:
            inside = [t for t in others if t in self._names and t not in self.outputs]
            self.apply(*(ComputeInline(self._names[t]) for t in inside))
            self._joined.add(op)
        elif others and op.axis and all(t in self.outputs for t in op.outputs):
            at = f"{self._names[stage]}.i{len(op.axis) - 1}"
            if self.attempt(*(ComputeWith(self._names[t], at) for t in others)):
                self._joined.add(op)

    def _stage(self, key: Key) -> Tensor:
        """The tensor whose loops a user means."""
        t = _tensor(key)
        return t.op.tensor if t.op in self._joined else t

    def _know(self, t: Tensor, name: str) -> None:
        loops = {a: f"{name}.i{k}" for k, a in enumerate(t.op.axis)}
        if t is t.op.tensor:
            loops |= {a: f"{name}.r{k}" for k, a in enumerate(t.op.reduce_axis)}
        self._names[t] = name
        self._axes[name] = StageAxes(t.op, loops, {})

    def __getitem__(self, key: Key) -> StageHandle:
        return StageHandle(self, self.name_of(self._stage(key)))

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

    def attempt(self, *steps: Step) -> bool:
        """The same, and whether they were accepted."""
        try:
            self.apply(*steps)
        except Refused:
            return False
        return True

    def replay(self, trace: Sequence[Step]) -> None:
        """Start again with these steps, which name the same loops as those so far."""
        self.nest, self.trace = apply(start(self.group), trace), tuple(trace)

    def finished(self) -> tuple[Trace, Nest]:
        """The steps so far with those that `tw.lower` adds (see finish.py), and their nest."""
        return finished(self.group, self.trace, self.nest)

    def synchronise(self) -> None:
        """Barriers where threads of a block read what others wrote; the last step of all, so the
        steps which finish a schedule come right before it."""
        trace, nest = self.finished()
        last = Synchronise()
        self.nest, self.trace = last.apply(nest), (*trace, last)

    def cache_write(self, tensor: Key, scope: str = "global") -> Tensor:
        """The tensor is computed in a buffer of its own, which is copied when it is done; the
        buffer's tensor is returned.

        for i: for k: C[i] += A[i,k]     for i: for k: C_global[i] += A[i,k]
                                         for i: C[i] = C_global[i]
        """
        t = self._stage(tensor)
        name = self.name_of(t)
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
        known.op = Operation(t, known.op.axis, (), known.op.outputs)
        return made

    def cache_read(self, tensor: Key, scope: str, readers: Key | Sequence[Key]) -> Tensor:
        """The readers read one copy of the tensor, whose tensor is returned.

        for i: C[i] = A[i] + 1           for j: A_shared[j] = A[j]
                                         for i: C[i] = A_shared[i] + 1
        """
        t = self._stage(tensor)
        name = self.name_of(t)
        several = [readers] if isinstance(readers, (Tensor, Operation)) else list(readers)
        if not several:
            raise Refused(f"cache_read of {name} for no reader", hint="give the stages that read")
        into = self._unused(f"{name}_{scope}")
        names = tuple(dict.fromkeys(self.name_of(self._stage(x)) for x in several))
        which = names[0] if len(names) == 1 else names
        self.apply(CacheRead(name, which, into), *self._scoped(into, scope))
        axes = tuple(IterVar(f"i{k}", d) for k, d in enumerate(t.shape))
        return self._made(t, into, axes, ())

    def rfactor(self, tensor: Key, axis: IterVar) -> Tensor:
        """The reduction's axis becomes an axis of partial results, whose tensor is returned (the
        factored axis first); the stage then reduces over that axis only.

        for k.0: for k.1: C += A[…]      for k.1: for k.0: C_rf[k.1] += A[…]
                                         for k.1: C += C_rf[k.1]
        """
        t = self._stage(tensor)
        name = self.name_of(t)
        known, loop = self._axes[name], self.loop(name, axis)
        into = self._unused(f"{name}_rf")
        self.apply(RFactor(name, (loop,), into))
        data = {id(a) for a in known.op.axis}
        twins = {a: IterVar(a.name, a.extent, a.kind) for a in known.loops}
        rest = [a for a in known.loops if a is not axis and id(a) not in data]
        front = (twins[axis], *(twins[a] for a in known.op.axis))
        made = self._made(t, into, front, tuple(twins[a] for a in rest))
        self._axes[into].loops = {twins[a]: moved(x, into) for a, x in known.loops.items()}
        for a in rest:
            known.gone[a] = f"a loop of {into} now"
            del known.loops[a]
        known.op = Operation(t, known.op.axis, (axis,), known.op.outputs)
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
        scope = scope_named(scope)
        return () if scope == "local" else (SetScope(name, scope),)

    def known(self, stage: str) -> StageAxes:
        """What is known about the loops of a stage."""
        return self._axes[stage]

    def loop_order(self) -> list[str]:
        """The loops of the nest, outermost first."""
        return loop_names(self.nest)

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

    @overload
    def show(self) -> None: ...
    @overload
    def show(self, html: str | Path) -> Path: ...
    def show(self, html: str | Path | None = None) -> Path | None:
        """Print the loops, the buffers with scope and size, and the steps; with `html`, write a
        page with the loops before and after each step there instead, and return its path."""
        return present(self.group, self.trace, html)
