"""Constants of a tile kernel and a template, tuned on a GPU: `python -m tests.gpu.tuned`.

Prints the listed configuration's time beside that of the best one in ranges, by the GPU's clock,
and the compiler's own schedule beside the best of a template. `--device cpu` does the first on a
processor; with `--cached`, a second run times nothing.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import torch

import tilewright as tw
from examples.tiles.matmul import matmul_kernel
from tilewright import te, tune

LISTED = tw.Config({"BM": 128, "BN": 128, "BK": 32, "GROUP": 8}, num_warps=8, num_stages=3)
SPACE = {
    "BM": tune.factors(256, least=32),
    "BN": tune.factors(256, least=32),
    "BK": [16, 32, 64, 128],
    "GROUP": [1, 4, 8],
    "num_warps": [4, 8],
    "num_stages": [2, 3, 4],
}


def product(device: str, n: int, trials: int, cached: bool) -> bool:
    """A matrix product of tiles; is it right?"""
    made = tw.autotune(
        [LISTED], key=["M", "N", "K"], space=SPACE, trials=trials, cache_results=cached
    )(tw.jit(matmul_kernel.fn))
    dtype = torch.float32 if device == "cpu" else torch.float16
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    c = torch.empty_like(a)

    def grid(meta: dict[str, Any]) -> tuple[int]:
        return (tw.cdiv(n, meta["BM"]) * tw.cdiv(n, meta["BN"]),)

    made[grid](a, b, c, n, n, n, *a.stride(), *b.stride(), *c.stride(), ACTIVATION="")
    want = a.double() @ b.double()
    error = float((c.double() - want).abs().max() / want.abs().max())
    times, failed = made.configs_timings, [e for e in made.log.events if " fails: " in e.message]
    print(f"product of {n}: {len(times)} configurations in {made.bench_time:.1f} s")
    print(f"  listed {times[made.configs[0]][0]:.4f} ms, {LISTED}")
    print(f"  best   {times[made.best_config][0]:.4f} ms, {made.best_config}")
    print(f"  {len(failed)} failed; largest error {error:.1e} of the largest value")
    for e in failed[:3]:
        print(f"    {e.message.splitlines()[0]}")
    return error < 1e-2


def exponential(n: int) -> tuple[te.Schedule, list[te.Tensor]]:
    """A template: how many elements a thread and a block have."""
    x = te.placeholder((n,), name="X")
    y = te.compute((n,), lambda i: te.exp(x[i]) * x[i], name="Y")
    s = te.create_schedule(y.op)
    each = tune.choice("each", [1, 2, 4, 8])
    block, rest = s[y].split(y.op.axis[0], tune.choice("threads", [64, 128, 256, 512]) * each)
    thread, own = s[y].split(rest, each)
    s[y].bind(block, te.thread_axis("blockIdx.x"))
    s[y].bind(thread, te.thread_axis("threadIdx.x"))
    if each > 1:
        s[y].vectorize(own) if tune.flag("vectors", default=True) else s[y].unroll(own)
    return s, [x, y]


def template(target: str, n: int, trials: int) -> bool:
    """The template on a GPU; is it right?"""
    found = te.tune(exponential, n, trials=trials, target=target)
    x = torch.randn(n, device="cuda")
    y = torch.empty_like(x)
    found.build()(x, y)
    print(f"template of {n}: {found}; {found.measured} measured now")
    return torch.allclose(y, x.exp() * x, rtol=1e-4, atol=1e-5)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--target", default="cuda:90")
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--cached", action="store_true", help="times on disk are used and kept")
    args = parser.parse_args(argv)
    right = product(args.device, args.size, args.trials, args.cached)
    if args.device == "cuda":
        right = template(args.target, 1 << 24, args.trials) and right
    print("right" if right else "WRONG")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
