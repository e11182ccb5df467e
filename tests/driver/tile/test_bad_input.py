"""Launches that are wrong say what, where and what to do; nothing runs and nothing aborts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
import tilewright.language as tl
import tilewright.triton as compat


@tw.jit
def add(x, y, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    m = i < n
    tl.store(out + i, tl.load(x + i, m) + tl.load(y + i, m), m)


@tw.jit
def fill(out, value, B: tl.constexpr):
    tl.store(out + tl.arange(0, B), value)


@tw.jit
def mismatched(x, B: tl.constexpr):
    a, b = tl.load(x + tl.arange(0, B)), tl.load(x + tl.arange(0, 2 * B))
    tl.store(x + tl.arange(0, B), a + b)


@tw.jit
def multiplied(x, y, B: tl.constexpr):
    i = tl.arange(0, B)[:, None] * B + tl.arange(0, B)[None, :]
    tl.store(x + i, tl.dot(tl.load(x + i), tl.load(y + i)))


@tw.jit
def assembled(x, B: tl.constexpr):
    a = tl.load(x + tl.arange(0, B))
    made = tl.inline_asm_elementwise(
        "redux.sync.add.u32 $0, $1;", "=r,r", [a], dtype=tl.float32, is_pure=True, pack=1
    )
    tl.store(x + tl.arange(0, B), made)


@tw.jit
def every_second(x, out, step, n, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, tl.load(x + i * step, i < n), i < n)


class Thing:
    pass


class Elsewhere:
    """DLPack's way to say that memory is a GPU's."""

    def __dlpack__(self, **_: Any) -> Any:
        raise AssertionError("not asked for")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


class Broken:
    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError("it is read-only")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def zeros() -> torch.Tensor:
    return torch.zeros(64)


def freed() -> torch.Tensor:
    x = zeros()
    x.untyped_storage().resize_(0)
    return x


def added(x: Any = None, y: Any = None, out: Any = None, n: Any = 64, **more: Any) -> Any:
    given = [zeros() if v is None else v for v in (x, y, out)]
    return add[(1,)](*given, n, **{"B": 64, **more})


def over(grid: Any) -> Any:
    return add[grid](zeros(), zeros(), zeros(), 64, B=64)


def filled(value: Any, B: Any = 64) -> Any:
    return fill[(1,)](zeros(), value, B=B)


HERE = "test_bad_input.py:"
Case = tuple[Callable[[], Any], tuple[str, ...]]
CASES: dict[str, Case] = {
    # In the kernel: its line, with what is wrong marked.
    "no power of two": (
        lambda: filled(1.0, B=100),
        ("100 elements, which is no power of two", "tl.arange(0, B)", "^^^", "arange(0, 128)"),
    ),
    "shapes": (
        lambda: mismatched[(1,)](zeros(), B=16),
        ("[16] and [32] do not go together", "a + b", "^^^", "one of them is 1"),
    ),
    "dtypes of a product": (
        lambda: multiplied[(1,)](torch.zeros(256), torch.zeros(256, dtype=torch.int8), B=16),
        ("fp32[16, 16] and int8[16, 16]", "tl.dot", "x.to(y.dtype)"),
    ),
    "assembly": (
        lambda: assembled[(1,)](zeros(), B=64),
        ("`redux.sync.add.u32 $0, $1` is not among", "inline_asm_elementwise", "write it in"),
    ),
    "a float as a size": (
        lambda: filled(1.0, B=64.0),
        ("the end is 64.0, which is no whole number", "n // 2"),
    ),
    "None as a size": (lambda: filled(1.0, B=None), ("the end is None", "no whole number")),
    "an empty range": (lambda: filled(1.0, B=0), ("arange(0, 0) is empty", "above the start")),
    "a number as a pointer": (
        lambda: added(y=5),
        ("load through int32[64], which is no pointer", "tl.load(y + i, m)"),
    ),
    "a pointer as a number": (
        lambda: filled(torch.tensor(3.0)),
        ("a cast of pointer<fp32> to fp32", "tl.load(p) reads what is there"),
    ),
    "None as a number": (lambda: filled(None), ("constexpr[None]", "tl.store(out +")),
    # Arguments: their name.
    "complex": (
        lambda: added(x=torch.zeros(64, dtype=torch.complex64)),
        ("argument x of add", "torch.complex64", "view_as_real", HERE),
    ),
    "on meta": (
        lambda: added(out=torch.zeros(64, device="meta")),
        ("argument out of add", "a tensor on meta", "x.cpu() first", "--device cpu", HERE),
    ),
    "on a GPU": (
        lambda: added(y=Elsewhere()),
        ("argument y of add", "DLPack device 2", "x.cpu() first", HERE),
    ),
    "DLPack that fails": (
        lambda: added(y=Broken()),
        ("argument y of add", "it is read-only", "give a copy"),
    ),
    "freed": (
        lambda: added(x=freed()),
        ("argument x of add", "memory is freed", "resized to nothing", HERE),
    ),
    "sparse": (
        lambda: added(x=torch.eye(8).to_sparse()),
        ("argument x of add", "no memory of its own", "sparse", "x.to_dense()"),
    ),
    "in vmap": (
        lambda: torch.vmap(lambda a: (added(x=a), a)[1])(torch.zeros(2, 64)),
        ("argument x of add", "no memory of its own", "launch outside of it"),
    ),
    "objects in an array": (
        lambda: added(x=np.array([Thing()] * 64)),
        ("argument x of add", "elements of object are unknown"),
    ),
    "another order of bytes": (
        lambda: added(x=np.zeros(64, np.dtype(np.float32).newbyteorder())),
        ("argument x of add", "order of bytes", "astype"),
    ),
    "backwards": (
        lambda: added(out=np.zeros(64, np.float32)[::-1]),
        ("argument out of add", "runs backwards", "ascontiguousarray"),
    ),
    "a list": (lambda: added(y=[1, 2]), ("argument y of add", "list", "give tensors", HERE)),
    "a dict": (lambda: added(y={}), ("argument y of add", "dict", "tl.constexpr")),
    "an object": (lambda: added(y=Thing()), ("argument y of add", "Thing", "give tensors")),
    "a string": (lambda: added(y="x"), ("argument y of add", "str")),
    "a complex number": (lambda: filled(1j), ("argument value of fill", "complex")),
    "more than 64 bits": (
        lambda: filled(2**64),
        ("argument value of fill", "18446744073709551616 does not fit into 64 bits", "float"),
    ),
    "less than 64 bits": (
        lambda: filled(-(2**63) - 1),
        ("argument value of fill", "does not fit into 64 bits"),
    ),
    # The call.
    "no constant": (
        lambda: add[(1,)](zeros(), zeros(), zeros(), 64),
        ("launched without the constant B", "B=…", HERE),
    ),
    "too few": (
        lambda: add[(1,)](zeros(), zeros(), B=64),
        ("launched without the out", "out=…", HERE),
    ),
    "too many": (
        lambda: add[(1,)](zeros(), zeros(), zeros(), 64, 64, 7),
        ("launched with 6 arguments and takes 5", "x, y, out, n, B", HERE),
    ),
    "unknown": (
        lambda: added(BLOK=64),
        ("no parameter BLOK", "its parameters are x, y, out, n, B", HERE),
    ),
    "misspelt": (
        lambda: added(num_warp=4),
        ("no parameter num_warp", "did you mean num_warps?", HERE),
    ),
    "three warps": (
        lambda: added(num_warps=4) and added(num_warps=3),
        ("launched with num_warps=3", "power of 2", "leave it out", HERE),
    ),
    # The grid.
    "negative": (lambda: over((-1,)), ("add launched over a grid of (-1,)", "not negative")),
    "too large": (
        lambda: over((2**31,)),
        ("add launched over 2,147,483,648 programs", "let a program do more"),
    ),
    "too large together": (
        lambda: over((2**16, 2**16)),
        ("add launched over 4,294,967,296 programs", "larger blocks"),
    ),
    "four axes": (lambda: over((1, 1, 1, 2)), ("a grid of 4 axes", "fold the others")),
    "no axes": (lambda: over(()), ("a grid of 0 axes",)),
    "a float": (lambda: over((1.0,)), ("over the grid (1.0,)", "tw.cdiv")),
    "a function that gives a float": (
        lambda: over(lambda meta: (64 / meta["B"],)),
        ("over the grid (1.0,)", "tw.cdiv(n, BLOCK)"),
    ),
    "a function that gives nothing": (
        lambda: over(lambda meta: None),
        ("over the grid None", "one to three integers"),
    ),
    "text": (lambda: over("abc"), ("over the grid 'abc'",)),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_is_said(name):
    call, words = CASES[name]
    over((1,))  # what is known from launches before does not help
    with pytest.raises(tw.TilewrightError) as found:
        call()
    text = str(found.value)
    for w in words:
        assert w in text, text


def test_a_read_only_array_may_be_read_and_not_written():
    read_only = np.ones(64, np.float32)
    read_only.flags.writeable = False
    out = np.zeros(64, np.float32)
    add[(1,)](read_only, read_only, out, 64, B=64)
    assert out.tolist() == [2.0] * 64
    for _ in range(2):  # also where the kernel is known
        with pytest.raises(tw.Invalid, match="argument out of add: a read-only array") as found:
            add[(1,)](out, out, read_only, 64, B=64)
        assert "x.copy()" in str(found.value) and HERE in str(found.value)
    assert read_only.tolist() == [1.0] * 64
    alone = np.zeros(64, np.float32)
    alone.flags.writeable = False
    with pytest.raises(tw.Invalid, match="argument out of fill: a read-only array"):
        fill[(1,)](alone, 1.0, B=64)
    assert not alone.any()


def test_arrays_with_gaps_are_reached_by_their_strides():
    x = np.arange(64, dtype=np.float32).reshape(32, 2)
    out = np.zeros(32, np.float32)
    column = x[:, 1]
    every_second[(1,)](column, out, column.strides[0] // column.itemsize, 32, B=32)
    np.testing.assert_array_equal(out, column)


def test_one_argument_given_twice():
    with pytest.raises(TypeError, match=r"add\(\) got multiple values for argument 'x'"):
        add[(1,)](zeros(), zeros(), zeros(), 64, x=zeros(), B=64)


def test_an_error_of_the_grid_s_own_is_the_user_s():
    def grid(meta):
        raise RuntimeError("no such size")

    out = torch.zeros(64)
    with pytest.raises(RuntimeError, match="no such size"):
        add[grid](zeros() + 1, zeros(), out, 64, B=64)
    assert not out.any()


def test_no_programs_run_for_a_grid_with_a_zero():
    out = torch.zeros(64)
    for grid in ((0,), (0, 5), (3, 0, 2), lambda meta: (0,)):
        fill[grid](out, 7.0, B=64)
    assert not out.any()


@pytest.mark.parametrize(
    ("value", "want"),
    [
        (float("nan"), np.nan),
        (float("inf"), np.inf),
        (-0.0, -0.0),
        (True, 1.0),
        (np.bool_(False), 0.0),
        (np.float64(1.5), 1.5),
        (np.float16(0.5), 0.5),
        (np.int8(-3), -3.0),
        (np.uint64(2**63), float(2**63)),
        (1, 1.0),
    ],
)
def test_numbers_of_any_kind(value, want):
    out = np.zeros(64, np.float32)
    for _ in range(2):
        out[:] = 5
        fill[(1,)](out, value, B=64)
        np.testing.assert_array_equal(out, np.full(64, want, np.float32))
        assert np.signbit(out[0]) == np.signbit(np.float32(want))


def test_nothing_internal_is_shown():
    """Looking for the kernel, and finding out which argument it was, are no part of the error."""
    calls = (
        lambda: added(y=[1]),
        lambda: added(x=freed()),
        lambda: over((1.0,)),
        lambda: added(B=48),
    )
    for call in calls:
        with pytest.raises(tw.TilewrightError) as found:
            call()
        assert found.value.__suppress_context__ or found.value.__context__ is None
        cause = found.value.__cause__
        assert cause is None or (cause.__traceback__ is None and cause.__suppress_context__)


def test_causes_say_what_is_wrong_to_programs_for_triton():
    compat.install()
    try:
        with pytest.raises(tw.Invalid) as found:
            added(B=48)
    finally:
        compat.uninstall()
    assert "power of" in str(found.value.__cause__)
    with pytest.raises(tw.Invalid) as found:
        added(B=48)
    assert found.value.__cause__ is None
