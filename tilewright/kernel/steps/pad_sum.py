from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Fn, Index, Load, Value
from tilewright.kernel.guards import conditions
from tilewright.kernel.nest import (
    Loop,
    Nest,
    Stmt,
    Store,
    on_loops,
    substitute_all,
    walk,
)
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class PadSum(Step):
    """The loop of a sum has a multiple of `factor` iterations. What is added in the extra ones is a
    product of zeros: Pad with `zeros` has made them.

    for k in 60: c += a[k] * b[k]        for k in 64: c += a[k] * b[k]
    """

    stays: ClassVar[bool] = True
    loop: str
    factor: int

    def apply(self, n: Nest) -> Nest:
        positive = isinstance(self.factor, int) and self.factor >= 1
        self.need(positive, f"{self.factor} is not a positive factor")
        exact = n.precision != "strict"
        self.need(
            exact, "a zero that is added may change a sum's sign, and the precision is strict"
        )
        for x, _ in self.loops(n, self.loop):
            self.need(x.kind == "serial", f"{self.loop} is already {x.kind}", "pad first")
            stores = [s for s, _ in walk(x.body) if isinstance(s, Store)]
            self.need(len(stores) == 1, f"{self.loop} computes more than one stage")
            self._adds_zeros(n, x, stores[0])

        def grow(x: Loop) -> tuple[Stmt, ...]:
            v = D.var(self.loop, self._grown(x.extent))
            body = substitute_all(x.body, {x.var: v})
            return (replace(x, var=D.the_sym(v), body=body),)

        return on_loops(n, self.loop, grow)

    def _grown(self, extent: Dim) -> Dim:
        return D.ceildiv(extent, self.factor) * self.factor

    def _adds_zeros(self, n: Nest, x: Loop, s: Store) -> None:
        along = any(x.var in D.symbols(i) for i in s.index)
        self.need(s.combine == "add" and not along, f"{self.loop} is not the loop of a sum")
        factors = _factors(s.value)
        self.need(factors, f"{s.stage} does not add up products of what is stored")
        for f in factors or []:
            axes = [k for k, i in enumerate(f.index) if x.var in D.symbols(i)]
            plain = len(axes) == 1 and D.known_eq(f.index[axes[0]], D.as_int(x.var))
            zero = plain and self._zero_after(n, f, axes[0], x.extent)
            hint = f"Pad('{f.source}', {axes[0] if axes else 0}, {self.factor}, zeros=True) first"
            self.need(zero, f"{f!r} is not known to be zero from {x.extent} on", hint)

    def _zero_after(self, n: Nest, f: Load, axis: int, end: Dim) -> bool:
        """Does a buffer hold zeros from some place of an axis on, as far as the loop will go?"""
        own = [s for s, _ in walk(n.body) if isinstance(s, Store) and s.buffer == f.source]
        far = D.known_le(self._grown(end), n.buffer(str(f.source)).shape[axis])
        return far and bool(own) and all(_ends(s, axis, end) for s in own)


def _factors(v: Value) -> list[Load] | None:
    """The loads of a product of loads, casts aside; None where it is none."""
    if isinstance(v, Load):
        return [v]
    if isinstance(v, Fn) and v.name == "cast":
        return _factors(v.args[0])
    if isinstance(v, Fn) and v.name == "mul":
        parts = [_factors(x) for x in v.args]
        return None if any(p is None for p in parts) else [x for p in parts for x in p or []]
    return None


def _ends(s: Store, axis: int, end: Dim) -> bool:
    """Is zero stored wherever an index is `end` or more?"""
    for c in conditions(s.value):
        if isinstance(c, Fn) and c.name == "lt" and isinstance(c.args[0], Index):
            limit = c.args[1].as_dim()
            if D.known_eq(c.args[0].dim, s.index[axis]) and D.known_le(limit, end):
                return True
    return False
