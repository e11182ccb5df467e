"""What each operation means, against numpy, torch and plain Python."""

import numpy as np
import pytest

from tilewright.base.errors import Invalid
from tilewright.ir.types import (
    b1,
    bf16,
    f8e4m3,
    f8e5m2,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
)
from tilewright.lang.tile.ir import Pointer, TileType
from tilewright.lang.tile.stepping.evaluate import as_element, cast, dot, evaluate
from tilewright.lang.tile.stepping.raw_memory import from_bits, to_bits


def one(name, arrays, elements, result, shape, **attrs):
    given = [TileType(e, np.shape(a)) for a, e in zip(arrays, elements, strict=True)]
    data = [np.asarray(a, TileType(e).dtype.numpy) for a, e in zip(arrays, elements, strict=True)]
    (r,) = evaluate(name, data, given, [TileType(result, shape)], attrs)
    return r


def test_integers_wrap():
    r = one("map", [[127, -128], [1, -1]], [i8, i8], i8, (2,), fn="add")
    assert r.dtype == np.int8 and r.tolist() == [-128, 127]
    assert one("map", [0, 1], [u32, u32], u32, (), fn="sub").tolist() == 0xFFFFFFFF


def test_constants_of_any_size_wrap():
    assert as_element(2**32 - 1, i32).tolist() == -1
    assert as_element(-1, u64).tolist() == 2**64 - 1
    assert as_element(2**70, f32).tolist() == float(2**70)


def test_halves_are_computed_in_float32():
    a, b = np.float16(2048), np.float16(1)
    r = one("map", [[a], [b]], [f16, f16], f16, (1,), fn="add")
    assert r.dtype == np.float16 and r[0] == 2048  # ties to even
    r = one("map", [[1.0], [2**-9]], [bf16, bf16], bf16, (1,), fn="add")
    assert r[0] == 1.0


@pytest.mark.parametrize(
    "x, target, expected",
    [
        (3.99, i32, 3),
        (-3.99, i32, -3),
        (300.0, u8, 44),
        (2.0**63, u64, 2**63),
        (2.0**31, u32, 2**31),
        (float("nan"), i64, 0),
        (0.25, b1, True),
    ],
)
def test_floats_become_integers(x, target, expected):
    assert cast(np.asarray(x), f64, target).tolist() == expected


def test_integers_become_floats_and_bools():
    assert cast(np.asarray([0, 5], np.int64), i64, b1).tolist() == [False, True]
    assert cast(np.asarray(2**24 + 1, np.int32), i32, f32).tolist() == 2.0**24
    assert cast(np.asarray([True, False]), b1, f16).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("target", [f16, bf16, f8e4m3, f8e5m2])
def test_cut_floats_are_never_larger_and_the_nearest_below(target):
    x = np.random.default_rng(0).normal(size=500).astype(np.float32) * 3
    cut = cast(x, f32, target, "rtz").astype(np.float32)
    assert np.all(np.abs(cut) <= np.abs(x))
    above = from_bits(to_bits(cut, target) + np.asarray(1, f"u{target.bytes}"), target)
    inexact = cut != x
    assert inexact.any()
    assert np.all(np.abs(above.astype(np.float32))[inexact] > np.abs(x)[inexact])


def test_cut_and_rounded_float64():
    x = np.asarray([1 + 2.0**-24 + 2.0**-40, -1 - 2.0**-24 - 2.0**-40])
    assert cast(x, f64, f32).tolist() == [1 + 2.0**-23, -1 - 2.0**-23]
    assert cast(x, f64, f32, "rtz").tolist() == [1.0, -1.0]


def test_bits_of_all_elements_go_there_and_back():
    for e in (u8, i8, f8e4m3, f8e5m2):
        codes = np.arange(256, dtype=np.uint8)
        again = to_bits(from_bits(codes, e), e)
        known = ~np.isnan(from_bits(codes, e).astype(np.float32))
        assert np.array_equal(again[known], codes[known])
    codes = np.arange(65536, dtype=np.uint16)
    for e in (bf16, f16, i16, u16):
        assert np.array_equal(to_bits(from_bits(codes, e), e), codes)  # NaNs too


def test_bitcast():
    assert one("bitcast", [[1.0]], [f32], i32, (1,)).tolist() == [0x3F800000]
    assert one("bitcast", [[1.0]], [bf16], i16, (1,)).tolist() == [0x3F80]
    pointer = TileType(Pointer(f32))
    (r,) = evaluate("bitcast", [np.asarray(4096)], [TileType(i64)], [pointer], {})
    assert r.tolist() == 4096


def test_pointers_move_by_elements():
    p = TileType(Pointer(f64), (2,))
    at = [np.asarray([800, 800]), np.asarray([3, -1], np.int32)]
    (r,) = evaluate("offset", at, [p, TileType(i32, (2,))], [p], {})
    assert r.tolist() == [824, 792]


def test_what_moves_elements():
    x = np.arange(8).reshape(2, 4)
    assert one("reshape", [x], [i32], i32, (4, 2)).tolist() == x.reshape(4, 2).tolist()
    assert one("permute", [x], [i32], i32, (4, 2), order=(1, 0)).tolist() == x.T.tolist()
    assert one("broadcast", [[[1], [2]]], [i32], i32, (2, 3)).tolist() == [[1] * 3, [2] * 3]
    assert one("join", [[1, 2], [3, 4]], [i32, i32], i32, (2, 2)).tolist() == [[1, 3], [2, 4]]
    assert one("cat", [[1, 2], [3, 4]], [i32, i32], i32, (4,)).tolist() == [1, 2, 3, 4]
    t = [TileType(i32, (2,))] * 2
    a, b = evaluate("split", [np.asarray([[1, 3], [2, 4]])], [TileType(i32, (2, 2))], t, {})
    assert (a.tolist(), b.tolist()) == ([1, 2], [3, 4])
    assert one("iota", [], [], i32, (4,), start=2).tolist() == [2, 3, 4, 5]


def test_gather_takes_what_is_there():
    x, i = [[10, 11], [20, 21]], [[1, 1], [0, 1]]
    assert one("gather", [x, i], [i32, i32], i32, (2, 2), axis=1).tolist() == [[11, 11], [20, 21]]
    with pytest.raises(Invalid, match="element 2 of an axis of 2"):
        one("gather", [x, [[0, 2], [0, 0]]], [i32, i32], i32, (2, 2), axis=1)


def test_products():
    rng = np.random.default_rng(1)
    a = rng.integers(-128, 128, (2, 4, 8)).astype(np.int8)
    b = rng.integers(-128, 128, (2, 8, 4)).astype(np.int8)
    c = rng.integers(-9, 9, (2, 4, 4)).astype(np.int32)
    r = dot(a, b, c, i32)
    assert r.dtype == np.int32
    assert np.array_equal(r, a.astype(np.int32) @ b.astype(np.int32) + c)
    big = np.full((2, 2), 2**30, np.int32)
    assert np.array_equal(dot(big, big, big, i32), big)  # 2**61 wraps to 0
    x, y = rng.normal(size=(4, 8)), rng.normal(size=(8, 4))
    wanted = x.astype(np.float32) @ y.astype(np.float32)
    zero = np.zeros((4, 4), np.float32)
    found = dot(x.astype(np.float32), y.astype(np.float32), zero, f32)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_histogram_counts_what_is_inside():
    x, m = [0, 1, 1, 3, 9, -1, 2, 2], [1, 1, 0, 1, 1, 1, 1, 1]
    assert one("histogram", [x], [i32], i32, (4,)).tolist() == [1, 2, 2, 1]
    assert one("histogram", [x, m], [i32, b1], i32, (4,)).tolist() == [1, 1, 2, 1]


def test_what_has_effects_is_refused():
    with pytest.raises(Invalid, match="load"):
        evaluate("load", [], [], [], {})
