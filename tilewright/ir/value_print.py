"""Dims and values as text, as ir/value_text.py reads it back.

What is shared is written once: `{t0 = …; t1 = …; result}`. A name may stand for a value or for an
index function (`t0 = #(i0//2+1)`), and indices mention either as `${t0}`. Text is as long as the
expression, not as the tree that it would be without names.
"""

from __future__ import annotations

import math
from typing import Union

import numpy as np

from tilewright.base.traverse import operands_first
from tilewright.ir import dim as D
from tilewright.ir.atom import terms_text
from tilewright.ir.dim import Dim, Int
from tilewright.ir.expr import Const, Fn, Index, Load, Reduce, Value, extent, index
from tilewright.ir.reader import name_text
from tilewright.ir.types import DType, b1, f32, f64, i64

# Loosest first. The operands of one level print without brackets where they bind tighter.
INFIX = (
    {"|": "or"},
    {"&": "and"},
    {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"},
    {"+": "add", "-": "sub"},
    {"*": "mul", "/": "div"},
)
COMPARE = 2  # does not chain
_SIGN = {name: (sign, level) for level, row in enumerate(INFIX) for sign, name in row.items()}

# A value whose tree is this much larger than its graph is printed with names for what it shares.
_LET_FACTOR, _LET_SIZE = 2, 40
# So is one that is deeper than this: what reads it back goes down one bracket after the other.
_LET_DEPTH = 48
# An index function of fewer quotients and values is written out wherever it stands.
_LARGE_DIM = 24
_HUGE = 1 << 40  # sizes of trees are counted up to here

Part = Union[Value, Int]


def dim_text(x: Dim) -> str:
    """A dim as `parse_dim` reads it."""
    if isinstance(x, Int) and _large(x):
        block = value_text(index(x))
        if block.startswith("{"):
            return f"${{{block}}}"
    return _Printer().dim(x)


def value_text(v: Value) -> str:
    """A value as `parse_value` reads it."""
    return _Printer().scope(v)


def number_text(x: float | int | bool, dtype: DType) -> str:
    """The shortest decimal that reads back as this value of the dtype."""
    if dtype.is_bool:
        return "true" if x else "false"
    if not dtype.is_float:
        return str(int(x))
    x = float(x)
    if not math.isfinite(x):
        return repr(x)
    if dtype is f64:
        return repr(x)
    text = repr(float(str(np.float32(x))))
    return text if np.float32(text) == np.float32(x) else repr(x)


def _const_text(c: Const) -> str:
    text = number_text(c.value, c.dtype)
    return text if c.dtype in (f32, i64, b1) else f"{text}:{c.dtype}"


# ---- how large


def _inside(x: Part) -> list[Part]:
    """What the text of a part is made of: values, and index functions of more than symbols."""
    if isinstance(x, Int):
        return [
            y
            for mono, _ in x.terms
            for a in mono
            for y in ((a.value,) if isinstance(a, D.Data) else _halves(a))
        ]
    if isinstance(x, Load):
        return [i for i in x.index if isinstance(i, Int) and not _plain(i)]
    if isinstance(x, Index):
        return [] if isinstance(x.dim, int) or _plain(x.dim) else [x.dim]
    return list(x.args)


def _halves(a: D.Atom) -> tuple[Int, ...]:
    if not isinstance(a, D.Quo):
        return ()
    return tuple(e for e in (a.a, a.b) if isinstance(e, Int))


def _plain(x: Int) -> bool:
    """Is it made of symbols alone?"""
    return all(isinstance(a, D.Sym) for mono, _ in x.terms for a in mono)


def _large(x: Int) -> bool:
    """Is it so large, written out, that names for its parts may be worth it?"""
    if _plain(x):
        return False
    if x.tree is None:
        sizes: dict[Part, int] = {}

        def below(y: Part) -> list[Part]:
            if isinstance(y, Int) and y.tree is not None:
                return []
            return _inside(y)

        for y in operands_first(x, below, sizes):
            if isinstance(y, Int) and y.tree is not None:
                sizes[y] = y.tree
                continue
            sizes[y] = min(1 + sum(sizes[z] for z in _inside(y)), _HUGE)
            if isinstance(y, Int):
                y.tree = sizes[y]
    assert x.tree is not None
    return x.tree >= _LARGE_DIM


# ---- printing


class _Printer:
    def __init__(self) -> None:
        self.names: dict[Part, str] = {}  # what was given a name
        self.count = 0

    def scope(self, v: Value) -> str:
        """A whole value, or the body of a reduction, with names for what it shares."""
        order: list[Part] = []
        uses: dict[Part, int] = {}
        tree = self._survey(v, order, uses)
        shares = tree >= _LET_SIZE and tree >= _LET_FACTOR * len(order)
        if not shares and v.depth < _LET_DEPTH:
            return self.show(v, 0)
        lines: list[str] = []
        named: list[Part] = []
        depth: dict[Part, int] = {}  # of what is written without a name
        for x in order:
            depth[x] = 1 + max((depth.get(y, 0) for y in self._parts(x)), default=0)
            often = shares and uses.get(x, 0) > 1
            deep = depth[x] >= _LET_DEPTH
            if x is not v and (often or deep) and _may_have_name(x) and x not in self.names:
                depth[x] = 0
                text = (
                    f"#({terms_text(x.terms, self._atom)})"
                    if isinstance(x, Int)
                    else self.show(x, 0)
                )
                self.names[x] = f"t{self.count}"
                self.count += 1
                named.append(x)
                lines.append(f"{self.names[x]} = {text}; ")
        text = f"{{{''.join(lines)}{self.show(v, 0)}}}" if lines else self.show(v, 0)
        for x in named:
            del self.names[x]
        return text

    def _parts(self, x: Part) -> list[Part]:
        """The parts of a part in this scope. Small index functions are no parts: they are written
        out."""
        if isinstance(x, Reduce) or x in self.names:
            return []
        if isinstance(x, (Load, Index)):
            return [y for y in _inside(x) if not isinstance(y, Int) or _large(y)]
        return _inside(x)

    def _survey(self, v: Value, order: list[Part], uses: dict[Part, int]) -> int:
        """Distinct parts of this scope, operands first, and uses; the size of v as a tree."""
        size: dict[Part, int] = {}
        root: Part = v
        for x in operands_first(root, self._parts, size):
            inner = self._parts(x)
            size[x] = min(1 + sum(size[y] for y in inner), _HUGE)
            order.append(x)
            for y in inner:
                uses[y] = uses.get(y, 0) + 1
        return size[v]

    def show(self, v: Value, level: int) -> str:
        """`level` is how tightly the surroundings bind."""
        name = self.names.get(v)
        if name is not None:
            return name
        if isinstance(v, Const):
            return _const_text(v)
        if isinstance(v, Index):
            return f"#({self.dim(v.dim)})"
        if isinstance(v, Load):
            source = v.source if isinstance(v.source, str) else v.source.name
            return f"{name_text(source)}[{','.join(map(self.dim, v.index))}]"
        if isinstance(v, Reduce):
            axes = ", ".join(f"{name_text(a.name)}<{dim_text(extent(a))}" for a in v.axes)
            return f"reduce({v.combine}, {axes})({self.scope(v.body)})"
        assert isinstance(v, Fn)
        if v.name in _SIGN:
            sign, own = _SIGN[v.name]
            a = self.show(v.args[0], own + (own == COMPARE))
            text = f"{a} {sign} {self.show(v.args[1], own + 1)}"
            return f"({text})" if own < level else text
        head = f"cast<{v.dtype}>" if v.name == "cast" else v.name
        return f"{head}({', '.join(self.show(a, 0) for a in v.args)})"

    def dim(self, x: Dim) -> str:
        if isinstance(x, int):
            return str(x)
        name = self.names.get(x)
        return terms_text(x.terms, self._atom) if name is None else f"${{{name}}}"

    def _atom(self, a: D.Atom) -> str:
        if isinstance(a, D.Sym):
            return name_text(a.name)
        if isinstance(a, D.Data):
            name = self.names.get(a.value)
            return f"${{{self.scope(a.value) if name is None else name}}}"
        assert isinstance(a, D.Quo)
        if a.op in ("min", "max"):
            return f"{a.op}({self.dim(a.a)},{self.dim(a.b)})"
        sign = {"floordiv": "//", "mod": "%"}[a.op]
        return f"({self._operand(a.a)}{sign}{self._operand(a.b)})"

    def _operand(self, x: Dim) -> str:
        text = self.dim(x)
        simple = (isinstance(x, int) and x >= 0) or (isinstance(x, Int) and x in self.names)
        if isinstance(x, Int) and len(x.terms) == 1:
            mono, c = x.terms[0]
            simple = simple or (c == 1 and len(mono) == 1)
        return text if simple else f"({text})"


def _may_have_name(x: Part) -> bool:
    """What a name is shorter than."""
    return isinstance(x, (Fn, Int)) or (isinstance(x, Load) and bool(x.operands()))
