"""One object per key, for types whose equality is identity."""

from __future__ import annotations

from threading import RLock
from typing import Any, Generic, TypeVar
from weakref import ref

T = TypeVar("T")


class _Keyed(ref):
    """A weak reference that knows its key in the table."""

    __slots__ = ("key",)
    key: Any


class Interned(Generic[T]):
    """Objects by key, removed when nothing else refers to them.

    The same as a WeakValueDictionary, in a third of its time: every expression of every kernel is
    looked up here.
    """

    def __init__(self) -> None:
        table: dict[Any, _Keyed] = {}
        # Reentrant: a garbage collection in the middle of `add` may free other entries.
        lock = RLock()

        def forget(dead: Any) -> None:
            with lock:
                if table.get(dead.key) is dead:
                    del table[dead.key]

        self._table, self._lock, self._forget = table, lock, forget

    def get(self, key: Any) -> T | None:
        found = self._table.get(key)
        return None if found is None else found()

    def add(self, key: Any, value: T) -> T:
        """The object of a key: this one, unless another thread was faster."""
        mine = _Keyed(value, self._forget)
        mine.key = key
        with self._lock:
            found = self._table.get(key)
            other = None if found is None else found()
            if other is not None:
                return other
            self._table[key] = mine
        return value

    def __len__(self) -> int:
        return len(self._table)
