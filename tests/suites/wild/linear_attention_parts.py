"""What the drivers of flash-linear-attention share: inputs, and recurrences over time in float64.

Tensors are (batch, length, heads, width)."""

from __future__ import annotations

import torch
from reference import randn

LENGTH = 70  # two chunks, the second one not full


def inputs(*widths: int, heads: int = 2, length: int = LENGTH) -> list[torch.Tensor]:
    return [randn(1, length, heads, w, seed=s) for s, w in enumerate(widths)]


def recurrence(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor | None = None,  # logarithms, for each row of the state
    a: torch.Tensor | None = None,
    b: torch.Tensor | None = None,
    scale: float | None = None,
) -> torch.Tensor:
    """S = exp(decay) S + b (a S) + k v, and q S is the result."""
    state = q.new_zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3])
    found = []
    for t in range(q.shape[1]):
        new = state if decay is None else state * decay[:, t, :, :, None].exp()
        if a is not None and b is not None:
            read = torch.einsum("bhk,bhkv->bhv", a[:, t], state)
            new = new + b[:, t, :, :, None] * read[:, :, None]
        state = new + k[:, t, :, :, None] * v[:, t, :, None]
        found.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state))
    return torch.stack(found, 1) * (q.shape[-1] ** -0.5 if scale is None else scale)
