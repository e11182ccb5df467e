"""The launches of a training step, the slowest first, with what they cost at least:

    python -m tests.gpu.training bert resnet50          # on a GPU: measured beside the floor
    python -m tests.gpu.training bert --times           # steps in milliseconds, beside peers
    python -m tests.gpu.training bert --layers 1 --without   # no GPU: estimates from the loops

Forward and backward are those of the checks `training …` of tests.gpu. Launches are timed one by
one in the order of their program, each between two events, while the GPU is behind the host: so
caches hold what they hold in a step. What the host does in a step is counted: a forward and a
backward pass are each one graph that is launched.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from tests.gpu.fake import FakeLibrary, on_fake_gpu
from tests.gpu.launch_costs import Cost, costs
from tests.gpu.library_checks import bert_step, convolutions_step, loss_of
from tilewright import targets
from tilewright.base.errors import Refused
from tilewright.driver.api import history_of
from tilewright.driver.program import stages
from tilewright.ir.target import Target
from tilewright.kernel.defaults.choices import Choices
from tilewright.kernel.nest import start
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import apply, parse_trace
from tilewright.kernel.text import parse_group
from tilewright.runtime.cuda import program
from tilewright.runtime.cuda.device import describe
from tilewright.runtime.cuda.driver import Driver, available
from tilewright.runtime.cuda.machine import Machine
from tilewright.runtime.cuda.module import Launcher
from tilewright.runtime.cuda.plan import Planned
from tilewright.runtime.cuda.program import CudaProgram
from tilewright.runtime.cuda.replay import Replay
from tilewright.runtime.cuda.stream import Event
from tilewright.runtime.program_data import KernelInfo

PARTS = ("zero_grad", "forward", "backward", "optimizer")
ROUNDS = 20
BEHIND = 40_000_000  # cycles of a GPU: while launches are enqueued
STEPS = 3  # of which the mean is taken
MODELS = {"bert": bert_step, "resnet50": convolutions_step}


@dataclass(frozen=True)
class Row:
    """Launches of a program that are alike; seconds of one."""

    program: str
    kernel: str
    part: str
    count: int
    cost: Cost
    library: str
    measured: float | None = None

    @property
    def each(self) -> float:
        return self.cost.estimate if self.measured is None else self.measured

    def __str__(self) -> str:
        c = self.cost
        size = f"{c.blocks} x {c.threads}" if c.threads else "library"
        us = "" if self.measured is None else f"{self.measured * 1e6:9.1f}"
        return (
            f"{self.count * self.each * 1e6:10.1f} {self.count:4d} {us} {c.estimate * 1e6:9.1f} "
            f"{c.floor * 1e6:8.1f} {size:>14} {c.flops / 1e9:8.2f} {c.moved / 1e6:8.1f}  "
            f"{self.program} {self.kernel}{self.part}  [{c.why}] {self.library}"
        )


def head(measured: bool) -> str:
    us = " measured" if measured else ""
    return (
        f"{'us in all':>10} {'x':>4} {us} {'estimate':>9} {'floor':>8} {'launch':>14} "
        f"{'GFLOP':>8} {'MB':>8}  kernel [what it waits for] library"
    )


@cache
def _costs(group: str, trace: str, target: Target) -> tuple[Cost, ...]:
    return tuple(costs(apply(start(parse_group(group)), parse_trace(trace)), target))


@cache
def _library(group: str, target: Target) -> str:
    """Whether a library's call is a candidate."""
    try:
        default_schedule(parse_group(group), target, Choices(library=True))
    except Refused:
        return ""
    return "library"


def rows(made: CudaProgram, measured: Mapping[str, Sequence[float]]) -> Iterator[Row]:
    """Of a program. Measured times are by names of launches."""
    for k in made.kernels:
        image = made.code.images[k.symbol]
        names = [*("" for _ in image.calls), *(x.symbol for x in image.launches)]
        found = _costs(k.group, k.trace, made.data.target)
        name = made.details.graph.name if made.details.graph is not None else ""
        for n, c in enumerate(found):
            part = f" {n + 1}/{len(found)}" if len(found) > 1 else ""
            times = measured.get(names[n] if n < len(names) else "")
            each = sum(times) / len(times) if times else None
            able = _library(k.group, made.data.target)
            yield Row(name, _title(k), part, k.calls, c, able, each)


def _title(k: KernelInfo) -> str:
    return f"{k.symbol} {k.name}"


def launch_times(
    made: CudaProgram, behind: Callable[[], object] = lambda: None
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds of the launches of a program, by their names, and of library calls, by their
    functions. `behind` keeps the GPU busy while launches are enqueued. The program writes to where
    its last call wrote, so results and what is kept for gradients have to be alive."""
    ours: dict[str, list[float]] = {}
    others: dict[str, list[float]] = {}
    (room,) = made._rooms.values()
    (shape,) = room.shapes.values()
    addresses, stream = shape.graphs[0].addresses, made.machine.stream()
    actions = shape.plan.straight or ()
    events = [Event(made.machine.device) for _ in range(len(actions) + 2)]
    for _ in range(STEPS):
        behind()
        events[0].record(stream)
        events[1].record(stream)  # so long takes nothing
        for a, event in zip(actions, events[2:], strict=True):
            made._launch([a], addresses, stream)
            event.record(stream)
        nothing = events[1].since(events[0])
        for k, a in enumerate(actions):
            took = max(0.0, events[k + 2].since(events[k + 1]) - nothing)
            if isinstance(a, Planned):
                ours.setdefault(a.launcher.function.name, []).append(took)
            else:
                others.setdefault(a.call.function, []).append(took)
    return ours, others


class Idle(FakeLibrary):
    """A GPU that is not there, and does nothing: programs are compiled and called, never run."""

    multiprocessors = 132

    def do_cuModuleLoadDataEx(self, out: Any, *_: Any) -> None:
        out._obj.value = self.new(None, {})

    def do_cuModuleGetFunction(self, out: Any, *_: Any) -> None:
        out._obj.value = self.new(None, {})

    do_cuLaunchKernel = do_cuGraphLaunch = FakeLibrary.nothing
    do_cuGraphExecKernelNodeSetParams_v2 = FakeLibrary.nothing

    def do_cuGraphAddKernelNode_v2(self, out: Any, *_: Any) -> None:
        out._obj.value = self.new(None, {})


def idle_machine(target: Target) -> tuple[Idle, Machine]:
    library = Idle()

    def allocate(size: int) -> tuple[int, object]:
        made = torch.empty(size + 256, dtype=torch.uint8)
        return made.data_ptr() + -made.data_ptr() % 256, made

    device = describe(0, Driver(library))
    return library, Machine(device, target, allocate, lambda: 0, lambda: False, lambda: None)


@contextmanager
def idly(m: pytest.MonkeyPatch) -> Iterator[None]:
    """Code is emitted, and neither assembled nor cached."""
    m.setenv("TILEWRIGHT_COMPILE_PROCESSES", "0")
    m.setenv("TILEWRIGHT_CACHE", "off")
    m.setattr(stages, "assembly", lambda text, target: "")
    m.setattr(program, "cached_ptx", lambda text, target: "")
    yield


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """What the host does meanwhile: graphs that it launches, launches one by one, nodes of graphs
    that get other addresses, and torch's operators."""
    found: Counter[str] = Counter()

    def count(owner: type, name: str, what: str) -> None:
        plain = getattr(owner, name)

        def called(*args: Any) -> Any:
            found[what] += 1
            return plain(*args)

        m.setattr(owner, name, called)

    with pytest.MonkeyPatch.context() as m:
        count(Replay, "alone", "graphs at the addresses of an earlier step")
        count(Replay, "__call__", "graphs")
        count(Replay, "replace", "nodes with other addresses")
        count(Launcher, "again", "single launches")
        count(CudaProgram, "_realigned", "calls at odd addresses")
        with profile(activities=[ProfilerActivity.CPU]) as torch_side:
            yield found
    for e in torch_side.key_averages():
        if e.key.startswith("aten::"):
            found[e.key] += e.count


def shortened(module: nn.Module, layers: int) -> nn.Module:
    """The model with so many layers of each list of them; stages, which differ, stay."""
    for name, part in list(module.named_modules()):
        where, _, own = name.rpartition(".")
        if isinstance(part, (nn.ModuleList, nn.Sequential)) and own in ("layer", "layers"):
            if own == "layers" or isinstance(part, nn.ModuleList):
                setattr(module.get_submodule(where), own, part[:layers])
    return module


def shown(name: str, layers: int, most: int, without: bool) -> None:
    module, inputs = MODELS[name](torch.device("cpu" if without else "cuda"))
    module = shortened(module, layers) if layers else module
    with pytest.MonkeyPatch.context() as m, idly(m) if without else nullcontext():
        if without:
            _, machine = idle_machine(targets.get("cuda:90"))
            fast = on_fake_gpu(module, machine, strict=True, choose="default")
        else:
            fast = torch.compile(module, backend="tilewright", options={"strict": True})

        def step() -> None:
            module.zero_grad(set_to_none=True)
            loss_of(fast(*inputs)).backward()

        began = time.perf_counter()
        step()
        print(f"{name}: first step {time.perf_counter() - began:.1f} s", flush=True)
        for _ in range(4):
            step()
        with counted() as calls:
            step()
        said = ", ".join(f"{n} {what}" for what, n in calls.most_common(20))
        results = fast(*inputs)
        first = results[0] if isinstance(results, (tuple, list)) else results
        way = type(first.grad_fn).__name__  # StepBackward: not AOTAutograd's wrapper
        print(f"  in one step: {said}; gradients by {way}", flush=True)
    sessions, _ = history_of(fast)
    programs = [p for s in sessions for u in s.units for p in u.programs]
    behind = (lambda: torch.cuda._sleep(BEHIND)) if not without else lambda: None
    found: list[tuple[dict[str, list[float]], dict[str, list[float]]]] = [({}, {})] * len(programs)
    if not without:
        module.zero_grad(set_to_none=True)
        results = fast(*inputs)
        loss_of(results).backward(retain_graph=True)  # all memory stays in use
        found = [launch_times(p, behind) for p in programs]
        del results
    others: dict[str, list[float]] = {}
    for name, times in (x for _, called in found for x in called.items()):
        others.setdefault(name, []).extend(times)
    whole = [r for p, (ours, _) in zip(programs, found, strict=True) for r in rows(p, ours)]
    if not without:
        every = ([x for x, _ in found], [x for _, x in found])
        each = [sum(sum(map(sum, x.values())) for x in kind) / STEPS * 1e6 for kind in every]
        print(f"  our kernels {each[0]:.0f} us of a step, those of libraries {each[1]:.0f}")
    for p, (ours, _) in zip(programs, found, strict=True):
        own = list(rows(p, ours))
        took, least = (sum(r.count * x(r) for r in own) for x in (lambda r: r.each, _floor))
        count = sum(r.count for r in own)
        title = p.details.graph.name
        print(f"  {title}: {count} launches, {took * 1e6:.0f} us, floor {least * 1e6:.0f}")
    print(head(not without))
    for r in sorted(whole, key=lambda r: -r.count * r.each)[:most]:
        print(r, flush=True)
    for name, times in sorted(others.items(), key=lambda x: -sum(x[1]))[: most // 2]:
        us = sum(times) / len(times) * 1e6
        print(f"{sum(times) / STEPS * 1e6:10.1f} {len(times) // STEPS:4d} {us:9.1f}  {name[:100]}")


class Steps:
    """Training steps of a model, and the host's milliseconds of their parts."""

    def __init__(self, name: str, by: str) -> None:
        torch._dynamo.reset()
        module, self.inputs = MODELS[name](torch.device("cuda"))
        self.optimizer = torch.optim.SGD(module.parameters(), 1e-6, fused=True)
        known: dict[str, dict[str, Any]] = {"tilewright": {"backend": by}, "inductor": {}}
        how = known.get(by, {"mode": by})
        self.call = module if by == "eager" else torch.compile(module, **how)
        self.parts: dict[str, list[float]] = {what: [] for what in PARTS}

    def __call__(self, optimizes: bool) -> None:
        marks = [time.perf_counter()]

        def mark() -> None:
            marks.append(time.perf_counter())

        self.optimizer.zero_grad(set_to_none=True)
        mark()
        loss = loss_of(self.call(*self.inputs))
        mark()
        loss.backward()
        mark()
        if optimizes:
            self.optimizer.step()
        mark()
        for what, first, last in zip(PARTS, marks, marks[1:], strict=False):
            self.parts[what].append((last - first) * 1e3)

    def timed(self, rounds: int, optimizes: bool) -> float:
        """Milliseconds of a step, of so many that do not wait for each other."""
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(rounds):
            self(optimizes)
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / rounds * 1e3


def times(name: str, peers: Sequence[str]) -> None:
    """Milliseconds of a step: back to back, alone, and of the host for each of its parts."""
    for by in ("tilewright", *peers):
        step, found = Steps(name, by), {}
        for what, optimizes in (("back to back", False), ("with the optimizer", True)):
            step.timed(8, optimizes)
            found[what] = step.timed(ROUNDS, optimizes)
        step.parts = {what: [] for what in PARTS}
        found["alone"] = median([step.timed(1, True) for _ in range(ROUNDS)])
        found |= {f"host's {what}": median(x) for what, x in step.parts.items()}
        said = ", ".join(f"{what} {ms:.2f}" for what, ms in found.items())
        print(f"{name} by {by}, ms of a step: {said}", flush=True)


def _floor(r: Row) -> float:
    return r.cost.floor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", choices=sorted(MODELS))
    parser.add_argument("--layers", type=int, default=0, help="of each list of layers; 0: all")
    parser.add_argument("--rows", type=int, default=40, help="of the table")
    parser.add_argument("--without", action="store_true", help="a GPU: nothing runs")
    parser.add_argument("--times", action="store_true", help="of whole steps, beside peers")
    parser.add_argument("--peers", nargs="*", default=["reduce-overhead"], help="for --times")
    given = parser.parse_args()
    for name in given.models:
        torch._dynamo.reset()
        if given.times:
            times(name, given.peers)
            continue
        shown(name, given.layers, given.rows, given.without or not available())


if __name__ == "__main__":
    main()
