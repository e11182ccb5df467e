"""The call of a program as one native function, and where it refuses."""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tilewright as tw
from tilewright.base import knobs
from tilewright.driver.torch import fast, staged, straight
from tilewright.driver.torch.straight import straight as made
from tilewright.runtime.program import Entry


class Watched:
    """Counts what straight calls return."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.returned: list[Any] = []

        def counting(*given: Any) -> Any:
            call = made(*given)

            def one(*arguments: Any) -> Any:
                assert call is not None
                self.returned.append(call(*arguments))
                return self.returned[-1]

            return None if call is None else one

        for module in (staged, fast):
            monkeypatch.setattr(module, "straight", counting)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def _rows(x: Tensor, i: Tensor) -> Tensor:
    return x[i].exp() + 1


def test_a_call_is_one_native_function(watched: Watched) -> None:
    x, i = torch.randn(7, 5), torch.tensor([6, 0, 3])
    fast = tw.compile(_rows)
    for _ in range(3):
        torch.testing.assert_close(fast(x, i), _rows(x, i))
    assert len(watched.returned) >= 3 and set(watched.returned) == {None}


def test_what_is_found_in_the_data_is_raised_and_the_next_call_is_right(watched: Watched) -> None:
    x, i = torch.randn(7, 5), torch.tensor([6, 0, 3])
    fast = tw.compile(_rows, x, i)
    with pytest.raises(IndexError, match="out of bounds"):
        fast(x, torch.tensor([6, 7, 3]))
    assert isinstance(watched.returned[-1], list)
    torch.testing.assert_close(fast(x, i), _rows(x, i))


def test_tensors_without_memory_take_the_long_way(watched: Watched) -> None:
    x = torch.randn(3, 4)
    fast = tw.compile(lambda x: x * 2)
    fast(x)
    x.untyped_storage().resize_(0)
    with pytest.raises(tw.errors.Invalid, match="has no memory"):
        fast(x)
    assert watched.returned[-1] is False


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_weights_that_nothing_is_derived_from_may_be_any(watched: Watched, mode: str) -> None:
    """Calls read where each of them is: nothing is bound."""
    bags = nn.EmbeddingBag(9, 32, mode=mode)
    at, starts = torch.tensor([3, 8, 8, 0, 5, 1, 1]), torch.tensor([0, 0, 3, 4, 7])
    fast = torch.compile(bags, backend="tilewright")
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(fast(at, starts), bags(at, starts))
            bags.weight.mul_(1.5)
            torch.testing.assert_close(fast(at, starts), bags(at, starts))
            bags.weight.data = torch.randn(9, 32)
            torch.testing.assert_close(fast(at, starts), bags(at, starts))
            bags.weight = nn.Parameter(torch.randn(9, 32))
        assert set(watched.returned) == {None}
        bags.weight.data.untyped_storage().resize_(0)
        with pytest.raises(tw.errors.Invalid, match="has no memory"):
            fast(at, starts)


def test_weights_that_change_are_noticed(watched: Watched) -> None:
    model = nn.Linear(6, 4).eval()
    x = torch.randn(2, 6)
    with torch.no_grad():
        fast = tw.compile(model, x)
        for _ in range(3):
            torch.testing.assert_close(fast(x), model(x))
            model.weight.mul_(1.5)
        model.weight = nn.Parameter(torch.randn(4, 6))
        torch.testing.assert_close(fast(x), model(x))
    assert set(watched.returned) == {None}


def test_sizes_and_host_calls(watched: Watched) -> None:
    def f(x: Tensor) -> Tensor:
        return torch.bincount(x, minlength=3) * 2

    fast = tw.compile(f)
    for most in (9, 2, 30):
        x = torch.randint(0, most, (200,))
        assert fast(x).equal(f(x))
    assert set(watched.returned) == {None}
    empty = torch.zeros(0, dtype=torch.int64)
    assert fast(empty).equal(f(empty))


def test_threads_at_the_same_time() -> None:
    """Who finds another one inside goes the long way: a sort's arena is there once."""
    x = [torch.randn(4, 3000) + k for k in range(4)]
    fast = tw.compile(lambda x: x.sort(1).values.cumsum(1))
    right = [fast(y) for y in x]
    wrong: list[int] = []

    def work(k: int) -> None:
        for _ in range(40):
            if not fast(x[k]).equal(right[k]):
                wrong.append(k)

    every = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in every:
        t.start()
    for t in every:
        t.join()
    assert not wrong


def test_a_call_that_begins_inside_another_is_refused() -> None:
    inside: list[Any] = []

    class Program:
        """One whose code calls itself, as another thread could meanwhile."""

        dims = ()

        def entry(self) -> Any:
            return Entry(address or 0, 0, 0, 0, 0, 1, (code,))

    class Bound:
        address = 0

    table = (ctypes.c_int64 * 1)()
    Bound.address = ctypes.addressof(table)
    code = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)(lambda *_: inside.append(call()))
    address = ctypes.cast(code, ctypes.c_void_p).value
    program: Any = Program()
    call: Any = made(program, Bound(), 0, 0)
    assert call() is None and inside == [False]
    assert call(3) is False, "one argument too many"


def test_memory_goes_with_the_function() -> None:
    fast: Any = tw.compile(lambda x: x + 1, torch.ones(3))
    (program,) = (p for u in fast.units for p in u.programs)
    gone = weakref.ref(program)
    del program, fast
    torch._dynamo.reset()
    gc.collect()
    assert gone() is None


def test_the_switch() -> None:
    x = torch.ones(3)
    with knobs.straight_calls.override(False):
        (unit,) = tw.compile(lambda x: x + 1, x).units
        assert made(unit.programs[0], unit.programs[0].bind(()), 1, 1) is None
    assert made(unit.programs[0], unit.programs[0].bind(()), 1, 1) is not None
    assert straight.MOST >= 32
