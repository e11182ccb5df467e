"""Kernels that Inductor writes: small programs, compiled by its Triton code generation for a CPU.

What it cannot write in Triton it calls from torch; a program for which it writes no kernel at all
fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor
import torch.nn.functional as F
from reference import close, randn
from torch._inductor import metrics

Program = tuple[Callable[..., Any], list[torch.Tensor]]

LABELS = torch.tensor([3, 0, 49, 7])
ROWS = torch.tensor([5, 0, 3, 3, 7])
IMAGE = randn(2, 4, 12, 12)


def whole(*shape: int, low: int = -20, high: int = 20, dtype: torch.dtype = torch.int32) -> Any:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(low, high, shape, generator=generator, dtype=dtype)


PROGRAMS: dict[str, Program] = {
    # Element by element.
    "add and multiply": (lambda x, y: x * 2 + y, [randn(8, 100), randn(8, 100, seed=1)]),
    "broadcast": (lambda x, y: x[:, None] * y[None] - y, [randn(17), randn(23)]),
    "gelu": (lambda x: F.gelu(x), [randn(1000)]),
    "gelu by tanh": (lambda x: F.gelu(x, approximate="tanh"), [randn(1000)]),
    "sigmoid, silu, tanh": (lambda x: torch.sigmoid(x) + F.silu(x) * torch.tanh(x), [randn(333)]),
    "where and clamp": (
        lambda x, y: torch.where(x > y, x, y.clamp(-0.5, 0.5)),
        [randn(257), randn(257, seed=1)],
    ),
    "erf, log1p, expm1": (
        lambda x: torch.erf(x) + torch.log1p(x.abs()) - torch.expm1(-x.abs()),
        [randn(300)],
    ),
    "powers": (lambda x: x.abs() ** 1.5 + x**3 + torch.rsqrt(x * x + 1), [randn(300)]),
    "sin, cos, atan2": (
        lambda x, y: x.sin() + y.cos() * torch.atan2(x, y),
        [randn(200), randn(200, seed=1)],
    ),
    "floor, ceil, round, trunc": (
        lambda x: x.floor() + (3 * x).ceil() + (5 * x).round() + (7 * x).trunc(),
        [randn(300)],
    ),
    "division of integers": (
        lambda x, y: (x // y, x % y, torch.div(x, y, rounding_mode="trunc")),
        [whole(300), whole(301, low=1, high=7)[:300].contiguous()],
    ),
    "bits": (lambda x, y: (x & y) | (x ^ 5) + (y >> 1), [whole(300), whole(301)[:300].clone()]),
    "comparisons": (lambda x, y: ((x < y) & (x != 0)) | (y >= 1), [randn(99), randn(99, seed=2)]),
    "nan_to_num and isnan": (
        lambda x: (torch.nan_to_num(x / (x > 0), 7.0, 8.0, -8.0), torch.isnan(x)),
        [randn(99)],
    ),
    "halves": (lambda x: F.gelu(x) * 2 + x, [randn(500, dtype=torch.float16)]),
    "bfloat16": (lambda x: torch.sigmoid(x) * x, [randn(500, dtype=torch.bfloat16)]),
    "mixed types": (
        lambda x, n: (x.half() + n).float() + n.half() / 4,
        [randn(200), whole(200, low=1, high=9)],
    ),
    # Layouts.
    "transpose": (lambda x: x.t().contiguous() + 1, [randn(33, 65)]),
    "slices": (lambda x: x[1:, ::2] * x[:-1, 1::2], [randn(33, 64)]),
    "cat": (lambda x, y: torch.cat((x * 2, y, x), 1), [randn(7, 20), randn(7, 13)]),
    "stack and flip": (lambda x: torch.stack((x, x.flip(0), x.roll(3, 1))), [randn(9, 31)]),
    "pad": (lambda x: F.pad(x, (1, 2, 3, 0), value=2.0) * 3, [randn(5, 9)]),
    "tril": (lambda x: torch.tril(x, 1) + torch.triu(x, 2), [randn(20, 30)]),
    "one hot": (lambda x: F.one_hot(x.long() % 5, 5).float() * 2, [whole(40, low=0, high=50)]),
    # Reductions.
    "sum": (lambda x: (x.sum(), x.sum(0), x.sum(1)), [randn(30, 70)]),
    "a long sum": (lambda x: (x * x).sum(), [randn(70001)]),
    "mean and variance": (lambda x: (x.mean(1), x.var(1), x.std(0)), [randn(30, 700)]),
    "maximum": (lambda x: (x.amax(1), x.amin(0), x.max()), [randn(30, 70)]),
    "argmax": (lambda x: (x.argmax(1), x.argmin(0)), [randn(30, 70)]),
    "any, all, prod": (
        lambda x: ((x > 2).any(1), (x > -3).all(0), (x / 2).prod(1)),
        [randn(30, 20)],
    ),
    "softmax": (lambda x: torch.softmax(x * 2, -1), [randn(8, 100)]),
    "softmax over many": (lambda x: torch.softmax(x, -1), [randn(3, 5000)]),
    "log softmax": (lambda x: torch.log_softmax(x, 1), [randn(8, 50, 3)]),
    "log of a sum": (lambda x: torch.logsumexp(x, 0), [randn(64, 9)]),
    "layer norm": (
        lambda x, w, b: F.layer_norm(x, (96,), w, b),
        [randn(10, 96), randn(96), randn(96, seed=1)],
    ),
    "batch norm": (lambda x: F.batch_norm(x, None, None, training=True), [IMAGE]),
    "group norm": (lambda x: F.group_norm(x, 2), [IMAGE]),
    "cumulative sum": (lambda x: x.cumsum(1), [randn(6, 90)]),
    "cumulative product": (lambda x: (x / 3 + 1).cumprod(0), [randn(20, 9)]),
    "sort": (lambda x: torch.sort(x, dim=1, stable=True), [randn(6, 30)]),
    # Data that says where.
    "embedding": (lambda w: F.embedding(ROWS, w) * 2, [randn(8, 24)]),
    "gather": (lambda x: x.gather(0, ROWS[:, None].expand(5, 10)) + 1, [randn(8, 10)]),
    "index and assign": (
        lambda x, y: x.clone().index_put_((ROWS,), y, accumulate=True) * 2,
        [randn(8, 10), randn(5, 10)],
    ),
    "scatter": (
        lambda x: x.new_zeros(9, 10).scatter_add(0, ROWS[:, None].expand(5, 10), x),
        [randn(5, 10)],
    ),
    # Layers.
    "linear and gelu": (
        lambda x, w, b: F.gelu(F.linear(x, w, b)),
        [randn(9, 32), randn(20, 32), randn(20)],
    ),
    "convolution and relu": (
        lambda x, w: F.relu(F.conv2d(x, w, padding=1)) * 2,
        [IMAGE, randn(6, 4, 3, 3)],
    ),
    "maximum pool": (lambda x: F.max_pool2d(x, 3, 2, 1), [IMAGE]),
    "average pool": (lambda x: F.avg_pool2d(x, 2) + 1, [IMAGE]),
    "nearest neighbours": (lambda x: F.interpolate(x, scale_factor=2) * 2, [IMAGE]),
    "bilinear": (
        lambda x: F.interpolate(x, size=(19, 7), mode="bilinear", align_corners=False),
        [IMAGE],
    ),
    "attention": (
        lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2) / 4, -1) @ v,
        [randn(2, 9, 16, seed=s) for s in range(3)],
    ),
    "cross entropy": (lambda x: F.cross_entropy(x, LABELS), [randn(4, 50)]),
    "rms norm": (
        lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w,
        [randn(6, 200), randn(200)],
    ),
}

GRADIENTS = ("gelu", "softmax", "layer norm", "rms norm", "batch norm", "embedding", "gather")
GRADIENTS += ("maximum pool", "cross entropy", "attention", "cumulative sum", "broadcast")


@pytest.fixture(autouse=True)
def triton_for_cpu():
    torch._dynamo.reset()
    metrics.reset()
    with inductor.patch(cpu_backend="triton", fx_graph_cache=False, compile_threads=1):
        yield


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    function, inputs = PROGRAMS[name]
    got = torch.compile(function, backend="inductor", fullgraph=True)(*inputs)
    check(got, function, inputs)
    assert metrics.generated_kernel_count > 0, "Inductor wrote no kernel"


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradient(name: str) -> None:
    function, inputs = PROGRAMS[name]
    leaves = [x.clone().requires_grad_() for x in inputs]
    wide = [x.double().requires_grad_() for x in inputs]
    got = torch.compile(function, backend="inductor", fullgraph=True)(*leaves)
    wanted = function(*wide)
    slope = randn(*got.shape, seed=3)
    (got * slope).sum().backward()
    (wanted * slope.double()).sum().backward()
    for a, b in zip(leaves, wide, strict=True):
        assert a.grad is not None and b.grad is not None
        close(a.grad, b.grad)


@pytest.mark.parametrize("name", ["softmax", "layer norm", "sum", "add and multiply"])
def test_sizes_that_change(name: str) -> None:
    function, inputs = PROGRAMS[name]
    compiled = torch.compile(function, backend="inductor", fullgraph=True, dynamic=True)
    for rows in (5, 8):
        cut = [x[:rows].contiguous() if x.dim() > 1 else x for x in inputs]
        check(compiled(*cut), function, cut)


def check(got: Any, function: Callable[..., Any], inputs: list[torch.Tensor]) -> None:
    """Against the same in float64; programs of 16 bits round as eager does in between."""
    narrow = any(x.dtype in (torch.float16, torch.bfloat16) for x in inputs)
    wide = inputs if narrow else [x.double() if x.is_floating_point() else x for x in inputs]
    wanted = function(*wide)
    got = got if isinstance(got, tuple) else (got,)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted, strict=True):
        close(a, b)
