"""Programs of a new user beside eager and Inductor: are they right, and is any of them slower?

    python -m tests.driver.ordinary_programs                      # all of the tables
    python -m tests.driver.ordinary_programs beam top_p           # some, by parts of their names
    python -m tests.driver.ordinary_programs --rounds 31 --json found.json
    python -m tests.driver.ordinary_programs --peers eager        # without Inductor
    python -m tests.driver.ordinary_programs add_of --peers dynamo eager

Ours is `torch.compile(…, backend="tilewright")`, or `tw.compile(…)` with `--direct`. All contenders
run in one process on one thread and take turns. Times are seconds of the processor, medians of the
rounds, so that other processes disturb them little. The table has the time of ours and how many
times faster it is than each peer
(below 1: slower; `dynamo` is `backend="eager"`, whose guards every backend pays for), what runs in
eager, and where the graph breaks. A result is right where its error against float64 is at most
twice eager's own plus four units in the last place of the largest value. The exit code is 1 where a
result is wrong, and with `--slower 0.9` where a ratio is below that.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import logging
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from types import FunctionType
from typing import Any

import torch
import torch._dynamo
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch._dynamo.utils import clear_compilation_metrics, graph_break_reasons
from torch.utils import _pytree as pytree

import tilewright as tw
from tests.driver import (  # noqa: F401
    ordinary_learning,
    ordinary_made,
    ordinary_models,
    ordinary_more,
    ordinary_numbers,
    ordinary_physics,
    ordinary_sequences,
    ordinary_series,
    ordinary_signals,
    ordinary_spaces,
    ordinary_vision,
)
from tests.driver.ordinary_table import PROGRAMS, Ordinary
from tilewright.bench.measure import busy, take_turns
from tilewright.bench.oracle import InDouble, disagreements, in_double
from tilewright.runtime import pool

ROUND_SECONDS = 0.03
NARROW = (torch.float32, torch.bfloat16, torch.complex64)


class WeightsInDouble(InDouble):
    """Tensors that a function finds by itself, its weights, are widened where they are used."""

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        wide = lambda x: _wide(x) if x.dtype in NARROW else x  # noqa: E731
        args, kwargs = pytree.tree_map_only(Tensor, wide, (args, kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)


def _wide(x: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction():
        return x.to(torch.complex128 if x.is_complex() else torch.float64)


@dataclass
class Found:
    """Of one program. Times are seconds of a call; `peers` has those of the others by name."""

    name: str
    wrong: list[str] = field(default_factory=list)
    failed: str | None = None
    ours: float = 0.0
    peers: dict[str, float] = field(default_factory=dict)
    shortest: dict[str, float] = field(default_factory=dict)
    fallbacks: list[str] = field(default_factory=list)
    breaks: list[str] = field(default_factory=list)

    def ratio(self, peer: str) -> float | None:
        return self.peers[peer] / self.ours if peer in self.peers and self.ours else None


def call_of(p: Ordinary, function: Callable[..., Any]) -> Callable[[], Any]:
    """What a round repeats."""
    if not p.gradient:

        def plain() -> Any:
            with torch.no_grad():
                return function(*p.inputs)

        return plain
    wanted = [x for x in p.inputs if isinstance(x, Tensor) and x.requires_grad]
    if isinstance(p.function, nn.Module):
        wanted += list(p.function.parameters())

    def with_gradient() -> Any:
        result = function(*p.inputs)
        return result, torch.autograd.grad(result, wanted)

    return with_gradient


def exact(p: Ordinary) -> Any:
    """The result in float64."""
    if not p.gradient:
        with torch.no_grad(), WeightsInDouble():
            return in_double(p.function, *p.inputs)
    inputs = [x.detach().double() if _floats(x) else x for x in p.inputs]
    wanted = []
    for k, x in enumerate(p.inputs):
        if isinstance(x, Tensor) and x.requires_grad:
            wanted.append(inputs[k].requires_grad_())
    function = p.function
    if isinstance(function, nn.Module):
        function = copy.deepcopy(function).double()
        wanted += list(function.parameters())
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with WeightsInDouble():
            result = function(*inputs)
            return result.detach(), torch.autograd.grad(result, wanted)
    finally:
        torch.set_default_dtype(before)


def _floats(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def cpu_seconds(call: Callable[[], object], repeats: int) -> float:
    collecting = gc.isenabled()
    gc.disable()
    try:
        start = time.thread_time()
        for _ in range(repeats):
            call()
        return (time.thread_time() - start) / repeats
    finally:
        if collecting:
            gc.enable()


def timed(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    measures: dict[str, Callable[[], float]] = {}
    for name, call in calls.items():
        for _ in range(5):
            call()
        once = min(cpu_seconds(call, 1) for _ in range(3))
        repeats = max(1, round(ROUND_SECONDS / max(once, 1e-7)))
        measures[name] = lambda c=call, n=repeats: cpu_seconds(c, n)
    return take_turns(measures, rounds)


def apart(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same for another compiler, with code of its own. Torch marks by code object what a
    compiler passes over, so that all others would run it in eager from then on: a function in which
    the graph breaks inside a loop, or nn.GRU and whatever comes after it, since all modules of
    torch.nn that are compiled by themselves share one."""
    if isinstance(function, FunctionType):
        f, own = function, function.__code__.replace()
        copied = FunctionType(own, f.__globals__, f.__name__, f.__defaults__, f.__closure__)
        copied.__kwdefaults__ = f.__kwdefaults__
        return copied
    if not isinstance(function, nn.RNNBase):
        return function

    def called(*args: Any) -> Any:
        return function(*args)

    return FunctionType(called.__code__.replace(), globals(), "called", None, called.__closure__)


def measured(name: str, peers: Sequence[str], rounds: int, direct: bool = False) -> Found:
    torch.manual_seed(0)
    torch._dynamo.reset()
    clear_compilation_metrics()  # breaks of other programs that go through the same frames
    graph_break_reasons.clear()
    p, found = PROGRAMS[name](), Found(name)
    eager = call_of(p, p.function)
    calls = {"ours": eager}
    try:
        backend: Any = "tilewright"
        ours = tw.compile(p.function) if direct else torch.compile(p.function, backend=backend)
        calls["ours"] = call_of(p, ours)
        got = calls["ours"]()
        explained = tw.explain(ours)
        found.fallbacks = [str(e.message) for e in explained.fallbacks]
        found.breaks = [str(e.message) for e in explained.graph_breaks]
        if p.judge is not None:
            problem = p.judge(got)
            found.wrong = [] if problem is None else [problem]
        else:
            found.wrong = disagreements(got, eager(), exact(p))
    except Exception as problem:  # a program that fails is a line of the table
        found.failed = f"{type(problem).__name__}: {problem}".splitlines()[0]
        return found
    if "eager" in peers:
        calls["eager"] = eager
    for peer, backend in (("inductor", "inductor"), ("dynamo", "eager")):
        if peer not in peers:
            continue
        try:
            calls[peer] = call_of(p, torch.compile(apart(p.function), backend=backend))
            calls[peer]()
        except Exception as problem:  # a peer's fault is not ours
            del calls[peer]
            print(f"{name}: {peer} fails: {str(problem).splitlines()[0]}", file=sys.stderr)
    times = timed(calls, rounds)
    found.ours = median(times.pop("ours"))
    found.peers = {peer: median(x) for peer, x in times.items()}
    return found


def table(every: Sequence[Found], peers: Sequence[str]) -> Table:
    out = Table(title="times faster than", title_justify="left")
    out.add_column("program")
    for column in ("ours, µs", *peers):
        out.add_column(column, justify="right")
    out.add_column("remarks")
    for f in every:
        ratios = [f.ratio(p) for p in peers]
        cells = ["" if r is None else f"[{'red' if r < 1 else 'green'}]{r:.2f}[/]" for r in ratios]
        out.add_row(f.name, f"{f.ours * 1e6:.1f}", *cells, remarks(f))
    return out


def remarks(f: Found) -> str:
    said = [f"[red]{f.failed}[/]"] if f.failed else []
    said += [f"[red]wrong: {w}[/]" for w in f.wrong]
    said += [f"fallback: {w}" for w in f.fallbacks] + [f"break: {w}" for w in f.breaks]
    return "\n".join(said)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("programs", nargs="*", help="parts of names; all where none is given")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--peers", nargs="*", default=("eager", "inductor"))
    parser.add_argument("--direct", action="store_true", help="ours is tw.compile")
    parser.add_argument("--slower", type=float, default=0.0, help="fail below this ratio")
    parser.add_argument("--json", type=Path, help="write every number to this file")
    given = parser.parse_args()
    names = [n for n in PROGRAMS if not given.programs or any(p in n for p in given.programs)]
    if not names:
        parser.error(f"no program has such a name; there are {', '.join(PROGRAMS)}")
    peers = [p for p in given.peers if p != "inductor" or shutil.which("g++")]
    pool.set_threads(1)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("torch").setLevel(logging.ERROR)
    if (why := busy()) is not None:
        print(why)
    every: list[Found] = []
    for name in names:
        every.append(measured(name, peers, given.rounds, given.direct))
        f = every[-1]
        ratios = ", ".join(f"{p} {f.ratio(p) or 0:.2f}" for p in peers)
        print(f"{name}: {f.ours * 1e6:.1f} µs, {ratios}", file=sys.stderr, flush=True)
    Console(width=None if sys.stdout.isatty() else 160).print(table(every, peers))
    if given.json:
        given.json.write_text(json.dumps([asdict(f) for f in every], indent=1))
    ratios = [r for f in every for p in peers if (r := f.ratio(p)) is not None]
    bad = any(f.wrong or f.failed for f in every) or any(r < given.slower for r in ratios)
    return int(bad)


if __name__ == "__main__":
    raise SystemExit(main())
