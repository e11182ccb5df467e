"""The call of a program as one native function: tensors in, its code run, nothing between.

From Python such a call reads the address of each tensor, fills arrays with them and passes these
on: some dozen small steps, of which each costs little in a loop and several times as much between
other work, when the processor has to fetch the code of all of them anew. Here they are one function
that Python calls directly. It refuses, having done nothing, where it does not know an argument, a
tensor has no memory, or another thread is inside: then the steps are taken in Python.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn

from tilewright.base import knobs
from tilewright.driver.torch.many import TYPE, loads, python_functions, torch_function
from tilewright.driver.torch.protocol import Program
from tilewright.driver.weights.bound import find_places
from tilewright.llvm.objects import cached_object
from tilewright.runtime.library import Library
from tilewright.runtime.program import WATCHED_BYTES
from tilewright.targets import host

# Of results, inputs that the binding leaves open, sizes, and the binding's address where it changes
# from call to call. None where all is well, a list of what was found in the data, False: refused.
Straight = Callable[..., Any]
MOST = 64  # addresses of one call, which lie on the stack
_FASTCALL = 0x80  # how Python passes arguments: an array and its length

# `self` is a tuple, first in it the address of the state. Arrays of addresses are on the stack:
# threads have their own.
_CALL = """
define ptr @tw_straight(ptr %self, ptr %given, i64 %passed) {
entry:
  %home.at = getelementptr i8, ptr %self, i64 ITEMS
  %home.object = load ptr, ptr %home.at
  %home = call i64 @tw_number(ptr %home.object)
  %state = inttoptr i64 %home to ptr
STATE
  %idle = icmp eq i64 %inside, 0
  %fits = icmp eq i64 %passed, %arguments
  %ready = and i1 %idle, %fits
  br i1 %ready, label %begin, label %refuse
begin:
  %found = alloca ptr
  %ins = alloca [MOST x ptr]
  %outs = alloca [MOST x ptr]
  %dims = alloca [MOST x i64]
  %known.now = icmp eq i64 %binding, 0
  br i1 %known.now, label %last, label %bound
last:
  %last.k = sub i64 %passed, 1
  %last.at = getelementptr ptr, ptr %given, i64 %last.k
  %last.object = load ptr, ptr %last.at
  %last.address = call i64 @tw_number(ptr %last.object)
  br label %bound
bound:
  %table = phi i64 [ %binding, %begin ], [ %last.address, %last ]
  %known = inttoptr i64 %table to ptr
  %bytes = mul i64 %slots, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %ins, ptr %known, i64 %bytes, i1 false)
  %open = getelementptr ptr, ptr %ins, i64 %first
  br label %all.tensors
all.tensors:
  %k = phi i64 [ 0, %bound ], [ %k.next, %put ]
  %k.more = icmp ult i64 %k, %tensors
  br i1 %k.more, label %one, label %all.sizes
one:
  %object.at = getelementptr ptr, ptr %given, i64 %k
  %object = load ptr, ptr %object.at
  %kind.at = getelementptr i8, ptr %object, i64 TYPE
  %kind = load ptr, ptr %kind.at
  %is.plain = icmp eq ptr %kind, %plain
  %is.weight = icmp eq ptr %kind, %weight
  %is.tensor = or i1 %is.plain, %is.weight
  br i1 %is.tensor, label %tell.it, label %refuse
tell.it:
  %tensor = getelementptr i8, ptr %object, i64 TENSOR
  %told = call i32 @tw_tell(ptr %tensor, ptr %found)
  %address = load ptr, ptr %found
  %somewhere = icmp ne ptr %address, null
  %clear = icmp eq i32 %told, 0
  %good = and i1 %somewhere, %clear
  br i1 %good, label %put, label %refuse
put:
  %is.out = icmp ult i64 %k, %filled
  %behind = sub i64 %k, %filled
  %out.at = getelementptr ptr, ptr %outs, i64 %k
  %in.at = getelementptr ptr, ptr %open, i64 %behind
  %place = select i1 %is.out, ptr %out.at, ptr %in.at
  store ptr %address, ptr %place
  %k.next = add i64 %k, 1
  br label %all.tensors
all.sizes:
  %j = phi i64 [ 0, %all.tensors ], [ %j.next, %size ]
  %j.more = icmp ult i64 %j, %sizes
  br i1 %j.more, label %size, label %watches
size:
  %j.place = add i64 %j, %tensors
  %j.at = getelementptr ptr, ptr %given, i64 %j.place
  %j.object = load ptr, ptr %j.at
  %j.value = call i64 @tw_number(ptr %j.object)
  %dim.at = getelementptr i64, ptr %dims, i64 %j
  store i64 %j.value, ptr %dim.at
  %j.next = add i64 %j, 1
  br label %all.sizes
watches:
  %w = phi i64 [ 0, %all.sizes ], [ %w.next, %watch ]
  %w.more = icmp ult i64 %w, %watched
  br i1 %w.more, label %watch, label %go
watch:
  %w.away = mul i64 %w, APART
  %w.cell = getelementptr i8, ptr %cells, i64 %w.away
  %w.place = add i64 %w, %filled
  %w.at = getelementptr ptr, ptr %outs, i64 %w.place
  store ptr %w.cell, ptr %w.at
  %w.next = add i64 %w, 1
  br label %watches
go:
  store i64 1, ptr %inside.at
  %thread = call ptr @tw_release()
  call void %code(ptr %ins, ptr %outs, ptr %dims, ptr %arena)
  call void @tw_acquire(ptr %thread)
  %looks = icmp ne i64 %watched, 0
  br i1 %looks, label %look, label %fine
look:
  %cell = load i64, ptr %cells
  %nothing = icmp eq i64 %cell, 0
  br i1 %nothing, label %fine, label %tell.all
tell.all:
  %list = call ptr @tw_list(i64 %watched)
  %none.made = icmp eq ptr %list, null
  br i1 %none.made, label %out, label %each
each:
  %e = phi i64 [ 0, %tell.all ], [ %e.next, %each.one ]
  %e.more = icmp ult i64 %e, %watched
  br i1 %e.more, label %each.one, label %out
each.one:
  %e.away = mul i64 %e, APART
  %e.cell = getelementptr i8, ptr %cells, i64 %e.away
  %e.value = load i64, ptr %e.cell
  %e.object = call ptr @tw_make(i64 %e.value)
  %e.placed = call i32 @tw_set(ptr %list, i64 %e, ptr %e.object)
  %e.next = add i64 %e, 1
  br label %each
out:
  store i64 0, ptr %inside.at
  ret ptr %list
fine:
  store i64 0, ptr %inside.at
  call void @tw_keep(ptr %none)
  ret ptr %none
refuse:
  call void @tw_keep(ptr %false)
  ret ptr %false
}
declare i64 @tw_number(ptr)
declare i32 @tw_tell(ptr, ptr)
declare ptr @tw_release()
declare void @tw_acquire(ptr)
declare ptr @tw_list(i64)
declare ptr @tw_make(i64)
declare i32 @tw_set(ptr, i64, ptr)
declare void @tw_keep(ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""
_STATE = (
    *("#inside", "code", "arena", "cells", "plain", "weight", "none", "false", "#arguments"),
    *("#binding", "#slots", "#first", "#tensors", "#filled", "#sizes", "#watched"),
)


def straight(program: Program, bound: Any, inputs: int, results: int) -> Straight | None:
    """Calls of a program whose last `inputs` inputs are open, with memory for `results` results.
    `bound` is its binding, where that never changes. None where such calls go another way."""
    entry = program.entry()
    code = _code() if entry is not None and knobs.straight_calls.get() else None
    slots = 0 if entry is None else entry.slots
    if entry is None or code is None or max(slots, results + entry.watched) > MOST:
        return None
    if len(program.dims) > MOST:
        return None
    passed = results + inputs + len(program.dims) + (bound is None)
    first = entry.inputs - inputs
    words = (
        *(0, entry.address, entry.arena, entry.cells, id(torch.Tensor), id(nn.Parameter)),
        *(id(None), id(False), passed, 0 if bound is None else bound.address, slots, first),
        *(results + inputs, results, len(program.dims), entry.watched),
    )
    state = np.array(words, np.int64)
    # The tuple is `self`: what the code refers to lives as long as the function.
    return code((state.ctypes.data, state, entry, bound, program))


class _Method(ctypes.Structure):
    """Python's record of a function in C."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("code", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("about", ctypes.c_char_p),
    )


@cache
def _code() -> Callable[[tuple[Any, ...]], Straight] | None:
    """Makes such functions; None where Python or torch is not as expected."""
    places, locked = find_places(), getattr(sys, "_is_gil_enabled", lambda: True)()
    symbols = _symbols()
    if places is None or not locked or not all(symbols.values()):
        return None
    text = _CALL.replace("STATE", loads("state", *_STATE))
    for name, value in (
        ("ITEMS", tuple.__basicsize__),
        ("TYPE", TYPE),
        ("TENSOR", places.tensor),
        ("APART", WATCHED_BYTES),
        ("MOST", MOST),
    ):
        text = text.replace(name, str(value))
    library = Library([cached_object(text, host())], symbols)
    method = _Method(b"tilewright_call", library.address("tw_straight"), _FASTCALL, None)
    new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)(
        ("PyCFunction_NewEx", ctypes.pythonapi)
    )

    def make(kept: tuple[Any, ...]) -> Straight:
        return new(ctypes.addressof(method), (*kept, library), None)

    return make


def _symbols() -> dict[str, int]:
    """What the code calls; 0 for what is not there."""
    names = ("PyLong_AsLongLong", "PyEval_SaveThread", "PyEval_RestoreThread", "PyList_New")
    more = ("PyLong_FromLongLong", "PyList_SetItem", "Py_IncRef")
    ours = ("tw_number", "tw_release", "tw_acquire", "tw_list", "tw_make", "tw_set", "tw_keep")
    found = dict(zip(ours, python_functions(*names, *more), strict=True))
    return {**found, "tw_tell": torch_function("aoti_torch_get_data_ptr")}
