"""Kernels of the tile language that are timed beside Triton: this file is loaded twice, once with
each compiler's language. `load` does so."""

# Annotations stay objects: kernels know their constants by them.

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

if globals().get("WITH_TRITON"):
    import torch
    import triton
    import triton.language as tl
    from triton.tools.tensor_descriptor import TensorDescriptor

    jit = triton.jit
    # Descriptors that kernels make are in memory there.
    triton.set_allocator(lambda n, _, __: torch.empty(n, dtype=torch.int8, device="cuda"))
else:
    import tilewright as tw
    import tilewright.language as tl

    jit, TensorDescriptor = tw.jit, tw.TensorDescriptor


def load(triton: bool) -> ModuleType:
    """This file with the language of one of both."""
    name = f"tile_kernels_{'triton' if triton else 'tilewright'}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__))
        assert spec is not None and spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        made.__dict__["WITH_TRITON"] = triton
        sys.modules[name] = made
        spec.loader.exec_module(made)
    return sys.modules[name]


@jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@jit
def softmax_kernel(x, out, x_stride, out_stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row * x_stride + at, mask=inside, other=-float("inf")).to(tl.float32)
    raised = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * out_stride + at, raised / tl.sum(raised, axis=0), mask=inside)


@jit
def layernorm_kernel(x, out, weight, bias, stride, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x += row * stride
    out += row * stride
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(values, axis=0) / columns
    apart = tl.where(inside, values - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(apart * apart, axis=0) / columns + eps)
    w = tl.load(weight + at, mask=inside).to(tl.float32)
    b = tl.load(bias + at, mask=inside).to(tl.float32)
    tl.store(out + at, apart * scale * w + b, mask=inside)


@jit
def matmul_kernel(
    a, b, c, M, N, K, am, ak, bk, bn, cm, cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    PRECISION: tl.constexpr = None,
):  # fmt: skip
    pid = tl.program_id(0)
    rows, columns = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    together = GROUP * columns
    first = pid // together * GROUP
    height = min(rows - first, GROUP)
    i = first + (pid % together) % height
    j = (pid % together) // height
    at_m = (i * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    at_n = (j * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    at_k = tl.arange(0, BLOCK_K)
    from_a = a + (at_m[:, None] * am + at_k[None, :] * ak)
    from_b = b + (at_k[:, None] * bk + at_n[None, :] * bn)
    sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K)):
        x = tl.load(from_a, mask=at_k[None, :] < K - k * BLOCK_K, other=0.0)
        y = tl.load(from_b, mask=at_k[:, None] < K - k * BLOCK_K, other=0.0)
        sums = tl.dot(x, y, sums, input_precision=PRECISION)
        from_a += BLOCK_K * ak
        from_b += BLOCK_K * bk
    to_m = i * BLOCK_M + tl.arange(0, BLOCK_M)
    to_n = j * BLOCK_N + tl.arange(0, BLOCK_N)
    to = c + cm * to_m[:, None] + cn * to_n[None, :]
    tl.store(to, sums.to(c.dtype.element_ty), mask=(to_m[:, None] < M) & (to_n[None, :] < N))


@jit
def attention_kernel(
    q, k, v, out, n, scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, DIM: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    start, head = tl.program_id(0), tl.program_id(1)
    base = head * n * DIM
    rows = start * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, DIM)
    keys = tl.arange(0, BLOCK_N)
    x = tl.load(q + base + rows[:, None] * DIM + d[None, :])
    most = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    sums = tl.zeros([BLOCK_M, DIM], tl.float32)
    scale *= 1.44269504
    end = (start + 1) * BLOCK_M if CAUSAL else n
    for at in range(0, end, BLOCK_N):
        y = tl.load(k + base + (at + keys)[None, :] * DIM + d[:, None])
        scores = tl.dot(x, y)
        if CAUSAL:
            scores = tl.where(rows[:, None] >= (at + keys)[None, :], scores, -float("inf"))
        new = tl.maximum(most, tl.max(scores, 1) * scale)
        p = tl.exp2(scores * scale - new[:, None])
        less = tl.exp2(most - new)
        total = total * less + tl.sum(p, 1)
        sums = sums * less[:, None]
        z = tl.load(v + base + (at + keys)[:, None] * DIM + d[None, :])
        sums = tl.dot(p.to(z.dtype), z, sums)
        most = new
    sums = sums / total[:, None]
    tl.store(out + base + rows[:, None] * DIM + d[None, :], sums.to(out.dtype.element_ty))


@jit
def described_kernel(
    a, b, c, M, N, K, am, bn, cm,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TURNED: tl.constexpr,
    SPECIALISE: tl.constexpr,
):  # fmt: skip
    """A product by tensor descriptors that the kernel makes; `TURNED`: the second operand's columns
    are adjacent in memory."""
    A = tl.make_tensor_descriptor(a, [M, K], [am, 1], [BLOCK_M, BLOCK_K])
    if TURNED:
        B = tl.make_tensor_descriptor(b, [N, K], [bn, 1], [BLOCK_N, BLOCK_K])
    else:
        B = tl.make_tensor_descriptor(b, [K, N], [bn, 1], [BLOCK_K, BLOCK_N])
    C = tl.make_tensor_descriptor(c, [M, N], [cm, 1], [BLOCK_M, BLOCK_N])
    columns = tl.cdiv(N, BLOCK_N)
    i, j = tl.program_id(0) // columns * BLOCK_M, tl.program_id(0) % columns * BLOCK_N
    sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in tl.range(0, K, BLOCK_K, warp_specialize=SPECIALISE):
        x = A.load([i, k])
        if TURNED:
            sums = tl.dot(x, B.load([j, k]).T, sums)
        else:
            sums = tl.dot(x, B.load([k, j]), sums)
    C.store([i, j], sums.to(c.dtype.element_ty))


@jit
def described_by_host_kernel(
    A, B, C, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    SPECIALISE: tl.constexpr,
):  # fmt: skip
    """The same by descriptors of the host, the second operand turned; blocks walk over tiles."""
    rows, columns = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    together = GROUP * columns
    first, step = tl.program_id(0), tl.num_programs(0)
    for tile in tl.range(first, rows * columns, step, flatten=True, warp_specialize=SPECIALISE):
        start = tile // together * GROUP
        height = min(rows - start, GROUP)
        i = (start + tile % height) * BLOCK_M
        j = (tile % together) // height * BLOCK_N
        sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(0, K, BLOCK_K):
            sums = tl.dot(A.load([i, k]), B.load([j, k]).T, sums)
        C.store([i, j], sums.to(C.dtype))


@jit
def described_attention_kernel(
    Q, K, V, OUT, n, scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, DIM: tl.constexpr, SPECIALISE: tl.constexpr,
):  # fmt: skip
    """Attention by descriptors of the host, of all heads as one matrix of rows."""
    start, head = tl.program_id(0), tl.program_id(1)
    at = head * n + start * BLOCK_M
    x = Q.load([at, 0])
    most = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    sums = tl.zeros([BLOCK_M, DIM], tl.float32)
    scale *= 1.44269504
    for k in tl.range(0, n, BLOCK_N, warp_specialize=SPECIALISE):
        scores = tl.dot(x, K.load([head * n + k, 0]).T)
        new = tl.maximum(most, tl.max(scores, 1) * scale)
        p = tl.exp2(scores * scale - new[:, None])
        less = tl.exp2(most - new)
        total = total * less + tl.sum(p, 1)
        sums = sums * less[:, None]
        sums = tl.dot(p.to(V.dtype), V.load([head * n + k, 0]), sums)
        most = new
    sums = sums / total[:, None]
    OUT.store([at, 0], sums.to(OUT.dtype))
