"""Loops: what they carry, how they count, what is written out."""
# Numbers of a kernel become tensors, which Python's own types do not show.

import re

import numpy as np
import pytest

import tilewright.language as tl
from tests.lang.tile.kernels import run
from tilewright.base.errors import Invalid
from tilewright.ir.types import i32, i64
from tilewright.lang.tile.front.frontend import CompileError, translate
from tilewright.lang.tile.front.functions import Argument, function
from tilewright.lang.tile.ir import Kernel, walk
from tilewright.lang.tile.stepping.eager import interpret, run_eager
from tilewright.lang.tile.text import kernel_text


def ints(n: int = 8) -> np.ndarray:
    return np.zeros(n, np.int32)


def operations(kernel: Kernel, name: str) -> list:
    return [o for o in walk(kernel.body) if o.name == name]


def test_loops_carry_what_they_assign():
    @function
    def kernel(out, n):
        a, b = 0, 1
        for _ in range(n):
            a, b = b, a + b
        tl.store(out, a)

    out = ints()
    loop = operations(run(kernel, out=out, n=10), "for")[0]
    assert out[0] == 55
    assert len(loop.results) == 2


def test_loops_nest():
    @function
    def kernel(out, n):
        total = 0
        for i in range(n):
            row = 0
            for j in range(i, n):
                if j % 2 == 0:
                    row += j
                k = 0
                while k < j:
                    k += 2
                    total += 1
            total += row * i
        tl.store(out, total)

    out = ints()
    run(kernel, out=out, n=6)
    total = 0
    for i in range(6):
        row = 0
        for j in range(i, 6):
            row += j if j % 2 == 0 else 0
            total += (j + 1) // 2
        total += row * i
    assert out[0] == total


@pytest.mark.parametrize("bounds", [(0, 10, 3), (10, 0, -3), (5, 5, 1), (7, 2, 1), (-4, 4, 2)])
def test_loops_count_as_pythons(bounds):
    @function
    def given(out, low, high, STEP: tl.constexpr):
        at = 0
        for i in range(low, high, STEP):
            tl.store(out + at, i)
            at += 1  # noqa: SIM113

    @function
    def ranged(out, low, high, STEP: tl.constexpr):
        at = 0
        for i in tl.range(low, high, STEP, num_stages=2):
            tl.store(out + at, i)
            at += 1  # noqa: SIM113

    @function
    def by_name(out, low, high, STEP: tl.constexpr):
        at = 0
        for i in range(low, high, step=STEP):
            tl.store(out + at, i)
            at += 1  # noqa: SIM113

    low, high, step = bounds
    for kernel in (given, ranged, by_name):
        out = ints(16) - 99
        run(kernel, out=out, low=low, high=high, STEP=step)
        wanted = list(range(low, high, step))
        assert out[: len(wanted)].tolist() == wanted
        assert out[len(wanted)] == -99


def test_the_index_is_as_wide_as_the_bounds():
    @function
    def kernel(out, n):
        for i in range(3, n):
            tl.static_assert(i.dtype == tl.int64)
            tl.store(out, i)
        for j in range(3):
            tl.static_assert(j.dtype == tl.int32)

    arguments = {"out": Argument.pointer(i64), "n": Argument.scalar(i64)}
    (loop,) = operations(translate(kernel, arguments), "for")
    assert loop.args[0].element is i64


def test_the_index_may_be_assigned_inside():
    @function
    def kernel(out, n):
        for i in range(n):
            i = i * 2
            tl.store(out + i, i)

    out = ints()
    run(kernel, out=out, n=4)
    assert out.tolist() == [0, 0, 2, 0, 4, 0, 6, 0]


def test_what_a_loop_leaves_alone_is_not_carried():
    @function
    def kernel(out, n, FLAG: tl.constexpr):
        a = n
        b = n + 1
        for i in range(n):
            if FLAG:
                a = a + i
            b = b
            tl.store(out + i, a + b)

    assert len(operations(run(kernel, out=ints(), n=3, FLAG=False), "for")[0].results) == 0
    # The last sum is used by nobody, but the next round needs it.
    assert len(operations(run(kernel, out=ints(), n=3, FLAG=True), "for")[0].results) == 1


def test_constants_become_tensors_where_a_loop_changes_them():
    @function
    def kernel(out, n, steps):
        while n < 100:
            n = n * 2
            steps += 1
        tl.store(out, n)
        tl.store(out + 1, steps)

    out = ints()
    arguments = {
        "out": Argument.pointer(i32),
        "n": Argument.constant(1),
        "steps": Argument.constant(0),
    }
    interpret(translate(kernel, arguments), (1,), [out])
    assert out[:2].tolist() == [128, 7]


def test_tuples_are_carried():
    @function
    def kernel(out, n):
        state = (0, 1.0, None)
        for i in range(n):
            state = (state[0] + i, state[1] * 2, None)
        tl.store(out, state[0])
        tl.store(out + 1, state[1].to(tl.int32))
        tl.static_assert(state[2] is None)

    out = ints()
    run(kernel, out=out, n=4)
    assert out[:2].tolist() == [6, 16]


@function
def becomes_a_float(out, n):
    total = 0
    for i in range(n):
        total += i * 0.5
    tl.store(out, total)


@function
def becomes_a_number(out, n):
    x = tl.zeros((4,), tl.float32)
    while n > 0:
        x = tl.sum(x, axis=0)
        n -= 1


@function
def becomes_something(out, n):
    x = None
    for i in range(n):
        x = i
    tl.store(out, x)


@function
def changes_in_an_inner_loop(out, n):
    x, y = (0, 1), 2
    for i in range(n):
        for j in range(2):
            x = (x[0] + j, x[1].to(tl.int64))
        y += i
    tl.store(out, x[0] + y)


@function
def becomes_a_tensor_of_another_type(out, n, START: tl.constexpr = 2):
    START = START
    for i in range(n):
        START = START + i.to(tl.int64)
    tl.store(out, START)


@pytest.mark.parametrize(
    "kernel",
    [
        becomes_a_float,
        becomes_a_number,
        becomes_something,
        changes_in_an_inner_loop,
        becomes_a_tensor_of_another_type,
    ],
    ids=lambda f: f.name,
)
def test_stepping_refuses_what_compiling_refuses(kernel):
    with pytest.raises(CompileError) as compiling:
        run(kernel, out=ints(), n=3)
    with pytest.raises(Invalid) as stepping:
        run_eager(kernel, (1,), {"out": ints(), "n": 3})
    assert "before the loop and" in stepping.value.what
    assert stepping.value.what == compiling.value.what
    assert stepping.value.hint == compiling.value.hint
    line = compiling.value.spots[-1].line
    assert str(stepping.value.where) == f"{kernel.file}:{line}"


def test_a_loop_that_is_written_out_may_change_types():
    @function
    def kernel(out, n, START: tl.constexpr = 3):
        total = START
        for i in tl.static_range(3):
            total = total + i * 0.5
        for t in (1, 2.5):
            total = total.to(tl.float64) + t
        left = n
        for _ in range(n):
            new = left * 2
            left -= 1
        while left < 0:
            new = 1.5
            left += 1
        tl.store(out, total.to(tl.int32) + new.to(tl.int32) * 0)

    out = ints()
    run_eager(kernel, (1,), {"out": out, "n": 2})
    assert out[0] == 8


def test_a_carried_variable_keeps_its_type():
    @function
    def kernel(out, n):
        total = 0
        for i in range(n):
            total += i * 0.5
        tl.store(out, total)

    with pytest.raises(CompileError) as caught:
        run(kernel, out=ints(), n=3)
    assert "total is int32 before the loop and fp32 after a round of it" in str(caught.value)

    @function
    def shape(out, n):
        x = tl.zeros((4,), tl.float32)
        for _ in range(n):
            x = tl.sum(x, axis=0)

    with pytest.raises(CompileError, match="x is <"):
        run(shape, out=ints(), n=3)

    @function
    def nothing(out, n):
        x = None
        for i in range(n):
            x = i
        tl.store(out, x)

    with pytest.raises(CompileError, match="x is the constant None before the loop"):
        run(nothing, out=ints(), n=3)


def test_variables_of_a_loop_end_with_it():
    @function
    def kernel(out, n):
        for i in range(n):
            x = i
        tl.store(out, x)

    with pytest.raises(CompileError, match="x is assigned only inside the loop"):
        run(kernel, out=ints(), n=3)

    @function
    def index(out, n):
        for i in range(n):  # noqa: B007
            pass
        tl.store(out, i)

    with pytest.raises(CompileError, match="i is the variable of the loop"):
        run(index, out=ints(), n=3)


def test_names_are_used_again_and_again():
    @function
    def kernel(out, n):
        for i in range(n):
            x = i + 1
            tl.store(out + i, x)
        for j in range(n):
            for i in range(2):
                x = tl.arange(0, 2) * 10
                tl.store(out + tl.arange(0, 2), x + i + j)

    out = ints()
    run(kernel, out=out, n=3)
    assert out[:3].tolist() == [3, 13, 3]


def test_loops_over_constants_are_written_out():
    @function
    def kernel(out, N: tl.constexpr):
        for i in tl.static_range(N):
            size: tl.constexpr = 2**i
            tl.store(out + tl.arange(0, size), i)
        for i in tl.static_range(6, 0, -4):
            tl.store(out + 5, i)
        for a, b in ((6, 1), (7, 2)):
            tl.store(out + a, b)

    out = ints()
    kernel_ = run(kernel, out=out, N=3)
    assert out.tolist() == [2, 2, 2, 2, 0, 2, 1, 2]
    assert not operations(kernel_, "for")


def test_loops_inside_loops_that_are_written_out():
    @function
    def kernel(out, n):
        total = 0
        for i in range(n):
            for j in tl.static_range(3):
                total += i * j
        for j in tl.static_range(2):
            for i in range(n):  # noqa: B007
                total += j
        tl.store(out, total)

    out = ints()
    run(kernel, out=out, n=4)
    assert out[0] == 6 * 3 + 4


def test_while_conditions():
    @function
    def kernel(out, n):
        i = 0
        while i < 5 and i < n:
            i += 1
        tl.store(out, i)
        while tl.condition(i < 20, disable_licm=True):
            i += 7
        tl.store(out + 1, i)
        while False:
            i = 1000
        tl.store(out + 2, i)

    out = ints()
    run(kernel, out=out, n=3)
    assert out[:3].tolist() == [3, 24, 24]

    @function
    def forever(out):
        while True:
            tl.store(out, 1)

    with pytest.raises(CompileError, match="never ends"):
        run(forever, out=out)


def test_calls_inside_loops():
    @function
    def accumulate(a, b):
        if b == 2:
            return a
        return a + b

    @function
    def kernel(out, n):
        acc = 0
        for i in range(n):
            acc = accumulate(acc, i)
        tl.store(out, acc)

    out = ints()
    run(kernel, out=out, n=5)
    assert out[0] == 0 + 1 + 3 + 4


def test_bounds_are_integers():
    @function
    def kernel(out, n):
        for i in range(n):
            tl.store(out, i)

    arguments = {"out": Argument.pointer(i32), "n": Argument.constant(2.5)}
    with pytest.raises(CompileError, match="the end of a loop is an integer"):
        translate(kernel, arguments)

    @function
    def zero(out, n):
        for i in range(0, n, 0):
            tl.store(out, i)

    with pytest.raises(CompileError, match="the step of a loop is 0"):
        run(zero, out=ints(), n=3)


def test_pythons_range_takes_advice():
    @function
    def kernel(out, n):
        total = 0
        for i in range(n, flatten=True, num_stages=3):  # type: ignore[call-overload]
            total += i
        tl.store(out, total)

    out = ints()
    run(kernel, out=out, n=5)
    assert out[0] == 10

    @function
    def bound(out, n):
        for i in range(0, stop=n):  # type: ignore[call-overload]
            tl.store(out, i)

    with pytest.raises(CompileError, match="one to three bounds"):
        run(bound, out=out, n=5)


def test_text_shows_blocks():
    @function
    def kernel(out, n):
        x = 0
        for i in range(n):
            if i > 1:
                x += i
        tl.store(out, x)

    text = kernel_text(run(kernel, out=ints(), n=4))
    assert re.search(r"%x\.\d+: i32 = for\(", text) and re.search(r"%x\.\d+: i32 = if\(", text)
    assert "do(%i." in text and "yield(%x." in text
