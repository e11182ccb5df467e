"""vLLM: the delta rule with gates, step by step and in chunks, and the norms around it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from drive_vllm import function, ints
from drive_vllm_drafts import longs
from recurrent import delta_rule, unit
from reference import close, randn, rms_norm, same

FLA = "third_party.flash_linear_attention.ops."
KDA = "models.kimi_k3.nvidia.ops.third_party.kda."
TWO = longs(0, 70, 100)  # two sequences


def delta(q: torch.Tensor, *rest: torch.Tensor, **more: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return delta_rule(q.double() * q.shape[-1] ** -0.5, *rest, **more)


def inputs(
    length: int, heads: int, values: int, k: int = 32, v: int = 32
) -> tuple[torch.Tensor, ...]:
    """Queries, keys, values, and the states of two sequences."""
    return (
        randn(1, length, heads, k), randn(1, length, heads, k, seed=1),
        randn(1, length, values, v, seed=2), randn(2, values, v, k, seed=3) / 4,
    )  # fmt: skip


def both(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of both sequences, each from a state of its own."""
    out, last = [], []
    for n in range(2):
        of = slice(int(TWO[n]), int(TWO[n + 1]))
        y, h = delta(*(x[0, of] for x in (q, k, v, g, beta)), state=state[n])
        out.append(y)
        last.append(h)
    return torch.cat(out)[None], torch.stack(last)


# ---- in chunks


def test_gated_delta_rule_in_chunks() -> None:
    q, k, v, state = inputs(100, 2, 4)
    q, k = unit(q).float(), unit(k).float()
    g, beta = F.logsigmoid(randn(1, 100, 4)), randn(1, 100, 4, seed=4).sigmoid()
    got = function(FLA + "chunk", "chunk_gated_delta_rule_fwd")(
        q, k, v, g, beta, 32**-0.5, state, True, TWO
    )
    out, last = both(q, k, v, g, beta, state)
    close(got[1], out, 10)
    close(got[3], last, 10)


@pytest.mark.parametrize("where", ["fla", "kimi"])
@pytest.mark.parametrize("gated", [False, True])
def test_delta_rule_with_a_gate_per_key(where: str, gated: bool) -> None:
    path = FLA + "kda" if where == "fla" else KDA + "chunk"
    q, k, v, state = inputs(100, 2, 2, 64, 64)  # the result is written over the values
    raw, log, bias = randn(1, 100, 2, 64), randn(2) / 4, randn(128) / 4
    b = randn(1, 100, 2, seed=4)
    g = -log.double().exp()[:, None] * F.softplus(raw.double() + bias.view(2, 64)) / 4
    if gated:
        g = 4 * g
        beta = b.sigmoid() if where == "fla" else b
        got = function(path, "chunk_kda_with_fused_gate")(
            q, k, v.clone(), raw, beta, log, bias, initial_state=state, output_final_state=True,
            use_qk_l2norm_in_kernel=True, cu_seqlens=TWO,
        )  # fmt: skip
    else:
        got = function(path, "chunk_kda")(
            q, k, v.clone(), g.float(), b.sigmoid(), initial_state=state, output_final_state=True,
            use_qk_l2norm_in_kernel=True, cu_seqlens=TWO,
        )  # fmt: skip
    out, last = both(unit(q), unit(k), v, g, b.sigmoid(), state)
    close(got[0], out, 20)
    close(got[1], last, 20)


@pytest.mark.parametrize("where", ["fla", "kimi"])
@pytest.mark.parametrize("bound", [None, -5.0])
def test_gate_per_key(where: str, bound: float | None) -> None:
    path = FLA + "kda" if where == "fla" else KDA + "chunk"
    raw, log, bias = randn(7, 2 * 32), randn(2), randn(64)
    got = function(path, "fused_kda_gate")(raw, log, 32, bias, lower_bound=bound)
    x = (raw.double() + bias).view(7, 2, 32)
    rate = log.double().exp()[:, None]
    close(got, -rate * F.softplus(x) if bound is None else bound * torch.sigmoid(rate * x))


@pytest.mark.parametrize("safe", [False, True])
def test_products_within_chunks(safe: bool) -> None:
    """The inverse of 1 + beta k k, and the products of queries with keys, each with decay."""
    q, k, _, _ = inputs(64, 2, 2)
    q, k = unit(q).float(), unit(k).float()
    beta = randn(1, 64, 2).sigmoid()
    g = (F.logsigmoid(randn(1, 64, 2, 32)) / 4).cumsum(1)  # a power of two
    got = function(KDA + "chunk_intra", "chunk_kda_fwd_intra")(
        q, k, g, beta, 0.5, chunk_size=64, safe_gate=safe
    )
    decay = (g.double()[0, :, None] - g.double()[0]).clamp(max=0)
    kk = torch.einsum("ihk,jhk,ijhk->hij", k[0].double(), k[0].double(), decay.exp2())
    qk = torch.einsum("ihk,jhk,ijhk->hij", q[0].double(), k[0].double(), decay.exp2())
    lower = (kk * beta[0].double().T[:, :, None]).tril(-1)
    found = [x[0].transpose(0, 1).double() for x in got if x is not None and x.shape[-1] == 64]
    wanted = [qk.tril() * 0.5, torch.linalg.inv(torch.eye(64).double() + lower)]
    for right in wanted:
        assert any(torch.allclose(x.tril(), right, rtol=1e-3, atol=1e-3) for x in found)


@pytest.mark.parametrize("size", [16, 32, 64])
def test_inverses_of_triangles(size: int) -> None:
    a = (randn(2, 2, size, 3, size) / 4).transpose(2, 3).tril(-1)  # batch, chunk, head
    rows = a.transpose(2, 3).flatten(1, 2).contiguous()
    got = function(FLA + "solve_tril", "solve_tril")(rows)
    wanted = torch.linalg.inv(torch.eye(size).double() + a.double())
    close(got.unflatten(1, (2, size)).transpose(2, 3), wanted, 10)


# ---- step by step


def test_steps_of_the_gated_delta_rule() -> None:
    q, k, v, _ = inputs(6, 2, 4)
    g, beta = F.logsigmoid(randn(1, 6, 4)), randn(1, 6, 4, seed=4).sigmoid()
    states = randn(9, 4, 32, 32)
    old = states.clone()
    where = torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0]])  # a state for each token
    got, _ = function(FLA + "fused_recurrent", "fused_recurrent_gated_delta_rule")(
        q, k, v, g, beta, initial_state=states, cu_seqlens=longs(0, 4, 6), ssm_state_indices=where,
        num_accepted_tokens=ints(2, 1), use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
    for n, (a, b, first) in enumerate(((0, 4, 4), (4, 6, 7))):
        kept: list[torch.Tensor] = []
        x = [unit(q)[0, a:b], unit(k)[0, a:b], v[0, a:b], g[0, a:b], beta[0, a:b]]
        out, _ = delta(*x, state=old[first], states=kept)
        close(got[0, a:b], out)
        for t, state in enumerate(kept):
            close(states[where[n, t]], state)


@pytest.mark.parametrize("kda", [False, True])
def test_steps_that_make_their_gates(kda: bool) -> None:
    length = 1 if kda else 4  # a gate per key is for single tokens
    q, k, v, _ = inputs(2 * length, 2, 2 if kda else 4)
    heads = v.shape[2]
    log, b = randn(heads) / 4, randn(1, 2 * length, heads, seed=4)
    shape = (heads, 32) if kda else (heads,)
    a, bias = randn(1, 2 * length, *shape), randn(*shape)
    states = randn(4, heads, 32, 32)
    old = states.clone()
    got, _ = function(FLA + "fused_sigmoid_gating", "fused_sigmoid_gating_delta_rule_update")(
        log, a, b, bias, q, k, v, initial_state=states, cu_seqlens=longs(0, length, 2 * length),
        ssm_state_indices=torch.tensor([[3] * length, [1] * length]),
        use_qk_l2norm_in_kernel=True, is_kda=kda,
    )  # fmt: skip
    g = -(log.double().exp()[:, None] if kda else log.double().exp()) * F.softplus(
        a.double() + bias
    )
    for n, state in enumerate((3, 1)):
        of = slice(n * length, (n + 1) * length)
        x = [unit(q)[0, of], unit(k)[0, of], v[0, of], g[0, of], b[0, of].sigmoid()]
        out, last = delta(*x, state=old[state])
        close(got[0, of], out)
        close(states[state], last)


@pytest.mark.parametrize("kind", ["gdn", "kda"])
def test_steps_of_packed_tokens(kind: str) -> None:
    heads, values = (2, 4) if kind == "gdn" else (2, 2)
    mixed = randn(3, 2 * heads * 32 + values * 32)
    log, b, where = randn(values) / 4, randn(3, values, seed=4), ints(2, 0, 3)
    states = randn(5, values, 32, 32)
    old = states.clone()
    if kind == "gdn":
        a, bias, out = randn(3, values), randn(values), torch.ones(3, 1, values, 32)
        function(FLA + "fused_recurrent", "fused_recurrent_gated_delta_rule_packed_decode")(
            mixed, a, b, log, bias, 32**-0.5, states, out, where, use_qk_l2norm_in_kernel=True
        )
        g = -log.double().exp() * F.softplus(a.double() + bias)
    else:
        a, bias = randn(3, values * 32), randn(values * 32)
        out, _ = function(KDA + "fused_recurrent", "fused_recurrent_kda_packed_decode")(
            mixed, a.view(1, 3, values, 32), b[None], log, bias, None, states, where
        )
        out = out[0]
        x = (a.double() + bias).view(3, values, 32)
        g = -log.double().exp()[:, None] * F.softplus(x)
    for row, state in enumerate(where.tolist()):
        if not state:  # that is no request
            assert not out[row].any()
            continue
        q, k, v = mixed[row].split((heads * 32, heads * 32, values * 32))
        y, last = delta(unit(q.view(1, heads, 32)), unit(k.view(1, heads, 32)),
                        v.view(1, values, 32), g[row : row + 1], b[row : row + 1].sigmoid(),
                        old[state])  # fmt: skip
        close(out[row].view(values, 32), y[0])
        close(states[state], last)


@pytest.mark.parametrize("fused", [False, True])
def test_steps_with_a_gate_per_key(fused: bool) -> None:
    q, k, v, _ = inputs(4, 2, 2)
    raw, b, log, bias = randn(1, 4, 2, 32), randn(1, 4, 2), randn(2) / 4, randn(64)
    states = randn(5, 2, 32, 32)
    old = states.clone()
    got, _ = function(KDA + "fused_recurrent", "fused_recurrent_kda")(
        q, k, v, raw, b, log, bias, None, states, longs(0, 2, 4),
        torch.tensor([[1, 2], [3, 4]], dtype=torch.int32), fuse_gate=fused,
    )  # fmt: skip
    g = -log.double().exp()[:, None] * F.softplus(raw.double() + bias.view(2, 32))
    for n in range(2):
        of, kept = slice(2 * n, 2 * n + 2), []
        x = [unit(q)[0, of], unit(k)[0, of], v[0, of], g[0, of], b[0, of].sigmoid()]
        out, _ = delta(*x, state=old[1 + 2 * n], states=kept)
        close(got.view(4, 2, 32)[of], out)
        for t in range(2):
            close(states[1 + 2 * n + t], kept[t])


def test_queries_and_gates_after_a_convolution() -> None:
    x, a, b = randn(5, 2 * 2 * 32 + 4 * 16), randn(5, 4), randn(5, 4, seed=1)
    log, bias = randn(4), randn(4, seed=1)
    q, k, v, g, beta = function(FLA + "fused_gdn_prefill_post_conv", "fused_post_conv_prep")(
        x, a, b, log, bias, 2, 32, 16
    )
    parts = x.split((64, 64, 64), -1)
    close(q, unit(parts[0].view(5, 2, 32)))
    close(k, unit(parts[1].view(5, 2, 32)))
    same(v, parts[2].view(5, 4, 16))
    close(g, -log.double().exp() * F.softplus(a.double() + bias))
    close(beta, b.double().sigmoid())


# ---- norms


@pytest.mark.parametrize("name", ["l2norm_fwd_kernel1", "l2norm_fwd_kernel2", "l2norm_fwd_kernel"])
def test_unit_lengths(name: str) -> None:
    x, out = randn(37, 48), torch.zeros(37, 48)
    kernel = function(FLA + "l2norm", name)
    if name == "l2norm_fwd_kernel1":
        kernel[(37,)](x, out, 48, BD=64, eps=1e-6)
    elif name == "l2norm_fwd_kernel2":
        kernel[(2,)](x, out, 1e-6, 37, 48, 64, 32)
    else:
        kernel[lambda meta: (-(-37 // meta["BT"]),)](x, out, 1e-6, 1, 37, D=48, BD=64)
    close(out, unit(x))


@pytest.mark.parametrize("file", ["kda", "fused_norm_gate"])
@pytest.mark.parametrize("width", [48, 520])
@pytest.mark.parametrize("act", ["swish", "sigmoid"])
def test_norms_with_gates(file: str, width: int, act: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Both files register a layer of the same name, which may be done once.
    registry = function("model_executor.custom_op", "op_registry")
    monkeypatch.delitem(registry, "fused_rms_norm_gated", raising=False)
    x, g, w = randn(5, width), randn(5, width, seed=1), randn(width)
    got = function(FLA + file, "rms_norm_gated")(x.clone(), g, w, None, activation=act, eps=1e-5)
    gate = F.silu(g.double()) if act == "swish" else g.double().sigmoid()
    close(got, rms_norm(x, w, 1e-5) * gate)


@pytest.mark.parametrize("first", [False, True])
def test_norms_of_groups_with_gates(first: bool) -> None:
    x, z, w, b = randn(5, 96), randn(5, 96, seed=1), randn(96), randn(96, seed=1)
    got, _, _ = function(FLA + "layernorm_guard", "layer_norm_fwd")(
        x, w, b, 1e-5, z=z, group_size=48, norm_before_gate=first
    )
    gate = F.silu(z.double())
    y = (x.double() if first else x.double() * gate).view(5, 2, 48)
    wanted = F.layer_norm(y, (48,), eps=1e-5).view(5, 96) * w + b
    close(got, wanted * gate if first else wanted)


# ---- steps that are taken back


@pytest.mark.parametrize("bound", [None, -5.0])
def test_steps_that_are_taken_back(bound: float | None) -> None:
    """A window of three tokens is verified; then only those that were accepted count."""
    path = "models.kimi_k3.nvidia.ops.recoverssm"
    q, k, v, _ = inputs(5, 2, 2)
    raw, b, log, bias = randn(1, 5, 2, 32), randn(1, 5, 2), randn(2) / 4, randn(64)
    states, conv = randn(5, 2, 32, 32), randn(5, 5, 12)  # three of the past, and the window
    kept, keys = torch.zeros(5, 2, 3, 32), torch.zeros(5, 2, 3, 64)
    first, window, where = states.clone(), conv.clone(), ints(2, 4)
    got = function(path, "kda_recoverssm_verify")(
        q, k, v, raw, b, log, bias, bound, states, kept, keys, ints(0, 3, 5), where, 3
    )
    x, rate = raw.double() + bias.view(2, 32), log.double().exp()[:, None]
    g = -rate * F.softplus(x) if bound is None else bound * torch.sigmoid(rate * x)
    ends = []
    for n, of in enumerate((slice(0, 3), slice(3, 5))):
        each: list[torch.Tensor] = []
        y = [unit(q)[0, of], unit(k)[0, of], v[0, of], g[0, of], b[0, of].sigmoid()]
        out, _ = delta(*y, state=first[where[n]], states=each)
        close(got[0, of], out, 10)
        ends.append(each)
    same(states, first)
    layer = SimpleNamespace(
        kv_cache=(conv, states, kept, keys), A_log=log, dt_bias=bias, local_num_heads=2,
        head_dim=32, gate_lower_bound=bound,
    )  # fmt: skip
    plan = function(path, "KDARecoverSSMCommitContext").create(
        [layer], spec_query_len=3, max_num_reqs=4
    )
    plan.commit(ints(2, 1), where, ints(0, 3, 5))
    for n, count in enumerate((2, 1)):
        close(states[where[n]], ends[n][count - 1], 10)
        same(conv[where[n], :3], window[where[n], count - 1 : count + 2])
