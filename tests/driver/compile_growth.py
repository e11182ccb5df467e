"""Compile time of programs that repeat themselves: layers, steps of a loop, random operators.

    python -m tests.driver.compile_growth                 # the whole table
    python -m tests.driver.compile_growth steps layers    # some programs
    TILEWRIGHT_REGIONS=0 python -m tests.driver.compile_growth layers    # without regions

Each program is compiled at several sizes without a cache, and compared with PyTorch: each in a
process of its own, since a first compilation also loads the compiler. Seconds are those of the
processor: first what is done here, then with what PyTorch takes to capture the program, then those
of each stage. A ratio is of the seconds here, to those of the size that a program is compared with.
Bytes are those of the machine code, of kernels and of the functions that call them.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import patch

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import tilewright as tw
from tests.driver.scaling import Family, Run, measure, torch_calls
from tilewright.driver.program import compile, phases
from tilewright.runtime.program_data import ProgramData

Program = Callable[[int], tuple[Callable[..., Any], Sequence[Tensor]] | tuple[Run, Run]]


class Block(nn.Module):
    """A layer of a transformer, the norms first."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.dropout = heads, nn.Dropout(dropout)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.dropout(self.out(mixed))
        return x + self.dropout(self.down(F.gelu(self.up(self.norms[1](x)))))


def layers(n: int) -> Any:
    return nn.Sequential(*[Block(64, 4) for _ in range(n)]).eval(), (torch.randn(2, 32, 64),)


def training(n: int) -> tuple[Run, Run]:
    """A step of training with dropout, whose numbers are not eager's: gradients are finite."""
    model = nn.Sequential(*[Block(64, 4, 0.1) for _ in range(n)])
    x = torch.randn(2, 32, 64)

    def run() -> list[bool]:
        torch._dynamo.reset()
        with torch.enable_grad():
            tw.compile(model)(x).square().mean().backward()
        return [p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters()]

    return run, lambda: [True for _ in model.parameters()]


def mlp(n: int) -> Any:
    pairs = [m for _ in range(n) for m in (nn.Linear(64, 64), nn.ReLU())]
    return nn.Sequential(*pairs).eval(), (torch.randn(8, 64),)


def steps(n: int) -> Any:
    """A selective scan, written as a loop."""
    batch, width, states = 2, 64, 16

    def function(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        h = torch.zeros(batch, width, states)
        out = []
        for t in range(n):
            decay = torch.exp(dt[:, t, :, None] * a)
            h = decay * h + dt[:, t, :, None] * b[:, t, None, :] * x[:, t, :, None]
            out.append((h * c[:, t, None, :]).sum(-1))
        return torch.stack(out, 1)

    x, dt = torch.randn(batch, n, width), torch.rand(batch, n, width)
    b, c = torch.randn(2, batch, n, states)
    return function, (x, dt, -torch.rand(width, states), b, c)


def operators(n: int) -> Any:
    """Random operators on random values that were computed before."""
    draw = random.Random(n)
    choices: list[tuple[Callable[..., Tensor], int]] = [
        (torch.tanh, 1),
        (torch.sigmoid, 1),
        (lambda x: x - x.mean(-1, keepdim=True), 1),
        (lambda x: torch.softmax(x, -1), 1),
        (lambda x: x.roll(1, 0), 1),
        (lambda x: x.flip(1), 1),
        (lambda x, y: (x + y) * 0.5, 2),
        (lambda x, y: x * torch.cos(y), 2),
        (torch.maximum, 2),
        (lambda x, y: (x @ y.t()) @ y * 0.05, 2),
    ]
    plan = [(draw.randrange(len(choices)), draw.randrange(6), draw.randrange(6)) for _ in range(n)]

    def function(x: Tensor) -> Tensor:
        values = [x + k for k in range(6)]
        for which, a, b in plan:
            apply, count = choices[which]
            values = [*values[1:], apply(*(values[a], values[b])[:count])]
        return torch.stack(values)

    return function, (torch.rand(8, 16),)


# Sizes, and the one that others are compared with.
PROGRAMS: dict[str, tuple[Program, tuple[int, ...], int]] = {
    "steps": (steps, (16, 64, 256, 1024), 64),
    "layers": (layers, (2, 4, 8, 16, 32), 8),
    "training": (training, (2, 4, 8, 16, 32), 8),
    "mlp": (mlp, (50, 100, 200, 400), 50),
    "operators": (operators, (500, 1000, 2000, 4000, 8000), 500),
}


def cold(name: str, n: int) -> dict[str, Any]:
    """One program at one size, in a process of its own."""
    command = [sys.executable, "-m", "tests.driver.compile_growth", "--one", name, str(n)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


class Stages(phases.Phases):
    """Seconds of the stages of all programs."""

    total_of: ClassVar[dict[str, float]] = {}

    def __setitem__(self, name: str, seconds: float) -> None:
        before = Stages.total_of.get(name, 0.0)
        Stages.total_of[name] = before + seconds - self.get(name, 0.0)
        super().__setitem__(name, seconds)


def one(name: str, n: int) -> dict[str, Any]:
    make = PROGRAMS[name][0]
    code = Counter[str]()
    made = compile.Builder.data

    def both(n: int) -> tuple[Run, Run]:
        torch.manual_seed(n)
        what, with_ = make(n)
        return (what, with_) if callable(with_) else torch_calls(what, with_)

    def data(builder: compile.Builder) -> ProgramData:
        code.update(kernels=sum(len(k.image) for k in builder.kernels.values()))
        code.update(entries=len(builder.image), count=len(builder.kernels))
        return made(builder)

    clock = SimpleNamespace(perf_counter=time.process_time)
    with (
        patch.object(compile, "Phases", Stages),
        patch.object(phases, "time", clock),
        patch.object(compile.Builder, "data", data),
    ):
        found = measure(Family(name, both, n, ()), n)
    stages = {k: v for k, v in Stages.total_of.items() if v > 0.0005}
    rest = {"translation": found.seconds - sum(stages.values())}
    return {**asdict(found), "stages": rest | stages, "code": dict(code)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=", ".join(PROGRAMS))
    parser.add_argument("--most", type=int, default=10**6, help="no larger sizes")
    parser.add_argument("--one", nargs=2, metavar=("PROGRAM", "SIZE"), help="in this process")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.one[0], int(options.one[1]))))
        return
    console = Console()
    titles = ("program", "size", "seconds here", "with capture", "ratio", "stages", "code")
    table = Table(*titles)
    for name in options.programs or PROGRAMS:
        _, sizes, compared = PROGRAMS[name]
        found = {n: cold(name, n) for n in sizes if n <= options.most}
        for n, m in found.items():
            base = found.get(compared, m)["seconds"]
            seconds = m["error"] or f"{m['seconds']:.2f}"
            stages = ", ".join(f"{k} {v:.2f}" for k, v in m["stages"].items())
            code = ", ".join(f"{k} {v}" for k, v in m["code"].items())
            row = seconds, f"{m['whole']:.2f}", f"{m['seconds'] / base:.2f}", stages, code
            table.add_row(name, str(n), *row)
            print(name, n, *row, flush=True)  # before all are done
    console.print(table)


if __name__ == "__main__":
    main()
