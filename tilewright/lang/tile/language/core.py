"""The functions of the language, as kernels call them: one place to find them all.

All take tensors, constants and Python numbers, give tensors, and work with whatever builder is
current. Types and constants are in types.py, values in tensor.py, the rules in promote.py and
semantic.py.
"""

# ruff: noqa: F401  (names are gathered here for others)

from __future__ import annotations

from typing import Any

from tilewright.base.errors import Invalid
from tilewright.lang.tile.ir import (
    TileType,
)
from tilewright.lang.tile.language import promote
from tilewright.lang.tile.language.advice import (
    assume,
    atomic_poll,
    debug_barrier,
    device_assert,
    device_print,
    expect_zero,
    extern_elementwise,
    inline_asm_elementwise,
    max_constancy,
    max_contiguous,
    multiple_of,
    static_assert,
    static_print,
)
from tilewright.lang.tile.language.aggregates import (
    aggregate,
    aggregate_replace,
)
from tilewright.lang.tile.language.descriptors import (
    TensorDescriptor,
    advance,
    block_pointer,
    load_tensor_descriptor,
    make_block_ptr,
    make_tensor_descriptor,
    store_tensor_descriptor,
    tensor_descriptor,
    tensor_descriptor_base,
    tensor_descriptor_type,
)
from tilewright.lang.tile.language.elementwise import (
    abs,
    add,
    builtin_max,
    builtin_min,
    ceil,
    clamp,
    cos,
    div_rn,
    erf,
    exp,
    exp2,
    fdiv,
    floor,
    fma,
    log,
    log2,
    maximum,
    minimum,
    mul,
    rsqrt,
    sin,
    sqrt,
    sqrt_rn,
    sub,
    umulhi,
    where,
)
from tilewright.lang.tile.language.memory import (
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
from tilewright.lang.tile.language.products import (
    dot,
    dot_scaled,
)
from tilewright.lang.tile.language.reductions import (
    _promote_bfloat16_to_float32,
    _reduce_with_indices,
    associative_scan,
    histogram,
    map_elementwise,
    reduce,
)
from tilewright.lang.tile.language.semantic import (
    PropagateNan,
)
from tilewright.lang.tile.language.shapes import (
    arange,
    broadcast,
    broadcast_to,
    cast,
    cat,
    expand_dims,
    full,
    gather,
    item,
    join,
    permute,
    reshape,
    split,
    trans,
    view,
)
from tilewright.lang.tile.language.tensor import (
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
from tilewright.lang.tile.language.types import (
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

CONSTEXPR_0 = constexpr(0)  # libraries name it for their defaults

# What `tl` has. What else stands here is for those who write parts of the language.
__all__ = [
    "TRITON_MAX_TENSOR_NUMEL",
    "PropagateNan",
    "abs",
    "add",
    "advance",
    "arange",
    "associative_scan",
    "assume",
    "atomic_add",
    "atomic_and",
    "atomic_cas",
    "atomic_max",
    "atomic_min",
    "atomic_or",
    "atomic_poll",
    "atomic_xchg",
    "atomic_xor",
    "bfloat16",
    "block_type",
    "broadcast",
    "broadcast_to",
    "cast",
    "cat",
    "ceil",
    "clamp",
    "condition",
    "const",
    "constexpr",
    "constexpr_type",
    "cos",
    "debug_barrier",
    "device_assert",
    "device_print",
    "div_rn",
    "dot",
    "dot_scaled",
    "dtype",
    "erf",
    "exp",
    "exp2",
    "expand_dims",
    "expect_zero",
    "fdiv",
    "float8e4b8",
    "float8e4b15",
    "float8e4nv",
    "float8e5",
    "float8e5b16",
    "float16",
    "float32",
    "float64",
    "floor",
    "fma",
    "full",
    "gather",
    "histogram",
    "inline_asm_elementwise",
    "int1",
    "int8",
    "int16",
    "int32",
    "int64",
    "join",
    "load",
    "load_tensor_descriptor",
    "log",
    "log2",
    "make_block_ptr",
    "make_tensor_descriptor",
    "map_elementwise",
    "max_constancy",
    "max_contiguous",
    "maximum",
    "minimum",
    "mul",
    "multiple_of",
    "num_programs",
    "permute",
    "pi32_t",
    "pointer_type",
    "program_id",
    "range",
    "reduce",
    "reshape",
    "rsqrt",
    "sin",
    "slice",
    "split",
    "sqrt",
    "sqrt_rn",
    "static_assert",
    "static_print",
    "static_range",
    "store",
    "store_tensor_descriptor",
    "sub",
    "tensor",
    "tensor_descriptor",
    "tensor_descriptor_type",
    "to_tensor",
    "trans",
    "tuple",
    "tuple_type",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "umulhi",
    "view",
    "void",
    "where",
]

TRITON_MAX_TENSOR_NUMEL = MAX_NUMEL
_aggregate = aggregate


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
        raise Invalid(f"{name} axis must be 0, 1, or 2 but got {axis}")
    return wrap(promote.emit(name, (), TileType(int32.ir), {"axis": axis}))
