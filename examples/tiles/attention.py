"""Attention without the matrix of scores, forward and backward, causal or not.

softmax(q k' * scale) v has T x T scores in the middle: more memory than all the rest together. A
program takes a block of queries and walks along the keys. Of the softmax it keeps, per query, the
largest score so far and the sum of exponentials; when a larger score comes, what was summed is
scaled down. The scores of one block of keys live in the cache and nowhere else.

For the way back the forward pass leaves one number per query: the logarithm of its sum, with which
any score's share is computed again. With p the shares and do the gradient of the result,

    dv = p' do,   dp = do v',   ds = p * (dp - rows of sum(do * out)),   dq = ds k,   dk = ds' q

Each sum has one program that owns it. Where there are heads for all threads a program takes a whole
head, a block of keys after the other, and computes every score once for all three gradients; those
of the queries are added up in memory. Where there are few heads, one kernel walks along the queries
for a block of keys (dk, dv) and one along the keys for a block of queries (dq): seven products
instead of five, but as many programs as there are blocks. Exponentials are powers of two
throughout, so that scores are multiplied by log2(e) once, together with the scale.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

import tilewright as tw
import tilewright.language as tl
from examples.tiles.measuring import Case, Verdict, computed, curve, judge

LOG2_E = 1.4426950408889634
QUERIES, KEYS = 64, 128  # of the blocks of a program


@tw.jit
def rows_of(x, rows, T, D: tl.constexpr):
    """Whole rows of a head; zeros beyond its end."""
    at = x + rows[:, None] * D + tl.arange(0, D)[None, :]
    return tl.load(at, mask=(rows < T)[:, None], other=0.0)


@tw.jit
def columns_of(x, rows, T, D: tl.constexpr):
    """The same rows as columns. A tile is stored as the product that it goes into reads it: what is
    read both ways is loaded both ways, from the cache, which is cheaper than turning it."""
    at = x + rows[None, :] * D + tl.arange(0, D)[:, None]
    return tl.load(at, mask=(rows < T)[None, :], other=0.0)


@tw.jit
def store_rows(x, rows, T, values, D: tl.constexpr):
    at = x + rows[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(at, values.to(x.dtype.element_ty), mask=(rows < T)[:, None])


@tw.jit
def attend(
    sums,
    total,
    largest,
    q_block,
    k,
    v,
    rows,
    first,
    last,
    T,
    scale,
    D: tl.constexpr,
    KEYS: tl.constexpr,
    CAUSAL: tl.constexpr,
    ASK: tl.constexpr,
):
    """Keys from first to last, added to what a block of queries knows. ASK: some are not seen."""
    for start in range(first, last, KEYS):
        keys = start + tl.arange(0, KEYS)
        scores = tl.dot(q_block, columns_of(k, keys, T, D)) * scale
        if ASK:
            seen = (keys < T)[None, :]
            if CAUSAL:
                seen = seen & (keys[None, :] <= rows[:, None])
            scores = tl.where(seen, scores, -float("inf"))
        # Every query sees key 0, in the first block: from then on the largest is a number.
        higher = tl.maximum(largest, tl.max(scores, axis=1))
        shares = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(largest - higher)
        total = total * shrink + tl.sum(shares, axis=1)
        values = rows_of(v, keys, T, D)
        sums = tl.dot(shares.to(values.dtype), values, sums * shrink[:, None])
        largest = higher
    return sums, total, largest


@tw.jit
def forward_kernel(
    q,
    k,
    v,
    out,
    logs,
    T,
    scale,
    D: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    start = tl.program_id(0) * QUERIES
    head = tl.program_id(1).to(tl.int64)
    rows = start + tl.arange(0, QUERIES)
    q_block = rows_of(q + head * T * D, rows, T, D)
    k += head * T * D
    v += head * T * D
    sums = tl.zeros((QUERIES, D), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    largest = tl.full((QUERIES,), -float("inf"), tl.float32)
    # Blocks of which every query sees every key come first; they need no questions.
    if CAUSAL:
        whole = start // KEYS * KEYS
        end = tl.minimum(start + QUERIES, T)
    else:
        whole = T // KEYS * KEYS
        end = T
    sums, total, largest = attend(
        sums, total, largest, q_block, k, v, rows, 0, whole, T, scale, D, KEYS, CAUSAL, False
    )
    sums, total, largest = attend(
        sums, total, largest, q_block, k, v, rows, whole, end, T, scale, D, KEYS, CAUSAL, True
    )
    store_rows(out + head * T * D, rows, T, sums / total[:, None], D)
    tl.store(logs + head * T + rows, largest + tl.log2(total), mask=rows < T)


@tw.jit
def products_kernel(out, dout, products, rows, D: tl.constexpr, ROWS: tl.constexpr):
    """sum(do * out) of every row."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    both = rows_of(out, row, rows, D).to(tl.float32) * rows_of(dout, row, rows, D)
    tl.store(products + row, tl.sum(both, axis=1), mask=row < rows)


@tw.jit
def shares_of(scores, logs, rows, keys, T, CAUSAL: tl.constexpr):
    """Exponentials over their sums. Rows and keys beyond the end have zeros for q, do, k and v, so
    nothing of theirs reaches a sum: no mask is needed for them."""
    shares = tl.exp2(scores - tl.load(logs + rows, mask=rows < T, other=0.0))
    if CAUSAL:
        shares = tl.where(keys <= rows, shares, 0.0)
    return shares


@tw.jit
def heads_kernel(
    q,
    k,
    v,
    dout,
    logs,
    products,
    dq,
    dk,
    dv,
    T,
    scale,
    dscale,
    D: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """All gradients of a head; dq holds zeros at the start."""
    head = tl.program_id(0).to(tl.int64)
    start_of_head = head * T * D
    for first in range(0, T, KEYS):
        keys = first + tl.arange(0, KEYS)
        # What only depends on the keys is turned and scaled once for all queries.
        k_columns = columns_of(k + start_of_head, keys, T, D)
        v_columns = columns_of(v + start_of_head, keys, T, D)
        k_scaled = (rows_of(k + start_of_head, keys, T, D) * dscale).to(k.dtype.element_ty)
        dk_sums = tl.zeros((KEYS, D), tl.float32)
        dv_sums = tl.zeros((KEYS, D), tl.float32)
        begin = 0
        if CAUSAL:  # earlier queries do not see these keys
            begin = first // QUERIES * QUERIES
        for start in range(begin, T, QUERIES):
            rows = start + tl.arange(0, QUERIES)
            q_block = rows_of(q + start_of_head, rows, T, D)
            dout_block = rows_of(dout + start_of_head, rows, T, D)
            scores = tl.dot(q_block, k_columns) * scale
            shares = shares_of(scores, logs + head * T, rows[:, None], keys[None, :], T, CAUSAL)
            dv_sums = tl.dot(tl.trans(shares.to(dout_block.dtype)), dout_block, dv_sums)
            product = tl.load(products + head * T + rows, mask=rows < T, other=0.0)
            dscores = shares * (tl.dot(dout_block, v_columns) - product[:, None])
            dscores = dscores.to(q_block.dtype)
            dk_sums = tl.dot(tl.trans(dscores), q_block, dk_sums)
            dq_sums = rows_of(dq + start_of_head, rows, T, D)
            dq_sums = tl.dot(dscores, k_scaled, dq_sums)
            store_rows(dq + start_of_head, rows, T, dq_sums, D)
        store_rows(dv + start_of_head, keys, T, dv_sums, D)
        store_rows(dk + start_of_head, keys, T, dk_sums * dscale, D)


@tw.jit
def keys_kernel(
    q,
    k,
    v,
    dout,
    logs,
    products,
    dk,
    dv,
    T,
    scale,
    dscale,
    D: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    first = tl.program_id(0) * KEYS
    head = tl.program_id(1).to(tl.int64)
    keys = first + tl.arange(0, KEYS)
    k_block = rows_of(k + head * T * D, keys, T, D)
    v_block = rows_of(v + head * T * D, keys, T, D)
    dk_sums = tl.zeros((KEYS, D), tl.float32)
    dv_sums = tl.zeros((KEYS, D), tl.float32)
    begin = 0
    if CAUSAL:  # earlier queries do not see these keys
        begin = first // QUERIES * QUERIES
    for start in range(begin, T, QUERIES):
        rows = start + tl.arange(0, QUERIES)
        # Everything is [keys, queries] here, so that the sums have keys as rows without turning.
        scores = tl.dot(k_block, columns_of(q + head * T * D, rows, T, D)) * scale
        shares = shares_of(scores, logs + head * T, rows[None, :], keys[:, None], T, CAUSAL)
        dout_block = rows_of(dout + head * T * D, rows, T, D)
        dv_sums = tl.dot(shares.to(dout_block.dtype), dout_block, dv_sums)
        dshares = tl.dot(v_block, columns_of(dout + head * T * D, rows, T, D))
        product = tl.load(products + head * T + rows, mask=rows < T, other=0.0)
        dscores = shares * (dshares - product[None, :])
        q_block = rows_of(q + head * T * D, rows, T, D)
        dk_sums = tl.dot(dscores.to(q_block.dtype), q_block, dk_sums)
    store_rows(dv + head * T * D, keys, T, dv_sums, D)
    store_rows(dk + head * T * D, keys, T, dk_sums * dscale, D)


@tw.jit
def queries_kernel(
    q,
    k,
    v,
    dout,
    logs,
    products,
    dq,
    T,
    scale,
    dscale,
    D: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    first = tl.program_id(0) * QUERIES
    head = tl.program_id(1).to(tl.int64)
    rows = first + tl.arange(0, QUERIES)
    q_block = rows_of(q + head * T * D, rows, T, D)
    dout_block = rows_of(dout + head * T * D, rows, T, D)
    product = tl.load(products + head * T + rows, mask=rows < T, other=0.0)
    dq_sums = tl.zeros((QUERIES, D), tl.float32)
    end = T
    if CAUSAL:
        end = tl.minimum(first + QUERIES, T)
    for start in range(0, end, KEYS):
        keys = start + tl.arange(0, KEYS)
        scores = tl.dot(q_block, columns_of(k + head * T * D, keys, T, D)) * scale
        shares = shares_of(scores, logs + head * T, rows[:, None], keys[None, :], T, CAUSAL)
        dshares = tl.dot(dout_block, columns_of(v + head * T * D, keys, T, D))
        dscores = shares * (dshares - product[:, None])
        k_block = rows_of(k + head * T * D, keys, T, D)
        dq_sums = tl.dot(dscores.to(k_block.dtype), k_block, dq_sums)
    store_rows(dq + head * T * D, rows, T, dq_sums * dscale, D)


def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of contiguous [batch, heads, T, D]: the result, and a logarithm per query."""
    batch, heads, T, D = q.shape
    out, logs = torch.empty_like(q), torch.empty(batch * heads, T)
    forward_kernel[(tw.cdiv(T, QUERIES), batch * heads)](
        q,
        k,
        v,
        out,
        logs,
        T,
        LOG2_E * D**-0.5,
        D=D,
        QUERIES=QUERIES,
        KEYS=KEYS,
        CAUSAL=causal,
    )
    return out, logs


def backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    logs: torch.Tensor,
    dout: torch.Tensor,
    causal: bool,
    whole_heads: bool | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of q, k and v; `whole_heads` says whether a program takes one."""
    batch, heads, T, D = q.shape
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    products = torch.empty_like(logs)
    rows = batch * heads * T
    products_kernel[(tw.cdiv(rows, 64),)](out, dout, products, rows, D=D, ROWS=64)
    blocks = {"D": D, "QUERIES": QUERIES, "KEYS": KEYS, "CAUSAL": causal}
    given = (q, k, v, dout, logs, products)
    scales = (T, LOG2_E * D**-0.5, D**-0.5)
    if batch * heads >= tw.get_threads() if whole_heads is None else whole_heads:
        dq = torch.zeros(q.shape)  # float32, whatever q is: it is added up there
        heads_kernel[(batch * heads,)](*given, dq, dk, dv, *scales, **blocks)
        return dq.to(q.dtype), dk, dv
    dq = torch.empty_like(q)
    keys_kernel[(tw.cdiv(T, KEYS), batch * heads)](*given, dk, dv, *scales, **blocks)
    queries_kernel[(tw.cdiv(T, QUERIES), batch * heads)](*given, dq, *scales, **blocks)
    return dq, dk, dv


class Attention(torch.autograd.Function):
    """`Attention.apply(q, k, v, causal)` of [batch, heads, T, D]; D is a power of two."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool):
        q, k, v = (x.contiguous() for x in (q, k, v))
        out, logs = forward(q, k, v, causal)
        ctx.save_for_backward(q, k, v, out, logs)
        ctx.causal = causal
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        q, k, v, out, logs = ctx.saved_tensors
        return *backward(q, k, v, out, logs, grads[0].contiguous(), ctx.causal), None


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False
) -> torch.Tensor:
    return Attention.apply(q, k, v, causal)  # type: ignore[return-value]


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def check(quick: bool) -> list[Verdict]:
    found = []
    # Blocks that are full and some that are not; few kernels where time is short.
    for shape in ((1, 2, 150, 32),) if quick else ((1, 2, 256, 32), (2, 1, 150, 64)):
        given = [torch.randn(shape) for _ in range(3)]
        dout = torch.randn(shape)
        for causal in (False, True):
            results = []
            for f, dtype in (
                (attention, torch.float32),
                (reference, torch.float32),
                (reference, torch.float64),
            ):
                q, k, v = leaves = [x.to(dtype).clone().requires_grad_() for x in given]
                out = f(q, k, v, causal)
                results.append((out, *torch.autograd.grad(out, leaves, dout.to(dtype))))
            name = f"attention {'x'.join(map(str, shape))}{' causal' if causal else ''}"
            for what, *three in zip(("out", "dq", "dk", "dv"), *results, strict=True):
                ours, peer, exact = (x.detach() for x in three)
                found.append(judge(f"{name}: {what}", ours, peer, exact))
            q, k, v = given
            apart = backward(q, k, v, *forward(q, k, v, causal), dout, causal, False)
            for what, ours, *two in zip("qkv", apart, *(r[1:] for r in results[1:]), strict=True):
                found.append(judge(f"{name}: d{what} by blocks", ours, *two))
    return found


def operations(heads: int, T: int, D: int, products: int) -> float:
    """Of so many products of T x T x D per head."""
    return products * 2.0 * heads * T * T * D


def forward_case(T: int, heads: int = 8, D: int = 64) -> Case:
    q, k, v = (torch.randn(1, heads, T, D) for _ in range(3))
    return computed(
        f"attention {heads}x{T}x{D}",
        lambda: forward(q, k, v, False),
        lambda: reference(q, k, v, False),
        operations(heads, T, D, 2),
    )


def backward_case(T: int, heads: int = 8, D: int = 64) -> Case:
    q, k, v, dout = (torch.randn(1, heads, T, D) for _ in range(4))
    out, logs = forward(q, k, v, False)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    theirs = reference(leaves[0], leaves[1], leaves[2], False)
    return computed(
        f"attention backward {heads}x{T}x{D}",
        lambda: backward(q, k, v, out, logs, dout, False),
        lambda: torch.autograd.grad(theirs, leaves, dout, retain_graph=True),
        operations(heads, T, D, 5),  # the scores again, dv, dp, dq and dk
    )


def cases(quick: bool) -> list[Case]:
    if quick:
        return [forward_case(128, 2), backward_case(128, 2)]
    return [forward_case(2048).ought(1.0), backward_case(2048).ought(0.9)]


def plot(quick: bool, rounds: int) -> tw.testing.Mark:
    sizes = (64, 100) if quick else (128, 256, 512, 1024, 2048, 4096)
    heads = 2 if quick else 8
    label = f"queries and keys ({heads} heads of 64), forward"
    return curve("attention", "T", sizes, label, lambda T: forward_case(T, heads), rounds)
