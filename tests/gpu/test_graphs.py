"""Whole programs take the way of a GPU on the stand-in of tests/gpu/fake.py."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn

import tilewright as tw
from tests.driver.outside import outside
from tests.gpu.fake import FakeLibrary, fake_machine, on_fake_gpu, texts_are_known
from tilewright import targets
from tilewright.base import knobs
from tilewright.base.errors import Invalid
from tilewright.driver.torch import late
from tilewright.kernel.defaults import grid_windows
from tilewright.runtime.cuda import program
from tilewright.runtime.cuda.machine import Machine

Gpu = tuple[FakeLibrary, Machine]


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 3), nn.Linear(3, 2), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.second(torch.tanh(self.first(x)))))


def test_calls_are_one_graph_whose_addresses_are_replaced(gpu: Gpu) -> None:
    library, machine = gpu
    net = Net().eval()
    with torch.no_grad():
        fast = on_fake_gpu(net, machine, strict=True)
        kept = [torch.randn(1, 4) for _ in range(program.ALIKE + 3)]
        results = [fast(x) for x in kept]  # all at different addresses
        assert library.replays == len(kept) - 1  # the first call is launched kernel by kernel
        assert "cuGraphExecKernelNodeSetParams_v2" in library.calls
        for x, got in zip(kept, results, strict=True):
            close(got, net(x))
        net.first.weight.add_(1.0)  # in place: read where it is
        net.last.weight.data = torch.randn(2, 2)  # elsewhere
        close(fast(kept[0]), net(kept[0]))
    shown = str(tw.explain(fast))
    assert "no fallbacks" in shown and "contract" in shown
    assert ".visible .entry" in tw.explain(fast).assembly(0)


@pytest.mark.parametrize(("asked", "begin"), [("auto", True), ("1", True), ("0", False)])
def test_kernels_begin_before_the_one_before_ends(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, asked: str, begin: bool
) -> None:
    """All of them, where products wait for memory; of a library's product nobody knows when others
    may begin."""
    monkeypatch.setenv(knobs.overlap.name, asked)
    library, machine = fake_machine(targets.get("cuda:90"))
    net = Net().eval()
    with torch.no_grad():
        fast = on_fake_gpu(net, machine, strict=True)
        for _ in range(2):
            x = torch.randn(1, 4)
            close(fast(x), net(x))
    count = library.calls.count("cuGraphAddKernelNode_v2")
    early = library.calls.count("cuGraphAddDependencies_v2")
    assert count > 1 and early == (count - 1 if begin else 0)


def test_a_call_does_only_what_can_have_changed(gpu: Gpu) -> None:
    """The driver is called to launch, and to replace the addresses that a call passes, where they
    are used; weights are not looked at again."""
    library, machine = gpu
    net = Net().eval()
    x, places = torch.randn(1, 4), [torch.empty(1, 2) for _ in range(program.ALIKE + 2)]
    with torch.no_grad():
        fast = on_fake_gpu(net, machine, strict=True)
        for y in places[:-1]:
            fast(x, out=y)
        count = len(library.calls)
        fast(x, out=places[-2])
        assert library.calls[count:] == ["cuCtxGetCurrent", "cuGraphLaunch"]
        count = len(library.calls)
        fast(x, out=places[-1])
        moved = library.calls[count:]
    # One kernel writes the result.
    once = ["cuGraphExecKernelNodeSetParams_v2", "cuGraphLaunch"]
    assert moved == ["cuCtxGetCurrent", *once]
    close(places[-1], net(x))


def test_views_of_weights_are_not_copied(gpu: Gpu) -> None:
    _, machine = gpu
    net = nn.Linear(3, 2)
    with torch.no_grad():
        fast = on_fake_gpu(net, machine)
        close(fast(torch.ones(1, 3)), net(torch.ones(1, 3)))
        (made,) = fast.units[0].programs
        assert made.prologue is None


def test_what_is_made_of_weights_is_made_again(gpu: Gpu) -> None:
    _, machine = gpu
    net = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), nn.Tanh())
    x = torch.randn(2, 4)
    with torch.no_grad():
        fast = on_fake_gpu(net.eval(), machine)
        for _ in range(2):
            close(fast(x), net(x))
        assert fast.units[0].programs[0].folded_bytes
        for p in net.parameters():
            p.mul_(1.5)
        close(fast(x), net(x))


def test_gradients(gpu: Gpu) -> None:
    _, machine = gpu
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    fast = on_fake_gpu(net, machine, strict=True)
    x = torch.randn(2, 2)
    fast(x).square().sum().backward()
    got = [p.grad for p in net.parameters()]
    net.zero_grad()
    net(x).square().sum().backward()
    for g, p in zip(got, net.parameters(), strict=True):
        assert g is not None and p.grad is not None
        close(g, p.grad)


class Images(nn.Module):
    """A convolution, a norm over batches, pooling, and a loss of classes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3)
        self.last = nn.Linear(3, 4)

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm(self.first(x))).mean((2, 3))
        return nn.functional.cross_entropy(self.last(y), at)


def trained(net: nn.Module, machine: Machine, *inputs: torch.Tensor) -> None:
    """Gradients of a step are eager's, and nothing runs in eager."""
    other = copy.deepcopy(net)
    fast = on_fake_gpu(net, machine, strict=True)
    for _ in range(2):
        for f, m in ((fast, net), (other, other)):
            m.zero_grad()
            out = f(*inputs)
            loss = out[0] if isinstance(out, tuple) else out
            loss.square().mean().backward()
        for p, q in zip(net.parameters(), other.parameters(), strict=True):
            if q.grad is not None:
                assert p.grad is not None
                torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5)
    assert not tw.explain(fast).fallbacks


def test_a_training_step_with_convolutions(gpu: Gpu) -> None:
    _, machine = gpu
    trained(Images(), machine, torch.randn(2, 2, 4, 4), torch.tensor([1, 3]))


class Words(nn.Module):
    """A table, attention, a norm and a gelu: what a layer of BERT is made of."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(5, width), nn.LayerNorm(width)
        self.parts = nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def forward(self, at: torch.Tensor) -> torch.Tensor:
        x = self.table(at)
        q, k, v = (f(x).unflatten(-1, (2, -1)).transpose(1, 2) for f in self.parts[:3])
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return nn.functional.gelu(self.parts[3](self.norm(x + y.transpose(1, 2).flatten(2))))


@pytest.mark.slow
def test_a_training_step_with_attention(gpu: Gpu) -> None:
    _, machine = gpu
    trained(Words(), machine, torch.tensor([[0, 3, 1]]))


class Photos(nn.Module):
    """Convolutions of several kinds, pooling, a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.second, self.each = nn.Conv2d(16, 16, 3, 1, 1), nn.Conv2d(16, 16, 3, 1, 1, groups=16)
        self.third = nn.Conv2d(16, 16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(torch.relu(self.norm(self.first(x))))
        x = torch.relu(self.second(x) + x)
        return self.third(torch.relu(self.each(x))).mean((2, 3))


@pytest.mark.parametrize("last", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_convolutions_of_16_bits(monkeypatch: pytest.MonkeyPatch, last: bool) -> None:
    """Images are turned once, where they are not stored with channels last; the kernels are those
    of the convolutions, of the pooling and of the mean."""
    torch.manual_seed(0)
    monkeypatch.setattr(grid_windows, "FEWEST", 1)
    format = torch.channels_last if last else torch.contiguous_format
    net = Photos().bfloat16().eval()
    for p in net.parameters():
        if p.ndim == 4:
            p.data = p.data.contiguous(memory_format=format)
    x = torch.randn(1, 3, 16, 16).bfloat16().contiguous(memory_format=format)
    with texts_are_known(monkeypatch), torch.no_grad():
        _, machine = fake_machine(targets.get("cuda:80"))
        fast = on_fake_gpu(net, machine, strict=True)
        got = fast(x)
        (made,) = fast.units[0].programs
        assert sum(k.calls for k in made.kernels) == 7
        assert sum("nvptx.mma" in k.trace for k in made.kernels) == 3
        exact = net.double()(x.double())
    assert float((got - exact).abs().max()) < 0.01 * float(exact.abs().max())


def test_a_wrong_index_is_said_at_the_next_call(gpu: Gpu) -> None:
    _, machine = gpu
    table = torch.randn(5, 4)
    fast = on_fake_gpu(lambda at: table[at] * 2, machine)
    right = torch.tensor([0, 4, 1])
    for _ in range(3):
        close(fast(right), table[right] * 2)
    fast(torch.tensor([0, 5, 1]))
    with pytest.raises(IndexError, match=r"out of range|out of bounds") as caught:
        fast(right)
    assert "an earlier call" in "".join(getattr(caught.value, "__notes__", ()))
    close(fast(right), table[right] * 2)


def test_checks_are_no_launches_of_their_own(gpu: Gpu) -> None:
    """The kernel that reads at wrong places says so; it writes nothing where all is well. Until the
    host looks, what was found stays, whatever later calls find."""
    library, machine = gpu
    words, rows = torch.randn(5, 8), torch.randn(7, 8)

    def f(at: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding(at, words) + nn.functional.embedding(row, rows).sum()

    fast = on_fake_gpu(f, machine, strict=True)
    right = torch.tensor([0, 4, 1]), torch.tensor([6, 0])
    close(fast(*right), f(*right))
    kernels = sum(p.calls for p in tw.explain(fast).programs)
    assert library.calls.count("cuLaunchKernel") == kernels
    fast(right[0], torch.tensor([6, 7]))
    with patch.object(program.CudaProgram, "_said", lambda _: None):
        close(fast(*right), f(*right))
    with pytest.raises(IndexError, match="out of range"):
        fast(*right)
    close(fast(*right), f(*right))


def test_the_last_wrong_index_is_said_when_asked_for_and_at_the_end(
    gpu: Gpu, capsys: pytest.CaptureFixture[str]
) -> None:
    _, machine = gpu
    table = torch.randn(5, 4)
    fast = on_fake_gpu(lambda at: table[at] * 2, machine)
    right, wrong = torch.tensor([0, 4, 1]), torch.tensor([0, 5, 1])
    fast(right)
    tw.synchronize(fast)
    fast(wrong)
    with pytest.raises(IndexError, match=r"out of range|out of bounds"):
        tw.synchronize(fast)
    tw.synchronize(fast)
    fast(wrong)
    late.report()
    late.report()  # it is said once
    said = capsys.readouterr().err
    assert said.count("an earlier call found an error in its data: IndexError") == 1
    close(fast(right), table[right] * 2)


def test_sizes_that_vary(gpu: Gpu) -> None:
    library, machine = gpu

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.cat([x, x + 1]), x.T * 2, x.reshape(-1)[1:]

    fast = on_fake_gpu(f, machine, dynamic=True)
    for n in (2, 3, 2, 3, 2):
        x = torch.randn(n, 5)
        for got, want in zip(fast(x), f(x), strict=True):
            close(got, want)
    assert library.replays


def test_host_calls_numbers_and_odd_addresses(gpu: Gpu) -> None:
    _, machine = gpu

    def f(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x) * scale
        return outside(y[:, :2]) + y[:, 1:]

    fast = on_fake_gpu(f, machine)
    scale = torch.tensor(0.5)
    for k in range(3):
        x = torch.randn(7)[1:].view(2, 3) if k else torch.randn(2, 3)
        assert (x.data_ptr() % 16 != 0) == bool(k)
        close(fast(x, scale), f(x, scale))
    assert len(tw.explain(fast).fallbacks) == 1


def test_a_branch_on_data(gpu: Gpu) -> None:
    _, machine = gpu

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return torch.cond(y.sum() > 0, lambda v: v.exp() + 1, lambda v: v.tanh() - 1, (y,)) * 3

    fast = on_fake_gpu(f, machine, strict=True)
    for x in (torch.ones(3), -torch.ones(3)):
        close(fast(x), f(x))


def test_options_of_the_cpu_get_a_sentence(gpu: Gpu) -> None:
    _, machine = gpu
    refused: tuple[dict[str, Any], ...] = ({"own_weights": True}, {"executor": "interpreter"})
    for options in refused:
        with pytest.raises(Invalid, match="for models on the CPU"), torch.no_grad():
            on_fake_gpu(nn.Linear(3, 3), machine, **options)(torch.ones(2, 3))


def test_the_last_block_of_a_loss_counts_on_each_stream(gpu: Gpu) -> None:
    """Counters are cleared where they are allocated, once for each stream; every launch leaves them
    at zero. What is being recorded has its own and clears them itself."""
    library, machine = gpu
    on: dict[str, Any] = {"stream": 0, "capturing": False}
    machine = replace(machine, stream=lambda: on["stream"], capturing=lambda: on["capturing"])

    def loss(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(x, at)

    def cleared() -> int:
        return library.calls.count("cuMemsetD8Async")

    x, at = torch.randn(5, 33), torch.randint(0, 33, (5,))
    at[3] = -100
    with torch.no_grad():
        fast = on_fake_gpu(loss, machine, strict=True)
        for stream, times in ((0, 1), (7, 2), (0, 2), (7, 2)):
            on["stream"] = stream
            for _ in range(2):
                close(fast(x, at), loss(x, at))
            assert cleared() == times
        on["capturing"] = True
        close(fast(x, at), loss(x, at))
        assert cleared() == 3
    assert "1 cluster " in str(tw.explain(fast))
