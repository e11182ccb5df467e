"""How much faster tuned programs are than those with default schedules.

    python -m tests.tune.gains                                  # all kernels, 64 trials each
    python -m tests.tune.gains pool sum --trials 16             # some, by parts of their names
    python -m tests.tune.gains --records r.jsonl --json g.json  # goes on from what is known
    python -m tests.tune.gains --records r.jsonl --trials 0     # no trial: what is known already
    python -m tests.tune.gains --models --minutes 10            # the benchmark's models

Each program is compiled, its kernels are tuned, and it is compiled again with what was found. Both
take turns afterwards; the table has the ratio of the medians with the interval that holds it with
95 %. Results of both are compared. A tile kernel has its first configuration by default.
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from functools import partial
from math import exp, log
from pathlib import Path
from statistics import median

import torch
import torch._dynamo
from rich.console import Console
from rich.table import Table

import tilewright as tw
from tests.tune.gain_kernels import CASES, Case, Function
from tilewright import targets
from tilewright.base import knobs
from tilewright.base.machine import usable_cores
from tilewright.bench.catalog import MODELS
from tilewright.bench.measure import (
    MIN_ROUNDS,
    busy,
    ratio,
    ratio_interval,
    repeats_of,
    seconds,
    take_turns,
)
from tilewright.bench.models import BUILDERS, build
from tilewright.driver.looking.shown import Shown
from tilewright.driver.looking.tune import tune
from tilewright.runtime import pool

# Sums in another order differ by this part of the largest result.
TOLERANCE = 1e-4
MEAN, LEAST = 1.25, 0.98  # what the table is held against


@dataclass(frozen=True)
class Gain:
    """Seconds of a call, the medians of all rounds; of the tuning, by the clock."""

    name: str
    kernels: int
    trials: int
    default: float
    tuned: float
    gain: float
    low: float
    high: float
    error: float
    tuning: float


def compiled(case: Case, records: Path) -> Function:
    with knobs.records.override(records):
        torch._dynamo.reset()
        return tw.compile(case.function, *case.inputs, strict=True)


def model(name: str) -> Case:
    example = build(name, tiny=False)
    return Case(example.module, example.inputs)


MODEL_CASES = {c.name: partial(model, c.name) for c in MODELS if c.listed and c.name in BUILDERS}


def tuned(
    case: Case, first: Function, records: Path, trials: int, seed: int, minutes: float = 60.0
) -> tuple[int, int]:
    """Tunes the kernels of a program; how many there are, and how many trials each had at most."""
    programs = tw.explain(first).programs
    kernels = [k for p in programs for k in p.kernels[p.once :]]
    told = Shown(Console(file=io.StringIO()))
    if not trials:
        return len(kernels), 0
    with redirect_stdout(io.StringIO()):
        tune(
            kernels, targets.default(), told,
            trials=trials, minutes=minutes, seed=seed, records=records,
            graphs=[p.graph for p in programs if p.graph is not None],
        )  # fmt: skip
    return len(kernels), trials


def named(wanted: Sequence[str], names: Iterable[str]) -> list[str]:
    """Those whose names are wanted, or have a wanted part where no name is it as a whole."""
    names = list(names)
    return [n for n in names if any(n == w or (w not in names and w in n) for w in wanted)]


def difference(a: object, b: object) -> float:
    """Of the results, relative to the largest; 1 where whole numbers differ."""
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return max(map(difference, a, b))
    assert isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
    if not a.is_floating_point():
        return float(not torch.equal(a, b))
    scale = float(b.abs().max()) or 1.0
    return float((a.double() - b.double()).abs().max()) / scale


def measured(
    name: str, case: Case, trials: int, rounds: int, records: Path, seed: int, minutes: float
) -> Gain:
    began = time.monotonic()
    with torch.no_grad():
        if case.tuned is not None:
            first, second, kernels, trials = case.function, case.tuned, 1, case.trials
        else:
            first = compiled(case, records.with_name("nothing.jsonl"))
            kernels, trials = tuned(case, first, records, trials, seed, minutes)
            second = compiled(case, records)
        error = difference(second(*case.inputs), first(*case.inputs))
        took = time.monotonic() - began
        calls = {"default": lambda: first(*case.inputs), "tuned": lambda: second(*case.inputs)}
        # As many for both: the first call of a turn is slower than the next.
        n = max(map(repeats_of, calls.values()))
        turns = {name: partial(seconds, call, n) for name, call in calls.items()}
        times = take_turns(turns, rounds)
    a, b = times["default"], times["tuned"]
    interval = ratio_interval(a, b)
    return Gain(name, kernels, trials, median(a), median(b), ratio(a, b), *interval, error, took)


def table(gains: Sequence[Gain]) -> Table:
    out = Table(title="default schedules and tuned ones", title_justify="left")
    columns = ("kernel", "kernels", "trials", "default, ms", "tuned, ms", "gain", "95 % within")
    for column in (*columns, "error", "tuning, s"):
        out.add_column(column, justify="left" if column == "kernel" else "right")
    for g in gains:
        times = f"{g.default * 1e3:.3f}", f"{g.tuned * 1e3:.3f}"
        spread = f"{g.low:.2f}–{g.high:.2f}"
        counts = str(g.kernels), str(g.trials)
        rest = f"{g.error:.1e}", f"{g.tuning:.0f}"
        out.add_row(g.name, *counts, *times, f"{g.gain:.2f}", spread, *rest)
    return out


def mean(gains: Sequence[Gain]) -> float:
    return exp(sum(log(g.gain) for g in gains) / len(gains))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("kernels", nargs="*", help="names or parts; all where none is given")
    parser.add_argument("--models", action="store_true", help="the benchmark's models instead")
    parser.add_argument("--minutes", type=float, default=60.0, help="of each, at most")
    parser.add_argument("--trials", type=int, default=64, help="of each kernel, at most")
    parser.add_argument("--rounds", type=int, default=21, help=f"at least {MIN_ROUNDS}")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--records", type=Path, help="keep what is found in this file")
    parser.add_argument("--json", type=Path, help="write every number to this file")
    options = parser.parse_args(arguments)
    cases = MODEL_CASES if options.models else CASES
    found = named(options.kernels or [""], cases)
    if not found:
        parser.error(f"there is no such name; there are {', '.join(cases)}")
    pool.set_threads(options.threads)
    torch.set_num_threads(options.threads)
    console = Console()
    if (why := busy()) is not None:
        console.print(why)
    gains: list[Gain] = []
    with tempfile.TemporaryDirectory() as folder:
        records = (options.records or Path(folder) / "records.jsonl").absolute()
        for name in found:
            torch.manual_seed(0)
            how = options.trials, options.rounds, records, options.seed, options.minutes
            gains.append(measured(name, cases[name](), *how))
            g = gains[-1]
            console.print(f"{name}: {g.gain:.2f} in {g.tuning:.0f} s", highlight=False)
            if options.json:
                options.json.write_text(json.dumps([asdict(g) for g in gains], indent=1))
    console.print(table(gains))
    wrong = [g.name for g in gains if g.error > TOLERANCE]
    least = min(gains, key=lambda g: g.gain)
    console.print(
        f"geometric mean {mean(gains):.2f} (bar: {MEAN}); "
        f"the least is {least.gain:.2f} of {least.name} (bar: {LEAST})",
        highlight=False,
    )
    if wrong:
        console.print(f"results differ: {', '.join(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
