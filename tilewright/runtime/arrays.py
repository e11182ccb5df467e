"""Arrays of any library as memory, and memory as arrays: DLPack in and out, numpy where it can.

`read` looks at numpy arrays directly and at everything else through `__dlpack__`. Results are numpy
arrays; for dtypes that numpy lacks they are `Array`s, which other libraries take by `__dlpack__`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.ir.types import DTYPES, LONG_NAMES, DType, from_memory

# ---- DLPack's structures


class _Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32),
        ("device_number", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("type", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_CPU = 1
_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6
_PLAIN = b"dltensor"
_python = ctypes.pythonapi
# Capsules by address, without a reference: one that is being freed must not get a new one.
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _python)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _python)
)
_new_capsule = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)(("PyCapsule_New", _python))


@dataclass(frozen=True)
class Memory:
    """Where an array lies. `strides` are in elements; a complex one has two of `dtype` per element.
    `owner` keeps the memory alive."""

    address: int
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    paired: bool
    owner: object

    @property
    def size(self) -> int:
        """The number of elements."""
        n = 1
        for d in self.shape:
            n *= d
        return n


def read(x: Any, name: str) -> Memory:
    """The memory of an array in this machine's main memory; a sentence for anything else."""
    if isinstance(x, np.ndarray):
        return _of_numpy(x, name)
    if not hasattr(x, "__dlpack__"):
        raise Invalid(
            f"{name} is a {type(x).__name__}, not an array",
            hint="pass a numpy array, or any array that has __dlpack__",
        )
    try:
        capsule = x.__dlpack__()
    except (BufferError, RuntimeError, TypeError) as problem:
        raise Invalid(f"{name} cannot be read: {problem}") from None
    if not _is_valid(id(capsule), _PLAIN):
        raise Invalid(f"{name}: {type(x).__name__} gives something else than DLPack's tensor")
    t = _Managed.from_address(_pointer(id(capsule), _PLAIN)).tensor
    if t.device != _CPU:
        raise Invalid(f"{name} is not in main memory", hint="copy it to the CPU first")
    shape = tuple(t.shape[k] for k in range(t.rank))
    strides = tuple(t.strides[k] for k in range(t.rank)) if t.strides else contiguous(shape)
    dtype, paired = _dtype_of(t.type, name)
    # An unused capsule frees the tensor with itself: it is what keeps the memory.
    return Memory((t.data or 0) + t.offset, dtype, shape, strides, paired, (capsule, x))


def _of_numpy(x: np.ndarray, name: str) -> Memory:
    paired = x.dtype.kind == "c"
    item = x.dtype.itemsize
    long = f"float{4 * item}" if paired else x.dtype.name
    if long not in LONG_NAMES:
        raise Invalid(f"{name} is of {x.dtype}, which no program takes")
    dtype = DTYPES[LONG_NAMES[long]]
    odd = any(s % item or s < 0 for s in x.strides)
    if odd or not x.flags.aligned or not x.dtype.isnative:
        x = np.array(x, x.dtype.newbyteorder("="), order="C")
    strides = tuple(s // item for s in x.strides)
    return Memory(x.ctypes.data, dtype, x.shape, strides, paired, x)


def _dtype_of(t: _Type, name: str) -> tuple[DType, bool]:
    if t.code == _COMPLEX:
        found = DTYPES.get(f"f{t.bits // 2}")
    elif t.code == _BOOL:
        found = DTYPES["bool"]
    else:
        kind = {_INT: "i", _UINT: "u", _FLOAT: "f", _BFLOAT: "bf"}.get(t.code, "?")
        found = DTYPES.get(f"{kind}{t.bits}")
    if found is None or t.lanes != 1:
        raise Invalid(f"{name} is of a dtype that no program takes (DLPack's {t.code}, {t.bits})")
    return found, t.code == _COMPLEX


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def item_type(dtype: DType, paired: bool) -> np.dtype:
    """How numpy sees an element in memory: what it lacks as unsigned codes."""
    return np.dtype(f"c{2 * dtype.bytes}") if paired else dtype.memory


def view(m: Memory) -> np.ndarray:
    """Memory as an array of numpy's, which does not own it."""
    item = item_type(m.dtype, m.paired)
    if m.size == 0:
        return np.empty(m.shape, item)
    reach = 1 + sum((n - 1) * s for n, s in zip(m.shape, m.strides, strict=True))
    raw = (ctypes.c_char * (reach * item.itemsize)).from_address(m.address)
    flat = np.frombuffer(memoryview(raw), item)
    return part_of(flat, m.shape, m.strides)


def strided(shape: Sequence[int], strides: Sequence[int], dtype: DType, paired: bool) -> np.ndarray:
    """Fresh memory for an array with these strides (in elements)."""
    item = item_type(dtype, paired)
    if 0 in shape:
        return np.empty(shape, item)
    reach = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    return part_of(np.empty(reach, item), shape, strides)


def part_of(
    flat: np.ndarray, shape: Sequence[int], strides: Sequence[int], first: int = 0
) -> np.ndarray:
    """Elements of a flat array, from one of them on; `flat` is the base of what is returned."""
    steps = [s * flat.itemsize for s in strides]
    return np.ndarray(tuple(shape), flat.dtype, flat, first * flat.itemsize, steps)


def in_layout(m: Memory, strides: Sequence[int]) -> Memory:
    """The same elements with these strides: a copy where it has others."""
    axes = zip(m.shape, m.strides, strides, strict=True)
    aligned = m.address % max(1, m.dtype.bytes) == 0
    if m.size == 0 or (aligned and all(n < 2 or a == b for n, a, b in axes)):
        return m
    copy = strided(m.shape, strides, m.dtype, m.paired)
    copy[...] = view(m)
    return Memory(copy.ctypes.data, m.dtype, m.shape, tuple(strides), m.paired, copy)


# ---- results

_codes = {"f": _FLOAT, "i": _INT, "u": _UINT, "b": _BOOL}
_held: dict[int, object] = {}  # tensors that were exported, by the address of the structure


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _delete(managed: int) -> None:
    _held.pop(managed, None)


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _drop(capsule: int) -> None:
    """The destructor of an unused capsule: it frees the tensor, too."""
    if _is_valid(capsule, _PLAIN):
        _held.pop(_pointer(capsule, _PLAIN), None)


class Array:
    """An array of a dtype that numpy lacks, such as bfloat16. `torch.from_dlpack` and the like take
    it without a copy; `numpy.asarray` gives it as float32."""

    def __init__(self, dtype: DType, codes: np.ndarray) -> None:
        self.dtype, self.codes = dtype, codes

    @property
    def shape(self) -> tuple[int, ...]:
        return self.codes.shape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError(f"{self.dtype} becomes an array of numpy's by a copy only")
        return from_memory(self.codes, self.dtype).astype(dtype or np.float32)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU, 0

    def __dlpack__(self, **_: Any) -> Any:
        rank, item = self.codes.ndim, self.codes.itemsize
        sizes = (ctypes.c_int64 * max(1, rank))(*self.codes.shape)
        steps = (ctypes.c_int64 * max(1, rank))(*(s // item for s in self.codes.strides))
        code = _BFLOAT if self.dtype.name == "bf16" else _codes[self.dtype.kind]
        kind = _Type(code, self.dtype.bits, 1)
        tensor = _Tensor(self.codes.ctypes.data, _CPU, 0, rank, kind, sizes, steps, 0)
        managed = _Managed(tensor, None, ctypes.cast(_delete, ctypes.c_void_p))
        where = ctypes.addressof(managed)
        _held[where] = (managed, sizes, steps, self.codes)
        return _new_capsule(where, _PLAIN, ctypes.cast(_drop, ctypes.c_void_p))

    def __repr__(self) -> str:
        return f"Array({self.dtype}, {self.shape})"


def result(codes: np.ndarray, dtype: DType, paired: bool) -> np.ndarray | Array:
    """What a caller gets for memory that holds a result."""
    if paired or dtype.memory == dtype.numpy:
        return codes
    return Array(dtype, codes)
