"""Operators over lists of tensors, as optimizers call them (`_foreach_add`), tensor by tensor; and
operators with a factor that is a number of the call, such as a learning rate, as products.

AOTAutograd has no decomposition for the former. Of the latter torch keeps a number as an input of
the graph only where it is an operand of a plain operator: otherwise it compiles again for each
value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

Function = Callable[..., Any]
_LISTS = ("List[Tensor]", "List[number]")
aten = torch.ops.aten


def for_each() -> dict[OpOverload, Function]:
    """Every operator over lists, for tables of decompositions."""
    found: dict[OpOverload, Function] = {}
    for schema in torch._C._jit_get_all_schemas():
        name = schema.name.removeprefix("aten::_foreach_")
        plain = not (name.endswith("_") or "out" in schema.overload_name)
        if name == schema.name or not plain:
            continue
        overload = getattr(getattr(aten, f"_foreach_{name}"), schema.overload_name or "default")
        one = _OTHERWISE.get(name) or getattr(torch, name, None)
        if one is not None:
            lists = [k for k, a in enumerate(schema.arguments) if str(a.type) in _LISTS]
            found[overload] = _each(one, frozenset(lists))
    return found


def _each(one: Function, lists: frozenset[int]) -> Function:
    """The operator for one tensor, for each; arguments at `lists` have one element for each."""

    def decomposed(*args: Any, **kwargs: Any) -> list[Any]:
        first = next(a for k, a in enumerate(args) if k in lists)
        return [
            one(*(a[k] if at in lists else a for at, a in enumerate(args)), **_of(kwargs, k))
            for k in range(len(first))
        ]

    return decomposed


def _of(kwargs: dict[str, Any], k: int) -> dict[str, Any]:
    return {name: x[k] if isinstance(x, (list, tuple)) else x for name, x in kwargs.items()}


def _fused(name: str) -> Function:
    """`addcmul` and `addcdiv`, whose factor is a number or one of the numbers in a tensor."""
    one, combine = getattr(torch, name), {"addcmul": torch.mul, "addcdiv": torch.div}[name]

    def fused(x: Any, a: Any, b: Any, value: Any = 1, scalars: Any = None) -> Any:
        value = value if scalars is None else scalars
        if isinstance(value, torch.Tensor):
            return x + value * combine(a, b)
        return one(x, a, b, value=value)

    return fused


def _norm(x: Any, ord: Any = 2, dtype: Any = None) -> Any:
    return torch.linalg.vector_norm(x, ord, dtype=dtype)


def _power_sum(x: Any, ord: Any = 2, dtype: Any = None) -> Any:
    return torch.sum(torch.abs(x) ** ord, dtype=dtype)


def _bound(of_tensors: Function, of_number: Function) -> Function:
    return lambda x, y: of_tensors(x, y) if isinstance(y, torch.Tensor) else of_number(x, y)


# Where the operator for one tensor has another name or other arguments.
_OTHERWISE: dict[str, Function] = {
    "addcmul": _fused("addcmul"),
    "addcdiv": _fused("addcdiv"),
    "norm": _norm,
    "powsum": _power_sum,
    "maximum": _bound(torch.maximum, torch.clamp_min),
    "minimum": _bound(torch.minimum, torch.clamp_max),
    "max": torch.amax,
    "zero": torch.zeros_like,
    "copy": lambda x, y, non_blocking=False: aten.copy(x, y, non_blocking),
}


def of_numbers(table: dict[Any, Function]) -> dict[OpOverload, Function]:
    """Operators with a factor beside their operands: where it is a number that is known at the call
    only, it is multiplied by; otherwise they stay as the table has them. Two of them are written
    out always, as eager computes them: torch has many more operators for them."""
    made = {
        aten.add.Tensor: lambda x, y, *, alpha: _wide(lambda a, b: a + b * alpha, x, y),
        aten.sub.Tensor: lambda x, y, *, alpha: _wide(lambda a, b: a - b * alpha, x, y),
        aten.addcdiv.default: lambda x, y, z, *, value: _wide(_plus_quotient(value), x, y, z),
    }
    unknown = {op: _where_unknown(one, table.get(op)) for op, one in made.items()}
    return unknown | {
        aten.addcmul.default: _of_floats(_addcmul, table.get(aten.addcmul.default)),
        aten.lerp.Scalar: _of_floats(_lerp, table.get(aten.lerp.Scalar)),
    }


def _addcmul(x: Any, y: Any, z: Any, *, value: Any = 1) -> Any:
    return _wide(_plus_product(value), x, y, z)


def _lerp(x: Any, y: Any, weight: Any) -> Any:
    """From the nearer end, where it is known which that is."""
    if not isinstance(weight, torch.SymFloat) and abs(weight) >= 0.5:
        return _wide(lambda a, b: b - (b - a) * (1 - weight), x, y)
    return _wide(lambda a, b: a + weight * (b - a), x, y)


def _of_floats(one: Function, otherwise: Function | None) -> Function:
    def decomposed(x: Any, *args: Any, **kwargs: Any) -> Any:
        if x.dtype.is_floating_point:
            return one(x, *args, **kwargs)
        return NotImplemented if otherwise is None else otherwise(x, *args, **kwargs)

    return decomposed


def _plus_product(value: Any) -> Function:
    if isinstance(value, (int, float)) and value == 1:
        return lambda a, b, c: a + b * c
    return lambda a, b, c: a + value * (b * c)


def _plus_quotient(value: Any) -> Function:
    return lambda a, b, c: a + value * (b / c)


def _wide(fn: Function, *xs: torch.Tensor) -> torch.Tensor:
    """Eager rounds to 16 bits once, in the end."""
    to = xs[0].dtype
    if to not in (torch.float16, torch.bfloat16) or any(x.dtype is not to for x in xs):
        return fn(*xs)
    return fn(*(x.to(torch.float32) for x in xs)).to(to)


def _where_unknown(one: Function, otherwise: Function | None) -> Function:
    def decomposed(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(x, torch.SymFloat) for x in kwargs.values()):
            return one(*args, **kwargs)
        return NotImplemented if otherwise is None else otherwise(*args, **kwargs)

    return decomposed
