"""SGLang: attention of video models: frames as a recurrence, blocks of keys that are chosen."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from reference import attention, close, randn, rotated, same
from sglang_parts import drawn, function, ints, longs, mixed, sums, uniform

SANA = "diffusion.attention.sana_wm_gdn_chunkwise_triton"
CHOSEN = "diffusion.attention.sparse_linear_attn_triton"
BLOCKS = ".multimodal_gen.runtime.layers.attention.backends.subblock_sparse.kernels"
SEGMENTS = "attention.linear.seg_la"


# ---- frames of pictures, forwards and backwards

FRAMES, PLACES, HEADS, WIDE = 3, 40, 2, 56
TOKENS = FRAMES * PLACES
SCALE = (WIDE * PLACES) ** -0.5


def frames(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    decay: torch.Tensor,
    first: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """q, k, v (tokens, heads, width), beta (heads, frames, places), decay (heads, frames), the
    state (heads, keys, values): a frame corrects what the state says of its keys, all at once.
    A query sees its own frame, those before it, and by a second scan those after it."""
    q, k, v = (x.double().unflatten(0, (FRAMES, -1)) for x in (q, k, v))

    def step(state: torch.Tensor, f: int) -> torch.Tensor:
        old = state * decay[:, f].double()[:, None, None]
        new = v[f] - torch.einsum("shk,hkv->shv", k[f], old)
        return old + torch.einsum("shk,shv,hs->hkv", k[f], new, beta[:, f].double())

    state, later, seen = first.double(), torch.zeros_like(first, dtype=torch.float64), []
    for f in range(FRAMES):
        state = step(state, f)
        seen.append(state)
    for f in range(FRAMES - 1, 0, -1):
        later = step(later, f)
        seen[f - 1] = seen[f - 1] + later
    out = [torch.einsum("shk,hkv->shv", q[f], seen[f]) for f in range(FRAMES)]
    return torch.cat(out), state


def drawn_frames() -> tuple[torch.Tensor, torch.Tensor]:
    return uniform(2, HEADS, FRAMES, PLACES), uniform(2, HEADS, FRAMES) / 2 + 0.5


@pytest.mark.parametrize("parts", ["1", "4"])
@pytest.mark.parametrize("narrow", [False, True])
def test_frames(parts: str, narrow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHASE_B_D_SPLITS", parts)
    x = randn(2, TOKENS, 3, HEADS, WIDE)
    beta, decay = drawn_frames()
    u, w = uniform(HEADS * WIDE) + 0.5, uniform(HEADS * WIDE, seed=1) + 0.5
    turn = torch.polar(torch.ones(TOKENS, WIDE // 2), randn(TOKENS, WIDE // 2))
    path = "diffusion.attention.sana_wm_gdn_triton"
    roots = function(path, "fused_qk_inv_rms")(x, 1e-5)
    for k in range(2):
        close(roots[k], (x[:, :, k].double().square().mean((-1, -2)) + 1e-5).rsqrt())
    tables = function(path, "prepare_rope_tables")(turn[None, None], TOKENS, WIDE, None)
    given = x, *roots, u, w, *tables, beta, decay
    first, flat = torch.zeros(2, HEADS, 64, 64), torch.zeros(2, HEADS, 64)
    if narrow:
        got, last = function(path, "fused_bigdn_func")(*given, FRAMES, PLACES, SCALE), None
    else:
        first[..., :WIDE, :WIDE], flat[..., :WIDE] = randn(WIDE, WIDE) / 9, uniform(WIDE)
        got, *last = function(SANA, "fused_bigdn_bidi_chunkwise")(
            *given, FRAMES, PLACES, SCALE, dot_precision=2, init_state_kv=first,
            init_state_z=flat, return_final_state=True,
        )  # fmt: skip
    for b in range(2):
        q, k, v = x[b].double().unbind(1)
        q, k = (
            (y * s[b].double()[:, None, None] * z.view(HEADS, WIDE)).relu()
            for y, s, z in zip((q, k), roots, (u, w), strict=True)
        )
        k = k * SCALE
        at, to = (rotated(y, turn.real[:, None], turn.imag[:, None], True) for y in (q, k))
        above, state = frames(at, to, v, beta[b], decay[b], first[b, :, :WIDE, :WIDE])
        ones = torch.ones(TOKENS, HEADS, 1)
        below, total = frames(q, k, ones, beta[b], decay[b], flat[b, :, :WIDE, None])
        wanted = above / (below + 1e-6)
        close(got[b].bfloat16() if narrow else got[b], wanted)
        if last:
            close(last[0][b], state.transpose(1, 2))
            close(last[1][b], total)


@pytest.mark.parametrize("parts", ["1", "4"])
def test_frames_of_cameras(parts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what stands above the line; queries and keys are taken as they are."""
    monkeypatch.setenv("PHASE_B_D_SPLITS", parts)
    q, k, v = (randn(2, HEADS, WIDE, TOKENS, seed=s) for s in range(3))
    beta, decay = drawn_frames()
    got = function(SANA, "cam_scan_bidi_chunkwise")(q, k * SCALE, v, beta, decay, dot_precision=2)
    for b in range(2):
        at, to, of = (y[b].permute(2, 0, 1) for y in (q, k * SCALE, v))
        wanted, _ = frames(at, to, of, beta[b], decay[b], torch.zeros(HEADS, WIDE, WIDE))
        close(got[b], wanted.permute(1, 2, 0))


# ---- blocks of keys that a query looks at


@pytest.mark.parametrize("long", [320, 290])
def test_chosen_blocks(long: int) -> None:
    q, k, v = (randn(2, 2, long, 64, seed=s) for s in range(3))
    chosen, table, count = function(CHOSEN, "get_block_map")(q, k, 0.6)
    means = [torch.stack([b.mean(-2) for b in x.double().split(64, -2)], -2) for x in (q, k)]
    close(function(CHOSEN, "mean_pool")(q, 64), means[0])
    centred = means[1] - k.double().mean(-2, keepdim=True)
    best = (means[0] @ centred.transpose(-1, -2)).topk(3).indices
    assert count == 3
    same(chosen, torch.zeros(2, 2, 5, 5).scatter_(-1, best, 1))
    out, lse = torch.empty_like(v), torch.empty(2, 2, long)
    function(CHOSEN, "_attn_fwd")[(5, 4)](q, k, v, 0.2, count, table, lse, out, long, 5, 64, 64, 64)
    there = chosen.bool().repeat_interleave(64, -1).repeat_interleave(64, -2)
    bias = torch.zeros(2, 2, long, long).masked_fill(~there[..., :long, :long], -torch.inf)
    close(out, attention(q, k, v, 0.2, bias=bias))
    scores = q.double() @ k.double().transpose(-1, -2) * 0.2 + bias
    close(lse, scores.logsumexp(-1) / torch.tensor(2.0).double().log())


def test_means_of_cells() -> None:
    x, out = randn(2, 70, 3, 128, dtype=torch.bfloat16), torch.empty(6, 5, 128).bfloat16()
    function(BLOCKS, "fused_pool")(x, 5, 16, out, 0.3)
    cells = [c.mean(1) for c in x.double().split(16, 1)]
    close(out.view(2, 3, 5, 128), torch.stack(cells, 2) * 0.3)


@pytest.mark.parametrize("n", [1, 2])
def test_scores_of_cells(n: int) -> None:
    """Queries in 20 groups of n cells, keys in 40 of 4; the last cells hold no token."""
    q = randn(3, 20 * n, 128, dtype=torch.bfloat16) / 8
    k, out = randn(3, 160, 128, dtype=torch.bfloat16) / 8, torch.empty(3, 20, 40)
    queries, keys = 20 * n - n + 1, 149
    function(BLOCKS, "fused_scores")(q, k, out, n_k=4, n_valid=keys, n_q=n, m_valid=queries)
    scores = q.double() @ k.double().transpose(1, 2) * torch.tensor(2.0).double().log()
    scores[:, queries:], scores[:, :, keys:] = -torch.inf, -torch.inf
    wanted = scores.view(3, 20, n, 40, 4).transpose(2, 3).flatten(3).logsumexp(-1)
    close(out[..., :38], wanted[..., :38])
    assert (out[..., 38:] < -1e29).all()


@pytest.mark.parametrize("count", [3, 30])
def test_best_groups(count: int) -> None:
    # Whole numbers, each once: there is one right answer.
    scores = torch.stack([mixed(70, seed=s) for s in range(5)]).float()
    got = function(BLOCKS, "fused_topk")(scores, count)
    same(got.sort(-1).values, scores.topk(count).indices.sort(-1).values)


# ---- linear attention over trees of drafts


@pytest.mark.parametrize("nodes", [16, 11])
def test_trees(nodes: int) -> None:
    """A node sees its ancestors and the state before the tree, faded by how far they are."""
    heads, deep, rates = 2, 64, torch.tensor([0.05, 0.3])
    q, k, v = (randn(2 * nodes, heads, deep, seed=s) for s in range(3))
    state, parents = randn(5, heads, deep, deep), drawn(99, 2, nodes)
    seen = torch.eye(nodes).repeat(2, 1, 1)
    for b in range(2):
        for n in range(1, nodes):
            seen[b, n] += seen[b, parents[b, n] % n]
    about = SimpleNamespace(
        batch_size=2, s_offsets=longs(4, 2), q_offsets=sums((nodes, nodes))[:2],
        q_lengths=ints(nodes, nodes), s_scales=torch.tensor([1.0, 0.0]), mask=seen.int(),
    )  # fmt: skip
    got = function(SEGMENTS, "seg_la_fwd")(q, k, v, state, rates, about, softmax_scale=0.1)
    deeper = seen.double().sum(-1)
    for b, slot in ((0, 4), (1, None)):
        part = slice(b * nodes, (b + 1) * nodes)
        far = deeper[b][:, None] - deeper[b][None]
        fade = (-rates.double()[:, None, None] * far).exp() * seen[b]
        pairs = torch.einsum("thk,shk->hts", q[part].double(), k[part].double()) * fade
        wanted = torch.einsum("hts,shv->thv", pairs, v[part].double())
        if slot is not None:
            old = (-rates.double()[None, :, None] * deeper[b][:, None, None]).exp()
            wanted += torch.einsum("thk,hkv->thv", q[part].double(), state[slot].double()) * old
        close(got[part], wanted * 0.1, factor=10)
