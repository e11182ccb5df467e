"""FlexAttention: functions of scores and masks inside the kernel of attention, with gradients."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.attention.flex_attention as flex_module
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import tilewright as tw
from tests.capture.running import captured, session

B, H, S, D = 2, 4, 24, 8
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
DOCUMENTS = torch.arange(S) // 10


def alibi(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score - SLOPES[h].to(score.dtype) * (q - k).abs()


def softcap(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return 5 * torch.tanh(score / 5)


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def documents(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (DOCUMENTS[q] == DOCUMENTS[k]) & ((q - k).abs() <= 6)


def nothing(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q >= k) & (q != 3)  # a row that sees no key is zeros


CASES = {
    "alibi": (alibi, causal, H),
    "softcap": (softcap, documents, H),
    "grouped": (None, causal, 2),
    "hidden row": (alibi, nothing, H),
}


def attention(score: Callable | None, mask: Callable, heads: int) -> Callable[..., torch.Tensor]:
    block = create_block_mask(mask, B, H, S, S, device="cpu", BLOCK_SIZE=8)

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = flex_attention(q, k, v, score, block, enable_gqa=heads != H)
        assert isinstance(out, torch.Tensor)
        return out

    return f


def operands(heads: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    make = torch.Generator().manual_seed(0)
    shapes = [(B, H, S, D), (B, heads, S, D), (B, heads, S, D)]
    return [torch.randn(s, generator=make).to(dtype).detach().requires_grad_() for s in shapes]


def with_gradients(f: Callable[..., torch.Tensor], given: list[torch.Tensor]) -> list[torch.Tensor]:
    out = f(*given)
    return [x.detach().double() for x in (out, *torch.autograd.grad((out**2).sum(), given))]


def test_functions_of_scores_and_masks() -> None:
    given = [x.detach() for x in operands(H)]
    ours = captured(attention(softcap, documents, H), *given, using=session())
    q, k, v = (x.double() for x in given)
    at = torch.arange(S)
    scores = softcap(q @ k.mT / D**0.5, 0, 0, at[:, None], at)
    exact = scores.where(documents(0, 0, at[:, None], at), float("-inf")).softmax(-1) @ v
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("case", CASES)
def test_as_eager(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole, with gradients, as close to float64 as eager; definitions are evaluated. Torch takes
    gradients on GPUs only: here it is told not to look."""
    monkeypatch.setattr(flex_module, "_validate_device", lambda *_: None)
    score, mask, heads = CASES[case]
    f = attention(score, mask, heads)
    ours = with_gradients(lambda *x: captured(f, *x, using=session()), operands(heads))
    eager = with_gradients(f, operands(heads))
    exact = with_gradients(f, operands(heads, torch.float64))
    for a, b, c in zip(ours, eager, exact, strict=True):
        room = 4 * torch.finfo(torch.float32).eps * c.abs().max()
        assert (a - c).abs().max() <= 2 * (b - c).abs().max() + room


@pytest.mark.slow
def test_one_kernel() -> None:
    """Scores, mask and weights of the values are parts of one kernel."""
    f = attention(alibi, causal, H)
    fast = tw.compile(f, strict=True)
    given = [x.detach() for x in operands(H)]
    torch.testing.assert_close(fast(*given), f(*given), rtol=1e-5, atol=1e-5)
    assert sum("matmul" in k.name or "chain" in k.name for k in tw.explain(fast).kernels) == 1
