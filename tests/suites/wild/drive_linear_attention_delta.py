"""flash-linear-attention: delta rules that forget per channel, and states that chunks hand on."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from linear_attention_parts import LENGTH, inputs, recurrence
from reference import close, compare_gradients, randn

LEAST = -5.0  # of a gate's logarithm, where it is bounded


def corrected(
    q: torch.Tensor,
    write: torch.Tensor,
    read: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
) -> torch.Tensor:
    """S = exp(decay) S; S = S + write (v - read S); and q S is the result."""
    return recurrence(q, write, v, decay, a=-read * decay.exp(), b=write)


def units(*widths: int, length: int = LENGTH) -> list[torch.Tensor]:
    """Queries and keys are of length one, or the state grows."""
    q, k, *rest = inputs(*widths, length=length)
    return [F.normalize(q, dim=-1), F.normalize(k, dim=-1), *rest]


def logits(*shape: int, seed: int = 0) -> torch.Tensor:
    return randn(*shape, seed=seed) + 3


def fading(g: torch.Tensor, a: torch.Tensor, bias: torch.Tensor, bounded: bool) -> torch.Tensor:
    """The logarithm of what is left of a state, as the kernels compute it from what layers give."""
    g = g + bias.view(g.shape[-2:])
    rate = a.exp()[:, None]
    return LEAST * (rate * g).sigmoid() if bounded else -rate * F.softplus(g)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("bounded", [False, True])
def test_kda(inside: bool, bounded: bool) -> None:
    """`inside`: gates are computed by the kernels; `bounded`: with a least value of theirs."""
    from fla.ops.kda import chunk_kda

    more = {"safe_gate": bounded, "lower_bound": LEAST if bounded else None}
    q, k, v, g = units(32, 32, 32, 32)
    compare_gradients(
        lambda q, k, v, beta, g, a, bias: (
            chunk_kda(q, k, v, g, beta, A_log=a, dt_bias=bias, use_gate_in_kernel=True, **more)
            if inside
            else chunk_kda(q, k, v, fading(g, a, bias, bounded), beta, **more)
        )[0],
        lambda q, k, v, beta, g, a, bias: corrected(
            q, k * beta[..., None], k, v, fading(g, a, bias, bounded)
        ),
        [q, k, v, randn(1, LENGTH, 2).sigmoid(), g - 3, randn(2) * 0.1, randn(64) * 0.1],
        factor=50,
    )


@pytest.mark.parametrize("bounded", [False, True])
def test_delta_net_with_gates_of_channels(bounded: bool) -> None:
    from fla.ops.gdn2 import chunk_gdn2

    more = {"safe_gate": bounded, "lower_bound": LEAST if bounded else None}
    q, k, v, g, b, w = units(32, 32, 32, 32, 32, 32)
    compare_gradients(
        lambda q, k, v, g, b, w: chunk_gdn2(q, k, v, g, b, w, **more)[0],
        lambda q, k, v, g, b, w: corrected(q, k, k * b, v * w, g),
        [q, k, v, F.logsigmoid(g + 3), b.sigmoid(), w.sigmoid()],
        factor=50,
    )


@pytest.mark.parametrize("bounded", [False, True])
def test_preconditioned_kda(bounded: bool) -> None:
    """Keys are divided by a bounded power of how often each channel was seen. It normalises
    queries and keys itself."""
    from fla.ops.precond_kda import chunk_precond_kda

    more = {"safe_gate": bounded, "lower_bound": LEAST if bounded else None}

    def reference(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        g: torch.Tensor,
        slow: torch.Tensor,
        weight: torch.Tensor,
        beta: torch.Tensor,
        centre: torch.Tensor,
    ) -> torch.Tensor:
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        seen, scaled = torch.zeros_like(k[:, 0]), []
        for t in range(k.shape[1]):
            seen = seen * slow[:, t, :, None].exp() + weight[:, t, :, None] * k[:, t].square()
            distance = (seen + 1e-6).log() - centre[:, None]
            scaled.append(k[:, t] * 1.5 ** (-distance / (1 + distance.abs())))
        return corrected(q, torch.stack(scaled, 1) * beta[..., None], k, v, g)

    q, k, v, g = inputs(32, 32, 32, 32)
    compare_gradients(
        lambda q, k, v, g, slow, weight, beta, centre: chunk_precond_kda(
            q, k, v, g, slow, weight, beta, log_atk_scale=centre, **more
        )[0],
        reference,
        [q, k, v, F.logsigmoid(g + 3), F.logsigmoid(logits(1, LENGTH, 2))]
        + [*(randn(1, LENGTH, 2, seed=s).sigmoid() for s in (1, 2)), randn(2) * 0.1 - 0.2],
        factor=50,
    )


def test_simple_gate() -> None:
    from fla.ops.simple_gla import chunk_simple_gla

    compare_gradients(
        lambda q, k, v, g: chunk_simple_gla(q, k, v, g)[0],
        lambda q, k, v, g: recurrence(q, k, v, g[..., None].expand_as(k)),
        [*inputs(32, 32, 32), F.logsigmoid(logits(1, LENGTH, 2))],
        factor=20,
    )


def slots(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    s: torch.Tensor,
    g: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attention over slots that fade, each a sum of keys and one of values."""
    found = []
    for t in range(q.shape[1]):
        left, now = g[:, t].exp(), s[:, t]
        keys = keys * left[:, :, None] + k[:, t, :, :, None] * now[:, :, None]
        values = values * left[..., None] + now[..., None] * v[:, t, :, None]
        scores = torch.einsum("bhk,bhkm->bhm", q[:, t], keys) * q.shape[-1] ** -0.5
        found.append(torch.einsum("bhm,bhmv->bhv", scores.softmax(-1), values))
    return torch.stack(found, 1), keys, values


def test_step_of_slots() -> None:
    from fla.ops.gsa import fused_recurrent_gsa

    given = inputs(40, 40, 24, 16, 16, length=1)
    given[4] = F.logsigmoid(given[4] + 3)
    start = (randn(1, 2, 40, 16), randn(1, 2, 16, 24))
    wanted = slots(*(x.double() for x in (*given, *start)))
    got, last = fused_recurrent_gsa(*given, initial_state=start, output_final_state=True)
    for a, b in zip((got, *last), wanted, strict=True):
        close(a, b, factor=10)


def test_slots_by_a_kernel_of_another_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module of Oja's rule has this kernel too, over natural logarithms, and no caller."""
    from importlib import import_module

    module = import_module("fla.ops.gsa.chunk")
    kernel = import_module("fla.ops.gated_oja_rule.chunk_h").chunk_gsa_bwd_k_kernel_dqkvg

    class Natural:
        def __getitem__(self, grid: object) -> object:
            return lambda q, k, v, h, g, *rest, **more: kernel[grid](
                q, k, v, h, g * math.log(2), *rest, **more
            )

    monkeypatch.setattr(module, "chunk_gsa_bwd_k_kernel_dqkvg", Natural())
    q, k, v, s, g = inputs(32, 32, 32, 16, 16)
    keys, values = torch.zeros(1, 2, 32, 16).double(), torch.zeros(1, 2, 16, 32).double()
    compare_gradients(
        lambda q, k, v, s, g: module.chunk_gsa(q, k, v, s, g)[0],
        lambda q, k, v, s, g: slots(q, k, v, s, g, keys, values)[0],
        [q, k, v, s.sigmoid(), F.logsigmoid(g + 3)],
        factor=50,
    )


def test_products_of_keys_in_a_chunk() -> None:
    from fla.ops.gated_oja_rule.chunk_kkt import chunk_scaled_dot_kkt_fwd

    (k,) = inputs(32)
    g, beta = F.logsigmoid(logits(1, LENGTH, 2)).cumsum(1), randn(1, LENGTH, 2).sigmoid()
    got = chunk_scaled_dot_kkt_fwd(k, g, None, beta, chunk_size=32)
    rows = torch.arange(LENGTH)
    scores = torch.einsum("bihk,bjhk->bihj", k.double(), k.double()) * beta[..., None]
    scores = scores * (g[..., None] - g[:, None].transpose(2, 3)).double().exp()
    scores = scores * (rows[:, None] > rows)[None, :, None]
    for t in range(LENGTH):
        begin = t // 32 * 32
        width = min(32, LENGTH - begin)
        close(got[:, t, :, :width], scores[:, t, :, begin : begin + width], factor=10)


def test_keys_of_a_cache_of_path_attention() -> None:
    """A key went through the reflections of all positions after it."""
    from fla.ops.path_attn import parallel_path_attn

    q, k, v, w = inputs(32, 32, 32, 32, length=140)
    w, beta = F.normalize(w, dim=-1), randn(1, 140, 2).sigmoid() + 1
    _, got = parallel_path_attn(q, k, v, w, beta, use_cache=True)
    found = []
    for j in range(140):
        key = k[:, j].double()
        for i in range(j + 1, 140):
            along = (key * w[:, i]).sum(-1, keepdim=True)
            key = key - beta[:, i, :, None] * along * w[:, i]
        found.append(key)
    close(got, torch.stack(found, 1), factor=50)


def test_best_blocks() -> None:
    """Of blocks of keys the first, the last two, and those that queries of a group ask for most."""
    from fla.ops.nsa.parallel import parallel_nsa_topk

    size, count, length, chosen = 16, 13, 200, 8
    q, k = randn(1, length, 16, 32), randn(1, count, 1, 32)
    got = parallel_nsa_topk(q, k, length, None, chosen, size, 0.3)
    scores = torch.einsum("bihk,bjk->bihj", q.double(), k[:, :, 0].double()) * 0.3
    for t in range(length):
        now = t // size
        seen = scores[0, t, :, : (t + 1) // size]
        # A block in which the query stands counts in no sum, unless it ends there.
        weight = (scores[0, t, :, :now] - seen.logsumexp(-1, keepdim=True)).exp().sum(0)
        rest = weight[1 : max(now - 1, 1)].topk(min(chosen - 3, max(now - 2, 0))).indices + 1
        wanted = {0, max(now - 1, 0), now, *rest.tolist()}
        assert {x for x in got[0, t, 0].tolist() if x >= 0} == wanted, f"token {t}"


def gradients_of_chunks(
    q: torch.Tensor,
    k: torch.Tensor,
    w: torch.Tensor,
    g: torch.Tensor,
    do: torch.Tensor,
    dv: torch.Tensor,
    last: torch.Tensor,
    size: int,
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Of the states before each chunk, and of what is written, when a chunk makes of a state S
    `new = u - w S` and `exp(g_last) S + (k exp(g_last - g)) new`, with slopes for q exp(g) S,
    for `new` and for the last state. `g` is summed within chunks."""
    q, k, w, do, dv = (x.double().transpose(1, 2) for x in (q, k, w, do, dv))
    g = g.double().transpose(1, 2)[..., None]
    u = torch.zeros_like(dv).requires_grad_()
    states = [torch.zeros_like(last).double().requires_grad_()]
    loss = torch.zeros(()).double()
    for begin in range(0, q.shape[2], size):
        part = slice(begin, begin + size)
        end = g[:, :, part][:, :, -1:]
        new = u[:, :, part] - w[:, :, part] @ states[-1]
        read = (q[:, :, part] * g[:, :, part].exp()) @ states[-1]
        loss = loss + (read * do[:, :, part]).sum() + (new * dv[:, :, part]).sum()
        written = (k[:, :, part] * (end - g[:, :, part]).exp()).transpose(-1, -2) @ new
        states.append(states[-1] * end.exp() + written)
        states[-1].retain_grad()
    (loss + (states[-1] * last.double()).sum()).backward()
    slopes = [x.grad for x in (*states, u)]
    assert all(x is not None for x in slopes)
    found = [x for x in slopes if x is not None]
    return found[:-1], found[-1].transpose(1, 2)


def slopes(length: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Queries, keys, the keys that are read, the slopes of results and of values; and gates."""
    q, k, w, do, dv = inputs(32, 32, 32, 32, 32, length=length)
    g = F.logsigmoid(logits(1, length, 2))
    summed = torch.cat([x.cumsum(1) for x in g.split(64, 1)], 1)
    return [F.normalize(x, dim=-1) for x in (q, k, w)] + [do, dv], summed


def test_gradients_of_states_of_delta_products() -> None:
    from fla.ops.gated_delta_product.chunk_deltaproduct_h import chunk_gated_delta_product_bwd_dhu

    (q, k, w, do, dv), g = slopes(LENGTH)
    start, last = randn(1, 2, 32, 32), randn(1, 2, 32, 32, seed=1)
    dh, first, written = chunk_gated_delta_product_bwd_dhu(
        q, k, w, g / math.log(2), start, last, do, dv, 0.2
    )
    wanted, values = gradients_of_chunks(q * 0.2, k, w, g, do, dv, last, 64)
    close(first, wanted[0], factor=20)
    close(dh[:, 0], wanted[1], factor=20)
    close(dh[:, 1], wanted[2], factor=20)
    close(written, values, factor=20)


def test_gradients_that_devices_hand_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device's part of a sequence as a map of the last state's slope to the first one's."""
    from fla.ops.cp import chunk_delta_h

    sent: list[torch.Tensor] = []

    def gather(x: torch.Tensor, group: object) -> tuple[torch.Tensor, None]:
        sent.append(x)
        return x[None], None

    monkeypatch.setattr(chunk_delta_h.dist, "get_rank", lambda *_, **__: 1)
    monkeypatch.setattr(chunk_delta_h, "all_gather_into_tensor", gather)
    context = SimpleNamespace(group=object(), is_first_rank=False, is_last_rank=True)
    (q, k, w, do, dv), g = slopes(LENGTH)
    chunk_delta_h.chunk_gated_delta_rule_bwd_dhu_pre_process(
        q,
        k,
        w,
        do,
        dv,
        g / math.log(2),
        scale=0.2,
        cu_seqlens=torch.tensor([0, LENGTH]),
        context=context,
    )
    none, one = torch.zeros(1, 2, 32, 32), torch.eye(32).expand(1, 2, 32, 32)
    own = gradients_of_chunks(q * 0.2, k, w, g, do, dv, none, 64)[0][0]
    both = gradients_of_chunks(q * 0.2, k, w, g, do, dv, one, 64)[0][0]
    close(sent[0], torch.cat((own, both - own), -1)[0], factor=20)


def test_gradients_of_solved_chunks() -> None:
    """Keys and values of a chunk are those of a triangular system that keys before them make."""
    from fla.ops.kda.wy_fast import prepare_wy_repr_bwd

    size, length = 32, 50
    k, v, g, dw, du, dk, dg = inputs(40, 24, 40, 40, 24, 40, 40, length=length)
    beta, g = randn(1, length, 2).sigmoid(), F.logsigmoid(g + 3)
    below = torch.arange(size) < torch.arange(length)[:, None] % size
    triangle = randn(1, length, 2, size) / size**0.5 * below[:, None]
    inverse, loss = torch.zeros_like(triangle), torch.zeros(()).double()
    leaves = [x.double().requires_grad_() for x in (k, v, beta, g, triangle)]
    for begin in range(0, length, size):
        n = min(size, length - begin)
        key, value, step, fade, lower = (x[:, begin : begin + n].transpose(1, 2) for x in leaves)
        solved = torch.linalg.inv(torch.eye(n).double() + lower[..., :n])
        inverse[:, begin : begin + n, :, :n] = solved.detach().transpose(1, 2)
        kept, written = (x[:, begin : begin + n].transpose(1, 2) for x in (dw, du))
        loss = loss + (solved @ (key * step[..., None] * fade.exp()) * kept).sum()
        loss = loss + (solved @ (value * step[..., None]) * written).sum()
    loss.backward()
    got = prepare_wy_repr_bwd(k, v, beta, g / math.log(2), inverse, dk, dw, du, dg)
    for x, leaf, before in zip(got, leaves, (dk, 0, 0, dg, 0), strict=True):
        assert leaf.grad is not None
        wanted = leaf.grad * below[:, None] if leaf is leaves[-1] else leaf.grad
        close(x, wanted + before, factor=20)
