"""flash-linear-attention: families that its own tests leave out, or call with sizes for a GPU.

Tensors are (batch, length, heads, width). References are recurrences over time in float64."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from linear_attention_parts import LENGTH, inputs, recurrence
from reference import close, compare_gradients, randn


def test_bounded_memory() -> None:
    from fla.ops.abc import chunk_abc

    def reference(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, s: torch.Tensor
    ) -> torch.Tensor:
        """Each slot keeps a mean of keys and of values, weighted with the exponent of s."""
        rows = torch.arange(q.shape[1])
        seen = (rows[:, None] >= rows)[None, :, :, None, None]
        weights = (s[:, None] - s.logcumsumexp(1)[:, :, None]).exp() * seen  # b, i, j, h, m
        scores = torch.einsum("bihk,bjhk->bijh", q, k) * q.shape[-1] ** -0.5
        p = torch.einsum("bijh,bijhm->bihm", scores, weights).softmax(-1)
        return torch.einsum("bihm,bijhm,bjhv->bihv", p, weights, v)

    compare_gradients(
        lambda q, k, v, s: chunk_abc(q, k, v, s)[0], reference, inputs(32, 32, 32, 16), factor=20
    )


def test_rebased() -> None:
    from fla.ops.rebased import parallel_rebased

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = (torch.einsum("bihk,bjhk->bhij", q, k) / 16**0.5).square()
        scores = scores * torch.ones(scores.shape[-2:]).tril()
        scores = scores / (scores.sum(-1, keepdim=True) + 1e-5)
        return torch.einsum("bhij,bjhv->bihv", scores, v)

    compare_gradients(
        lambda q, k, v: parallel_rebased(q, k, v),
        reference,
        inputs(16, 16, 32, length=128),
        factor=20,
    )


def test_weighted_means_of_rwkv4() -> None:
    from fla.ops.rwkv4 import fused_recurrent_rwkv4

    start = torch.zeros(2, 3, 1, 40)
    start[:, 2] = -1e38  # the logarithm of the largest weight yet

    def reference(
        w: torch.Tensor, u: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        over, under, found = torch.zeros_like(k[:, 0]), torch.zeros_like(k[:, 0]), []
        for t in range(k.shape[1]):
            now = (u + k[:, t]).exp()
            found.append((over + now * v[:, t]) / (under + now))
            fading = (-w.exp()).exp()
            over = fading * over + k[:, t].exp() * v[:, t]
            under = fading * under + k[:, t].exp()
        return torch.stack(found, 1)

    compare_gradients(
        lambda w, u, k, v: fused_recurrent_rwkv4(w, u, k, v, start)[0],
        reference,
        [randn(40), randn(40, seed=1), randn(2, 9, 40), randn(2, 9, 40, seed=1)],
        factor=10,
    )


@pytest.mark.parametrize("normed", [False, True])
def test_attention_over_layers(normed: bool) -> None:
    from fla.ops.attnres import fused_attnres

    last = randn(64, seed=5)

    def reference(query: torch.Tensor, weight: torch.Tensor, *layers: torch.Tensor) -> torch.Tensor:
        stacked = torch.stack(layers)
        keys = F.rms_norm(stacked, (64,), weight, 1e-6)
        p = (keys @ query).softmax(0)
        mixed = (p[..., None] * stacked).sum(0)
        return F.rms_norm(mixed, (64,), last.double(), 1e-6) if normed else mixed

    compare_gradients(
        lambda query, weight, *layers: fused_attnres(
            query, layers, weight, last if normed else None
        ),
        reference,
        [randn(64), randn(64, seed=1), *(randn(2, 5, 64, seed=s) for s in range(3))],
        factor=20,
    )


@pytest.mark.parametrize("gate", [False, True])
def test_path_attention(gate: bool) -> None:
    """Between a query and a key stand the reflections of all positions after the key."""
    from fla.ops.path_attn import parallel_path_attn

    def reference(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        w: torch.Tensor,
        beta: torch.Tensor,
        g: torch.Tensor,
    ) -> torch.Tensor:
        length, total, found = q.shape[1], g.cumsum(1), []
        for i in range(length):
            now, scores = q[:, i], []
            for j in range(i, -1, -1):
                score = (now * k[:, j]).sum(-1)
                fading = total[:, i] - total[:, j] if gate else 0.0
                scores.append((score + fading) * 32**-0.5)
                along = (now * w[:, j]).sum(-1, keepdim=True)
                now = now - beta[:, j, :, None] * along * w[:, j]
            p = torch.stack(scores[::-1], 1).softmax(1)
            found.append((p[..., None] * v[:, : i + 1]).sum(1))
        return torch.stack(found, 1) + (0.0 if gate else 0 * g.sum())

    q, k, v, w = inputs(32, 32, 32, 32)
    beta = randn(1, LENGTH, 2).sigmoid() + 1
    g = F.logsigmoid(randn(1, LENGTH, 2, seed=1) + 3)
    compare_gradients(
        lambda q, k, v, w, beta, g: (
            parallel_path_attn(q, k, v, w, beta, g if gate else None)[0]
            + (0.0 if gate else 0 * g.sum())
        ),
        reference,
        [q, k, v, F.normalize(w, dim=-1), beta, g],
        factor=50,
    )


def test_oja_rule() -> None:
    from fla.ops.gated_oja_rule import chunk_gated_oja_rule

    def reference(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor
    ) -> torch.Tensor:
        state, found = q.new_zeros(1, 2, 32, 32), []
        for t in range(q.shape[1]):
            state = state * g[:, t, :, None].exp()
            key = k[:, t] - torch.einsum("bhkv,bhv->bhk", state, v[:, t])
            state = state + key[..., None] * (v[:, t] * beta[:, t, :, None])[:, :, None]
            found.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state))
        return torch.stack(found, 1) * 32**-0.5

    q, k, v, g = inputs(32, 32, 32, 32)
    compare_gradients(
        lambda q, k, v, g, beta: chunk_gated_oja_rule(q, k, v, g, beta)[0],
        reference,
        [q, k, F.normalize(v, dim=-1), F.logsigmoid(g + 3), randn(1, LENGTH, 2).sigmoid()],
        factor=50,
    )


def test_gated_attention_of_wide_keys() -> None:
    """Wider than what one program multiplies: parts are summed by another kernel."""
    from fla.ops.gla import chunk_gla

    q, k, v, g = inputs(320, 320, 16, 320, heads=1)
    g = F.logsigmoid(g)
    got = chunk_gla(q, k, v, g)[0]
    close(got, recurrence(q.double(), k.double(), v.double(), g.double()), factor=20)


def test_rwkv6_of_wide_keys() -> None:
    from fla.ops.rwkv6 import chunk_rwkv6

    q, k, v, w = inputs(320, 320, 16, 320, heads=1)
    w, u = F.logsigmoid(w), randn(1, 320)
    got = chunk_rwkv6(q, k, v, w, u, scale=0.1)[0]
    state, found = torch.zeros(1, 1, 320, 16).double(), []
    for t in range(LENGTH):
        now = k[:, t].double()[..., None] * v[:, t].double()[:, :, None]
        seen = state + u.double()[None, ..., None] * now
        found.append(torch.einsum("bhk,bhkv->bhv", q[:, t].double(), seen))
        state = state * w[:, t].double()[..., None].exp() + now
    close(got, torch.stack(found, 1) * 0.1, factor=20)


@pytest.mark.parametrize("size", [16, 32, 64])
def test_dplr(size: int) -> None:
    from fla.ops.generalized_delta_rule import chunk_dplr_delta_rule

    q, k, v, a, g = inputs(32, 32, 32, 32, 32)
    a = F.normalize(a, dim=-1)
    g = F.logsigmoid(g + 4)
    compare_gradients(
        lambda q, k, v, a, b, g: chunk_dplr_delta_rule(q, k, v, a, b, g, chunk_size=size)[0],
        lambda q, k, v, a, b, g: recurrence(q, k, v, g, a, b),
        [q, k, v, a, -a, g],
        factor=50,
    )


@pytest.mark.parametrize("size", [32, 64])
def test_iplr(size: int) -> None:
    from fla.ops.generalized_delta_rule import chunk_iplr_delta_rule

    q, k, v, a = inputs(32, 32, 32, 32)
    a = F.normalize(a, dim=-1)
    got = chunk_iplr_delta_rule(q, k, v, a, -a, chunk_size=size)[0]
    wide = [x.double() for x in (q, k, v, a)]
    close(got, recurrence(*wide[:3], a=wide[3], b=-wide[3]), factor=50)


@pytest.mark.parametrize("module", ["chunk_h_split", "chunk_h_parallel"])
def test_states_of_chunks(module: str) -> None:
    """The state after all chunks, of keys that fade with time, and the gradient of the first."""
    from importlib import import_module

    from fla.ops.utils import chunk_local_cumsum

    states = import_module(f"fla.ops.common.{module}")
    size = {"chunk_size": 64, **({"split_size": 64} if module == "chunk_h_split" else {})}
    q, k, v, slope = inputs(32, 32, 32, 32, length=128)
    fading = F.logsigmoid(randn(1, 128, 2) + 3)
    start, last_slope = randn(1, 2, 32, 32), randn(1, 2, 32, 32, seed=1)
    g = chunk_local_cumsum(fading, 64)
    _, last = states.chunk_fwd_h(k, v, g, None, None, start, True, **size)
    _, first_slope = states.chunk_bwd_dh(
        q, k, v, g, None, None, slope, start, last_slope, 0.2, **size
    )
    first = start.double().requires_grad_()
    state, loss = first, torch.zeros(()).double()
    for t in range(128):
        now = k[:, t].double()[..., None] * v[:, t].double()[:, :, None]
        state = state * fading[:, t].double().exp()[..., None, None] + now
        loss = loss + (q[:, t, :, :, None] * slope[:, t, :, None] * 0.2 * state).sum()
    close(last, state.detach(), factor=20)
    (loss + (state * last_slope).sum()).backward()
    assert first.grad is not None
    close(first_slope, first.grad, factor=20)


@pytest.mark.parametrize("size", [16, 32, 64])
def test_inverse_of_triangles(size: int) -> None:
    from fla.ops.utils import solve_tril

    length = 2 * size - 5  # the last one is cut
    a = randn(1, length, 2, size) / size**0.5
    got = solve_tril(torch.stack([_strict(a[:, t], t % size) for t in range(length)], 1))
    for start in range(0, length, size):
        n = min(size, length - start)
        rows = torch.stack([_strict(a[:, t], t % size) for t in range(start, start + n)], 2)
        wanted = torch.linalg.inv(torch.eye(n).double() + rows[..., :n].double())
        close(got[:, start : start + n, :, :n].transpose(1, 2), wanted, factor=10)


def _strict(row: torch.Tensor, t: int) -> torch.Tensor:
    return row * (torch.arange(row.shape[-1]) < t)


@pytest.mark.parametrize("activation", ["", "relu", "sigmoid", "tanh", "leaky_relu"])
def test_product(activation: str) -> None:
    from fla.ops.utils import matmul

    a, b = randn(2, 20, 40), randn(40, 24)
    wanted = a.double() @ b.double()
    if activation:
        owner = F if activation == "leaky_relu" else torch
        wanted = getattr(owner, activation)(wanted)
    close(matmul(a, b, activation), wanted)


def test_product_and_sum() -> None:
    from fla.ops.utils import addmm

    x, a, b = randn(20, 24), randn(2, 20, 40), randn(40, 24)
    alpha, beta = torch.tensor(0.5), torch.tensor(2.0)  # it reads them from memory
    close(addmm(x, a, b, alpha, beta), 2 * x.double() + 0.5 * (a.double() @ b.double()))


def test_logarithm_of_sums() -> None:
    from fla.ops.utils import logsumexp_fwd

    x = randn(3, 5, 300)
    close(logsumexp_fwd(x, 0.5), (x.double() * 0.5).logsumexp(-1))


def test_softmax() -> None:
    from fla.ops.utils.softmax import softmax_bwd, softmax_fwd

    x, slope = randn(3, 5, 30), randn(3, 5, 30, seed=1)
    wide = x.double().requires_grad_()
    p = wide.softmax(-1)
    p.backward(slope.double())
    close(softmax_fwd(x), p.detach())
    assert wide.grad is not None
    close(softmax_bwd(p.detach().float(), slope), wide.grad)


@pytest.mark.parametrize("separate", [False, True])
def test_mesa(separate: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Least squares over what was seen; the gradients in one kernel, or in two."""
    from fla.ops.mesa_net import chunk_h_kv_intra_bwd, chunk_mesa_net

    monkeypatch.setattr(chunk_h_kv_intra_bwd, "check_shared_mem", lambda *_: not separate)

    def reference(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        ridge: torch.Tensor,
    ) -> torch.Tensor:
        keys, values, found = q.new_zeros(1, 1, 16, 16), q.new_zeros(1, 1, 16, 16), []
        for t in range(q.shape[1]):
            fading, key = g[:, t, :, None, None].exp(), (k * beta[..., None])[:, t, :, :, None]
            keys = keys * fading + key * k[:, t, :, None]
            values = values * fading + key * v[:, t, :, None]
            best = torch.linalg.solve(keys + torch.diag_embed(ridge)[None], q[:, t])
            found.append((best[..., None] * values).sum(-2))
        return torch.stack(found, 1)

    q, k, v = inputs(16, 16, 16, heads=1)
    compare_gradients(
        lambda q, k, v, g, beta, ridge: chunk_mesa_net(q, k, v, g, beta, ridge)[0],
        reference,
        [
            F.normalize(q, dim=-1),
            F.normalize(k, dim=-1),
            v,
            F.logsigmoid(randn(1, LENGTH, 1) + 3),
            randn(1, LENGTH, 1, seed=1).sigmoid(),
            randn(1, 16).sigmoid() + 0.5,
        ],
        factor=50,
    )


def test_log_linear_attention_in_two_calls() -> None:
    from fla.ops.log_linear_attn import chunk_log_linear_attn
    from fla.ops.log_linear_attn.naive import naive_log_linear_attn

    whole, first = 256, 192  # the state that it gives back is right after three chunks, not two
    q, k = inputs(64, 64, heads=1, length=whole)
    v, g = randn(1, whole, 2, 16), F.logsigmoid(randn(1, whole, 2) + 3)
    levels = randn(1, whole, 2, 9).sigmoid()
    given = (q, k, v, g, levels)
    wanted = naive_log_linear_attn(*(x.double() for x in given))
    got, state = chunk_log_linear_attn(*(x[:, :first] for x in given), output_final_state=True)
    close(got, wanted[:, :first], factor=20)
    rest = [x[:, first:].contiguous() for x in given]
    got, _ = chunk_log_linear_attn(*rest, initial_state=state)
    close(got, wanted[:, first:], factor=20)


def test_states_of_parts_of_a_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are scanned at the same time, and merged."""
    from fla.ops.common import intracard_cp

    monkeypatch.setattr(intracard_cp, "compute_subseq_len", lambda *_: 64)
    length, size = 256, 64
    k, w, u = inputs(32, 32, 32, length=length)
    k, w = F.normalize(k, dim=-1), F.normalize(w, dim=-1)
    g = F.logsigmoid(randn(1, length, 2) + 4).view(1, 4, size, 2).cumsum(2).view(1, length, 2)
    ends = torch.tensor([0, length])
    h, new, last = intracard_cp.intracard_fwd_h(
        k, w, u, g / math.log(2), output_final_state=True, cu_seqlens=ends
    )
    state = torch.zeros(1, 2, 32, 32).double()
    for c in range(length // size):
        close(h[:, c], state, factor=20)
        kc, wc, uc = (x[:, c * size :][:, :size].double().transpose(1, 2) for x in (k, w, u))
        gc = g[:, c * size :][:, :size].double().transpose(1, 2)[..., None]
        value = uc - wc @ state
        close(new[:, c * size :][:, :size].transpose(1, 2), value, factor=20)
        end = gc[:, :, -1:]
        state = state * end.exp() + kc.transpose(-1, -2) @ (value * (end - gc).exp())
    close(last, state, factor=20)
