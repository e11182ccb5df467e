"""The loss of connectionist temporal classification, as one scan over the steps.

Torch's operator has no shapes without data, so Dynamo leaves a program there. What it goes into
instead is the same recurrence over the labels with blanks between them, in the logarithm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan_op
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn import functional

from tilewright.capture.torch.recurrent import LIBRARY
from tilewright.capture.torch.substitutes import substitute

# In the place of the logarithm of 0, so that differences stay numbers.
NEVER = -1e30
_SCHEMA = (
    "ctc(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank)"
    " -> Tensor"
)


def _with_blanks(targets: Tensor, blank: int) -> Tensor:
    """[sequences, 2 labels + 1]"""
    blanks = torch.full_like(targets, blank)
    pairs = torch.stack([blanks, targets], 2).flatten(1)
    return torch.cat([pairs, blanks[:, :1]], 1)


def _before(x: Tensor, count: int) -> Tensor:
    """Each label's value is that of the label `count` places before it."""
    return torch.cat([torch.full_like(x[:, :count], NEVER), x[:, :-count]], 1)


def _step(alpha: Tensor, own: Tensor, inside: Tensor, skips: Tensor) -> list[Tensor]:
    one = _before(alpha, 1)
    two = torch.where(skips, _before(alpha, 2), NEVER)
    top = torch.maximum(torch.maximum(alpha, one), two)
    total = (alpha - top).exp() + (one - top).exp() + (two - top).exp()
    return [torch.where(inside, total.log() + top + own, alpha)]


def _losses(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int
) -> Tensor:
    if get_proxy_mode() is None:
        return log_probs.sum((0, 2)) * 0
    steps, sequences, _ = log_probs.shape
    real = torch.arange(targets.shape[1], device=targets.device) < target_lengths.unsqueeze(1)
    labels = _with_blanks(torch.where(real, targets, blank).to(torch.int64), blank)
    count = labels.shape[1]
    own = log_probs.gather(2, labels.expand(steps, sequences, count))
    # A label may follow the one before the last unless it is a blank, or the same again.
    earlier = torch.cat([labels[:, :2], labels[:, :-2]], 1)
    skips = (labels != blank) & (labels != earlier)
    places = torch.arange(count, device=labels.device)
    ends = 2 * target_lengths.to(torch.int64).unsqueeze(1)
    first = torch.where((places < 2) & (places <= ends), own[0], NEVER)
    at = torch.arange(1, steps, device=labels.device).unsqueeze(1)
    inside = (at < input_lengths.to(at.device)).unsqueeze(2)

    def step(alpha: Tensor, own: Tensor, inside: Tensor, skips: Tensor) -> list[Tensor]:
        (new,) = _step(alpha, own, inside, skips)
        return [new.clone()]

    last = first
    if steps > 1:
        (last,) = scan_op(step, [first], [own[1:], inside], (skips,))
    final = torch.where((places == ends) | (places == ends - 1), last, NEVER)
    loss = -torch.logsumexp(final, 1)
    # Torch's gradient is that of a loss of unnormalised numbers: theirs is this much larger.
    probs = torch.where(
        (torch.arange(steps, device=at.device).unsqueeze(1) < input_lengths).unsqueeze(2),
        log_probs.exp(),
        0.0,
    )
    return loss + (probs - probs.detach()).sum((0, 2))


LIBRARY.define(_SCHEMA)
LIBRARY.impl("ctc", _losses, "CompositeImplicitAutograd")


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """What `torch.nn.functional.ctc_loss` does for padded targets and lengths that are tensors."""
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    losses = torch.ops.tilewright.ctc(log_probs, targets, input_lengths, target_lengths, blank)
    impossible = losses > -NEVER / 2
    losses = torch.where(impossible, 0.0 if zero_infinity else float("inf"), losses)
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    return (losses / target_lengths.to(losses.dtype).clamp(min=1)).mean()


def _is_padded(operands: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Steps of several sequences, targets padded to one length, both lengths as tensors?"""
    ranks = [getattr(x.realize(), "ndim", None) for x in operands[:4]]
    return ranks == [3, 2, 1, 1]


substitute(functional.ctc_loss, ctc_loss, _is_padded)
