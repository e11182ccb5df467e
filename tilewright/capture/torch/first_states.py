"""What a scan of torch starts with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch


def first_states(
    states: Sequence[torch.Tensor], read: Iterable[torch.Tensor]
) -> list[torch.Tensor]:
    """Copies that a scan may start with, where its steps also read `read`. In torch 2.11 a scan
    whose first states need no gradient passes none from step to step: there they need one as soon
    as anything that a step reads does."""
    first = [s.clone(memory_format=torch.contiguous_format) for s in states]
    if torch.is_grad_enabled() and any(t.requires_grad for t in (*first, *read)):
        kinds = (torch.Tensor.is_floating_point, torch.Tensor.is_complex)
        first = [s.requires_grad_() if any(k(s) for k in kinds) else s for s in first]
    return first
