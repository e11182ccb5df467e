"""What it costs to check indices and divisors at each call: time with checks over time without.

    python -m tests.driver.check_costs                     # all programs
    python -m tests.driver.check_costs gather dlrm gpt2    # some, by parts of their names
    python -m tests.driver.check_costs --rounds 101 --threads 1 --json costs.json

Each program is compiled twice, with checks and with `checks=False`. Both take turns; the table has
the ratio of the medians with the interval that holds it with 95 %, and the ratio of the shortest
times. Programs in which nothing is left to check are named as such.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch._dynamo
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor, nn

import tilewright as tw
from tilewright.base.machine import usable_cores
from tilewright.bench.measure import MIN_ROUNDS, busy, interleaved, ratio, ratio_interval
from tilewright.runtime import pool

MODELS = "resnet50 mobilenetv2 bert gpt2 vit llama llama_decode1 mlp".split()

Program = tuple[Callable[..., Any], tuple[Tensor, ...]]
PROGRAMS: dict[str, Callable[[], Program]] = {}


def program(make: Callable[[], Program]) -> Callable[[], Program]:
    PROGRAMS[make.__name__] = make
    return make


def _indices(count: int, *shape: int) -> Tensor:
    return torch.randint(0, count, shape)


@program
def gather_1M_of_1k() -> Program:
    return (lambda x, i: x[i]), (torch.randn(1000), _indices(1000, 1 << 20))


@program
def gather_1M_of_1M() -> Program:
    return (lambda x, i: x[i]), (torch.randn(1 << 20), _indices(1 << 20, 1 << 20))


@program
def gather_along_rows() -> Program:
    return (lambda x, i: torch.gather(x, 1, i)), (torch.randn(1024, 512), _indices(512, 1024, 512))


@program
def gather_16k() -> Program:
    return (lambda x, i: x[i].relu()), (torch.randn(1000), _indices(1000, 1 << 14))


@program
def pairs_1M() -> Program:
    inputs = torch.randn(512, 512), _indices(512, 1 << 20), _indices(512, 1 << 20)
    return (lambda x, i, j: x[i, j]), inputs


@program
def divide_1M() -> Program:
    return (lambda a, b: a // b), (_indices(1000, 1 << 20), _indices(9, 1 << 20) + 1)


@program
def one_hot() -> Program:
    return (lambda i: F.one_hot(i, 64).float()), (_indices(64, 1 << 14),)


@program
def embedding_of_a_long_sequence() -> Program:
    return F.embedding, (_indices(32000, 1, 16384), torch.randn(32000, 256))


@program
def narrow_embedding() -> Program:
    return F.embedding, (_indices(10000, 1 << 16), torch.randn(10000, 8))


class Dlrm(nn.Module):
    """Sums of a few rows of many tables, the products of each two of them, and an MLP."""

    def __init__(self, tables: int = 16, rows: int = 10000, width: int = 32) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 128), nn.ReLU(), nn.Linear(128, width), nn.ReLU())
        self.top = nn.Sequential(
            nn.Linear(width + (tables + 1) ** 2, 256), nn.ReLU(), nn.Linear(256, 1)
        )

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = self.bottom(dense)
        bags = (table(i).sum(1) for table, i in zip(self.tables, sparse.unbind(), strict=True))
        found = torch.stack([x, *bags], 1)
        both = found @ found.transpose(1, 2)
        return torch.sigmoid(self.top(torch.cat([x, both.flatten(1)], 1)))


@program
def dlrm() -> Program:
    return Dlrm().eval(), (torch.randn(512, 13), _indices(10000, 16, 512, 4))


@program
def scatter_add_1M() -> Program:
    inputs = torch.zeros(4096), _indices(4096, 1 << 20), torch.randn(1 << 20)
    return (lambda x, i, v: x.scatter_add(0, i, v)), inputs


@program
def index_add_rows() -> Program:
    inputs = torch.zeros(1000, 64), _indices(1000, 1 << 14), torch.randn(1 << 14, 64)
    return (lambda x, i, v: x.index_add(0, i, v)), inputs


@program
def cross_entropy_32k() -> Program:
    return F.cross_entropy, (torch.randn(256, 32000), _indices(32000, 256))


def _model(name: str) -> Callable[[], Program]:
    def make() -> Program:
        from tilewright.bench import models  # needs transformers

        example = models.build(name, False)
        return example.module, example.inputs

    return make


PROGRAMS |= {name: _model(name) for name in MODELS}


@dataclass(frozen=True)
class Cost:
    """Times are seconds of one call, the medians of all rounds."""

    name: str
    checks: int
    on: float = 0.0
    off: float = 0.0
    ratio: float = 1.0
    low: float = 1.0
    high: float = 1.0
    of_shortest: float = 1.0


def measured(name: str, rounds: int, tick: Callable[[], None] = lambda: None) -> Cost:
    torch.manual_seed(0)
    function, inputs = PROGRAMS[name]()
    with torch.no_grad():
        torch._dynamo.reset()
        checked = tw.compile(function, *inputs)
        checked(*inputs)
        count = len(tw.explain(checked).checks)
        if not count:
            return Cost(name, 0)
        torch._dynamo.reset()
        bare = tw.compile(function, *inputs, checks=False)
        calls = {"on": lambda: checked(*inputs), "off": lambda: bare(*inputs)}
        times = interleaved(calls, rounds, tick)
    on, off = times["on"], times["off"]
    interval = ratio_interval(on, off)
    shortest = min(on) / min(off)
    return Cost(name, count, median(on), median(off), ratio(on, off), *interval, shortest)


def table(costs: Sequence[Cost]) -> Table:
    out = Table(title="checks on / checks off", title_justify="left")
    for column in ("program", "checks", "on, ms", "off, ms", "on/off", "95 % within", "shortest"):
        out.add_column(column, justify="left" if column == "program" else "right")
    for c in costs:
        if not c.checks:
            out.add_row(c.name, "none")
            continue
        times = f"{c.on * 1e3:.3f}", f"{c.off * 1e3:.3f}"
        spread = f"{c.low:.3f}–{c.high:.3f}"
        out.add_row(c.name, str(c.checks), *times, f"{c.ratio:.3f}", spread, f"{c.of_shortest:.3f}")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("programs", nargs="*", help="parts of names; all where none is given")
    parser.add_argument("--rounds", type=int, default=31, help=f"at least {MIN_ROUNDS}")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--json", type=Path, help="write every number to this file")
    options = parser.parse_args()
    rounds = max(options.rounds, MIN_ROUNDS)
    found = [
        name
        for name in PROGRAMS
        if not options.programs or any(part in name for part in options.programs)
    ]
    if not found:
        parser.error(f"no program has such a name; there are {', '.join(PROGRAMS)}")
    pool.set_threads(options.threads)
    torch.set_num_threads(options.threads)
    console = Console()
    if (why := busy()) is not None:
        console.print(why)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    costs: list[Cost] = []
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=len(found) * rounds)
        for k, name in enumerate(found):
            bar.update(task, description=name, completed=k * rounds)
            costs.append(measured(name, rounds, lambda: bar.advance(task)))
    console.print(table(costs))
    if options.json:
        options.json.write_text(json.dumps([asdict(c) for c in costs], indent=1))


if __name__ == "__main__":
    main()
