"""Sizes as LLVM text: polynomials over symbols, computed where they are needed, each once."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.errors import Unsupported
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Int, Quo, Sym
from tilewright.llvm.text import Text, rounded_down

DECLARED = "declare i64 @llvm.smin.i64(i64, i64)\ndeclare i64 @llvm.smax.i64(i64, i64)"


class Sizes(Text):
    """A function under construction that knows `values`: registers of symbols, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, str] = {}
        self.memo: dict[Dim, str] = {}

    def read_symbols(self, names: tuple[str, ...]) -> None:
        """Values of symbols, which lie one after the other at `%dims`."""
        for k, name in enumerate(names):
            p = self.put(f"getelementptr i64, ptr %dims, i64 {k}")
            self.values[name] = self.put(f"load i64, ptr {p}, align 8")

    def dim(self, x: Dim) -> str:
        if isinstance(x, int):
            return str(x)
        found = self.memo.get(x)
        if found is None:
            found = self.memo[x] = self._polynomial(x)
        return found

    def fill(self, array: str, t: str, values: Sequence[str], first: int = 0) -> None:
        """Stores values one after the other, the first of them at a place of the array."""
        for k, v in enumerate(values, first):
            p = self.put(f"getelementptr {t}, ptr {array}, i64 {k}")
            self.line(f"store {t} {v}, ptr {p}")

    def _polynomial(self, x: Int) -> str:
        total = ""
        for mono, c in x.terms:
            p = str(c)
            for atom in mono:
                if isinstance(atom, Sym):
                    f = self.values[atom.name]
                elif isinstance(atom, Quo):
                    f = self._quotient(atom)
                else:
                    raise Unsupported(f"a size depends on data: {atom}")
                p = self.put(f"mul i64 {p}, {f}")
            total = p if not total else self.put(f"add i64 {total}, {p}")
        return total

    def _quotient(self, q: Quo) -> str:
        a, b = self.dim(q.a), self.dim(q.b)
        if q.op in ("min", "max"):
            return self.put(f"call i64 @llvm.s{q.op}.i64(i64 {a}, i64 {b})")
        if D.bounds(q.b)[0] < 1:  # of what has no elements then
            b = self.put(f"call i64 @llvm.smax.i64(i64 {b}, i64 1)")
        if D.bounds(q.a)[0] >= 0:
            return self.put(f"{'udiv' if q.op == 'floordiv' else 'urem'} i64 {a}, {b}")
        return rounded_down(self.put, q.op, a, b)
