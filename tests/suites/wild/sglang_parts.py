"""What the drivers of SGLang share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch


def function(path: str, name: str) -> Any:
    """A function or kernel of SGLang's operators; a path from the top begins with a dot."""
    module = f"sglang{path}" if path.startswith(".") else f"sglang.kernels.ops.{path}"
    return getattr(import_module(module), name)


@contextmanager
def overridden(name: str, value: Any) -> Iterator[None]:
    """A setting of SGLang's that is read from the environment."""
    with getattr(function(".srt.environ", "envs"), name).override(value):
        yield


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def longs(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def sums(lengths: tuple[int, ...]) -> torch.Tensor:
    return ints(0, *torch.tensor(lengths).cumsum(0).tolist())


def drawn(high: int, *shape: int, seed: int = 0, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Whole numbers below a bound."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randint(high, shape, generator=generator).to(dtype)


def uniform(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def mixed(*shape: int, seed: int = 0) -> torch.Tensor:
    """A permutation of 0 … n-1, in a shape of n elements."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(torch.Size(shape).numel(), generator=generator).view(shape)


def nearest(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """A number of 8 bits: half a step of its own away, where the value itself was rounded too."""
    a, b = got.double(), wanted.double()
    assert a.shape == b.shape, f"{tuple(a.shape)} for {tuple(b.shape)}"
    off = (a - b).abs() - (b.abs() / 15 + 2.0**-9)
    assert (off <= 0).all(), f"{int((off > 0).sum())} elements are off, by up to {off.max()}"


def aligned(ids: torch.Tensor, block: int, experts: int) -> tuple[torch.Tensor, ...]:
    """Routes in order of their experts, each expert's padded to whole blocks."""
    flat, order, owners = ids.flatten(), [], []
    for e in range(experts):
        found = (flat == e).nonzero()[:, 0].tolist()
        found += [flat.numel()] * (-len(found) % block)
        order += found
        owners += [e] * (len(found) // block)
    return ints(*order), ints(*owners), ints(len(order))


def narrow_parts(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What 448 numbers of 8 bits are, and the exponents of the powers of two, one for each 64."""
    tiles = x[:, :448].double().unflatten(1, (7, 64))
    power = (tiles.abs().amax(-1) / 448).log2().ceil()
    return (tiles / power.exp2()[..., None]).flatten(1), power + 127


def read_pages(buffer: torch.Tensor, page: int) -> tuple[torch.Tensor, ...]:
    """All tokens of pages: 448 numbers of 8 bits, 64 of 16 bits, and 7 powers of two; the powers
    are behind the numbers of the page."""
    tokens = buffer[:, : page * 576].reshape(-1, 576)
    scales = buffer[:, page * 576 : page * 584].reshape(-1, 8)
    low, high = tokens[:, :448].contiguous(), tokens[:, 448:].contiguous()
    return low.view(torch.float8_e4m3fn), high.view(torch.bfloat16), scales[:, :7]


def whole_pages(buffer: torch.Tensor, page: int) -> torch.Tensor:
    """What the numbers of all tokens of pages stand for."""
    low, high, scales = read_pages(buffer, page)
    wide = low.double().unflatten(1, (7, 64)) * (scales.double() - 127).exp2()[..., None]
    return torch.cat((wide.flatten(1), high.double()), 1)
