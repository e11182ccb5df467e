"""SGLang: the delta rule of drafts, of which some tokens are kept and others are not."""

# pyright: reportMissingImports=false
from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from reference import close, randn, same
from sglang_parts import delta_rule, function, ints, longs, sums, unit

FLA = "attention.fla"
H, HV, K, V = 2, 4, 32, 48  # heads of keys and of values, and their widths


class Tokens:
    """Inputs of the delta rule, with gates as layers make them: one number for each head, or one
    for each key."""

    def __init__(self, count: int, keyed: bool, seed: int = 0) -> None:
        self.q, self.k = (randn(count, H, K, seed=seed + s) for s in (1, 2))
        self.v = randn(count, HV, V, seed=seed + 3)
        shape = (HV, K) if keyed else (HV,)
        self.a, self.b = randn(count, *shape, seed=seed + 4), randn(count, HV, seed=seed + 5)
        self.log, self.bias = randn(HV) / 2, randn(*shape)
        rate = self.log.double().exp()
        self.x = (self.a + self.bias).double()
        self.rate = rate[:, None] if keyed else rate
        self.g = -self.rate * F.softplus(self.x)
        self.beta = self.b.double().sigmoid()

    def rule(self, chosen: list[int], state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Results and the last state of some tokens, one after the other."""
        if not chosen:
            return torch.zeros(0, HV, V).double(), state.double()
        at = torch.tensor(chosen)
        q, k = unit(self.q[at]) / 2, unit(self.k[at])
        return delta_rule(q, k, self.v[at], self.g[at], self.beta[at], state)


# ---- within chunks


def chunks_of(lengths: tuple[int, ...]) -> list[slice]:
    found, at = [], 0
    for n in lengths:
        found += [slice(at + c, at + min(c + 64, n)) for c in range(0, n, 64)]
        at += n
    return found


def drawn_chunks(lengths: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    total = sum(lengths)
    q, k = (unit(randn(1, total, H, K, seed=s)).float() for s in range(2))
    beta, v = randn(1, total, H).sigmoid(), randn(1, total, H, V)
    g = F.logsigmoid(randn(1, total, H, K)) / 4
    for part in chunks_of(lengths):
        g[:, part] = g[:, part].cumsum(1)
    return q, k, v, g, beta


def faded(a: torch.Tensor, b: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """Products of rows with those before them, by head, which fade with each step."""
    past = (g.double()[:, None] - g.double()).clamp(max=0).exp2()
    return torch.einsum("ihk,jhk,ijhk->hij", a.double(), b.double(), past)


@pytest.mark.parametrize("lengths", [(79,), (70, 9)])
@pytest.mark.parametrize("safe", [False, True])
def test_inverses_within_chunks(lengths: tuple[int, ...], safe: bool) -> None:
    q, k, v, g, beta = drawn_chunks(lengths)
    apart = sums(lengths).long() if len(lengths) > 1 else None
    w, u, _, last, products, inverse = function(f"{FLA}.chunk_intra", "chunk_kda_fwd_intra")(
        q, k, v, g, beta, 0.5, apart, safe_gate=safe
    )
    for part in chunks_of(lengths):
        n = part.stop - part.start
        weight = beta[0, part].double().T[:, :, None]
        lower = (faded(k[0, part], k[0, part], g[0, part]) * weight).tril(-1)
        wanted = torch.linalg.inv(torch.eye(n).double() + lower)
        close(inverse[0, part].transpose(0, 1)[..., :n], wanted, 5)
        found = products[0, part].transpose(0, 1)[..., :n].tril()
        close(found, faded(q[0, part], k[0, part], g[0, part]).tril() / 2, 5)
        values, keys, fade = (x[0, part].double().transpose(0, 1) for x in (v, k, g))
        close(u[0, part].transpose(0, 1), wanted @ (values * weight), 5)
        close(w[0, part].transpose(0, 1), wanted @ (keys * weight * fade.exp2()), 5)
        close(last[0, part].transpose(0, 1), keys * (fade[:, -1:] - fade).exp2(), 5)


@pytest.mark.parametrize("lengths", [(79,), (70, 9)])
def test_products_within_chunks(lengths: tuple[int, ...]) -> None:
    q, k, _, g, beta = drawn_chunks(lengths)
    apart = sums(lengths).long() if len(lengths) > 1 else None
    found = function(f"{FLA}.kda", "chunk_kda_scaled_dot_kkt_fwd")(
        q, k, g / 2, beta, 0.5, 2.0, apart
    )
    for part in chunks_of(lengths):
        keys, rows = k[0, part], g[0, part]
        lower = (faded(keys, keys, rows) * beta[0, part].double().T[:, :, None]).tril(-1)
        for got, wanted in zip(
            found, (lower, faded(q[0, part], keys, rows).tril() / 2), strict=True
        ):
            close(got[0, part].transpose(0, 1)[..., : wanted.shape[-1]], wanted, 5)


# ---- steps that make their gates


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("bound", [None, -5.0])
def test_steps(keyed: bool, bound: float | None) -> None:
    x, lengths, slots = Tokens(7, keyed), (4, 1, 2), ints(3, -1, 0)
    if bound is not None:
        x.g = bound * torch.sigmoid(x.rate * x.x)
    state = randn(5, HV, V, K)
    before = state.clone()
    got = function(f"{FLA}.fused_sigmoid_gating_recurrent", "fused_sigmoid_gating_delta_rule_update")(
        x.log, x.a.flatten(1), x.bias, 1.0, 20.0, x.q[None], x.k[None], x.v[None], x.b, state, slots,
        0.5, True, sums(lengths).long(), keyed, bound,
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
    got = function(f"{FLA}.fused_sigmoid_gating_recurrent", "fused_sigmoid_gating_delta_rule_update")(
        x.log, x.a.flatten(1), x.bias, 1.0, 20.0, x.q.view(2, 4, H, K), x.k.view(2, 4, H, K),
        x.v.view(2, 4, HV, V), x.b, state, slots, 0.5, True, is_kda=keyed, disable_state_update=True,
        intermediate_states_buffer=each, intermediate_state_indices=ints(2, 0), cache_ring=True,
        replayssm_rawv=raw_v, replayssm_rawk=raw_k, replayssm_g=raw_g, replayssm_beta=raw_b, **more,
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


# ---- states that are behind, and tokens that make up for it


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("forced", [False, True])
def test_states_written_seldom(keyed: bool, forced: bool) -> None:
    x, slots, most = Tokens(18, keyed), ints(4, -1, 2), 4
    state = randn(5, HV, V, K)
    before, at = state.clone(), ints(0, 0, 0)
    d, k = torch.zeros(5, HV, most, V), torch.zeros(5, H, most, K)
    g = torch.zeros(5, HV, most, K) if keyed else torch.zeros(5, HV, most)
    known = before.double()
    for step in range(6):
        rows = [3 * step + n for n in range(3)]
        mixed = torch.cat([y[rows].flatten(1) for y in (x.q, x.k, x.v)], 1)
        flush = ints(0, 0, int(step == 1)) if forced else None
        out = torch.full((3, 1, HV, V), torch.nan)
        function(f"{FLA}.fused_recurrent_linear_replayssm", "fused_recurrent_linear_replayssm_decode")(
            mixed, x.a[rows].contiguous(), x.b[rows], x.log, x.bias, 0.5, state, d, k, g, out, slots,
            at, flush, True, keyed,
        )  # fmt: skip
        assert (out[1] == 0).all()
        for n, slot in ((0, 4), (2, 2)):
            wanted, last = x.rule([3 * s + n for s in range(step + 1)], before[slot])
            close(out[n, 0], wanted[-1], 5)
            if at[n] == most - 1 or (flush is not None and flush[n]):
                known[slot], at[n] = last, 0
            else:
                at[n] += 1
        close(state, known, 5)


def test_drafts_in_a_ring() -> None:
    """Rounds of drafts of which the first few are accepted. A state is behind by those tokens that
    the ring has, until there is no room for more."""
    path, most, longest = f"{FLA}.gdn_replayssm_spec_decode", 8, 3
    x, slots = Tokens(42, False), ints(3, 0, 1)  # there is nobody in slot 0
    state = randn(4, HV, V, K)
    before = state.clone()
    d, raw_v = torch.zeros(4, HV, most, V), torch.zeros(4, HV, most, V)
    k, raw_k = torch.zeros(4, H, most, K), torch.zeros(4, H, most, K)
    g, raw_b = torch.zeros(4, HV, most), torch.zeros(4, HV, most)
    written, first, full = ints(9, 9, 9, 9), ints(5, 5, 5, 5), torch.ones(4, dtype=torch.int8)
    cursors = written, first, full
    function(path, "reset_gdn_replayssm_spec_cursors")(
        *cursors, ints(1, 1, 1), slots, most, longest
    )
    assert [y.tolist() for y in cursors] == [[9, 0, 9, 0], [5, 0, 5, 0], [1, 0, 1, 0]]
    taken: dict[int, list[int]] = {3: [], 1: []}
    at, flushes = 0, 0
    for lengths, accepted in (
        ((3, 1, 2), (2, 1, 2)), ((3, 1, 3), (1, 0, 3)), ((2, 1, 3), (2, 1, 1)),
        ((3, 1, 1), (3, 1, 1)), ((3, 1, 3), (3, 1, 2)), ((1, 1, 3), (1, 1, 3)),
    ):  # fmt: skip
        rows = slice(at, at + sum(lengths))
        flushes += int(full[3]) + int(full[1])
        out = torch.full((sum(lengths), HV, V), torch.nan)
        function(path, "gdn_replayssm_spec_decode")(
            x.q[rows], x.k[rows], x.v[rows], x.a[rows], x.b[rows], x.log, x.bias, state, d, k, g,
            raw_v, raw_k, raw_b, out, sums(lengths), slots, *cursors, most, longest, 0.5,
        )  # fmt: skip
        starts = sums(lengths).tolist()
        for n, slot in enumerate(slots.tolist()):
            window = list(range(at + starts[n], at + starts[n + 1]))
            if slot == 0:
                assert (out[starts[n] : starts[n + 1]] == 0).all()
                continue
            wanted, _ = x.rule(taken[slot] + window, before[slot])
            close(out[starts[n] : starts[n + 1]], wanted[-len(window) :], 10)
            taken[slot] += window[: accepted[n]]
        function(path, "commit_gdn_replayssm_spec")(*cursors, ints(*accepted), slots, most, longest)
        for slot, tokens in taken.items():
            _, wanted = x.rule(tokens[: len(tokens) - int(written[slot])], before[slot])
            close(state[slot], wanted, 10)
        at += sum(lengths)
    assert flushes >= 2
    same(state[0], before[0])


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("tracked", [False, True])
def test_accepted_tokens(keyed: bool, tracked: bool) -> None:
    """Of two layers; a state on the way may be kept in another slot."""
    layers, most, slots, accepted = 2, 4, ints(3, -1, 1, 2), ints(3, 2, 4, 0)
    others, steps = ints(4, 4, -1, 4), ints(1, 0, 2, 0)
    x = [[Tokens(most, keyed, 10 * n + 100 * layer) for n in range(4)] for layer in range(layers)]
    state = randn(layers, 5, HV, V, K)
    before = state.double()
    v, k = torch.zeros(layers, 5, HV, most, V), torch.zeros(layers, 5, H, most, K)
    g, b = (
        torch.zeros(layers, 5, HV, most, *((K,) if keyed else ())),
        torch.zeros(layers, 5, HV, most),
    )
    wanted = before.clone()
    for layer in range(layers):
        for n, slot in enumerate(slots.tolist()):
            some = x[layer][n]
            if slot < 0:
                continue
            parts = zip((v, k, g, b), (some.v, some.k, some.g, some.beta), strict=True)
            for ring, rows in parts:
                ring[layer, slot] = rows.transpose(0, 1)
            length = int(accepted[n])
            wanted[layer, slot] = some.rule(list(range(length)), before[layer, slot])[1]
            if tracked and length and others[n] >= 0:
                until = list(range(int(steps[n]) + 1))
                wanted[layer, others[n]] = some.rule(until, before[layer, slot])[1]
    more = (others, steps) if tracked else (None, None)
    if keyed:
        path, name = f"{FLA}.kda_replayssm_spec_decode", "commit_kda_replayssm_spec_all_layers"
    else:
        path, name = f"{FLA}.gdn_replayssm_spec_fold", "commit_gdn_replayssm_fold_all_layers"
    copy = state.clone()
    function(path, name)(state, v, k, g, b, slots, accepted, most, H, *more, null_block_id=-1)
    close(state, wanted)
    if keyed:
        function(path, "commit_kda_replayssm_spec")(
            copy[1], v[1], k[1], g[1], b[1], slots, accepted, most, H, *more, null_block_id=-1
        )
        close(copy[1], wanted[1])


def test_half_a_step() -> None:
    """A ring of one token is the rule itself."""
    x, state, slots = Tokens(2, False), randn(3, HV, V, K), longs(2, 0)
    before = state.clone()
    mixed = torch.cat([y.flatten(1) for y in (x.q, x.k, x.v)], 1)
    out = torch.empty(2, 1, HV, V)
    function(f"{FLA}.fused_recurrent_linear_replayssm", "fused_recurrent_linear_replayssm_decode")(
        mixed, x.a, x.b, x.log, x.bias, 0.5, state, torch.zeros(3, HV, 1, V),
        torch.zeros(3, H, 1, K), torch.zeros(3, HV, 1), out, slots, ints(0, 0), None, True,
    )  # fmt: skip
    for n, slot in enumerate(slots.tolist()):
        wanted, last = x.rule([n], before[slot])
        close(out[n], wanted)
        close(state[slot], last)
