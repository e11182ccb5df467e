"""Recurrences: `te.scan`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir import expr as E

from .expression import Operation, Tensor
from .scalars import IterVar


def scan(init: Any, update: Any, state: Any, inputs: object = None, name: str = "scan") -> Tensor:
    """The recurrence along axis 0: the rows of `init` first, then `update`, which may read `state`
    (a placeholder for the result) at earlier rows. Tensors between the state and the update become
    part of it. `inputs` is accepted as in TVM and ignored: what is read is known."""
    init, update, state = (
        _single(t, what, name) for t, what in ((init, "init"), (update, "update"), (state, "state"))
    )
    if state.body is not None or update.body is None:
        raise Invalid(f"scan {name}: state is a placeholder, update is computed from it")
    if not state.shape or init.shape[1:] != state.shape[1:] or update.shape != state.shape:
        shapes = ", ".join(f"{t!r}" for t in (init, update, state))
        raise Invalid(f"scan {name}: the shapes do not fit: {shapes}")
    if not init.dtype is update.dtype is state.dtype:
        raise Invalid(f"scan {name}: init, update and state have different dtypes")
    if isinstance(init.shape[0], int) and init.shape[0] < 1:
        raise Invalid(f"scan {name}: init has no rows to begin with")
    t = Tensor(name, state.shape, state.dtype)
    axes = tuple(IterVar(a.name, a.extent) for a in update.op.axis)
    row, rows = D.as_int(axes[0].sym), init.shape[0]
    at = [D.minimum(row, rows - 1), *(D.as_int(a.sym) for a in axes[1:])]
    table = {a: D.as_int(b.sym) for a, b in zip(update.axes, axes, strict=True)}
    later = _Cell(t, state, name).body(update, table)
    first = E.load(init, at, init.dtype)
    t.axes, t.ordered = tuple(a.sym for a in axes), (0,)
    t.body = E.select(E.fn("lt", row, rows), first, later)
    for x in E.loads(later):
        if x.source is t and not D.known_lt(x.index[0], row):
            raise Invalid(
                f"scan {name}: the update reads the state at {x.index[0]}, not at an earlier row",
                hint="read it at t - 1",
            )
    t.op = Operation(t, axes)
    return t


def _single(t: object, what: str, name: str) -> Tensor:
    """One tensor, or a list of one."""
    t = t[0] if isinstance(t, (tuple, list)) and len(t) == 1 else t
    if not isinstance(t, Tensor):
        raise Invalid(f"the {what} of scan {name} is {t!r}, not one tensor")
    return t


class _Cell:
    """What one row is, written in earlier rows of the result."""

    def __init__(self, result: Tensor, state: Tensor, name: str) -> None:
        self.result, self.state, self.name = result, state, name

    def body(self, t: E.Tensor, table: Mapping[D.Sym, D.Dim]) -> E.Value:
        assert t.body is not None
        if t.ordered or any(isinstance(v, E.Reduce) for v in E.walk(t.body)):
            what = f"scan {self.name}: {t.name} reduces, which a recurrence cannot do yet"
            raise Invalid(what, hint="a sum over a fixed few points can be written out")
        return E.rewrite(t.body, table, self._load)

    def _load(self, x: E.Load) -> E.Value:
        source = x.source
        if source is self.state:
            return E.load(self.result, x.index, x.dtype)
        if isinstance(source, E.Tensor) and reads(source, self.state):
            return self.body(source, dict(zip(source.axes, x.index, strict=True)))
        return x


def reads(t: E.Tensor, what: E.Tensor) -> bool:
    """Does a definition read a tensor, itself or through others?"""
    seen: set[E.Tensor] = set()
    stack = [t]
    while stack:
        x = stack.pop()
        if x in seen:
            continue
        seen.add(x)
        stack.extend(x.inputs())
    return what in seen
