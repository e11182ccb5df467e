"""SGLang: attention that is a recurrence over a state, in chunks or step by step."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from recurrent import delta_rule, unit
from reference import close, randn, rms_norm, same
from sglang_parts import function, ints, sums, uniform

LENGTHS = (70, 9)


# ---- pieces


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("shape", [(3,), (3, 20)])
@pytest.mark.parametrize("backwards", [False, True])
def test_sums_in_chunks(apart: bool, shape: tuple[int, ...], backwards: bool) -> None:
    g = randn(1, 79, *shape)
    given = {"cu_seqlens": sums(LENGTHS).long()} if apart else {}
    got = function("attention.fla.cumsum", "chunk_local_cumsum")(
        g, 32, reverse=backwards, scale=0.5, **given
    )
    parts = []
    for part in g[0].double().split(LENGTHS if apart else (79,)):
        for chunk in part.split(32):
            parts.append(chunk.flip(0).cumsum(0).flip(0) if backwards else chunk.cumsum(0))
    close(got[0], torch.cat(parts) / 2)


@pytest.mark.parametrize("wide", [100, 700])
def test_unit_vectors(wide: int) -> None:
    x = randn(5, 3, wide)
    close(function("attention.fla.l2norm", "l2norm_fwd")(x), unit(x))


@pytest.mark.parametrize("wide", [100, 700])
@pytest.mark.parametrize("root", [False, True])
@pytest.mark.parametrize("gate", ["swish", "sigmoid"])
def test_gated_norms(wide: int, root: bool, gate: str) -> None:
    x, g, w, b, r = randn(5, wide), randn(5, wide, seed=1), randn(wide), randn(wide, seed=1), None
    r = randn(5, wide, seed=2)
    got, *_, kept = function("attention.fla.fused_norm_gate", "layer_norm_gated_fwd")(
        x, g, w, b, gate, residual=r, out_dtype=torch.float32, is_rms_norm=root
    )
    whole = (randn(5, wide) + r).double()
    close(kept, whole)
    normed = (
        rms_norm(whole, w, 1e-5) + b
        if root
        else F.layer_norm(whole, (wide,), w.double(), b.double())
    )
    factor = g.double().sigmoid() * (g if gate == "swish" else 1)
    close(got, normed * factor)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("root", [False, True])
def test_norms_of_groups(before: bool, root: bool) -> None:
    x, z, w, b = randn(5, 96), randn(5, 96, seed=1), randn(96), randn(96, seed=1)
    got, *_ = function("attention.fla.layernorm_gated", "_layer_norm_fwd")(
        x, w, b, 1e-5, z=z, group_size=32, norm_before_gate=before, is_rms_norm=root
    )
    gate = F.silu(z.double())
    wide = x.double() if before else x.double() * gate
    groups = wide.unflatten(1, (3, 32))
    if not root:
        groups = groups - groups.mean(-1, keepdim=True)
    normed = (groups / (groups.square().mean(-1, keepdim=True) + 1e-5).sqrt()).flatten(1) * w + b
    close(got, normed * gate if before else normed)


# ---- the delta rule


def drawn_heads(time: int, heads: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    q, k = (F.normalize(randn(1, time, heads, 64, seed=s), dim=-1).to(dtype) for s in range(2))
    v = randn(1, time, 2 * heads, 32, seed=2).to(dtype)
    decay, beta = (
        F.logsigmoid(randn(1, time, 2 * heads)),
        randn(1, time, 2 * heads, seed=1).sigmoid(),
    )
    return q, k, v, decay, beta


@pytest.mark.parametrize("apart", [False, True])
def test_chunks(apart: bool) -> None:
    q, k, v, decay, beta = drawn_heads(79, 2, torch.bfloat16)
    state = randn(5, 4, 32, 64)
    slots = ints(3, 1) if apart else ints(3)
    given = {"cu_seqlens": sums(LENGTHS).long()} if apart else {}
    before = state.clone()
    got, _, _ = function("attention.fla.chunk", "chunk_gated_delta_rule")(
        q, k, v, decay, beta, 0.5, state, slots, use_qk_l2norm_in_kernel=True, **given
    )
    at = 0
    for n, slot in zip(LENGTHS if apart else (79,), slots.tolist(), strict=True):
        part = slice(at, at + n)
        wanted, last = delta_rule(
            unit(q[0, part]) / 2, unit(k[0, part]), v[0, part], decay[0, part], beta[0, part],
            before[slot],
        )  # fmt: skip
        close(got[0, part], wanted, factor=2)
        close(state[slot].bfloat16(), last, factor=2)
        at += n


@pytest.mark.parametrize("gated", [False, True])
def test_chunks_with_channels(gated: bool) -> None:
    """A decay for each channel of the keys."""
    q, k = (F.normalize(randn(1, 70, 2, 64, seed=s), dim=-1).bfloat16() for s in range(2))
    v, beta = randn(1, 70, 2, 64, seed=2).bfloat16(), randn(1, 70, 2).sigmoid()
    g, state = randn(1, 70, 2, 64, seed=3), randn(5, 2, 64, 64)
    log, bias = randn(2) / 4, randn(2 * 64)
    decay = F.logsigmoid(g)
    if gated:
        decay = -log.exp()[:, None] * F.softplus(g + bias.view(2, 64))
    before = state.clone()
    got = function("attention.fla.kda", "chunk_kda")(
        q, k, v.clone(), g if gated else decay, beta, 0.5, state, ints(3),
        **({"A_log": log, "dt_bias": bias} if gated else {}),
    )  # fmt: skip
    wanted, last = delta_rule(q[0] / 2, k[0], v[0], decay[0], beta[0], before[3])
    close(got[0], wanted, factor=2)
    close(state[3].bfloat16(), last, factor=2)


@pytest.mark.parametrize("apart", [False, True])
def test_steps(apart: bool) -> None:
    q, k, v, decay, beta = drawn_heads(12, 2, torch.float32)
    lengths = (7, 5) if apart else (12,)
    given = {"cu_seqlens": sums(lengths).long()} if apart else {}
    state = randn(len(lengths), 4, 32, 64)
    path = "attention.fla.fused_recurrent"
    got, last = function(path, "fused_recurrent_gated_delta_rule")(
        q, k, v, decay, beta, 0.5, state, True, use_qk_l2norm_in_kernel=True, **given
    )
    kept, slots = randn(5, 4, 32, 64, seed=1), ints(3, 1)[: len(lengths)]
    before, each = kept.clone(), torch.zeros(len(lengths), 12, 4, 32, 64)
    again = function(path, "fused_recurrent_gated_delta_rule_update_fwd")(
        q, k, v, decay, beta, 0.5, kept, slots, True,
        intermediate_states_buffer=each, intermediate_state_indices=ints(*range(len(lengths))),
        cache_steps=12, **given,
    )  # fmt: skip
    at = 0
    for s, n in enumerate(lengths):
        part = slice(at, at + n)
        rows = unit(q[0, part]) / 2, unit(k[0, part]), v[0, part], decay[0, part], beta[0, part]
        wanted, end = delta_rule(*rows, state[s])
        close(got[0, part], wanted)
        close(last[s], end)
        wanted, end = delta_rule(*rows, before[slots[s]])
        close(again[0, part], wanted)
        close(kept[slots[s]], end)
        close(each[s, n - 1], end)
        at += n


@pytest.mark.parametrize("channels", [False, True])
def test_packed_steps(channels: bool) -> None:
    heads, values, wide, deep = 2, 4, 32, 48
    x = randn(3, 2 * heads * wide + values * deep)
    size = values * wide if channels else values
    a, b, log, bias = randn(3, size), randn(3, values), randn(values), randn(size)
    state, slots = randn(5, values, deep, wide), ints(4, -1, 2)
    before, out = state.clone(), torch.empty(3, 1, values, deep)
    name = "kda" if channels else "gated_delta_rule"
    # Vectors of the length one are asked of another kernel where that takes them.
    given = {} if channels else {"use_qk_l2norm_in_kernel": True}
    function("attention.fla.fused_recurrent", f"fused_recurrent_{name}_packed_decode")(
        x, a, b, log, bias, 0.5, state, out, slots, **given
    )
    q, k, v = x.split((heads * wide, heads * wide, values * deep), 1)
    raw = (a + bias).double().view(3, values, -1)
    decay = -log.double().exp()[:, None] * F.softplus(raw)
    for n, slot in enumerate(slots.tolist()):
        if slot < 0:
            assert (out[n] == 0).all()
            continue
        qn, kn = q[n].view(1, heads, wide), k[n].view(1, heads, wide)
        if not channels:
            qn, kn = unit(qn), unit(kn)
        wanted, end = delta_rule(
            qn / 2, kn, v[n].view(1, values, deep), decay[n][None] if channels else
            decay[n][None, :, 0], b[n].double().sigmoid()[None], before[slot],
        )  # fmt: skip
        close(out[n], wanted, factor=10)
        close(state[slot], end, factor=10)


# ---- sums that fade at one rate for each head


def test_lightning() -> None:
    q, k, v = (randn(1, 2, 300, 64, seed=s) / 8 for s in range(3))
    rate, history = torch.tensor([0.1, 0.5]), randn(1, 2, 64, 64)
    got, _ = function("attention.linear.lightning_attn", "lightning_attention")(
        q, k, v, rate, kv_history=history
    )
    wanted = torch.empty(1, 2, 300, 64).double()
    fade = (-rate.double()).exp()[:, None, None]
    old, new = history.double(), torch.zeros(1, 2, 64, 64).double()
    for t in range(300):
        # The first token of a block of 256 sees what was before it as it is.
        if t and t % 256 == 0:
            old, new = old * fade + new, torch.zeros_like(new)
        elif t:
            old = old * fade
        pair = torch.einsum("bhk,bhv->bhkv", k[:, :, t].double(), v[:, :, t].double())
        new = new * fade + pair
        wanted[:, :, t] = torch.einsum("bhk,bhkv->bhv", q[:, :, t].double(), old + new)
    close(got, wanted, factor=10)


def test_lightning_steps() -> None:
    q, k, v = (randn(3, 2, 64, seed=s) for s in range(3))
    rate, state, slots = torch.tensor([0.1, 0.5]), randn(5, 2, 64, 64), ints(4, -1, 2)
    before, out = state.clone(), torch.zeros(3, 2, 64)
    function("attention.linear.lightning_attn", "_linear_attn_decode_kernel")[(3, 2, 2)](
        q, k, v, state, rate, slots, out, 64, 128, 64, *state.stride(), BLOCK_SIZE=32
    )
    for b in (0, 2):
        pair = torch.einsum("hk,hv->hkv", k[b].double(), v[b].double())
        new = before[slots[b]].double() * (-rate.double()).exp()[:, None, None] + pair
        close(out[b], torch.einsum("hk,hkv->hv", q[b].double(), new), factor=10)
        close(state[slots[b]], new)


# ---- state spaces


def test_state_spaces() -> None:
    """The parts of Mamba's second scan, in chunks of 32."""
    heads, wide, groups, deep, time, chunk = 4, 16, 2, 16, 70, 32
    path = "mamba.triton_ops"
    x, dt = randn(1, time, heads, wide), randn(1, time, heads)
    a, bias, skip = -uniform(heads), randn(heads), randn(heads)
    b, c = (randn(1, time, groups, deep, seed=s) for s in range(2))
    z, first = randn(1, time, heads, wide, seed=1), randn(1, heads, wide, deep)
    fade, steps = function(f"{path}.ssd_chunk_state", "_chunk_cumsum_fwd")(
        dt, a, chunk, dt_bias=bias, dt_softplus=True
    )
    soft = F.softplus(dt[0].double() + bias)
    rows = F.pad(soft.T, (0, 3 * chunk - time)).view(heads, 3, chunk)
    close(steps[0], rows)
    close(fade[0], (rows * a.double()[:, None, None]).cumsum(-1))
    states = function(f"{path}.ssd_chunk_state", "_chunk_state_fwd")(b, x, steps, fade)
    whole, last = function(f"{path}.ssd_state_passing", "_state_passing_fwd")(
        states.flatten(-2), fade, initial_states=first.flatten(-2), chunk_size=chunk
    )
    products = function(f"{path}.ssd_bmm", "_bmm_chunk_fwd")(
        c, b, chunk, output_dtype=torch.float32
    )
    out = torch.empty_like(x)
    function(f"{path}.ssd_chunk_scan", "_chunk_scan_fwd")(
        products, x, steps, fade, c, whole.unflatten(-1, (wide, deep)), D=skip, z=z, out=out
    )
    state, wanted, starts = first[0].double(), [], []
    for t in range(time):
        if t % chunk == 0:
            starts.append(state)
        key, query = (y[0, t].double().repeat_interleave(heads // groups, 0) for y in (b, c))
        state = state * (soft[t] * a).exp()[:, None, None]
        state = state + torch.einsum("hp,hn->hpn", x[0, t].double() * soft[t][:, None], key)
        y = torch.einsum("hpn,hn->hp", state, query) + skip.double()[:, None] * x[0, t]
        wanted.append(y * F.silu(z[0, t].double()))
    close(out[0], torch.stack(wanted), factor=10)
    close(last[0].unflatten(-1, (wide, deep)), state, factor=10)
    close(whole[0].unflatten(-1, (wide, deep)), torch.stack(starts), factor=10)
    pairs = torch.einsum("tgn,sgn->gts", c[0, :chunk].double(), b[0, :chunk].double())
    close(products[0, 0], pairs, factor=10)


def test_states_of_parts() -> None:
    heads, wide, deep, chunk, lengths = 2, 16, 16, 32, (40, 30)
    path = "mamba.triton_ops.ssd_chunk_state"
    x, dt, b = randn(70, heads, wide), uniform(1, 70, heads), randn(70, 1, deep)
    a, first = -uniform(heads), randn(2, heads, wide, deep)
    fade, steps = function(path, "_chunk_cumsum_fwd")(dt, a, chunk)
    # The state at the beginning of a chunk is that of the part which the chunk begins in.
    state, starts, ends = first[0].double(), [], []
    for t in range(70):
        if t == lengths[0]:
            ends.append(state)
            state = first[1].double()
        if t % chunk == 0:
            starts.append(state)
        state = state * (dt[0, t].double() * a).exp()[:, None, None] + torch.einsum(
            "hp,n->hpn", x[t].double() * dt[0, t].double()[:, None], b[t, 0].double()
        )
    ends.append(state)
    got = function(path, "chunk_state_varlen")(
        b, x, steps[0], fade[0], sums(lengths), torch.stack(starts).float(), initial_states=first
    )
    close(got, torch.stack(ends), factor=10)


@pytest.mark.parametrize("time", [1, 4])
def test_short_convolutions(time: int) -> None:
    wide, taps = 20, 4
    path = "mamba.causal_conv1d_triton"
    x, w, bias = randn(3, wide, time), randn(wide, taps), randn(wide)
    state, slots = randn(5, wide, taps - 1), ints(4, 0, 2)
    past = torch.cat((state[slots.long()], x), -1).double()
    got = function(path, "causal_conv1d_update")(
        x.clone(), state, w, bias, "silu", conv_state_indices=slots
    )
    wanted = F.conv1d(past, w.double()[:, None], bias.double(), groups=wide)
    close(got, F.silu(wanted))
    same(state[slots.long()], past[..., -(taps - 1) :].float())


def test_long_convolutions() -> None:
    wide, taps, lengths = 20, 4, (30, 2, 70)
    x, w, bias = randn(wide, 102), randn(wide, taps), randn(wide)
    state, slots = randn(5, wide, taps - 1), ints(4, 0, 2)
    before, known = state.clone(), torch.tensor([True, True, False])
    got = function("mamba.causal_conv1d_triton", "causal_conv1d_fn")(
        x, w, bias, state, sums(lengths), list(lengths), cache_indices=slots,
        has_initial_state=known, activation="silu",
    )  # fmt: skip
    parts = []
    for part, slot, there in zip(x.split(lengths, 1), slots.tolist(), known.tolist(), strict=True):
        past = torch.cat((before[slot] * there, part), -1).double()
        parts.append(
            F.silu(F.conv1d(past[None], w.double()[:, None], bias.double(), groups=wide))[0]
        )
        same(state[slot], past[:, -(taps - 1) :].float())
    close(got, torch.cat(parts, 1))
