"""Scalar values over index functions.

Values are interned: equal expressions are one object, common subexpressions vanish by construction.
Variables bound by a definition are numbered, not named (`i0, i1` for axes, `r0` for the innermost
reduction), so equal definitions are equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import is_
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from tilewright.base.interned import Interned
from tilewright.base.traverse import operands_first
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Int, Sym
from tilewright.ir.scalar import SCALARS, neutral
from tilewright.ir.types import DType, as_dtype, b1, clamped, f32, i64

if TYPE_CHECKING:
    from tilewright.ir.combine import Combine
    from tilewright.ir.tensor import Tensor

_values: Interned[Any] = Interned()


_NOTHING: frozenset[Any] = frozenset()


class Value:
    """A scalar. Subclasses: Const, Index, Load, Fn, Reduce.

    Data inside indices included, `depth` is the number of values below it on the longest path and
    `sources` is what it reads. They, the operands and the free symbols are known as soon as a value
    is made, from those of its operands.
    """

    __slots__ = ("__weakref__", "_below", "_label", "_syms", "depth", "dtype", "sources")
    dtype: DType
    depth: int
    sources: frozenset[Tensor | str]
    _below: tuple[Value, ...]
    _syms: frozenset[Sym]
    _label: str | None

    def __add__(self, o: Scalarish) -> Value:
        return fn("add", self, o)

    def __radd__(self, o: Scalarish) -> Value:
        return fn("add", o, self)

    def __sub__(self, o: Scalarish) -> Value:
        return fn("sub", self, o)

    def __rsub__(self, o: Scalarish) -> Value:
        return fn("sub", o, self)

    def __mul__(self, o: Scalarish) -> Value:
        return fn("mul", self, o)

    def __rmul__(self, o: Scalarish) -> Value:
        return fn("mul", o, self)

    def __truediv__(self, o: Scalarish) -> Value:
        return fn("div", self, o)

    def __rtruediv__(self, o: Scalarish) -> Value:
        return fn("div", o, self)

    def __neg__(self) -> Value:
        return fn("neg", self)

    def __lt__(self, o: Scalarish) -> Value:
        return fn("lt", self, o)

    def __le__(self, o: Scalarish) -> Value:
        return fn("le", self, o)

    def __gt__(self, o: Scalarish) -> Value:
        return fn("gt", self, o)

    def __ge__(self, o: Scalarish) -> Value:
        return fn("ge", self, o)

    def __and__(self, o: Scalarish) -> Value:
        return fn("and", self, o)

    def __or__(self, o: Scalarish) -> Value:
        return fn("or", self, o)

    def __xor__(self, o: Scalarish) -> Value:
        return fn("xor", self, o)

    def __invert__(self) -> Value:
        return fn("not", self)

    def eq(self, o: Scalarish) -> Value:
        return fn("eq", self, o)

    def ne(self, o: Scalarish) -> Value:
        return fn("ne", self, o)

    @property
    def args(self) -> tuple[Value, ...]:
        return ()

    def symbols(self) -> frozenset[Sym]:
        """Free index symbols."""
        return self._syms

    def operands(self) -> tuple[Value, ...]:
        """The values right below it, data inside indices included."""
        return self._below

    def _operands(self) -> tuple[Value, ...]:
        return self.args

    def _free(self) -> frozenset[Sym]:
        return _union(a._syms for a in self.args)

    def __repr__(self) -> str:
        return _text(self)

    def label(self) -> str:
        """Text that identifies a value, linear in its shared structure: long text is hashed.

        (`repr` writes a shared operand out at every use, which for a binary search is exponential.)
        """
        if self._label is None:
            _give_labels(self)
        assert self._label is not None
        return self._label

    def _show(self, args: Sequence[str]) -> str:
        """Its text, made of that of its operands."""
        return repr(self)

    def substitute(self, table: Mapping[Sym, Dim]) -> Value:
        return rewrite(self, table=table)

    def as_dim(self) -> Dim:
        """This integer value as an index."""
        if isinstance(self, Index):
            return self.dim
        if isinstance(self, Const):
            return int(self.value)
        if isinstance(self, Fn) and self.name == "cast" and self.dtype is i64:
            if isinstance(self.args[0], Index):
                return self.args[0].dim
        return D.data(self)


def _union(sets: Iterable[frozenset[Any]]) -> frozenset[Any]:
    """The union; mostly one of them contains all others and is returned as it is."""
    out = _NOTHING
    for x in sets:
        if not x <= out:
            out = x if out <= x else out | x
    return out


def _give_labels(v: Value) -> None:
    known: set[Value] = set()
    for x in operands_first(v, lambda x: [a for a in x.args if a._label is None], known):
        known.add(x)
        text = x._show([a.label() for a in x.args])
        digest = hashlib.blake2b(text.encode(), digest_size=12)
        x._label = text if len(text) < 120 else f"~{digest.hexdigest()}"


class Const(Value):
    __slots__ = ("value",)
    value: float | int | bool

    def __repr__(self) -> str:
        return f"{self.value!r}:{self.dtype}"


class Index(Value):
    """An index function used as an i64 value."""

    __slots__ = ("dim",)
    dim: Dim

    def _operands(self) -> tuple[Value, ...]:
        return D.data_values(self.dim)

    def _free(self) -> frozenset[Sym]:
        return D.symbols(self.dim)

    def __repr__(self) -> str:
        return f"#({self.dim})"


class Load(Value):
    """Element of a tensor (in a definition) or of a named buffer (in a kernel)."""

    __slots__ = ("source", "index")
    source: Tensor | str
    index: tuple[Dim, ...]

    def _operands(self) -> tuple[Value, ...]:
        return tuple(v for i in self.index if type(i) is not int for v in D.data_values(i))

    def _free(self) -> frozenset[Sym]:
        return _NOTHING.union(*(D.symbols(i) for i in self.index))

    def __repr__(self) -> str:
        name = self.source if isinstance(self.source, str) else self.source.name
        return f"{name}[{','.join(map(str, self.index))}]"


class Fn(Value):
    """A scalar function of values; `cast` has its dtype as result."""

    __slots__ = ("name", "_args")
    name: str
    _args: tuple[Value, ...]

    @property
    def args(self) -> tuple[Value, ...]:
        return self._args

    def _show(self, args: Sequence[str]) -> str:
        name = f"cast<{self.dtype}>" if self.name == "cast" else self.name
        return f"{name}({', '.join(args)})"


class Reduce(Value):
    """`combine` over every point of `axes` of `body`, starting from the combine's identity."""

    __slots__ = ("combine", "axes", "body")
    combine: Combine
    axes: tuple[Sym, ...]
    body: Value

    @property
    def args(self) -> tuple[Value, ...]:
        return (self.body,)

    def _free(self) -> frozenset[Sym]:
        extents = frozenset().union(*(D.symbols(extent(a)) for a in self.axes))
        return (self.body.symbols() - set(self.axes)) | extents

    def _show(self, args: Sequence[str]) -> str:
        axes = ", ".join(f"{a.name}<{extent(a)}" for a in self.axes)
        return f"reduce({self.combine}, {axes})({args[0]})"


def _text(v: Value) -> str:
    """A value written out; of one that is long, what fits a message: operands below are `…`."""
    known: dict[Value, str] = {}
    for x in operands_first(v, lambda x: x.args, known):
        text = x._show([known[a] for a in x.args])
        known[x] = text if len(text) <= _LONG_TEXT else x._show(["…"] * len(x.args))
    return known[v]


# Characters of a value in a message: written out, what it shares makes a text that never ends.
_LONG_TEXT = 20_000


Scalarish = Union[Value, int, float, bool, Int]


def extent(s: Sym) -> Dim:
    """Number of values of a loop variable."""
    assert s.hi is not None
    return s.hi + 1


def _intern(cls: type[Any], key: Any, **fields: Any) -> Any:
    key = (cls, *key)
    found = _values.get(key)
    if found is None:
        found: Any = object.__new__(cls)
        found._label = None
        for k, v in fields.items():
            setattr(found, k, v)
        found._syms = found._free()
        found._below = below = found._operands()
        found.depth = 1 + max([x.depth for x in below]) if below else 0
        found.sources = _union([x.sources for x in below]) if below else _NOTHING
        if cls is Load:
            found.sources |= {found.source}
        found = _values.add(key, found)
    return found


def const(value: float | int | bool, dtype: DType) -> Const:
    if dtype.is_float:
        value = float(as_dtype(np.array(value, dtype=np.float64), dtype))
        key = value.hex()  # tells -0.0 from 0.0, and is equal for equal NaNs
    else:
        value = bool(value) if dtype.is_bool else _wrapped(int(value), dtype)
        key = repr(value)
    return _intern(Const, (key, dtype), value=value, dtype=dtype)


def _wrapped(x: int, dtype: DType) -> int:
    """Wrapped around at the ends of the range, as a machine's integers are."""
    lowest = int(dtype.lowest)
    return (x - lowest) % (1 << dtype.bits) + lowest


def index(x: Dim) -> Value:
    if isinstance(x, int):
        return const(x, i64)
    if len(x.terms) == 1:
        mono, c = x.terms[0]
        if c == 1 and len(mono) == 1 and isinstance(mono[0], D.Data):
            return mono[0].value
    return _intern(Index, (x,), dim=x, dtype=i64)


def load(source: Tensor | str, idx: Sequence[Dim | Value], dtype: DType) -> Load:
    return _load(source, tuple([i.as_dim() if isinstance(i, Value) else i for i in idx]), dtype)


def _load(source: Tensor | str, index: tuple[Dim, ...], dtype: DType) -> Load:
    return _intern(Load, (source, index, dtype), source=source, index=index, dtype=dtype)


def value(x: Scalarish, dtype: DType) -> Value:
    if isinstance(x, Value):
        return x
    if isinstance(x, Int):
        return cast(index(x), dtype)
    return const(x, dtype)


def fn(name: str, *xs: Scalarish) -> Value:
    """Apply a scalar function; plain numbers take the dtype of their neighbours."""
    spec = SCALARS[name]
    if len(xs) != spec.arity:
        raise TypeError(f"{name} takes {spec.arity} arguments, not {len(xs)}")
    typed = [x for x in xs[1 if name == "select" else 0 :] if isinstance(x, Value)]
    default = typed[0].dtype if typed else (i64 if any(isinstance(x, Int) for x in xs) else f32)
    args = tuple(value(x, b1 if name == "select" and k == 0 else default) for k, x in enumerate(xs))
    rest = args[1:] if name == "select" else args
    if any(a.dtype is not rest[0].dtype for a in rest):
        raise TypeError(
            f"{name} of {', '.join(str(a.dtype) for a in args)}: cast to one dtype first"
        )
    if rest[0].dtype.kind not in spec.only:
        raise TypeError(f"{name} is not defined on {rest[0].dtype}")
    if spec.takes is not None and rest[0].dtype is not spec.takes:
        raise TypeError(f"{name} takes {spec.takes}, not {rest[0].dtype}")
    return make_fn(name, args, spec.type(tuple(a.dtype for a in args)))


def make_fn(name: str, args: tuple[Value, ...], dtype: DType) -> Value:
    folded = _fold(name, args, dtype)
    if folded is not None:
        return folded
    key = (Fn, name, args, dtype)
    found = _values.get(key)
    if found is None:  # as `_intern` does, for what most values are
        made = object.__new__(Fn)
        made._label, made.name, made._args, made._below = None, name, args, args
        made.dtype = dtype
        if len(args) == 1:
            (x,) = args
            made._syms, made.sources, made.depth = x._syms, x.sources, x.depth + 1
        else:
            made._syms = _union([x._syms for x in args])
            made.sources = _union([x.sources for x in args])
            made.depth = 1 + max([x.depth for x in args]) if args else 0
        found = _values.add(key, made)
    return found


# Functions that give one of their arguments, or a part of one.
_CHOOSING = frozenset(("item", "select"))

_INDEX_OPS: dict[str, Callable[[Dim, Dim], Dim]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "min": D.minimum,
    "max": D.maximum,
}


# A product is an index function up to this degree, and made of this many products of terms: offsets
# have a factor for every axis and a term for every loop. What is beyond is data, such as a power.
_DEGREE, _PRODUCTS = 12, 256


def _fits(x: Int) -> bool:
    """Are all its coefficients numbers of 64 bits?"""
    return all(i64.lowest <= c <= i64.highest for _, c in x.terms)


def _is_short_product(x: Dim, y: Dim) -> bool:
    if isinstance(x, int) or isinstance(y, int):
        return True
    degree = sum(max(len(factors) for factors, _ in d.terms) for d in (x, y))
    return degree <= _DEGREE and len(x.terms) * len(y.terms) <= _PRODUCTS


def _fold(name: str, args: tuple[Value, ...], dtype: DType) -> Value | None:
    """What index arithmetic and proofs about bounds decide. Float algebra is for proved rules."""
    if dtype.is_float and name not in _CHOOSING:
        return None
    if name == "item" and isinstance(args[0], Fn) and args[0].name == "tuple":
        assert isinstance(args[1], Const)
        return args[0].args[int(args[1].value)]
    if name == "select" and isinstance(args[0], Const):
        return args[1] if args[0].value else args[2]
    if name == "select" and args[1] is args[2]:
        return args[1]
    if name in ("and", "or") and dtype is b1:
        for a, b in (args, args[::-1]):
            if isinstance(a, Const):
                return (b if a.value else a) if name == "and" else (a if a.value else b)
    if len(args) == 2 and all(isinstance(a, (Index, Const)) and a.dtype is i64 for a in args):
        x, y = (a.as_dim() for a in args)
        if name == "mul" and not _is_short_product(x, y):
            return None
        if name in _INDEX_OPS:
            made = _INDEX_OPS[name](x, y)
            return index(made) if isinstance(made, int) or _fits(made) else None
        if name in ("floordiv", "mod") and D.bounds(y)[0] > 0:
            return index(D.floordiv(x, y) if name == "floordiv" else D.mod(x, y))
        known = _compare(name, x, y)
        return None if known is None else const(known, b1)
    return None


def _compare(name: str, x: Dim, y: Dim) -> bool | None:
    if name in ("gt", "ge"):
        name, x, y = {"gt": "lt", "ge": "le"}[name], y, x
    if name == "lt":
        return True if D.known_lt(x, y) else False if D.known_le(y, x) else None
    if name == "le":
        return True if D.known_le(x, y) else False if D.known_lt(y, x) else None
    if name in ("eq", "ne"):
        same = True if D.known_eq(x, y) else False if D.known_ne(x, y) else None
        return None if same is None else same == (name == "eq")
    return None


def cast(x: Value, dtype: DType) -> Value:
    if x.dtype is dtype:
        return x
    if isinstance(x, Const):
        if dtype.is_bool:
            return const(x.value != 0, dtype)
        if dtype.is_float or not isinstance(x.value, float) or abs(x.value) < 2**31:
            return const(clamped(x.value, dtype), dtype)
    return _intern(Fn, ("cast", (x,), dtype), name="cast", _args=(x,), dtype=dtype)


def make_reduce(combine: Combine, axes: tuple[Sym, ...], body: Value) -> Value:
    if isinstance(combine, str):
        neutral(combine, body.dtype)  # an error for what is no reduction
    else:
        combine.check(body.dtype)
    key = (combine, axes, body)
    return _intern(Reduce, key, combine=combine, axes=axes, body=body, dtype=body.dtype)


# ---- traversal


def with_args(x: Fn, args: tuple[Value, ...]) -> Value:
    """The same function of other arguments."""
    if all(map(is_, args, x._args)):
        return x
    return cast(args[0], x.dtype) if x.name == "cast" else make_fn(x.name, args, x.dtype)


class Rewriter:
    """Substitutes symbols and replaces loads (after substitution) and reductions, bottom up. `only`
    is the one buffer whose loads are replaced, where it is known: the others are not looked at.

    Results are cached: what several values share is rewritten once for all of them.
    """

    def __init__(
        self,
        table: Mapping[Sym, Dim] | None = None,
        on_load: Callable[[Load], Value] | None = None,
        on_reduce: Callable[[Reduce], Value] | None = None,
        only: str | None = None,
    ) -> None:
        assert only is None or on_reduce is None
        self.table: Mapping[Sym, Dim] = table or {}
        self.on_load, self.on_reduce, self.only = on_load, on_reduce, only
        self._memo: dict[Value, Value] = {}
        self._dims: dict[Int, Dim] = {}
        # Of a reduction: its axes and body, once the sizes of its axes are known.
        self._rebound: dict[Value, tuple[tuple[Sym, ...], Value]] = {}
        self._only_symbols = on_load is None and on_reduce is None

    def known(self, table: Mapping[Value, Value]) -> None:
        """Gives the replacements of some values in advance; their operands are not visited."""
        self._memo.update(table)

    def __call__(self, v: Value) -> Value:
        # As `operands_first` goes, written out: this is where most of scheduling's time goes.
        memo, stack, table, only = self._memo, [v], self.table, self.only
        every_load = only is None and not self._only_symbols
        while stack:
            x = stack[-1]
            if x in memo:
                stack.pop()
                continue
            reads = every_load or (only is not None and only in x.sources)
            if not reads and x._syms.isdisjoint(table):
                memo[stack.pop()] = x
                continue
            below = self._operands(x) if isinstance(x, Reduce) else x._below
            missing = [y for y in below if y not in memo]
            if missing:
                missing.reverse()
                stack += missing
            else:
                memo[stack.pop()] = self._one(x)
        return memo[v]

    def dim(self, x: Dim) -> Dim:
        """An index function, with what it reads from memory rewritten."""
        if isinstance(x, int):
            return x
        for v in D.data_values(x):
            self(v)
        return self._dim(x)

    def _dim(self, x: Dim) -> Dim:
        """The same where what it reads is rewritten already."""
        if isinstance(x, int):
            return x
        found = self._dims.get(x)
        if found is None:
            on_data = self._new if D.data_values(x) else None
            found = self._dims[x] = D.substitute(x, self.table, on_data, self._dims)
        return found

    def _new(self, x: Value) -> Value:
        return self._memo.get(x, x)

    def _rewritten(self, x: Value) -> bool:
        """Has it been rewritten already?"""
        if x in self._memo:
            return True
        if not self._only_symbols and (self.only is None or self.only in x.sources):
            return False
        return x._syms.isdisjoint(self.table)

    def _operands(self, x: Reduce) -> Iterable[Value]:
        """What is rewritten before a reduction: the sizes of its axes, then its body."""
        sizes = [d for a in x.axes for d in D.data_values(extent(a))]
        if x not in self._rebound and all(map(self._rewritten, sizes)):
            axes = tuple(_rebound(a, self._dim) for a in x.axes)
            changed = {a: D.as_int(b) for a, b in zip(x.axes, axes, strict=True) if a is not b}
            self._rebound[x] = axes, x.body.substitute(changed) if changed else x.body
        return (self._rebound[x][1],) if x in self._rebound else sizes

    def _one(self, x: Value) -> Value:
        """The rewritten value, once its operands are rewritten."""
        if isinstance(x, Fn):
            memo = self._memo
            return with_args(x, tuple([memo[a] for a in x._args]))
        if isinstance(x, Load):
            out = _load(x.source, tuple([self._dim(i) for i in x.index]), x.dtype)
            return out if self.on_load is None else self.on_load(out)
        if isinstance(x, Index):
            return cast(index(self._dim(x.dim)), i64)  # what is read may be narrower
        if isinstance(x, Reduce):
            axes, body = self._rebound[x]
            out = make_reduce(x.combine, axes, self._new(body))
            if self.on_reduce is not None and isinstance(out, Reduce):
                return self.on_reduce(out)
            return out
        return x


def rewrite(
    v: Value,
    table: Mapping[Sym, Dim] | None = None,
    on_load: Callable[[Load], Value] | None = None,
    on_reduce: Callable[[Reduce], Value] | None = None,
    only: str | None = None,
) -> Value:
    """One value rewritten: see `Rewriter`."""
    return Rewriter(table, on_load, on_reduce, only)(v)


def _rebound(axis: Sym, dim: Callable[[Dim], Dim]) -> Sym:
    e = extent(axis)
    new = dim(e)
    return axis if new is e or new == e else D.the_sym(D.var(axis.name, new))
