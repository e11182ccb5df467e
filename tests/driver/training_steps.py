"""Training steps (forward, backward, optimizer) of nine networks by ours, eager and Inductor.

    python -m tests.driver.training_steps [NAME …] [--rounds 10] [--small] [--json out.json]
    python -m tests.driver.training_steps transformer --activation-memory 0.5   # beside without
    python -m tests.driver.training_steps unet --profile       # our kernels by their time
    python -m tests.driver.training_steps lstm --cpu-time      # one thread, and its own time
    python -m tests.driver.training_steps --check --small      # gradients against float64

All are compiled in one process, on the same weights, and make steps in turn; the table has medians.
Memory is measured in processes of their own: `saved` is what autograd holds between a forward and
its backward pass, weights and the batch left out; `peak` is how far a step grows the process, with
gradients, after what the compiler kept of earlier steps was given back. `frugal` is ours with
`activation_memory`. Inductor takes part where there is a compiler of C++. On a machine that does
other work, only `--cpu-time` says something.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import json
import math
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tilewright as tw
from tests.driver import training_profile
from tests.driver.training_models import MODELS, Trained, trained, without_chance
from tilewright.bench.measure import in_turn
from tilewright.bench.resident import ResidentPeak
from tilewright.runtime import pool

CONTENDERS = ("ours", "eager", "inductor", "frugal")
NUDGES = 4  # runs of eager with other last bits, where a gradient is further off
WARM = 3  # steps before anything is measured: the first compiles, the second packs


@dataclass
class Found:
    """What was measured of one contender."""

    seconds: list[float] = field(default_factory=list)
    saved: int = 0  # bytes between forward and backward
    peak: int = 0  # bytes that a step grows the process by
    fallbacks: int = 0
    kernels: int = 0

    @property
    def median(self) -> float:
        return statistics.median(self.seconds) if self.seconds else math.nan


class Step:
    """One contender's training step."""

    def __init__(self, by: str, given: Trained, optimizer: torch.optim.Optimizer, **options: Any):
        self.module, self.batch, self.optimizer = given.module, given.batch, optimizer
        self.parts: list[Any] = []
        self.call: Callable[..., Any] = given.module
        self.update: Callable[[], Any] = optimizer.step

        def update() -> None:  # a frame of its own: torch leaves the one of `step` to eager
            optimizer.step()

        if by in ("ours", "frugal"):
            self.call = tw.compile(given.module, **options)
            self.update = torch.compile(update, backend="tilewright")
            self.parts = [self.call, self.update]
        elif by == "inductor":
            self.call = torch.compile(given.module)
            self.update = torch.compile(update)

    def __call__(self) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.call(*self.batch)
        loss.backward()
        self.update()
        return loss.detach()

    def saved_bytes(self) -> int:
        """Memory that autograd holds when a forward pass is over."""
        own = {x.untyped_storage().data_ptr() for x in self.module.state_dict().values()}
        own |= {x.untyped_storage().data_ptr() for x in self.batch}
        held: dict[int, int] = {}

        def pack(x: torch.Tensor) -> torch.Tensor:
            memory = x.untyped_storage()
            if memory.data_ptr() not in own:
                held[memory.data_ptr()] = memory.nbytes()
            return x

        self.optimizer.zero_grad(set_to_none=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            loss = self.call(*self.batch)
        del loss
        return sum(held.values())

    def peak_bytes(self) -> int:
        """How far a step grows the process."""
        self.optimizer.zero_grad(set_to_none=True)
        for p in training_profile.programs_of(self.parts):
            p.trim()
        with suppress(AttributeError, OSError):  # another library of C
            ctypes.CDLL(None).malloc_trim(0)
        grown = ResidentPeak()
        self()
        return grown.grown()


def contenders(asked: Sequence[str]) -> list[str]:
    if "inductor" in asked and shutil.which("g++") is None:
        print("Inductor is left out: it needs g++", flush=True)
        return [c for c in asked if c != "inductor"]
    return list(asked)


def made(name: str, small: bool) -> tuple[Trained, torch.optim.Optimizer]:
    given = trained(name, small)
    return given, given.optimizer(given.module.parameters())


def measured(name: str, by: Sequence[str], given: argparse.Namespace) -> dict[str, Found]:
    """Steps in turn."""
    torch._dynamo.reset()
    model, optimizer = made(name, given.small)
    steps = {c: Step(c, model, optimizer, **options_of(c, given)) for c in by}
    found = {c: Found() for c in by}
    for c, step in steps.items():
        began = time.perf_counter()
        for _ in range(WARM):
            step()
        print(f"{name}: {WARM} first steps of {c}, {time.perf_counter() - began:.1f} s", flush=True)
    clock = time.process_time if given.cpu_time else time.perf_counter
    for number in range(given.rounds):
        for c in in_turn(steps, number):
            if "frugal" in steps:  # it gives pages back, for which the next one would pay
                steps[c]()
            began = clock()
            steps[c]()
            found[c].seconds.append(clock() - began)
    for c, step in steps.items():
        for part in step.parts:
            report = tw.explain(part)
            found[c].fallbacks += len(report.fallbacks)
            found[c].kernels += sum(p.calls for p in report.programs)
    return found


def options_of(contender: str, given: argparse.Namespace) -> dict[str, Any]:
    return {"activation_memory": given.activation_memory} if contender == "frugal" else {}


def ours_of(given: argparse.Namespace) -> str:
    """The one of ours that is looked at alone."""
    return "ours" if given.activation_memory is None else "frugal"


def memory(name: str, by: str, given: argparse.Namespace) -> tuple[int, int]:
    """Bytes saved, and how far a step grows a process of its own."""
    command = [sys.executable, "-m", __spec__.name, name, "--only", by, "--memory-of-one"]
    command += ["--threads", str(given.threads)] + (["--small"] if given.small else [])
    if given.activation_memory is not None:
        command += ["--activation-memory", str(given.activation_memory)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    saved, peak = out.split()[-2:]
    return int(saved), int(peak)


def memory_of_one(name: str, by: str, given: argparse.Namespace) -> None:
    model, optimizer = made(name, given.small)
    step = Step(by, model, optimizer, **options_of(by, given))
    for _ in range(WARM):
        step()
    print(step.saved_bytes(), step.peak_bytes())


def facts(rows: dict[str, dict[str, Found]]) -> dict[str, Any]:
    def of(f: Found) -> dict[str, Any]:
        return asdict(f) | {"median": f.median}

    return {name: {c: of(f) for c, f in found.items()} for name, found in rows.items()}


def table(rows: dict[str, dict[str, Found]]) -> None:
    shown = [c for c in CONTENDERS if any(c in found for found in rows.values())]
    head = f"{'':12}" + "".join(f"{c:>30}" for c in shown)
    print(head + f"{'over eager':>12}{'inductor':>10}{'best':>7}{'kernels':>9}{'fallbacks':>10}")
    best = []
    for name, found in rows.items():
        line = f"{name:12}"
        for c in shown:
            f = found.get(c)
            said = "" if f is None else f"{f.median * 1e3:9.1f} ms {f.saved / 1e6:7.1f}"
            line += f"{said if f is None else f'{said} {f.peak / 1e6:7.1f} MB':>30}"
        ours = found.get("ours")
        if ours is not None:
            times = {c: found[c].median / ours.median for c in ("eager", "inductor") if c in found}
            line += f"{times.get('eager', math.nan):12.2f}{times.get('inductor', math.nan):10.2f}"
            if times:
                best.append(min(times.values()))
                line += f"{best[-1]:7.2f}"
            line += f"{ours.kernels:9}{ours.fallbacks:10}"
        print(line)
    if best:
        mean = math.exp(sum(map(math.log, best)) / len(best))
        print(f"geometric mean over the best of the others: {mean:.2f}, least {min(best):.2f}")
    for name, found in rows.items():
        for c in ("ours", "frugal"):
            print(_beside(name, c, found), end="")
    print("ms: median of a step; MB: saved between the passes, peak of a step")


def _beside(name: str, by: str, found: dict[str, Found]) -> str:
    """A line about one of ours: its peak over eager's, and what a bound of memory costs in time."""
    f, eager, ours = (found.get(c) for c in (by, "eager", "ours"))
    said = []
    if f and eager and f.peak and eager.peak:
        said.append(f"peak {f.peak / eager.peak:.2f} of eager's")
    if f and ours and f is not ours:
        said.append(f"time {f.median / ours.median:.2f} of ours")
    return f"{name} {by}: {', '.join(said)}\n" if said else ""


def check(name: str, given: argparse.Namespace) -> bool:
    """Loss and gradients of ours against float64: at most twice eager's own error, and 4 units in
    the last place of the largest value. Where more is seen, eager takes the same batch again with
    its last bits changed: a rectifier whose input is next to 0 has no slope to the last digits."""
    torch._dynamo.reset()
    model = trained(name, given.small)
    without_chance(model.module)
    exact = tuple(x.double() if x.is_floating_point() else x for x in model.batch)
    right = _gradients(copy.deepcopy(model.module).double(), exact)
    eager = _gradients(copy.deepcopy(model.module), model.batch)
    module = copy.deepcopy(model.module)
    ours = _gradients(module, model.batch, tw.compile(module, **options_of(ours_of(given), given)))
    if missing := right.keys() ^ ours.keys():
        print(f"{name}: no gradient on one side: {', '.join(sorted(missing))}")
        return False
    errors, allowed = _errors(ours, right), _errors(eager, right)
    wrong = _over(errors, allowed, right)
    told = f"{name}: {len(wrong)} of {len(right)} further from float64 than the rule allows"
    if wrong:
        drawn = torch.Generator().manual_seed(0)
        for _ in range(NUDGES):
            moved = _gradients(copy.deepcopy(model.module), _nudged(model.batch, drawn))
            allowed = {k: max(allowed[k], e) for k, e in _errors(moved, right).items()}
        wrong = _over(errors, allowed, right)
        told += f", {len(wrong)} of them than eager gets when last bits of the batch change"
    print(told)
    for key in wrong[:10]:
        print(f"  {key}: error {errors[key]:.2e}, eager's {allowed[key]:.2e}")
    return not wrong


def _gradients(
    module: nn.Module, batch: Sequence[torch.Tensor], call: Callable[..., Any] | None = None
) -> dict[str, torch.Tensor]:
    """Of a step, and its loss."""
    loss = (call or module)(*batch)
    loss.backward()
    found = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    return {"loss": loss.detach()} | found


def _nudged(batch: Sequence[torch.Tensor], drawn: torch.Generator) -> list[torch.Tensor]:
    """The same numbers, some of them one unit in the last place larger or smaller."""
    out = []
    for x in batch:
        if x.is_floating_point():
            sign = torch.randint(-1, 2, x.shape, generator=drawn)
            x = x * (1 + sign * torch.finfo(x.dtype).eps)
        out.append(x)
    return out


def _errors(found: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> dict[str, float]:
    return {k: float((found[k].double() - x).abs().max()) for k, x in right.items()}


def _over(
    errors: dict[str, float], eager: dict[str, float], right: dict[str, torch.Tensor]
) -> list[str]:
    """Gradients that are further off than the rule says; not a number is, too."""
    ulps = {k: 4 * torch.finfo(torch.float32).eps * float(x.abs().max()) for k, x in right.items()}
    return [k for k, e in errors.items() if not e <= 2 * eager[k] + ulps[k]]


def profile(name: str, given: argparse.Namespace) -> None:
    """Our kernels by the time that they take in a step."""
    model, optimizer = made(name, given.small)
    own = ours_of(given)
    step = Step(own, model, optimizer, **options_of(own, given))
    training_profile.shown(step, step.parts, given.rounds, given.cpu_time)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=[], help=f"of {', '.join(MODELS)}")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", nargs="+", choices=CONTENDERS)
    parser.add_argument("--activation-memory", type=float, metavar="SHARE", help="for frugal")
    parser.add_argument("--no-memory", action="store_true", help="no processes for memory")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--memory-of-one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.cpu_time:
        given.threads = 1
    torch.set_num_threads(given.threads)
    pool.set_threads(given.threads)
    if given.activation_memory is None and "frugal" in (given.only or ()):
        parser.error("frugal is ours within --activation-memory: say how much")
    if given.only is None:
        given.only = list(CONTENDERS if given.activation_memory is not None else CONTENDERS[:3])
    names = given.names or list(MODELS)
    for name in names:
        if name not in MODELS:
            parser.error(f"{name} is none of {', '.join(MODELS)}")
    if given.memory_of_one:
        memory_of_one(names[0], given.only[0], given)
        return 0
    if given.check:
        wrong = [name for name in names if not check(name, given)]
        return 1 if wrong else 0
    if given.profile:
        for name in names:
            profile(name, given)
        return 0
    by, rows = contenders(given.only), {}
    for name in names:
        rows[name] = measured(name, by, given)
        for c in () if given.no_memory else by:
            rows[name][c].saved, rows[name][c].peak = memory(name, c, given)
        if given.json:
            given.json.write_text(json.dumps(facts(rows), indent=1))
    table(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
