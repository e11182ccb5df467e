"""Images that a forward graph keeps for its gradient have channels last, as kernels want them."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import tilewright as tw
from tests.gpu.fake import fake_machine, on_fake_gpu, texts_are_known
from tests.gpu.training import idle_machine, idly
from tilewright import targets
from tilewright.capture.torch.captured import Segment
from tilewright.driver.torch.api import Compiled
from tilewright.driver.torch.call import Unit
from tilewright.ir.dim import Dim
from tilewright.runtime.cuda.program import CudaProgram


class Blocks(nn.Module):
    """Two convolutions with norms of batches, and something that is no image."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, k, padding=k // 2) for k in (3, 1))
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(self.norm(self.first(x)))
        z = self.second(y)
        heads = x.flatten(2).unflatten(1, (4, -1)).softmax(-1)  # of rank 4, and no image
        return z.mean((2, 3)), heads * heads


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with idly(monkeypatch):
        yield


def kept(fast: Compiled) -> tuple[Unit, list[tuple[Dim, ...]]]:
    """The forward graph, and the strides of what it keeps that has four axes."""
    (unit,) = (u for u in fast.units if u.kind == "forward")
    (segment,) = (s for s in unit.captured.steps if isinstance(s, Segment))
    own = segment.buffers[2:]  # after the results
    return unit, [b.stride for b in own if len(b.shape) == 4]


@pytest.mark.usefixtures("idle")
def test_images_have_channels_last_and_others_stay_as_they_were() -> None:
    _, machine = idle_machine(targets.get("cuda:90"))
    net = Blocks().bfloat16()
    fast = on_fake_gpu(net, machine, strict=True, choose="default")
    x = torch.randn(2, 16, 8, 8).bfloat16()
    out, heads = fast(x)
    assert out.is_contiguous() and heads.is_contiguous()
    (out.float().sum() + heads.float().sum()).backward()
    unit, strides = kept(fast)
    last, plain = (1024, 1, 128, 16), (1024, 256, 64, 1)
    assert strides.count(last) >= 2 and all(s in (last, plain) for s in strides), strides
    (backward,) = (u for u in fast.units if u.kind == "backward")
    given = [a.stride for a in backward.captured.arguments if len(a.shape) == 4]
    assert last in given
    # Nothing is turned on its way.
    (made,) = unit.programs
    assert isinstance(made, CudaProgram)
    assert "map(permute)" not in [k.name for k in made.kernels]


def test_processors_keep_them_so_too() -> None:
    torch.manual_seed(0)
    net = Blocks().double()  # so that nothing but a wrong layout makes a difference
    eager, x = copy.deepcopy(net), torch.randn(2, 16, 8, 8).double()
    fast = tw.compile(net, strict=True)
    for f in (fast, eager):
        out, heads = f(x)
        assert out.is_contiguous() and heads.is_contiguous()
        (out.square().mean() + heads.square().mean()).backward()
    assert isinstance(fast, Compiled)
    assert kept(fast)[1].count((1024, 1, 128, 16)) >= 2
    for (name, p), q in zip(net.named_parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-10, atol=1e-14, msg=name)


@pytest.mark.slow
def test_gradients_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net = Blocks().bfloat16()
    eager, exact = copy.deepcopy(net), copy.deepcopy(net).double()
    x = torch.randn(2, 16, 6, 6).bfloat16()
    with texts_are_known(monkeypatch):
        _, machine = fake_machine(targets.get("cuda:80"))
        fast = on_fake_gpu(net, machine, strict=True)
        for f, given in ((fast, x), (eager, x), (exact, x.double())):
            out, heads = f(given)
            (out.double().square().mean() + heads.double().square().mean()).backward()
    found = zip(*(dict(m.named_parameters()).items() for m in (net, eager, exact)), strict=True)
    for (name, p), (_, e), (_, q) in found:
        assert p.grad is not None and e.grad is not None and q.grad is not None
        theirs = float((e.grad.double() - q.grad).abs().max())
        allowed = 2 * theirs + 4 * torch.finfo(torch.bfloat16).eps * float(q.grad.abs().max())
        assert float((p.grad.double() - q.grad).abs().max()) <= allowed, name


def test_calls_of_eager_see_them_as_torch_announced() -> None:
    """A turned image whose gradient eager computes: it was read as if channels came first."""
    torch.manual_seed(0)
    image, weight = torch.randn(2, 3, 3, 4), torch.randn(3, 3, 1, 1)
    places = (torch.rand(2, 4, 5, 2) * 1.8 - 0.9).requires_grad_()

    def sampled(x: torch.Tensor, w: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        turned = nn.functional.conv2d(x, w).transpose(2, 3)
        return nn.functional.grid_sample(turned, at, align_corners=False)

    right = sampled(image, weight, places)
    given = torch.randn_like(right)
    (wanted,) = torch.autograd.grad(right, places, given)
    ours = tw.compile(sampled)(image, weight, places)
    (found,) = torch.autograd.grad(ours, places, given)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
