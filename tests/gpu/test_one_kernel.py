"""Programs as one kernel, on the stand-in of tests/gpu/fake.py: its blocks run at the same time."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tilewright as tw
from tests.gpu.decode import TINY, example
from tests.gpu.fake import FakeLibrary, fake_machine, on_fake_gpu, texts_are_known
from tests.gpu.model_checks import judged
from tilewright import targets
from tilewright.driver.torch.api import Compiled
from tilewright.kernel import simt_tasks
from tilewright.kernel.interpret import RunError
from tilewright.kernel.nest import Nest
from tilewright.kernel.simt_tasks import Body
from tilewright.kernel.tasks import faults, parse_tasks, print_tasks
from tilewright.runtime.cuda import program
from tilewright.runtime.cuda.machine import Machine
from tilewright.runtime.cuda.program import CudaProgram
from tilewright.runtime.cuda.tasks import TaskReplay

Gpu = tuple[FakeLibrary, Machine]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    torch.manual_seed(0)
    monkeypatch.setattr(program, "FEWEST", 0)
    monkeypatch.setattr(program, "ALIKE", 1)
    monkeypatch.setattr(FakeLibrary, "multiprocessors", 2)
    with texts_are_known(monkeypatch):
        yield fake_machine()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 24), nn.Linear(24, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + self.second(torch.relu(self.first(x)))
        return y.softmax(-1)


def replays(fast: Compiled) -> list[TaskReplay]:
    """The launches that a compiled function has made."""
    (made,) = fast.units[0].programs
    assert isinstance(made, CudaProgram), made
    found = [g.replay for r in made._rooms.values() for s in r.shapes.values() for g in s.graphs]
    assert all(isinstance(x, TaskReplay) for x in found), made.not_one_kernel
    return [x for x in found if isinstance(x, TaskReplay)]


def bodies(fast: Any, found: TaskReplay) -> list[Body]:
    """The nests of the phases, with their places in memory."""
    explained = tw.explain(fast)
    nests: dict[str, tuple[Nest, int]] = {}
    (made,) = fast.units[0].programs
    for k, info in enumerate(explained.kernels):
        if info.symbol in made.code.images:
            for n, x in enumerate(made.code.images[info.symbol].launches):
                nests[x.symbol] = explained._legal(k), n
    out: list[Body] = []
    for p, phase in zip(found.launches, found.graph.phases, strict=True):
        assert p.uses is not None
        starts = zip(p.arguments, p.uses, strict=True)
        places = {name: (found.names.get(u.space, u.space), u.start) for name, u in starts}
        out.append(Body(*nests[phase.kind], {}, places))
    return out


def memory_of(found: TaskReplay, addresses: list[int]) -> dict[str, np.ndarray]:
    """A copy of all memory that the phases use."""
    out: dict[str, np.ndarray] = {}
    for p in found.launches:
        for u, source in zip(p.uses or (), p.source, strict=False):
            size = max(u.start + u.size, len(out.get(u.space, ())))
            raw = ctypes.string_at(addresses[source], size)
            out[u.space] = np.frombuffer(raw, np.uint8).copy()
    return out


def test_a_program_is_one_launch(gpu: Gpu) -> None:
    library, machine = gpu
    net = Net().eval()
    with torch.no_grad():
        fast = on_fake_gpu(net, machine, strict=True, one_kernel=True)
        kept, got = [torch.randn(1, 64) for _ in range(3)], torch.empty(0)
        for k, x in enumerate(kept):  # all at different addresses
            got = fast(x)
            torch.testing.assert_close(got, net(x), rtol=1e-5, atol=1e-5)
            assert library.calls.count("cuLaunchCooperativeKernel") == k
    (found,) = replays(fast)
    assert library.calls.count("cuMemcpyHtoDAsync_v2") == 1
    assert parse_tasks(print_tasks(found.graph)) == found.graph
    assert not found.counters.read(np.zeros(found.counters.size, np.uint8)).any()
    assert "one kernel" in str(tw.explain(fast))
    # The same graph on the executor, in several orders, and without one of its waits.
    (room,) = fast.units[0].programs[0]._rooms.values()
    (shape,) = room.shapes.values()
    addresses = shape.graphs[0].addresses
    codes, result = bodies(fast, found), found.launches[-1].uses
    assert result is not None
    for seed in range(2):
        memory = memory_of(found, addresses)
        memory[result[-1].space][:] = 0
        simt_tasks.run(found.graph, codes, memory, seed)
        values = memory[result[-1].space].view(np.float32)
        np.testing.assert_allclose(values, got.numpy().reshape(-1), rtol=1e-5, atol=1e-5)
    last = replace(found.graph.phases[-1], waits=())
    bad = replace(found.graph, phases=(*found.graph.phases[:-1], last))
    with pytest.raises(RunError, match="orders them"):
        for seed in range(20):
            simt_tasks.run(bad, codes, memory_of(found, addresses), seed)


def test_the_task_graph_is_a_stage(gpu: Gpu, monkeypatch: Any, tmp_path: Path) -> None:
    _, machine = gpu
    monkeypatch.setenv("TILEWRIGHT_DUMP", str(tmp_path))
    with torch.no_grad():
        on_fake_gpu(Net().eval(), machine, one_kernel=True)(torch.randn(1, 64))
    (found,) = tmp_path.rglob("tasks.txt")
    graph = parse_tasks(found.read_text())
    assert print_tasks(graph) == found.read_text() and len(graph.phases) >= 3
    assert not list(faults(graph))
    assert "define ptx_kernel void @tw_tasks(" in found.with_suffix(".ll").read_text()


def test_what_cannot_be_one_kernel_is_a_graph(gpu: Gpu) -> None:
    _, machine = gpu

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    fast = on_fake_gpu(f, machine, one_kernel=True)
    x = torch.ones(4)
    torch.testing.assert_close(fast(x), x + 1)
    shown = str(tw.explain(fast))
    assert "not as one" in shown and "branches on data" in shown


class Rows(nn.Module):
    """Products of one row, one after the other."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Linear(depth, n, bias=False) for n in (depth, 16))
        self.norm = nn.RMSNorm(depth)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(self.second(self.norm(x + self.first(x))))


@pytest.mark.slow
def test_tasks_and_kernels_of_a_graph_begin_early(gpu: Gpu, monkeypatch: Any) -> None:
    """What they copy first are weights, so they wait for others after that."""
    library, machine = fake_machine(targets.get("cuda:90"))
    net = Rows(128).eval()
    with torch.no_grad():
        forms: tuple[dict[str, Any], ...] = ({"one_kernel": True}, {"choose": "early"})
        for form in forms:
            fast = on_fake_gpu(net, machine, strict=True, **form)
            for _ in range(2):
                x = torch.randn(1, 128)
                torch.testing.assert_close(fast(x), net(x), rtol=1e-5, atol=1e-5)
            if "one_kernel" in form:
                (found,) = replays(fast)
                assert all(len(p.early) == 1 for p in found.graph.phases)
    assert library.calls.count("cuGraphAddDependencies_v2") == 1


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_step_of_a_language_model(gpu: Gpu, dtype: torch.dtype) -> None:
    library, machine = gpu
    model, inputs = example(TINY, dtype, "cpu")
    wide = copy.deepcopy(model).double()
    with torch.no_grad():
        fast = on_fake_gpu(model, machine, strict=True, one_kernel=True)
        for _ in range(2):
            exact = wide(*(x.double() if x.is_floating_point() else x for x in inputs))
            judged(fast(*inputs), exact, model(*inputs))
    assert library.calls.count("cuLaunchCooperativeKernel") == 1
    (found,) = replays(fast)
    assert len(found.graph.phases) <= 18  # five of a layer: attention is one of them
