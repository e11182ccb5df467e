"""Tensors in requests and responses: JSON, and the bytes of a safetensors file.

Arrays are as a package takes them: floats that numpy lacks (bf16) are their bits.
"""

from __future__ import annotations

import binascii
import json
import math
import struct
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.ir.types import DTYPES, DType

RAW = "application/octet-stream"

# The names of dtypes in files of safetensors.
_LONG = {
    "f64": "F64",
    "f32": "F32",
    "f16": "F16",
    "bf16": "BF16",
    "i64": "I64",
    "i32": "I32",
    "i16": "I16",
    "i8": "I8",
    "u64": "U64",
    "u32": "U32",
    "u16": "U16",
    "u8": "U8",
    "bool": "BOOL",
    "f8e4m3": "F8_E4M3",
    "f8e5m2": "F8_E5M2",
}
_SHORT = {long: short for short, long in _LONG.items()}
_LENGTH = struct.Struct("<Q")

Arrays = dict[str, np.ndarray]


# ---- JSON


def from_json(body: bytes, dtypes: Mapping[str, str]) -> tuple[Arrays, bool]:
    """The arrays of a request, and whether it asks for results in base64."""
    try:
        found = _decoder.decode(body.decode())
    except (ValueError, RecursionError) as problem:
        raise Invalid(f"the body is not JSON: {problem}") from None
    if not isinstance(found, dict) or not isinstance(found.get("inputs"), dict):
        raise Invalid('the body is not {"inputs": {name: tensor, …}}')
    unknown = found.keys() - {"inputs", "encoding"}
    if unknown:
        raise Invalid(f"the body has {min(unknown)!r}, and only 'inputs' and 'encoding' are known")
    encoding = found.get("encoding", "lists")
    if encoding not in ("lists", "base64"):
        raise Invalid(f"encoding is {encoding!r}, and not 'lists' or 'base64'")
    arrays = {}
    for name, value in found["inputs"].items():
        dtype = dtypes.get(name)
        if dtype is None:
            raise Invalid(_no_such(name, dtypes))
        made = _from_base64 if isinstance(value, dict) else _from_lists
        arrays[name] = made(name, value, DTYPES[dtype])
    return arrays, encoding == "base64"


def _no_such(name: str, known: Mapping[str, str]) -> str:
    return f"there is no input {name!r}: the inputs are {', '.join(known)}"


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a number of JSON; send the tensor as base64")


_decoder = json.JSONDecoder(parse_constant=_no_constant)


def _from_lists(name: str, value: Any, dtype: DType) -> np.ndarray:
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):  # lists of different lengths, a number beyond 64 bits
        raise Invalid(f"{name} is not lists of equal lengths, of numbers of {dtype}") from None
    if array.size == 0:
        array = array.astype(dtype.numpy)  # an empty list says nothing of its numbers
    fits = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}[dtype.kind]
    if array.dtype.kind not in fits:
        raise Invalid(f"{name} is not lists of equal lengths, of numbers of {dtype}")
    if dtype.is_int and array.size:
        if int(array.min()) < dtype.lowest or int(array.max()) > dtype.highest:
            raise Invalid(f"{name} has a number that {dtype} cannot hold")
    with np.errstate(over="ignore"):
        array = array.astype(dtype.numpy)
    if dtype.format is not None and array.dtype != dtype.memory:
        return dtype.format.encode(array)
    return array


def _from_base64(name: str, value: Mapping[str, Any], dtype: DType) -> np.ndarray:
    if value.keys() != {"shape", "dtype", "data"}:
        raise Invalid(f'{name} is not a list or {{"shape": […], "dtype": "…", "data": "base64"}}')
    if value["dtype"] != dtype.name:
        raise Invalid(f"{name} is {value['dtype']}, and {dtype} is needed")
    try:
        raw = b64decode(value["data"], validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise Invalid(f"the data of {name} are not base64") from None
    return _viewed(name, raw, dtype, value["shape"])


def _viewed(name: str, raw: bytes | memoryview, dtype: DType, shape: Any) -> np.ndarray:
    plain = isinstance(shape, list) and len(shape) <= 32
    if not plain or not all(type(n) is int and 0 <= n < 1 << 40 for n in shape):
        raise Invalid(f"the shape of {name} is not a list of sizes: {shape!r:.80}")
    needed = math.prod(shape) * dtype.bytes
    if len(raw) != needed:
        raise Invalid(
            f"{name} has {len(raw)} bytes, and {dtype}[{','.join(map(str, shape))}] has {needed}"
        )
    array = np.frombuffer(raw, dtype.memory).reshape(shape)
    if dtype.is_bool and array.size and array.view(np.uint8).max() > 1:
        raise Invalid(f"{name} has a byte that is neither 0 nor 1, and its dtype is bool")
    return array if array.flags.aligned else array.copy()


def to_json(outputs: Mapping[str, np.ndarray], dtypes: Mapping[str, str], base64: bool) -> bytes:
    made = _as_base64 if base64 else _as_lists
    found = {name: made(x, DTYPES[dtypes[name]]) for name, x in outputs.items()}
    return json.dumps({"outputs": found}, separators=(",", ":"), allow_nan=False).encode()


def _as_base64(x: np.ndarray, dtype: DType) -> dict[str, Any]:
    data = b64encode(x.tobytes()).decode("ascii")
    return {"shape": list(x.shape), "dtype": dtype.name, "data": data}


def _as_lists(x: np.ndarray, dtype: DType) -> Any:
    if dtype.format is not None and x.dtype != dtype.numpy:
        x = dtype.format.decode(x)
    lists = x.tolist()
    if dtype.is_float and not np.isfinite(x).all():
        return _named(lists)
    return lists


def _named(x: Any) -> Any:
    """With words in place of what JSON has no numbers for."""
    if isinstance(x, list):
        return [_named(item) for item in x]
    if math.isfinite(x):
        return x
    return "NaN" if math.isnan(x) else "Infinity" if x > 0 else "-Infinity"


# ---- safetensors


def from_raw(body: bytes, dtypes: Mapping[str, str]) -> Arrays:
    """The arrays of a body that is a safetensors file: the length of a header in 8 bytes, the
    header in JSON, the tensors' bytes."""
    if len(body) < _LENGTH.size:
        raise Invalid("the body does not begin with the 8 bytes of its header's length")
    (length,) = _LENGTH.unpack_from(body)
    start = _LENGTH.size + length
    if start > len(body):
        raise Invalid(f"the header is to have {length} bytes, and the body ends before")
    try:
        header = _decoder.decode(body[_LENGTH.size : start].decode())
    except (ValueError, RecursionError) as problem:
        raise Invalid(f"the header is not JSON: {problem}") from None
    if not isinstance(header, dict):
        raise Invalid('the header is not {name: {"dtype", "shape", "data_offsets"}, …}')
    data = memoryview(body)[start:]
    arrays: Arrays = {}
    used = 0
    for name, about in header.items():
        if name == "__metadata__":
            continue
        if name not in dtypes:
            raise Invalid(_no_such(name, dtypes))
        if not isinstance(about, dict) or about.keys() != {"dtype", "shape", "data_offsets"}:
            raise Invalid(f"the header of {name} is not dtype, shape and data_offsets")
        dtype = DTYPES[dtypes[name]]
        if about["dtype"] != _LONG[dtype.name]:
            given = _SHORT.get(str(about["dtype"]), about["dtype"])
            raise Invalid(f"{name} is {given}, and {dtype} is needed")
        first, last = _offsets(name, about["data_offsets"], len(data))
        arrays[name] = _viewed(name, data[first:last], dtype, about["shape"])
        used += last - first
    if used != len(data):
        raise Invalid(f"the tensors have {used} bytes, and {len(data)} follow the header")
    return arrays


def _offsets(name: str, given: Any, size: int) -> tuple[int, int]:
    if isinstance(given, list) and len(given) == 2 and all(type(n) is int for n in given):
        if 0 <= given[0] <= given[1] <= size:
            return given[0], given[1]
    raise Invalid(f"the data_offsets of {name} are not two places in the {size} bytes of data")


def to_raw(tensors: Mapping[str, np.ndarray], dtypes: Mapping[str, str]) -> bytes:
    header: dict[str, Any] = {}
    parts: list[bytes] = []
    at = 0
    for name, x in tensors.items():
        raw = x.tobytes()
        header[name] = {
            "dtype": _LONG[dtypes[name]],
            "shape": list(x.shape),
            "data_offsets": [at, at + len(raw)],
        }
        parts.append(raw)
        at += len(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the tensors begin at a multiple of 8 bytes
    return b"".join((_LENGTH.pack(len(text)), text, *parts))


def names_of(tensors: Sequence[Any]) -> dict[str, str]:
    """The dtypes of a package's inputs or outputs by name."""
    return {t.name: t.dtype for t in tensors}
