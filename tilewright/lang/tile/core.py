"""The functions of the language, as kernels call them.

All take tensors, constants and Python numbers, give tensors, and work with whatever builder is in
force. What they mean is in semantic.py, shapes.py, memory.py and products.py.
"""

from __future__ import annotations

import builtins
from typing import Any

from tilewright.base.errors import Invalid
from tilewright.lang.tile import promote, semantic, shapes
from tilewright.lang.tile.ir import TileType, Value
from tilewright.lang.tile.memory import (
    atomic_add,
    atomic_and,
    atomic_cas,
    atomic_max,
    atomic_min,
    atomic_or,
    atomic_xchg,
    atomic_xor,
    load,
    store,
)
from tilewright.lang.tile.semantic import PropagateNan
from tilewright.lang.tile.shapes import (
    arange,
    broadcast,
    broadcast_to,
    cast,
    cat,
    expand_dims,
    full,
    item,
    join,
    permute,
    reshape,
    split,
    trans,
    view,
)
from tilewright.lang.tile.tensor import (
    builtin,
    condition,
    member,
    operand,
    range,
    slice,
    static_range,
    tensor,
    tuple,
    value,
    wrap,
)
from tilewright.lang.tile.types import (
    MAX_NUMEL,
    base_type,
    base_value,
    bfloat16,
    block_type,
    const,
    constexpr,
    constexpr_type,
    dtype,
    float8e4b8,
    float8e4b15,
    float8e4nv,
    float8e5,
    float8e5b16,
    float16,
    float32,
    float64,
    get_int_dtype,
    int1,
    int8,
    int16,
    int32,
    int64,
    pi32_t,
    pointer_type,
    slice_type,
    tuple_type,
    uint8,
    uint16,
    uint32,
    uint64,
    unwrap,
    void,
)

TRITON_MAX_TENSOR_NUMEL = MAX_NUMEL


@builtin
def to_tensor(x: Any) -> tensor:
    """A number as a tensor: int32, uint32, int64 or uint64, the first that holds it; float32 unless
    it needs more range."""
    return x if isinstance(x, tensor) else wrap(value(x))


@builtin
def program_id(axis: Any) -> tensor:
    """Which program this is along an axis of the grid."""
    return _of_grid("program_id", axis)


@builtin
def num_programs(axis: Any) -> tensor:
    """How many programs there are along an axis of the grid."""
    return _of_grid("num_programs", axis)


def _of_grid(name: str, axis: Any) -> tensor:
    axis = unwrap(axis)
    if axis not in (0, 1, 2):
        raise Invalid(f"{name}({axis})", hint="a grid has the axes 0, 1 and 2")
    return wrap(promote.emit(name, (), TileType(int32.ir), {"axis": axis}))


@builtin
def where(condition: Any, x: Any, y: Any) -> tensor:
    """x where the condition holds, y elsewhere. Both are computed."""
    return wrap(semantic.where(operand(condition), operand(x), operand(y)), x)


@builtin
def add(x: Any, y: Any, sanitize_overflow: Any = True) -> tensor:
    return wrap(semantic.add(operand(x), operand(y)))


@builtin
def sub(x: Any, y: Any, sanitize_overflow: Any = True) -> tensor:
    return wrap(semantic.sub(operand(x), operand(y)))


@builtin
def mul(x: Any, y: Any, sanitize_overflow: Any = True) -> tensor:
    return wrap(semantic.mul(operand(x), operand(y)))
