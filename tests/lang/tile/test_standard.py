"""The library of the tile language against numpy."""

import numpy as np
import pytest

from tests.lang.tile.library import (
    FLOATS,
    FLOATS_8,
    NUMBERS,
    SIGNED,
    UNSIGNED,
    Tile,
    random_tile,
    run,
    run_eagerly,
    tile,
)
from tests.seeds import crossed, diagonals
from tilewright.base.errors import Invalid
from tilewright.ir.types import as_dtype, bf16
from tilewright.lang.tile.language import core
from tilewright.lang.tile.library import standard
from tilewright.lang.tile.stepping.raw_memory import from_bits, to_bits

NAN = float("nan")


def names(dtypes):
    return {"argvalues": dtypes, "ids": [d.name for d in dtypes]}


# ---- shapes and numbers


def test_cdiv_rounds_up_tiles_and_constants():
    x = tile(np.arange(8), core.int32)
    assert run(standard.cdiv, x, 3)[0].tolist() == [0, 1, 1, 1, 2, 2, 2, 3]
    assert run(standard.cdiv, tile(7, core.int32), tile(2, core.int32))[0] == 4


@pytest.mark.parametrize("dtype", **names((core.float32, core.float64)))
def test_sigmoid(dtype):
    x = random_tile(dtype, 32)
    np.testing.assert_allclose(run(standard.sigmoid, x)[0], 1 / (1 + np.exp(-x.array)), rtol=1e-6)


@pytest.mark.parametrize("dim", [None, 0, 1])
@pytest.mark.parametrize("ieee", [False, True])
def test_softmax_along_any_axis(dim, ieee):
    x = random_tile(core.float32, 4, 8)
    x.array[0, 0] = 200  # whose exponential is infinite
    e = np.exp(x.array - x.array.max(dim or 0, keepdims=True))
    (found,) = run(standard.softmax, x, dim=dim, ieee_rounding=ieee)
    np.testing.assert_allclose(found, e / e.sum(dim or 0, keepdims=True), rtol=1e-6)


def test_ravel_zeros_and_zeros_like():
    x = random_tile(core.int16, 4, 2)
    assert run(standard.ravel, x)[0].tolist() == x.array.reshape(-1).tolist()
    assert run(standard.zeros_like, x)[0].shape == (4, 2)
    assert run_eagerly(standard.zeros_like, x)[0].dtype == core.int16
    (z,) = run_eagerly(standard.zeros, (2, 4), core.float16)
    assert z.array.shape == (2, 4) and z.dtype == core.float16 and not z.array.any()


def test_swizzle2d_walks_groups_of_rows_by_column():
    i, j = np.divmod(np.arange(64), 8)
    size_i, size_j, size_g = 5, 7, 3
    keep = (i < size_i) & (j < size_j)
    new_i, new_j = run(
        standard.swizzle2d, tile(i, core.int32), tile(j, core.int32), size_i, size_j, size_g
    )
    order = [
        (r, c)
        for g in range(0, size_i, size_g)
        for c in range(size_j)
        for r in range(g, min(g + size_g, size_i))
    ]
    wanted = [order[r * size_j + c] for r, c in zip(i[keep], j[keep], strict=True)]
    assert list(zip(new_i[keep].tolist(), new_j[keep].tolist(), strict=True)) == wanted


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -3])
def test_squeeze_undoes_unsqueeze(dim):
    x = random_tile(core.float32, 2, 4)
    (wide,) = run(standard.unsqueeze, x, dim=dim)
    assert wide.shape == np.expand_dims(x.array, dim).shape
    (back,) = run(standard.squeeze, tile(wide), dim=dim)
    np.testing.assert_array_equal(back, x.array)


def test_squeeze_of_what_is_not_one():
    with pytest.raises(Invalid, match="axis 1"):
        run_eagerly(standard.squeeze, random_tile(core.float32, 2, 4), dim=1)
    with pytest.raises(Invalid, match="no axis 4"):
        run_eagerly(standard.unsqueeze, random_tile(core.float32, 2, 4), dim=4)


def test_interleave():
    a, b = random_tile(core.float32, 2, 4), random_tile(core.float32, 2, 4, seed=1)
    wanted = np.stack([a.array, b.array], -1).reshape(2, 8)
    np.testing.assert_array_equal(run(standard.interleave, a, b)[0], wanted)
    assert run(standard.interleave, tile(1.0), tile(2.0))[0].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("dtype", "dim"), crossed((core.int1, *NUMBERS, *FLOATS_8), [None, 0, 1, -2], 4)
)
def test_flip(dtype, dim):
    x = random_tile(dtype, 4, 8)
    wanted = np.flip(x.array, -1 if dim is None else dim)
    np.testing.assert_array_equal(run(standard.flip, x, dim=dim)[0], wanted)


def test_flip_keeps_infinities_and_says_which_axes_there_are():
    x = tile([1, np.inf, -np.inf, NAN])
    np.testing.assert_array_equal(run(standard.flip, x)[0], x.array[::-1])
    with pytest.raises(Invalid, match="no axis 3"):
        run_eagerly(standard.flip, x, dim=3)


# ---- max and min


def reduced(dtype):
    if dtype.primitive_bitwidth >= 32:
        return dtype
    return core.float32 if dtype.is_floating() else core.int32


@pytest.mark.parametrize(
    ("dtype", "axis", "keep_dims"),
    diagonals((core.int1, *NUMBERS, *FLOATS_8), [None, 0, 1, -1], [False, True], step=4),
)
def test_max_and_min(dtype, axis, keep_dims):
    x = random_tile(dtype, 8, 4)
    for f, g in ((standard.max, np.max), (standard.min, np.min)):
        (found,) = run(f, x, axis=axis, keep_dims=keep_dims)
        np.testing.assert_array_equal(found, g(x.array, axis, keepdims=keep_dims))
        assert run_eagerly(f, x, axis=axis)[0].dtype == reduced(dtype)


@pytest.mark.parametrize(
    ("dtype", "axis", "keep_dims"), diagonals(NUMBERS, [0, 1, -1], [False, True], step=3)
)
def test_the_first_of_equal_ones(dtype, axis, keep_dims):
    x = random_tile(dtype, 8, 16, low=-2, high=2)
    for f, g in ((standard.argmax, np.argmax), (standard.argmin, np.argmin)):
        (found,) = run(f, x, axis=axis, keep_dims=keep_dims)
        np.testing.assert_array_equal(found, g(x.array, axis, keepdims=keep_dims))
        assert run_eagerly(f, x, axis=axis)[0].dtype == core.int32


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("dtype", **names((core.int32, core.bfloat16, core.float32)))
def test_values_and_where_they_are(dtype, left):
    x = random_tile(dtype, 4, 32)
    for f, g in ((standard.max, np.max), (standard.min, np.min)):
        value, where = run(f, x, axis=1, return_indices=True, return_indices_tie_break_left=left)
        np.testing.assert_array_equal(value, g(x.array, 1))
        np.testing.assert_array_equal(np.take_along_axis(x.array, where[:, None], 1)[:, 0], value)


def test_where_it_is_among_all():
    x = random_tile(core.float32, 4, 8)
    value, where = run(standard.max, x, return_indices=True)
    assert value == x.array.max() and where == x.array.argmax()


@pytest.mark.parametrize("left", [False, True])
def test_numbers_win_over_nan(left):
    x = tile([[NAN, 6, 8, -1], [3, 5, NAN, 2], [3, NAN, 1, NAN], [NAN, NAN, NAN, 7]])
    assert run(standard.max, x, axis=1)[0].tolist() == [8, 5, 3, 7]
    assert run(standard.min, x, axis=1)[0].tolist() == [-1, 2, 1, 7]
    assert run(standard.argmax, x, axis=1, tie_break_left=left)[0].tolist() == [2, 1, 0, 3]
    assert run(standard.argmin, x, axis=1, tie_break_left=left)[0].tolist() == [3, 3, 2, 3]


def test_reductions_along_an_axis_that_is_not_there():
    for f in (standard.argmax, standard.max, standard.sum):
        with pytest.raises(Invalid, match="axis"):
            run_eagerly(f, random_tile(core.float32, 4, 4), axis=2)


# ---- sums, products, bits


@pytest.mark.parametrize(
    ("dtype", "axis", "keep_dims"),
    diagonals((core.int1, *NUMBERS), [None, 0, 1, -1], [False, True], step=4),
)
def test_sum(dtype, axis, keep_dims):
    x = random_tile(dtype, 8, 16)
    (found,) = run(standard.sum, x, axis=axis, keep_dims=keep_dims)
    exact = x.array.astype(np.float64).sum(axis, keepdims=keep_dims)
    if dtype.is_floating():
        width = {"fp16": 2e-3, "bf16": 1e-2, "fp32": 1e-5, "fp64": 1e-12}[dtype.name]
        np.testing.assert_allclose(found, exact, rtol=width, atol=width)
    else:
        np.testing.assert_array_equal(found, exact)


def test_what_sums_are():
    wanted = {
        core.int1: core.uint32,
        core.int8: core.int32,
        core.uint16: core.uint32,
        core.int64: core.int64,
        core.bfloat16: core.bfloat16,
        core.float16: core.float16,
    }
    for dtype, result in wanted.items():
        assert run_eagerly(standard.sum, random_tile(dtype, 8))[0].dtype == result
    x = tile([100, 100], core.int8)
    (wide,) = run_eagerly(standard.sum, x, dtype=core.int64)
    assert wide.dtype == core.int64 and wide.array == 200
    (narrow,) = run_eagerly(standard.sum, x, dtype=core.int8)
    assert narrow.dtype == core.int8 and narrow.array == -56


def test_sums_of_many_short_floats_lose_nothing_on_the_way():
    x = tile(np.full(4096, 0.01), core.bfloat16)
    (found,) = run(standard.sum, x)
    assert found == as_dtype(np.asarray(x.array.astype(np.float64).sum()), bf16)
    (running,) = run(standard.cumsum, tile(np.full(2048, 1.0), core.float16))
    assert running[-1] == 2048


@pytest.mark.parametrize("dtype", **names((core.int1, *SIGNED, *UNSIGNED)))
@pytest.mark.parametrize("axis", [0, 1])
def test_xor_and_or(dtype, axis):
    x = random_tile(dtype, 8, 4)
    (found,) = run(standard.xor_sum, x, axis=axis)
    np.testing.assert_array_equal(found, np.bitwise_xor.reduce(x.array, axis))
    (found,) = run(standard.reduce_or, x, axis=axis)
    np.testing.assert_array_equal(found, np.bitwise_or.reduce(x.array, axis))


def test_bits_of_floats_are_refused():
    for f in (standard.xor_sum, standard.reduce_or):
        with pytest.raises(Exception, match="integers only"):
            run_eagerly(f, random_tile(core.float32, 4), axis=0)


@pytest.mark.parametrize(
    ("dtype", "axis", "reverse"), diagonals(NUMBERS, [0, 1], [False, True], step=2)
)
def test_running_sums_and_products(dtype, axis, reverse):
    x = random_tile(dtype, 8, 8, low=-2, high=3)
    turned = np.flip(x.array, axis) if reverse else x.array
    for f, g in ((standard.cumsum, np.cumsum), (standard.cumprod, np.cumprod)):
        (found,) = run(f, x, axis=axis, reverse=reverse)
        exact = g(turned.astype(np.float64 if dtype.is_floating() else turned.dtype), axis)
        exact = np.flip(exact, axis) if reverse else exact
        if dtype.is_floating():
            rough = 2e-3 if dtype.is_fp16() else 1e-4
            scale = np.abs(exact).max() * rough + 1e-6
            np.testing.assert_allclose(found, exact, rtol=rough, atol=scale * 1e-2)
        else:
            np.testing.assert_array_equal(found, exact.astype(found.dtype))


def test_what_running_sums_are():
    assert run_eagerly(standard.cumsum, random_tile(core.bfloat16, 8))[0].dtype == core.float32
    assert run_eagerly(standard.cumprod, random_tile(core.bfloat16, 8))[0].dtype == core.float32
    assert run_eagerly(standard.cumsum, random_tile(core.int8, 8))[0].dtype == core.int32
    (found,) = run_eagerly(standard.cumsum, random_tile(core.float16, 8), dtype=core.float32)
    assert found.dtype == core.float32


# ---- sorting


def in_order(x, axis, descending):
    y = np.sort(x, axis)  # NaN comes last
    return np.flip(y, axis) if descending else y


@pytest.mark.parametrize(
    ("dtype", "descending"), crossed((core.int1, *NUMBERS, *FLOATS_8), [False, True], 2)
)
def test_sort(dtype, descending):
    x = random_tile(dtype, 4, 16)
    (found,) = run(standard.sort, x, descending=descending)
    np.testing.assert_array_equal(found, in_order(x.array, -1, descending))
    assert run_eagerly(standard.sort, x)[0].dtype == dtype


@pytest.mark.parametrize("shape", [(1,), (2,), (128,), (1, 1), (8, 1), (2, 4, 8)])
@pytest.mark.parametrize("descending", [False, True])
def test_sort_along_every_axis(shape, descending):
    x = random_tile(core.float32, *shape)
    for axis in range(-len(shape), len(shape)):
        (found,) = run(standard.sort, x, dim=axis, descending=descending)
        np.testing.assert_array_equal(found, in_order(x.array, axis, descending))


@pytest.mark.parametrize("dtype", **names(FLOATS))
def test_sort_of_what_is_no_number(dtype):
    x = tile([NAN, -np.inf, 3, -0.0, np.inf, -NAN, 0.0, -2], dtype)
    (found,) = run(standard.sort, x)
    np.testing.assert_array_equal(found, [-np.inf, -2, 0, 0, 3, np.inf, NAN, NAN])
    (found,) = run(standard.sort, x, descending=True)
    np.testing.assert_array_equal(found, [NAN, NAN, np.inf, 3, 0, 0, -2, -np.inf])


@pytest.mark.parametrize("dtype", **names((core.float8e4nv, core.float8e5, core.float8e4b8)))
def test_sort_of_every_float_of_8_bits(dtype):
    x = from_bits(np.random.default_rng(0).permutation(256).astype(np.uint8), dtype.ir)
    (found,) = run(standard.sort, Tile(x, dtype))
    np.testing.assert_array_equal(found, np.sort(x))
    assert sorted(to_bits(found, dtype.ir)) == sorted(to_bits(x, dtype.ir))


def test_sort_of_the_ends_of_integers():
    for dtype in (*SIGNED, *UNSIGNED):
        least, most = dtype.get_int_min_value(), dtype.get_int_max_value()
        x = tile(np.array([most, 0, least, 1], f"{'i' if least else 'u'}8"), dtype)
        for descending in (False, True):
            (found,) = run(standard.sort, x, descending=descending)
            assert found.tolist() == sorted([most, 0, least, 1], reverse=descending)


@pytest.mark.parametrize(
    ("dtype", "k", "descending"),
    diagonals(
        (core.int32, core.uint8, core.bfloat16, core.float32),
        [1, 2, 8, 32],
        [False, True],
        step=2,
    ),
)
def test_topk(dtype, k, descending):
    x = random_tile(dtype, 4, 32)
    (found,) = run(standard.topk, x, k=k, descending=descending)
    np.testing.assert_array_equal(found, in_order(x.array, -1, descending)[:, :k])
    (found,) = run(standard.topk, x, k=min(k, 4), dim=0, descending=descending)
    np.testing.assert_array_equal(found, in_order(x.array, 0, descending)[: min(k, 4)])


@pytest.mark.parametrize("k", [0, 3, 16])
def test_topk_of_more_than_there_is(k):
    with pytest.raises(Invalid, match=f"k = {k} of 8"):
        run_eagerly(standard.topk, random_tile(core.float32, 8), k=k)


@pytest.mark.parametrize("dim", [None, 0, 1])
@pytest.mark.parametrize("descending", [False, True])
def test_bitonic_merge(dim, descending):
    axis = -1 if dim is None else dim
    x = np.sort(random_tile(core.float32, 8, 16).array, axis)
    n = x.shape[axis] // 2
    first, second = np.split(x, [n], axis)
    x = np.concatenate([first, np.flip(second, axis)], axis)
    (found,) = run(standard.bitonic_merge, tile(x), dim=dim, descending=descending)
    np.testing.assert_array_equal(found, in_order(x, axis, descending))


def test_methods_are_the_functions():
    x = random_tile(core.float32, 4, 8)

    def methods(x):
        return x.sum(axis=1), x.max(0), x.sort(descending=True), x.argmin(1), x.sigmoid()

    by_method = run_eagerly(methods, x)
    np.testing.assert_array_equal(by_method[0].array, run_eagerly(standard.sum, x, axis=1)[0].array)
    np.testing.assert_array_equal(by_method[1].array, x.array.max(0))
    np.testing.assert_array_equal(by_method[2].array, in_order(x.array, 1, True))
    np.testing.assert_array_equal(by_method[3].array, x.array.argmin(1))
    assert len(standard.METHODS) == 15
    for f in standard.METHODS:
        assert hasattr(core.tensor, f.name)
