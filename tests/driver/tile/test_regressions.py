"""Kernels that were once compiled to something else than they say, as small as they go."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tilewright as tw
import tilewright.language as tl
from tilewright import targets
from tilewright.driver.tile.compile import write_tile
from tilewright.ir.types import f32, i32, i64
from tilewright.lang.tile.front.frontend import translate
from tilewright.lang.tile.front.functions import Argument


@tw.jit
def wrapped_kernel(x, least, wide, small, B: tl.constexpr):
    i = tl.arange(0, B)
    scaled = tl.load(x) * 3
    tl.store(least, tl.minimum(scaled, 7))
    moved = tl.load(x + i) + i * 65536
    tl.store(wide + i, moved.to(tl.int64))
    tl.store(small + i, moved < 0)


def test_numbers_out_of_memory_wrap_around() -> None:
    x = np.array([2**30, 2**31 - 1, -(2**31), 5], np.int32)
    least, wide, small = np.zeros(1, np.int32), np.zeros(4, np.int64), np.zeros(4, bool)
    wrapped_kernel[(1,)](x, least, wide, small, B=4)
    with np.errstate(over="ignore"):
        assert least[0] == min(x[0] * np.int32(3), 7)
        moved = x + np.arange(4, dtype=np.int32) * np.int32(65536)
    np.testing.assert_array_equal(wide, moved)
    np.testing.assert_array_equal(small, moved < 0)


@tw.jit
def exchanged_kernel(x, out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + (i ^ 5), tl.load(x + i))


def test_places_by_bits_of_the_position() -> None:
    x = np.arange(16, dtype=np.float32)
    out = np.zeros_like(x)
    exchanged_kernel[(1,)](x, out, B=16)
    np.testing.assert_array_equal(out, x[np.arange(16) ^ 5])


@tw.jit
def inner_products_kernel(a, b, x, out, n, m, LATE: tl.constexpr):
    i = tl.arange(0, 16)
    at = i[:, None] * 16 + i[None, :]
    p, q, c = tl.load(a + at), tl.load(b + at), tl.load(x + at)
    total = tl.zeros((16, 16), dtype=tl.float32)
    for k in range(n):
        if LATE:
            for _ in range(m):
                total += tl.dot(p, q, c * 2.0)
        else:
            twice = c * 2.0
            for _ in range(m):
                total += tl.dot(p, q, twice)
        c = tl.load(x + at + k)
    tl.store(out + at, total)


@pytest.mark.parametrize("late", [True, False])
def test_what_an_inner_loop_adds_to_is_not_changed_by_it(late: bool) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (16, 16)).astype(np.float32) for _ in range(2))
    x, out = rng.integers(-3, 4, 260).astype(np.float32), np.zeros((16, 16), np.float32)
    inner_products_kernel[(1,)](a, b, x, out, 3, 2, LATE=late)
    want = sum(2 * (a @ b + 2 * x[k : k + 256].reshape(16, 16)) for k in (0, 0, 1))
    np.testing.assert_array_equal(out, want)


@tw.jit
def sums_after_kernel(a, out, first, n):
    i = tl.arange(0, 16)
    at = i[:, None] * 16 + i[None, :]
    p = tl.load(a + at)
    acc = tl.zeros((16, 16), dtype=tl.float32)
    for _ in range(n):
        acc = tl.dot(p, p, acc)
    tl.store(out + at, tl.dot(p, p, acc * 2.0))
    tl.store(first + at, acc)


def test_the_result_of_a_loop_is_read_twice() -> None:
    a = np.random.default_rng(0).integers(-3, 4, (16, 16)).astype(np.float32)
    out, first = np.zeros_like(a), np.zeros_like(a)
    sums_after_kernel[(1,)](a, out, first, 2)
    np.testing.assert_array_equal(first, 2 * (a @ a))
    np.testing.assert_array_equal(out, 5 * (a @ a))


@tw.jit
def clamped_least_kernel(x, out, B: tl.constexpr):
    tl.store(out, tl.min(tl.clamp(tl.load(x + tl.arange(0, B)), -1.0, 1.0)))


def test_the_least_of_what_is_known_to_be_numbers() -> None:
    out = np.zeros(1, np.float32)
    clamped_least_kernel[(1,)](np.linspace(-0.5, 3, 8, dtype=np.float32), out, B=8)
    assert out[0] == -0.5


@tw.jit
def first_column_kernel(x, out, n):
    i, j = tl.arange(0, 32)[:, None], tl.arange(0, 16)[None, :]
    v = tl.load(x + i + j * 64).to(tl.int16)
    tl.store(out + i * n + j, -v, mask=j < 1)


def test_one_lane_of_narrow_numbers_is_stored() -> None:
    x, out = np.arange(1024, dtype=np.int32), np.full((32, 16), 77, np.int16)
    first_column_kernel[(1,)](x, out, 16)
    assert (out[:, 1:] == 77).all()
    np.testing.assert_array_equal(out[:, 0], -x[:32])


@tw.jit
def first_half_kernel(x, out):
    i = tl.arange(0, 4)
    tl.store(out + i, tl.load(x + i).to(tl.int32), mask=i < 1)


def test_one_lane_out_of_wider_numbers_is_stored() -> None:
    x, out = np.arange(5, 9, dtype=np.int64), np.full(4, 77, np.int32)
    first_half_kernel[(1,)](x, out)
    assert out.tolist() == [5, 77, 77, 77]
    given = {"x": Argument.pointer(i64), "out": Argument.pointer(i32)}
    forms = write_tile(translate(first_half_kernel, given), targets.get("x86-64-v4"))
    assert "vpmovqd" in forms.asm, "not 32 bits of a lane are stored"


@tw.jit
def kept_in_branch_kernel(x, out, other, n):
    pid = tl.program_id(0)
    i = tl.arange(0, 4)
    v = tl.load(x + i)
    for k in range(n):
        v = tl.load(x + i + k + pid)
    more = v + 1.0
    if pid != 1:
        tl.store(other + pid * 4 + i, tl.flip(more, 0))
    tl.store(out + pid * 4 + i, more)


def test_what_a_branch_keeps_is_not_there_without_it() -> None:
    x = np.arange(1, 17, dtype=np.float32)
    out, other = np.zeros((3, 4), np.float32), np.zeros((3, 4), np.float32)
    kept_in_branch_kernel[(3,)](x, out, other, 2)
    want = np.stack([x[p + 1 : p + 5] for p in range(3)]) + 1
    np.testing.assert_array_equal(out, want)
    np.testing.assert_array_equal(other, want[:, ::-1] * [[1], [0], [1]])


@tw.jit
def ends_kernel(x, out, STEP: tl.constexpr):
    first, apart = tl.load(x), tl.load(x + 1)
    n = 0
    for _ in range(first, first + 2 * STEP, STEP):
        n += 1
    m = 0
    for _ in range(first, apart, STEP):
        m += 1
    tl.store(out, n)
    tl.store(out + 1, m)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("step", [1, 3, -2])
def test_the_end_of_a_range_may_overflow(dtype: type, step: int) -> None:
    limits = np.iinfo(dtype)
    last = int(limits.max if step > 0 else limits.min)
    for first, times in ((5, 2), (last - 2 * step, 2), (last, 0), (last - step, 0)):
        before = int(limits.min if step > 0 else limits.max)  # so far that the way to it overflows
        x, out = np.array([first, before], dtype), np.full(2, -1, np.int32)
        ends_kernel[(1,)](x, out, STEP=step)
        assert out.tolist() == [times, 0], first


@tw.jit
def inverse_kernel(a, out, ends, B: tl.constexpr):
    rows = tl.load(ends + 1).to(tl.int32) - tl.load(ends).to(tl.int32)
    i = tl.arange(0, B)
    m = tl.load(a + i[:, None] * B + i[None, :])
    m = -tl.where(i[:, None] > i[None, :], m, 0)
    for k in range(2, tl.minimum(B, rows)):
        row = tl.where(i < k, -tl.load(a + k * B + i), 0.0)
        row += tl.sum(row[:, None] * m, 0)
        m = tl.where((i == k)[:, None], row, m)
    tl.store(out + i[:, None] * B + i[None, :], m)


def test_a_loop_that_ends_where_memory_says() -> None:
    """Its end is a minimum of a constant and of what was read, so it has a constant bound too."""
    a = np.tril(np.random.default_rng(0).normal(size=(16, 16)) / 4, -1).astype(np.float32)
    out = np.zeros((16, 16), np.float32)
    inverse_kernel[(1,)](a, out, np.array([3, 19]), B=16)
    wanted = np.linalg.inv(np.eye(16) + a.astype(np.float64)) - np.eye(16)
    np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-5)


@tw.jit
def between(x, out, low, high, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    inside = (at >= low) & (at < high)
    values = tl.load(x + at, mask=inside, other=-1.0)
    tl.store(out + at, values, mask=at < n)
    total = values
    if n > 3:
        total += tl.load(x + at, mask=(at < low) | (at >= high), other=0.5)
    tl.store(out + n + at, total, mask=~(at >= n))


@pytest.mark.parametrize("low, high, n", [(0, 256, 256), (5, 70, 200), (0, 0, 3), (90, 3, 129)])
def test_vectors_of_which_no_lane_is_chosen(low, high, n):
    """Those beyond the end of a row are left out by a branch, with the value that stands for it."""
    x = torch.arange(256, dtype=torch.float32)
    out = torch.full((2 * 256,), -9.0)
    between[(1,)](x, out, low, high, n, BLOCK=256)
    at = torch.arange(256)
    inside = (at >= low) & (at < high)
    want = torch.where(inside, x, -1.0)
    total = want + torch.where(inside, 0.5, x) if n > 3 else want
    assert torch.equal(out[: 2 * n], torch.cat((want[:n], total[:n])))
    assert (out[2 * n :] == -9.0).all()


@tw.jit
def scaled_sum_kernel(x, at, by, out, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    i, j, k = tl.arange(0, A), tl.arange(0, B), tl.arange(0, C)
    tile = tl.load(x + i[:, None, None] * (B * C) + j[None, :, None] * C + k[None, None, :])
    factor = tl.load(by + tl.load(at))
    tl.store(out + i[:, None] * C + k[None, :], tl.sum(tile * factor, 1))


@pytest.mark.parametrize("shape", [(1, 2, 1), (2, 4, 16), (8, 16, 64)])
def test_a_factor_that_is_one_number_makes_no_product_of_tiles(shape: tuple[int, ...]) -> None:
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    out = np.zeros((shape[0], shape[2]), np.float32)
    at, by = np.array([1], np.int32), np.array([0.0, 0.5], np.float32)
    scaled_sum_kernel[(1,)](x, at, by, out, *shape)
    np.testing.assert_array_equal(out, x.sum(1) * 0.5)


@tw.jit
def around_kernel(x, out, start, n, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, tl.load(x + (start + i) % n))


@pytest.mark.parametrize("start", [0, 3, 40])
@pytest.mark.parametrize("n", [1, 3, 31, 50, 200])
def test_lanes_that_wrap_around(start: int, n: int) -> None:
    x, out = np.arange(256, dtype=np.float32), np.zeros(32, np.float32)
    around_kernel[(1,)](x, out, start, n, B=32)
    np.testing.assert_array_equal(out, x[(start + np.arange(32)) % n])


def test_lanes_that_wrap_around_take_no_division_each() -> None:
    given = dict.fromkeys(("x", "out"), Argument.pointer(f32))
    sizes = dict.fromkeys(("start", "n"), Argument.scalar(i32, 1, True))
    kernel = translate(around_kernel, {**given, **sizes, "B": Argument.constant(32)})
    text = write_tile(kernel, targets.get("x86-64-v4")).llir
    body = text[text.index("around_kernel") :]
    assert body.count("urem i64") + body.count("srem i64") <= 6, "32 lanes divide"


@tw.jit
def row_sums_kernel(x, out, n, B: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, B)
    tl.store(out + row, tl.sum(tl.load(x + row * n + i, mask=i < n, other=0.0), axis=0))


@pytest.mark.parametrize(("columns", "ahead"), [(1024, True), (256, False)])
def test_rows_of_a_page_are_prefetched_for_the_next_program(columns: int, ahead: bool) -> None:
    given = dict.fromkeys(("x", "out"), Argument.pointer(f32))
    sizes = {"n": Argument.scalar(i32, 1, True), "B": Argument.constant(columns)}
    forms = write_tile(translate(row_sums_kernel, {**given, **sizes}), targets.get("x86-64-v4"))
    assert ("prefetch x" in forms.nest) == ahead
    x, out = np.random.rand(3, columns).astype(np.float32), np.zeros(3, np.float32)
    row_sums_kernel[(3,)](x, out, columns, B=columns)
    np.testing.assert_allclose(out, x.sum(1), rtol=1e-5)
