"""The addresses of many tensors at once, and whether they are the tensors of the call before.

Asking two hundred weights for `data_ptr()` from Python takes longer than everything else in a call.
torch has a native function for one tensor, made for its own generated code; a native loop over it
takes a fraction of the time, and compares on the way.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
import torch
from torch._C._dynamo import guards

from tilewright.llvm.objects import compile_object
from tilewright.runtime.library import Library
from tilewright.targets import default as default_target

_LOOP = """
define i32 @tw_addresses(ptr %objects, ptr %held, i64 %count, ptr %ask, ptr %out, ptr %before) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %flags = phi i32 [ 0, %entry ], [ %all, %loop ]
  %from = getelementptr ptr, ptr %objects, i64 %i
  %object = load ptr, ptr %from
  %known = getelementptr ptr, ptr %held, i64 %i
  %holds = load ptr, ptr %known
  %other = icmp ne ptr %object, %holds
  %address = call i64 %ask(ptr %object)
  %to = getelementptr i64, ptr %out, i64 %i
  store i64 %address, ptr %to
  %old = getelementptr i64, ptr %before, i64 %i
  %was = load i64, ptr %old
  %moved = icmp ne i64 %address, %was
  %null = icmp eq i64 %address, 0
  %f0 = zext i1 %other to i32
  %f1 = select i1 %moved, i32 2, i32 0
  %f2 = select i1 %null, i32 4, i32 0
  %a0 = or i32 %flags, %f0
  %a1 = or i32 %a0, %f1
  %all = or i32 %a1, %f2
  %next = add i64 %i, 1
  %done = icmp eq i64 %next, %count
  br i1 %done, label %end, label %loop
end:
  ret i32 %all
}
"""
OTHER_OBJECT, MOVED, NULL = 1, 2, 4
# Where a tuple keeps its items: right behind its head.
_ITEMS = tuple.__basicsize__


class Addresses:
    """Of the tensors that one graph reads, call after call."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._native = _loop()
        self._spare: list[tuple[np.ndarray, int]] = []  # a call in flight owns what it took
        # (tensors, their addresses as a list and in memory): replaced as a whole, so that threads
        # agree; while the tensors are held, no other object can have their place.
        self._known: tuple[tuple[Any, ...], list[int], np.ndarray, int] | None = None

    def __call__(self, tensors: tuple[Any, ...]) -> tuple[list[int], int]:
        """(addresses, flags): which of OTHER_OBJECT, MOVED and NULL hold for some tensor."""
        known = self._known
        if self._native is None or known is None:
            return self._slowly(tensors)
        loop, ask = self._native
        try:
            out, place = self._spare.pop()
        except IndexError:
            out = np.empty(self._count, np.int64)
            place = out.ctypes.data
        held, found, _, before = known
        flags = loop(id(tensors) + _ITEMS, id(held) + _ITEMS, self._count, ask, place, before)
        if flags & ~NULL:
            found = out.tolist()
            self._known = tensors, found, out, place
        else:
            self._spare.append((out, place))
        return found, flags

    def _slowly(self, tensors: tuple[Any, ...]) -> tuple[list[int], int]:
        found = list(map(torch.Tensor.data_ptr, tensors))
        flags = NULL if 0 in found else 0
        if self._known is None or any(map(lambda a, b: a is not b, tensors, self._known[0])):
            flags |= OTHER_OBJECT
        out = np.array(found, np.int64)
        self._known = tensors, found, out, out.ctypes.data
        return found, flags


@cache
def _loop() -> tuple[Any, int] | None:
    """The native loop and torch's function for one tensor; None where torch does not have it."""
    ask = getattr(guards, "_torchinductor_pyobject_tensor_data_ptr", None)
    if not isinstance(ask, int):
        return None
    library = Library([compile_object(_LOOP, default_target())], {})
    pointer = ctypes.c_void_p
    # The interpreter's lock is kept: the loop looks into Python objects.
    kind = ctypes.PYFUNCTYPE(
        ctypes.c_int32, pointer, pointer, ctypes.c_int64, pointer, pointer, pointer
    )
    loop: Any = kind(library.address("tw_addresses"))
    loop.library = library  # code lives as long as it can be called
    return loop, ask
