"""SGLang: tokens sent to experts and back, and what is rounded on the way."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from reference import close, randn, same
from sglang_parts import drawn, function, ints, nearest, uniform

EP = "moe.ep_moe_kernels"
NARROW = torch.float8_e4m3fn
MOST = 448.0  # of e4m3fn
COUNTS = ints(3, 0, 5, 1)  # tokens of each expert


def routes(tokens: int, top: int, experts: int) -> torch.Tensor:
    """Experts of each token, some of which are not here (-1)."""
    ids = torch.stack([torch.randperm(experts, generator=torch.Generator().manual_seed(t))[:top]
                       for t in range(tokens)]).int()  # fmt: skip
    ids[1, 0] = -1
    return ids


def gated(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.double().chunk(2, -1)
    return F.silu(gate) * up


def rows(x: torch.Tensor) -> torch.Tensor:
    """The rows in use of (experts, most tokens, width)."""
    return torch.cat([x[e, :n] for e, n in enumerate(COUNTS.tolist())])


# ---- order


def test_places_of_tokens() -> None:
    ids = routes(7, 3, 6)
    forward = function(EP, "deepep_run_moe_deep_preprocess")
    sorted_ids, places, starts = forward(ids.long(), 6)
    flat = ids.flatten()
    order = flat.argsort(stable=True)
    same(sorted_ids, flat[order][1:])
    same(places[order], torch.arange(21) - 1)
    same(starts, torch.cat((torch.zeros(1), flat[flat >= 0].bincount(minlength=6).cumsum(0))))
    places = function(EP, "cutlass_w4_run_moe_ep_preproess")(ids)
    same(places[order], torch.arange(21))


@pytest.mark.parametrize("scaled", [1.0, 2.5])
def test_sent_and_summed(scaled: float) -> None:
    ids, x = routes(5, 3, 6), randn(5, 600)
    places = torch.randperm(15, generator=torch.Generator().manual_seed(1)).view(5, 3)
    places[1, 0] = -1
    out = torch.zeros(15, 600)
    kernel = function(EP, "deepep_permute_triton_kernel")
    kernel[(5,)](x, out, places, ids, None, 3, 600, BLOCK_SIZE=512)
    wanted = torch.zeros(15, 600)
    for t in range(5):
        wanted[places[t][places[t] >= 0]] = x[t]
    same(out, wanted)
    y, weights = randn(15, 600, seed=1), uniform(5, 3)
    got = function(EP, "moe_unpermute")(y, places, ids, weights, scaled)
    use = (weights * (places >= 0)).double() * scaled
    close(got, (y.double()[places.clamp(min=0)] * use[..., None]).sum(1))


@pytest.mark.parametrize("scale", [None, 0.5])
def test_sent_for_cutlass(scale: float | None) -> None:
    ids, x = routes(5, 3, 6), randn(5, 600, dtype=torch.bfloat16)
    ids[1, 0] = 6  # what says here that an expert is elsewhere
    places = torch.randperm(15, generator=torch.Generator().manual_seed(1)).int().view(5, 3)
    out = torch.zeros(15, 600, dtype=torch.bfloat16)
    function(EP, "pre_reorder_for_cutlass_moe")(
        x, out, places, ids, None if scale is None else torch.tensor([scale]), 6, 3, 5, 600
    )
    wanted = torch.zeros_like(out)
    for t in range(5):
        wanted[places[t][ids[t] < 6].long()] = x[t] / (1 if scale is None else scale)
    same(out, wanted)
    y, weights, got = randn(15, 600, seed=1), uniform(5, 3), torch.empty(5, 600)
    function(EP, "post_reorder_for_cutlass_moe")(y, got, places, ids, weights, 6, 3, 5, 600, 2.5)
    use = (weights * (ids < 6)).double() * 2.5
    close(got, (y.double()[places.long()] * use[..., None]).sum(1))


def test_summed_for_deepgemm() -> None:
    ids, y, weights = routes(5, 3, 6), randn(15, 600), uniform(5, 3)
    places = torch.randperm(15, generator=torch.Generator().manual_seed(1)).int().view(5, 3)
    got = torch.empty(5, 600)
    function(EP, "post_reorder_deepgemm")(y, got, places, ids, weights, 3, 5, 600, 2.5)
    use = (weights * (ids >= 0)).double() * 2.5
    close(got, (y.double()[places.long()] * use[..., None]).sum(1))


@pytest.mark.parametrize("narrow", [False, True])
def test_scattered_and_gathered(narrow: bool) -> None:
    ids, width = routes(9, 2, 4).long(), 256
    counts = ids[ids >= 0].bincount(minlength=4)
    padded = torch.full((4,), 128)
    x = randn(9, width).to(NARROW if narrow else torch.bfloat16)
    scale = uniform(9, 2) if narrow else None
    starts = torch.empty(4, dtype=torch.int32)
    out = torch.zeros(512, width, dtype=x.dtype)
    out_scale = torch.zeros(512, 2) if narrow else None
    experts, index = torch.empty(512, dtype=torch.int32), torch.zeros(9, 2, dtype=torch.int32)
    function(EP, "ep_scatter")(
        x, scale, ids, padded.int(), counts.int(), starts, out, out_scale, experts, index
    )
    within = torch.arange(512) % 128
    owner = torch.arange(512) // 128
    same(experts, torch.where(within < counts[owner], owner, -1))
    # Which of an expert's tokens comes first is open.
    for e in range(4):
        used = index[ids == e]
        same(used.sort().values, torch.arange(int(counts[e])) + 128 * e)
    taken = ids >= 0
    same(out[index[taken].long()].float(), x.float().repeat_interleave(taken.sum(1), 0))
    if out_scale is not None and scale is not None:
        same(out_scale[index[taken].long()], scale.repeat_interleave(taken.sum(1), 0))
    y, weights, back = randn(512, width), uniform(9, 2), torch.empty(9, width)
    function(EP, "ep_gather")(y, ids, weights, index, back)
    use = (weights * taken).double()
    close(back, (y.double()[index.long()] * use[..., None]).sum(1))


def test_dispatched() -> None:
    ids = routes(7, 3, 6)
    counts, places = function(EP, "fused_moe_dispatch_index")(ids, 6, 16)
    flat = ids.flatten()
    same(counts, flat[flat >= 0].bincount(minlength=6))
    for e in range(6):
        same(places[flat == e].sort().values, torch.arange(counts[e]) + 16 * e)
    x, out = randn(7, 40, dtype=torch.bfloat16), torch.zeros(96, 40, dtype=torch.bfloat16)
    kernel = function(EP, "fill_gateup_input_triton_kernel")
    scale, out_scale = uniform(7, 5), torch.zeros(6, 5, 16)
    kernel[(7,)](
        x, scale, out, out_scale, places, ids, 3, 40, 5, 16, 5, 1, BLOCK_SIZE=32, IS_FP8=True,
        SCALE_MN_MAJOR=True,
    )  # fmt: skip
    wanted, wanted_scale = torch.zeros_like(out), torch.zeros(96, 5)
    for place, token in zip(places[flat >= 0].tolist(), (flat >= 0).nonzero()[:, 0] // 3,
                            strict=True):  # fmt: skip
        wanted[place], wanted_scale[place] = x[token], scale[token]
    same(out, wanted)
    same(out_scale, wanted_scale.view(6, 16, 5).transpose(1, 2))


def test_aligned_scales() -> None:
    x = randn(7, 5)
    got = function(EP, "tma_align_input_scale")(x)
    same(got, x)
    assert got.stride() == (1, 8)


def test_tokens_of_zero_experts() -> None:
    ids, scales, x = drawn(8, 5, 3), uniform(5, 3), randn(5, 512)
    use = (scales * (ids >= 6)).sum(1).double()
    forward = function(EP, "zero_experts_compute_triton")
    got = forward(ids, scales, 6, "identity", x)
    close(got, x.double() * use[:, None])


def test_sizes_of_problems() -> None:
    one, two = torch.zeros(4, 3, dtype=torch.int32), torch.zeros(4, 3, dtype=torch.int32)
    function(EP, "compute_problem_sizes_w4a8")(COUNTS, one, two, 64, 96, 4)
    same(one, torch.stack((torch.full((4,), 128), COUNTS, torch.full((4,), 96)), 1))
    same(two, torch.stack((torch.full((4,), 96), COUNTS, torch.full((4,), 64)), 1))


# ---- gates, rounded


def test_gates() -> None:
    x = randn(4, 6, 600, dtype=torch.bfloat16)
    out = torch.zeros(4, 6, 300, dtype=torch.bfloat16)
    close(rows(function(EP, "silu_and_mul_masked_fwd")(x, out, COUNTS)), gated(rows(x)))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("alpha", [0.0, 1.7])
def test_gates_in_groups(packed: bool, alpha: float) -> None:
    x, group = randn(4, 6, 1024), 128
    out = torch.zeros(4, 6, 512, dtype=NARROW)
    scale = torch.zeros(4, 1, 6, dtype=torch.int32) if packed else torch.zeros(4, 6, 4)
    more = {"num_real_tokens": 9, "topk": 1} if packed else {}
    function(EP, "silu_and_mul_masked_post_quant_fwd")(
        x, out, scale, group, COUNTS, packed, alpha, 3.0, **more
    )
    wanted = gated(rows(x))
    if alpha:
        gate, up = rows(x).double().chunk(2, -1)
        gate = gate.clamp(max=3.0)
        wanted = gate * torch.sigmoid(gate * alpha) * (up.clamp(-3.0, 3.0) + 1)
    found = wanted.unflatten(-1, (4, group)).abs().amax(-1) / MOST
    if packed:
        power = found.log2().ceil()
        used = rows(scale.transpose(1, 2))[:, 0]
        got = torch.stack([(used >> 8 * k) & 255 for k in range(4)], -1) - 127
        same(got, power)
        found = power.exp2()
    else:
        close(rows(scale), found)
    nearest(rows(out), wanted / found.repeat_interleave(group, -1))


@pytest.mark.parametrize("dynamic", [False, True])
def test_gates_of_tensors(dynamic: bool) -> None:
    x, scale = randn(9, 600), torch.tensor([0.02])
    out = torch.zeros(9, 300, dtype=NARROW)
    wanted = gated(x[:8])
    which = "dynamic" if dynamic else "static"
    function(EP, f"silu_mul_{which}_tensorwise_quant_for_cutlass_moe")(
        x, out, scale, ints(8), 9, 300
    )
    if dynamic:
        close(scale, wanted.abs().max()[None] / MOST)
    nearest(out[:8], wanted / scale.double())
    assert (out[8].float() == 0).all()
    x, out = randn(4, 6, 600), torch.zeros(4, 6, 300, dtype=NARROW)
    forward = function(EP, "silu_and_mul_masked_post_per_tensor_quant_fwd")
    forward(x, out, COUNTS, torch.tensor([0.02]))
    nearest(rows(out), (gated(rows(x)) / 0.02).clamp(-MOST, MOST))


def test_scales_of_tokens_to_one() -> None:
    x, scale = randn(4, 6, 256).to(NARROW), uniform(4, 6, 2) + 0.5
    out = torch.zeros(4, 6, 256, dtype=NARROW)
    forward = function(EP, "fp8_per_token_to_per_tensor_quant_triton")
    forward(x, scale, COUNTS, torch.tensor([2.0]), out)
    wide = x.double() * scale.double().repeat_interleave(128, -1) / 2
    nearest(rows(out), rows(wide))
