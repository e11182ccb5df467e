from __future__ import annotations

from dataclasses import dataclass, replace
from operator import is_
from typing import ClassVar

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Int, Quo, Sym
from tilewright.kernel.nest import (
    Alloc,
    Atomic,
    Loop,
    Nest,
    Report,
    Stmt,
    Store,
    While,
    on_loops,
    substitute_all,
    transform,
    walk,
)
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class Peel(Step):
    """The ragged last iteration of a split loop becomes a copy, so that the others are full.

    for i.0 in 7:                             for i.0 in 6:
      for i.1 in min(16, 100-16*i.0): …         for i.1 in 16: …
                                              for i.1 in 4: …          # i.0 = 6

    A loop of one iteration that is its own ragged tail is peeled away. With `cases`, a tail whose
    extent is known at run time only is written for each extent that it may have: all of these are
    constants, and a loop of one iteration or none around each stands for the condition.

    for i.0 in ceil(n/3):                     for i.0 in n//3:
      for i.1 in min(3, n-3*i.0): …             for i.1 in 3: …
                                              for i.0.rest in [n%3 = 1]:
                                                for i.1 in 1: …
                                              for i.0.rest in [n%3 = 2]:
                                                for i.1 in 2: …
    """

    stays: ClassVar[bool] = True
    loop: str
    cases: bool = False

    def apply(self, n: Nest) -> Nest:
        found = self.loops(n, self.loop)
        for x, _ in found:
            self.need(x.kind == "serial", f"{self.loop} is already {x.kind}", "peel first")
        once = [x for x, p in found if _once(x, p[-1].body if p else n.body)]
        tails = {id(x): _ragged(x) for x, _ in found}
        some = once or any(t is not None for t in tails.values())
        self.need(some, f"{self.loop} has no ragged tail")

        def one(s: Loop) -> tuple[Stmt, ...]:
            # One that is not among those found has another such loop inside, which was rewritten.
            ragged = tails[id(s)] if id(s) in tails else _ragged(s)
            if s in once:
                return substitute_all(s.body, {s.var: 0})
            if ragged is None:
                return (s,)
            total, factor = ragged
            full = D.floordiv(total, factor)
            if not isinstance(total, int):
                # There may be no tail: then its statements must be inside loops that vanish.
                for x, path in walk(s.body):
                    gone = any(_empty_at_end(p.extent, s.var, total, factor) for p in path)
                    inside = not isinstance(x, (Store, Atomic, Report, While)) or gone
                    self.need(inside, f"{getattr(x, 'stage', '')} is outside the ragged loop")
            if self.cases and not isinstance(total, int):
                what = f"{factor - 1} cases of the tail of {self.loop} are too many"
                self.need(factor <= MOST_CASES, what, f"split by at most {MOST_CASES}")
                tail = tuple(self._case(s, total, factor, r) for r in range(1, factor))
            else:
                tail = _tail(s, total, factor, D.mod(total, factor))
            if full == 0:
                return tail
            main = D.var(self.loop, full)
            body = substitute_all(s.body, {s.var: main})
            return (replace(s, var=D.the_sym(main), body=body), *tail)

        return self.bounded(on_loops(n, self.loop, one))

    def _case(self, s: Loop, total: Dim, factor: int, left: int) -> Loop:
        """What is done where so much is left."""
        off = D.mod(total, factor) - left
        is_so = D.maximum(0, 1 - D.maximum(off, -off))
        once = D.the_sym(D.var(f"{self.loop}.rest", is_so))
        return replace(s, var=once, body=_tail(s, total, factor, left))


# Each is code of its own.
MOST_CASES = 16


def _tail(s: Loop, total: Dim, factor: int, left: Dim) -> tuple[Stmt, ...]:
    rest = [_shortened(b, s.var, total, factor, left) for b in s.body]
    tail = substitute_all(rest, {s.var: D.floordiv(total, factor)})
    return transform(tail, lambda t: () if isinstance(t, Loop) and t.extent == 0 else (t,))


def _once(s: Loop, around: tuple[Stmt, ...]) -> bool:
    """Is there one iteration, an inner loop whose extent mentions it, and room next to it for what
    it allocates?"""
    inside = (x for x, _ in walk(s.body) if isinstance(x, Loop))
    mine = {x.buffer for x in s.body if isinstance(x, Alloc)}
    others = {x.buffer for x in around if isinstance(x, Alloc)}
    return s.extent == 1 and not mine & others and any(s.var in D.symbols(x.extent) for x in inside)


def _ragged(s: Loop) -> tuple[Dim, int] | None:
    """(N, f) where s runs over ceil(N/f) and the extent of an inner loop is min(f, N - f*s), or
    mentions it."""
    for x, _ in walk(s.body):
        for a in D.atoms(x.extent) if isinstance(x, Loop) else ():
            found = _tail_of(a, s.var)
            if found is not None and D.known_eq(s.extent, D.ceildiv(*found)):
                return found
    return None


def _tail_of(a: D.Atom, v: Sym) -> tuple[Dim, int] | None:
    """(N, f) of an atom min(f, N - f*v)."""
    if isinstance(a, Quo) and a.op == "min":
        for f, rest in ((a.a, a.b), (a.b, a.a)):
            if isinstance(f, int) and f > 0 and D.coefficient(rest, v) == -f:
                return rest + f * D.as_int(v), f
    return None


def _empty_at_end(e: Dim, v: Sym, total: Dim, factor: int) -> bool:
    """Is the extent 0 after the last full iteration, when factor divides total?"""
    end = _at_end(e, v, total, factor, 0)
    return isinstance(end, int) and end <= 0


def _shortened(s: Stmt, v: Sym, total: Dim, factor: int, left: Dim) -> Stmt:
    """The loops of the tail: what is left, total % factor, says their extent better than a minimum
    does."""
    if not isinstance(s, Loop):
        return s
    body = tuple(_shortened(b, v, total, factor, left) for b in s.body)
    e = _at_end(s.extent, v, total, factor, left)
    if e == s.extent:
        return s if all(map(is_, body, s.body)) else s.around(body)
    new = D.var(s.name, e)
    return replace(s, var=D.the_sym(new), body=substitute_all(body, {s.var: new}))


def _at_end(e: Dim, v: Sym, total: Dim, factor: int, left: Dim) -> Dim:
    """e with total - factor*v, or min(factor, total - factor*v), replaced by what is left there."""
    if not isinstance(e, Int):
        return e
    if D.coefficient(e, v) == -factor:
        rest = e - total + factor * D.as_int(v)
        if v not in D.symbols(rest) and not isinstance(total, int):
            return rest + left
    out: Dim = 0
    for mono, c in e.terms:
        p: Dim = c
        for a in mono:
            q: Dim = D.from_atom(a)
            found = _tail_of(a, v)
            if found is not None and found[1] == factor and D.known_eq(found[0], total):
                q = left
            elif isinstance(a, Quo):
                x, y = (_at_end(z, v, total, factor, left) for z in (a.a, a.b))
                combine = {"floordiv": D.floordiv, "mod": D.mod, "min": D.minimum, "max": D.maximum}
                q = combine[a.op](x, y)
            p = p * q
        out = out + p
    return out
