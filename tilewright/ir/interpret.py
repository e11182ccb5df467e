"""Target zero: evaluates definitions with numpy. It never calls an operator's reference.

Values are evaluated on whole index grids at once. A load under a `select` is checked only where the
condition holds, so a definition that reads out of bounds is an error here before it is a crash
anywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.base.traverse import operands_first
from tilewright.ir import dim as D
from tilewright.ir.combine import Combiner, identity
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Const, Fn, Index, Load, Reduce, Tensor, Value, extent, loads
from tilewright.ir.node import Constant, Graph, Input, Item, Node, topological
from tilewright.ir.operator import definition, is_composed, stages
from tilewright.ir.scalar import applied
from tilewright.ir.types import DType, TensorType, TupleDType, TupleType, as_dtype, clamped, u64

# What memory holds of a tensor: an array, or one for each component of a tuple.
Stored = np.ndarray | tuple[np.ndarray, ...]

# A value, and the number of the mask under which it is evaluated.
_Masked = tuple[Value, int]

# A reduction grid larger than this is walked one slice of its outermost axis at a time.
GRID_LIMIT = 1 << 22

COMBINE: dict[str, np.ufunc] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "maxnum": np.fmax,
    "minnum": np.fmin,
}
_COMBINE_BOOL: dict[str, np.ufunc] = {
    "add": np.logical_or,
    "mul": np.logical_and,
    "max": np.logical_or,
    "min": np.logical_and,
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}


def evaluate(
    graph: Graph,
    args: Sequence[np.ndarray],
    dims: Mapping[str, int] | None = None,
    by: type[Evaluator] | None = None,
) -> list[np.ndarray]:
    """The outputs of a graph for the given inputs (in the order of graph.inputs); by another
    arithmetic than that of the dtypes where an evaluator is given."""
    by = by or Evaluator
    env: dict[Node, Any] = {}
    sizes = dict(dims or {})
    if len(args) != len(graph.inputs):
        raise Invalid(f"graph {graph.name} takes {len(graph.inputs)} inputs, {len(args)} given")
    for n, a in zip(graph.inputs, args, strict=True):
        bind_dims(n.ttype, a.shape, sizes, str(n.op))
        env[n] = by.stored(as_dtype(a, n.dtype), n.dtype)
    return _outputs(graph, env, sizes, by)


def _outputs(
    graph: Graph, env: dict[Node, Any], sizes: Mapping[str, int], by: type[Evaluator]
) -> list[Any]:
    for n in graph.nodes():
        if n not in env:
            env[n] = node_value(n, [env[x] for x in n.inputs], sizes, by)
    return [env[o] for o in graph.outputs]


def _inside(
    graph: Graph, args: Sequence[Any], sizes: Mapping[str, int], by: type[Evaluator]
) -> list[Any]:
    """The outputs of a graph inside another one, on values of that one's arithmetic."""
    return _outputs(graph, dict(zip(graph.inputs, args, strict=True)), sizes, by)


def bind_dims(t: TensorType, shape: Sequence[int], sizes: dict[str, int], what: str) -> None:
    """Learn symbolic dims that stand alone in a shape, check the others."""
    if len(t.shape) != len(shape):
        raise Invalid(f"{what} has {len(t.shape)} dims, got shape {tuple(shape)}")
    for d, s in zip(t.shape, shape, strict=True):
        if D.is_sym(d):
            sizes.setdefault(D.the_sym(d).name, int(s))
    for d, s in zip(t.shape, shape, strict=True):
        if D.evaluate(d, sizes) != s:
            raise Invalid(f"{what}: expected {t!r}, got shape {tuple(shape)}")


def node_value(
    n: Node,
    args: Sequence[Any],
    sizes: Mapping[str, int],
    by: type[Evaluator] | None = None,
) -> Any:
    """The value of a node whose operands have these."""
    by = by or Evaluator
    op = n.op
    if isinstance(op, Constant):
        return by.stored(op.literal.array, op.literal.dtype)
    if isinstance(op, Item):
        return args[0][op.k]
    if isinstance(op, Input):
        raise Invalid(f"{op.label} is used but is not an input of the graph")
    if (run := getattr(op, "interpret", None)) is not None:  # control flow
        return run(args, lambda g, a: _inside(g, a, sizes, by), sizes)
    if is_composed(op):
        out = op.compose(*n.inputs)  # type: ignore[attr-defined]
        outs = out if isinstance(out, tuple) else (out,)
        env: dict[Node, Any] = dict(zip(n.inputs, args, strict=True))
        for x in topological(outs, stop=n.inputs):
            env[x] = node_value(x, [env[y] for y in x.inputs], sizes, by)
        vals = [env[o] for o in outs]
    else:
        types = tuple(x.ttype for x in n.inputs)
        ins, outs = definition(op, types)
        mem: dict[Tensor, Stored] = dict(zip(ins, args, strict=True))
        for t in stages(outs):
            mem[t] = tensor(t, mem, sizes, by)
        vals = [mem[o] for o in outs]
    return tuple(vals) if isinstance(n.type, TupleType) else vals[0]


def tensor(
    t: Tensor,
    mem: Mapping[Tensor, Stored],
    sizes: Mapping[str, int],
    by: type[Evaluator] | None = None,
) -> Stored:
    """Evaluate one definition whose inputs are in `mem`."""
    assert t.body is not None
    by = by or Evaluator
    shape = tuple(int(D.evaluate(d, sizes)) for d in t.shape)
    domain = tuple(int(D.evaluate(extent(a), sizes)) for a in t.axes)
    if t.kind == "compute":
        if 0 in shape and isinstance(t.dtype, TupleDType):
            return tuple(np.zeros(shape, by.held(d)) for d in t.dtype.items)
        if 0 in shape:
            return np.zeros(shape, by.held(t.dtype))
        ev = by(mem, sizes, _grid(t, domain))
        found = ev(t.body)
        if isinstance(found, tuple):
            return tuple(np.array(np.broadcast_to(x, shape)) for x in found)
        return np.array(np.broadcast_to(found, shape))
    if t.kind == "scan":
        out = np.zeros(shape, by.held(t.dtype))
        if 0 in shape:
            return out
        (axis,) = t.ordered
        own = {**mem, t: out}
        for k in range(domain[axis]):
            grid = _grid(t, domain)
            grid[t.axes[axis].name] = np.full((1,) * len(domain), k)
            piece = tuple(1 if j == axis else n for j, n in enumerate(domain))
            v = np.broadcast_to(by(own, sizes, grid)(t.body), piece)
            where = tuple(slice(k, k + 1) if j == axis else slice(None) for j in range(len(domain)))
            out[where] = v
        return out
    assert t.base is not None and t.where is not None
    out = np.array(mem[t.base])
    if 0 in domain:
        return out
    if any(x.source is t for x in loads(t.body)):
        return _revised(t, out, domain, lambda grid: by({**mem, t: out}, sizes, grid))
    ev = by({**mem, t: out}, sizes, _grid(t, domain))
    v = np.broadcast_to(ev(t.body), domain).reshape(-1)
    at = tuple(np.broadcast_to(ev.dim(w), domain).reshape(-1) for w in t.where)
    for w, n in zip(at, shape, strict=True):
        if w.size and (w.min() < 0 or w.max() >= n):
            raise IndexError(f"{t.name}: update at {w.min()}..{w.max()} of an axis of {n}")
    if t.combine is None:
        for k in range(v.size):  # in order: the last one wins
            out[tuple(w[k] for w in at)] = v[k]
    else:
        for k in range(v.size):
            p = tuple(w[k] for w in at)
            out[p] = ev.joined(t.combine, out[p], v[k], t.dtype)
    return out


def _revised(
    t: Tensor,
    out: np.ndarray,
    domain: tuple[int, ...],
    evaluator: Callable[[dict[str, Any]], Evaluator],
) -> np.ndarray:
    """An update that reads itself: point after point, of all rows at once (expr.revise)."""
    assert t.body is not None and t.where is not None
    rows, *rest = domain
    for point in np.ndindex(*rest):
        grid: dict[str, Any] = {t.axes[0].name: np.arange(rows)}
        grid |= {a.name: np.full(1, k) for a, k in zip(t.axes[1:], point, strict=True)}
        ev = evaluator(grid)
        at = tuple(np.broadcast_to(ev.dim(w), (rows,)) for w in t.where)
        out[at] = np.broadcast_to(ev(t.body), (rows,))
    return out


def _grid(t: Tensor, domain: tuple[int, ...]) -> dict[str, Any]:
    n = len(domain)
    return {
        a.name: np.arange(e).reshape((1,) * k + (-1,) + (1,) * (n - k - 1))
        for k, (a, e) in enumerate(zip(t.axes, domain, strict=True))
    }


# What is below a value, operands first: nests are evaluated store by store, again and again.
_below: WeakKeyDictionary[Value, tuple[Value, ...] | None] = WeakKeyDictionary()


def _all_below(v: Value) -> tuple[Value, ...] | None:
    """None where one of them decides which others are evaluated, or evaluates its own."""
    try:
        return _below[v]
    except KeyError:
        pass
    known: set[Value] = set()
    found: list[Value] = []
    for x in operands_first(v, Value.operands, known):
        known.add(x)
        found.append(x)
    choosy = any(isinstance(x, Reduce) or (isinstance(x, Fn) and x.name == "select") for x in found)
    _below[v] = None if choosy else tuple(found[:-1])
    return _below[v]


class Evaluator:
    """Evaluates values on a grid of index arrays, under a mask: where that is false, what a value
    is does not matter, and its loads may be out of bounds. Values of any depth."""

    def __init__(
        self, mem: Mapping[Any, Any], sizes: Mapping[str, int], grid: dict[str, Any]
    ) -> None:
        self.mem = mem
        self.env: dict[str, Any] = {**sizes, **grid}
        self.mask: Any = True
        self.masks: list[Any] = []  # all masks so far
        self.numbers: dict[int, int] = {}  # their positions in that list, by identity
        self.sides: dict[_Masked, tuple[int, int]] = {}  # of a select: the masks of its two values
        self.memo: dict[_Masked, Any] = {}
        self.places: dict[int, dict[D.Int, Any]] = {}  # indices under each mask
        self.whole = False  # do loads give what is in memory, as the parameters of a combiner do?

    # ---- arithmetic, which subclasses may replace

    @classmethod
    def held(cls, dtype: DType) -> np.dtype:
        """What arrays of a dtype hold."""
        return dtype.numpy

    @classmethod
    def stored(cls, array: np.ndarray, dtype: DType) -> np.ndarray:
        """A constant or an input of the program."""
        return np.array(array, cls.held(dtype))

    def number(self, value: Any, dtype: DType) -> np.ndarray:
        return np.asarray(value, dtype=dtype.numpy)

    def fitted(self, x: Any, dtype: DType) -> np.ndarray:
        """A value as one of the dtype."""
        return as_dtype(x, dtype)

    def function(self, v: Fn, args: Sequence[Any], dtype: DType) -> Any:
        """A scalar function or a cast of values, as one of the dtype."""
        if v.name == "cast":
            return cast(args[0], v.args[0].dtype, dtype)
        return apply(v.name, args, dtype)

    def folded(self, combine: str, x: np.ndarray, n: int, dtype: DType) -> np.ndarray:
        """A reduction over the last n axes."""
        return _fold(combine, x, n, dtype)

    def joined(self, combine: str, a: Any, b: Any, dtype: DType) -> Any:
        """Two parts of a reduction put together."""
        return apply(combine, [a, b], dtype)

    # ---- what is evaluated, and where

    def __call__(self, v: Value) -> Any:
        root = (v, self._number(self.mask))
        if root in self.memo:
            return self.memo[root]
        if (below := _all_below(v)) is not None:
            mask, memo = root[1], self.memo
            for y in below:
                if (x := (y, mask)) not in memo:
                    memo[x] = self._eval(x)
            memo[root] = self._eval(root)
        else:
            outer = self.mask
            for x in operands_first(root, self._operands, self.memo):
                self.mask = self.masks[x[1]]
                self.memo[x] = self._eval(x)
            self.mask = outer
        return self.memo[root]

    def dim(self, x: Dim) -> Any:
        if type(x) is int:
            return x
        places = self.places.setdefault(self._number(self.mask), {})
        return D.evaluate(x, self.env, self._as_places, places)

    def _as_places(self, v: Value) -> np.ndarray:
        return np.asarray(self(v)).astype(np.int64)

    def _number(self, mask: Any) -> int:
        k = self.numbers.setdefault(id(mask), len(self.masks))
        if k == len(self.masks):
            self.masks.append(mask)
        return k

    def _operands(self, x: _Masked) -> list[_Masked]:
        """What is evaluated before x; the values of a select only once its condition is known."""
        v, mask = x
        if isinstance(v, Reduce):  # its body has an evaluator of its own
            return [(d, mask) for a in v.axes for d in D.data_values(extent(a))]
        if not isinstance(v, Fn) or v.name != "select":
            return [(a, mask) for a in v.operands()]
        condition, yes, no = v.args
        if (condition, mask) not in self.memo:
            return [(condition, mask)]
        if x not in self.sides:
            c, outer = self.memo[condition, mask], self.masks[mask]
            self.sides[x] = self._number(outer & c), self._number(outer & ~c)
        return list(zip((yes, no), self.sides[x], strict=True))

    def _eval(self, x: _Masked) -> Any:
        """x, whose operands are known."""
        v, mask = x
        if isinstance(v, Const):
            return self.number(v.value, v.dtype)
        if isinstance(v, Index):
            return np.asarray(self.dim(v.dim), dtype=np.int64)
        if isinstance(v, Load):
            return self._load(v)
        if isinstance(v, Reduce):
            return self._reduce(v)
        assert isinstance(v, Fn)
        if v.name == "select":
            condition = self.memo[v.args[0], mask]
            a, b = (self.memo[y] for y in zip(v.args[1:], self.sides[x], strict=True))
            return self.fitted(np.where(condition, a, b), v.dtype)
        args = [self.memo[a, mask] for a in v.args]
        if v.name == "item":
            return args[0][int(args[1])]
        if v.name == "tuple":
            return tuple(args)
        return self.function(v, args, v.dtype)

    def _load(self, v: Load) -> Any:
        a = self.mem[v.source]
        if self.whole:
            return a
        if isinstance(a, tuple):
            return tuple(self._element(v, x) for x in a)
        return self._element(v, a)

    def _element(self, v: Load, a: np.ndarray) -> np.ndarray:
        index: list[Any] = []
        for i, n in zip(v.index, a.shape, strict=True):
            x = self.dim(i)
            if type(x) is int and 0 <= x < n:
                index.append(x)
                continue
            x = np.asarray(x)
            outside = (x < 0) | (x >= n)
            if np.count_nonzero(outside):  # `any` goes through Python once more
                if np.any(outside & self.mask):
                    raise IndexError(f"{v!r} reads outside an axis of {n}")
                x = np.clip(x, 0, max(n - 1, 0))
            index.append(x)
        if a.size == 0:
            return np.zeros(np.broadcast_shapes(*map(np.shape, index)), a.dtype)
        return np.asarray(a[tuple(index)] if index else a)

    def _reduce(self, v: Reduce) -> Any:
        exts = [int(self.dim(extent(a))) for a in v.axes]
        if isinstance(v.combine, Combiner):
            return self._combined(v, v.combine, exts)
        neutral = identity(v.combine, v.dtype)
        assert isinstance(neutral, Const)
        zero = self.number(neutral.value, v.dtype)
        if 0 in exts:
            return zero
        rank = max((np.ndim(x) for x in self.env.values()), default=0)
        outer = np.broadcast_shapes(*(np.shape(x) for x in self.env.values()))
        grid = int(np.prod(outer, dtype=np.int64)) * int(np.prod(exts, dtype=np.int64))
        lead, inner = (v.axes[:1], v.axes[1:]) if grid > GRID_LIMIT else ((), v.axes)
        with_inner_axes = (...,) + (None,) * len(inner)
        acc: Any = None
        for k in range(exts[0] if lead else 1):
            env = {n: x[with_inner_axes] if np.ndim(x) else x for n, x in self.env.items()}
            if lead:
                env[lead[0].name] = k
            for j, (a, e) in enumerate(zip(inner, exts[len(lead) :], strict=True)):
                before, after = rank + j, len(inner) - j - 1
                env[a.name] = np.arange(e).reshape((1,) * before + (-1,) + (1,) * after)
            sub = type(self)(self.mem, {}, env)
            if self.mask is not True:
                sub.mask = np.asarray(self.mask)[with_inner_axes]
            x = np.asarray(sub(v.body))
            full = np.broadcast_shapes((1,) * (rank + len(inner)), x.shape)
            tail = tuple(int(self.dim(extent(a))) for a in inner)
            x = np.broadcast_to(x, full[: len(full) - len(inner)] + tail)
            part = self.folded(v.combine, x, len(inner), v.dtype)
            acc = part if acc is None else self.joined(v.combine, acc, part, v.dtype)
        return self.fitted(acc, v.dtype)

    def _combined(self, v: Reduce, c: Combiner, exts: list[int]) -> Any:
        """Point after point: a user's combiner is no ufunc."""
        acc = [self.number(x.value, x.dtype) for x in c.neutral]
        for point in np.ndindex(*exts):
            at = {a.name: k for a, k in zip(v.axes, point, strict=True)}
            sub = type(self)(self.mem, {}, {**self.env, **at})
            sub.mask = self.mask
            x = sub(v.body)
            acc = list(self._both(c, acc, x if isinstance(x, tuple) else (x,)))
        return tuple(acc) if len(acc) > 1 else acc[0]

    def _both(self, c: Combiner, left: Sequence[Any], right: Sequence[Any]) -> tuple[Any, ...]:
        """Two partial results put together."""
        mem = {f"l{k}": x for k, x in enumerate(left)} | {f"r{k}": x for k, x in enumerate(right)}
        ev = type(self)(mem, {}, {})
        ev.whole = True
        return tuple(ev(v) for v in c.results)


def combined(c: Combiner, left: Sequence[Any], right: Sequence[Any]) -> tuple[Any, ...]:
    """Two partial results put together, on arrays."""
    return Evaluator({}, {}, {})._both(c, left, right)


def _fold(combine: str, x: np.ndarray, n: int, dtype: DType) -> np.ndarray:
    if n == 0:
        return x
    axes = tuple(range(x.ndim - n, x.ndim))
    ufunc = (_COMBINE_BOOL if dtype.is_bool else COMBINE)[combine]
    with np.errstate(all="ignore"):
        return ufunc.reduce(x, axis=axes, dtype=dtype.numpy if combine in ("add", "mul") else None)


def apply(name: str, args: Sequence[Any], dtype: DType) -> np.ndarray:
    with np.errstate(all="ignore"):
        return applied(name, args, dtype)


def cast(x: np.ndarray, src: DType, dst: DType) -> np.ndarray:
    """A conversion as native code does it. Floats are cut; outside what the widest integers hold
    they are the nearest of those, NaN is 0, and narrower integers wrap."""
    with np.errstate(all="ignore"):
        if dst.is_bool:
            return x != 0
        if src.is_float and dst.is_int:
            return _whole(np.asarray(x, np.float64), dst).astype(dst.numpy)
        return as_dtype(clamped(x, dst) if src.is_float else x, dst)


def _whole(x: np.ndarray, dst: DType) -> np.ndarray:
    low, high = -(2.0**63), 2.0**63
    inside = np.where((x >= low) & (x < high), np.trunc(x), 0.0).astype(np.int64)
    ends = np.iinfo(np.int64)
    signed = np.where(x >= high, ends.max, np.where(x < low, ends.min, inside))
    if dst is not u64:
        return signed
    upper = np.where((x >= high) & (x < 2 * high), x, 0.0).astype(np.uint64)
    upper = np.where(x >= 2 * high, np.iinfo(np.uint64).max, upper)
    return np.where(x >= high, upper, signed.astype(np.uint64))
