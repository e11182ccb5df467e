"""Dims and values as text and back: `2*i0+(i1//4)`, `exp(x[i0,i1] - m[i0]) * 0.5`.

Constants are f32 (`0.5`), i64 (`3`) or bool (`true`) unless they say otherwise (`0.5:f64`). An
index used as a value is `#(i0+1)`, an index read from data is `${idx[i0]}`. A value that shares
a lot prints as `{t0 = …; t1 = …; result}` (ir/value_print.py says when).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Int, Sym
from tilewright.ir.expr import (
    Const,
    Tensor,
    Value,
    cast,
    const,
    fn,
    index,
    item,
    load,
    make_reduce,
    tuple_of,
)
from tilewright.ir.reader import Reader, name_text
from tilewright.ir.scalar import SCALARS
from tilewright.ir.types import DTYPES, DType, b1, f32, i64
from tilewright.ir.value_print import COMPARE, INFIX, dim_text
from tilewright.ir.value_print import value_text as value_text  # printing is found here too


@dataclass(frozen=True)
class Scope:
    """What names mean: buffers have a dtype (or are the Tensor itself), symbols are Syms; values
    are what a block has given a name."""

    buffers: Mapping[str, DType | Tensor] = field(default_factory=dict)
    symbols: Mapping[str, Sym | Int] = field(default_factory=dict)
    values: Mapping[str, Value] = field(default_factory=dict)

    def binding(self, *syms: Sym) -> Scope:
        bound = {s.name: s for s in syms}
        return Scope(self.buffers, {**self.symbols, **bound}, self.values)


# ---- parsing


def parse_dim(text: str, symbols: Mapping[str, Sym | Int] | Scope | None = None) -> Dim:
    """The dim that `text` describes. `symbols` maps names to what they are."""
    scope = symbols if isinstance(symbols, Scope) else Scope(symbols=symbols or {})
    r = Reader(text, "dim")
    out = read_dim(r, scope)
    r.end()
    return out


def parse_value(text: str, scope: Scope) -> Value:
    r = Reader(text, "value")
    out = read_value(r, scope)
    r.end()
    return out


def read_dim(r: Reader, scope: Scope) -> Dim:
    """A dim at the cursor of a reader."""
    total = _product(r, scope)
    while r.sees("+", "-"):
        minus = r.next().text == "-"
        x = _product(r, scope)
        total = total - x if minus else total + x
    return total


def _product(r: Reader, scope: Scope) -> Dim:
    out = _factor(r, scope)
    while r.sees("*", "//", "%"):
        sign = r.next()
        x = _factor(r, scope)
        if sign.text == "*":
            out = out * x
        elif isinstance(x, int) and x == 0:
            r.problem("this divides by zero", sign)
        else:
            out = D.floordiv(out, x) if sign.text == "//" else D.mod(out, x)
    return out


def _factor(r: Reader, scope: Scope) -> Dim:
    if r.take("-"):
        return -_factor(r, scope)
    if r.take("("):
        x = read_dim(r, scope)
        r.expect(")")
        return x
    if r.take("${"):
        v = read_value(r, scope)
        r.expect("}")
        return v.as_dim()
    if r.sees_kind("number"):
        return r.integer("a dim")
    t = r.token
    name = r.name("a dim")
    if name in ("min", "max") and r.sees("("):
        r.next()
        a = read_dim(r, scope)
        r.expect(",")
        b = read_dim(r, scope)
        r.expect(")")
        return D.minimum(a, b) if name == "min" else D.maximum(a, b)
    if name not in scope.symbols:
        known = ", ".join(sorted(scope.symbols)) or "none"
        r.problem(f"{name} is not a symbol here; known are {known}", t)
    s = scope.symbols[name]
    return D.as_int(s) if isinstance(s, Sym) else s


def read_value(r: Reader, scope: Scope) -> Value:
    """A value at the cursor of a reader."""
    return _ValueReader(r, scope).block()


class _ValueReader:
    def __init__(self, r: Reader, scope: Scope) -> None:
        self.r, self.names = r, dict(scope.values)
        self.scope = replace(scope, values=self.names)  # indices may mention them too

    def block(self) -> Value:
        if not self.r.take("{"):
            return self.level(0)
        own = _ValueReader(self.r, self.scope)
        while own.r.sees_kind("name") and own.r.tokens[own.r.at + 1].text == "=":
            name = own.r.next().text
            own.r.expect("=")
            own.names[name] = own.level(0)
            own.r.expect(";")
        v = own.level(0)
        self.r.expect("}")
        return v

    def level(self, k: int) -> Value:
        if k == len(INFIX):
            return self.primary()
        out = self.level(k + 1)
        while self.r.token.kind == "sign" and self.r.token.text in INFIX[k]:
            sign = self.r.next()
            right = self.level(k + 1)
            out = self._apply(INFIX[k][sign.text], [out, right], sign)
            if k == COMPARE:
                break
        return out

    def _apply(self, name: str, args: list[Value], at: object) -> Value:
        try:
            return fn(name, *args)
        except TypeError as why:
            self.r.problem(str(why), at)  # type: ignore[arg-type]

    def primary(self) -> Value:
        r = self.r
        if r.take("("):
            v = self.level(0)
            r.expect(")")
            return v
        if r.sees("{"):
            return self.block()
        if r.take("#("):
            x = read_dim(r, self.scope)
            r.expect(")")
            return index(x)
        if r.sees("-"):
            minus = r.next()
            if r.sees_kind("number") or r.sees("inf"):
                return self.number("-")
            return self._apply("neg", [self.primary()], minus)
        if r.sees_kind("number"):
            return self.number("")
        if r.sees_kind("name") or r.sees_kind("string"):
            return self.named()
        r.fail("a value")

    def number(self, sign: str) -> Const:
        text = sign + self.r.next().text
        whole = text.lstrip("-").isdigit()
        default = i64 if whole else f32
        dtype = self.dtype() if self.r.take(":") else default
        return const(int(text) if whole else float(text), dtype)

    def dtype(self) -> DType:
        t = self.r.token
        name = self.r.name("a dtype")
        if name not in DTYPES:
            self.r.problem(f"{name} is not a dtype; known are {', '.join(DTYPES)}", t)
        return DTYPES[name]

    def named(self) -> Value:
        r = self.r
        after = r.tokens[r.at + 1]
        t = r.token
        opens = after.kind == "sign" and after.text in "([<"
        if t.kind == "name" and not (opens and after.text in "(["):
            if t.text in self.names:
                r.next()
                return self.names[t.text]
            if t.text in ("inf", "nan"):
                return self.number("")
            if t.text in ("true", "false", "True", "False"):
                r.next()
                if r.take(":"):
                    self.dtype()
                return const(t.text.lower() == "true", b1)
        name = r.name()
        if name == "cast" and r.take("<"):
            dtype = self.dtype()
            r.expect(">")
            r.expect("(")
            v = self.level(0)
            r.expect(")")
            return cast(v, dtype)
        if name == "reduce" and r.sees("("):
            return self.reduction()
        if r.take("["):
            return self.element(name, t)
        if name in ("tuple", "item") and r.take("("):
            args = r.several(lambda: self.level(0), ")")
            try:
                return tuple_of(*args) if name == "tuple" else _item(*args)
            except TypeError as why:
                r.problem(str(why), t)
        if r.sees("("):
            if name not in SCALARS:
                r.problem(f"{name} is not a scalar function", t)
            r.next()
            args = r.several(lambda: self.level(0), ")")
            return self._apply(name, args, t)
        r.problem(f"{name} is not known here; expected a value", t)

    def element(self, name: str, t: object) -> Value:
        at = self.r.several(lambda: read_dim(self.r, self.scope), "]")
        source = self.scope.buffers.get(name)
        if source is None:
            known = ", ".join(sorted(self.scope.buffers)) or "none"
            self.r.problem(f"{name} is not a buffer here; known are {known}", t)  # type: ignore[arg-type]
        if isinstance(source, Tensor):
            if len(at) != source.rank:
                self.r.problem(f"{name} has {source.rank} axes, not {len(at)}", t)  # type: ignore[arg-type]
            return load(source, at, source.dtype)
        return load(name, at, source)

    def reduction(self) -> Value:
        r = self.r
        r.expect("(")
        t = r.token
        combine = r.name("a combine such as add or max")
        scope = self.scope
        axes: list[Sym] = []
        while r.take(","):
            name = r.name("a reduction variable")
            r.expect("<")
            bound = D.var(name, read_dim(r, scope))
            axes.append(D.the_sym(bound))
            scope = scope.binding(axes[-1])
        r.expect(")")
        r.expect("(")
        body = _ValueReader(r, scope).block()
        r.expect(")")
        try:
            return make_reduce(combine, tuple(axes), body)
        except (ValueError, TypeError) as why:
            r.problem(str(why), t)


def _item(v: Value, k: Value) -> Value:
    if not isinstance(k, Const) or k.dtype is not i64:
        raise TypeError("the component of a tuple is a whole number")
    return item(v, int(k.value))


def sym_text(s: Sym) -> str:
    """`s0: 1..4096 %8`: the bounds are inclusive, an absent upper bound is unknown."""
    hi = "" if s.hi is None else dim_text(s.hi)
    multiple = f" %{s.multiple}" if s.multiple != 1 else ""
    return f"{name_text(s.name)}: {dim_text(s.lo)}..{hi}{multiple}"


def read_sym(r: Reader, scope: Scope) -> Sym:
    """A declared symbol at the cursor of a reader."""
    t = r.token
    name = r.name("a symbol")
    if name in scope.symbols:
        r.problem(f"{name} is declared twice", t)
    r.expect(":")
    lo = read_dim(r, scope)
    r.expect("..")
    hi = (
        None
        if r.sees("%", ",", "{", "}") or r.sees_kind("end")
        else read_dim_before_percent(r, scope)
    )
    multiple = r.integer() if r.take("%") else 1
    return D.the_sym(D.sym(name, lo, hi, multiple))


def read_dim_before_percent(r: Reader, scope: Scope) -> Dim:
    """A bound, in which a bare `%` ends the dim (a remainder is bracketed when printed)."""
    x = _plain_product(r, scope)
    while r.sees("+", "-"):
        minus = r.next().text == "-"
        y = _plain_product(r, scope)
        x = x - y if minus else x + y
    return x


def _plain_product(r: Reader, scope: Scope) -> Dim:
    out = _factor(r, scope)
    while r.take("*"):
        out = out * _factor(r, scope)
    return out


def declare(syms: set[Sym]) -> list[Sym]:
    """The symbols and those in their bounds, in an order in which bounds mention earlier ones."""
    out: dict[Sym, None] = {}
    names: dict[str, Sym] = {}

    def visit(s: Sym) -> None:
        if s in out:
            return
        for bound in (s.lo, s.hi):
            if bound is not None:
                for x in sorted(D.symbols(bound)):
                    visit(x)
        if names.setdefault(s.name, s) is not s:
            raise Invalid(
                f"two symbols are called {s.name}, with different bounds: "
                f"{sym_text(names[s.name])} and {sym_text(s)}"
            )
        out[s] = None

    for s in sorted(syms, key=lambda s: s.name):
        visit(s)
    return list(out)
