"""Quotients and remainders of a loop's variable by sizes that only the call knows, counted.

A loop that was two says by a quotient and a remainder where it is in both. By a constant these are
a multiplication each; by any other number they are a division, which takes as long as some vectors
of a row. Here both start where the loop does and go on with it: the remainder is one more each
time, and at its end 0, and the quotient one more.

    for i in m*n:                  q, r = lo // n, lo % n
      y[i//n, i%n] = …             for i: y[q, r] = …; r += 1; if r == n: r = 0, q += 1

What is counted may itself be divided: it goes on whenever the quotient before it does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Quo, Sym
from tilewright.llvm.writer import Writer


@dataclass(frozen=True)
class _Counter:
    """The names of one: `wraps` is where the remainder ends, `by` the divisor."""

    quotient: str
    remainder: str
    wraps: str
    by: str
    bumped: str | None  # what it goes on with; None: every iteration
    start: str  # the first quotient


class Counters:
    """Those of one loop."""

    def __init__(self, w: Writer, loop: str, var: Sym, lo: str) -> None:
        self.w, self.loop, self.var, self.lo = w, loop, var, lo
        self.first: list[Any] = []  # lines at the head of the loop
        self.found: dict[Dim, _Counter] = {}  # by quotients

    def of(self, atom: Quo, level: int, number: Callable[[Dim], str]) -> str | None:
        """The register that has a quotient or a remainder inside the loop, whose level this is;
        None for what is not counted. `number` puts what the loop does not change in a register."""
        if atom.op not in ("floordiv", "mod") or not self._counts(atom.a, atom.b):
            return None
        if _by_constants(atom):
            return None
        c = self._counter(atom.a, atom.b, level, number)
        return c.quotient if atom.op == "floordiv" else c.remainder

    def _counts(self, a: Dim, b: Dim) -> bool:
        if self.var in D.symbols(b) or any(True for _ in D.data_values(b)):
            return False
        if D.is_sym(a):
            return D.the_sym(a) is self.var
        inner = _quotient(a)
        return inner is not None and self._counts(inner.a, inner.b)

    def _counter(self, a: Dim, b: Dim, level: int, number: Callable[[Dim], str]) -> _Counter:
        whole = D.floordiv(a, b)
        if whole in self.found:
            return self.found[whole]
        w, inner = self.w, _quotient(a)
        before = None if inner is None else self._counter(inner.a, inner.b, level, number)
        start = self.lo if before is None else before.start
        with w.at(level - 1):
            by = number(b)
            if not by.isdigit() and D.bounds(b)[0] < 1:  # loops over as many are never run
                by = w.integer("smax", by, "1")
            known = start == "0"
            ends = ("0", "0") if known else [w.put(f"{x} i64 {start}, {by}") for x in _CODES]
        n = f"%{w.fresh(f'{self.loop}.c')}"
        for side, end in zip("qr", ends, strict=True):
            self.first.append(
                f"  {n}.{side} = phi i64 [ {end}, %{self.loop}.pre ],"
                f" [ {n}.{side}.next, %{self.loop}.latch ]"
            )
        bumped = None if before is None else before.wraps
        c = _Counter(f"{n}.q", f"{n}.r", f"{n}.wraps", by, bumped, ends[0])
        self.found[whole] = c
        return c

    def steps(self) -> None:
        """The end of an iteration."""
        for c in self.found.values():
            one = "1" if c.bumped is None else self.w.put(f"zext i1 {c.bumped} to i64")
            more = self.w.put(f"add nuw nsw i64 {c.remainder}, {one}")
            self.w.line(f"{c.wraps} = icmp eq i64 {more}, {c.by}")
            self.w.line(f"{c.remainder}.next = select i1 {c.wraps}, i64 0, i64 {more}")
            more = self.w.put(f"zext i1 {c.wraps} to i64")
            self.w.line(f"{c.quotient}.next = add nuw nsw i64 {c.quotient}, {more}")


_CODES = ("udiv", "urem")


def _by_constants(atom: Quo) -> bool:
    """Are all divisors constants? Then nothing is divided."""
    inner = _quotient(atom.a)
    return isinstance(atom.b, int) and (inner is None or _by_constants(inner))


def _quotient(x: Dim) -> Quo | None:
    """A quotient alone."""
    atom = D.only_atom(x)
    return atom if isinstance(atom, Quo) and atom.op == "floordiv" else None
