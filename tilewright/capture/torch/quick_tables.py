"""Torch's tables of decompositions of an exported program, made in less time.

For each decomposition torch declares kernels for all operators that it keeps, ten thousand, and
asks once for each namespace of operators which ones there are. Of a small model that takes ten
times as long as the decomposition itself, most of it for types in annotations of inner functions
and for the same answer again. What torch computes is the same as before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch._export.utils
import torch._ops


class _Plain(type):
    def __getitem__(cls, _: Any) -> type:
        return cls

    def __instancecheck__(cls, value: Any) -> bool:
        return callable(value)


class _Callable(metaclass=_Plain):
    """`Callable` in annotations, of any arguments: nothing is made of them."""


_lock = threading.Lock()
_inside = 0
_before: list[tuple[Any, str, Any]] = []  # what stands there otherwise


@contextmanager
def quick_tables() -> Iterator[None]:
    """Decompositions inside take less time. No operator is declared meanwhile but by them. The
    first thread puts the quick functions there, and the last one takes them away."""
    global _inside
    with _lock:
        _inside += 1
        if _inside == 1:
            _put(torch._ops, "Callable", lambda _: _Callable)
            _put(torch._export.utils, "_materialize_cpp_cia_ops", _once)
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            while _inside == 0 and _before:
                setattr(*_before.pop())


def _put(where: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Other versions of torch may lack what is replaced: then it is not slow there either."""
    if (found := getattr(where, name, None)) is not None:
        _before.append((where, name, found))
        setattr(where, name, make(found))


def _once(function: Callable[[], None]) -> Callable[[], None]:
    """The same for all namespaces: it looks at all operators each time."""
    done = False

    def called() -> None:
        nonlocal done
        if not done:
            function()
            done = True

    return called
