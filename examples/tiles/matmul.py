"""A matrix product whose block sizes are measured, with an optional function of the result.

A program computes one block of C. It walks along k, a block of A and a block of B at a time, and
`tl.dot` adds their product to an accumulator that stays where it is. Only at the end is it rounded
to the result's dtype; whatever is done to the product (here a leaky relu) happens in between and
costs no pass over memory.

Programs are numbered such that neighbours share operands: GROUP block rows are walked column by
column, so that a stripe of A stays in the cache while blocks of B pass by.

Which blocks are best depends on the machine. `tw.autotune` times a list of configurations when it
first sees new sizes and keeps what it found on disk. Blocks for a CPU are larger than those for a
GPU: they have to repay copying the operands into the order in which they are read, and a program
has a core with its cache to itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

import tilewright as tw
import tilewright.language as tl
from examples.tiles.measuring import Case, Verdict, computed, curve, judge


@tw.jit
def leaky_relu(x):
    return tl.where(x >= 0, x, 0.01 * x)


@tw.jit
def matmul_kernel(
    a,
    b,
    c,
    M,
    N,
    K,
    a_row,
    a_column,
    b_row,
    b_column,
    c_row,
    c_column,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    # Which block: whole groups of GROUP block rows, the last of which may be smaller.
    number = tl.program_id(0)
    down, across = tl.cdiv(M, BM), tl.cdiv(N, BN)
    first = number // (GROUP * across) * GROUP
    height = tl.minimum(down - first, GROUP)
    block_m = first + number % (GROUP * across) % height
    block_n = number % (GROUP * across) // height

    m = block_m * BM + tl.arange(0, BM)
    n = block_n * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    # Rows and columns beyond the end are computed from those at the start, and not stored.
    a_at = a + (m % M)[:, None] * a_row + k[None, :] * a_column
    b_at = b + k[:, None] * b_row + (n % N)[None, :] * b_column
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        rest = k < K - start
        a_block = tl.load(a_at, mask=rest[None, :], other=0.0)
        b_block = tl.load(b_at, mask=rest[:, None], other=0.0)
        total = tl.dot(a_block, b_block, total)
        a_at += BK * a_column
        b_at += BK * b_row
    if ACTIVATION == "leaky_relu":
        total = leaky_relu(total)
    c_at = c + m[:, None] * c_row + n[None, :] * c_column
    tl.store(c_at, total.to(c.dtype.element_ty), mask=(m < M)[:, None] & (n < N)[None, :])


def configurations(*blocks: tuple[int, int, int], group: int) -> list[tw.Config]:
    return [tw.Config({"BM": m, "BN": n, "BK": k, "GROUP": group}) for m, n, k in blocks]


FOR_CPUS = configurations(
    (64, 64, 64),
    (64, 64, 256),
    (128, 128, 64),
    (128, 128, 256),
    (128, 256, 64),
    (128, 256, 256),
    (128, 512, 64),
    (256, 256, 64),
    (256, 256, 128),
    (256, 256, 256),
    (256, 512, 64),
    (256, 512, 128),
    (512, 512, 64),
    (512, 512, 128),
    group=4,
)
# What is usual on GPUs: blocks that fit shared memory and feed tensor cores.
FOR_GPUS = configurations(
    (128, 256, 64),
    (64, 256, 32),
    (128, 128, 32),
    (128, 64, 32),
    (64, 128, 32),
    (128, 32, 32),
    (64, 32, 32),
    (32, 64, 32),
    (128, 256, 128),
    (256, 128, 128),
    (256, 64, 128),
    (64, 256, 128),
    (128, 128, 128),
    (128, 64, 64),
    (64, 128, 64),
    (128, 32, 64),
    group=8,
)
KEY = ["M", "N", "K"]
cpu_matmul_kernel = tw.autotune(FOR_CPUS, key=KEY)(matmul_kernel)
gpu_matmul_kernel = tw.autotune(FOR_GPUS, key=KEY)(matmul_kernel)
# Two that suit anything, for trying things out.
quick_matmul_kernel = tw.autotune(FOR_CPUS[:2], key=KEY, warmup=1, rep=5)(matmul_kernel)


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    activation: str = "",
    out: torch.Tensor | None = None,
    kernel: Any = cpu_matmul_kernel,
) -> torch.Tensor:
    """a @ b, of any strides; sums are float32."""
    (M, K), (rows, N) = a.shape, b.shape
    if rows != K or a.dtype != b.dtype:
        raise ValueError(f"a product of {a.dtype} {tuple(a.shape)} and {b.dtype} {tuple(b.shape)}")
    c = a.new_empty(M, N) if out is None else out

    def blocks(meta: dict[str, Any]) -> tuple[int]:
        return (tw.cdiv(M, meta["BM"]) * tw.cdiv(N, meta["BN"]),)

    strides = (*a.stride(), *b.stride(), *c.stride())
    kernel[blocks](a, b, c, M, N, K, *strides, ACTIVATION=activation)
    return c


def check(quick: bool) -> list[Verdict]:
    kernel = quick_matmul_kernel if quick else cpu_matmul_kernel
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        for m, n, k in ((64, 64, 64), (100, 75, 130)):
            a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
            name = f"matmul {m}x{n}x{k} {str(dtype).removeprefix('torch.')}"
            exact = a.double() @ b.double()
            found.append(judge(name, matmul(a, b, kernel=kernel), a @ b, exact))
    a, b = torch.randn(80, 96), torch.randn(112, 96)
    ours = matmul(a, b.T, "leaky_relu", kernel=kernel)
    exact = F.leaky_relu(a.double() @ b.double().T)
    found.append(judge("matmul, b transposed, leaky relu", ours, F.leaky_relu(a @ b.T), exact))
    return found


def case(size: int, dtype: torch.dtype, kernel: Any, what: str) -> Case:
    a, b = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
    out, out_peer = torch.empty_like(a), torch.empty_like(a)
    matmul(a, b, out=out, kernel=kernel)  # tunes before anything is timed
    short = {torch.float32: "f32", torch.bfloat16: "bf16"}[dtype]
    return computed(
        f"matmul {size}³ {short}, {what}",
        lambda: matmul(a, b, out=out, kernel=kernel),
        lambda: torch.matmul(a, b, out=out_peer),
        2 * size**3,
    )


def cases(quick: bool) -> list[Case]:
    dtypes = (torch.float32, torch.bfloat16)
    if quick:
        return [case(128, dtype, quick_matmul_kernel, "two blocks") for dtype in dtypes]
    lists = (
        (cpu_matmul_kernel, "CPU blocks", 0.9),
        (gpu_matmul_kernel, "GPU blocks", 0.7),
    )
    return [
        case(1024, dtype, kernel, what).ought(goal)
        for kernel, what, goal in lists
        for dtype in dtypes
    ]


def plot(quick: bool, rounds: int) -> tw.testing.Mark:
    sizes = (64, 96) if quick else (128, 256, 384, 512, 768, 1024, 1536)
    kernel = quick_matmul_kernel if quick else cpu_matmul_kernel
    label = "rows = columns = k, float32"
    return curve("matmul", "n", sizes, label, lambda n: case(n, torch.float32, kernel, ""), rounds)
