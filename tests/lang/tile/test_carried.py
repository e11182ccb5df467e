"""What loops carry, compiled: which values are computed from the number of the iteration, and which
are held in a buffer because what is added to them changes."""
# Numbers of a kernel become tensors, which Python's own types do not show.

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as tl
from tilewright.ir.types import i32
from tilewright.kernel.nest import Nest
from tilewright.lang.tile.front.frontend import translate
from tilewright.lang.tile.front.functions import Argument, function
from tilewright.lang.tile.lowering.lower import lower
from tilewright.lang.tile.stepping.eager import run_eager

TERMS = np.array([3, 5, 7, 9, 11, 2, 4, 6, 8], np.int32)


@tw.jit
def sum_before_change(x, out, n):
    p, a = 0, tl.load(x)
    for i in range(n):
        p += a
        a = tl.load(x + i + 1)
        tl.store(out + i, p)
    tl.store(out + 8, p)


@tw.jit
def fibonacci(x, out, n):
    a, b = 1, 1
    for i in range(n):
        a += b
        a, b = b, a
        tl.store(out + i, b)
    tl.store(out + 8, a)


@tw.jit
def steps_that_move(x, out, n):
    """Quadratic after the first step, cubic after the second."""
    p, q, a = 0, 0, 1
    for i in range(n):
        q += p
        p += a
        a += 2
        tl.store(out + i, q)
    tl.store(out + 7, p)
    tl.store(out + 8, a)


@tw.jit
def steps_of_the_counter(x, out, n):
    p, q = 0, 5
    for i in range(n):
        twice = i * 2 + 1
        p += twice
        q -= 3
        tl.store(out + i, p + q)
    tl.store(out + 8, p)


@tw.jit
def steps_of_an_outer_loop(x, out, n):
    """What an inner loop adds does not change in it, but between its runs."""
    p, a = 0, 1
    for i in range(n):
        for _ in range(a & 3):
            p += a
        a += tl.load(x + i)
        tl.store(out + i, p)
    tl.store(out + 8, p)


@tw.jit
def inner_sums_as_steps(x, out, n):
    p, q = 0, 0
    for i in range(n):
        for j in range(i):
            p += j
        q += p
        tl.store(out + i, q)
    tl.store(out + 8, q)


@tw.jit
def under_a_condition(x, out, n):
    p, a = 0, 2
    for i in range(n):
        p += a
        if tl.load(x + i) > 6:
            a = p
        tl.store(out + i, p)
    tl.store(out + 8, a)


@tw.jit
def delayed(x, out, n):
    """Each value is handed on to the next variable."""
    p, a, b, c = 0, 1, 2, 3
    for i in range(n):
        p += a
        a = b
        b = c
        c = tl.load(x + i)
        tl.store(out + i, p)
    tl.store(out + 8, a + b + c)


@tw.jit
def pointers_and_tiles(x, out, n):
    """A pointer and a tile move by a number that moves."""
    at, p, a = tl.arange(0, 2), x, 0
    for i in range(n):
        p += a
        at += a
        a = tl.load(x + i) & 1
        tl.store(out + at + i, tl.load(p) + at)
    tl.store(out + 8, a)


@tw.jit
def called(x, out, n):
    p, a = 0, 1
    for i in range(n):
        p, a = added_and_next(p, a, 3)
        tl.store(out + i, p)
    tl.store(out + 8, a)


@tw.jit
def added_and_next(p, a, n):
    for _ in range(n):
        p += a
        a += p
    return p & 1023, a & 1023


KERNELS = (
    *(sum_before_change, fibonacci, steps_that_move, steps_of_the_counter, steps_of_an_outer_loop),
    *(inner_sums_as_steps, under_a_condition, delayed, pointers_and_tiles, called),
)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.__name__)
@pytest.mark.parametrize("n", [0, 1, 5])
def test_carried_values_are_those_of_python(kernel, n):
    out, want = np.zeros(16, np.int32), np.zeros(16, np.int32)
    kernel[(1,)](TERMS, out, n)
    run_eager(kernel, (1,), {"x": TERMS, "out": want, "n": n})
    np.testing.assert_array_equal(out, want)


def test_known_sums():
    out = np.zeros(16, np.int32)
    sum_before_change[(1,)](TERMS, out, 3)
    assert out[:3].tolist() == [3, 8, 15]
    fibonacci[(1,)](TERMS, out, 6)
    assert out[:6].tolist() == [2, 3, 5, 8, 13, 21]


@tw.jit
def select_kernel(x, mask, out, n, BLOCK: tl.constexpr):
    """Elements under a mask, one after the other: the pointer moves by how many there were."""
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        chosen = tl.load(mask + at, mask=at < n, other=0) != 0
        count = chosen.to(tl.int32)
        tl.store(out + tl.cumsum(count, 0) - 1, tl.load(x + at, mask=at < n), mask=chosen)
        out += tl.sum(count, 0)


@tw.jit
def select_two_passes(x, mask, out, n, BLOCK: tl.constexpr):
    """The same, with the number of the block before added when the next one begins."""
    total, last = 0, 0
    for start in range(0, n, BLOCK):
        total += last
        at = start + tl.arange(0, BLOCK)
        chosen = tl.load(mask + at, mask=at < n, other=0) != 0
        count = chosen.to(tl.int32)
        tl.store(out + total + tl.cumsum(count, 0) - 1, tl.load(x + at, mask=at < n), mask=chosen)
        last = tl.sum(count, 0)


@pytest.mark.parametrize("kernel", [select_kernel, select_two_passes], ids=lambda k: k.__name__)
def test_a_pointer_moved_by_a_carried_sum(kernel):
    rng = np.random.default_rng(0)
    x, mask = rng.standard_normal(1000, np.float32), rng.integers(0, 2, 1000, np.int32)
    out = np.zeros(1000, np.float32)
    kernel[(1,)](x, mask, out, 1000, BLOCK=64)
    np.testing.assert_array_equal(out[: mask.sum()], x[mask != 0])
    assert not out[mask.sum() :].any()


# ---- overflow


@tw.jit
def wraps(out, n, STEP: tl.constexpr):
    p = 5
    for _ in range(n):
        p += STEP
    tl.store(out, p.to(tl.int64))
    tl.store(out + 1, (p // 2).to(tl.int64))
    tl.store(out + 2, (p < 0).to(tl.int64))
    q = 1 << 30
    q = q + (1 << 30)
    tl.store(out + 3, q.to(tl.int64))
    at = tl.arange(0, 4) + 2147483646
    tl.store(out + 4 + tl.arange(0, 4), at.to(tl.int64))
    narrow = (q.to(tl.int64) * 2 + 7).to(tl.int32)
    tl.store(out + 8, narrow.to(tl.int64))


@pytest.mark.parametrize("step", [1 << 30, -(1 << 31), 1 << 24])
def test_numbers_that_overflow_wrap_around(step):
    out, want = np.zeros(9, np.int64), np.zeros(9, np.int64)
    wraps[(1,)](out, 200, STEP=step)
    run_eager(wraps, (1,), {"out": want, "n": 200, "STEP": step})
    np.testing.assert_array_equal(out, want)
    assert want[0] == (5 + 200 * step + 2**31) % 2**32 - 2**31


@tw.jit
def wide_sums_of_narrow(x, out, n):
    a = tl.load(x)
    a += tl.load(x + 1)  # wraps around
    step, first = a.to(tl.int64), (a + 1).to(tl.int64)
    total = tl.load(x + 2).to(tl.int64)
    for _ in range(n):
        total += step
        first += 3
    tl.store(out, total)
    tl.store(out + 1, first)


def test_a_step_that_wrapped_before_it_was_widened():
    x = np.array([2**31 - 5, 2**31 - 7, 11], np.int32)
    out, want = np.zeros(2, np.int64), np.zeros(2, np.int64)
    wide_sums_of_narrow[(1,)](x, out, 2)
    run_eager(wide_sums_of_narrow, (1,), {"x": x, "out": want, "n": 2})
    np.testing.assert_array_equal(out, want)
    assert want[0] == 11 - 2 * 12


@tw.jit
def doubled(out, n):
    x = n + tl.arange(0, 4)
    for _ in tl.static_range(60):
        x = x + x  # asking both operands for their index functions anew would take 2^60 questions
    tl.store(out + tl.arange(0, 4), x)


def test_a_sum_of_itself_again_and_again():
    out = np.ones(4, np.int32)
    doubled[(1,)](out, 3)
    assert not out.any()  # all bits are shifted out


@tw.jit
def steps(out, stride, n):
    p = 5
    for i in range(n):
        tl.store(out + 4 * i, (p // 3).to(tl.int64))
        tl.store(out + 4 * i + 1, (p < 0).to(tl.int64))
        q = i * stride
        tl.store(out + 4 * i + 2, q.to(tl.int64))
        tl.store(out + 4 * i + 3, (q % 7).to(tl.float32).to(tl.int64))
        p += stride
    tl.store(out + 4 * n, p.to(tl.int64))


@tw.jit
def positions(out, stride, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = i * stride
    row = out + i * 5
    tl.store(row, x.to(tl.int64))
    tl.store(row + 1, (x < 100).to(tl.int64))
    tl.store(row + 2, (x // 7).to(tl.int64))
    tl.store(row + 3, tl.minimum(x, 5).to(tl.int64))
    tl.store(row + 4, tl.sum(x, 0).to(tl.int64))


STRIDES = [3, 1000, 1 << 24, 123456789, 2**31 - 1, -(2**31), -77777777]


@pytest.mark.parametrize("stride", STRIDES)
def test_steps_of_a_launch_wrap_around(stride):
    out, want = np.zeros((2, 81), np.int64)
    steps[(1,)](out, stride, 20)
    run_eager(steps, (1,), {"out": want, "stride": stride, "n": 20})
    np.testing.assert_array_equal(out, want)
    assert want[80] == (5 + 20 * stride + 2**31) % 2**32 - 2**31
    out, want = np.zeros((2, 320), np.int64)
    positions[(4,)](out, stride, BLOCK=16)
    run_eager(positions, (4,), {"out": want, "stride": stride, "BLOCK": 16})
    np.testing.assert_array_equal(out, want)
    assert (want[::5] == (np.arange(64) * stride + 2**31) % 2**32 - 2**31).all()


@tw.jit
def narrowed(out, n):
    tl.store(out, n.to(tl.int32).to(tl.int64))


def test_an_argument_of_64_bits_is_cut_to_32():
    out = np.zeros(1, np.int64)
    narrowed[(1,)](out, 2**40 + 2**31 + 7)
    assert out[0] == 7 - 2**31


def test_only_launches_that_may_overflow_take_the_variant_that_wraps():
    out = np.zeros(320, np.int64)
    kernel = positions[(4,)](out, 99, BLOCK=16)
    made = kernel.launchable.compiled.wrapping
    before = made.cache_info().currsize
    positions[(4,)](out, 2**31 // 79 - 1, BLOCK=16)  # of 64 + 15 steps: a bound, not all are taken
    assert made.cache_info().currsize == before
    positions[(4,)](out, 2**31 // 79 + 1, BLOCK=16)
    assert made.cache_info().currsize == 1
    wrapping = made()
    assert wrapping.binding.overflows == "" and wrapping.wrapping is None


# ---- what stays an index


def lowered(kernel: Any, **arguments: Argument) -> Nest:
    return lower(translate(kernel, arguments)).nest


def local(n: Nest) -> list[str]:
    return [b.name for b in n.buffers if b.scope == "local"]


def with_loop(body: Callable[..., Any]) -> Nest:
    return lowered(
        function(body),
        x=Argument.pointer(i32),
        out=Argument.pointer(i32),
        n=Argument.scalar(i32),
        m=Argument.scalar(i32),
    )


def test_steps_that_do_not_change_need_no_buffer():
    def kernel(x, out, n, m):
        q = 3
        for _ in range(n):
            far = m * 4 + tl.program_id(0)
            x += far
            q += far + 1
            tl.store(out + q, q)
            out += 2

    assert local(with_loop(kernel)) == []


def test_steps_that_change_are_in_buffers():
    def kernel(x, out, n, m):
        q, a = 3, 1
        for _ in range(n):
            q += a
            a += m
            tl.store(out + q, q)

    assert len(local(with_loop(kernel))) == 1  # q; what a is follows from the iteration
