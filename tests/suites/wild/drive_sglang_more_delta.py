"""SGLang: steps of the delta rule that make their own gates, for tokens and for trees of drafts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from recurrent import delta_rule, unit
from reference import close, randn, same
from sglang_parts import function, ints, sums

PATH = "attention.fla.fused_sigmoid_gating_recurrent"
NAME = "fused_sigmoid_gating_delta_rule_update"
H, HV, K, V = 2, 4, 32, 48  # heads of keys and of values, and their widths


class Tokens:
    """Inputs of the delta rule, with gates as layers make them: one number for each head, or one
    for each key."""

    def __init__(self, count: int, keyed: bool) -> None:
        self.q, self.k = (randn(count, H, K, seed=s) for s in (1, 2))
        self.v = randn(count, HV, V, seed=3)
        shape = (HV, K) if keyed else (HV,)
        self.a, self.b = randn(count, *shape, seed=4), randn(count, HV, seed=5)
        self.log, self.bias = randn(HV) / 2, randn(*shape)
        rate = self.log.double().exp()
        self.x = (self.a + self.bias).double()
        self.rate = rate[:, None] if keyed else rate
        self.g = -self.rate * F.softplus(self.x)
        self.beta = self.b.double().sigmoid()

    def rule(self, chosen: list[int], state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Results and the last state of some tokens, one after the other."""
        at = torch.tensor(chosen)
        q, k = unit(self.q[at]) / 2, unit(self.k[at])
        return delta_rule(q, k, self.v[at], self.g[at], self.beta[at], state)


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("bound", [None, -5.0])
def test_steps(keyed: bool, bound: float | None) -> None:
    x, lengths, slots = Tokens(7, keyed), (4, 1, 2), ints(3, -1, 0)
    if bound is not None:
        x.g = bound * torch.sigmoid(x.rate * x.x)
    state = randn(5, HV, V, K)
    before = state.clone()
    got = function(PATH, NAME)(
        x.log, x.a.flatten(1), x.bias, 1.0, 20.0, x.q[None], x.k[None], x.v[None], x.b, state,
        slots, 0.5, True, sums(lengths).long(), keyed, bound,
    )  # fmt: skip
    wanted, at = before.double(), 0
    for n, slot in zip(lengths, slots.tolist(), strict=True):
        first = before[slot] if slot >= 0 else torch.zeros(HV, V, K)
        out, last = x.rule(list(range(at, at + n)), first)
        close(got[0, at : at + n], out)
        if slot >= 0:
            wanted[slot] = last
        at += n
    close(state, wanted)


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("tree", [False, True])
def test_steps_of_drafts(keyed: bool, tree: bool) -> None:
    """Each token goes on from its parent; states of all are kept, or what they are made of."""
    x, slots, state = Tokens(8, keyed), ints(3, 1), randn(5, HV, V, K)
    before, each = state.clone(), torch.zeros(3, 5, HV, V, K)
    raw_v, raw_k = torch.zeros(5, HV, 4, V), torch.zeros(5, H, 4, K)
    raw_g = torch.zeros(5, HV, 4, K) if keyed else torch.zeros(5, HV, 4)
    raw_b = torch.zeros(5, HV, 4)
    parents = [[0, 0, 0, 1], [0, 0, 1, 0]] if tree else [[0, 0, 1, 2]] * 2
    more = {"retrieve_parent_token": torch.tensor(parents)} if tree else {}
    got = function(PATH, NAME)(
        x.log, x.a.flatten(1), x.bias, 1.0, 20.0, x.q.view(2, 4, H, K), x.k.view(2, 4, H, K),
        x.v.view(2, 4, HV, V), x.b, state, slots, 0.5, True, is_kda=keyed,
        disable_state_update=True, intermediate_states_buffer=each,
        intermediate_state_indices=ints(2, 0), cache_ring=True, replayssm_rawv=raw_v,
        replayssm_rawk=raw_k, replayssm_g=raw_g, replayssm_beta=raw_b, **more,
    )  # fmt: skip
    same(state, before)
    for b, (slot, kept) in enumerate(zip(slots.tolist(), (2, 0), strict=True)):
        for t in range(4):
            chain = [t]
            while chain[0]:
                chain.insert(0, parents[b][chain[0]])
            out, last = x.rule([4 * b + c for c in chain], before[slot])
            close(got[b, t], out[-1])
            close(each[kept, t], last)
        rows = slice(4 * b, 4 * b + 4)
        same(raw_v[slot].transpose(0, 1), x.v[rows])
        same(raw_k[slot].transpose(0, 1), x.k[rows])
        close(raw_g[slot].transpose(0, 1), x.g[rows])
        close(raw_b[slot].transpose(0, 1), x.beta[rows])
