"""SGLang: states that are written rarely, and recovered from the last few inputs in between."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from recurrent import delta_rule, unit
from reference import close, randn, same
from sglang_parts import function, ints, sums, uniform

KEYS, VALUES, WIDE, DEEP = 2, 4, 32, 48  # heads of keys and of values, and how wide they are
FLA, STEPS = "attention.fla", "fused_recurrent_linear_replayssm"


def decay(raw: torch.Tensor, log: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Of each head, or of each channel of it."""
    rate = -log.double().exp()
    return (rate if raw.ndim == 2 else rate[:, None]) * F.softplus(raw.double() + bias)


@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize("forced", [False, True])
def test_single_steps(channels: bool, forced: bool) -> None:
    ring, slots = 4, ints(4, -1, 2)
    gate = (VALUES, WIDE) if channels else (VALUES,)
    log, bias, state = randn(VALUES) / 4, randn(*gate), randn(6, VALUES, DEEP, WIDE)
    caches = (
        torch.zeros(6, VALUES, ring, DEEP),
        torch.zeros(6, KEYS, ring, WIDE),
        torch.zeros(6, VALUES, ring, *gate[1:]),
    )
    written, true = state.clone(), state.double()
    at, out = ints(0, 0, 0), torch.empty(3, 1, VALUES, DEEP)
    for step in range(6):
        x = randn(3, 2 * KEYS * WIDE + VALUES * DEEP, seed=step)
        a, b = randn(3, *gate, seed=step), randn(3, VALUES, seed=step)
        now = ints(0, 0, int(step == 1))
        function(f"{FLA}.{STEPS}", f"{STEPS}_decode")(
            x, a, b, log, bias, 0.5, state, *caches, out, slots, at, now if forced else None,
            use_qk_l2norm_in_kernel=True, is_kda=channels,
        )  # fmt: skip
        assert (out[1] == 0).all()
        q, k, v = x.split((KEYS * WIDE, KEYS * WIDE, VALUES * DEEP), 1)
        for row in (0, 2):
            slot = slots[row]
            wanted, true[slot] = delta_rule(
                unit(q[row].view(1, KEYS, WIDE)) / 2, unit(k[row].view(1, KEYS, WIDE)),
                v[row].view(1, VALUES, DEEP), decay(a[row][None], log, bias),
                b[row].sigmoid()[None], true[slot],
            )  # fmt: skip
            close(out[row], wanted, factor=10)
            # The state is written when the ring is full, and where it is asked for.
            full = at[row] == ring - 1 or (forced and now[row] != 0)
            if full:
                close(state[slot], true[slot], factor=10)
                written[slot] = state[slot]
            at[row] = 0 if full else at[row] + 1
        same(state, written)


# ---- drafts, of which a part is accepted


def test_cursors() -> None:
    path = f"{FLA}.gdn_replayssm_spec_decode"
    at, base, full = ints(5, 9, 7, 2), ints(1, 3, 12, 4), torch.tensor([1, 0, 1, 0]).to(torch.int8)
    slots = ints(3, 0, 2, 1)
    function(path, "commit_gdn_replayssm_spec")(at, base, full, ints(2, 4, 3, 1), slots, 16, 4)
    # Slot 2 began anew: what it held is in the state. Slot 0 stands for no request.
    same(at, ints(5, 10, 3, 4))
    same(base, ints(1, 3, (12 + 7) % 16, 4))
    same(full, ints(1, 1, 0, 0))
    function(path, "reset_gdn_replayssm_spec_cursors")(
        at, base, full, ints(1, 1, 0, 1), slots, 16, 9
    )
    same(at, ints(5, 0, 3, 0))
    same(base, ints(1, 0, 3, 0))
    same(full, ints(1, 1, 0, 1))


def test_windows_of_drafts() -> None:
    path, ring, most = f"{FLA}.gdn_replayssm_spec_decode", 16, 4
    log, bias, state = randn(VALUES) / 4, randn(VALUES), randn(4, VALUES, DEEP, WIDE)
    deltas, raw = (torch.zeros(4, VALUES, ring, DEEP) for _ in range(2))
    keys, plain = (torch.zeros(4, KEYS, ring, WIDE) for _ in range(2))
    gates, betas = (torch.zeros(4, VALUES, ring) for _ in range(2))
    at, base, full = ints(0, 0, 0, 0), ints(0, 0, 14, 5), torch.zeros(4, dtype=torch.int8)
    slots, written, true = ints(3, 0, 2), state.clone(), state.double()
    for step, (lengths, accepted) in enumerate(
        (
            ((4, 2, 3), (4, 1, 2)),
            ((3, 3, 4), (3, 1, 4)),
            ((4, 4, 4), (2, 2, 1)),
            ((4, 1, 2), (3, 1, 2)),
        )
    ):
        total = sum(lengths)
        q, k = (randn(total, KEYS, WIDE, seed=2 * step + s) for s in range(2))
        v, a, b = (randn(total, VALUES, *s, seed=step) for s in ((DEEP,), (), ()))
        out, began = torch.ones(total, VALUES, DEEP), full.clone()
        function(path, "gdn_replayssm_spec_decode")(
            q, k, v, a, b, log, bias, state, deltas, keys, gates, raw, plain, betas, out,
            sums(lengths), slots, at, base, full, ring, most, scale=0.5,
        )  # fmt: skip
        parts = zip(*(x.split(lengths) for x in (q, k, v, a, b, out)), strict=True)
        for row, (qs, ks, vs, gs, bs, got) in enumerate(parts):
            slot = slots[row]
            if slot == 0:
                assert (got == 0).all()
                continue
            if began[slot]:
                close(state[slot], true[slot], factor=10)
                written[slot] = state[slot]
            each: list[torch.Tensor] = []
            wanted, _ = delta_rule(
                unit(qs) / 2,
                unit(ks),
                vs,
                decay(gs, log, bias),
                bs.sigmoid(),
                true[slot],
                states=each,
            )
            close(got, wanted, factor=10)
            true[slot] = each[accepted[row] - 1]
        same(state, written)
        function(path, "commit_gdn_replayssm_spec")(
            at, base, full, ints(*accepted), slots, ring, most
        )
    assert full.tolist() == [0, 0, 1, 0]
    assert (written != randn(4, VALUES, DEEP, WIDE)).any()


@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize("tracked", [False, True])
def test_accepted_drafts(channels: bool, tracked: bool) -> None:
    """Of all layers at once; the state after one of the steps may be wanted in another slot."""
    layers, ring, slots, accepted = 2, 5, ints(4, -1, 2, 3), ints(5, 2, 3, 0)
    state = randn(layers, 6, VALUES, DEEP, WIDE)
    v, k = randn(layers, 6, VALUES, ring, DEEP), randn(layers, 6, KEYS, ring, WIDE)
    g = -uniform(layers, 6, VALUES, ring, *((WIDE,) if channels else ()))
    beta, wanted = uniform(layers, 6, VALUES, ring, seed=1), state.clone()
    for layer in range(layers):
        for slot, count, other, step in ((4, 5, 1, 2), (2, 3, 0, 2)):
            each: list[torch.Tensor] = []
            vs, gs, bs = (x[layer, slot].transpose(0, 1) for x in (v, g, beta))
            keys = unit(k[layer, slot].transpose(0, 1))[:count]
            delta_rule(keys, keys, vs, gs, bs, state[layer, slot], states=each)
            wanted[layer, slot] = each[count - 1]
            if tracked:
                wanted[layer, other] = each[step]
    path, name = ("gdn_replayssm_spec_fold", "commit_gdn_replayssm_fold_all_layers")
    if channels:
        path, name = ("kda_replayssm_spec_decode", "commit_kda_replayssm_spec_all_layers")
    more = {"mamba_track_indices": ints(1, 5, 0, 5), "mamba_steps_to_track": ints(2, 1, 2, 0)}
    function(f"{FLA}.{path}", name)(
        state, v, k, g, beta, slots, accepted, ring, KEYS, null_block_id=-1,
        **(more if tracked else {}),
    )  # fmt: skip
    close(state, wanted)
