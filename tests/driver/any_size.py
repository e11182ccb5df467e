"""Single operators of any size beside programs for one size: how fast symbolic sizes are.

    python -m tests.driver.any_size                           # all operators
    python -m tests.driver.any_size product conv_3x3 --sizes 3
    python -m tests.driver.any_size pool --all                # every size is unknown, not just some
    python -m tests.driver.any_size --compile                 # only fills the cache on disk

For each operator one program is compiled whose marked sizes are symbols, and one static program for
each of the sizes in the table. They take turns; a number is the static program's median time over
that of the program of any size, above 1 where the latter is faster. `first` has the seconds to the
first result of the program of any size and of a static one.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import tilewright as tw
from tilewright.base.machine import usable_cores
from tilewright.bench.measure import busy, geometric_mean, interleaved, ratio
from tilewright.runtime import pool

Size = int | tuple[int, ...]
Known = Sequence[int]


@dataclass(frozen=True)
class Operator:
    """What is called on inputs of one of the sizes; `unknown` axes of each input are symbols."""

    call: Callable[..., Any]
    inputs: Callable[..., tuple[Tensor, ...]]
    unknown: tuple[Known, ...]
    sizes: tuple[Size, ...]
    first: Size  # the program of any size is compiled with inputs of this one


@dataclass
class Found:
    name: str
    first: float = 0.0
    first_static: float = 0.0
    micros: dict[str, float] = field(default_factory=dict)  # of a call of the static program
    speed: dict[str, float] = field(default_factory=dict)
    right: bool = True


OPERATORS: dict[str, Operator] = {}
ROWS = (1, 2, 3, 4, 8, 16, 64, 256)
SIDES = (7, 14, 28, 56, 112)


def _add(
    name: str,
    call: Callable[..., Any],
    inputs: Callable[..., tuple[Tensor, ...]],
    unknown: tuple[Known, ...],
    sizes: tuple[Size, ...],
    first: Size,
) -> None:
    OPERATORS[name] = Operator(call, inputs, unknown, sizes, first)


def _image(channels: int, n: int) -> tuple[Tensor]:
    return (torch.randn(1, channels, n, n),)


def _images(name: str, call: Callable[..., Any], channels: int, sizes: tuple[int, ...]) -> None:
    _add(name, call, partial(_image, channels), ((2, 3),), sizes, 40)


def _conv(before: int, after: int, side: int, **more: Any) -> nn.Module:
    return nn.Conv2d(before, after, side, padding=side // 2, **more).eval()


def _products() -> None:
    _add("product", nn.Linear(512, 512), lambda n: (torch.randn(n, 512),), ((0,),), ROWS, 100)
    deep = nn.Sequential(nn.Linear(768, 3072), nn.GELU())
    _add("product_gelu", deep, lambda n: (torch.randn(n, 768),), ((0,),), ROWS, 100)
    _add("product_odd", nn.Linear(300, 77), lambda n: (torch.randn(n, 300),), ((0,),), ROWS, 100)

    def operands(n: int) -> tuple[Tensor, Tensor]:
        return torch.randn(n, 256), torch.randn(256, 256)

    _add("product_of_two", torch.matmul, operands, ((0,), ()), ROWS, 100)

    def square(n: int) -> tuple[Tensor, Tensor]:
        return torch.randn(n, n), torch.randn(n, n)

    _add("product_square", torch.matmul, square, ((0, 1), (0, 1)), (7, 16, 33, 64, 128, 300), 100)

    def matrices(n: int) -> tuple[Tensor, Tensor]:
        return torch.randn(8, n, 64), torch.randn(8, 64, n)

    _add("bmm_scores", torch.bmm, matrices, ((1,), (2,)), (1, 7, 16, 50, 128, 384), 100)

    def weighted(n: int) -> tuple[Tensor, Tensor]:
        return torch.randn(8, n, n), torch.randn(8, n, 64)

    _add("bmm_values", torch.bmm, weighted, ((1, 2), (1,)), (1, 7, 16, 50, 128, 384), 100)

    def batches(n: int) -> tuple[Tensor, Tensor]:
        return torch.randn(n, 32, 64), torch.randn(n, 64, 48)

    _add("bmm_batch", torch.bmm, batches, ((0,), (0,)), (1, 2, 5, 16, 64), 10)


def _convolutions() -> None:
    _images("conv_3x3", _conv(64, 64, 3), 64, SIDES)
    _images("conv_1x1", _conv(64, 128, 1), 64, SIDES)
    _images("conv_strided", _conv(64, 64, 3, stride=2), 64, SIDES)
    _images("conv_first", _conv(3, 32, 7, stride=2), 3, SIDES)
    _images("conv_depthwise", _conv(96, 96, 3, groups=96), 96, SIDES)
    _images("conv_depthwise_strided", _conv(96, 96, 3, groups=96, stride=2), 96, SIDES)
    _images("conv_groups", _conv(64, 64, 3, groups=4), 64, SIDES)
    apart = _conv(32, 32, 3, groups=32)
    several = _conv(32, 32, 3), nn.ReLU(), apart, nn.ReLU(), _conv(32, 64, 1)
    _images("conv_mixed", nn.Sequential(*several), 32, SIDES)
    line = nn.Conv1d(32, 32, 5, padding=2)
    _add("conv_line", line, lambda n: (torch.randn(2, 32, n),), ((2,),), (16, 100, 1000), 400)
    batch = _conv(32, 32, 3)
    _add("conv_batch", batch, lambda n: (torch.randn(n, 32, 28, 28),), ((0,),), (1, 2, 8), 4)
    across = nn.ConvTranspose2d(32, 32, 2, stride=2)
    _images("conv_transposed", across, 32, SIDES[:-1])


def _pixels() -> None:
    def resized(x: Tensor, mode: str) -> Tensor:
        return F.interpolate(x, scale_factor=2.0, mode=mode)

    _images("upsample_nearest", partial(resized, mode="nearest"), 32, SIDES)
    _images("upsample_bilinear", partial(resized, mode="bilinear"), 32, SIDES)

    def fitted(x: Tensor, y: Tensor) -> Tensor:
        return F.interpolate(x, size=y.shape[2:], mode="bilinear", align_corners=False)

    def two(n: int) -> tuple[Tensor, Tensor]:
        return torch.randn(1, 32, n, n), torch.randn(1, 1, 3 * n // 2, 3 * n // 2)

    _add("upsample_fitted", fitted, two, ((2, 3), (2, 3)), SIDES, 40)
    _images("max_pool_2", nn.MaxPool2d(2), 64, SIDES)
    _images("max_pool_3", nn.MaxPool2d(3, 2, 1), 64, SIDES)
    _images("avg_pool_2", nn.AvgPool2d(2), 64, SIDES)
    _images("avg_pool_3", nn.AvgPool2d(3, 2, 1), 64, SIDES)
    _images("mean_of_pixels", nn.AdaptiveAvgPool2d(1), 64, SIDES)
    norm = nn.BatchNorm2d(64).eval()
    _images("batch_norm", norm, 64, SIDES)
    _images("group_norm", nn.GroupNorm(8, 64), 64, SIDES)
    _images("padded", nn.ReflectionPad2d(2), 64, SIDES)
    _images("unfolded", nn.PixelUnshuffle(2), 32, (8, 14, 28, 56, 112))


def _rows() -> None:
    lengths = (1, 5, 16, 63, 200, 1000)

    def across(n: int) -> tuple[Tensor]:
        return (torch.randn(64, n),)

    def down(n: int) -> tuple[Tensor]:
        return (torch.randn(n, 256),)

    for name, call in {
        "softmax": partial(torch.softmax, dim=-1),
        "sum": partial(torch.sum, dim=-1),
        "amax": partial(torch.amax, dim=-1),
        "argmax": partial(torch.argmax, dim=-1),
        "variance": partial(torch.var, dim=-1),
        "cumsum": partial(torch.cumsum, dim=-1),
        "sort": lambda x: torch.sort(x, dim=-1).values,
        "norm": lambda x: F.normalize(x, dim=-1),
        "gelu": F.gelu,
        "transposed": lambda x: x.t().contiguous(),
    }.items():
        _add(name, call, across, ((1,),), lengths, 300)
    for name, call in {
        "softmax_rows": partial(torch.softmax, dim=-1),
        "layer_norm_rows": nn.LayerNorm(256),
        "sum_rows": partial(torch.sum, dim=-1),
        "sum_columns": partial(torch.sum, dim=0),
        "softmax_columns": partial(torch.softmax, dim=0),
        "cumsum_columns": partial(torch.cumsum, dim=0),
        "gelu_rows": F.gelu,
        "joined_rows": lambda x: torch.cat([x, x * 2], 0),
        "joined_columns": lambda x: torch.cat([x, x * 2], 1),
    }.items():
        _add(name, call, down, ((0,),), (1, 2, 7, 16, 100, 600), 300)

    def words(n: int) -> tuple[Tensor]:
        return (torch.randint(0, 1000, (1, n)),)

    _add("embedding", nn.Embedding(1000, 256), words, ((1,),), (1, 2, 7, 16, 100, 600), 300)

    def several(n: int) -> tuple[Tensor, ...]:
        return torch.randn(4, n, 64), torch.randn(4, 20, 64)

    joined = lambda x, y: torch.cat([x, y], 1)  # noqa: E731
    _add("joined_middle", joined, several, ((1,), ()), (1, 2, 7, 16, 100, 600), 300)


def _attention() -> None:
    def heads(batch: int, queries: int, keys: int, width: int = 64) -> tuple[Tensor, ...]:
        shapes = ((batch, 4, n, width) for n in (queries, keys, keys))
        return tuple(torch.randn(shape) for shape in shapes)

    every = ((2,),) * 3
    lengths = (1, 7, 16, 50, 128, 384)
    plain = F.scaled_dot_product_attention
    causal = partial(plain, is_causal=True)
    _add("attention", plain, lambda n: heads(2, n, n), every, lengths, 100)
    _add("attention_causal", causal, lambda n: heads(2, n, n), every, lengths, 100)
    _add("attention_query", plain, lambda n: heads(2, 1, n), ((), (2,), (2,)), lengths, 100)
    _add("attention_batch", plain, lambda n: heads(n, 64, 64), ((0,),) * 3, (1, 2, 8), 4)
    _add("attention_width", plain, lambda n: heads(2, 64, 64, n), ((3,),) * 3, (16, 32, 64), 48)


_products()
_convolutions()
_pixels()
_rows()
_attention()


def _arguments(given: Size) -> tuple[int, ...]:
    return given if isinstance(given, tuple) else (given,)


def _marked(operator: Operator, inputs: tuple[Tensor, ...], everything: bool) -> None:
    """Says which sizes are no symbols: `dynamic=True` takes the others as such."""
    if everything:
        return
    for x, unknown in zip(inputs, operator.unknown, strict=True):
        for axis in range(x.dim()):
            if axis not in unknown:
                torch._dynamo.mark_static(x, axis)


def _first(call: Callable[..., Any], inputs: tuple[Tensor, ...]) -> float:
    began = time.perf_counter()
    call(*inputs)
    return time.perf_counter() - began


def measured(name: str, operator: Operator, given: argparse.Namespace) -> Found:
    found = Found(name)
    torch._dynamo.reset()
    general = tw.compile(operator.call, dynamic=True, specialise_after=0)
    start = operator.inputs(*_arguments(operator.first))
    _marked(operator, start, given.all)
    found.first = _first(general, start)
    for size in operator.sizes[: given.sizes]:
        inputs = operator.inputs(*_arguments(size))
        _marked(operator, inputs, given.all)
        torch._dynamo.reset()
        static = tw.compile(operator.call, dynamic=False)
        found.first_static = max(found.first_static, _first(static, inputs))
        got, wanted = general(*inputs), operator.call(*inputs)
        tolerance = 1e-4 * max(1.0, float(wanted.abs().nan_to_num().amax()))
        found.right &= torch.allclose(got, wanted, rtol=1e-4, atol=tolerance, equal_nan=True)
        if given.compile:
            continue
        runs = {"one": partial(static, *inputs), "all": partial(general, *inputs)}
        times = interleaved(runs, given.rounds)
        found.micros[str(size)] = 1e6 * min(times["one"])
        found.speed[str(size)] = ratio(times["one"], times["all"])
    if (compiles := general.log.counts["compile"]) != 1:
        print(f"{name}: {compiles} programs of any size")
    return found


def table(found: Sequence[Found]) -> Table:
    title = "programs of any size: their speed over that of a program for one size (its µs)"
    out = Table(title=title, title_justify="left")
    for column in ("operator", "right", "first", "mean", "by sizes"):
        out.add_column(column, justify="left" if column in ("operator", "by sizes") else "right")
    for f in found:
        each = "  ".join(f"{s}: {x:.2f} ({f.micros[s]:.0f})" for s, x in f.speed.items())
        mean = f"{geometric_mean(list(f.speed.values())):.2f}" if f.speed else ""
        first = f"{f.first:.1f}/{f.first_static:.1f}"
        out.add_row(f.name, "yes" if f.right else "NO", first, mean, each)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("operators", nargs="*", help="those whose names begin so")
    parser.add_argument("--sizes", type=int, default=99, help="at most so many of each")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--all", action="store_true", help="every size of an input is a symbol")
    parser.add_argument("--compile", action="store_true", help="only compile: nothing is timed")
    parser.add_argument("--json", type=Path, help="write every number to this file")
    given = parser.parse_args()
    wanted = tuple(given.operators) or ("",)
    chosen = {n: o for n, o in OPERATORS.items() if n.startswith(wanted)}
    if not chosen:
        parser.error(f"no operator begins so; there are {', '.join(OPERATORS)}")
    console = Console()
    if (why := busy()) is not None:
        console.print(why)
    pool.set_threads(given.threads)
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    with torch.no_grad():
        found = [measured(name, operator, given) for name, operator in chosen.items()]
    console.print(table(found))
    if given.json:
        given.json.write_text(json.dumps([asdict(f) for f in found], indent=1))


if __name__ == "__main__":
    main()
