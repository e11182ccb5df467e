"""Tensors of tensor expressions: inputs, definitions, reductions and scans."""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Union

from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir import expr as E
from tilewright.ir.combine import identity
from tilewright.ir.dim import Dim
from tilewright.ir.types import DType, TupleDType

from .scalars import (
    AXES,
    Expr,
    IterVar,
    Operand,
    Var,
    applied,
    as_extent,
    as_index,
    binary,
    dtype_of,
    lifted,
)


class Tensor(E.Tensor):
    """A tensor of the shared language which is indexed with te expressions and knows its axes."""

    __slots__ = ("op",)
    op: Operation

    def __getitem__(self, idx: Any) -> Expr:  # type: ignore[override]
        at = idx if isinstance(idx, tuple) else (idx,)
        if len(at) != len(self.shape):
            axes = f"{len(self.shape)} axes"
            raise Invalid(f"{self.name} has {axes} and is indexed with {len(at)}")
        where = [as_index(i, f"index {k} of {self.name}") for k, i in enumerate(at)]
        return Expr(E.load(self, where, self.dtype))

    def __call__(self, *idx: Any) -> Expr:  # type: ignore[override]
        return self[tuple(idx)]


class Operation:
    """What computes a tensor, or several at once: its name, its axes and what it reads.

    `tensor` is the stage that its axes are loops of. `outputs` are the tensors of its user: that
    one, others of the same loops, or the components of a reduction over tuples.
    """

    def __init__(
        self,
        tensor: Tensor,
        axis: tuple[IterVar, ...] = (),
        reduce_axis: tuple[IterVar, ...] = (),
        outputs: tuple[Tensor, ...] = (),
    ) -> None:
        self.tensor, self.axis, self.reduce_axis = tensor, axis, reduce_axis
        self.outputs = outputs or (tensor,)

    @property
    def name(self) -> str:
        return self.tensor.name

    @property
    def _computed(self) -> tuple[Tensor, ...]:
        """The tensors that have a definition of the user's."""
        return self.outputs if self.tensor in self.outputs else (self.tensor,)

    @property
    def input_tensors(self) -> tuple[Tensor, ...]:
        found = dict.fromkeys(x for t in self._computed for x in t.inputs())
        return tuple(x for x in found if isinstance(x, Tensor))

    @property
    def body(self) -> list[Expr]:
        """What an element is, over `axis`; nothing for an input."""
        return [Expr(t.body) for t in self._computed if t.body is not None]

    @property
    def scan_axis(self) -> IterVar:
        """The axis along which a recurrence runs."""
        if not self.tensor.ordered:
            raise Invalid(f"{self.name} is no scan", hint="its axes are in .axis")
        return self.axis[0]

    @property
    def spatial_axis_(self) -> tuple[IterVar, ...]:
        """The other axes of a recurrence, whose points are independent."""
        return tuple(a for a in self.axis if a is not self.scan_axis)

    @property
    def num_outputs(self) -> int:
        return len(self.outputs)

    def output(self, k: int) -> Tensor:
        if not 0 <= k < len(self.outputs):
            count = len(self.outputs)
            raise Invalid(f"{self.name} has {count} outputs, there is no number {k}")
        return self.outputs[k]

    def __repr__(self) -> str:
        return f"operation {self.name}"


Axes = Union[IterVar, Sequence[IterVar]]


def var(name: str = "n", dtype: str = "int64") -> Var:
    """A symbolic extent. Two of one name are one; `dtype` is accepted as TVM has it."""
    if not name.isidentifier():
        raise Invalid(f"{name!r} is not a name for an extent", hint="use letters, digits and _")
    return Var(name)


size_var = var


def _shape(shape: object, what: str) -> tuple[Dim, ...]:
    dims = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    return tuple(as_extent(d, f"extent {k} of {what}") for k, d in enumerate(dims))


def placeholder(shape: Any, dtype: str | DType = "float32", name: str = "placeholder") -> Tensor:
    """An input."""
    t = Tensor(name, _shape(shape, name), dtype_of(dtype))
    t.op = Operation(t)
    return t


def reduce_axis(dom: tuple[Any, Any], name: str = "k") -> IterVar:
    """An axis to reduce over: [low, high)."""
    if not isinstance(dom, (tuple, list)) or len(dom) != 2:
        raise Invalid(f"the domain of {name} is {dom!r}", hint="write (0, n)")
    low, high = (as_extent(d, f"a bound of {name}") for d in dom)
    extent = high - low
    if D.bounds(extent)[1] < 0:
        raise Invalid(f"the domain of {name} ends at {high}, before it begins at {low}")
    return IterVar(name, extent, "reduce", low)


def compute(
    shape: Any,
    fcompute: Callable[..., Any],
    name: str = "compute",
    tag: str = "",
    attrs: object = None,
) -> Any:
    """The tensor whose element at (i, j, …) is `fcompute(i, j, …)`; several tensors of that shape
    where it returns a tuple. A shape of () has one element. Tag and attributes are accepted as TVM
    has them; they mean nothing here."""
    dims = _shape(shape, name)
    axes = tuple(IterVar(a, d) for a, d in zip(axis_names(fcompute, len(dims), name), dims))
    found = fcompute(*axes)
    if isinstance(found, Reduction) and isinstance(found.value.dtype, TupleDType):
        return _components(_computed(dims, axes, found, name), found.value.dtype)
    if not isinstance(found, (tuple, list)):
        return _computed(dims, axes, found, name)
    if not found:
        raise Invalid(f"{name} computes an empty tuple", hint="return one expression per output")
    several = tuple(_computed(dims, axes, v, f"{name}_v{k}") for k, v in enumerate(found))
    if not builtins.any(isinstance(v, Reduction) for v in found):
        op = Operation(several[0], axes, (), several)
        for t in several:
            t.op = op
    return several


def _components(whole: Tensor, dtype: TupleDType) -> tuple[Tensor, ...]:
    """One tensor per component; the reduction itself is what they read, and their operation."""

    def one(k: int) -> Tensor:
        axes = tuple(IterVar(a.name, a.extent) for a in whole.op.axis)
        at = [D.as_int(a.sym) for a in axes]
        value = E.item(E.load(whole, at, whole.dtype), k)
        return _computed(whole.shape, axes, Expr(value), f"{whole.name}_v{k}")

    found = tuple(one(k) for k in range(len(dtype.items)))
    op = Operation(whole, whole.op.axis, whole.op.reduce_axis, found)
    for t in (whole, *found):
        t.op = op
    return found


def axis_names(f: Callable[..., Any], rank: int, name: str) -> list[str]:
    """What a function of `rank` indices calls them."""
    kinds = inspect.Parameter
    own = list(inspect.signature(f).parameters.values())
    plain = [p for p in own if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    rest = builtins.any(p.kind is kinds.VAR_POSITIONAL for p in own)
    needed = [p for p in plain if p.default is kinds.empty]
    if len(needed) > rank or (len(plain) < rank and not rest):
        takes = f"{len(plain)} indices"
        raise Invalid(f"the function of {name} takes {takes}, its shape has {rank} axes")
    return [p.name for p in plain[:rank]] + [f"i{k}" for k in range(len(plain), rank)]


def _computed(dims: tuple[Dim, ...], axes: tuple[IterVar, ...], body: Operand, name: str) -> Tensor:
    v = lifted(body)
    t = Tensor(name, dims, v.dtype)
    t.axes, t.body = tuple(a.sym for a in axes), v
    over = body.axes if isinstance(body, Reduction) else ()
    t.op = Operation(t, axes, over)
    own = {a.sym for a in axes}
    lost = sorted(AXES[s] for s in v.symbols() - own if s in AXES)
    if lost:
        raise Invalid(
            f"{name} mentions {', '.join(lost)}, which is no axis of it",
            hint="pass a reduction axis to te.sum(…, axis=k)",
        )
    return t


def require_inside(name: str, body: E.Value) -> None:
    """No read that is surely outside its tensor, other than one that a condition guards."""
    stack, seen = [body], {id(body)}
    while stack:
        v = stack.pop()
        if isinstance(v, E.Load) and isinstance(v.source, E.Tensor):
            never = builtins.any(_is_empty(x) for i in v.index for x in D.symbols(i))
            for k, (i, d) in enumerate(zip(v.index, v.source.shape, strict=True)):
                if never:
                    continue  # an axis without points reads nothing
                least, most = D.bounds(i) if _is_linear(i) else (0, 0)
                if least < 0 or (isinstance(d, int) and most >= d and d > 0):
                    where = f"{least if least < 0 else most} of axis {k}, which has {d}"
                    raise Invalid(
                        f"{name} reads {v.source.name} at {where}",
                        hint="guard the read with te.if_then_else(condition, read, other)",
                    )
        guarded = isinstance(v, E.Fn) and v.name == "select"
        for x in v.args[:1] if guarded else v.args:
            if id(x) not in seen:
                seen.add(id(x))
                stack.append(x)


def _is_empty(x: D.Sym) -> bool:
    return x.hi is not None and E.extent(x) == 0


def _is_linear(x: Dim) -> bool:
    """Sums of variables alone: their bounds are reached."""
    atoms = [a for mono, _ in x.terms for a in mono] if isinstance(x, D.Int) else []
    simple = builtins.all(isinstance(a, D.Sym) for a in atoms)
    return simple and len(set(atoms)) == len(atoms)


class Reduction(Expr):
    """A reduction and the user's axes that it runs over."""

    __slots__ = ("axes",)

    def __init__(self, value: E.Value, axes: tuple[IterVar, ...]) -> None:
        super().__init__(value)
        self.axes = axes


def reduction_axes(axis: Axes) -> tuple[IterVar, ...]:
    """One axis or several, each of them a reduction axis and no other."""
    axes: tuple[IterVar, ...] = (axis,) if isinstance(axis, IterVar) else tuple(axis)
    wrong = [a for a in axes if not isinstance(a, IterVar) or a.kind != "reduce"]
    if wrong or not axes:
        what = f"{wrong[0]!r} is not a reduction axis" if wrong else "there is no axis to reduce"
        raise Invalid(what, hint="make one with te.reduce_axis((0, n), name='k')")
    if len({id(a) for a in axes}) != len(axes):
        raise Invalid(f"an axis of {', '.join(a.name for a in axes)} is reduced twice")
    return axes


def _reduced(combine: str, x: Operand, axis: Axes, where: Operand | None) -> Reduction:
    axes = reduction_axes(axis)
    v = lifted(x)
    if combine in ("and", "or") and not v.dtype.is_bool:
        raise Invalid(f"te.all and te.any reduce conditions, not {v.dtype}")
    if where is not None:
        v = applied("select", lifted(where), v, identity(combine, v.dtype)).value
    return Reduction(E.make_reduce(combine, tuple(a.sym for a in axes), v), axes)


def sum(expr: Operand, axis: Axes, where: Operand | None = None) -> Expr:
    """The sum over reduction axes, of the points where `where` holds."""
    return _reduced("add", expr, axis, where)


def prod(expr: Operand, axis: Axes, where: Operand | None = None) -> Expr:
    """The product over reduction axes."""
    return _reduced("mul", expr, axis, where)


def max(expr: Operand, axis: Any, where: Operand | None = None) -> Expr:
    """The greatest over reduction axes, or of two scalars. NaN wins."""
    return _extreme("max", expr, axis, where)


def min(expr: Operand, axis: Any, where: Operand | None = None) -> Expr:
    """The least over reduction axes, or of two scalars. NaN wins."""
    return _extreme("min", expr, axis, where)


def _extreme(name: str, expr: Operand, axis: Any, where: Operand | None) -> Expr:
    reduces = isinstance(axis, (tuple, list))
    if reduces or (isinstance(axis, IterVar) and axis.kind == "reduce"):
        return _reduced(name, expr, axis, where)
    return binary(name, expr, axis)


def all(*conditions: Operand, axis: Axes | None = None) -> Expr:
    """Do all of the conditions hold; with `axis`, does one hold at every point."""
    return _logical("and", conditions, axis)


def any(*conditions: Operand, axis: Axes | None = None) -> Expr:
    """Does one of the conditions hold; with `axis`, does one hold at some point."""
    return _logical("or", conditions, axis)


def _logical(combine: str, conditions: tuple[Operand, ...], axis: Axes | None) -> Expr:
    if not conditions:
        raise Invalid("there is no condition", hint="write te.all(i >= 1, i < n)")
    wrong = [c for c in map(lifted, conditions) if not c.dtype.is_bool]
    if wrong:
        raise Invalid(f"a condition is bool, not {wrong[0].dtype}", hint="compare, as in x > 0")
    out = Expr(lifted(conditions[0]))
    for c in conditions[1:]:
        out = binary(combine, out, c)
    return out if axis is None else _reduced(combine, out, axis, None)
