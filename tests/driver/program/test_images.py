"""Random networks on images, natively: ragged sizes, strides, padding, groups, dtypes."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from torch import nn

import tilewright as tw
from tests.seeds import drawn
from tilewright.ir import dim as D
from tilewright.kernel.nest import Loop, start, walk
from tilewright.kernel.step import apply, parse_trace
from tilewright.kernel.text import parse_group
from tilewright.targets import default

DTYPES = [torch.float32, torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16]


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


class Joined(nn.Module):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([part(x) for part in self.parts], 1)


def layer(r: random.Random, channels: int) -> tuple[nn.Module, int]:
    """Something that takes images of so many channels, and how many its result has."""
    out = r.choice([3, 8, 13, 16, 24])
    kind = r.choice("conv conv conv pointwise depthwise grouped residual pool join up".split())
    bias = r.random() < 0.5
    if kind == "conv":
        k = r.choice([2, 3, 3, 3, 5])
        settings: dict[str, Any] = {
            "stride": r.choice([1, 1, 2]),
            "padding": r.choice([0, 1, k // 2]),
            "dilation": r.choice([1, 1, 2]),
        }
        return nn.Conv2d(channels, out, k, bias=bias, **settings), out
    if kind == "pointwise":
        return nn.Conv2d(channels, out, 1, bias=bias, stride=r.choice([1, 2])), out
    if kind == "depthwise":
        return nn.Conv2d(channels, channels, 3, r.choice([1, 2]), 1, groups=channels), channels
    if kind == "grouped":
        groups = next(g for g in (4, 3, 2, 1) if channels % g == 0)
        return nn.Conv2d(channels, 2 * groups, 3, padding=1, groups=groups), 2 * groups
    if kind == "residual":
        inner = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels))
        return Residual(inner), channels
    if kind == "pool":
        pools = [nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2), nn.MaxPool2d(2, ceil_mode=True)]
        return r.choice(pools), channels
    if kind == "join":
        parts = (nn.Conv2d(channels, 5, 1), nn.Conv2d(channels, 8, 3, padding=1))
        return Joined(*parts), 13
    return nn.ConvTranspose2d(channels, out, 3, 2, 1, bias=bias), out


def network(seed: int) -> tuple[nn.Module, torch.Tensor]:
    r = random.Random(seed)
    torch.manual_seed(seed)
    channels = r.choice([3, 4, 16, 32])
    parts: list[nn.Module] = []
    x = torch.randn(r.choice([1, 1, 2]), channels, r.randrange(12, 30), r.randrange(12, 30))
    for _ in range(r.randrange(2, 5)):
        part, channels = layer(r, channels)
        parts.append(part)
        if r.random() < 0.4:
            parts.append(nn.BatchNorm2d(channels))
        if r.random() < 0.6:
            parts.append(r.choice([nn.ReLU(), nn.GELU(), nn.SiLU()]))
        try:
            with torch.no_grad():
                nn.Sequential(*parts).eval()(x)
        except RuntimeError:  # the image is smaller than a window
            parts = parts[: parts.index(part)]
            break
    if r.random() < 0.5:
        parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*parts).eval(), x


def check(seed: int) -> None:
    module, x = network(seed)
    dtype = random.Random(-seed).choice(DTYPES)
    module, x = module.to(dtype), x.to(dtype)
    with torch.no_grad():
        exact = copy.deepcopy(module).double()(x.double())
        eager = module(x)
        got = tw.compile(module, strict=True)(x)
    assert got.shape == eager.shape and got.stride() == eager.stride(), f"seed {seed}"
    scale = float(exact.abs().max())
    own, error = (float((y.double() - exact).abs().max()) for y in (eager, got))
    # A few values of a few sums: luck counts, a fault is larger by far.
    bound = 4 * own + 16 * torch.finfo(dtype).eps * scale
    assert error <= bound, f"seed {seed}: {dtype}, error {error:.2e}, eager's {own:.2e}"


@pytest.mark.parametrize("seed", drawn([*range(24), *range(1000, 1200)], quick=2))
def test_random_networks(seed: int) -> None:
    check(seed)


def image_net() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(7)
    net = nn.Sequential(
        nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3)
    )
    return net.eval(), torch.randn(1, 64, 30, 30)


def kernels(fast: Any) -> str:
    return str(tw.explain(fast))


def test_winograd_is_a_choice() -> None:
    """By tiles, errors are 2.4 times those of direct sums in blocks; with sums of tiles in one
    chain they are 3.3 times as large."""
    net, x = image_net()
    errors = []
    with torch.no_grad():
        right = copy.deepcopy(net).double()(x.double())
        for passes, taken in [(None, True), (tw.passes().without("Winograd"), False)]:
            fast = tw.compile(net, x, passes=passes)
            assert ("winograd_input" in kernels(fast)) is taken
            errors.append((fast(x).double() - right).square().mean().sqrt())
            torch.compiler.reset()
    assert 0 < errors[0] < 2.8 * errors[1], errors


def test_tiles_of_images_of_any_size() -> None:
    net, x = image_net()
    torch._dynamo.reset()
    with torch.no_grad():
        fast = tw.compile(net, dynamic=True)
        fast(x)
        assert kernels(fast).count("│ chain(") == 2  # from pixels to pixels
        for shape in [(2, 64, 33, 18), (1, 64, 3, 5), (3, 64, 8, 8), (0, 64, 9, 9)]:
            x = torch.randn(shape)
            if not x.numel():
                assert fast(x).shape == net(x).shape
                continue
            right, eager = copy.deepcopy(net).double()(x.double()), net(x)
            error, own = (float((y.double() - right).abs().max()) for y in (fast(x), eager))
            assert error <= 4 * own + 16 * torch.finfo(x.dtype).eps * float(right.abs().max())


@pytest.mark.parametrize("dynamic", [False, True])
def test_convolutions_of_one_image_make_their_own_points(dynamic: bool) -> None:
    torch.manual_seed(8)
    torch._dynamo.reset()
    parts = nn.ModuleList(nn.Conv2d(64, n, 3, padding=1) for n in (64, 96)).eval()

    def net(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = x.relu()
        return tuple(part(x) for part in parts)

    with torch.no_grad():
        fast = tw.compile(net, dynamic=dynamic)
        for shape in [(1, 64, 30, 30), (2, 64, 33, 17)]:
            x = torch.randn(shape)
            found, eager = fast(x), net(x)
            parts.double()
            right = net(x.double())
            parts.float()
            for got, own, y in zip(found, eager, right):
                error, least = (float((z.double() - y).abs().max()) for z in (got, own))
                assert error <= 4 * least + 16 * torch.finfo(x.dtype).eps * float(y.abs().max())
        assert kernels(fast).count("│ chain(") >= 2


def test_lines_of_any_size_keep_their_sums_in_registers() -> None:
    """Each channel of an image by its own weights, with vectors along lines of pixels."""
    torch._dynamo.reset()
    net = nn.Conv2d(6, 6, 3, padding=1, groups=6).eval()
    lanes = default().lanes(32)
    sizes = [(2, 17, 2 * lanes), (1, 1, 1), (3, 5, 2 * lanes + 1), (1, 7, lanes - 1), (0, 6, 9)]
    with torch.no_grad():
        fast = tw.compile(net, dynamic=True, strict=True)
        for n, h, w in sizes:
            x = torch.randn(n, 6, h, w)
            got, eager = fast(x), net(x)
            assert got.shape == eager.shape
            right = copy.deepcopy(net).double()(x.double())
            if x.numel():
                error, own = (float((y.double() - right).abs().max()) for y in (got, eager))
                assert error <= 2 * own + 4 * torch.finfo(x.dtype).eps * float(right.abs().max())
    (k,) = tw.explain(fast).kernels
    nest = apply(start(parse_group(k.group)), parse_trace(k.trace))
    (sums,) = (b for b in nest.buffers if b.scope == "register")
    assert sums.shape[-1] == lanes  # a part of one vector is the only rest


POOLS = [
    nn.MaxPool2d(2),
    nn.AvgPool2d(3, 2, 1),
    pytest.param(nn.MaxPool2d(3, 2, 1), marks=pytest.mark.slow),
    pytest.param(nn.AvgPool2d((3, 4), (1, 3), 1, count_include_pad=False), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("pool", POOLS, ids=str)
def test_windows_of_images_of_any_size(pool: nn.Module) -> None:
    """Results at the end of a line are a part of one vector, and what they read is whole ones."""
    torch._dynamo.reset()
    lanes = default().lanes(32)
    sides = [5, lanes - 1, lanes, 2 * lanes - 1, 2 * lanes, 2 * lanes + 1, 4 * lanes + 3]
    with torch.no_grad():
        fast = tw.compile(pool, dynamic=True, strict=True)
        for k, w in enumerate(sides):
            x = torch.randn(1 + k % 2, 3, sides[-1 - k], w)
            torch.testing.assert_close(fast(x), pool(x))
    (kernel,) = tw.explain(fast).kernels
    nest = apply(start(parse_group(kernel.group)), parse_trace(kernel.trace))
    (sums,) = (b for b in nest.buffers if b.scope == "register")
    assert sums.shape[-1] == lanes


def pieces_for_threads(fast: Any) -> list[D.Dim]:
    """Of the loop that threads share in what comes after tiles, for one image."""
    kernels = [k for p in tw.explain(fast).programs for k in p.kernels]
    k = next(k for k in kernels if "winograd_output" in k.name)
    nest = apply(start(parse_group(k.group)), parse_trace(k.trace))
    loops = [s for s, _ in walk(nest.body) if isinstance(s, Loop) and s.kind == "parallel"]
    return [D.substitute(s.extent, dict.fromkeys(D.symbols(s.extent), 1)) for s in loops]


def whole_parts(channels: int) -> int:
    vectors = channels // default().lanes(32)
    return -(-vectors // -(-vectors // default().cores))


def test_threads_share_images_that_tiles_do_not_divide() -> None:
    """Loops over tiles with a rest are taken apart: they do not become one loop for threads."""
    net, x = nn.Conv2d(64, 64, 3, padding=1).eval(), torch.randn(1, 64, 14, 14)
    with torch.no_grad():
        fast = tw.compile(net, x)
    assert default().cores == 1 or pieces_for_threads(fast) == [whole_parts(64)]


def test_strict_precision_sums_in_the_order_of_the_definition() -> None:
    net, x = image_net()
    with torch.no_grad():
        fast = tw.compile(net, x, precision="strict")
        assert "winograd" not in kernels(fast) and "RFactor" not in kernels(fast)
        torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)
    with pytest.raises(tw.Invalid, match="reassociate"):
        tw.compile(net, x, precision="exact")
