from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tilewright.ir import dim as D
from tilewright.ir.combine import Combiner
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Fn, Load, Value, item, load, tuple_of
from tilewright.ir.parts import replaced
from tilewright.ir.parts import walk as walk_values
from tilewright.ir.types import DType, TupleDType
from tilewright.kernel.axis import axis_name, first_name
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import (
    Alloc,
    Loop,
    Nest,
    Stmt,
    Store,
    seek,
    substitute_all,
    transform,
    wrap,
)
from tilewright.kernel.step import Step
from tilewright.kernel.untuple import component

Index = tuple[Dim, ...]


@dataclass(frozen=True)
class Components(Step):
    """The components of a tuple that a reduction carries become buffers of their own. Those that
    are the same along an axis of the results have it no more: they are computed once, before the
    loop along it, and so is what the others compute of them.

    for r: for i: for j:                     for r:
      t[i,j] c= tuple(m[r,i], w[r,i,j])        for i: t_0n[i] = max(t_0[i], m[r,i])
                                               for i: t_f0[i] = exp(t_0[i] - t_0n[i])
                                               for i: for j: t_1[i,j] = t_1[i,j]*t_f0[i] + w[r,i,j]
                                               for i: t_0[i] = t_0n[i]

    What each component becomes is what its combiner says, to the bit.
    """

    stage: str
    axis: int

    def apply(self, n: Nest) -> Nest:
        b = self.internal(n, self.stage)
        self.need(isinstance(b.dtype, TupleDType), f"{self.stage} is no tuple")
        self.need(0 <= self.axis < len(b.shape), f"{self.stage} has no axis {self.axis}")
        stores = [s for s, _ in seek(n.body, ("stage", self.stage)) if isinstance(s, Store)]
        updates = [s for s in stores if isinstance(s.combine, Combiner)]
        self.need(len(updates) == 1, f"{self.stage} is not one reduction by a combiner")
        made = _Apart(self, n, b, updates[0])
        body = made.body(n.body)
        for name in made.names:
            self.fresh(n, name)
        out = replace(n, body=body).without_buffer(self.stage)
        for x in made.buffers:
            out = out.with_buffer(x)
        return out


class _Apart:
    """The components of one buffer: their shapes, what becomes of loads and stores."""

    def __init__(self, step: Components, n: Nest, b: Buffer, update: Store) -> None:
        assert isinstance(b.dtype, TupleDType)
        self.step, self.nest, self.buffer = step, n, b
        self.kinds: tuple[DType, ...] = b.dtype.items
        self.shared = self._shared(update)
        step.need(
            0 < len(self.shared) < len(self.kinds),
            f"{'all' if self.shared else 'no'} components are the same along axis {step.axis}",
        )
        own = [x if k not in self.shared else self._less(x) for k, x in self._wide()]
        self.buffers: list[Buffer] = own

    @property
    def names(self) -> list[str]:
        return [x.name for x in self.buffers]

    def _wide(self) -> list[tuple[int, Buffer]]:
        b = self.buffer
        parts = enumerate(self.kinds)
        return [(k, replace(b, name=component(b.name, k), dtype=d)) for k, d in parts]

    def _less(self, b: Buffer) -> Buffer:
        """The buffer with one place along the axis."""
        shape = (*b.shape[: self.step.axis], 1, *b.shape[self.step.axis + 1 :])
        return replace(b, shape=shape)

    def _at(self, k: int, index: Index) -> Index:
        if k not in self.shared:
            return index
        return (*index[: self.step.axis], 0, *index[self.step.axis + 1 :])

    def _components(self, index: Index) -> list[Value]:
        """Every component at one place of the whole."""
        name = self.buffer.name
        parts = enumerate(self.kinds)
        return [load(component(name, k), self._at(k, index), d) for k, d in parts]

    def on_load(self, x: Load) -> Value:
        return tuple_of(*self._components(x.index)) if x.source == self.buffer.name else x

    def _shared(self, update: Store) -> set[int]:
        """The components that are the same along the axis: what is combined into them is, and what
        they become depends on such ones only."""
        moving = D.symbols(update.index[self.step.axis])
        given = [item(update.value, k) for k in range(len(self.kinds))]
        out = {k for k, v in enumerate(given) if not moving & v.symbols()}
        names = [component("?", k) for k in range(len(self.kinds))]
        old = [load(x, (), d) for x, d in zip(names, self.kinds, strict=True)]
        assert isinstance(update.combine, Combiner)
        new = update.combine(old, given)
        while True:
            known = {names[k] for k in out}
            lost = {k for k in out if not _sources(new[k]) & set(names) <= known}
            if not lost:
                return out
            out -= lost

    # ---- statements

    def body(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        mine = ("stage", self.buffer.name)
        out = self._statements(body)
        self.step.need(
            not seek(out, mine), f"{self.buffer.name} is written inside other loops than its own"
        )
        out = transform(out, self._allocated)
        return substitute_all(out, {}, self.on_load, only=self.buffer.name)

    def _allocated(self, s: Stmt) -> tuple[Stmt, ...]:
        if s != Alloc(self.buffer.name):
            return (s,)
        return tuple(Alloc(component(self.buffer.name, k)) for k in range(len(self.kinds)))

    def _statements(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for s in body:
            found = self._own(s)
            if found is not None:
                out += self._written(*found)
            elif isinstance(s, Loop):
                out.append(s.around(self._statements(s.body)))
            else:
                out.append(s)
        return tuple(out)

    def _own(self, s: Stmt) -> tuple[list[Loop], Store] | None:
        """A store to the buffer and loops along its axes, alone in one another, among them that
        along the axis."""
        loops: list[Loop] = []
        while isinstance(s, Loop) and len(s.body) == 1 and s.kind == "serial":
            loops.append(s)
            s = s.body[0]
        if not isinstance(s, Store) or s.buffer != self.buffer.name:
            return None
        along = [D.the_sym(i) for i in s.index if D.is_sym(i)]
        whole = D.symbols(s.index[self.step.axis]) <= {x.var for x in loops}
        return (loops, s) if whole and all(x.var in along for x in loops) else None

    def _written(self, loops: list[Loop], s: Store) -> list[Stmt]:
        name = self.buffer.name
        if s.combine is None:
            out: list[Stmt] = []
            for k in range(len(self.kinds)):
                value, at = item(s.value, k), self._at(k, s.index)
                own = component(name, k)
                out.append(self._around(own, loops, Store(own, own, at, value), first_name))
            return out
        assert isinstance(s.combine, Combiner)
        given = [item(s.value, k) for k in range(len(self.kinds))]
        new = list(s.combine(self._components(s.index), given))
        over = D.symbols(s.index[self.step.axis])
        before: list[Stmt] = []
        factors = self._factors([v for k, v in enumerate(new) if k not in self.shared], over)
        first = [k for k in sorted(self.shared) if not any(_contains(new[k], v) for v in factors)]
        for k in first:
            before += self._once(f"{component(name, k)}n", loops, s, new[k])
        names: dict[Value, Value] = {}
        for k, v in enumerate(factors):
            # What was computed for a component is not computed again.
            moved = self._with_new(v, new, s.index, first)
            own = f"{name}_f{k}"
            before += self._once(own, loops, s, moved)
            names[v] = load(own, self._at(min(self.shared), s.index), v.dtype)
        for k in sorted(self.shared.difference(first)):
            v = new[k]
            for old, named in names.items():
                v = replaced(v, old, named)
            before += self._once(f"{component(name, k)}n", loops, s, v)
        updates: list[Stmt] = []
        for k, v in enumerate(new):
            own = component(name, k)
            if k in self.shared:
                last = load(f"{own}n", self._at(k, s.index), v.dtype)
                updates.append(
                    self._around(own, loops, Store(own, own, self._at(k, s.index), last))
                )
                continue
            for old, named in names.items():
                v = replaced(v, old, named)
            others = _sources(v) & {component(name, j) for j in range(len(new)) if j != k}
            wrong = others - {component(name, j) for j in self.shared}
            self.step.need(not wrong, f"{own} is made of {', '.join(sorted(wrong))}")
            updates.insert(0, self._around(own, loops, Store(own, own, s.index, v)))
        return [*before, *updates]

    def _with_new(self, v: Value, new: Sequence[Value], index: Index, made: Sequence[int]) -> Value:
        """A value that contains what a shared component becomes reads that instead."""
        for k in made:
            if isinstance(new[k], Fn):
                own = f"{component(self.buffer.name, k)}n"
                v = replaced(v, new[k], load(own, self._at(k, index), new[k].dtype))
        return v

    def _once(self, own: str, loops: list[Loop], s: Store, value: Value) -> list[Stmt]:
        """A value of its own for every place along the other axes."""
        at = self._at(min(self.shared), s.index)
        shape = self._less(self.buffer).shape
        self.buffers.append(Buffer(own, value.dtype, shape, "local"))
        return [Alloc(own), self._around(own, loops, Store(own, own, at, value))]

    @staticmethod
    def _factors(values: Sequence[Value], over: set[Sym] | frozenset[Sym]) -> list[Value]:
        """What is computed in values and is the same along the axis: the largest such parts."""
        out: dict[Value, None] = {}
        stack = list(values)
        while stack:
            x = stack.pop()
            if not isinstance(x, Fn):
                continue
            if not over & x.symbols() and x.sources:
                out[x] = None
            else:
                stack += reversed(x.args)
        return list(out)

    @staticmethod
    def _around(
        own: str,
        loops: list[Loop],
        s: Store,
        named: Callable[[str, int], str] = axis_name,
    ) -> Stmt:
        """The store in loops of its own along the axes it has."""
        table: dict[Sym, Dim] = {}
        axes: list[Sym] = []
        for x in loops:
            where = [k for k, i in enumerate(s.index) if x.var in D.symbols(i)]
            if where:
                v = D.var(named(own, where[0]), D.substitute(x.extent, table))
                table[x.var] = v
                axes.append(D.the_sym(v))
        (made,) = substitute_all([s], table)
        return wrap(tuple(axes), made)


def _contains(v: Value, part: Value) -> bool:
    return any(x is part for x in walk_values(v))


def _sources(v: Value) -> set[str]:
    return {str(x) for x in v.sources}
