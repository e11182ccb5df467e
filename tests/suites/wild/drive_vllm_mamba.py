"""vLLM: states of spaces, convolutions over time, and linear attention with decay."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from drive_vllm import LAYERS, function, ints
from drive_vllm_drafts import longs
from reference import close, randn, same

OPS = LAYERS + "mamba.ops."


def scanned(
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(token, head, width), (token, head), (head,), (token, group, n), state (head, width, n)."""
    each = x.shape[1] // b.shape[1]
    x, dt, a, state = x.double(), dt.double(), a.double(), state.double()
    b, c = (y.double().repeat_interleave(each, 1) for y in (b, c))
    out = []
    for t in range(len(x)):
        new = torch.einsum("hp,hn->hpn", x[t] * dt[t][:, None], b[t])
        state = state * (dt[t] * a).exp()[:, None, None] + new
        out.append(torch.einsum("hpn,hn->hp", state, c[t]))
    return torch.stack(out), state


@pytest.mark.parametrize("begun", [False, True])
def test_scan_in_chunks(begun: bool) -> None:
    """Two sequences of 40 and 25 tokens, in chunks of 16 that end with each of them."""
    x, dt, a = randn(65, 4, 16), randn(65, 4) / 2, -torch.rand(4)
    b, c = randn(65, 2, 16, seed=1), randn(65, 2, 16, seed=2)
    d, z, bias = randn(4), randn(65, 4, 16, seed=3), randn(4) / 2
    initial = randn(2, 4, 16, 16) if begun else None
    out, ends, last = torch.zeros_like(x), ints(0, 16, 32, 40, 56, 65), ints(2, 4)
    sums, steps = function(OPS + "ssd_chunk_state", "_chunk_cumsum_fwd")(
        dt, a, 16, ends, dt_bias=bias, dt_softplus=True
    )
    states = function(OPS + "ssd_chunk_state", "_chunk_state_fwd")(b, x, steps, sums, ends)
    states = function(OPS + "ssd_state_passing", "_state_passing_fwd")(
        states.flatten(-2), sums, last, None if initial is None else initial.flatten(-2),
        out_dtype=torch.float32,
    ).unflatten(-1, (16, 16))  # fmt: skip
    inner = function(OPS + "ssd_bmm", "_bmm_chunk_fwd")(c, b, 16, ends, output_dtype=torch.float32)
    function(OPS + "ssd_chunk_scan", "_chunk_scan_fwd")(
        inner, x, steps, sums, c, states, ends, out, ints(0, 0, 0, 1, 1), D=d, z=z,
        initial_states=initial,
    )  # fmt: skip
    step = F.softplus(dt.double() + bias)
    for n, of in enumerate((slice(0, 40), slice(40, 65))):
        start = torch.zeros(4, 16, 16) if initial is None else initial[n]
        y, end = scanned(x[of], step[of], a, b[of], c[of], start)
        y = (y + x[of].double() * d.double()[:, None]) * F.silu(z[of].double())
        close(out[of], y, 20)
        close(states[last[n]], end, 20)


def test_one_step_of_the_scan() -> None:
    state, x, dt = randn(5, 4, 16, 16), randn(3, 4, 16), randn(3, 4)
    a, b, c = -torch.rand(4), randn(3, 2, 16), randn(3, 2, 16, seed=1)
    d, z, bias, out = randn(4, 16), randn(3, 4, 16, seed=1), randn(4), torch.zeros(3, 4, 16)
    old, where = state.clone(), ints(2, 0, 4)
    function(OPS + "mamba_ssm", "selective_state_update")(
        state, x, dt[..., None].expand(-1, -1, 16), a[:, None, None].expand(-1, 16, 16), b, c, d,
        bias[:, None].expand(-1, 16), z=z, dt_softplus=True, state_batch_indices=where, out=out,
    )  # fmt: skip
    step = F.softplus(dt.double() + bias)
    for row in (0, 2):  # row 1 is no request
        at = int(where[row])
        args = (t[row : row + 1] for t in (x, step))
        y, last = scanned(*args, a=a, b=b[row : row + 1], c=c[row : row + 1], state=old[at])
        close(state[at], last)
        close(out[row], (y[0] + x[row].double() * d) * F.silu(z[row].double()))
    same(state[0], old[0])


def test_steps_that_are_replayed() -> None:
    """The state stays until a flush: what came since then is kept, and replayed."""
    state = randn(4, 4, 16, 16)
    first = state.clone()
    kept = torch.zeros(4, 4, 4, 16), torch.zeros(4, 4, 4), torch.zeros(4, 2, 4, 16)
    a, d, bias, where = -torch.rand(4), randn(4, 16), randn(4), ints(2, 3)
    x, dt = randn(4, 2, 4, 16), randn(4, 2, 4)
    b, c = randn(4, 2, 2, 16), randn(4, 2, 2, 16, seed=1)
    forward = function(OPS + "selective_state_update_replayssm_output_only",
                       "selective_state_update_replayssm_output_only")  # fmt: skip
    got = []
    for t in range(4):
        out = torch.zeros(2, 4, 16)
        forward(
            state, x[t], dt[t][..., None].expand(-1, -1, 16),
            a[:, None, None].expand(-1, 16, 16), b[t], c[t], d, bias[:, None].expand(-1, 16),
            dt_softplus=True, x_cache=kept[0], dt_cache=kept[1], B_cache=kept[2],
            bc_pre=torch.zeros(2, 2, 4), write_pos=ints(t, t), is_flush=torch.tensor([t == 3] * 2),
            max_cache_len=4, state_batch_indices=where, out=out,
        )  # fmt: skip
        got.append(out)
        if t < 3:
            same(state, first)
    step = F.softplus(dt.double() + bias)
    for row, at in enumerate(where.tolist()):
        y, last = scanned(x[:, row], step[:, row], a, b[:, row], c[:, row], first[at])
        close(torch.stack(got)[:, row], y + x[:, row].double() * d, 10)
        close(state[at], last, 10)


def test_states_of_some_requests() -> None:
    kernel = function(OPS + "gather_initial_states", "_gather_initial_states_kernel")
    state, where = randn(5, 3, 24), ints(2, 4, 0)
    has, out = torch.tensor([True, False, True]), torch.ones(3, 72)
    kernel[(2, 3)](state, where, has, out, 72, 1, 1, row_size=72, BLOCK_SIZE=64, launch_pdl=False)
    same(out, state.view(5, 72)[where.long()] * has[:, None])


# ---- convolutions


def convolved(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, past: torch.Tensor) -> tuple:
    """(channel, token) after (channel, width - 1) of the past; and what is past then."""
    whole = torch.cat((past, x), 1)
    y = F.conv1d(whole.double()[None], w.double()[:, None], b.double(), groups=len(w))[0]
    return F.silu(y), whole[:, -past.shape[1] :]


def test_convolution_of_prompts() -> None:
    x, w, b = randn(7, 24), randn(24, 4), randn(24)
    states = randn(5, 3, 24).transpose(1, 2)  # channels are neighbours
    old, where = states.clone(), ints(3, 1)
    got = function(OPS + "causal_conv1d", "causal_conv1d_fn")(
        x.clone().T, w, b, states, ints(0, 5, 7), where, torch.tensor([True, False])
    )
    for n, of in enumerate((slice(0, 5), slice(5, 7))):
        past = old[3] if n == 0 else torch.zeros(24, 3)
        y, last = convolved(x[of].T, w, b, past)
        close(got[:, of], y)
        same(states[int(where[n])], last)


@pytest.mark.parametrize("length", [1, 2])
def test_convolution_of_new_tokens(length: int) -> None:
    x, w, b = randn(3, 24, length), randn(24, 4), randn(24)
    states = randn(5, 3, 24).transpose(1, 2)
    old, where = states.clone(), ints(3, 1, 4)
    given = x[..., 0].clone() if length == 1 else x.clone()
    got = function(OPS + "causal_conv1d", "causal_conv1d_update")(
        given, states, w, b, "silu", conv_state_indices=where
    )
    for n, at in enumerate(where.tolist()):
        y, last = convolved(x[n], w, b, old[at])
        close(got[n].view(24, length), y)
        same(states[at], last)


# ---- linear attention with decay


def decayed(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slope: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(head, token, width); a state (head, k, v)."""
    q, k, v, state = q.double(), k.double(), v.double(), state.double()
    decay, out = (-slope.double()).exp()[:, None, None], []
    for t in range(q.shape[1]):
        state = state * decay + k[:, t, :, None] * v[:, t, None, :]
        out.append(torch.einsum("hk,hkv->hv", q[:, t], state))
    return torch.stack(out, 1), state


def test_linear_attention_of_prompts() -> None:
    """In blocks of 256: what is before a block counts as one step nearer."""
    q, k, v = (randn(1, 2, 300, 64, seed=s) / 8 for s in range(3))
    slope, past = torch.tensor([0.1, 0.5]), randn(1, 2, 64, 64)
    got, state = function(LAYERS + "lightning_attn", "lightning_attention")(
        q, k, v, slope, kv_history=past
    )
    at = torch.arange(300)
    steps = (at[:, None] - at - (at[:, None] // 256 != at // 256).long()).double()
    seen = at[:, None] >= at
    decay = torch.where(seen, (-slope.double()[:, None, None] * steps).exp(), 0.0)
    out = (q[0].double() @ k[0].double().transpose(1, 2) * decay) @ v[0].double()
    fade = (-slope.double()[:, None, None] * at[:, None]).exp()
    close(got[0], out + q[0].double() @ past[0].double() * fade, 10)
    _, last = decayed(q[0], k[0], v[0], slope, past[0])
    close(state[0, :, -1], last, 10)


def test_linear_attention_of_new_tokens() -> None:
    q, k, v = (randn(3, 2, 1, 64, seed=s) for s in range(3))
    slope, cache, where = torch.tensor([0.1, 0.5]), randn(5, 2, 64, 64), longs(3, -1, 1)
    old, got = cache.clone(), torch.zeros_like(q)
    function(LAYERS + "lightning_attn", "_linear_attn_decode_kernel")[(3, 2, 2)](
        q, k, v, cache, slope, where, got, 64, *q.stride()[:2], *cache.stride(), pad_slot_id=-1,
        BLOCK_SIZE=32,
    )  # fmt: skip
    for row in (0, 2):
        out, last = decayed(q[row], k[row], v[row], slope, old[where[row]])
        close(got[row], out, 10)
        close(cache[where[row]], last)


def test_linear_attention_of_drafts() -> None:
    q, k, v = (randn(4, 2, 32, seed=s) for s in range(3))
    slope, cache = torch.tensor([0.1, 0.5]), randn(6, 2, 32, 32)
    old, where = cache.clone(), ints(1, 2, 3, 4).view(2, 2)
    got = function(LAYERS + "mamba.linear.bailing_linear_attn",
                   "bailing_linear_attention_decode_spec")(
        q, k, v, cache, slope, where, ints(0, 2, 4), ints(2, 1), 0, 4, 0, 2, 32,
    )  # fmt: skip
    for row, first in enumerate((2, 3)):
        of, state = slice(2 * row, 2 * row + 2), old[first]
        x = [y[of].transpose(0, 1) for y in (q, k, v)]
        out, _ = decayed(*x, slope=slope, state=state)
        close(got[of].view(2, 2, 32), out.transpose(0, 1), 10)
        for t in range(2):
            _, state = decayed(*(y[:, t : t + 1] for y in x), slope=slope, state=state)
            close(cache[where[row, t]], state)
