"""Sizes that change from call to call: one program for all, and programs for those called often."""

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn

import tilewright as tw
from tests.capture.running import assert_same
from tilewright.base.errors import Invalid
from tilewright.base.events import Log
from tilewright.driver.program.meanwhile import compile_meanwhile
from tilewright.driver.program.options import Options
from tilewright.driver.program.programs import compile_graph
from tilewright.driver.torch import backend
from tilewright.driver.torch.often import Key, Limits, Often
from tilewright.ir.node import Graph


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


class _Asked:
    """Collects requests, to be answered by hand."""

    def __init__(self) -> None:
        self.open: dict[Key, Any] = {}

    def __call__(self, key: Key, ready: Any) -> None:
        self.open[key] = ready

    def answer(self, key: Key) -> None:
        program: Any = object()
        self.open.pop(key)(f"way of {key}", program, "made")


def _often(after: int, most: int) -> tuple[Often[str], _Asked, Log]:
    asked, log = _Asked(), Log()
    return Often("graph", ("n", "m"), Limits(after, most), asked, log), asked, log


def test_sizes_are_requested_once_when_they_were_called_often() -> None:
    often, asked, log = _often(3, 2)
    for _ in range(2):
        assert often.way((4, 5)) is None and often.way((4, 6)) is None
    assert not asked.open
    for _ in range(5):
        assert often.way((4, 5)) is None  # the program of all sizes serves meanwhile
    assert list(asked.open) == [(4, 5)]
    asked.answer((4, 5))
    assert often.way((4, 5)) == "way of (4, 5)" and often.way((4, 6)) is None
    assert len(often.programs()) == 1
    said = [e.message for e in log.of("specialised")]
    assert len(said) == 1 and "n = 4, m = 5" in said[0]
    assert log.of("specialised")[0].data["values"] == {"n": 4, "m": 5}


def test_what_cannot_be_compiled_is_told_and_not_requested_again() -> None:
    often, asked, log = _often(2, 2)
    often.way((1, 1)), often.way((1, 1))
    asked.open.pop((1, 1))(None, None, "there is no code for it")
    for _ in range(9):
        assert often.way((1, 1)) is None
    assert not asked.open and any("there is no code" in e.message for e in log.of("specialise"))


def test_programs_are_few_and_give_way_to_sizes_that_are_called_more() -> None:
    often, asked, _ = _often(4, 2)
    for key in ((1, 1), (2, 2), (3, 3)):
        for _ in range(4):
            often.way(key)
        if key in asked.open:
            asked.answer(key)
        for _ in range(4):
            often.way((1, 1))
    # The third asked while the second had not been called: it takes its place.
    assert often.way((1, 1)) is not None and often.way((2, 2)) is None
    assert often.way((3, 3)) is not None and len(often.programs()) == 2


def test_sizes_that_are_called_alike_do_not_push_each_other_out() -> None:
    often, asked, _ = _often(4, 2)
    compiles = 0
    for _ in range(400):
        for n in range(10):
            often.way((n, n))
            compiles += len(asked.open)
            for key in list(asked.open):
                asked.answer(key)
    assert compiles < 20 and len(often.programs()) <= 2


def _at_once(graph: Callable[[], Graph], options: Options, done: Any) -> None:
    done(compile_graph(graph(), options, Log()), "compiled at once")


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(24, 40), nn.Linear(40, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, int]:
        y = self.last(self.first(x).relu())
        return y, y[1:].transpose(0, 1), 2 * x.shape[0]


def test_the_program_changes_under_calls_and_results_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backend, "compile_meanwhile", _at_once)
    net = _Net().eval()
    with torch.no_grad():
        fast = tw.compile(net, dynamic=True, specialise_after=3)
        for n in (5, 1, 9, 5, 5, 7, 5, 5, 13, 5):
            x = torch.randn(n, 24)
            assert_same(fast(x), net(x))
        assert len(fast._found) == 1, "one program for all sizes, 1 among them"
        told = tw.explain(fast).of("specialised")
        assert len(told) == 1 and "all packed weights are shared" in told[0].message
        assert len(fast.units[0].programs) == 2
        net.last.weight.mul_(2)  # both programs notice
        for n in (5, 6):
            x = torch.randn(n, 24)
            assert_same(fast(x), net(x))


def test_nothing_is_compiled_meanwhile_where_it_is_switched_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backend, "compile_meanwhile", _at_once)
    with torch.no_grad():
        fast = tw.compile(torch.sin, dynamic=True, specialise_after=0)
        for _ in range(70):
            fast(torch.ones(3))
    assert len(fast.units[0].programs) == 1
    with pytest.raises(Invalid, match="specialise_most must be at least 1"):
        tw.compile(torch.sin, specialise_most=0)


@pytest.mark.slow
def test_another_process_compiles_while_calls_go_on() -> None:
    made: list[Any] = []
    with torch.no_grad():
        net = _Net().eval()
        fast = tw.compile(net, torch.randn(4, 24), dynamic=True)
        graph = fast.units[0].segments[0].graph
        compile_meanwhile(lambda: graph, Options(), lambda *found: made.append(found))
        compile_meanwhile(lambda: made[99], Options(), lambda *found: made.append(found))
        end = time.monotonic() + 100
        while len(made) < 2 and time.monotonic() < end:
            time.sleep(0.1)
    (program, said), (none, why) = made
    assert program is not None and said.startswith("compiled in")
    assert none is None and "IndexError" in why
