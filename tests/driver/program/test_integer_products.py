"""Products of bytes as torch programs write them: the same integers, in one kernel with scales."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tilewright as tw
from tests.seeds import crossed

untyped: Any = torch  # whose stubs leave out what begins with an underscore
RANGES = {torch.int8: (-128, 128), torch.uint8: (0, 256)}


def byte(*shape: int, dtype: torch.dtype = torch.int8, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(*RANGES[dtype], shape, dtype=dtype, generator=generator)


def exact(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a.double() @ b.double()).to(torch.int32)


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return tw.compile(function, strict=True, **options)


class Product(nn.Module):
    """Bytes times a weight of bytes."""

    def __init__(self, weight: torch.Tensor, spelled: bool) -> None:
        super().__init__()
        self.weight, self.spelled = nn.Parameter(weight, requires_grad=False), spelled

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.spelled:
            return x.to(torch.int32) @ self.weight.to(torch.int32)
        return untyped._int_mm(x, self.weight)


SIZES = [(1, 16, 8), (5, 7, 3), (17, 64, 24), (40, 37, 50), (33, 260, 17)]


@pytest.mark.parametrize(("size", "weight"), crossed(SIZES, [True, False], 2))
def test_int_mm(size: tuple[int, int, int], weight: bool) -> None:
    rows, deep, columns = size
    x, w = byte(rows, deep), byte(deep, columns, seed=1)
    with torch.no_grad():
        if weight:
            got = compiled(Product(w, False))(x)
        else:
            got = compiled(lambda a, b: untyped._int_mm(a, b))(x, w)
    assert got.dtype is torch.int32 and torch.equal(got, exact(x, w))


@pytest.mark.parametrize("left", RANGES, ids=str)
@pytest.mark.parametrize("right", RANGES, ids=str)
def test_casts_spelled_out(left: torch.dtype, right: torch.dtype) -> None:
    x, w = byte(23, 70, dtype=left), byte(70, 41, dtype=right, seed=1)
    x[0], w[:, 0] = RANGES[left][0], RANGES[right][0]
    with torch.no_grad():
        assert torch.equal(compiled(Product(w, True))(x), exact(x, w))
        transposed = compiled(lambda a, b: a.to(torch.int32) @ b.t().to(torch.int32))
        assert torch.equal(transposed(x, w.t().contiguous()), exact(x, w))


OPERANDS = {
    "batches": (lambda a, b: (a, b), (3, 17, 42), (3, 42, 21)),
    "transposed": (lambda a, b: (a.t(), b.t()), (40, 17), (21, 40)),
    "every other one": (lambda a, b: (a[:, ::2], b), (17, 80), (40, 21)),
    "a part": (lambda a, b: (a[:, 3:39], b), (17, 40), (36, 21)),
    "one row for all": (lambda a, b: (a.expand(17, 40), b), (1, 40), (40, 21)),
    "nothing": (lambda a, b: (a, b), (9, 0), (0, 21)),
}


@pytest.mark.parametrize("name", OPERANDS)
def test_operands_that_lie_in_other_ways(name: str) -> None:
    seen, left, right = OPERANDS[name]
    x, w = byte(*left, dtype=torch.uint8), byte(*right, seed=1)

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a, b = seen(a, b)
        return a.to(torch.int32) @ b.to(torch.int32)

    with torch.no_grad():
        assert torch.equal(compiled(product)(x, w), exact(*seen(x, w)))


def test_sums_wrap_around_as_integers_do() -> None:
    deep = 2**18
    x = torch.full((2, deep), -128, dtype=torch.int8)
    w = torch.full((deep, 4), -128, dtype=torch.int8)
    with torch.no_grad():
        got = compiled(Product(w, False))(x)
    want = torch.tensor((128 * 128 * deep + 2**31) % 2**32 - 2**31, dtype=torch.int32)
    assert torch.equal(got, want.expand(2, 4))


def test_any_number_of_rows() -> None:
    w = byte(64, 24, seed=1)
    fast = compiled(Product(w, False), dynamic=True)
    with torch.no_grad():
        for rows in (40, 5, 6, 13, 47):
            x = byte(rows, 64, seed=rows)
            assert torch.equal(fast(x), exact(x, w))


class Quantised(nn.Module):
    """A linear layer with a scale per channel of its weight, and one per row of what it is given,
    found when it runs."""

    def __init__(self, deep: int, columns: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        full = torch.randn(columns, deep, generator=generator)
        scale = full.abs().amax(1) / 127
        self.weight = nn.Parameter((full / scale[:, None]).round().to(torch.int8), False)
        self.scale = nn.Parameter(scale, False)
        self.bias = nn.Parameter(torch.randn(columns, generator=generator), False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().amax(-1, keepdim=True) / 127
        q = torch.clamp(torch.round(x / scale), -128, 127).to(torch.int8)
        sums = untyped._int_mm(q, self.weight.t())
        return torch.relu(sums.to(torch.float32) * scale * self.scale + self.bias)


def test_a_linear_layer_quantised_as_it_runs_is_two_kernels() -> None:
    layer, x = Quantised(96, 60), torch.randn(37, 96, generator=torch.Generator().manual_seed(4))
    fast = compiled(layer)
    with torch.no_grad():
        got, want = fast(x), layer(x)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    text = str(tw.explain(fast))
    assert "2 kernel calls per run" in text, text
    assert "wide_matmul" in text and "Tensorize" in text


def test_weights_that_change_are_noticed() -> None:
    w = byte(32, 16, seed=1)
    model, x = Product(w, False), byte(9, 32)
    fast = compiled(model)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.equal(fast(x), exact(x, w))
        model.weight.copy_(byte(32, 16, seed=2))
        assert torch.equal(fast(x), exact(x, byte(32, 16, seed=2)))
