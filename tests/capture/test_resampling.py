"""Interpolation stays one operator; samples of grids, bags and encoder layers against float64."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tilewright as tw
from tests.seeds import drawn
from tilewright.bench.oracle import disagreements
from tilewright.capture.torch.undivided import operators_with_kernels, undivided


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


def judged(f: Callable[..., Any], *inputs: Tensor) -> Any:
    """Compiles f; its result and gradients are right. Returns the compiled function."""
    torch._dynamo.reset()
    compiled = torch.compile(f, backend="tilewright")

    def run(g: Callable[..., Any], wide: bool) -> Any:
        args = [x.double() if wide and x.is_floating_point() else x for x in inputs]
        args = [a.detach().requires_grad_(x.requires_grad) for a, x in zip(args, inputs)]
        y = g(*args)
        wanted = [a for a in args if a.requires_grad]
        grads = torch.autograd.grad(y.square().sum(), wanted) if wanted else ()
        return y.detach(), *grads

    assert not disagreements(run(compiled, False), run(f, False), run(f, True))
    assert not tw.explain(compiled).fallbacks
    return compiled


@pytest.mark.parametrize("shape", [(2, 3, 20, 33), slow((1, 9, 12, 10))])
@pytest.mark.parametrize("order", [torch.contiguous_format, slow(torch.channels_last)])
def test_bytes_are_resized_to_the_nearest_number(
    shape: tuple[int, ...], order: torch.memory_format
) -> None:
    x = torch.randint(0, 256, shape, dtype=torch.uint8).to(memory_format=order)
    f = lambda x: F.interpolate(x, (31, 17), mode="bilinear")  # noqa: E731
    compiled = tw.compile(f)
    found, exact = compiled(x), f(x.double())
    assert found.dtype is torch.uint8 and found.stride() == f(x).stride()
    assert float((found - exact).abs().max()) < 0.501
    assert not tw.explain(compiled).checks


@pytest.mark.parametrize(
    ("mode", "shape", "options"),
    [
        ("bilinear", (2, 3, 20, 33), {"scale_factor": 2}),
        slow("linear", (2, 3, 37), {"scale_factor": 1.7}),
        slow("bilinear", (1, 2, 30, 21), {"size": (11, 40), "align_corners": True}),
        slow("trilinear", (1, 2, 5, 6, 20), {"scale_factor": 2}),
        slow("nearest", (2, 3, 20, 33), {"scale_factor": 2}),
        slow("nearest-exact", (1, 2, 9, 30), {"size": (17, 11)}),
        slow("bilinear", (1, 1, 3, 3), {"size": (60, 61)}),  # many results of few elements
    ],
)
def test_interpolation_is_one_operator_with_its_gradient(
    mode: str, shape: tuple[int, ...], options: dict[str, Any]
) -> None:
    f = lambda x: F.interpolate(x, mode=mode, **options)  # noqa: E731
    made = judged(f, torch.randn(shape, requires_grad=True))
    assert not tw.explain(made).checks  # all places are known when compiling
    assert "2 of 2 captured operators" in str(tw.explain(made))  # it and its gradient


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_elements_of_images_of_any_size_are_repeated(mode: str) -> None:
    torch._dynamo.reset()

    def resized(x: Tensor) -> tuple[Tensor, ...]:
        factors = 2.0, (4.0, 0.5)
        return tuple(F.interpolate(x, scale_factor=f, mode=mode) for f in factors)

    with torch.no_grad():
        fast = tw.compile(resized, dynamic=True, strict=True)
        for shape in [(1, 3, 17, 16), (2, 1, 2, 5), (3, 2, 7, 33), (1, 1, 31, 2)]:
            x = torch.randn(shape)
            for got, want in zip(fast(x), resized(x), strict=True):
                assert torch.equal(got, want)
    explained = tw.explain(fast)
    assert sum("upsample_nearest" in k.name for k in explained.kernels) == 2


RESIZED = [
    ("bilinear", {"scale_factor": 2.0}),
    slow("bilinear", {"scale_factor": 1.7, "align_corners": True}),
    slow("linear", {"scale_factor": 0.3}),
    slow("nearest", {"scale_factor": 1.7}),
    ("nearest", None),
    ("bilinear", None),
    slow("nearest-exact", None),
]


@pytest.mark.parametrize(("mode", "options"), RESIZED)
def test_images_of_any_size_are_resized(mode: str, options: dict[str, Any] | None) -> None:
    """By a factor, or to the size of another image. Places are computed, and need no check."""
    torch._dynamo.reset()
    flat = mode == "linear"

    def resized(x: Tensor, y: Tensor) -> Tensor:
        how = options or {"size": y.shape[2:]}
        return F.interpolate(x, mode=mode, **how)

    with torch.no_grad():
        fast = tw.compile(resized, dynamic=True, strict=True)
        for h, w in [(40, 33), (4, 7), (5, 16), (17, 15), (4, 4), (32, 100), (119, 9)]:
            x, y = torch.randn(1, 3, h, w)[0 if flat else slice(None)], torch.randn(1, 1, w, 2 * h)
            got, eager, exact = fast(x, y), resized(x, y), resized(x.double(), y)
            if mode.startswith("nearest"):
                assert torch.equal(got, eager)
            else:
                assert not disagreements((got,), (eager,), (exact,))
    explained = tw.explain(fast)
    assert not explained.checks and fast.log.counts["compile"] == 1


@pytest.mark.slow
def test_interpolation_of_any_size_and_of_bytes() -> None:
    f = lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")  # noqa: E731
    compiled = torch.compile(f, backend="tilewright", dynamic=True)
    for n in (20, 33):
        x = torch.randn(1, 2, n, n + 1)
        torch.testing.assert_close(compiled(x), f(x))
    y = torch.randint(0, 255, (1, 3, 9, 20), dtype=torch.uint8)
    near = lambda x: F.interpolate(x, size=(31, 7))  # noqa: E731
    torch._dynamo.reset()
    assert torch.equal(torch.compile(near, backend="tilewright")(y), near(y))


@pytest.mark.parametrize("padding", ["zeros", slow("border"), slow("reflection")])
@pytest.mark.parametrize(
    ("mode", "rank"), [("bilinear", 2), ("bicubic", 2), slow("nearest", 2), slow("bilinear", 3)]
)
def test_samples_of_grids(padding: str, mode: str, rank: int) -> None:
    x = torch.randn(2, 3, *(9, 8, 7)[:rank])
    grid = torch.rand(2, *(5, 6, 20)[-rank:], rank) * 2.6 - 1.3

    def f(x: Tensor, g: Tensor) -> Tensor:
        return F.grid_sample(x, g, mode=mode, padding_mode=padding, align_corners=rank == 3)

    judged(f, x, grid)


def test_a_grid_of_a_matrix_is_one_kernel() -> None:
    """Its products of a few numbers are a map, which what samples it computes for itself."""

    def f(x: Tensor, m: Tensor) -> Tensor:
        at = F.affine_grid(m, [2, 3, 9, 20], align_corners=False)
        return F.grid_sample(x, at, mode="nearest", align_corners=False)

    fast = judged(f, torch.randn(2, 3, 9, 20), torch.eye(2, 3) + 0.1 * torch.randn(2, 2, 3))
    assert len(tw.explain(fast).kernels) <= 2


def test_a_grid_of_nan_reads_nothing() -> None:
    f = lambda x, g: F.grid_sample(x, g, align_corners=False)  # noqa: E731
    grid = torch.full((1, 4, 16, 2), torch.nan)
    assert not torch.compile(f, backend="tilewright")(torch.randn(1, 2, 5, 5), grid).any()


@pytest.mark.parametrize("padding", [None, slow(3)])
@pytest.mark.parametrize("mode", [slow("sum"), "mean", slow("max")])
def test_bags_of_rows(mode: str, padding: int | None) -> None:
    starts = torch.tensor([0, 4, 4, 9, 30])
    index = torch.randint(0, 50, (40,))

    def f(w: Tensor) -> Tensor:
        return F.embedding_bag(index, w, starts, mode=mode, padding_idx=padding)

    judged(f, torch.randn(50, 32))


@pytest.mark.parametrize("padding", [None, 1])
@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_long_bags_of_narrow_numbers(dtype: torch.dtype, mode: str, padding: int | None) -> None:
    """Sums of many are those of wider numbers, and so are counts: of 1000 there is no bf16."""
    index, starts = torch.randint(0, 50, (3000,)), torch.tensor([0, 1001, 2500])

    def f(w: Tensor) -> Tensor:
        return F.embedding_bag(index, w, starts, mode=mode, padding_idx=padding)

    w = torch.rand(50, 15).to(dtype)
    got, wide = torch.compile(f, backend="tilewright")(w), f(w.double())
    assert ((got.double() - wide).abs() <= torch.finfo(dtype).eps * wide.abs()).all()


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_the_end_of_the_last_bag(mode: str) -> None:
    """It may be before the last index, where eager sees it, but not behind."""

    def f(w: Tensor, starts: Tensor) -> Tensor:
        return F.embedding_bag(index, w, starts, mode=mode, include_last_offset=True)

    index, fast = torch.tensor([0, 1, 2, 3, 4]), torch.compile(f, backend="tilewright")
    for w in (torch.randn(5, 8), torch.randn(5, 8, dtype=torch.float64)):
        for end in (3, 4, 5):
            starts = torch.tensor([0, 2, end])
            torch.testing.assert_close(fast(w, starts), f(w, starts))
        for g in (f, fast):
            with pytest.raises(RuntimeError, match="can not be greater than input's length"):
                g(w, torch.tensor([0, 2, 6]))


@pytest.mark.slow
@pytest.mark.parametrize("first", [False, True])
def test_encoder_layer_with_and_without_padding(first: bool) -> None:
    act = "gelu" if first else "relu"
    layer = nn.TransformerEncoderLayer(
        32, 4, 48, batch_first=True, norm_first=first, activation=act
    )
    net, x = layer.eval(), torch.randn(3, 10, 32)
    absent = torch.arange(10) >= torch.tensor([10, 4, 7])[:, None]
    for mask in (None, absent):
        torch._dynamo.reset()
        made = torch.compile(net, backend="tilewright")
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got, eager = (g(x, src_key_padding_mask=mask) for g in (made, net))
            wide = layer.double()(x.double(), src_key_padding_mask=mask)
            layer.float()
        assert not disagreements(got, eager, wide)
        assert not tw.explain(made).fallbacks


def test_torch_export_knows_all_operators_afterwards() -> None:
    operators_with_kernels.cache_clear()
    with undivided(torch.fx.symbolic_trace(torch.nn.Identity())):
        found = operators_with_kernels()
    assert torch.ops.aten.upsample_nearest1d.default in found


@pytest.mark.parametrize("seed", drawn(range(10), 4))
def test_windows_are_put_back(seed: int) -> None:
    """fold gathers: no element of its result waits for another one."""
    draw = random.Random(seed)
    pair = lambda a, b: (draw.randint(a, b), draw.randint(a, b))  # noqa: E731
    kernel, stride, dilation, padding = pair(1, 4), pair(1, 4), pair(1, 3), pair(0, 2)
    space = tuple(d * (k - 1) + 1 + draw.randint(0, 9) for d, k in zip(dilation, kernel))
    x = torch.randn(2, 3, *space, requires_grad=True)

    def f(x: Tensor) -> Tensor:
        parts = F.unfold(x, kernel, dilation, padding, stride) * 0.5
        return F.fold(parts, space, kernel, dilation, padding, stride)

    said = str(tw.explain(judged(f, x)))
    assert "fold" in said and "index_put" not in said, said


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.complex64])
def test_windows_of_other_dtypes_are_put_back(dtype: torch.dtype) -> None:
    x = torch.randn(12, 42, dtype=dtype)
    f = lambda x: F.fold(x, (8, 8), (3, 4), padding=(0, 1), stride=(1, 1))  # noqa: E731
    compiled = tw.compile(f)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    assert not disagreements(compiled(x), f(x), f(x.to(wide)))
    assert not tw.explain(compiled).fallbacks
