"""FlagGems: what its own tests reach only with tensors for a GPU, or leave out in their quick mode.

Its functions are called as such, not through torch's dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from reference import close, compare_gradients, randn, rotated, same

WIDE = randn(3, 2500)  # more than one block of each row
DEEP = randn(2, 300, 5)
LONG = randn(9000)
WHOLE = torch.randint(0, 700, (9000,), generator=torch.Generator().manual_seed(0))

# name: how it is called, and torch's function in float64 (or of integers)
REDUCTIONS: dict[str, tuple[Callable[[Any], Any], Callable[[], Any]]] = {
    "amax": (lambda g: g.amax(WIDE), lambda: WIDE.amax()),
    "max": (lambda g: g.max(WIDE), lambda: WIDE.max()),
    "min": (lambda g: g.min(WIDE), lambda: WIDE.min()),
    "argmax": (lambda g: g.argmax(WIDE), lambda: WIDE.argmax()),
    "argmin": (lambda g: g.argmin(WIDE), lambda: WIDE.argmin()),
    "count_nonzero": (lambda g: g.count_nonzero(WHOLE), lambda: WHOLE.count_nonzero()),
    "count_nonzero of rows": (
        lambda g: g.count_nonzero(WHOLE.view(3, 3000), 1),
        lambda: WHOLE.view(3, 3000).count_nonzero(1),
    ),
    "std": (lambda g: g.std(WIDE), lambda: WIDE.double().std()),
    "sum of columns": (lambda g: g.sum_dim(DEEP, [1]), lambda: DEEP.double().sum(1)),
    "sum of two dimensions": (
        lambda g: g.sum_dim(DEEP, [0, 2]), lambda: DEEP.double().sum((0, 2))
    ),
    "softmax of columns": (lambda g: g.softmax(DEEP, 1), lambda: DEEP.double().softmax(1)),
    "dot": (lambda g: g.dot(LONG, LONG.flip(0)), lambda: LONG.double() @ LONG.double().flip(0)),
    "cumsum": (lambda g: g.cumsum(randn(2, 20000), 1), lambda: randn(2, 20000).double().cumsum(1)),
    "cumsum of columns": (lambda g: g.cumsum(DEEP, 1), lambda: DEEP.double().cumsum(1)),
    "cumsum of long columns": (
        lambda g: g.cumsum(randn(4500, 2), 0), lambda: randn(4500, 2).double().cumsum(0)
    ),
    "masked_select": (
        lambda g: g.masked_select(LONG, LONG > 0.5), lambda: LONG.masked_select(LONG > 0.5)
    ),
    "isin": (
        lambda g: g.isin(torch.arange(13000), WHOLE),
        lambda: torch.isin(torch.arange(13000), WHOLE),
    ),
    "triu": (lambda g: g.triu(WIDE, 3), lambda: WIDE.triu(3)),
    "triu of many": (lambda g: g.triu(DEEP, -1), lambda: DEEP.triu(-1)),
    "diag": (lambda g: g.diag(randn(7, 9), 2), lambda: randn(7, 9).diag(2)),
    "eye": (lambda g: g.eye_m(5, 40), lambda: torch.eye(5, 40)),
    "kron": (
        lambda g: g.kron(randn(3, 5), randn(4, 2)),
        lambda: torch.kron(randn(3, 5).double(), randn(4, 2).double()),
    ),
    "linspace": (
        lambda g: g.linspace(-2.0, 5.0, 301), lambda: torch.linspace(-2, 5, 301).double()
    ),
    "logspace": (
        lambda g: g.logspace(-2.0, 1.0, 301), lambda: torch.logspace(-2, 1, 301).double()
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(REDUCTIONS))
def test_function(name: str) -> None:
    import flag_gems

    ours, reference = REDUCTIONS[name]
    got, wanted = ours(flag_gems), reference()
    close(got, wanted, factor=10)


@pytest.mark.parametrize("name", ["cummax", "cummin"])
@pytest.mark.parametrize("shape", [(9000,), (2, 5000), (5, 300, 7)], ids=str)
def test_running_extreme(name: str, shape: tuple[int, ...]) -> None:
    import flag_gems

    x = randn(*shape)
    dim = 1 if len(shape) > 1 else 0
    got, at = getattr(flag_gems, name)(x, dim)
    same(got, getattr(torch, name)(x, dim).values)
    same(x.gather(dim, at), got)


@pytest.mark.parametrize("ord", [2, float("inf"), -float("inf"), 0, 1, 3])
@pytest.mark.parametrize("dim", [None, [1]], ids=str)
def test_vector_norm(ord: float, dim: list[int] | None) -> None:
    import flag_gems

    x = randn(3, 700)
    got = flag_gems.vector_norm(x, ord, dim)
    close(got, torch.linalg.vector_norm(x.double(), ord, dim), factor=10)


def test_var_mean() -> None:
    import flag_gems

    got = flag_gems.var_mean(WIDE)
    wanted = torch.var_mean(WIDE.double())
    for a, b in zip(got, wanted, strict=True):
        close(a.view(()), b)


def test_dot_of_complex_numbers() -> None:
    import flag_gems

    x, y = (torch.complex(randn(300, seed=s), randn(300, seed=s + 1)) for s in (0, 2))
    got = flag_gems.vdot(x, y)
    wanted = torch.vdot(x.to(torch.complex128), y.to(torch.complex128))
    close(torch.view_as_real(got), torch.view_as_real(wanted), factor=10)


def test_gradient_of_softmax_of_columns() -> None:
    import flag_gems

    x = DEEP.double().requires_grad_()
    slope = randn(*DEEP.shape, seed=3)
    (wanted,) = torch.autograd.grad(x.softmax(1), x, slope.double())
    got = flag_gems.softmax_backward(slope, x.softmax(1).detach().float(), 1, torch.float32)
    close(got, wanted)


@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("size", [300, 9000])
def test_unique(size: int, inverse: bool, counts: bool) -> None:
    import flag_gems

    x = WHOLE[:size]
    got = flag_gems._unique2(x, True, inverse, counts)
    values, at, count = torch.unique(x, return_inverse=True, return_counts=True)
    same(got[0], values)
    if inverse:
        same(got[1], at)
    if counts:
        same(got[2], count)


@pytest.mark.parametrize("width", [40, 300, 5000])
def test_instance_norm(width: int) -> None:
    import flag_gems

    compare_gradients(
        lambda x, w, b: flag_gems.instance_norm(x, w, b),
        lambda x, w, b: F.instance_norm(x, None, None, w, b),
        [randn(2, 3, width), randn(3), randn(3, seed=1)],
        factor=10,
    )


@pytest.mark.parametrize("fresh", [False, True])
def test_instance_norm_with_running_statistics(fresh: bool) -> None:
    import flag_gems

    x, mean, var = randn(2, 3, 40), randn(3), randn(3, seed=1).abs()
    known = [mean.clone(), var.clone()]
    wide = [mean.double(), var.double()]
    got = flag_gems.instance_norm(x, None, None, *known, fresh)
    close(got, F.instance_norm(x.double(), *wide, use_input_stats=fresh), factor=10)
    if fresh:
        for a, b in zip(known, wide, strict=True):
            close(a, b)


@pytest.mark.parametrize("width", [40, 300, 5000])
def test_layer_norm(width: int) -> None:
    import flag_gems

    x, w, b = randn(3, width), randn(width), randn(width, seed=1)
    got, mean, _ = flag_gems.layer_norm(x, [width], w, b, 1e-5)
    close(got, F.layer_norm(x.double(), (width,), w.double(), b.double(), 1e-5))
    close(mean.flatten(), x.double().mean(1))


def weight_norm(v: torch.Tensor, g: torch.Tensor, dim: int) -> torch.Tensor:
    others = [d for d in range(v.ndim) if d != dim]
    return v * g / v.square().sum(others, keepdim=True).sqrt()


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_weight_norm(dim: int) -> None:
    import flag_gems

    shape = [1, 1, 1]
    shape[dim] = (4, 6, 10)[dim]
    compare_gradients(
        lambda v, g: flag_gems.weight_norm(v, g, dim),
        lambda v, g: weight_norm(v, g, dim),
        [randn(4, 6, 10), randn(*shape)],
        factor=10,
    )


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy(reduction: str, smoothing: float) -> None:
    import flag_gems

    labels = torch.tensor([[3, 0, 49], [-100, 7, 8]])
    weight = randn(50, seed=2).abs()
    compare_gradients(
        lambda x: flag_gems.cross_entropy_loss(
            x, labels, weight, reduction, label_smoothing=smoothing
        ),
        lambda x: F.cross_entropy(
            x, labels, weight.double(), reduction=reduction, label_smoothing=smoothing
        ),
        [randn(2, 50, 3)],
    )


@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_negative_likelihood_of_images(reduction: int) -> None:
    import flag_gems

    x, labels = randn(2, 5, 1, 7), WHOLE[:14].view(2, 1, 7) % 5
    labels[0, 0, 3] = -100
    weight = randn(5, seed=1).abs()
    got, total = flag_gems.nll_loss2d_forward(x, labels, weight, reduction, -100)
    wide = x.double().requires_grad_()
    how = ("none", "mean", "sum")[reduction]
    wanted = F.nll_loss(wide, labels, weight.double(), reduction=how)
    close(got, wanted.detach())
    slope = randn(*got.shape, seed=4)
    wanted.backward(slope.double())
    back = flag_gems.nll_loss2d_backward(slope, x, labels, weight, reduction, -100, total)
    assert wide.grad is not None
    close(back, wide.grad)


def test_dropout() -> None:
    """What is left is scaled; how much is left is near its mean."""
    import flag_gems

    got, mask = flag_gems.dropout(LONG, 0.4, True)
    close(got, torch.where(mask.bool(), LONG.double() / 0.6, 0.0))
    assert abs(mask.double().mean() - 0.6) < 0.03


@pytest.mark.parametrize("pairs", [False, True])
def test_rotary_in_place(pairs: bool) -> None:
    import flag_gems

    angle = torch.arange(7)[:, None] * torch.linspace(0.1, 1, 16).double()
    q, k = randn(2, 7, 4, 32), randn(2, 7, 2, 32)
    got = q.clone(), k.clone()
    flag_gems.apply_rotary_pos_emb(
        *got, angle.cos().float(), angle.sin().float(), None, pairs, inplace=True
    )
    for x, y in zip((q, k), got, strict=True):
        close(y, rotated(x, angle.cos()[:, None], angle.sin()[:, None], pairs))


def test_tokens_of_experts_in_blocks() -> None:
    import flag_gems

    experts, block = 5, 4
    ids = (WHOLE[:22] % experts).view(11, 2).int()
    rows, of, padded = flag_gems.moe_align_block_size(ids, block, experts)
    at = 0
    for e in range(experts):
        mine = (ids.flatten() == e).nonzero().flatten()
        size = -(-len(mine) // block) * block
        found = rows[at : at + size]
        same(found[found < 22].sort().values, mine)
        assert (of[at // block : (at + size) // block] == e).all()
        at += size
    assert padded.item() == at


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_product_in_waves(dtype: torch.dtype) -> None:
    """More tiles than multiprocessors: some are shared, the rest are whole."""
    from flag_gems.ops.mm_streamk import streamk_mm

    a, b = randn(384, 256, dtype=dtype) / 16, randn(256, 256, dtype=dtype)
    got = streamk_mm(a, b, torch.zeros(384, 256, dtype=dtype), 384, 256, 256, sm_count=4)
    close(got, a.double() @ b.double())


@pytest.mark.parametrize("size", [123, 1000, 3000])
def test_permutation(size: int) -> None:
    import flag_gems

    got = flag_gems.randperm(size, dtype=torch.int64)
    same(got.sort().values, torch.arange(size))
    assert not torch.equal(got, torch.arange(size))


@pytest.mark.parametrize("size", [(7, 15), (20, 15)], ids=str)
def test_bicubic_with_filter(size: tuple[int, int]) -> None:
    import flag_gems

    x = randn(1, 2, 12, 10)
    got = flag_gems._upsample_bicubic2d_aa(x, size, False)
    wanted = F.interpolate(x.double(), size, mode="bicubic", align_corners=False, antialias=True)
    close(got, wanted, factor=10)


def test_gradient_of_maximal_pool() -> None:
    import flag_gems

    x = randn(2, 3, 9, 8)
    got, at = flag_gems.max_pool2d_with_indices(x, 3, 2, 1)
    wide = x.double().requires_grad_()
    wanted, where = F.max_pool2d(wide, 3, 2, 1, return_indices=True)
    close(got, wanted.detach())
    same(at, where)
    slope = randn(*got.shape, seed=1)
    wanted.backward(slope.double())
    assert wide.grad is not None
    close(flag_gems.max_pool2d_backward(slope, x, at, 3, 2, 1, 1, False), wide.grad)


def test_gradients_of_attention() -> None:
    """Of causal attention: its gradients never ask whether it is."""
    import flag_gems

    seen = torch.ones(128, 128).bool().tril()

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.transpose(-1, -2) / 32**0.5
        return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v

    compare_gradients(
        lambda q, k, v: flag_gems.ScaleDotProductAttention.apply(q, k, v, None, 0.0, True),
        reference,
        [randn(1, 2, 128, 32, seed=s, dtype=torch.float16) for s in range(3)],
        factor=2,
    )


def test_latent_attention() -> None:
    """One query of each sequence, over keys in pages; values are the first part of each key."""
    import flag_gems

    lengths = torch.tensor([50, 130], dtype=torch.int32)
    heads, d, dv, block = 4, 96, 64, 64
    table = torch.tensor([[2, 0, 4], [1, 3, 5]], dtype=torch.int32)
    q = randn(2, 1, heads, d, dtype=torch.bfloat16)
    keys = randn(6, block, 1, d, dtype=torch.bfloat16)
    got = flag_gems.flash_mla(q, table, keys, 192, block, 2, 1, lengths, heads, 1, d, dv, True)
    for n in range(2):
        k = keys[table[n].long()].reshape(-1, d)[: lengths[n]].double()
        weights = (q[n, 0].double() @ k.T / d**0.5).softmax(-1)
        close(got.view(2, heads, dv)[n], weights @ k[:, :dv])


def test_normed_running_sum() -> None:
    """Of rows in one part: for more it asks a string for its name."""
    import flag_gems

    x = randn(2, 3000).abs()
    wide = x.double().cumsum(1)
    close(flag_gems.normed_cumsum(x), wide / wide[:, -1:], factor=10)


def test_running_sum_of_partial_sums() -> None:
    """A function that nothing else in the library calls."""
    from importlib import import_module

    x = randn(9000)
    out = torch.empty_like(x)
    import_module("flag_gems.ops.cumsum").scan_then_fan_col(x, out, 9000, torch.float32)
    close(out, x.double().cumsum(0), factor=10)


def test_offsets_of_flat_indices() -> None:
    from flag_gems.utils.shape_utils import offset_calculator

    x = torch.zeros(4, 6)
    got = offset_calculator(x, torch.arange(24, dtype=torch.int32).view(4, 6), [1, 7], 0, False)
    at = torch.arange(24).view(4, 6)
    same(got, at % 4 + at // 4 % 6 * 7)


def test_blocks_of_a_batch() -> None:
    """How many blocks of queries and of keys each sequence has, and into how many they are split.
    The function that launches these asks for properties of GPUs; they are launched as it does."""
    from flag_gems.ops.get_scheduler_metadata import _prepare_pass1_kernel, _prepare_pass2_kernel

    lengths = torch.tensor([100, 5, 260], dtype=torch.int32)
    m, n, total, splits = (torch.zeros(k, dtype=torch.int32) for k in (3, 3, 1, 3))
    _prepare_pass1_kernel[(1,)](
        m, n, total, lengths, None, None, None, None, lengths, None, 3, 2, max_seqlen_q=70,
        max_seqlen_k_new=0, BLOCK_M=64, BLOCK_N=32, BLOCK_SIZE_B=4, HAS_CU_SEQLENS_Q=False,
        HAS_CU_SEQLENS_K=False, HAS_SEQUSED_Q=False, HAS_SEQUSED_K=True, HAS_LEFT_PAD=False,
        HAS_K_NEW=False, HAS_CU_SEQLENS_K_NEW=False,
    )  # fmt: skip
    same(m, torch.tensor([3, 3, 3]))
    same(n, torch.tensor([4, 1, 9]))
    assert total.item() == 3 * 14
    _prepare_pass2_kernel[(1,)](n, splits, 42, 3, 2, 40, 8, BLOCK_SIZE_B=4)
    each = -(-42 * 1.1 * 2 // 40)  # blocks of one multiprocessor
    same(splits, torch.ceil(n / each).clamp(1, 8).int())
