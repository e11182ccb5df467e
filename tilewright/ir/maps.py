"""Index maps: how a tensor's elements are rearranged in memory, `k, j -> j//32, k, j%32`.

A map names the source axes and gives each target coordinate as an index function of them. The
blocked family (every coordinate is `j`, `j//n`, `j%n`, `(j//n)%m` or `0`) knows the target shape,
where a ragged last block is padded, and its inverse. Maps print and parse.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tilewright.base.errors import Invalid, require
from tilewright.base.source import parse_expression
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim


@dataclass(frozen=True)
class Digit:
    """Coordinate `(axis // step) % count` of one source axis; count None: the leading digit."""

    axis: int
    step: int
    count: int | None


@dataclass(frozen=True, repr=False)
class Map:
    """Source axis names, and target coordinates as functions of the symbols of those names."""

    axes: tuple[str, ...]
    target: tuple[Dim, ...]

    @staticmethod
    def parse(text: str) -> Map:
        """`Map.parse("k, j -> j//32, k, j%32")`."""
        left, arrow, right = text.partition("->")
        require(arrow, f"the map {text!r} has no '->'", hint="write 'k, j -> j//32, k, j%32'")
        axes = tuple(a.strip() for a in left.split(",") if a.strip())
        require(len(set(axes)) == len(axes), f"the map {text!r} names a source axis twice")
        for a in axes:
            require(a.isidentifier(), f"{a!r} in the map {text!r} is not an axis name")
        try:
            body = parse_expression(f"({right.strip()},)") if right.strip() else None
        except SyntaxError:
            what = f"{right.strip()!r} in the map {text!r} is not a list of index functions"
            raise Invalid(what) from None
        items = body.elts if isinstance(body, ast.Tuple) else []
        return Map(axes, tuple(_dim(e, axes, text) for e in items))

    @staticmethod
    def permutation(perm: Sequence[int]) -> Map:
        names = tuple(f"i{k}" for k in range(len(perm)))
        return Map(names, tuple(D.sym(names[p]) for p in perm))

    def __str__(self) -> str:
        return f"{', '.join(self.axes)} -> {', '.join(map(_text, self.target))}"

    def __repr__(self) -> str:
        return f"Map.parse({str(self)!r})"

    def apply(self, index: Sequence[Dim]) -> tuple[Dim, ...]:
        """The target coordinates of a source index."""
        require(
            len(index) == len(self.axes),
            f"the map {self} takes {len(self.axes)} axes, {len(index)} given",
        )
        table = {D.the_sym(D.sym(a)): i for a, i in zip(self.axes, index, strict=True)}
        return tuple(D.substitute(t, table) for t in self.target)

    def digits(self) -> tuple[Digit | None, ...]:
        """The target coordinates as digits of source axes; None stands for the constant 0."""
        return _digits(self)

    def _digit(self, t: Dim) -> Digit | None:
        if isinstance(t, int) and t == 0:
            return None
        if D.is_sym(t):
            return Digit(self.axes.index(D.the_sym(t).name), 1, None)
        if isinstance(t, D.Int) and len(t.terms) == 1:
            (mono, c) = t.terms[0]
            if c == 1 and len(mono) == 1 and isinstance(mono[0], D.Quo):
                q = mono[0]
                if q.op in ("floordiv", "mod") and isinstance(q.b, int) and q.b > 0:
                    inner = self._digit(q.a)
                    found = inner and _narrow(inner, q.op, q.b)
                    if found:
                        return found
        raise Invalid(
            f"coordinate {_text(t)} of the map {self} is not a block of one axis",
            hint="use j, j//n, j%n, (j//n)%m or 0",
        )

    def shape(self, source: Sequence[Dim]) -> tuple[Dim, ...]:
        """The target shape: blocks are counted upwards, so the last one may be padded."""
        self.check(source)
        return tuple(
            1 if d is None else D.ceildiv(source[d.axis], d.step) if d.count is None else d.count
            for d in self.digits()
        )

    def padded_axes(self, source: Sequence[Dim]) -> tuple[int, ...]:
        """Source axes whose extent is not known to fill its blocks: their tail is padding."""
        self.check(source)
        return tuple(
            d.axis
            for d in self.digits()
            if d and d.count is None and d.step > 1 and D.divisor(source[d.axis]) % d.step
        )

    def check(self, source: Sequence[Dim]) -> None:
        """Refuse a source of another rank, and a map that loses or doubles elements."""
        require(
            len(source) == len(self.axes),
            f"the map {self} takes {len(self.axes)} axes, the shape {list(source)} does not fit",
        )
        for k in range(len(self.axes)):
            self._chain(k)

    def _chain(self, axis: int) -> list[tuple[Digit, int]]:
        """The digits of an axis with target positions, lowest first; none may be missing."""
        own = [(d, p) for p, d in enumerate(self.digits()) if d is not None and d.axis == axis]
        own.sort(key=lambda x: x[0].step)
        step: int | None = 1
        for d, _ in own:
            if step is None or d.step != step:
                break
            step = None if d.count is None else step * d.count
        else:
            if step is None:
                return own
        raise Invalid(
            f"axis {self.axes[axis]} of the map {self} cannot be read back from its blocks",
            hint="every axis needs j//n together with j%n, or j alone",
        )

    def pack(self, x: np.ndarray) -> np.ndarray:
        """The array laid out by the map, padding as zeros."""
        out = np.zeros(tuple(int(d) for d in self.shape(x.shape) if isinstance(d, int)), x.dtype)
        where = dict(zip(self.axes, np.indices(x.shape), strict=True))
        at = (np.broadcast_to(D.evaluate(t, where), x.shape) for t in self.target)
        out[tuple(at)] = x
        return out

    def inverse(self) -> Map:
        """From target coordinates t0, t1, … back to the source index."""
        names = tuple(f"t{k}" for k in range(len(self.target)))
        out: list[Dim] = []
        for k in range(len(self.axes)):
            total: Dim = 0
            for d, p in self._chain(k):
                total = total + d.step * D.sym(names[p])
            out.append(total)
        return Map(names, tuple(out))


@lru_cache(maxsize=1024)
def _digits(m: Map) -> tuple[Digit | None, ...]:
    return tuple(m._digit(t) for t in m.target)


def _narrow(d: Digit, op: str, n: int) -> Digit | None:
    """(digit // n) or (digit % n) as a digit again."""
    if op == "mod":
        if d.count is None or d.count % n == 0:
            return Digit(d.axis, d.step, n)
        return None
    if d.count is None:
        return Digit(d.axis, d.step * n, None)
    return Digit(d.axis, d.step * n, d.count // n) if d.count % n == 0 else None


def _text(x: Dim) -> str:
    s = str(x)
    if s.startswith("(") and isinstance(x, D.Int) and len(x.terms) == 1 and len(x.terms[0][0]) == 1:
        return s[1:-1]  # a single quotient prints in parentheses, which a list does not need
    return s


def _dim(e: ast.expr, axes: Sequence[str], text: str) -> Dim:
    if isinstance(e, ast.Constant) and type(e.value) is int:
        return e.value
    if isinstance(e, ast.Name):
        require(e.id in axes, f"{e.id} in the map {text!r} is not a source axis")
        return D.sym(e.id)
    if isinstance(e, ast.UnaryOp) and isinstance(e.op, ast.USub):
        return 0 - _dim(e.operand, axes, text)
    if isinstance(e, ast.BinOp):
        a, b = _dim(e.left, axes, text), _dim(e.right, axes, text)
        if isinstance(e.op, ast.Add):
            return a + b
        if isinstance(e.op, ast.Sub):
            return a - b
        if isinstance(e.op, ast.Mult):
            return a * b
        if isinstance(e.op, (ast.FloorDiv, ast.Mod)):
            require(not isinstance(b, int) or b > 0, f"the map {text!r} divides by {b}")
            return D.floordiv(a, b) if isinstance(e.op, ast.FloorDiv) else D.mod(a, b)
    what = f"{ast.unparse(e)} in the map {text!r} is not an index function"
    raise Invalid(what, hint="use + - * // %")
