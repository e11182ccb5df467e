"""One token of a model of a billion weights on a GPU: its forms beside each other, and where the
time of one goes.

    python -m tests.gpu.decode_times --predict            # the table of phases; needs no GPU
    python -m tests.gpu.decode_times                      # all forms
    python -m tests.gpu.decode_times --forms early,timed --phases
    python -m tests.gpu.decode_times --forms overlap --resident 1 --apart 99

Lines are printed as they are found, with the seconds since the beginning. Forms: `early` is one
kernel whose tasks begin before they wait, `timed` the same with the time at which each phase ends,
shown by kind, `plain` one whose tasks do not; `graph` is a CUDA graph of plain kernels, `waiting`
the same of kernels that begin before the one before ends (TILEWRIGHT_OVERLAP), `overlap` one of
kernels that do and copy first. Programs are cached by what they are, not by such details: set
TILEWRIGHT_CACHE=off.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

import tilewright as tw
from tests.gpu.decode import FULL, Size, example
from tests.gpu.phase_times import replay_of, rows
from tests.gpu.timing import medians
from tilewright.base import knobs
from tilewright.kernel.defaults import grid_row_blocks, grid_streams
from tilewright.llvm import tasks as layout
from tilewright.runtime.cuda.program import CudaProgram

FORMS: dict[str, dict[str, Any]] = {
    "overlap": {"choose": "early"},
    "early": {"one_kernel": True},
    "timed": {"one_kernel": True},
    "plain": {"one_kernel": True, "choose": "default"},
    "graph": {"choose": "default"},
    "waiting": {"choose": "default"},
}
BEGAN = time.perf_counter()


def say(*what: object) -> None:
    print(f"{time.perf_counter() - BEGAN:6.1f} s", *what, flush=True)


# ---- what is expected


@dataclass(frozen=True)
class Expected:
    """A kind of phases: how many there are, bytes that one reads of memory; what it takes from the
    moment when its last input is there if all it copies is there too; does it begin to read when
    its blocks come, or only when the phase before it ends?"""

    kind: str
    count: int
    bytes: int
    chain: float
    early: bool = True

    def seconds(self, rate: float, wait: float) -> float:
        """While blocks wait for the phase before, memory is read already."""
        read = self.bytes / rate
        return max(wait + self.chain, read + END) if self.early else wait + read + self.chain


WAIT = 1.3e-6  # from the last block's signal to the first use by others (measured: a bare phase)
END = 0.7e-6  # from the last bytes to the signal: sums of a warp, a store, a fence


def expected(s: Size, early: bool = True) -> Iterator[Expected]:
    """The phases of a step. Chains are counted, in microseconds: a read of the row from the cache
    0.5, a norm 0.3, the products of what was copied 0.3 for each result of a warp, and a signal
    END."""
    two, layer = 2, s.layers
    own = s.head * (s.heads + 2 * s.groups)
    sums = (s.hidden * 2 * s.inner, s.inner * s.hidden, s.hidden * s.words)
    keys = 2 * s.groups * s.keys * s.head
    yield Expected("qkv", layer, two * s.hidden * own, 0.8e-6 + 0.9e-6 + END, early)
    yield Expected("attention", layer, two * keys, 3.0e-6 if early else 5.5e-6, early)
    yield Expected("out", layer, two * s.hidden * s.heads * s.head, 0.5e-6 + 0.6e-6 + END, early)
    yield Expected("gate and up", layer, two * sums[0], 0.8e-6 + END, early)
    yield Expected("down", layer, two * sums[1], 0.5e-6 + END, early)
    yield Expected("head", 1, two * sums[2], 0.8e-6 + END, early)
    yield Expected("others", 7, 0, 0.5e-6, early)


def predict(s: Size, rate: float) -> None:
    moved = sum(x.count * x.bytes for x in expected(s))
    say(f"floor: {moved / 1e9:.2f} GB at {rate / 1e12:.1f} TB/s are {moved / rate * 1e6:.0f} us")
    for early in (True, False):
        found = list(expected(s, early))
        for x in found:
            t, read = x.seconds(rate, WAIT), x.bytes / rate
            say(f"  {x.count:3} x {x.kind:12} {x.bytes / 1e6:6.1f} MB {read * 1e6:5.1f} us read, "
                f"{t * 1e6:5.1f} us, {x.count * t * 1e6:5.0f} us in all")  # fmt: skip
        total = sum(x.count * x.seconds(rate, WAIT) for x in found)
        say(f"one kernel, {'early' if early else 'plain'}: {total * 1e6:.0f} us")


# ---- what is found


def compiled(net: torch.nn.Module, form: str, inputs: tuple[torch.Tensor, ...]) -> Any:
    """A form that has run, if its results are near eager's."""
    layout.TIMED = form == "timed"
    with torch.no_grad(), knobs.overlap.override(form == "waiting"):
        fast = tw.compile(net, **FORMS[form])
        got, want = [fast(*inputs) for _ in range(3)][-1], net(*inputs)
    off = max(float((x - y).abs().max() / y.abs().max()) for x, y in zip(got, want, strict=True))
    (made,) = fast.units[0].programs
    assert isinstance(made, CudaProgram)
    said = made.not_one_kernel
    if made.tasks is not None:
        graph = replay_of(made).graph
        early = sum(bool(p.early) for p in graph.phases)
        said = f"{made.tasks.facts}, {len(graph.phases)} phases, {early} of them early"
    say(f"{form}: differs from eager by {off:.4f} of the largest; {said}")
    assert off < 0.05, "the result is wrong"
    return fast


def timeline(made: CudaProgram) -> None:
    """By kind, the time from the end of the phase before to its own; of the latest call."""
    torch.cuda.synchronize()
    found = replay_of(made)
    raw = found.counters.read(np.zeros(found.counters.size, np.uint8))
    kept = {k.symbol: k.name for k in made.kernels}
    spent: dict[tuple[str, int], list[float]] = {}
    last = 0
    for p in found.graph.phases:
        if p.counter >= 0:
            at = layout.counter_place(p.counter) + layout.TIME
            now = int(raw[at : at + 8].view(np.int64)[0])
            took = (now - (last or now)) * 1e-3
            spent.setdefault((kept.get(p.kind, p.kind), p.tasks), []).append(took)
            last = max(now, last)
    for (kind, count), each in sorted(spent.items(), key=lambda x: -sum(x[1])):
        own = sorted(each)
        say(f"  {len(own)} x {kind} ({count} tasks): {own[len(own) // 2]:.2f} us in the middle, "
            f"{own[0]:.2f} to {own[-1]:.2f}")  # fmt: skip


def by_phase(made: CudaProgram, call: Callable[[], object]) -> None:
    for _ in range(3):  # the first call launches kernel by kernel
        call()
    names = {k.symbol: k.name for k in made.kernels}
    for r in sorted(rows(made, names), key=lambda r: -r.count * r.phase):
        say(f"  {r}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.decode_times")
    parser.add_argument("--forms", default=",".join(FORMS), help="separated by commas")
    parser.add_argument("--layers", type=int, default=FULL.layers)
    parser.add_argument("--phases", action="store_true", help="each kind of phases alone")
    parser.add_argument("--resident", type=int, help="blocks of a multiprocessor that copy early")
    parser.add_argument("--apart", type=int, help="KiB of a row of attention that is divided")
    parser.add_argument("--predict", action="store_true", help="only what is expected")
    parser.add_argument("--rate", type=float, default=4.2e12, help="bytes a second of memory")
    given = parser.parse_args()
    size = replace(FULL, layers=given.layers)
    predict(size, given.rate)
    if given.predict:
        return
    if given.resident is not None or given.apart is not None:
        os.environ[knobs.compile_processes.name] = "0"  # others do not know what is changed here
    if given.resident is not None:
        grid_streams.RESIDENT = given.resident
    if given.apart is not None:
        grid_row_blocks.APART = given.apart * 1024
    net, inputs = example(size, torch.bfloat16, "cuda")
    say("the model is there")
    calls: dict[str, list[Callable[[], object]]] = {}
    with torch.no_grad():
        for form in given.forms.split(","):
            try:
                fast = compiled(net, form, inputs)
                calls[form] = [lambda f=fast: f(*inputs)]
                (made,) = fast.units[0].programs
                say(f"{form}: {medians({form: calls[form]}, 20)[form] * 1e6:.0f} us")
                if form == "timed":
                    timeline(made)
                if made.tasks is not None and given.phases:
                    by_phase(made, calls[form][0])
            except Exception as why:  # the other forms are worth their time
                say(f"{form}: {type(why).__name__}: {why}")
                calls.pop(form, None)
        for form, t in medians(calls, 20).items():
            say(f"in turn with others, {form}: {t * 1e6:.0f} us")


if __name__ == "__main__":
    main()
