from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Fn, Value
from tilewright.ir.parts import replaced
from tilewright.ir.parts import walk as walk_values
from tilewright.kernel.nest import (
    Loop,
    Nest,
    Stmt,
    Store,
    on_loops,
    substitute_all,
    transform,
    walk,
)
from tilewright.kernel.step import Step
from tilewright.kernel.steps.trim import conditions_of, furthest, is_exact


@dataclass(frozen=True)
class Unmask(Step):
    """A loop becomes two, the first of which has the iterations in which conditions surely hold:
    there they are left out.

    for r in t+1:                                   for r in t:
      s += select(64*r+j <= 64*t+i, x[r,j], 0)        s += x[r,j]
                                                    for r.rest in 1:      # r = t + r.rest
                                                      s += select(…)

    The second loop has all that is left, with the conditions.
    """

    stays: ClassVar[bool] = True
    loop: str

    def apply(self, n: Nest) -> Nest:
        found = self.loops(n, self.loop)
        self.need(len(found) == 1, f"there are several loops {self.loop}")
        self.fresh(n, f"{self.loop}.rest")
        loop = found[0][0]
        self.need(loop.kind == "serial", f"{self.loop} is {loop.kind}", "one after the other")
        ends = {c: end for c in _choices(loop.body) if (end := _end(c.args[0], loop)) is not None}
        self.need(ends, f"no condition surely holds in the first iterations of {self.loop}")
        end: Dim = loop.extent
        for x in ends.values():
            end = D.minimum(end, x)
        end = D.maximum(end, 0)
        self.need(end != 0, f"the first iteration of {self.loop} needs its conditions")

        def one(x: Loop) -> tuple[Stmt, ...]:
            left = x.extent - end
            first, rest = D.var(self.loop, end), D.var(f"{self.loop}.rest", left)
            plain = transform(x.body, lambda s: (_without(s, ends),))
            # What the only iteration that is left does not do is left out.
            last = substitute_all(x.body, {x.var: end + (0 if left == 1 else rest)})
            last = transform(tuple(last), _some)
            return (
                replace(x, var=D.the_sym(first), body=substitute_all(plain, {x.var: first})),
                replace(x, var=D.the_sym(rest), body=last),
            )

        return self.bounded(on_loops(n, self.loop, one))


def _some(s: Stmt) -> tuple[Stmt, ...]:
    return () if isinstance(s, Loop) and s.extent == 0 else (s,)


def _choices(body: tuple[Stmt, ...]) -> Iterator[Fn]:
    """What is chosen by conditions, but for what is part of an instruction."""
    for s, path in walk(body):
        if isinstance(s, Store) and not any(q.kind == "tensor" for q in path):
            for x in walk_values(s.value):
                if isinstance(x, Fn) and x.name == "select":
                    yield x


def _end(condition: Value, loop: Loop) -> Dim | None:
    """In how many first iterations a condition holds whatever the inner loops are at."""
    if not is_exact(condition, True):
        return None
    inner = {x.var for x, _ in walk(loop.body) if isinstance(x, Loop)}
    end: Dim = loop.extent
    for x in conditions_of(condition, True):
        slope = D.coefficient(x, loop.var)
        if not isinstance(slope, int) or any(True for _ in D.data_values(x)):
            return None
        worst = furthest(x - slope * D.as_int(loop.var), inner, False)
        if worst is None or loop.var in D.symbols(worst) or slope > 0:
            return None
        if slope < 0:
            end = D.minimum(end, D.floordiv(worst, -slope) + 1)
        elif not D.nonneg(worst):
            return None
    return end


def _without(s: Stmt, ends: dict[Fn, Dim]) -> Stmt:
    """A store with what is chosen where the conditions hold."""
    if not isinstance(s, Store):
        return s
    value = s.value
    for choice in (x for x in list(walk_values(value)) if isinstance(x, Fn) and x in ends):
        value = replaced(value, choice, choice.args[1])
    return s if value is s.value else replace(s, value=value)
