"""Branches and returns: which variables they join, and what is known before the kernel
runs."""
# Numbers of a kernel become tensors, which Python's own types do not show.

import numpy as np
import pytest

import tilewright.language as tl
from tests.lang.tile.kernels import run
from tilewright.base.errors import Invalid
from tilewright.ir.types import i32
from tilewright.lang.tile.front.frontend import CompileError, translate
from tilewright.lang.tile.front.functions import Argument, function
from tilewright.lang.tile.ir import Kernel, walk
from tilewright.lang.tile.stepping.eager import interpret, run_eager


def ints(n: int = 8) -> np.ndarray:
    return np.zeros(n, np.int32)


def operations(kernel: Kernel, name: str) -> list:
    return [o for o in walk(kernel.body) if o.name == name]


# ---- branches


@pytest.mark.parametrize("n", [-3, 0, 5, 50])
def test_branches_join_their_variables(n):
    @function
    def kernel(out, n):
        a = 1
        if n > 10:
            a = 2
            b = n * 2
        elif n > 0:
            b = n + 100
        else:
            if n == 0:
                a = 7
            b = -n
        tl.store(out, a)
        tl.store(out + 1, b)

    out = ints()
    run(kernel, out=out, n=n)
    a = 2 if n > 10 else 7 if n == 0 else 1
    b = n * 2 if n > 10 else n + 100 if n > 0 else -n
    assert out[:2].tolist() == [a, b]


def test_a_constant_condition_leaves_one_branch():
    @function
    def kernel(out, N: tl.constexpr, KIND: tl.constexpr):
        if N > 3:
            x = tl.arange(0, 8)
        else:
            x = tl.arange(0, 4)
            no_such_function(x)  # type: ignore  # noqa: F821
        if KIND == "plain":
            y = x
        elif KIND is None:
            y = x * 2
        tl.store(out + x, y)

    out = ints()
    kernel_ = run(kernel, out=out, N=5, KIND=None)
    assert out.tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
    assert not operations(kernel_, "if")


def test_only_what_changed_is_a_result():
    @function
    def kernel(out, n):
        a, b, c = n, n + 1, n + 2
        if n > 0:
            a = b
            c = c
        tl.store(out, a + b + c)

    (branch,) = operations(run(kernel, out=ints(), n=1), "if")
    assert len(branch.results) == 1


def test_a_variable_of_one_branch_is_none_of_the_others():
    @function
    def kernel(out, n):
        if n > 0:
            x = n
        tl.store(out, x)

    with pytest.raises(CompileError, match="x is assigned only under the if at line"):
        run(kernel, out=ints(), n=1)

    @function
    def unused(out, n):
        if n > 0:
            x = n
            tl.store(out, x)

    run(unused, out=ints(), n=1)


def test_temporaries_of_branches_may_differ_in_type():
    @function
    def kernel(out, n):
        if n > 0:
            t = tl.arange(0, 4)
            r = tl.sum(t, axis=0)
        else:
            t = n * 2
            r = t
        tl.store(out, r)

    out = ints()
    run(kernel, out=out, n=1)
    assert out[0] == 6


def test_a_variable_keeps_its_type_in_branches():
    @function
    def kernel(out, n):
        x = 1
        if n > 0:
            x = 2.5
        tl.store(out, x)

    with pytest.raises(CompileError, match="x is of type int32 before the if") as caught:
        run(kernel, out=ints(), n=1)
    assert "fp32" in str(caught.value)


def test_a_constant_that_one_branch_changes_becomes_a_tensor():
    @function
    def kernel(out, n, m):
        if n > 2:
            m = n
        tl.store(out, m)

    for n, wanted in ((1, 9), (5, 5)):
        out = ints()
        arguments = {
            "out": Argument.pointer(i32),
            "n": Argument.scalar(i32),
            "m": Argument.constant(9),
        }
        interpret(translate(kernel, arguments), (1,), [out, n])
        assert out[0] == wanted


def test_choices_between_values():
    @function
    def kernel(out, n, C: tl.constexpr):
        tl.store(out, n if n > 3 else -n)
        tl.store(out + 1, 1 if n > 3 else 0)
        tl.store(out + 2, (n if C else undefined))  # type: ignore  # noqa: F821
        tl.store(out + 3, n.to(tl.int64) if n > 3 else 0)

    out = ints()
    run(kernel, out=out, n=2, C=True)
    assert out[:4].tolist() == [-2, 0, 2, 0]

    @function
    def bad(out, n):
        tl.store(out, n if n > 3 else tl.arange(0, 4))

    with pytest.raises(CompileError, match="the two sides of `a if c else b` are int32 and"):
        run(bad, out=out, n=2)


def test_conditions_are_single():
    @function
    def kernel(out):
        x = tl.arange(0, 4)
        if x > 2:
            tl.store(out, 1)

    with pytest.raises(CompileError, match="a condition is one bool") as caught:
        run(kernel, out=ints())
    assert "tl.where" in str(caught.value)

    @function
    def one_element(out, n):
        if tl.full((1,), 5, tl.int32) > n:
            tl.store(out, 1)

    out = ints()
    run(one_element, out=out, n=3)
    assert out[0] == 1


def test_numbers_are_conditions_too():
    @function
    def kernel(out, n):
        if n:
            tl.store(out, 1)
        if not n:
            tl.store(out + 1, 1)
        while n:
            n -= 1
        tl.store(out + 2, n + 5)

    out = ints()
    run(kernel, out=out, n=4)
    assert out[:3].tolist() == [1, 0, 5]


# ---- returns


@function
def clamp(x, low, high):
    if x < low:
        return low
    if x > high:
        return high
    return x


@function
def kind_of(x):
    if x > 0:
        if x > 10:
            return 2, x - 10
        x += 100
    else:
        x = -x
    return 1, x


@pytest.mark.parametrize("n", [-5, 0, 7, 30])
def test_functions_return_early(n):
    @function
    def kernel(out, n):
        tl.store(out, clamp(n, 1, 9))
        a, b = kind_of(n)
        tl.store(out + 1, a)
        tl.store(out + 2, b)

    out = ints()
    run(kernel, out=out, n=n)
    wanted = (2, n - 10) if n > 10 else (1, n + 100 if n > 0 else -n)
    assert out[:3].tolist() == [min(max(n, 1), 9), *wanted]


def test_returns_inside_loops_that_are_written_out():
    @function
    def find(x, wanted, N: tl.constexpr):
        for i in tl.static_range(N):
            if tl.load(x + i) == wanted:
                return i
        return -1

    @function
    def kernel(x, out):
        tl.store(out, find(x, 30, 4))
        tl.store(out + 1, find(x, 77, 4))

    out = ints()
    run(kernel, x=np.array([10, 20, 30, 40], np.int32), out=out)
    assert out[:2].tolist() == [2, -1]


def test_constants_that_all_ways_return_stay_constants():
    @function
    def size(n):
        if n > 3:
            return 8
        return 8

    @function
    def kernel(out, n):
        at = tl.arange(0, size(n))
        tl.store(out + at, at)

    out = ints()
    run(kernel, out=out, n=1)
    assert out.tolist() == list(range(8))


def test_what_follows_a_return_is_not_looked_at():
    @function
    def f():
        return tl.arange(0, 4)
        return tl.arange(0, 8)

    @function
    def kernel(out):
        tl.store(out + tl.arange(0, 4), f())

    run(kernel, out=ints())


def test_returns_of_different_types_are_refused():
    @function
    def f(n):
        if n == 0:
            return tl.arange(0, 4)
        else:
            return tl.arange(0, 8)

    @function
    def kernel(out, n):
        f(n)

    with pytest.raises(CompileError, match="the values that the function returns") as caught:
        run(kernel, out=ints(), n=1)
    assert len(caught.value.spots) == 2


def test_a_return_inside_a_loop_is_refused():
    @function
    def direct(out, n):
        for i in range(n):  # noqa: B007
            return

    @function
    def branch(out, n):
        for i in range(n):
            if i == 2:
                return

    @function
    def waiting(out, n):
        while n > 0:
            if n == 2:
                return
            n -= 1

    for kernel in (direct, branch, waiting):
        with pytest.raises(CompileError, match="return inside a loop") as caught:
            run(kernel, out=ints(), n=1)
        assert "return" in caught.value.spots[-1].text


def test_a_kernel_returns_nothing():
    @function
    def kernel(out):
        return tl.load(out)

    with pytest.raises(CompileError, match="a kernel returns nothing"):
        run(kernel, out=ints())
    with pytest.raises(Invalid, match="a kernel returns nothing"):
        run_eager(kernel, (1,), {"out": ints()})


def test_a_kernel_may_return_the_nothing_of_a_function():
    @function
    def put(out):
        tl.store(out, 3)

    @function
    def kernel(out):
        return put(out)

    out = ints()
    run(kernel, out=out)
    assert out[0] == 3
