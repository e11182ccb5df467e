"""A quick check that a program's weights, perhaps two hundred, are those that it was bound to.

Reading `data_ptr()` and `_version` of each from Python takes longer than everything else in a call.
A native loop calls the functions that Python itself would call, and compares as it goes; only where
something differs does Python check again.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
from torch._C import DisableTorchFunctionSubclass
from torch._C._dynamo import guards

from tilewright.driver.weights.given_up import given_up
from tilewright.driver.weights.watch import STEPS, known
from tilewright.llvm.objects import cached_object
from tilewright.runtime.library import Library
from tilewright.runtime.shared import Weight
from tilewright.targets import host

# state: count, then where objects, addresses and versions are (a version of -1 is not compared),
# and the function that gives a tensor's address: the text is the same in every process.
_LOOP = """
declare i64 @llvm.umin.i64(i64, i64)
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
define i32 @tw_differ(ptr %objects, ptr %state) {{
entry:
  %count = load i64, ptr %state
  %last = sub i64 %count, 1
  %s1 = getelementptr ptr, ptr %state, i64 1
  %held = load ptr, ptr %s1
  %s2 = getelementptr ptr, ptr %state, i64 2
  %addresses = load ptr, ptr %s2
  %s3 = getelementptr ptr, ptr %state, i64 3
  %versions = load ptr, ptr %s3
  %s4 = getelementptr ptr, ptr %state, i64 4
  %tell = load ptr, ptr %s4
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %step ]
{ahead}
  %p0 = getelementptr ptr, ptr %objects, i64 %i
  %object = load ptr, ptr %p0
  %p1 = getelementptr ptr, ptr %held, i64 %i
  %known = load ptr, ptr %p1
  %same = icmp eq ptr %object, %known
  br i1 %same, label %where, label %differs
where:
  %address = call i64 %tell(ptr %object)
  %p2 = getelementptr i64, ptr %addresses, i64 %i
  %was = load i64, ptr %p2
  %stays = icmp eq i64 %address, %was
  br i1 %stays, label %watched, label %differs
watched:
  %p3 = getelementptr i64, ptr %versions, i64 %i
  %before = load i64, ptr %p3
  %look = icmp ne i64 %before, -1
  br i1 %look, label %version, label %step
version:
  %v0 = getelementptr i8, ptr %object, i64 {to_tensor}
  %tensor = load ptr, ptr %v0
  %v1 = getelementptr i8, ptr %tensor, i64 {to_counter}
  %counter = load ptr, ptr %v1
  %none = icmp eq ptr %counter, null
  br i1 %none, label %differs, label %compare
compare:
  %v2 = getelementptr i8, ptr %counter, i64 {to_version}
  %now32 = load i32, ptr %v2
  %now = zext i32 %now32 to i64
  %unedited = icmp eq i64 %now, %before
  br i1 %unedited, label %step, label %differs
step:
  %next = add i64 %i, 1
  %done = icmp eq i64 %next, %count
  br i1 %done, label %end, label %loop
end:
  ret i32 0
differs:
  ret i32 1
}}
"""
# Objects, tensors and storages of weights further on are fetched in time: they are spread over
# memory, all that ran since the last call has pushed them out of the cache, and waiting for each in
# turn would be most of a call's overhead.
_AT = """\
  %{n}.i = add i64 %i, {distance}
  %{n}.k = call i64 @llvm.umin.i64(i64 %{n}.i, i64 %last)
  %{n}.p = getelementptr ptr, ptr %objects, i64 %{n}.k
  %{n}.0 = load ptr, ptr %{n}.p"""
_FOLLOW = """\
  %{n}.{k}f = getelementptr i8, ptr %{n}.{k}, i64 {offset}
  %{n}.{next} = load ptr, ptr %{n}.{k}f"""
_TOUCH = """\
  %{n}.t{line} = getelementptr i8, ptr %{n}.{k}, i64 {line}
  call void @llvm.prefetch.p0(ptr %{n}.t{line}, i32 0, i32 3, i32 1)"""
# An inference tensor has no version counter: changes of its content go unnoticed.
UNKNOWN = -2
_ITEMS = tuple.__basicsize__  # the offset of a tuple's items
_WORD = ctypes.sizeof(ctypes.c_void_p)


class Program(Protocol):
    """What can be bound to the addresses of its first inputs."""

    @property
    def weights(self) -> tuple[int, ...]:
        """Inputs from which values are derived."""
        ...

    @property
    def kept(self) -> tuple[int, ...]:
        """Weights that calls read themselves."""
        ...

    @property
    def derived(self) -> object:
        """What is derived from weights now; another object whenever it was derived again."""
        ...

    def bind(self, addresses: Sequence[int], weights: Sequence[Weight] | None = None) -> Any: ...


@dataclass(frozen=True)
class _State:
    """A binding and what it depends on; replaced as a whole, so that threads agree."""

    bound: Any
    derived: object
    steps: int
    tensors: tuple[Any, ...]  # references: while they live, no other object can have their address
    weights: list[Weight]  # … nor their memory another owner
    addresses: np.ndarray
    versions: np.ndarray
    table: np.ndarray
    place: int


class BoundWeights:
    """The weights of one program, its first inputs, call after call."""

    def __init__(self, program: Program, count: int) -> None:
        self._program = program
        assert all(k < count for k in program.weights), "weights are the first inputs"
        self._differ = _differ()
        self._state: _State | None = None
        self._same: tuple[_State | None, tuple[Any, ...] | None] = None, None

    def __call__(self, tensors: tuple[Any, ...]) -> Any:
        """The program bound to these weights; None where one of them has no memory."""
        state = self._state
        if (
            state is None
            or state.steps != STEPS.count
            or self._differ(tensors, state)
            or state.derived is not self._program.derived
        ):
            with DisableTorchFunctionSubclass():
                return self._bind(tensors)
        return state.bound

    def again(self, tensors: tuple[Any, ...]) -> Any:
        """The same, of a tuple whose tensors nobody has changed since it was passed here last."""
        state, same = self._same
        if (
            same is tensors
            and state is not None
            and state is self._state
            and state.steps == STEPS.count
            and state.derived is self._program.derived
        ):
            return state.bound
        found, state = self(tensors), self._state
        if state is not None and all(map(operator.is_, tensors, state.tensors)):
            self._same = state, tensors
        return found

    def _bind(self, tensors: tuple[Any, ...]) -> Any:
        found = list(map(torch.Tensor.data_ptr, tensors))
        # In the order of the prologue's inputs, which the program's are.
        derives = self._program.weights
        packed = {k for k in derives if given_up(tensors[k])} - set(self._program.kept)
        for k, (a, x) in enumerate(zip(found, tensors, strict=True)):
            if a == 0 and x.numel() and k not in packed:
                return None
        steps = STEPS.count
        versions = np.full(len(tensors), -1, np.int64)
        for k in derives:
            versions[k] = _version(tensors[k])
        weights = [known(tensors[k]) for k in derives]
        bound = self._program.bind(found, weights)
        addresses = np.array(found, np.int64)
        pointers = (id(tensors) + _ITEMS, addresses.ctypes.data, versions.ctypes.data, _tell())
        table = np.array((len(tensors), *pointers), np.int64)
        self._state = _State(
            bound,
            self._program.derived,
            steps,
            tensors,
            weights,
            addresses,
            versions,
            table,
            table.ctypes.data,
        )
        return bound

    @property
    def tensors(self) -> tuple[Any, ...]:
        """The weights of the latest call, in the order of the program's inputs."""
        return () if self._state is None else self._state.tensors


def differ_slowly(tensors: tuple[Any, ...], state: _State) -> bool:
    """Are these other tensors, elsewhere in memory, or edited?"""
    if any(map(lambda a, b: a is not b, tensors, state.tensors)):
        return True
    with DisableTorchFunctionSubclass():
        if list(map(torch.Tensor.data_ptr, tensors)) != state.addresses.tolist():
            return True
    watched = [(x, v) for x, v in zip(tensors, state.versions.tolist(), strict=True) if v != -1]
    return any(v == UNKNOWN or _version(x) != v for x, v in watched)


def _version(x: torch.Tensor) -> int:
    return UNKNOWN if x.is_inference() else x._version


@cache
def _tell() -> int:
    """Where torch's own function for the address of a tensor is; 0 where it has none."""
    found = getattr(guards, "_torchinductor_pyobject_tensor_data_ptr", None)
    return found if isinstance(found, int) else 0


@cache
def _differ() -> Callable[[tuple[Any, ...], _State], bool]:
    """The same in native code, where torch is laid out as expected."""
    places = find_places()
    if not _tell() or places is None:
        return differ_slowly
    text = _LOOP.format(
        to_tensor=places.tensor,
        to_counter=places.counter,
        to_version=places.version,
        ahead=_look_ahead(places),
    )
    library = Library([cached_object(text, host())], {})
    # The interpreter's lock is not released: the loop reads Python objects.
    pointers = (ctypes.c_void_p, ctypes.c_void_p)
    loop = library.function("tw_differ", *pointers, result=ctypes.c_int32, holds_lock=True)

    def differ(tensors: tuple[Any, ...], state: _State) -> bool:
        return loop(id(tensors) + _ITEMS, state.place)

    return differ


@dataclass(frozen=True)
class Places:
    """Offsets: from a Python object to its tensor, from there to storage and version counter, from
    there to the version.
    """

    tensor: int
    storage: int
    counter: int
    version: int


TRIES = 20  # one in a thousand is not clear


@cache
def find_places() -> Places | None:
    """Looked for once: what lies around tensors may make it unclear at one time and clear at
    another, and all code must go by the same answer."""
    found = (_places() for _ in range(TRIES))
    return next((x for x in found if x is not None), None)


def _places() -> Places | None:
    """By looking at tensors made for it, so that nothing about torch's classes is assumed."""
    x, other = torch.nn.Parameter(torch.ones(1)), torch.ones(1)
    shares = x.detach()  # shares storage and version counter, and nothing else
    tensor, storage = x._cdata, x.untyped_storage()._cdata
    to_tensor = _offset(id(x), tensor, type(x).__basicsize__)
    to_storage = _offset(tensor, storage, 8 * _WORD)
    if to_tensor is None or to_storage is None:
        return None
    words = [[_word(y._cdata + k) for k in range(0, 8 * _WORD, _WORD)] for y in (x, shares, other)]
    alike = [
        k * _WORD
        for k, (a, b, c) in enumerate(zip(*words, strict=True))
        if a == b != c and a not in (0, storage) and c != 0 and abs(a - tensor) < 2**40
    ]
    if len(alike) != 1:
        return None
    (to_counter,) = alike
    counter = _word(tensor + to_counter)
    candidates = set(range(_WORD, 3 * _WORD, 4))
    with torch.no_grad():
        for _ in range(4):
            now = x._version
            found = {k: ctypes.c_uint32.from_address(counter + k).value for k in candidates}
            candidates = {k for k, v in found.items() if v == now}
            x.add_(1)
            x.mul_(1)
    if len(candidates) != 1:
        return None
    return Places(to_tensor, to_storage, to_counter, candidates.pop())


def _look_ahead(places: Places) -> str:
    lines = [_AT.format(n="object", distance=24), _TOUCH.format(n="object", k=0, line=0)]
    lines += [_AT.format(n="tensor", distance=16)]
    lines += [_FOLLOW.format(n="tensor", k=0, next=1, offset=places.tensor)]
    lines += [_TOUCH.format(n="tensor", k=1, line=line) for line in (0, 64, 128)]
    lines += [_AT.format(n="below", distance=8)]
    lines += [_FOLLOW.format(n="below", k=0, next=1, offset=places.tensor)]
    lines += [_FOLLOW.format(n="below", k=1, next=2, offset=places.storage)]
    lines += [_TOUCH.format(n="below", k=2, line=line) for line in (0, 64)]
    return "\n".join(lines)


def _offset(start: int, value: int, size: int) -> int | None:
    """Where in the memory from an address a pointer is."""
    return next((k for k in range(0, size, _WORD) if _word(start + k) == value), None)


def _word(address: int) -> int:
    return ctypes.c_void_p.from_address(address).value or 0
