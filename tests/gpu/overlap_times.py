"""Models as CUDA graphs on a GPU: kernels that begin before the one before them ends
(TILEWRIGHT_OVERLAP), beside the same kernels one after the other.

    python -m tests.gpu.overlap_times bert gpt2 vit

Results are compared bit by bit, over and over: a kernel that did not wait for what it reads would
differ some day. `--choose auto` has measured choices, libraries among them.
"""

from __future__ import annotations

import argparse
import time

import torch

import tilewright as tw
from tests.gpu.model_checks import _build, _tensors
from tests.gpu.timing import medians
from tilewright.base import knobs

CALLS = 50


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.overlap_times")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--choose", default="default")
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    for name in given.models:
        began = time.perf_counter()
        try:
            print(f"{name}: {_compared(name, given.tiny, given.choose)}", end="")
        except Exception as why:  # the other models are worth their time
            print(f"{name}: {type(why).__name__}: {why}", end="")
        print(f" ({time.perf_counter() - began:.0f} s)", flush=True)


def _compared(name: str, tiny: bool, choose: str) -> str:
    x = _build(name, tiny, torch.bfloat16)
    made = {}
    with torch.no_grad():
        for form, overlap in (("in turn", "0"), ("overlapping", "1"), ("as chosen", "auto")):
            with knobs.overlap.override(overlap):
                made[form] = tw.compile(x.module, choose=choose)
                made[form](*x.inputs)
        want, off = _tensors(made["in turn"](*x.inputs)), 0
        for _ in range(CALLS):
            got = _tensors(made["overlapping"](*x.inputs))
            off += not all(map(torch.equal, got, want))
        t = medians({k: [lambda f=f: f(*x.inputs)] for k, f in made.items()}, 20)
    shown = ", ".join(f"{k} {v * 1e6:.0f} us" for k, v in t.items())
    return f"{shown}; {off} of {CALLS} calls differ"


if __name__ == "__main__":
    main()
