"""SGLang: gates of experts, who of them takes which token, and adapters of users for experts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from reference import close, randn, same
from sglang_parts import aligned, drawn, function, ints, mixed, nearest

NARROW = torch.float8_e4m3fn


# ---- who takes which token


@pytest.mark.parametrize("experts", [24, 300])
@pytest.mark.parametrize("scored", ["sigmoid", "sqrtsoftplus", "softmax"])
@pytest.mark.parametrize("groups", [1, 6])
@pytest.mark.parametrize("plain", [False, True])
def test_routers(experts: int, scored: str, groups: int, plain: bool) -> None:
    """The best experts by their scores and a bias; of groups the best by their best two. Experts
    that all share come last."""
    x, bias = randn(9, experts), randn(experts)
    shared, top, scale, cap = (0, 4, 1.0, 0.0) if plain else (2, 6, 2.5, 3.0)
    weights, chosen = function("moe.moe_fused_gate", "moe_fused_gate")(
        x, bias, top, scored, shared, not plain, scale, not plain,
        cap if scored == "softmax" else 0.0, groups, 3 if groups > 1 else 1,
    )  # fmt: skip
    wide = x.double()
    if scored == "softmax":
        ranked = (cap * torch.tanh(wide / cap) if cap else wide) + bias
        value = ranked.softmax(1)
    else:
        value = wide.sigmoid() if scored == "sigmoid" else F.softplus(wide).sqrt()
        ranked = value + bias
    if groups > 1:
        parts = ranked.unflatten(1, (groups, -1))
        best = parts.topk(2, -1).values.sum(-1).topk(3, 1).indices
        kept = torch.zeros(9, groups).scatter_(1, best, 1).bool()
        ranked = parts.masked_fill(~kept[..., None], -torch.inf).flatten(1)
    known = ranked.topk(top - shared, 1).indices
    same(chosen[:, : top - shared], known)
    same(chosen[:, top - shared :], (experts + torch.arange(shared)).expand(9, shared))
    found = value.gather(1, known)
    total = found.sum(1, keepdim=True)
    wanted = torch.cat((found, (total / scale).expand(9, shared)), 1)
    close(weights, wanted if plain else wanted / total * scale)


@pytest.mark.parametrize("tokens", [1, 9])
def test_few_routes(tokens: int) -> None:
    """Each expert's routes are padded to whole blocks; what nobody here takes is expert -1."""
    experts, block, top = 200, 4, 4
    routes = drawn(6, tokens, top, dtype=torch.int32) * 30 - 1
    order, owners = torch.full((400,), -9, dtype=torch.int32), ints(*[-9] * 100)
    count = ints(-9)
    function("moe.moe_align_small_numel", "moe_align_small_numel")(
        routes, experts + 1, block, order, owners, count
    )
    known, whose, total = aligned(routes + 1, block, experts + 1)
    same(count, total)
    same(order[: len(known)], known)
    same(owners[: len(whose)], whose - 1)
    assert (order[len(known) :] == -9).all() and (owners[len(whose) :] == -9).all()


# ---- gates


def gated(x: torch.Tensor, limit: float | None) -> torch.Tensor:
    gate, up = x.double().chunk(2, -1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(1.7 * gate) * (up + 1)


@pytest.mark.parametrize("limit", [None, 1.5])
@pytest.mark.parametrize("wide", [96, 320])
def test_gates(limit: float | None, wide: int) -> None:
    x, path = 3 * randn(2, 3, 2 * wide, dtype=torch.bfloat16), "moe.minimax_m3_swiglu"
    wanted = gated(x, limit)
    close(function(path, "swiglu_oai_split")(x, 1.7, 1.0, limit), wanted)
    narrow, scales = function(path, "swiglu_oai_mxfp8_quant")(x, 1.7, 1.0, limit)
    power = (wanted.unflatten(-1, (-1, 32)).abs().amax(-1) / 448).log2().ceil()
    same(scales, power + 127)
    nearest(narrow, wanted / power.exp2().repeat_interleave(32, -1))


def test_bounded_gates() -> None:
    """Both sides are bounded by a tangent; 64 elements have one scale."""
    x, groups = 5 * randn(4, 2 * 192, dtype=torch.bfloat16), 3
    narrow, scales = torch.empty(4, 192, dtype=NARROW), torch.empty(4, groups)
    function(".srt.layers.moe.moe_runner.deep_gemm", "_situ_mul_quant_contig_kernel")[(4,)](
        x, narrow, scales, 192, groups, 2.0, 4.0, GROUP=64, KG_POW2=4
    )
    gate, up = x.double().chunk(2, -1)
    wanted = 2 * torch.tanh(gate / 2) * torch.sigmoid(gate) * 4 * torch.tanh(up / 4)
    scale = wanted.unflatten(1, (groups, 64)).abs().amax(-1) / 448
    close(scales, scale)
    nearest(narrow, wanted / scale.repeat_interleave(64, 1))


# ---- adapters


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize("split", [1, 2])
def test_adapters_of_experts(spread: bool, split: int) -> None:
    """Two adapters, of which one is not for experts. Tokens may stand once for each expert."""
    tokens, top, experts, rank, wide, out_wide, block = 9, 2, 4, 16, 80, 48, 16
    routes = mixed(tokens, experts)[:, :top] % experts
    who = drawn(3, tokens) - 1  # no adapter, or one of two
    x = randn(tokens * (top if spread else 1), wide, dtype=torch.bfloat16)
    downs = [randn(2, experts, rank, wide, seed=s).bfloat16() / 4 for s in range(2)]
    ups = [randn(2, experts, out_wide, rank, seed=s).bfloat16() / 4 for s in range(2)]
    factors, old = randn(tokens, top), randn(tokens, top, 2 * out_wide + 8).bfloat16()
    out = old.clone()
    lists = [
        aligned(torch.where(who[:, None] == a, routes, experts), block, experts) for a in (0, 1)
    ]
    order = torch.full((2, 96), tokens * top, dtype=torch.int32)
    owners, counts = torch.full((2, 6), -1, dtype=torch.int32), ints(0, 0)
    for a, (places, whose, count) in enumerate(lists):
        order[a, : len(places)], owners[a, : len(whose)], counts[a] = places, whose, count
    enabled = ints(1, 0)
    sizes = (block, 16, 32, 1, 4, 2)
    function("moe.fused_moe_lora_kernel", "_fused_moe_lora")(
        out, x, downs, ups, factors, order, owners, counts, rank, top, ints(0, 1), enabled,
        *sizes, split, *sizes, 1, mul_routed_weight=True, offset=8,
    )  # fmt: skip
    wanted = old.double()
    for t in range(tokens):
        for r in range(top):
            a, e = int(who[t]), int(routes[t, r])
            if a < 0 or not enabled[a]:
                continue
            row = x[t * top + r if spread else t].double()
            for s in range(2):
                small = downs[s][a, e].double() @ row
                part = slice(8 + s * out_wide, 8 + (s + 1) * out_wide)
                wanted[t, r, part] += ups[s][a, e].double() @ small * factors[t, r]
    close(out, wanted, 2)
