from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir import dim as D
from tilewright.ir.expr import Const, Fn, Index, Value, load, loads, replaced, rewrite, walk
from tilewright.ir.value_text import value_text
from tilewright.kernel.group import Buffer
from tilewright.kernel.guards import conditions, copied, surely_inside
from tilewright.kernel.nest import Alloc, Nest, Path, Stmt, Store, transform, wrap
from tilewright.kernel.nest import walk as walk_nest
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class Materialise(Step):
    """Part of what a stage computes, as it is printed, becomes a stage `into` of its own before it,
    over the loops on which it depends: the inverse of ComputeInline.

    for i: for j: y[i,j] = exp(x[i]) * z[j]        for i: e[i] = exp(x[i])
                                                   for i: for j: y[i,j] = e[i] * z[j]
    """

    stage: str
    value: str
    into: str

    def apply(self, n: Nest) -> Nest:
        self.fresh(n, self.into)
        store, path, part = self._found(n)
        axes = [q for q in path if q.var in part.symbols()]
        for q in axes:
            fixed = D.symbols(q.extent) <= set(n.dims)
            self.need(fixed, f"the extent of {q.name} varies", "materialise first, then split")
        top = next(k for k, s in enumerate(n.body) if s is (path[0] if path else store))
        # Loops that vary with others are conditions: Complete makes such.
        whole = all(D.symbols(q.extent) <= set(n.dims) for q in path)
        self._complete(n, n.body[top:], part, whole and _always(store.value, part))
        own = tuple(D.the_sym(D.var(f"{self.into}.i{k}", q.extent)) for k, q in enumerate(axes))
        at = tuple(map(D.as_int, own))
        moved = {q.var: i for q, i in zip(axes, at, strict=True)}
        first = wrap(own, Store(self.into, self.into, at, rewrite(part, moved)))
        read = load(self.into, [D.as_int(q.var) for q in axes], part.dtype)

        def one(s: Stmt) -> tuple[Stmt, ...]:
            return (
                (replace(store, value=replaced(store.value, part, read)),) if s is store else (s,)
            )

        body = (*n.body[:top], Alloc(self.into), first, *transform(n.body[top:], one))
        shape = tuple(q.extent for q in axes)
        return replace(n, body=body).with_buffer(Buffer(self.into, part.dtype, shape, "local"))

    def _found(self, n: Nest) -> tuple[Store, Path, Value]:
        """The one store of the stage that computes the value, the loops around it, the value."""
        stores = [
            (s, p) for s, p in walk_nest(n.body) if isinstance(s, Store) and s.stage == self.stage
        ]
        self.need(stores, f"there is no stage {self.stage}")
        found = [
            (s, p, v) for s, p in stores for v in set(walk(s.value)) if value_text(v) == self.value
        ]
        parts = "; ".join(value_text(s.value) for s, _ in stores)
        self.need(found, f"{self.stage} does not compute {self.value}", f"it computes {parts}")
        several = f"{self.stage} computes {self.value} in {len(found)} places"
        self.need(len(found) == 1, several, "materialise before Peel")
        self.need(not isinstance(found[0][2], Const), f"{self.value} is a number already")
        return found[0]

    def _complete(self, n: Nest, rest: tuple[Stmt, ...], part: Value, always: bool) -> None:
        """Everything that the value reads is there before the stage, and inside its buffer: it is
        if the stage computes the value at every point, and else it has to be proved."""
        written = {s.buffer for s, _ in walk_nest(rest) if isinstance(s, Store)}
        placed = {s.buffer for s, p in walk_nest(n.body) if isinstance(s, Alloc) and p}
        for x in loads(part):
            name = str(x.source)
            late = f"{x!r} is written when {self.stage} begins, or later"
            self.need(name not in written | placed, late, "materialise before placing")
            shape = n.buffer(name).shape
            own = conditions(part) if copied(part) is x else []
            inside = always or all(
                surely_inside(i, d) or (D.nonneg(i) and any(_below(c, i, d) for c in own))
                for i, d in zip(x.index, shape, strict=True)
            )
            self.need(inside, f"{x!r} is inside {name} only under a condition")


def _always(v: Value, part: Value) -> bool:
    """Is the part of a value computed whatever a choice in it chooses?"""
    stack = [v]
    while stack:
        x = stack.pop()
        if x is part:
            return True
        chosen = isinstance(x, Fn) and x.name == "select"
        stack += x.operands()[:1] if chosen else x.operands()
    return False


def _below(c: Value, at: D.Dim, size: D.Dim) -> bool:
    """Is a condition that an index is less than a size?"""
    if not isinstance(c, Fn) or c.name != "lt" or not isinstance(c.args[0], Index):
        return False
    return D.known_eq(c.args[0].dim, at) and D.known_eq(c.args[1].as_dim(), size)
