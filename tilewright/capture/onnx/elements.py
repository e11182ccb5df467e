"""ONNX's element types: which dtype computes them, and how arrays get in and out.

Types of fewer than 8 bits, and the exponents of FLOAT8E8M0, have no dtype here: they are computed
by their value in a wider one (`Narrow`), and a cast rounds to what the type can hold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper

from tilewright.base.errors import Unsupported
from tilewright.ir.node import Node
from tilewright.ir.types import (
    DType,
    b1,
    bf16,
    f8e4b8,
    f8e4m3,
    f8e5b16,
    f8e5m2,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
)

DTYPE_OF: dict[int, DType] = {
    TensorProto.FLOAT: f32,
    TensorProto.DOUBLE: f64,
    TensorProto.FLOAT16: f16,
    TensorProto.BFLOAT16: bf16,
    TensorProto.INT64: i64,
    TensorProto.INT32: i32,
    TensorProto.INT16: i16,
    TensorProto.INT8: i8,
    TensorProto.UINT64: u64,
    TensorProto.UINT32: u32,
    TensorProto.UINT16: u16,
    TensorProto.UINT8: u8,
    TensorProto.BOOL: b1,
    TensorProto.FLOAT8E4M3FN: f8e4m3,
    TensorProto.FLOAT8E5M2: f8e5m2,
    TensorProto.FLOAT8E4M3FNUZ: f8e4b8,
    TensorProto.FLOAT8E5M2FNUZ: f8e5b16,
}
ELEMENT_OF = {d: code for code, d in DTYPE_OF.items()}


@dataclass(frozen=True)
class Whole:
    """An integer type of few bits."""

    dtype: DType
    lowest: int
    highest: int


# Types without a dtype of their own, by the dtype that holds their values.
WHOLE: dict[int, Whole] = {
    TensorProto.INT4: Whole(i8, -8, 7),
    TensorProto.UINT4: Whole(u8, 0, 15),
    TensorProto.INT2: Whole(i8, -2, 1),
    TensorProto.UINT2: Whole(u8, 0, 3),
}
HELD: dict[int, DType] = {
    **{code: w.dtype for code, w in WHOLE.items()},
    TensorProto.FLOAT4E2M1: f32,
    TensorProto.FLOAT8E8M0: f32,
}


@dataclass(frozen=True)
class Narrow:
    """A tensor of a type without a dtype: a node that holds its values, and ONNX's code of it."""

    node: Node
    element: int


def name_of(element: int) -> str:
    """As ONNX and its users call it: FLOAT, INT4, …"""
    known = TensorProto.DataType.values()
    return TensorProto.DataType.Name(element) if element in known else f"the type {element}"


def dtype_for(element: int) -> DType:
    """The dtype that holds values of an element type."""
    found = DTYPE_OF.get(element) or HELD.get(element)
    if found is None:
        raise Unsupported(
            f"tensors of {name_of(element)} have no native form",
            hint="numbers and booleans have; strings and complex numbers do not",
        )
    return found


def numpy_of(element: int) -> np.dtype:
    """The numpy dtype of arrays that users give and get."""
    return np.dtype(helper.tensor_dtype_to_np_dtype(element))


def element_of_array(array: np.ndarray) -> int:
    """ONNX's code of what an array holds; Unsupported where there is none."""
    try:
        return helper.np_dtype_to_tensor_dtype(array.dtype)
    except (ValueError, KeyError):
        raise Unsupported(f"arrays of {array.dtype} are no tensors of ONNX") from None


def values_of(array: np.ndarray, element: int) -> np.ndarray:
    """A user's array as the interpreter represents it."""
    dtype = dtype_for(element)
    return np.asarray(array).astype(dtype.numpy)


def to_user(values: np.ndarray, element: int) -> np.ndarray:
    """Memory that native code has filled, as an array for the user."""
    wanted = numpy_of(element)
    if values.dtype == wanted:
        return values
    if element in DTYPE_OF:  # codes of a float that numpy does not have
        return values.view(wanted)
    return values.astype(wanted)
