"""Convolutions and pooling on a GPU: right, and timed beside cuDNN on images with channels last."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import tilewright as tw
from tests.gpu.timing import medians
from tilewright.base import knobs
from tilewright.ir.target import Grid
from tilewright.ir.types import bf16
from tilewright.kernel.defaults import grid_group_products
from tilewright.kernel.defaults.grid_warp_products import Tile

Found = dict[str, Any]


@dataclass(frozen=True)
class Layer:
    """A convolution with a bias, or one of single pixels and a maximum of windows (no filters), of
    square images."""

    size: int
    channels: int
    filters: int
    kernel: int = 3
    stride: int = 1
    groups: int = 1

    def title(self, batch: int) -> str:
        what = "pool" if not self.filters else "depthwise" if self.groups > 1 else "conv"
        step = f" s{self.stride}" if self.stride > 1 else ""
        to = f"->{self.filters}" if self.filters else ""
        at = f"{batch}x{self.size}x{self.size}"
        return f"{what} bf16 {at} {self.channels}{to} {self.kernel}x{self.kernel}{step}"

    def module(self) -> nn.Module:
        padding = self.kernel // 2
        if not self.filters:  # behind a convolution, which says how images are stored
            made = nn.Sequential(
                nn.Conv2d(self.channels, self.channels, 1),
                nn.MaxPool2d(self.kernel, self.stride, padding),
            )
        else:
            made = nn.Conv2d(
                self.channels, self.filters, self.kernel, self.stride, padding, groups=self.groups
            )
        made = made.cuda().bfloat16().eval()
        for p in made.parameters():
            if p.ndim == 4:
                p.data = p.data.contiguous(memory_format=torch.channels_last)
        return made

    def input(self, batch: int) -> torch.Tensor:
        x = torch.randn(batch, self.channels, self.size, self.size, device="cuda")
        return x.bfloat16().contiguous(memory_format=torch.channels_last)

    def work(self, batch: int) -> float:
        """Operations."""
        out = self.size // self.stride
        each = self.kernel**2 * self.channels // self.groups * max(self.filters, 1)
        return 2.0 * batch * out * out * each


# The distinct ones of ResNet-50.
RESNET = (
    Layer(224, 3, 64, 7, 2),
    Layer(56, 64, 64, 1),
    Layer(56, 64, 64),
    Layer(56, 64, 256, 1),
    Layer(56, 256, 64, 1),
    Layer(56, 256, 128, 1),
    Layer(56, 128, 128, 3, 2),
    Layer(56, 256, 512, 1, 2),
    Layer(28, 128, 512, 1),
    Layer(28, 512, 128, 1),
    Layer(28, 128, 128),
    Layer(28, 512, 256, 1),
    Layer(28, 256, 256, 3, 2),
    Layer(28, 512, 1024, 1, 2),
    Layer(14, 256, 1024, 1),
    Layer(14, 1024, 256, 1),
    Layer(14, 256, 256),
    Layer(14, 1024, 512, 1),
    Layer(14, 512, 512, 3, 2),
    Layer(14, 1024, 2048, 1, 2),
    Layer(7, 512, 2048, 1),
    Layer(7, 2048, 512, 1),
    Layer(7, 512, 512),
    Layer(112, 64, 0, 3, 2),
)
# Filters of single channels, of MobileNetV2.
MOBILENET = (
    Layer(112, 32, 32, groups=32),
    Layer(112, 96, 96, stride=2, groups=96),
    Layer(56, 144, 144, groups=144),
    Layer(28, 192, 192, groups=192),
    Layer(14, 576, 576, groups=576),
    Layer(7, 960, 960, groups=960),
)
# One of each kind, on which tiles are compared.
VARIED = (Layer(56, 64, 64), Layer(28, 128, 128), Layer(14, 256, 256), Layer(7, 512, 512))
TILES = {
    "128x256": (2, (128, 256, 1160)),
    "128x128": (2, (128, 128, 650)),
    "128x64": (2, (128, 64, 400)),
    "64x128": (1, (64, 128, 380)),
    "64x64": (1, (64, 64, 300)),
    "64x256": (1, (64, 256, 720)),
}
AHEAD = (1, 2, 3)


def layer(shape: Layer, batch: int, check: Callable[..., float]) -> Found:
    """Right by float64, then timed."""
    torch.backends.cudnn.benchmark = True
    module = shape.module()
    sets = [shape.input(batch) for _ in range(3)]
    fast = tw.compile(module)
    got = fast(sets[0])
    wide = copy.deepcopy(module).double()
    error = check(got, wide(sets[0].double()), module(sets[0]), bf16)
    assert torch.equal(got, fast(sets[0])), "two runs differ"
    t = medians(
        {
            "ours": [lambda x=x: fast(x) for x in sets],
            "eager": [lambda x=x: module(x) for x in sets],
        },
        20,
    )
    kernels = [k for u in fast.units for p in u.programs for k in p.kernels]
    rate = shape.work(batch) / t["ours"] * 1e-12
    moved = sum(x.nbytes for x in (sets[0], got)) / t["ours"] * 1e-12
    return {
        "us": t["ours"] * 1e6,
        "eager": t["eager"] / t["ours"],
        "tflops": rate,
        "error": error,
        "kernels": sum(k.calls for k in kernels),
        "facts": f"{rate:.0f} TFLOP/s, {moved:.2f} TB/s of images; "
        + ", ".join(f"{k.calls}x {k.name}" for k in kernels),
    }


@contextmanager
def tiles(groups: int, tile: tuple[int, int, int], ahead: int) -> Iterator[None]:
    """Only this tile, copies at most so many steps ahead; nothing comes out of the cache."""
    usual = grid_group_products.TILES, grid_group_products.versions
    off = {knobs.cache.name: "off"}
    saved = {k: os.environ.get(k) for k in off}

    def versions(t: Tile, grid: Grid, besides: int = 0) -> tuple[int, int]:
        most, slack = usual[1](t, grid, besides)
        return min(ahead, most), slack

    try:
        os.environ.update(off)
        empty: dict[int, tuple[tuple[int, int, int, int], ...]] = {1: (), 2: ()}
        grid_group_products.TILES = {**empty, groups: ((*tile, tile[2]),)}
        grid_group_products.versions = versions
        yield
    finally:
        grid_group_products.TILES, grid_group_products.versions = usual
        for k, v in saved.items():
            os.environ.pop(k) if v is None else os.environ.update({k: v})


def variants(batch: int) -> Found:
    """Tiles of 3x3 convolutions, and how many steps copies are ahead, side by side."""
    said: list[str] = []
    for shape in VARIED:
        module, sets = shape.module(), [shape.input(batch) for _ in range(3)]
        contenders: dict[str, list[Callable[[], object]]] = {
            "cudnn": [lambda x=x, m=module: m(x) for x in sets]
        }
        for name, (groups, tile) in TILES.items():
            for ahead in AHEAD:
                with tiles(groups, tile, ahead):
                    fast = tw.compile(module)
                    fast(sets[0])
                contenders[f"{name} ahead {ahead}"] = [lambda x=x, f=fast: f(x) for x in sets]
        t = medians(contenders, 10)
        said.append(
            f"{shape.title(batch)}: " + ", ".join(f"{k} {v * 1e6:.1f} us" for k, v in t.items())
        )
    return {"facts": "; ".join(said)}


def conv_checks(check: Callable[..., float]) -> Iterator[tuple[str, Callable[[], Found]]]:
    for batch in (1, 64):
        for shape in (*RESNET, *MOBILENET):
            yield shape.title(batch), lambda s=shape, b=batch: layer(s, b, check)
    for batch in (1, 64):
        yield f"conv variants {batch}", lambda b=batch: variants(b)
