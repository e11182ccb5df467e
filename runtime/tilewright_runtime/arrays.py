"""Arrays of any library as memory, and memory as arrays.

Inputs are numpy's arrays, objects with `__dlpack__`, or buffers (`memoryview`, `array.array`).
Results are numpy's arrays, or memoryviews where numpy is not installed.
"""

from __future__ import annotations

import ctypes
import math
import sys

from tilewright_runtime.sentences import PackageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# name: bytes, numpy's text, the letter of a buffer. Floats that numpy or buffers lack are their
# bits.
DTYPES: dict[str, tuple[int, str, Any]] = {
    "f64": (8, "<f8", "d"),
    "f32": (4, "<f4", "f"),
    "f16": (2, "<f2", "H"),
    "bf16": (2, "<u2", "H"),
    "i64": (8, "<i8", "q"),
    "i32": (4, "<i4", "i"),
    "i16": (2, "<i2", "h"),
    "i8": (1, "|i1", "b"),
    "u64": (8, "<u8", "Q"),
    "u32": (4, "<u4", "I"),
    "u16": (2, "<u2", "H"),
    "u8": (1, "|u1", "B"),
    "bool": (1, "|b1", "?"),
}
_OF_NUMPY = {text: name for name, (_, text, _) in DTYPES.items() if name != "bf16"}
_KINDS = {"b": "i", "h": "i", "i": "i", "l": "i", "q": "i", "n": "i"}
_KINDS |= {"B": "u", "H": "u", "I": "u", "L": "u", "Q": "u", "N": "u"}
_KINDS |= {"e": "f", "f": "f", "d": "f"}
_DLPACK = {0: "i", 1: "u", 2: "f", 4: "bf", 6: "bool"}
_HOST = (1, 3)  # DLPack's numbers of the processor's memory, and of such that a GPU sees too


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32),
        ("device_number", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("kind", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    ]


class _Buffer(ctypes.Structure):
    """Python's `Py_buffer`."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("owner", ctypes.py_object),
        ("bytes", ctypes.c_ssize_t),
        ("item", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("rank", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = (ctypes.py_object, ctypes.c_char_p)
_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = (ctypes.py_object, ctypes.POINTER(_Buffer), ctypes.c_int)
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = (ctypes.POINTER(_Buffer),)
_release_buffer.restype = None


class Memory:
    """Where an input lies: contiguous, row-major, aligned to its elements. `owner` keeps it."""

    __slots__ = ("address", "dtype", "owner", "shape")

    def __init__(self, address: int, dtype: str, shape: tuple[int, ...], owner: object):
        self.address, self.dtype, self.shape, self.owner = address, dtype, shape, owner


def read(x: Any, name: str, wanted: str) -> Memory:
    """An array as memory; `wanted` is the dtype that is needed, to read bits by."""
    facts = getattr(x, "__array_interface__", None)
    if facts is not None:
        return _of_numpy(x, facts, wanted)
    if hasattr(x, "__dlpack__"):
        return _of_dlpack(x, name)
    try:
        view = memoryview(x)
    except TypeError:
        raise PackageError(
            "ARGUMENT", f"{name} is a {type(x).__name__}, and an array is needed"
        ) from None
    return _of_buffer(view, wanted)


def _of_numpy(x: Any, facts: dict[str, Any], wanted: str) -> Memory:
    dtype = _OF_NUMPY.get(facts["typestr"])
    if dtype is None:
        name = str(getattr(x, "dtype", facts["typestr"]))
        dtype = "bf16" if name == "bfloat16" else name
    elif dtype == "u16" and wanted == "bf16":
        dtype = wanted
    address, shape = facts["data"][0], facts["shape"]
    if facts.get("strides") is not None or (
        dtype in DTYPES and address % DTYPES[dtype][0] and 0 not in shape
    ):
        x = x.copy(order="C")
        address = x.__array_interface__["data"][0]
    return Memory(address, dtype, tuple(shape), x)


def _of_dlpack(x: Any, name: str) -> Memory:
    try:
        device = int(x.__dlpack_device__()[0])
        capsule = x.__dlpack__() if device in _HOST else None
    except (BufferError, RuntimeError, TypeError, ValueError) as problem:
        raise PackageError("ARGUMENT", f"{name} cannot be read: {problem}") from None
    if capsule is None:
        raise PackageError(
            "ARGUMENT", f"{name} is not in the processor's memory: copy it there first"
        )
    t = _Tensor.from_address(_pointer_of(capsule, b"dltensor"))
    kind = _DLPACK.get(t.kind, f"dtype {t.kind} of DLPack, ")
    dtype = "bool" if kind == "bool" else f"{kind}{t.bits}"
    if t.lanes != 1:
        dtype = f"{dtype}x{t.lanes}"
    shape = tuple(t.shape[k] for k in range(t.rank))
    address = (t.data or 0) + t.offset
    if dtype not in DTYPES:
        return Memory(address, dtype, shape, capsule)
    item = DTYPES[dtype][0]
    plain = _contiguous(shape)
    strides = tuple(t.strides[k] for k in range(t.rank)) if t.strides else plain
    if 0 in shape or (_same(shape, strides, plain) and address % item == 0):
        return Memory(address, dtype, shape, capsule)
    copy = bytearray(math.prod(shape) * item)
    start = _address(copy)
    _pack(start, address, shape, strides, item)
    return Memory(start, dtype, shape, copy)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))


def _same(shape: tuple[int, ...], a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(n == 1 or s == t for n, s, t in zip(shape, a, b))


def _pack(to: int, source: int, shape: tuple[int, ...], strides: tuple[int, ...], item: int) -> int:
    """Copies an array with these strides, in elements, row by row; gives the end of the copy."""
    if _same(shape, strides, _contiguous(shape)):
        size = math.prod(shape) * item
        ctypes.memmove(to, source, size)
        return to + size
    for k in range(shape[0]):
        to = _pack(to, source + k * strides[0] * item, shape[1:], strides[1:], item)
    return to


class _Held:
    """A buffer that is released when nobody has it any more."""

    def __init__(self, view: memoryview):
        self.view = _Buffer()
        _get_buffer(view, ctypes.byref(self.view), 0)  # contiguous bytes

    def __del__(self) -> None:
        _release_buffer(ctypes.byref(self.view))


def _of_buffer(view: memoryview, wanted: str) -> Memory:
    letter = view.format.lstrip("@=<") if sys.byteorder == "little" else view.format
    kind = "bool" if letter == "?" else _KINDS.get(letter, "")
    dtype = "bool" if kind == "bool" else f"{kind}{8 * view.itemsize}" if kind else view.format
    if dtype == "u16" and wanted in ("bf16", "f16"):
        dtype = wanted
    shape = tuple(view.shape or ())
    if not view.c_contiguous:
        view = memoryview(view.tobytes())
    held = _Held(view)
    address = held.view.data or 0
    if address % view.itemsize and 0 not in shape:
        copy = bytearray(view)
        return Memory(_address(copy), dtype, shape, copy)
    return Memory(address, dtype, shape, held)


def _address(memory: bytearray) -> int:
    return ctypes.addressof(
        (ctypes.c_char * max(1, len(memory))).from_buffer(memory or bytearray(1))
    )


def _numpy_or_none() -> Any:
    """numpy, which takes longer to import than a package to load: only when a result is made."""
    try:
        import numpy
    except ImportError:
        return None
    return numpy


def empty(dtype: str, shape: tuple[int, ...]) -> tuple[int, Any]:
    """Memory for a result: its address, and the array."""
    item, text, letter = DTYPES[dtype]
    numpy = _numpy_or_none()
    if numpy is not None:
        array = numpy.empty(shape, text)
        return array.__array_interface__["data"][0], array
    memory = bytearray(max(1, math.prod(shape) * item))
    start = _address(memory)
    if 0 in shape:
        return start, memoryview(b"").cast(letter)
    return start, memoryview(memory).cast(letter, shape)


def copied(dtype: str, shape: tuple[int, ...], source: int) -> tuple[int, Any]:
    """The same, with elements that lie at an address."""
    address, array = empty(dtype, shape)
    ctypes.memmove(address, source, math.prod(shape) * DTYPES[dtype][0])
    return address, array
