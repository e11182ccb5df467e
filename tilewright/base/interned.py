"""One object per key, for types whose equality is identity."""

from __future__ import annotations

from threading import RLock
from typing import Any, Generic, TypeVar
from weakref import ref

T = TypeVar("T")


class _Keyed(ref):
    """A reference that knows where its table holds it."""

    __slots__ = ("key",)
    key: Any


class Interned(Generic[T]):
    """Objects by key, forgotten when nobody else holds them.

    The same as a WeakValueDictionary, in a third of its time: every expression of every kernel is
    looked up here.
    """

    def __init__(self) -> None:
        held: dict[Any, _Keyed] = {}
        # Taken again where a collection in the middle of `add` frees others.
        lock = RLock()

        def forget(dead: Any) -> None:
            with lock:
                if held.get(dead.key) is dead:
                    del held[dead.key]

        self._held, self._lock, self._forget = held, lock, forget

    def get(self, key: Any) -> T | None:
        found = self._held.get(key)
        return None if found is None else found()

    def add(self, key: Any, value: T) -> T:
        """The object of a key: this one, unless another thread was faster."""
        mine = _Keyed(value, self._forget)
        mine.key = key
        with self._lock:
            found = self._held.get(key)
            other = None if found is None else found()
            if other is not None:
                return other
            self._held[key] = mine
        return value

    def __len__(self) -> int:
        return len(self._held)
