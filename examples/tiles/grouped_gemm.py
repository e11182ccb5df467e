"""Many matrix products of different sizes in one launch.

Products that are small one by one leave threads waiting at the end of each. In one launch all their
blocks are one pool of work. What differs from product to product (where its matrices are, how large
they are) becomes data: a row of a table per product, and a list that says for every program which
product and which block of it is its own.

Addresses are 64-bit integers in such a table; `.to(tl.pointer_type(...))` makes pointers of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

import tilewright as tw
import tilewright.language as tl
from examples.tiles.measuring import Case, Verdict, computed, curve, judge

BM, BN, BK = 64, 64, 128
FIELDS = 9  # of a product in the table: three addresses, M, N, K, and three distances of rows


@tw.jit
def grouped_kernel(
    table,
    work,
    ELEMENT: tl.constexpr,
    FIELDS: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    mine = work + tl.program_id(0) * 3
    product = table + tl.load(mine) * FIELDS
    m = tl.load(mine + 1) * BM + tl.arange(0, BM)
    n = tl.load(mine + 2) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    a = tl.load(product).to(tl.pointer_type(ELEMENT))
    b = tl.load(product + 1).to(tl.pointer_type(ELEMENT))
    c = tl.load(product + 2).to(tl.pointer_type(ELEMENT))
    M, N, K = tl.load(product + 3), tl.load(product + 4), tl.load(product + 5)
    a_row, b_row, c_row = tl.load(product + 6), tl.load(product + 7), tl.load(product + 8)

    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        at = start + k
        a_at = a + m[:, None] * a_row + at[None, :]
        b_at = b + at[:, None] * b_row + n[None, :]
        a_block = tl.load(a_at, mask=(m < M)[:, None] & (at < K)[None, :], other=0.0)
        b_block = tl.load(b_at, mask=(at < K)[:, None] & (n < N)[None, :], other=0.0)
        total = tl.dot(a_block, b_block, total)
    c_at = c + m[:, None] * c_row + n[None, :]
    tl.store(c_at, total.to(ELEMENT), mask=(m < M)[:, None] & (n < N)[None, :])


class Group:
    """Products that are computed together, again and again: their tables are made once."""

    def __init__(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]):
        for a, b in pairs:
            if a.shape[1] != b.shape[0] or a.dtype != b.dtype or a.dtype != pairs[0][0].dtype:
                raise ValueError(f"no product of {tuple(a.shape)} and {tuple(b.shape)} in a group")
            if a.stride(1) != 1 or b.stride(1) != 1:
                raise ValueError("rows of matrices in a group are contiguous")
        # The table holds addresses: the tensors behind them have to live as long as it does.
        self.pairs = list(pairs)
        self.results = [a.new_empty(a.shape[0], b.shape[1]) for a, b in pairs]
        rows, work = [], []
        for g, ((a, b), c) in enumerate(zip(pairs, self.results, strict=True)):
            (M, K), N = a.shape, b.shape[1]
            addresses = [x.data_ptr() for x in (a, b, c)]
            rows.append([*addresses, M, N, K, *(x.stride(0) for x in (a, b, c))])
            blocks = [(g, i, j) for i in range(tw.cdiv(M, BM)) for j in range(tw.cdiv(N, BN))]
            work += blocks
        self.table = torch.tensor(rows, dtype=torch.int64)
        self.work = torch.tensor(work, dtype=torch.int64)

    def __call__(self) -> list[torch.Tensor]:
        """All products; the same tensors are filled at every call."""
        element = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}[self.results[0].dtype]
        grouped_kernel[(len(self.work),)](
            self.table, self.work, ELEMENT=element, FIELDS=FIELDS, BM=BM, BN=BN, BK=BK
        )
        return self.results


def pairs_of(sizes: Sequence[tuple[int, int, int]], dtype: torch.dtype = torch.float32):
    return [(torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)) for m, n, k in sizes]


def check(quick: bool) -> list[Verdict]:
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        pairs = pairs_of([(64, 64, 64), (100, 30, 70), (1, 200, 129)], dtype)
        for (a, b), c in zip(pairs, Group(pairs)(), strict=True):
            name = f"grouped gemm {a.shape[0]}x{b.shape[1]}x{a.shape[1]} {dtype}"
            found.append(judge(name, c, a @ b, a.double() @ b.double()))
    return found


def case(size: int) -> Case:
    """Eight products around a size: experts that got different numbers of tokens."""
    sizes = [(size * share // 8, size, size) for share in (16, 8, 8, 4, 4, 2, 1, 1)]
    sizes = [(max(m, 1), n, k) for m, n, k in sizes]
    pairs = pairs_of(sizes)
    group = Group(pairs)
    outs = [torch.empty_like(c) for c in group.results]

    def one_by_one() -> None:
        for (a, b), out in zip(pairs, outs, strict=True):
            torch.matmul(a, b, out=out)

    operations = sum(2.0 * m * n * k for m, n, k in sizes)
    return computed(f"grouped gemm, 8 around {size}", group, one_by_one, operations)


def cases(quick: bool) -> list[Case]:
    return [case(64 if quick else 512)]


def plot(quick: bool, rounds: int) -> tw.testing.Mark:
    sizes = (32, 64) if quick else (64, 128, 256, 512, 1024)
    return curve("grouped_gemm", "n", sizes, "columns and k of eight products", case, rounds)
