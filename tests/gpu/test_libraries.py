"""Libraries as candidates, on the stand-in of tests/gpu/fake.py: torch's operators on the memory
of programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tilewright as tw
from tests.gpu.attention_groups import Attention
from tests.gpu.fake import FakeLibraries, FakeLibrary, fake_machine, on_fake_gpu, texts_are_known
from tilewright.base.cache import Cache
from tilewright.base.errors import Invalid, Refused, TilewrightError, Unsupported
from tilewright.base.events import Log
from tilewright.ir.target import Target
from tilewright.kernel.defaults import grid_chain_ways
from tilewright.kernel.defaults.choices import Choices
from tilewright.kernel.group import Group
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import print_trace
from tilewright.kernel.text import parse_group
from tilewright.runtime.cuda import program
from tilewright.runtime.cuda.image import KernelImage
from tilewright.runtime.cuda.machine import GivenCall, Machine
from tilewright.tune import on_gpu
from tilewright.tune.choose import Made


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FakeLibrary, Machine]]:
    torch.manual_seed(0)
    monkeypatch.setattr(program, "FEWEST", 0)
    with texts_are_known(monkeypatch):
        yield fake_machine(libraries=True)


def times(monkeypatch: pytest.MonkeyPatch, ours: float, library: float) -> list[int]:
    """The clock says so; how many kernels it was asked about."""
    asked: list[int] = []

    def timed(
        images: Sequence[KernelImage], group: Group, target: Target, machine: Machine
    ) -> list[float | TilewrightError]:
        asked.append(len(images))
        return [library if x.calls else ours for x in images]

    monkeypatch.setattr(on_gpu, "timed", timed)
    return asked


class Net(nn.Module):
    """A convolution with padding, a product, and maps behind both."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(2, 3, 3, padding=1, bias=False), nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.last(torch.relu(self.first(x)).flatten(1)))


def test_a_library_is_called_inside_the_graph_where_it_is_faster(
    gpu: tuple[FakeLibrary, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    library, machine = gpu
    asked = times(monkeypatch, 57e-6, 41e-6)
    net = Net().eval()
    with torch.no_grad():
        fast = on_fake_gpu(net, machine, strict=True)
        kept = [torch.randn(2, 2, 2, 2) for _ in range(program.ALIKE + 3)]
        for x in kept:  # all at different addresses: the last ones replace those of a graph
            torch.testing.assert_close(fast(x), net(x), rtol=1e-5, atol=1e-5)
        net.last.weight.data = torch.randn(4, 12)
        torch.testing.assert_close(fast(kept[0]), net(kept[0]), rtol=1e-5, atol=1e-5)
    assert len(asked) == 2 and library.replays == len(kept)
    assert "cuGraphExecChildGraphNodeSetParams" in library.calls
    made = machine.libraries
    assert isinstance(made, FakeLibraries) and made.rooms == 1
    assert {c.function for c in made.calls} == {"product", "convolution"}
    told = tw.explain(fast)
    found = [told.considered(k) for k in range(len(told.kernels))]
    for name in ("cuBLAS", "cuDNN"):
        said = f"{name} through torch: 41 µs timed (others: ours: 57 µs timed"
        assert any(text.startswith(said) for text in found)
    assert "Library" in str(told) and ".visible .entry" in told.assembly(0)


def test_ours_stays_where_the_library_is_hardly_faster_or_not_wanted(
    gpu: tuple[FakeLibrary, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, machine = gpu
    net = nn.Linear(4, 3)
    x = torch.randn(2, 4)
    cases: list[tuple[float, float, dict[str, Any]]] = [
        (100e-6, 98e-6, {}),
        (100e-6, 10e-6, {"choose": "default"}),
    ]
    for ours, theirs, options in cases:
        asked = times(monkeypatch, ours, theirs)
        with torch.no_grad():
            fast = on_fake_gpu(net, machine, **options)
            for _ in range(3):
                torch.testing.assert_close(fast(x), net(x), rtol=1e-5, atol=1e-5)
        assert bool(asked) == (not options)
        assert "Library" not in str(tw.explain(fast))
    assert isinstance(machine.libraries, FakeLibraries) and not machine.libraries.calls


def test_a_call_that_fails_is_no_candidate(
    gpu: tuple[FakeLibrary, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured by the real code, on the stand-in's clock."""
    library, machine = gpu

    class Failing(FakeLibraries):
        def run(self, call: GivenCall, addresses: Sequence[int]) -> None:
            raise RuntimeError("not on this GPU")

    net, x = nn.Linear(4, 3), torch.randn(2, 4)
    with torch.no_grad():
        fast = on_fake_gpu(net, replace(machine, libraries=Failing(library)))
        torch.testing.assert_close(fast(x), net(x), rtol=1e-5, atol=1e-5)
        told = [str(e) for e in fast.log.of("schedule")]
        assert any("cuBLAS through torch cannot be timed: not on this GPU" in t for t in told)


def test_times_of_a_kernel_and_a_library(gpu: tuple[FakeLibrary, Machine], tmp_path: Path) -> None:
    _, machine = gpu
    net, x = nn.Linear(4, 3), torch.randn(2, 4)
    with torch.no_grad():
        fast = on_fake_gpu(net, machine)
        torch.testing.assert_close(fast(x), net(x), rtol=1e-5, atol=1e-5)
    (told,) = [e for e in fast.log.of("schedule") if "timed" in e.message]
    assert "cuBLAS" in told.message and "ours" in told.message

    def make(group: Group, choices: Choices) -> Made:
        raise Refused("nothing can be made of it")

    with pytest.raises(Unsupported, match="the rules"):
        by = on_gpu.Measured(machine, Cache(tmp_path), 1.0, fast.log, make)
        by._best([Made(on_gpu.RULES, "", b"")], ["ours"], [Unsupported("no")])


def test_wide_attention_is_tried_in_its_ways(
    gpu: tuple[FakeLibrary, Machine], tmp_path: Path
) -> None:
    def make(group: Group, choices: Choices) -> Made:
        raise Refused("nothing is made of it")

    by = on_gpu.Measured(gpu[1], Cache(tmp_path), 1.0, Log(), make)
    wide, narrow = (Attention(4096, 4096, w, batch=4, heads=16).group() for w in (128, 64))
    skipped = [c.tile for c in by.choices(wide)]
    assert skipped == [None, *range(1, len(grid_chain_ways.ALONE))] and not by.choices(narrow)


def test_a_users_schedule_may_call_a_library(gpu: tuple[FakeLibrary, Machine]) -> None:
    _, machine = gpu
    net, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh()), torch.randn(2, 4)
    with torch.no_grad():
        first = on_fake_gpu(net, machine, choose="default")
        first(x)
        (kernel,) = (k for k in tw.explain(first).kernels if " * " in k.group)
        trace, _ = default_schedule(parse_group(kernel.group), machine.target, on_gpu.LIBRARY)
        fast = on_fake_gpu(net, machine, schedules={kernel.symbol: print_trace(trace)})
        for _ in range(3):
            torch.testing.assert_close(fast(x), net(x), rtol=1e-5, atol=1e-5)
    assert isinstance(machine.libraries, FakeLibraries)
    assert [c.function for c in machine.libraries.calls] == ["product"] * 3
    without = replace(machine, libraries=None)
    with torch.no_grad(), pytest.raises(Invalid, match="computed by a library, and none is at"):
        on_fake_gpu(net, without, schedules={kernel.symbol: print_trace(trace)})(x)
