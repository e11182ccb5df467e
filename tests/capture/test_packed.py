"""Packed sequences inside a compiled model: lengths are data, and everything is native."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import tilewright as tw

LENGTHS = torch.tensor([2, 5, 3, 1])


class Model(nn.Module):
    def __init__(self, kind: str, total: int | None, **how: Any) -> None:
        super().__init__()
        self.layer = getattr(nn, kind)(3, 4, batch_first=True, **how)
        self.total = total

    def forward(self, x: Tensor, lengths: Tensor, hx: Any = None) -> tuple[Tensor, ...]:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        y, h = self.layer(packed, hx)
        z, n = pad_packed_sequence(y, True, padding_value=-1.0, total_length=self.total)
        return (z, n, *(h if isinstance(h, tuple) else (h,)))


def agree(model: Model, *args: Any, grad: bool = False, executor: str = "native") -> None:
    torch._dynamo.reset()
    fast = tw.compile(model, strict=True, executor=executor)

    def run(f: Any) -> list[Tensor]:
        with torch.set_grad_enabled(grad):
            out = f(*args)
        if not grad:
            return list(out)
        model.zero_grad()
        torch.stack([x.sin().sum() for x in out if x.requires_grad]).sum().backward()
        gradients = [p.grad for p in model.parameters()]
        return [x.detach() for x in out] + [g.clone() for g in gradients if g is not None]

    for want, found in zip(run(model), run(fast), strict=True):
        torch.testing.assert_close(found, want)


def test_steps_beyond_an_end_leave_the_state() -> None:
    torch.manual_seed(0)
    model = Model("RNN", None, bidirectional=True)
    agree(model, torch.randn(4, 6, 3), LENGTHS, executor="interpreter")


@pytest.mark.slow
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    ("kind", "total", "how"),
    [
        ("LSTM", 6, {"num_layers": 2, "bidirectional": True}),
        ("LSTM", None, {"proj_size": 2}),
        ("RNN", None, {"bidirectional": True}),
        ("GRU", 8, {}),
        ("RNN", None, {"nonlinearity": "relu", "bias": False}),
    ],
)
def test_layers(kind: str, total: int | None, how: dict[str, Any], grad: bool) -> None:
    torch.manual_seed(0)
    agree(Model(kind, total, **how), torch.randn(4, 6, 3), LENGTHS, grad=grad)


@pytest.mark.slow
def test_first_states_are_in_the_order_of_the_caller() -> None:
    torch.manual_seed(0)
    agree(Model("GRU", None), torch.randn(4, 6, 3), LENGTHS, torch.randn(1, 4, 4))


def test_the_packed_form_can_be_read_and_returned() -> None:
    def f(x: Tensor, lengths: Tensor) -> tuple[Tensor, PackedSequence]:
        packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
        return packed.data * 2, packed

    torch._dynamo.reset()
    x = torch.randn(6, 4, 3)
    (twice, packed), (same, ours) = f(x, LENGTHS), tw.compile(f, strict=True)(x, LENGTHS)
    torch.testing.assert_close(same, twice)
    assert isinstance(ours, PackedSequence)
    for a, b in zip(packed, ours, strict=True):
        torch.testing.assert_close(b, a)


def test_lengths_are_checked_at_each_call() -> None:
    def f(x: Tensor, lengths: Tensor) -> Tensor:
        return pad_packed_sequence(pack_padded_sequence(x, lengths), total_length=6)[0]

    torch._dynamo.reset()
    x, fast = torch.randn(6, 2, 3), tw.compile(f, strict=True)
    torch.testing.assert_close(fast(x, torch.tensor([5, 2])), f(x, torch.tensor([5, 2])))
    for wrong, words in (([2, 5], "sorted in decreasing order"), ([2, 0], "greater than 0")):
        with pytest.raises(RuntimeError, match=words):
            f(x, torch.tensor(wrong))
        with pytest.raises(RuntimeError, match=words):
            fast(x, torch.tensor(wrong))
