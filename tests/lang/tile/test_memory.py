"""Loads, stores and atomic operations."""

from __future__ import annotations

import numpy as np
import pytest

from tests.lang.tile.values import array, given, pointer, running, tile, writing
from tilewright.base.errors import Invalid
from tilewright.lang.tile.language import core as tl


def test_loads_with_masks():
    memory = np.arange(6, dtype=np.float32)
    with running(memory) as (p,):
        at = tl.arange(0, 8)
        x = tl.load(p + at, mask=at < 6, other=-1)
        assert x.dtype == tl.float32 and array(x).tolist() == [0, 1, 2, 3, 4, 5, -1, -1]
        assert float(tl.load(p + 2)) == 2.0 and float(tl.load(p, mask=False, other=3)) == 3.0
        row = tl.load(p + tl.arange(0, 2)[None, :], mask=tile([[True], [False]], tl.int1), other=9)
        assert array(row).tolist() == [[0, 1], [9, 9]]
        assert array(tl.load(p + tl.arange(0, 4), mask=True)).tolist() == [0, 1, 2, 3]


def test_a_mask_that_always_holds_is_left_out():
    with writing() as b:
        p = pointer(b, tl.float32)
        tl.load(p + tl.arange(0, 4), mask=True, other=0.0)
        tl.store(p, 1.0, mask=tl.constexpr(True))
    assert [len(o.args) for o in b.block.operations if o.name in ("load", "store")] == [1, 2]


def test_stores_convert():
    memory = np.zeros(4, np.int8)
    with running(memory) as (p,):
        at = tl.arange(0, 4)
        tl.store(p + at, tile([1.9, 2.0, 300.0, -1.0], tl.float32), mask=at != 2)
        tl.store(p + 2, 7)
        (p + 3).store(5)
    assert memory.tolist() == [1, 2, 7, 5]


def test_stores_of_numbers_fill_the_block():
    memory = np.zeros(8, np.float32)
    with running(memory) as (p,):
        tl.store(p + tl.arange(0, 8), 3)
    assert (memory == 3).all()


def test_unsigned_offsets_stay_positive():
    memory = np.arange(256, dtype=np.int32)
    with running(memory) as (p,):
        assert int(tl.load(p + tile(200, tl.uint8))) == 200
        assert int(tl.load(p + 10 - tile(3, tl.uint8))) == 7
        assert int(tl.load(1 + p)) == 1


@pytest.mark.parametrize(
    "wrong, said",
    [
        (lambda p, x: tl.load(x), "load through int32.*no pointer"),
        (lambda p, x: tl.load(p, other=0), "other without a mask"),
        (lambda p, x: tl.load(p + x, mask=x), "the mask is int32.*not int1"),
        (lambda p, x: tl.load(p, mask=x > 0), "goes with a single pointer"),
        (lambda p, x: tl.store(p, x), "goes with a single pointer"),
        (lambda p, x: tl.store(p + x, x[:, None] + x), r"int32\[4, 4\] through pointer"),
        (lambda p, x: tl.store(p + x, 1, mask=x), "not int1"),
        (lambda p, x: tl.load(p, cache_modifier=".no"), "cache_modifier='.no'"),
        (lambda p, x: tl.store(p, 1, eviction_policy="now"), "eviction_policy='now'"),
        (lambda p, x: tl.load(p + x, boundary_check=(0,)), "make_block_ptr"),
        (lambda p, x: p + 1.5, "pointers move by integers"),
        (lambda p, x: p + p, "sum of the pointers"),
        (lambda p, x: p * 2, "cast addresses to tl.int64"),
        (lambda p, x: p == p, "cast addresses to tl.int64"),
        (lambda p, x: 5 - p, "minus the pointer"),
        (lambda p, x: tl.atomic_add(p, 1, sem="often"), "sem='often'"),
        (lambda p, x: tl.atomic_add(p, 1, scope="world"), "scope='world'"),
    ],
)
def test_bad_accesses(wrong, said):
    with writing() as b:
        p = pointer(b, tl.float32)
        with pytest.raises(Invalid, match=said):
            wrong(p, given(b, tl.int32, 4))


def test_constant_memory_is_not_written():
    with writing() as b:
        p = tl.tensor(pointer(b, tl.float32).handle, tl.pointer_type(tl.float32, const=True))
        tl.load(p + tl.arange(0, 4))
        with pytest.raises(Invalid, match="to a constant pointer"):
            tl.store(p + tl.arange(0, 4), 0)


@pytest.mark.parametrize(
    "kind, value, wanted",
    [("add", 5, 17), ("max", 20, 20), ("min", 5, 5), ("and", 10, 8), ("or", 3, 15)]
    + [("xor", 10, 6), ("xchg", 1, 1)],
)
@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64], ids=str)
def test_atomics(kind, value, wanted, dtype):
    memory = np.array([12, 12], dtype)
    with running(memory) as (p,):
        old = getattr(tl, f"atomic_{kind}")(p, value, sem="relaxed", scope="cta")
        assert int(old) == 12
        at = p + tl.arange(0, 2)
        getattr(at, f"atomic_{kind}")(value, mask=tile([False, True], tl.int1))
    assert memory.tolist() == [wanted, wanted]


def test_atomics_on_floats_and_equal_addresses():
    memory = np.zeros(1, np.float32)
    with running(memory) as (p,):
        tl.atomic_add(p + tl.full((8,), 0, tl.int32), tl.arange(0, 8))
        assert memory[0] == 28
        tl.atomic_max(p, 40.5)
        assert memory[0] == 40.5
        tl.atomic_min(p, -1.0)
        assert memory[0] == -1


def test_compare_and_swap():
    memory = np.array([3, 4], np.int32)
    with running(memory) as (p,):
        assert int(tl.atomic_cas(p, 3, 9)) == 3 and int(tl.atomic_cas(p, 3, 1)) == 9
        (p + tl.arange(0, 2)).atomic_cas(tile([9, 9], tl.int32), 0)
    assert memory.tolist() == [0, 4]


def test_atomics_have_their_types():
    with writing() as b:
        for kind, name in [(tl.int8, "add"), (tl.int16, "add"), (tl.float16, "max")] + [
            (tl.bfloat16, "xchg"),
            (tl.float32, "and"),
        ]:
            with pytest.raises(Invalid, match=f"atomic_{name} on {kind}"):
                getattr(tl, f"atomic_{name}")(pointer(b, kind), 1)
        with pytest.raises(Invalid, match="atomic_cas on uint8"):
            tl.atomic_cas(pointer(b, tl.uint8), 1, 2)
        assert tl.atomic_add(pointer(b, tl.bfloat16), 1).dtype == tl.bfloat16


def test_polling_tells_whether_the_value_came():
    memory, narrow = np.array([1], np.int32), np.array([5], np.int16)
    with running(memory, narrow) as (p, q):
        assert bool(tl.atomic_poll(p, 1))
        assert not bool(tl.atomic_poll(p, 2, timeout_ns=0))
        assert bool(tl.atomic_poll(q, 5, sem="relaxed", scope="cta"))
