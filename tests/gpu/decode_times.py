"""One token of a model of a billion weights on a GPU: its forms beside each other, and where the
time of one goes.

    python -m tests.gpu.decode_times --predict            # the table of phases; needs no GPU
    python -m tests.gpu.decode_times                      # all forms
    python -m tests.gpu.decode_times --forms early,timed --phases
    python -m tests.gpu.decode_times --forms overlap --resident 2

Lines are printed as they are found, with the seconds since the beginning; the last ones are a table
of all forms, timed in turn, whose results were compared with those of the first one. Forms: `early`
is one kernel whose tasks begin before they wait, `timed` the same with the time at which each phase
ends, shown by kind, `plain` one whose tasks do not; `graph` is a CUDA graph of plain kernels,
`waiting` the same of kernels that begin before the one before ends (TILEWRIGHT_OVERLAP), `overlap`
one of kernels that copy first, and then wait; in `all overlap` others wait themselves, too.
Programs are cached by what they are, not by such details: set TILEWRIGHT_CACHE=off.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

import tilewright as tw
from tests.gpu.decode import FULL, Size, example
from tests.gpu.phase_times import replay_of, rows
from tests.gpu.timing import medians
from tilewright import targets
from tilewright.base import knobs
from tilewright.kernel.defaults import grid_streams
from tilewright.llvm import tasks as layout
from tilewright.runtime.cuda.program import CudaProgram

Step = Callable[[], Sequence[torch.Tensor]]


@dataclass(frozen=True)
class Form:
    """How the step is compiled: options; whether all kernels wait for the one before themselves,
    and whether it is written down when phases end."""

    options: dict[str, Any]
    waiting: bool = False
    timed: bool = False


FORMS: dict[str, Form] = {
    "graph": Form({"choose": "default"}),
    "overlap": Form({"choose": "early"}),
    "all overlap": Form({"choose": "early"}, waiting=True),
    "early": Form({"one_kernel": True}),
    "timed": Form({"one_kernel": True}, timed=True),
    "plain": Form({"one_kernel": True, "choose": "default"}),
    "waiting": Form({"choose": "default"}, waiting=True),
}
NEAR = 0.05  # of the largest result: rounding of 16 layers
BEGAN = time.perf_counter()


def say(*what: object) -> None:
    print(f"{time.perf_counter() - BEGAN:6.1f} s", *what, flush=True)


# ---- what is expected


@dataclass(frozen=True)
class Expected:
    """A phase: bytes that it reads of memory, and what it takes from the moment when its last input
    is there if all it copies is there too."""

    kind: str
    bytes: int
    chain: float


WAIT = 1.3e-6  # from the last block's signal to the first use by others (measured: a bare phase)
END = 0.7e-6  # from the last bytes to the signal: sums of a warp, a store, a fence
LATENCY = 1e-6  # of memory


def expected(s: Size) -> Iterator[Expected]:
    """The phases of a step. Chains are counted, in microseconds: a read of the row from the cache
    0.5, a norm 0.3, the products of what was copied 0.3 for each result of a warp, and a signal
    END. Attention was measured: one multiprocessor brings in the keys and values of a head."""
    two = 2
    own = s.head * (s.heads + 2 * s.groups)
    keys = s.groups * s.keys * s.head
    yield from (Expected("others", 0, 0.5e-6) for _ in range(4))
    for _ in range(s.layers):
        yield Expected("qkv", two * s.hidden * own, 0.8e-6 + 0.9e-6 + END)
        yield Expected("attention", 2 * two * keys, 9.0e-6 + END)
        yield Expected("out", two * s.hidden * s.heads * s.head, 0.5e-6 + 0.6e-6 + END)
        yield Expected("gate and up", two * s.hidden * 2 * s.inner, 0.8e-6 + END)
        yield Expected("down", two * s.inner * s.hidden, 0.5e-6 + END)
    yield Expected("head", two * s.hidden * s.words, 0.8e-6 + END)


def predict(s: Size, rate: float) -> None:
    """What one block of a multiprocessor has copied when its phase begins is limited by its shared
    memory. With two of them, its copies begin when the phase before the one before ends."""
    phases = list(expected(s))
    moved = sum(x.bytes for x in phases)
    grid = targets.get("cuda:90").grid
    assert grid is not None
    say(f"floor: {moved / 1e9:.2f} GB at {rate / 1e12:.1f} TB/s are {moved / rate * 1e6:.0f} us")
    for blocks in (1, 2):
        room = grid.shared // blocks * grid.multiprocessors
        ends, memory = [0.0] * blocks, 0.0  # when phases end, and when memory is free
        took: dict[str, list[float]] = {}
        for x in phases:
            ready = ends[-1] + WAIT
            memory = max(memory, ends[-blocks] + LATENCY) + min(x.bytes, room) / rate
            if x.bytes > room:
                memory = max(memory, ready) + (x.bytes - room) / rate
            ends.append(max(ready + x.chain, memory + END if x.bytes else 0.0))
            took.setdefault(x.kind, []).append(ends[-1] - ends[-2])
        say(f"one kernel, {blocks} blocks a multiprocessor: {ends[-1] * 1e6:.0f} us")
        for kind, each in took.items():
            say(f"  {len(each):3} x {kind:12} {sum(each) / len(each) * 1e6:5.1f} us")


# ---- what is found


def difference(got: Sequence[torch.Tensor], want: Sequence[torch.Tensor]) -> float:
    """The largest, as a part of the largest value."""
    pairs = zip(got, want, strict=True)
    return max(float((x.float() - y.float()).abs().max() / y.abs().max()) for x, y in pairs)


def compiled(net: torch.nn.Module, form: str, inputs: tuple[torch.Tensor, ...]) -> Any:
    """A form that has run, if its results are near eager's."""
    own = FORMS[form]
    layout.TIMED = own.timed
    with torch.no_grad(), knobs.overlap.override("1" if own.waiting else "0"):
        fast = tw.compile(net, **own.options)
        got, want = [fast(*inputs) for _ in range(3)][-1], net(*inputs)
    off = difference(got, want)
    (made,) = fast.units[0].programs
    assert isinstance(made, CudaProgram)
    said = made.not_one_kernel
    if made.tasks is not None:
        graph = replay_of(made).graph
        early = sum(bool(p.early) for p in graph.phases)
        said = f"{made.tasks.facts}, {len(graph.phases)} phases, {early} of them early"
    say(f"{form}: differs from eager by {off:.4f} of the largest; {said}")
    assert off < NEAR, "the result is wrong"
    return fast


def table(forms: dict[str, Step], moved: int, rounds: int) -> None:
    """Times in turn, and results beside those of the first one."""
    off: dict[str, float] = {}
    want: Sequence[torch.Tensor] = ()
    for form, call in forms.items():
        got = call()
        want = want or got
        off[form] = difference(got, want)
    times = medians({form: [call] for form, call in forms.items()}, rounds)
    say(f"{'form':>12} {'us':>6} {'TB/s':>5}  differs by")
    for form, t in times.items():
        wrong = "" if off[form] < NEAR else "  WRONG"
        say(f"{form:>12} {t * 1e6:6.0f} {moved / t / 1e12:5.2f}  {off[form]:.4f}{wrong}")


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
            whole, _, part = p.kind.rpartition("_")
            kind = kept.get(p.kind) or f"{part} of {kept.get(whole, p.kind)}"
            spent.setdefault((kind, p.tasks), []).append(took)
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
    parser.add_argument("--predict", action="store_true", help="only what is expected")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--rate", type=float, default=4.2e12, help="bytes a second of memory")
    given = parser.parse_args()
    size = replace(FULL, layers=given.layers)
    predict(size, given.rate)
    if given.predict:
        return
    if given.resident is not None:
        os.environ[knobs.compile_processes.name] = "0"  # others do not know what is changed here
        grid_streams.RESIDENT = given.resident
    net, inputs = example(size, torch.bfloat16, "cuda")
    say("the model is there")
    found: dict[str, Step] = {}
    with torch.no_grad():
        for form in given.forms.split(","):
            try:
                fast = compiled(net, form, inputs)
                (made,) = fast.units[0].programs
                call = partial(fast, *inputs)
                say(f"{form}: {medians({form: [call]}, 20)[form] * 1e6:.0f} us")
                if FORMS[form].timed:
                    timeline(made)
                if made.tasks is not None and given.phases:
                    by_phase(made, call)
                found[form] = call
            except Exception as why:  # the other forms are worth their time
                say(f"{form}: {type(why).__name__}: {why}")
        table(found, sum(x.bytes for x in expected(size)), given.rounds)


if __name__ == "__main__":
    main()
