"""Attention that is a recurrence over a state, in float64, a step at a time."""

from __future__ import annotations

import torch


def unit(x: torch.Tensor) -> torch.Tensor:
    x = x.double()
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    *,
    states: list[torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One sequence: q, k (time, heads, K), v (time, value heads, V), decay (time, value heads) or
    (…, K), the state (value heads, V, K). Heads of keys are shared by several of values. The
    state after each step is added to `states`."""
    share = v.shape[1] // k.shape[1]
    q, k = (x.double().repeat_interleave(share, 1) for x in (q, k))
    state, out = state.double(), []
    for t in range(len(q)):
        fade = decay[t].double().exp()
        state = state * (fade[:, None, None] if fade.ndim == 1 else fade[:, None])
        new = v[t].double() - torch.einsum("hvk,hk->hv", state, k[t])
        state = state + torch.einsum("hv,hk->hvk", new * beta[t].double()[:, None], k[t])
        out.append(torch.einsum("hvk,hk->hv", state, q[t]))
        if states is not None:
            states.append(state)
    return torch.stack(out), state
