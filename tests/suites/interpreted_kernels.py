"""Two kernels of Triton's, timed by whoever is called triton here: `{"softmax": seconds, …}`.

TRITON_INTERPRET=1 python interpreted_kernels.py              # Triton's interpreter
python -m tilewright.triton --device cpu interpreted_kernels.py
"""

# Which triton this is, a checker cannot know: kernels are plain functions to it.

import json
import sys
import time
from statistics import median

import torch
import triton
import triton.language as tl


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf"))
    raised = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * columns + at, raised / tl.sum(raised, axis=0), mask=at < columns)


@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    across = tl.cdiv(N, BN)
    m = tl.program_id(0) // across * BM + tl.arange(0, BM)
    n = tl.program_id(0) % across * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    a_at = a + (m % M)[:, None] * K + k[None, :]
    b_at = b + k[:, None] * N + (n % N)[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        x = tl.load(a_at, mask=k[None, :] < K - start, other=0.0)
        y = tl.load(b_at, mask=k[:, None] < K - start, other=0.0)
        total = tl.dot(x, y, total)
        a_at += BK
        b_at += BK * N
    tl.store(c + m[:, None] * N + n[None, :], total, mask=(m < M)[:, None] & (n < N)[None, :])


def main(size: int, rounds: int) -> None:
    x, out = torch.randn(4 * size, size), torch.empty(4 * size, size)
    a, b, c = (torch.randn(size, size) for _ in range(3))
    cases = {"softmax": lambda: softmax[(4 * size,)](x, out, size, BLOCK=size)}
    for bm, bn, bk in ((32, 64, 32), (64, 64, 64)):
        grid = (size // bm * (size // bn),)
        cases[f"matmul, blocks of {bm}x{bn}x{bk}"] = lambda grid=grid, bm=bm, bn=bn, bk=bk: matmul[
            grid
        ](a, b, c, size, size, size, BM=bm, BN=bn, BK=bk)
    found = {}
    for name, call in cases.items():
        if rounds > 1:
            call()  # compiles
        times = []
        for _ in range(rounds):
            began = time.perf_counter()
            call()
            times.append(time.perf_counter() - began)
        found[name] = median(times)
    assert torch.allclose(out, torch.softmax(x, -1), atol=1e-5)
    assert torch.allclose(c, a @ b, atol=1e-2)
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
