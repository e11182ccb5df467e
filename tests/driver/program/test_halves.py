"""16-bit results are eager's bit by bit; `round_between=False` keeps float32 inside a kernel."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tilewright as tw
from tests.driver.random_halves import HALVES, Chain, check_seed, fault
from tests.seeds import drawn


@pytest.mark.parametrize("seed", drawn(range(10), quick=2))
def test_random_chains_are_eager_bit_by_bit(seed: int) -> None:
    check_seed(seed)


def test_what_eager_approximates_badly_may_be_better() -> None:
    x = torch.logspace(-7, -3, 64).half().view(4, 16)
    assert fault(Chain(0, (x,), (), ("erf({0})", torch.erf))) is None
    found = fault(Chain(0, (x,), (), ("erf({0})", _other_when_compiled)))
    assert found is not None and "in eager" in found


def _other_when_compiled(x: Tensor) -> Tensor:
    return x * 1.1 if torch.compiler.is_compiling() else x.erf()


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 2100, 100))
def test_many_random_chains(first: int) -> None:
    for seed in range(first, first + 100):
        check_seed(seed)


def block(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """A product with a bias, an activation, a residual sum, and what shows where it rounds."""
    h = F.gelu(F.linear(x, w, b))
    return (h + 100 - 100) * 3 + x


def operands(dtype: torch.dtype) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(0)
    shapes = ((32, 64), (64, 64), (64,))
    return tuple((torch.randn(s, generator=g) / 4).to(dtype) for s in shapes)


@pytest.mark.parametrize("dtype", HALVES)
def test_rounding_between_operators_is_the_default(dtype: torch.dtype) -> None:
    given = operands(dtype)
    exact = block(*(t.double() for t in given))
    eager = block(*given)
    fast = tw.compile(block, *given)(*given)
    wide = tw.compile(block, *given, round_between=False)(*given)
    ulp = torch.finfo(dtype).eps * eager.abs().max()
    assert (fast - eager).abs().max() <= 4 * ulp  # erf alone differs, by a unit in the last place
    assert ((fast - eager) != 0).double().mean() < 0.01
    error, without = ((r.double() - exact).abs().max() for r in (fast, wide))
    assert without < error / 4


@pytest.mark.parametrize("dtype", drawn(HALVES, quick=1))
def test_operators_of_several_steps_round_where_eager_does(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(1)
    x, y = ((torch.randn(24, 40, generator=g) * 2).to(dtype) for _ in range(2))
    index = torch.arange(24) % 5

    def several(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        p, q = x.sigmoid(), y.sigmoid()
        return (
            torch.add(x, y, alpha=0.3),
            torch.rsub(x, y, alpha=0.3),
            torch.xlogy(x, y.abs()),
            torch.special.entr(x.abs()),
            p.logit(),
            x**3,
            x**-2,
            F.mse_loss(x, y, reduction="none"),
            F.binary_cross_entropy(p, q, reduction="none"),
            torch.addcdiv(x, y, y.abs() + 1),
            torch.addr(x, y[:, 0], y[0], alpha=0.3),
            x.logsumexp(-1),
            x.log_softmax(-1),
            x.index_add(0, index, y),
            x.scatter_add(0, (index[:, None] * 3 + torch.arange(40)) % 24, y),
            torch.addmm(y[0, :24], x, y.t()),
            F.conv1d(x[None], y.reshape(-1)[: 8 * 24 * 3].reshape(8, 24, 3), y[0, :8]),
        )

    eager, fast = several(x, y), tw.compile(several, x, y)(x, y)
    for k, (a, b) in enumerate(zip(fast, eager, strict=True)):
        share = float((a != b).double().mean())
        assert share < 0.01, f"result {k}: {share:.1%} differ"


def test_numbers_reach_bfloat16_through_float32() -> None:
    """As in torch: a tie in float32 is a tie, whatever the double had beyond it."""
    tie = 1 + 2**-8 + 2**-40

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.full((3,), tie, dtype=torch.bfloat16), x.to(torch.bfloat16)

    x = torch.full((3,), tie, dtype=torch.float64)
    for got, want in zip(tw.compile(f, x)(x), f(x), strict=True):
        assert torch.equal(got, want)


def test_scales_are_not_folded_into_weights_of_16_bits() -> None:
    """The weights would be rounded once more, where eager rounds the product."""
    torch.manual_seed(0)
    layers = (torch.nn.Linear(32, 16, bias=False), torch.nn.BatchNorm1d(16))
    model = torch.nn.Sequential(*layers).eval()
    assert layers[1].running_var is not None
    layers[1].running_var.uniform_(0.1, 3)
    layers[1].weight.data.uniform_(0.1, 3)
    model, x = model.to(torch.bfloat16), torch.randn(64, 32).to(torch.bfloat16)
    with torch.no_grad():
        assert torch.equal(tw.compile(model, x)(x), model(x))
