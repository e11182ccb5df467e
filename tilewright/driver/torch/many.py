"""Hundreds of tensors at once: made in one allocation, or their addresses read, by native loops.

Torch takes more than a microsecond to make a tensor from Python, and a training step has hundreds
of them: what a forward graph keeps for its gradient, and the gradients. The loops call the C
functions that torch has for compiled code, which return a code where they fail.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._C._dynamo import guards

from tilewright.driver.weights.bound import find_places
from tilewright.llvm.objects import cached_object
from tilewright.runtime.library import Library
from tilewright.targets import host

ALIGN = 256  # bytes: a tensor of an allocation begins at a multiple of this
FEWEST = 8  # fewer tensors are not worth it
_ITEMS = 24  # where a list has the address of its items
TYPE = 8  # where an object has its type


def loads(base: str, *names: str) -> str:
    """Names for the words at an address, one after the other: `#` before one that is a number."""
    lines = []
    for k, name in enumerate(names):
        kind, plain = ("i64", name[1:]) if name[0] == "#" else ("ptr", name)
        lines.append(f"  %{plain}.at = getelementptr i64, ptr %{base}, i64 {k}")
        lines.append(f"  %{plain} = load {kind}, ptr %{plain}.at")
    return "\n".join(lines)


# `state`: functions, count and records. A record: which base, rank, sizes, strides, offset.
_MAKE = f"""
define ptr @tw_parts(ptr %state, ptr %bases) {{
entry:
  %made = alloca ptr
{loads("state", "part", "wrap", "delete", "new", "set", "#count", "records")}
  %list = call ptr %new(i64 %count)
  %none = icmp eq ptr %list, null
  br i1 %none, label %end, label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %next, %put ]
  %more = icmp ult i64 %k, %count
  br i1 %more, label %one, label %end
one:
  %first = mul i64 %k, 5
  %record = getelementptr i64, ptr %records, i64 %first
{loads("record", "#which", "#rank", "sizes", "strides", "#offset")}
  %base = getelementptr ptr, ptr %bases, i64 %which
  %code = call i32 %part(ptr %base, i64 %rank, ptr %sizes, ptr %strides, i64 %offset, ptr %made)
  %bad = icmp ne i32 %code, 0
  br i1 %bad, label %failed, label %put
put:
  %tensor = load ptr, ptr %made
  %object = call ptr %wrap(ptr %tensor)
  %deleted = call i32 %delete(ptr %tensor)
  %placed = call i32 %set(ptr %list, i64 %k, ptr %object)
  %next = add i64 %k, 1
  br label %loop
failed:
  ret ptr null
end:
  ret ptr %list
}}
"""
# `state`: functions, two types, count and records. A record: which object, how many strides, where
# they are. An empty list where an object is no tensor, lies otherwise, or has no memory.
_READ = f"""
define ptr @tw_addresses(ptr %state, ptr %objects) {{
entry:
  %found = alloca ptr
{
    loads(
        *("state", "tell", "stride", "new", "set", "number", "drop"),
        *("plain", "weight", "#count", "records"),
    )
}
  %list = call ptr %new(i64 %count)
  %none = icmp eq ptr %list, null
  br i1 %none, label %end, label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %next, %put ]
  %more = icmp ult i64 %k, %count
  br i1 %more, label %one, label %end
one:
  %first = mul i64 %k, 3
  %record = getelementptr i64, ptr %records, i64 %first
{loads("record", "#which", "#rank", "wanted")}
  %place = getelementptr ptr, ptr %objects, i64 %which
  %object = load ptr, ptr %place
  %kind.at = getelementptr i8, ptr %object, i64 {TYPE}
  %kind = load ptr, ptr %kind.at
  %is.plain = icmp eq ptr %kind, %plain
  %is.weight = icmp eq ptr %kind, %weight
  %known = or i1 %is.plain, %is.weight
  br i1 %known, label %look, label %other
look:
  %tensor = getelementptr i8, ptr %object, i64 TENSOR
  %code = call i32 %stride(ptr %tensor, ptr %found)
  %fine = icmp eq i32 %code, 0
  br i1 %fine, label %lies, label %other
lies:
  %strides = load ptr, ptr %found
  br label %axes
axes:
  %j = phi i64 [ 0, %lies ], [ %j.next, %same ]
  %j.more = icmp ult i64 %j, %rank
  br i1 %j.more, label %axis, label %where
axis:
  %now.at = getelementptr i64, ptr %strides, i64 %j
  %now = load i64, ptr %now.at
  %was.at = getelementptr i64, ptr %wanted, i64 %j
  %was = load i64, ptr %was.at
  %equal = icmp eq i64 %now, %was
  br i1 %equal, label %same, label %other
same:
  %j.next = add i64 %j, 1
  br label %axes
where:
  %told = call i32 %tell(ptr %tensor, ptr %found)
  %address = load i64, ptr %found
  %somewhere = icmp ne i64 %address, 0
  %clear = icmp eq i32 %told, 0
  %good = and i1 %somewhere, %clear
  br i1 %good, label %put, label %other
put:
  %value = call ptr %number(i64 %address)
  %placed = call i32 %set(ptr %list, i64 %k, ptr %value)
  %next = add i64 %k, 1
  br label %loop
other:
  call void %drop(ptr %list)
  %empty = call ptr %new(i64 0)
  ret ptr %empty
end:
  ret ptr %list
}}
"""

Form = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]  # shape, strides, dtype
Empty = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]


class Parts:
    """Tensors of given forms that lie in one allocation for each dtype, anew in every call."""

    def __init__(self, forms: Sequence[Form], empty: Empty, make: Any) -> None:
        """`make`: `native()`'s."""
        self._empty, self._make = empty, make
        sizes: dict[torch.dtype, int] = {}
        numbers: list[int] = []
        records: list[tuple[int, int, int, int]] = []
        for shape, stride, dtype in forms:
            start = sizes.setdefault(dtype, 0)
            records.append((list(sizes).index(dtype), len(shape), len(numbers), start))
            numbers += [*shape, *stride]
            step = max(1, ALIGN // dtype.itemsize)
            sizes[dtype] = start + -(-span(shape, stride) // step) * step
        self.groups = tuple(((n,), (1,), dtype) for dtype, n in sizes.items())
        self._axes = np.array(numbers, np.int64)
        first = self._axes.ctypes.data
        table = [
            (group, rank, first + 8 * at, first + 8 * (at + rank), start)
            for group, rank, at, start in records
        ]
        self._records = np.array(table, np.int64)
        words = (*_making(), len(forms), self._records.ctypes.data)
        self._state = np.array(words, np.int64)
        self._place = self._state.ctypes.data
        kinds = list(sizes)
        self.offsets = tuple(start for *_, start in records)  # in elements
        # Which allocation, and how many bytes from its beginning.
        self.places = tuple((r[0], r[3] * kinds[r[0]].itemsize) for r in records)
        self._cells = ctypes.c_int64 * len(kinds)

    def __call__(self) -> tuple[list[torch.Tensor], list[int]]:
        """Fresh tensors, and where they are."""
        bases, addresses = self.memory()
        return self._make(self._place, self._cells(*[b._cdata for b in bases])), addresses

    def memory(self) -> tuple[list[torch.Tensor], list[int]]:
        """Fresh allocations, one for each dtype, and where the tensors would be."""
        empty = self._empty
        bases = [empty(*group) for group in self.groups]
        starts = [b.data_ptr() for b in bases]
        return bases, [starts[group] + at for group, at in self.places]


class Addresses:
    """Where some tensors of a list of arguments are: an empty list where one of them is no tensor,
    has other strides than given (None: any), or has no memory."""

    def __init__(self, wanted: Sequence[tuple[int, tuple[int, ...] | None]], read: Any) -> None:
        self._read = read
        numbers = [n for _, stride in wanted for n in stride or ()]
        self._strides = np.array([*numbers, 0], np.int64)
        at, table = self._strides.ctypes.data, []
        for which, stride in wanted:
            table.append((which, len(stride or ()), at))
            at += 8 * len(stride or ())
        self._records = np.array(table, np.int64)
        words = (*_reading(), len(wanted), self._records.ctypes.data)
        self._state = np.array(words, np.int64)
        self._place = self._state.ctypes.data

    def __call__(self, arguments: list[Any]) -> list[int]:
        return self._read(self._place, _items(id(arguments) + _ITEMS).value)


_items = ctypes.c_void_p.from_address


def span(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first one to the last."""
    if not prod(shape):
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))


def parts(forms: Sequence[Form], empty: Empty) -> Parts | None:
    """None: one by one is as quick, or torch is not as expected."""
    if len(forms) < FEWEST or not _making() or not all(_making()):
        return None
    return Parts(forms, empty, _native()[0])


def addresses(wanted: Sequence[tuple[int, tuple[int, ...] | None]]) -> Addresses | None:
    """None as above."""
    if len(wanted) < FEWEST or not _reading() or not all(_reading()):
        return None
    return Addresses(wanted, _native()[1])


@cache
def _native() -> tuple[Any, Any]:
    """What makes tensors, and what reads addresses: None where it is not known how tensors lie in
    Python's objects."""
    places = find_places()
    read = _READ.replace("TENSOR", str(places.tensor)) if places is not None else ""
    library = Library([cached_object(_MAKE + read, host())], {})
    words = (ctypes.c_void_p, ctypes.c_void_p)
    names = ("tw_parts", "tw_addresses") if read else ("tw_parts",)
    # The interpreter's lock is not released: both make Python objects.
    made = [library.function(n, *words, result=ctypes.py_object, holds_lock=True) for n in names]
    return made[0], made[1] if read else None


@cache
def _making() -> tuple[int, ...]:
    """Functions that make tensors; 0 for one that is not there."""
    return (
        torch_function("aoti_torch__reinterpret_tensor"),
        _wrap(),
        torch_function("aoti_torch_delete_tensor_object"),
        *python_functions("PyList_New", "PyList_SetItem"),
    )


@cache
def _reading() -> tuple[int, ...]:
    """Functions that read addresses and strides, and the types of tensors; 0 as above."""
    if find_places() is None:
        return ()
    return (
        torch_function("aoti_torch_get_data_ptr"),
        torch_function("aoti_torch_get_strides"),
        *python_functions("PyList_New", "PyList_SetItem", "PyLong_FromLongLong", "Py_DecRef"),
        id(torch.Tensor),
        id(nn.Parameter),
    )


def _wrap() -> int:
    """The function that makes a Python object of a tensor: torch tells compiled code where it is;
    older versions only have it in their library, by value or by reference, which is called
    alike."""
    found = getattr(guards, "_torchinductor_thp_variable_wrap", 0)
    if isinstance(found, int) and found:
        return found
    names = ("RKN2at10TensorBaseE", "N2at10TensorBaseE")
    every = (torch_function(f"_Z16THPVariable_Wrap{n}", "libtorch_python.so") for n in names)
    return next((x for x in every if x), 0)


def torch_function(name: str, library: str = "libtorch_cpu.so") -> int:
    try:
        loaded = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / library))
        return ctypes.cast(getattr(loaded, name), ctypes.c_void_p).value or 0
    except (OSError, AttributeError):
        return 0


def python_functions(*names: str) -> list[int]:
    found = (getattr(ctypes.pythonapi, n) for n in names)
    return [ctypes.cast(f, ctypes.c_void_p).value or 0 for f in found]
