"""One object per key: while somebody holds it, and for several threads at once."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

from tilewright.base.interned import Interned


class Thing:
    pass


def test_the_first_object_of_a_key_is_everybodys() -> None:
    table: Interned[Thing] = Interned()
    first = Thing()
    assert table.get("a") is None
    assert table.add("a", first) is first
    assert table.add("a", Thing()) is first
    assert table.get("a") is first
    assert table.get("b") is None


def test_what_nobody_holds_is_forgotten() -> None:
    table: Interned[Thing] = Interned()
    things = [table.add(k, Thing()) for k in range(10)]
    del things[5:]
    gc.collect()
    assert len(table) == 5
    new = Thing()
    assert table.add(7, new) is new


def test_threads_get_the_same_object() -> None:
    table: Interned[Thing] = Interned()
    for key in range(50):
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _, key=key: table.add(key, Thing()), range(8)))
        assert len(set(map(id, found))) == 1
