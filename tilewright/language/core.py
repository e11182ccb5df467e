"""`tl.core`: the functions and types of the language, and what its parts are made of."""

from tilewright.lang.tile.language.core import *  # noqa: F403
from tilewright.lang.tile.language.core import (  # noqa: F401
    CONSTEXPR_0,
    MAX_NUMEL,
    TensorDescriptor,
    _aggregate,
    _promote_bfloat16_to_float32,
    _reduce_with_indices,
    aggregate,
    aggregate_replace,
    base_type,
    base_value,
    block_pointer,
    builtin,
    builtin_max,
    builtin_min,
    extern_elementwise,
    get_int_dtype,
    item,
    member,
    operand,
    slice_type,
    tensor_descriptor_base,
    unwrap,
    value,
    wrap,
)
