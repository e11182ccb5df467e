"""mamba-ssm: state spaces in chunks, norms, and what the third version adds to them."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from reference import close, compare_gradients, randn, rms_norm

LENGTH, HEADS, GROUPS, WIDTH, STATES, CHUNK = 80, 4, 2, 16, 16, 32


def recurrence(
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    first: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What a state space is: (batch, length, heads, width) step by step, and the last state."""
    b, c = (t.repeat_interleave(x.shape[2] // t.shape[2], 2) for t in (b, c))
    state = x.new_zeros(x.shape[0], x.shape[2], x.shape[3], b.shape[3]) if first is None else first
    found = []
    for t in range(x.shape[1]):
        decay = torch.exp(dt[:, t] * a)[..., None, None]
        state = state * decay + (dt[:, t, :, None] * x[:, t])[..., None] * b[:, t, :, None]
        found.append((state * c[:, t, :, None]).sum(-1))
    return torch.stack(found, 1), state


def inputs(length: int = LENGTH, batch: int = 2) -> list[torch.Tensor]:
    """x, dt, A, B, C."""
    return [
        randn(batch, length, HEADS, WIDTH),
        F.softplus(randn(batch, length, HEADS, seed=1) - 1),
        -randn(HEADS, seed=2).abs() - 0.2,
        randn(batch, length, GROUPS, STATES, seed=3),
        randn(batch, length, GROUPS, STATES, seed=4),
    ]


@pytest.mark.parametrize("gated", [False, True])
def test_scan(gated: bool) -> None:
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    d, first = randn(HEADS, WIDTH, seed=5), randn(2, HEADS, WIDTH, STATES, seed=6)
    more = [d, first, *([randn(2, LENGTH, HEADS, WIDTH, seed=7)] if gated else [])]

    def theirs(x: Any, dt: Any, a: Any, b: Any, c: Any, d: Any, first: Any, z: Any = None) -> Any:
        return mamba_chunk_scan_combined(x, dt, a, b, c, CHUNK, D=d, z=z, initial_states=first)

    def ours(x: Any, dt: Any, a: Any, b: Any, c: Any, d: Any, first: Any, z: Any = None) -> Any:
        y = recurrence(x, dt, a, b, c, first)[0] + x * d
        return y if z is None else y * F.silu(z)

    compare_gradients(theirs, ours, [*inputs(), *more], factor=50)


def test_scan_of_sequences_of_many_lengths() -> None:
    """The last state of each, with steps that are made positive on the way."""
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    x, _, a, b, c = inputs(batch=1)
    dt, bias = randn(1, LENGTH, HEADS, seed=8), randn(HEADS, seed=9)
    ends = [0, 20, 57, LENGTH]
    which = torch.cat([torch.full((n,), k) for k, n in enumerate((20, 37, 23))])[None].int()
    out, states = mamba_chunk_scan_combined(
        *(x, dt, a, b, c, CHUNK),
        dt_bias=bias,
        dt_softplus=True,
        seq_idx=which,
        cu_seqlens=torch.tensor(ends, dtype=torch.int32),
        return_varlen_states=True,
    )
    wide = [t.double() for t in (x, F.softplus(dt.double() + bias.double()), a, b, c)]
    for k, (low, high) in enumerate(pairwise(ends)):
        part = [t if t.dim() == 1 else t[:, low:high] for t in wide]
        y, last = recurrence(*part)
        close(out[:, low:high], y, factor=50)
        close(states[k], last[0], factor=50)


def chunked() -> dict[str, torch.Tensor]:
    """The parts of a scan of two whole chunks."""
    x, dt, a, b, c = inputs(2 * CHUNK)
    steps = dt.transpose(1, 2).unflatten(2, (2, CHUNK)).contiguous()
    return {
        "B": b, "C": c, "x": x, "dt": steps,
        "dA_cumsum": (steps * a[:, None, None]).cumsum(-1),
        "states": randn(2, 2, HEADS, WIDTH, STATES, seed=10),
    }  # fmt: skip


@pytest.mark.parametrize("gated", [False, True])
def test_scan_within_chunks(gated: bool) -> None:
    from mamba_ssm.ops.triton.ssd_chunk_scan import chunk_scan, chunk_scan_ref

    z = [randn(2, 2 * CHUNK, HEADS, WIDTH, seed=11)] if gated else []
    given = [*chunked().values(), randn(HEADS, WIDTH, seed=12), *z]
    compare_gradients(chunk_scan, chunk_scan_ref, given, factor=50)


def test_states_of_chunks() -> None:
    from mamba_ssm.ops.triton.ssd_chunk_state import chunk_state, chunk_state_ref

    p = chunked()
    given = [p[name] for name in ("B", "x", "dt", "dA_cumsum")]
    compare_gradients(chunk_state, chunk_state_ref, given, factor=50)


def test_gradient_of_steps_to_states() -> None:
    from mamba_ssm.ops.triton import ssd_chunk_state as state

    p = chunked()
    b, x, dt, sums = (p[name].double() for name in ("B", "x", "dt", "dA_cumsum"))
    steps = torch.diff(sums, prepend=torch.zeros_like(sums[..., :1])).requires_grad_()
    found = state.chunk_state_ref(b, x, dt, steps.cumsum(-1))
    (wanted,) = torch.autograd.grad(found, steps, p["states"].double())
    given = (p["B"], p["x"], p["dt"], p["dA_cumsum"], p["states"])
    close(state._chunk_state_bwd_ddAcs_stable(*given), wanted, factor=50)


def test_states_between_chunks() -> None:
    from mamba_ssm.ops.triton.ssd_state_passing import state_passing, state_passing_ref

    given = [randn(2, 3, HEADS, 40), -randn(2, HEADS, 3).abs(), randn(2, HEADS, 40)]
    for k in range(2):  # what each chunk begins with, and what is left in the end
        compare_gradients(
            lambda *t, k=k: state_passing(*t)[k],
            lambda *t, k=k: state_passing_ref(*t)[k],
            given,
            factor=10,
        )


def test_what_earlier_versions_of_kernels_give() -> None:
    """Two that stayed in the file, beside those in use. Of the first only what comes from states
    before a chunk is written; the rest is commented out."""
    from mamba_ssm.ops.triton import ssd_chunk_scan as scan
    from mamba_ssm.ops.triton.ssd_bmm import _bmm_chunk_fwd

    p = chunked()
    cb = _bmm_chunk_fwd(p["C"], p["B"], CHUNK)
    wide = [t.double() for t in p.values()]
    got = scan._chunk_scan_fwd_wip(cb, p["x"], p["dt"], p["dA_cumsum"], p["C"], p["B"], p["states"])
    nothing = torch.zeros_like(wide[2])
    close(got[0], scan.chunk_scan_ref(*wide[:2], nothing, *wide[3:]), factor=50)
    slope = randn(*p["x"].shape, seed=13)
    # The part of the gradient that comes from within a chunk, to steps and not to their sums.
    steps = torch.diff(wide[4], prepend=torch.zeros_like(wide[4][..., :1])).requires_grad_()
    within = scan.chunk_scan_ref(*wide[:4], steps.cumsum(-1), torch.zeros_like(wide[5]))
    (wanted,) = torch.autograd.grad(within, steps, slope.double())
    given = (p["x"], p["dt"], p["dA_cumsum"], slope, cb)
    for name in ("_chunk_scan_bwd_ddAcs_stable_old", "_chunk_scan_bwd_ddAcs_stable"):
        close(getattr(scan, name)(*given), wanted, factor=100)


def test_gradient_through_states_from_before() -> None:
    from mamba_ssm.ops.triton import ssd_chunk_scan as scan

    p = chunked()
    wide = [t.double() for t in p.values()]
    slope = randn(*p["x"].shape, seed=14)
    steps = wide[4].clone().requires_grad_()
    before = scan.chunk_scan_ref(*wide[:2], torch.zeros_like(wide[2]), wide[3], steps, wide[5])
    (wanted,) = torch.autograd.grad(before, steps, slope.double())
    got = scan._chunk_scan_bwd_ddAcs_prev(p["states"], p["C"], slope, p["dA_cumsum"])
    close(got, wanted, factor=50)


@pytest.mark.parametrize("residual", [False, True])
def test_layer_norm(residual: bool) -> None:
    from mamba_ssm.ops.triton.layer_norm import layer_norm_fn

    x, w, b = randn(6, 40), randn(40), randn(40, seed=2)
    more = [randn(6, 40, seed=1)] if residual else []
    compare_gradients(
        lambda x, w, b, r=None: layer_norm_fn(x, w, b, residual=r, eps=1e-5),
        lambda x, w, b, r=0: F.layer_norm(x + r, (40,), w, b, 1e-5),
        [x, w, b, *more],
    )


def test_rms_norm() -> None:
    from mamba_ssm.ops.triton.layer_norm import rms_norm_fn

    compare_gradients(
        lambda x, w: rms_norm_fn(x, w, None, eps=1e-5),
        lambda x, w: rms_norm(x, w, 1e-5),
        [randn(5, 48), randn(48)],
    )


def test_gated_activation() -> None:
    from mamba_ssm.ops.triton.k_activations import swiglu

    compare_gradients(
        swiglu, lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1], [randn(3, 5, 80)]
    )


# ---- the third version


def siso() -> Any:
    """Its own test file, which has the references: the tests in it are of sizes for a GPU."""
    import mamba_ssm

    root = Path(next(iter(mamba_ssm.__path__))).parent
    spec = spec_from_file_location("siso_references", root / "tests/ops/triton/test_mamba3_siso.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def near(got: torch.Tensor, wanted: torch.Tensor, most: float = 0.05) -> None:
    """Sums of numbers of 16 bits: as a whole they are off by little."""
    off = (got.double() - wanted.double()).norm() / wanted.double().norm()
    assert off < most, f"off by {off:.1%}"


NAMES = ("Q", "K", "V", "ADT", "DT", "Trap", "Q_bias", "K_bias", "Angles", "D", "Z")


def drawn(theirs: Any, length: int, sequences: torch.Tensor | None = None) -> dict[str, Any]:
    torch.manual_seed(3)
    batch = 2 if sequences is None else 1
    return theirs.create_mamba3_siso_inputs(
        batch, length, 4, 2, 32, 16, torch.bfloat16, "cpu", True, True, True, sequences, True
    )


def copied(given: dict[str, Any]) -> dict[str, Any]:
    """The same for the reference, in float32: it computes in what it is given."""
    states = tuple(s.detach().clone().float().requires_grad_() for s in given["Input_States"])
    rest = {n: given[n].detach().clone().float().requires_grad_() for n in NAMES}
    return {**rest, "Input_States": states}


def test_third_version_step_by_step() -> None:
    theirs = siso()
    given: dict[str, Any] = drawn(theirs, 4)
    given = {n: given[n].detach() for n in NAMES} | {
        "Input_States": tuple(s.detach() for s in given["Input_States"])
    }
    wide = [t.float() for t in (given[n] for n in NAMES)]
    wanted, last = theirs.mamba3_siso_step_ref(*wide, Input_States=given["Input_States"])
    states, found = given["Input_States"], []
    for t in range(4):
        at = [given[n][:, t].contiguous() for n in ("Q", "K", "V")]
        at += [given[n][:, :, t].contiguous() for n in ("ADT", "DT", "Trap")]
        at += [given["Q_bias"], given["K_bias"], given["Angles"][:, t].contiguous(), given["D"]]
        out, states = theirs.mamba3_siso_step(*at, given["Z"][:, t].contiguous(), states)
        found.append(out)
    near(torch.stack(found, 1), wanted)
    for got, right in zip(states, last, strict=True):
        near(got, right)


@pytest.mark.parametrize("many", [False, True])
def test_third_version(many: bool) -> None:
    """Many: sequences of several lengths, one after the other."""
    theirs = siso()
    ends = torch.tensor([0, 21, 48], dtype=torch.int32) if many else None
    given = drawn(theirs, 48, ends)
    wide = copied(given)
    lengths = {} if ends is None else {"cu_seqlens": ends}
    got, *states = theirs.mamba3_siso_combined(
        *(given[n] for n in NAMES), given["Input_States"], chunk_size=32, return_final_states=True,
        **lengths,
    )  # fmt: skip
    wanted, last = theirs.mamba3_siso_fwd_ref(
        *(wide[n] for n in NAMES), wide["Input_States"], **lengths
    )
    near(got, wanted)
    for a, b in zip(states, last, strict=True):
        near(a, b)
    slopes = [randn(*t.shape, seed=k) for k, t in enumerate((wanted, *last))]
    for results in ((got, *states), (wanted, *last)):
        torch.autograd.backward(
            results, [s.to(t.dtype) for s, t in zip(slopes, results, strict=True)]
        )
    for name in NAMES:
        near(given[name].grad, wide[name].grad, 0.1)
    for a, b in zip(given["Input_States"], wide["Input_States"], strict=True):
        near(a.grad, b.grad, 0.1)


def test_sums_of_segments() -> None:
    from mamba_ssm.ops.triton.mamba3 import mamba3_mimo_utils as u

    steps = -F.softplus(randn(2, 3, 64) - 3)
    for got, wanted in zip(
        u.compute_dacs_segsum_triton(steps, 16),
        u.compute_dacs_segsum_ref(steps.double(), 16),
        strict=True,
    ):
        close(got, wanted)


def test_gradients_of_sums_of_segments() -> None:
    from mamba_ssm.ops.triton.mamba3 import mamba3_mimo_utils as u

    d_sums, sums = randn(2, 3, 4, 16, 16), randn(2, 3, 64) / 10
    d_one, d_other, other = randn(2, 3, 64), randn(2, 3, 64, seed=1), randn(2, 3, 64, seed=2) / 10
    cut = sums.view(2, 3, 4, 16)
    got = u.bwd_dadt_fused_triton(
        d_sums, cut[..., None] - cut[..., None, :], d_one, d_other, sums, other, 16
    )
    wanted = u.bwd_segsum_ddt_from_dSSdA_ref(d_sums.double(), sums.double(), 16)
    wanted += u.bwd_ddt_from_ddA_cs_rev_ref(d_other.double(), other.double(), 16)
    wanted += u.bwd_ddt_from_ddA_cs_ref(d_one.double(), sums.double(), 16)
    close(got * -1.4426950408889634, wanted, factor=10)


def test_gradients_of_trapezoids() -> None:
    from mamba_ssm.ops.triton.mamba3 import mamba3_mimo_utils as u

    trap, dt = torch.rand(2, 3, 64).half(), F.softplus(randn(2, 3, 64) - 3)
    d_factor, d_diagonal = randn(2, 3, 64, seed=1) / 10, randn(2, 3, 64, seed=2) / 10
    got = u.bwd_dtrap_ddt_triton(trap, dt, d_factor, d_diagonal, 16)
    wanted = u.compute_dtrap_ddt_ref(
        d_factor.double(), d_diagonal.double(), trap.double(), dt.double()
    )
    for a, b in zip(got, wanted, strict=True):
        close(a, b, factor=10)


@pytest.mark.parametrize(
    "name",
    [
        "test_dacs_segsum_correctness_varlen",
        "test_bwd_dadt_fused_varlen_correctness",
        "test_dtrap_ddt_varlen_correctness",
    ],
)
def test_sequences_of_many_lengths(name: str) -> None:
    """Checks that the library has beside its kernels, of small sizes."""
    from mamba_ssm.ops.triton.mamba3 import mamba3_mimo_utils as u

    assert getattr(u, name)()


def test_sums_over_heads_of_groups() -> None:
    from mamba_ssm.ops.triton.mamba3.grouped_head_reduction import (
        reduce_grouped_qk_grads_and_bias_triton,
    )

    q, k = randn(2, 9, 3, 4, 20), randn(2, 9, 3, 4, 20, seed=1)
    got = reduce_grouped_qk_grads_and_bias_triton(q, k, 2)
    for x, grouped, bias in zip((q, k), got[:2], got[2:], strict=True):
        close(grouped, x.double().unflatten(3, (2, 2)).sum(4))
        close(bias, x.double().sum((0, 1)).transpose(0, 1))


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_rotation_while_decoding(pairs: bool, bias: bool) -> None:
    from mamba_ssm.ops.triton.mamba3 import mamba3_mimo_rotary_step as r

    q, k = (randn(2, 4, 3, 32, seed=s) for s in (0, 1))
    given = (q, k, randn(2, 3, 8), randn(2, 3, 8, seed=2), randn(2, 3))
    more: dict[str, Any] = {"conjugate": False, "rotate_pairwise": pairs}
    if bias:
        more |= {"bias_q": randn(4, 3, 32, seed=5), "bias_k": randn(4, 3, 32, seed=6)}
    wanted = r.apply_rotary_qk_inference_reference(*given, **more)
    got = r.apply_rotary_qk_inference_fwd(*given, **more, inplace=False)
    for a, b in zip(got, wanted, strict=True):
        close(a, b, factor=10)
