"""The launches of a training step, the slowest first, with what they cost at least:

    python -m tests.gpu.training bert resnet50          # on a GPU: measured beside the floor
    python -m tests.gpu.training bert --layers 1 --without   # no GPU: estimates from the loops

Forward and backward are those of the checks `training …` of tests.gpu. Each launch is timed where
it stands in a step, on the memory that it has there. Then what the host does in a step is counted.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
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
from tilewright.runtime.cuda.image import Work
from tilewright.runtime.cuda.machine import Machine
from tilewright.runtime.cuda.module import Launcher
from tilewright.runtime.cuda.plan import Planned, PlannedCall
from tilewright.runtime.cuda.program import CudaProgram
from tilewright.runtime.cuda.replay import Replay
from tilewright.runtime.cuda.stream import Event
from tilewright.runtime.program_data import KernelInfo

REPEATED = 5  # launches of one kind, of which the mean is taken
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


def rows(made: CudaProgram, measured: dict[str, list[float]] | None) -> Iterator[Row]:
    """Of a program. Measured times are by kernel and number of the launch in it."""
    for k in made.kernels:
        found = _costs(k.group, k.trace, made.data.target)
        name = made.details.graph.name if made.details.graph is not None else ""
        for n, c in enumerate(found):
            part = f" {n + 1}/{len(found)}" if len(found) > 1 else ""
            times = (measured or {}).get(f"{k.symbol} {n}")
            each = sum(times) / len(times) if times else None
            able = _library(k.group, made.data.target)
            yield Row(name, _title(k), part, k.calls, c, able, each)


def _title(k: KernelInfo) -> str:
    return f"{k.symbol} {k.name}"


class Timed:
    """Programs that time each launch where it stands, in place of replaying a graph."""

    def __init__(self) -> None:
        self.found: dict[int, dict[str, list[float]]] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        timed = self

        def run(p: CudaProgram, bound: Any, others: Any, outputs: Any, dims: Any, s: int) -> None:
            room = p._rooms.get(s) or p._new_room(s)
            shape = p._shape(room, dims)
            addresses = p._addresses(room, shape, bound, others, outputs)
            timed._actions(p, shape.plan.straight or (), addresses, s)

        with pytest.MonkeyPatch.context() as m:
            m.setattr(CudaProgram, "_run", run)
            m.setattr(program._Room, "replayed", lambda *_: False)
            yield

    def _actions(
        self, p: CudaProgram, actions: Sequence[Any], addresses: list[int], stream: int
    ) -> None:
        found = self.found.setdefault(id(p), {})
        for place, name in zip(actions, _names(p), strict=False):
            one = self._one(p, place, addresses, stream)
            begin, end = Event(p.machine.device), Event(p.machine.device)
            one()
            begin.record(stream)
            for _ in range(REPEATED):
                one()
            end.record(stream)
            found.setdefault(name, []).append(end.since(begin) / REPEATED)
        for place in actions[len(_names(p)) :]:  # what reports
            self._one(p, place, addresses, stream)()

    def _one(
        self, p: CudaProgram, a: Planned | PlannedCall, addresses: list[int], stream: int
    ) -> Callable[[], None]:
        values = a.values(addresses)
        if isinstance(a, Planned):
            return lambda: a.launcher.again(values, a.blocks, stream)
        libraries = p.machine.libraries
        assert libraries is not None
        return lambda: libraries.run(a.call, values)


def _names(p: CudaProgram) -> list[str]:
    """Of each launch of a program: its kernel, and its number there."""
    out: list[str] = []
    for a in p._entries[p.data.entry].actions:
        assert isinstance(a, Work), "a step branches on data"
        image = p.code.images[a.symbol]
        out += [f"{a.symbol} {k}" for k in range(len(image.calls) + len(image.launches))]
    return out


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
        print(f"  in one step: {said}", flush=True)
        timed = Timed()
        if not without:
            with timed.running():
                step()
                step()
    sessions, _ = history_of(fast)
    programs = [p for s in sessions for u in s.units for p in u.programs]
    whole = [r for p in programs for r in rows(p, timed.found.get(id(p)))]
    for p in programs:
        own = list(rows(p, timed.found.get(id(p))))
        took, least = (sum(r.count * x(r) for r in own) for x in (lambda r: r.each, _floor))
        count = sum(r.count for r in own)
        title = p.details.graph.name
        print(f"  {title}: {count} launches, {took * 1e6:.0f} us, floor {least * 1e6:.0f}")
    print(head(not without))
    for r in sorted(whole, key=lambda r: -r.count * r.each)[:most]:
        print(r, flush=True)


def _floor(r: Row) -> float:
    return r.cost.floor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", choices=sorted(MODELS))
    parser.add_argument("--layers", type=int, default=0, help="of each list of layers; 0: all")
    parser.add_argument("--rows", type=int, default=40, help="of the table")
    parser.add_argument("--without", action="store_true", help="a GPU: nothing runs")
    given = parser.parse_args()
    for name in given.models:
        torch._dynamo.reset()
        shown(name, given.layers, given.rows, given.without or not available())


if __name__ == "__main__":
    main()
