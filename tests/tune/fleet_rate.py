"""Trials per minute of a fleet with one local node and with two:

    python -m tests.tune.fleet_rate --seconds 60 --nodes 1 2

Each worker has `--threads` threads, and eight kernels are worked on for each, in as many processes:
two nodes take sixteen cores. Rounds take turns: a change of the machine's speed is in both.
`--plain`: workers are processes without Ray, for a machine that has none; the part of the time in
which they measure is told: what is left of it, they wait for schedules (`--lanes` proposes more).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from rich.console import Console

from tilewright import targets
from tilewright.base import knobs
from tilewright.base.cache import code_version
from tilewright.driver.looking.fleet import LANES, Means, means
from tilewright.driver.looking.shown import Shown
from tilewright.ir.target import Target
from tilewright.tune.campaign import Campaign, tasks_of
from tilewright.tune.fleet.measuring import FleetMeasuring
from tilewright.tune.fleet.pool import Facts, Pool
from tilewright.tune.fleet.shop import Shop
from tilewright.tune.measuring.process import Measuring
from tilewright.tune.measuring.race import Verdict
from tilewright.tune.measuring.worker import Job
from tilewright.tune.models import model_for
from tilewright.tune.records import Records
from tilewright.tune.search import search_named

# So many that no lane waits: the space of a small kernel ends after some fifty trials.
SIZES = (
    *((64, 96, 80), (128, 64, 64), (96, 128, 48), (56, 200, 72), (100, 100, 100), (33, 64, 128)),
    *((48, 160, 96), (112, 80, 56), (72, 144, 64), (90, 60, 120), (40, 224, 88), (150, 48, 100)),
    *((81, 90, 70), (120, 112, 40), (60, 180, 60), (104, 72, 112), (66, 132, 77), (88, 88, 144)),
)


def groups() -> list[str]:
    """Products and sums of rows, in sizes that differ."""
    out = []
    for m, n, k in SIZES:
        out.append(f"""group kernel
  in a: f32[{m},{k}]
  in b: f32[{k},{n}]
  out y: f32[{m},{n}]
  local t: f32[{m},{n}]
  t[t.i,t.j] add= a[t.i,t.k] * b[t.k,t.j] for t.i in {m}, t.j in {n}, t.k in {k} from 0.0
  y[y.i,y.j] = max(t[y.i,y.j], 0.0) for y.i in {m}, y.j in {n}
""")
        out.append(f"""group kernel
  in a: f32[{8 * m},{n}]
  out y: f32[{8 * m}]
  y[y.i] add= a[y.i,y.j] * a[y.i,y.j] for y.i in {8 * m}, y.j in {n} from 0.0
""")
    return out


@dataclass
class Plain:
    """A worker that is a measuring process of this machine."""

    name: str
    facts: Facts
    measuring: Measuring
    raced: list[tuple[float, float]] = field(default_factory=list)  # begin and end of each race

    def race(self, job: Job) -> list[Verdict]:
        begin = time.monotonic()
        try:
            return self.measuring.measure(job.group, job.traces, job.rounds, job.codes)
        finally:
            self.raced.append((begin, time.monotonic()))

    def busy(self) -> float:
        """The part of the time between its first and its last race in which it raced."""
        whole = self.raced[-1][1] - self.raced[0][0] if self.raced else 0.0
        return sum(end - begin for begin, end in self.raced) / whole if whole else 0.0

    def end(self) -> None:
        self.measuring.close()


@contextmanager
def plain(nodes: int, target: Target, lanes: int) -> Iterator[Means]:
    threads = knobs.threads.get() or 1
    facts = Facts("here", (target.text(),), threads, code_version())
    workers = [Plain(f"w{k}", facts, Measuring(target, threads)) for k in range(nodes)]
    pool = Pool(target, lambda known: [w for w in workers if w.name not in known])
    shop = Shop(lanes * nodes)
    measuring = FleetMeasuring(pool, shop)
    try:
        yield Means(measuring, lanes * nodes, shop)
    finally:
        measuring.close()
        print("workers measured", *(f"{w.busy():.0%}" for w in workers), "of the time")


def rate(nodes: int, seconds: float, with_ray: bool, console: Console, lanes: int = LANES) -> float:
    """Trials of a minute with so many nodes."""
    target = targets.host()
    model = model_for("auto", target, console.print)
    if with_ray:
        used = means(f"local:{nodes}", target, Shown(console))
    else:
        used = plain(nodes, target, lanes)
    with tempfile.TemporaryDirectory() as folder, used as by:
        kernels = [(text, 1, f"k{k}") for k, text in enumerate(groups())]
        tasks = tasks_of(kernels, target, by.measuring, lambda: search_named("evolution"), model, 0)
        for t in tasks:
            t.start()
        until = time.monotonic() + seconds
        campaign = Campaign(
            tasks, Records(Path(folder) / "r"), 10**6, until, by.lanes, by.proposing
        )
        ends = [(time.monotonic(), len(made)) for _, made in campaign.run()]
        lanes = by.lanes
    return steady(ends, lanes, until)


def steady(ends: Sequence[tuple[float, int]], lanes: int, until: float) -> float:
    """Trials of a minute while all lanes are busy: from the end of the first race of the last lane,
    when all processes have started, until no race begins any more."""
    first = ends[lanes - 1][0] if len(ends) >= lanes else until
    counted = [n for at, n in ends[lanes:] if at <= until]
    if not counted:
        raise SystemExit(f"{len(ends)} races of {lanes} lanes ended: give more --seconds")
    return 60 * sum(counted) / (until - first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each round")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of each node")
    parser.add_argument("--plain", action="store_true", help="without Ray")
    parser.add_argument("--lanes", type=int, default=LANES, help="kernels for each plain worker")
    given = parser.parse_args()
    console, found = Console(stderr=True), {n: list[float]() for n in given.nodes}
    with knobs.threads.override(given.threads):
        for _ in range(given.rounds):
            for n in given.nodes:
                found[n].append(rate(n, given.seconds, not given.plain, console, given.lanes))
                print(f"{n} nodes: {found[n][-1]:.0f} trials per minute", flush=True)
    base = median(found[given.nodes[0]])
    for n in given.nodes[1:]:
        print(f"{n} nodes: {median(found[n]) / base:.2f} times as many as {given.nodes[0]}")


if __name__ == "__main__":
    main()
