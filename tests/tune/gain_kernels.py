"""Programs whose tuning is measured: shapes that no default schedule was written for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import tilewright as tw
from examples.tiles import matmul as tiles

Function = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """A function with its inputs. Of a tile kernel, the same with constants that are measured."""

    function: Function
    inputs: tuple[Tensor, ...]
    tuned: Function | None = None
    trials: int = 0  # of a tile kernel: its configurations


CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES[make.__name__] = make
    return make


def _of(function: Function, *shapes: tuple[int, ...]) -> Case:
    return Case(function, tuple(torch.randn(*s) for s in shapes))


# ---- products


@case
def matmul_of_primes() -> Case:
    return _of(torch.matmul, (211, 401), (401, 307))


@case
def matmul_tall() -> Case:
    return _of(torch.matmul, (8191, 65), (65, 17))


@case
def matmul_of_long_sums() -> Case:
    return _of(torch.matmul, (31, 6007), (6007, 29))


@case
def matmul_outer() -> Case:
    return _of(torch.matmul, (509, 5), (5, 613))


@case
def matrix_times_vector() -> Case:
    return _of(torch.mv, (1021, 2003), (2003,))


@case
def batched_small_products() -> Case:
    return _of(torch.bmm, (257, 19, 23), (257, 23, 17))


@case
def transposed_product() -> Case:
    return _of(lambda a, b: a.t() @ b, (331, 149), (331, 257))


@case
def gated_mlp() -> Case:
    return _of(
        lambda x, w, v, o: (F.silu(x @ w) * (x @ v)) @ o,
        (37, 190), (190, 510), (190, 510), (510, 190),
    )  # fmt: skip


@case
def distances() -> Case:
    return _of(lambda a, b: (a[:, None] - b[None]).square().sum(-1), (401, 7), (503, 7))


# ---- reductions and scans


@case
def sum_of_long_rows() -> Case:
    return _of(lambda x: x.sum(1), (3, 300007))


@case
def sum_of_short_rows() -> Case:
    return _of(lambda x: x.sum(1), (40009, 13))


@case
def sum_of_columns() -> Case:
    return _of(lambda x: x.sum(0), (8009, 37))


@case
def largest_of_the_middle() -> Case:
    return _of(lambda x: x.amax(1), (61, 67, 71))


@case
def variance_of_rows() -> Case:
    return _of(lambda x: x.var(1), (2003, 301))


@case
def position_of_the_largest() -> Case:
    return _of(lambda x: x.argmax(1), (509, 1999))


@case
def softmax_of_columns() -> Case:
    return _of(lambda x: x.softmax(0), (777, 523))


@case
def running_sum() -> Case:
    return _of(lambda x: x.cumsum(1), (67, 4099))


@case
def running_sum_of_columns() -> Case:
    return _of(lambda x: x.cumsum(0), (1031, 257))


# ---- windows


@case
def max_pool() -> Case:
    return _of(lambda x: F.max_pool2d(x, 3, 2), (1, 64, 57, 57))


@case
def average_pool() -> Case:
    return _of(lambda x: F.avg_pool2d(x, 5, 3), (2, 29, 83, 83))


@case
def stencil() -> Case:
    def five(x: Tensor) -> Tensor:
        inside = x[1:-1, :-2] + x[1:-1, 2:] + x[:-2, 1:-1] + x[2:, 1:-1]
        return 0.2 * (inside + x[1:-1, 1:-1])

    return _of(five, (1023, 1021))


@case
def stencil_in_space() -> Case:
    def seven(x: Tensor) -> Tensor:
        c = x[1:-1, 1:-1, 1:-1]
        out = x[2:, 1:-1, 1:-1] + x[:-2, 1:-1, 1:-1] + x[1:-1, 2:, 1:-1] + x[1:-1, :-2, 1:-1]
        return out + x[1:-1, 1:-1, 2:] + x[1:-1, 1:-1, :-2] - 6 * c

    return _of(seven, (79, 83, 89))


@case
def convolution_of_odd_sizes() -> Case:
    return _of(F.conv2d, (1, 17, 45, 45), (29, 17, 3, 3))


@case
def convolution_of_a_line() -> Case:
    return _of(F.conv1d, (1, 31, 2001), (37, 31, 9))


@case
def depthwise_5x5() -> Case:
    return _of(lambda x, w: F.conv2d(x, w, None, 2, 2, 1, 53), (1, 53, 61, 61), (53, 1, 5, 5))


# ---- data that moves


@case
def gather_of_rows() -> Case:
    x, i = torch.randn(10007, 33), torch.randint(0, 10007, (5003,))
    return Case(lambda x, i: x[i], (x, i))


@case
def gather_along_rows() -> Case:
    x, i = torch.randn(1021, 509), torch.randint(0, 509, (1021, 509))
    return Case(lambda x, i: torch.gather(x, 1, i), (x, i))


@case
def transposed_sum() -> Case:
    return _of(lambda x, y: x.t() + 2 * y, (1021, 769), (769, 1021))


# ---- tile kernels, with the configurations of the tutorial


def _tile_matmul(m: int, n: int, k: int) -> Case:
    first = tw.autotune(tiles.FOR_CPUS[:1], key=tiles.KEY)(tiles.matmul_kernel)
    every = tw.autotune(tiles.FOR_CPUS, key=tiles.KEY)(tiles.matmul_kernel)

    def by(kernel: Any) -> Function:
        return lambda a, b: tiles.matmul(a, b, kernel=kernel)

    inputs = torch.randn(m, k), torch.randn(k, n)
    return Case(by(first), inputs, by(every), len(tiles.FOR_CPUS))


@case
def tile_matmul() -> Case:
    return _tile_matmul(384, 640, 512)


@case
def tile_matmul_of_odd_sizes() -> Case:
    return _tile_matmul(509, 257, 401)
