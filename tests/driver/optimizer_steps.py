"""Steps of optimizers over all parameters of a model: ours beside eager and torch's own compiler.

    python -m tests.driver.optimizer_steps [--layers 24] [--width 256] [--threads 1] [--rounds 40]
        [--only adam ...] [--inductor] [--clip]

For every optimizer: seconds to compile, kernels and calls of these, and the milliseconds of a step
of each contender, called in turns, as the smallest and the median. The largest error of the
parameters after the steps is given beside eager's, both against float64. Nothing is asserted: it is
for a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import nn

import tilewright as tw
from tests.driver.optimizers import Lion
from tilewright.runtime import pool

Make = Callable[..., torch.optim.Optimizer]
OPTIMIZERS: dict[str, tuple[Make, dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "adam": (torch.optim.Adam, {"lr": 1e-3}),
    "adamw": (torch.optim.AdamW, {"lr": 1e-3, "amsgrad": False}),
    "lion": (Lion, {"lr": 1e-3}),
    "adafactor": (torch.optim.Adafactor, {"lr": 1e-2}),
}
FUSED = ("sgd", "adam", "adamw")


def shapes(layers: int, width: int) -> list[tuple[int, ...]]:
    """Of a transformer: twelve tensors a layer, and its embeddings."""
    layer = [(width,), (width,), (3 * width, width), (3 * width,), (width, width), (width,)]
    layer += [(width,), (width,), (4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    return [(8 * width, width), (1024, width), *(layer * layers), (width,), (width,)]


class Contender:
    """Parameters of its own, and a step over them."""

    def __init__(self, name: str, start: Sequence[torch.Tensor], make: Make, **kw: Any) -> None:
        self.name = name
        self.parameters = [nn.Parameter(x.clone()) for x in start]
        self.optimizer = make(self.parameters, **kw)
        self.step: Callable[[], Any] = self.optimizer.step
        self.times: list[float] = []

    def give(self, gradients: Sequence[torch.Tensor]) -> None:
        for p, g in zip(self.parameters, gradients, strict=True):
            p.grad = g.to(p.dtype, copy=True)

    def call(self) -> float:
        began = time.perf_counter()
        self.step()
        return time.perf_counter() - began


def contenders(name: str, start: Sequence[torch.Tensor], inductor: bool, clip: bool) -> Any:
    make, kw = OPTIMIZERS[name]
    listed = {} if name == "lion" else {"foreach": True}
    found = [Contender("eager", start, make, **kw, **listed)]
    if name in FUSED:
        found.append(Contender("eager fused", start, make, **kw, fused=True))
    ours = Contender("ours", start, make, **kw, **listed)
    found.append(ours)
    if inductor:
        found.append(Contender("inductor", start, make, **kw, **listed))
    for x in found:
        plain, own = x.optimizer.step, x.parameters

        def step(plain: Any = plain, own: Any = own) -> None:
            if clip:
                nn.utils.clip_grad_norm_(own, 1.0)
            plain()

        x.step = step
    ours.step = tw.compile(ours.step)
    if inductor:
        found[-1].step = torch.compile(found[-1].step)
    exact = Contender("float64", [x.double() for x in start], make, **kw, **listed)
    return found, ours, exact


def error(x: Contender, exact: Contender) -> float:
    pairs = zip(x.parameters, exact.parameters, strict=True)
    return max((a.double() - b).abs().max().item() for a, b in pairs)


def measure(name: str, given: argparse.Namespace) -> None:
    torch.manual_seed(0)
    start = [0.02 * torch.randn(s) for s in shapes(given.layers, given.width)]
    found, ours, exact = contenders(name, start, given.inductor, given.clip)
    gradients = [torch.randn_like(x) for x in start]
    first: dict[str, float] = {}
    for x in (*found, exact):
        x.give(gradients)
        first[x.name] = x.call()
    for k in range(2):  # the second step may be another program: buffers are there by then
        for x in (*found, exact):
            x.give(gradients)
            first[x.name] += x.call() if k == 0 else 0.0
    for _ in range(given.rounds):
        for x in found:
            x.times.append(x.call())
        exact.call()
    kernels = sum(len(p.kernels) for u in ours.step.units for p in u.programs)
    last = ours.step.units[-1].programs[0].kernels
    count, size = len(start), sum(x.numel() for x in start)
    print(f"{name}: {count} parameters, {size / 1e6:.1f} million elements")
    calls = sum(k.calls for k in last)
    print(f"  {kernels} kernels in all; the last program {len(last)}, {calls} calls of them")
    for x in found:
        took = f"{first[x.name]:6.1f} s for the first two steps"
        low, middle = min(x.times) * 1e3, median(x.times) * 1e3
        print(f"  {x.name:12} {low:8.2f} ms ({middle:8.2f}), {took}, error {error(x, exact):.2g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", nargs="*", default=list(OPTIMIZERS), choices=list(OPTIMIZERS))
    parser.add_argument("--inductor", action="store_true")
    parser.add_argument("--clip", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    pool.set_threads(given.threads)
    for name in given.only:
        torch._dynamo.reset()
        measure(name, given)


if __name__ == "__main__":
    main()
