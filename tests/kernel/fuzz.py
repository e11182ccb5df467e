"""The step fuzzer: random groups, random steps. Every accepted step must leave a nest that passes
the checks, prints and parses, and computes what the naive nest computes; the last one natively too.

    python -m tests.kernel.fuzz --count 5000             # seeds 0..4999
    python -m tests.kernel.fuzz --seed 1234              # one of them again
    python -m tests.kernel.fuzz --replay case.txt        # a printed reproducer

A failing case is shrunk (fewer steps, fewer stages) and printed as a reproducer: a group, its
`dims`, then one step per line. Kept reproducers live in tests/kernel/cases and run with the tests.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

import tilewright.kernel.steps  # noqa: F401  (fills STEPS)
from tests.kernel.native import Native
from tests.kernel.random_groups import alive, arrays, is_exact, sample
from tests.kernel.random_steps import random_step
from tilewright.base.errors import TilewrightError, Unsupported
from tilewright.ir import dim as D
from tilewright.ir.types import DType
from tilewright.kernel.check import verify
from tilewright.kernel.group import Group, readers
from tilewright.kernel.interpret import run, run_group
from tilewright.kernel.nest import Loop, Nest, Stmt, Store, reads, start, walk
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import Step, apply, parse_trace, print_trace
from tilewright.kernel.text import group_text, nest_text, parse_group, parse_nest
from tilewright.targets import default

MAX_STEPS = 12
ATTEMPTS = 30
MAX_EFFORT = 400
DEFAULT_FIRST = 0.3
# Relative to the largest value; 16-bit floats are rounded at every store.
TOLERANCE = {"f64": 1e-9, "f32": 1e-4, "f16": 3e-2, "bf16": 2e-1}

Sizes = Mapping[str, int]


def plain_outputs(g: Group) -> bool:
    """Is no output a reduction itself? (So it is in the groups of clusters.)"""
    return not any(s.is_reduce and g.buffer(s.name).scope == "out" for s in g.stages)


class Wrong(Exception):
    """A step or the emitter changed what a nest computes, or broke it."""


@dataclass
class Counts:
    accepted: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    native: int = 0
    unsupported: Counter[str] = field(default_factory=Counter)
    wrong: list[int] = field(default_factory=list)

    def table(self) -> str:
        lines = []
        for name in sorted({*self.accepted, *self.refused}):
            lines.append(
                f"  {name:14} {self.accepted[name]:6} accepted {self.refused[name]:6} refused"
            )
        a, r = self.accepted.total(), self.refused.total()
        lines.append(f"  {'all':14} {a:6} accepted {r:6} refused, {self.native} nests run natively")
        lines += [f"  not emitted: {what} ({n})" for what, n in self.unsupported.items()]
        lines.append(f"  {len(self.wrong)} wrong" + (f": seeds {self.wrong}" if self.wrong else ""))
        return "\n".join(lines)


@dataclass
class Judge:
    """What a group computes, and whether a nest computes it too."""

    group: Group
    dims: Sequence[Sizes]
    seed: int = 0

    def __post_init__(self) -> None:
        self.exact = is_exact(self.group)
        self.inputs = [arrays(self.group, d, self.seed) for d in self.dims]
        self.want = [run_group(self.group, a, d) for a, d in zip(self.inputs, self.dims)]

    def nest(self, n: Nest, which: int = 0) -> None:
        """Checks, text and interpreter, with the `which`-th sizes."""
        verify(n)
        text = nest_text(n)
        if parse_nest(text) != n:
            raise Wrong("the nest does not come back from its text")
        got = run(n, self.inputs[which], self.dims[which], seed=self.seed + 1)
        self.compare(got, which, "the interpreter")

    def native(self, n: Nest) -> None:
        compiled = Native(n)
        for k, (a, d) in enumerate(zip(self.inputs, self.dims)):
            self.compare(compiled(a, d), k, "native code")
        stray = compiled.strays(self.inputs[-1], self.dims[-1])
        if stray is not None:
            raise Wrong(stray)

    def compare(self, got: Mapping[str, np.ndarray], which: int, who: str) -> None:
        for name, want in self.want[which].items():
            d = self.group.buffer(name).dtype
            if not same(got[name], want, d, self.exact):
                bad = np.argwhere(
                    ~np.isclose(got[name].astype("d"), want.astype("d"), equal_nan=True)
                )
                at = tuple(int(i) for i in bad[0]) if len(bad) else ()
                raise Wrong(
                    f"{who} disagrees at {name}[{','.join(map(str, at))}]: "
                    f"{got[name][at]} instead of {want[at]} ({len(bad)} of {want.size} points, "
                    f"dims {dict(self.dims[which])})"
                )


def same(got: np.ndarray, want: np.ndarray, d: DType, exact: bool) -> bool:
    if exact or not d.is_float:
        return np.array_equal(got, want, equal_nan=d.is_float)
    x, y = got.astype("d"), want.astype("d")
    scale = max(1.0, float(np.max(np.abs(y[np.isfinite(y)]), initial=0.0)))
    return np.allclose(x, y, rtol=TOLERANCE[d.name], atol=TOLERANCE[d.name] * scale, equal_nan=True)


# ---- one case


def explore(seed: int, counts: Counts) -> tuple[Group, list[Sizes], list[Step], str | None]:
    """A random group under random steps; the accepted ones, and what went wrong."""
    s = sample(seed)
    rng = random.Random(seed * 7919 + 1)
    trace: list[Step] = []
    dims: list[Sizes] = list(s.dims)
    try:
        verify(s.group)
        if parse_group(group_text(s.group)) != s.group:
            raise Wrong("the group does not come back from its text")
        judge = Judge(s.group, dims, seed)
        n = start(s.group)
        if rng.random() < DEFAULT_FIRST and plain_outputs(s.group):
            # Deeper nests than random steps alone reach: some of what a default schedule does.
            steps, _ = default_schedule(s.group, default())
            trace.extend(steps[: rng.randint(0, len(steps))])
            n = apply(n, trace)
            judge.nest(n)
        want = len(trace) + rng.randint(2, MAX_STEPS)
        for _ in range(ATTEMPTS):
            if len(trace) >= want:
                break
            step = random_step(n, rng)
            if step is None:
                break
            if parse_trace(print_trace((step,))) != (step,):
                raise Wrong(f"{step!r} does not come back from its text")
            name = type(step).__name__
            try:
                after = step.apply(n)
            except TilewrightError:
                counts.refused[name] += 1
                continue
            if effort(after.body) > MAX_EFFORT:
                continue
            counts.accepted[name] += 1
            trace.append(step)
            n = after
            judge.nest(n, rng.randrange(len(dims)))
        for k in range(len(dims)):
            judge.nest(n, k)
        try:
            judge.native(n)
            counts.native += 1
        except Unsupported as why:
            counts.unsupported[why.what] += 1
    except Exception as why:
        return s.group, dims, trace, describe(why)
    return s.group, dims, trace, None


def effort(body: tuple[Stmt, ...]) -> float:
    """About how often the interpreter evaluates a store; steps may recompute without bound."""
    total = 0.0
    for s in body:
        if isinstance(s, Store):
            total += 1
        elif isinstance(s, Loop):
            inside = [x for x, _ in walk(s.body) if not isinstance(x, Loop)]
            alone = inside[0] if len(inside) == 1 else None
            at_once = isinstance(alone, Store) and all(r.source != alone.buffer for r in reads(s))
            inner = effort(s.body)
            times = min(20, D.bounds(s.extent)[1])
            total += inner * (1 + times / 500 if at_once else times)
    return total


def describe(why: Exception) -> str:
    if isinstance(why, (Wrong, TilewrightError)):
        return f"{type(why).__name__}: {why}"
    last = traceback.extract_tb(why.__traceback__)[-1]
    return f"{type(why).__name__}: {why} ({Path(last.filename).name}:{last.lineno})"


def replay(group: Group, dims: Sequence[Sizes], trace: Sequence[Step], seed: int = 0) -> str | None:
    """What goes wrong when the trace is applied (refused steps are skipped), or None."""
    try:
        verify(group)
        judge = Judge(group, dims, seed)
        n = start(group)
        for step in trace:
            try:
                n = step.apply(n)
            except TilewrightError:
                continue
            for k in range(len(dims)):
                judge.nest(n, k)
        try:
            judge.native(n)
        except Unsupported:
            return None
    except Exception as why:
        return describe(why)
    return None


# ---- shrinking


def shrink(
    group: Group, dims: Sequence[Sizes], trace: Sequence[Step], seed: int, patience: float = 60.0
) -> tuple[Group, list[Sizes], list[Step]]:
    """A smaller case that still fails: fewer steps, one size, fewer stages."""
    end = time.monotonic() + patience
    best: tuple[Group, list[Sizes], list[Step]] = (group, list(dims), list(trace))
    if replay(*best, seed) is None:
        return best
    progress = True
    while progress and time.monotonic() < end:
        progress = False
        for smaller in _smaller(*best):
            if time.monotonic() > end:
                break
            if replay(*smaller, seed) is not None:
                best, progress = smaller, True
                break
    return best


def _smaller(
    group: Group, dims: list[Sizes], trace: list[Step]
) -> Iterator[tuple[Group, list[Sizes], list[Step]]]:
    if len(dims) > 1:
        yield from ((group, [d], trace) for d in dims)
    for k in reversed(range(len(trace))):
        yield group, dims, trace[:k] + trace[k + 1 :]
    for s in reversed(group.stages):
        b = group.buffer(s.name)
        if not readers(group, s.name) and (b.scope == "local" or len(group.outputs) > 1):
            yield _trimmed(group, s.name, None), dims, trace
        if readers(group, s.name) and len(group.stages) > 1 and b.scope == "local":
            yield _trimmed(group, s.name, "in"), dims, trace


def _trimmed(g: Group, name: str, scope: str | None) -> Group:
    """Without a stage; its buffer goes too, or becomes an input."""
    rest = tuple(s for s in g.stages if s.name != name)
    bufs = [b for b in g.buffers if b.name != name]
    if scope is not None:
        bufs.append(replace(g.buffer(name), scope=scope))
    out = alive(Group(g.name, tuple(bufs), rest))
    used = {s.name for s in out.stages}
    bufs = [b for b in bufs if b.name in used or readers(out, b.name)]
    order = {"in": 0, "out": 1}
    return replace(out, buffers=tuple(sorted(bufs, key=lambda b: order.get(b.scope, 2))))


# ---- reproducers


def case_text(group: Group, dims: Sequence[Sizes], trace: Sequence[Step]) -> str:
    sizes = "".join(f"dims {' '.join(f'{k}={v}' for k, v in d.items())}\n" for d in dims)
    return f"{group_text(group)}{sizes}{print_trace(trace)}"


def parse_case(text: str) -> tuple[Group, list[Sizes], tuple[Step, ...]]:
    lines = [x for x in text.splitlines() if x.strip() and not x.startswith("#")]
    sizes = [x.split()[1:] for x in lines if x.startswith("dims")]
    dims: list[Sizes] = [{k: int(v) for k, v in (p.split("=") for p in x)} for x in sizes]
    group = [x for x in lines if x.startswith(("group ", "  "))]
    trace = [x for x in lines if not x.startswith(("group ", "  ", "dims"))]
    return parse_group("\n".join(group)), dims or [{}], parse_trace("\n".join(trace))


def fuzz(seeds: Sequence[int], say: bool = False) -> tuple[Counts, list[str]]:
    """Explore the seeds; the counts and a report per failure."""
    counts = Counts()
    reports = []
    for seed in seeds:
        group, dims, trace, why = explore(seed, counts)
        if say and (seed + 1) % 500 == 0:
            print(f"… up to seed {seed}: {counts.accepted.total()} steps accepted", flush=True)
        if why is None:
            continue
        counts.wrong.append(seed)
        small = shrink(group, dims, trace, seed)
        now = replay(*small, seed)
        reports.append(f"# seed {seed}: {now or why}\n{case_text(*small)}")
        if say:
            print(reports[-1], flush=True)
    return counts, reports


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=1000, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="one seed only")
    parser.add_argument("--replay", type=Path, help="a file with a printed reproducer")
    options = parser.parse_args()
    if options.replay is not None:
        group, dims, trace = parse_case(options.replay.read_text())
        n = start(group)
        for step in trace:
            try:
                n = step.apply(n)
            except TilewrightError as why:
                print(f"refused: {why}")
        print(nest_text(n))
        why = replay(group, dims, trace)
        print(why or "agrees")
        return int(why is not None)
    seeds = range(options.first, options.first + options.count)
    began = time.monotonic()
    counts, _ = fuzz([options.seed] if options.seed is not None else seeds, say=True)
    print(counts.table())
    print(f"  {time.monotonic() - began:.0f} s")
    return int(bool(counts.wrong))


if __name__ == "__main__":
    sys.exit(main())
