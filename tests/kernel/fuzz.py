"""The step fuzzer: random groups, random steps. Every accepted step must leave a nest that passes
the checks, prints and parses, and computes what the naive nest computes; the last one natively too.

    python -m tests.kernel.fuzz --count 3000             # so many traces of five steps or more
    python -m tests.kernel.fuzz --count 0 --threads 500  # with blocks, threads and shared memory
    python -m tests.kernel.fuzz --seed 1234 --favour Pad # one of them again
    python -m tests.kernel.fuzz --replay case.txt        # a printed reproducer

At least half of the traces are on groups of three stages or more with a reduction; kinds of steps
that are rarely accepted are drawn more often. Groups whose precision is strict are compared bit by
bit, on numbers whose sums show their order. A failing case is shrunk (fewer steps, fewer stages),
printed as a reproducer (a group, its `dims`, then one step per line) and, with --keep, written to
tests/kernel/cases, which runs with the tests.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from rich.progress import Progress

from tests.kernel.native import Native
from tests.kernel.random_groups import alive, arrays, is_exact, sample
from tests.kernel.random_steps import DRAWN, placed, random_step
from tilewright.base.errors import Refused, TilewrightError, Unsupported
from tilewright.ir import dim as D
from tilewright.ir.types import DType
from tilewright.kernel import simt
from tilewright.kernel.check import verify
from tilewright.kernel.group import Group, readers
from tilewright.kernel.interpret import run, run_group
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import (
    BLOCKS,
    THREADS,
    Loop,
    Nest,
    Stmt,
    Store,
    loop_names,
    reads,
    start,
    walk,
)
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import Step, apply, parse_trace, print_trace
from tilewright.kernel.steps.barrier import Synchronise
from tilewright.kernel.steps.bind import Bind
from tilewright.kernel.steps.double_buffer import DoubleBuffer
from tilewright.kernel.steps.finish_last import FinishLast
from tilewright.kernel.steps.pipeline import Pipeline
from tilewright.kernel.steps.set_scope import SetScope
from tilewright.kernel.steps.swizzle import Swizzle
from tilewright.kernel.text import group_text, nest_text, parse_group, parse_nest
from tilewright.targets import default

MIN_STEPS, MAX_STEPS = 5, 12
ATTEMPTS = 60
MAX_EFFORT = 400
DEFAULT_FIRST = 0.3
# How often a nest on the way is judged; the last one always is.
LOOKS = 0.35
# Relative to the largest value; 16-bit floats are rounded at every store.
TOLERANCE = {"f64": 1e-9, "f32": 1e-4, "f16": 3e-2, "bf16": 2e-1}

# What groups begin with where a kind of step is favoured that few of them admit: instructions take
# products only, the fewer the wider a machine's are.
FIRST = {"PadSum": "product", "Slide": "windows", "Tensorize": "product"}

Sizes = Mapping[str, int]
CASES = Path(__file__).resolve().parent / "cases"


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
    traces: Counter[str] = field(default_factory=Counter)  # what is special about them

    def rarest(self, seed: int) -> str:
        """One of the kinds of steps that were accepted least, in turn."""
        few = sorted(DRAWN, key=lambda kind: (self.accepted[kind], kind))[:6]
        return few[seed % len(few)]

    def table(self) -> str:
        lines = [f"  {n:6} {what}" for what, n in self.traces.items()]
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
        """The nest as code is written of it, and the code."""
        self.nest(legalise(n, default()), len(self.dims) - 1)
        compiled = Native(n)
        for k, (a, d) in enumerate(zip(self.inputs, self.dims)):
            self.compare(compiled(a, d), k, "native code")
        stray = compiled.strays(self.inputs[-1], self.dims[-1])
        if stray is not None:
            raise Wrong(stray)

    def simt(self, n: Nest) -> None:
        for k, (a, d) in enumerate(zip(self.inputs, self.dims)):
            self.compare(simt.run(n, a, d, self.seed), k, "the SIMT executor")

    def compare(self, got: Mapping[str, np.ndarray], which: int, who: str) -> None:
        for name, want in self.want[which].items():
            d = self.group.buffer(name).dtype
            if not same(got[name], want, d, self.exact):
                x, y = got[name].astype("d"), want.astype("d")
                differs = (x != y) & ~(np.isnan(x) & np.isnan(y))
                bad = np.argwhere(differs if self.exact else ~np.isclose(x, y, equal_nan=True))
                at = tuple(int(i) for i in bad[0]) if len(bad) else ()
                raise Wrong(
                    f"{who} disagrees at {name}[{','.join(map(str, at))}]: "
                    f"{got[name][at]} instead of {want[at]} ({len(bad)} of {want.size} points, "
                    f"dims {dict(self.dims[which])})"
                )


def threaded(n: Nest) -> bool:
    """Is the nest for threads, with the barriers that they need?"""
    return any(isinstance(s, Loop) and s.kind in (*BLOCKS, *THREADS) for s, _ in walk(n.body))


def same(got: np.ndarray, want: np.ndarray, d: DType, exact: bool) -> bool:
    if exact or not d.is_float:
        return np.array_equal(got, want, equal_nan=d.is_float)
    x, y = got.astype("d"), want.astype("d")
    scale = max(1.0, float(np.max(np.abs(y[np.isfinite(y)]), initial=0.0)))
    return np.allclose(x, y, rtol=TOLERANCE[d.name], atol=TOLERANCE[d.name] * scale, equal_nan=True)


# ---- one case


Found = tuple[Group, list[Sizes], list[Step], "str | None"]


def explore(seed: int, counts: Counts, favour: str | None = None) -> Found:
    """A random group under random steps; the accepted ones, and what went wrong."""
    s = sample(seed, FIRST.get(favour or "", ""))
    rng = random.Random(seed * 7919 + 1)
    trace: list[Step] = []
    dims: list[Sizes] = list(s.dims)
    try:
        verify(s.group)
        if parse_group(group_text(s.group)) != s.group:
            raise Wrong("the group does not come back from its text")
        judge = Judge(s.group, dims, seed)
        n = start(s.group)
        default_first = rng.random() < DEFAULT_FIRST and s.group.precision != "strict"
        if default_first and plain_outputs(s.group):
            # Deeper nests than random steps alone reach: some of what a default schedule does.
            steps, _ = default_schedule(s.group, default())
            trace.extend(steps[: rng.randint(0, len(steps))])
            n = apply(n, trace)
            judge.nest(n)
        want = len(trace) + rng.randint(MIN_STEPS, MAX_STEPS)
        for _ in range(ATTEMPTS):
            if len(trace) >= want:
                break
            step = random_step(n, rng, favour)
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
            if rng.random() < LOOKS:
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


def explore_threads(seed: int, counts: Counts) -> Found:
    """A random group under random steps, then with random blocks, threads and shared buffers, on
    the SIMT executor. Without barriers in the end (they were refused) nothing is run."""
    s = sample(seed)
    rng = random.Random(seed)
    trace: list[Step] = []
    dims: list[Sizes] = list(s.dims)
    n = start(s.group)

    def attempt(step: Step | None) -> bool:
        nonlocal n
        if step is None:
            return False
        name = type(step).__name__
        try:
            after = step.apply(n)
        except TilewrightError:
            counts.refused[name] += 1
            return False
        if effort(after.body) > MAX_EFFORT / 2:
            return False
        counts.accepted[name] += 1
        trace.append(step)
        n = after
        return True

    try:
        for _ in range(rng.randint(0, 10)):
            attempt(random_step(n, rng, rng.choice([None, "ComputeAt"])))
        bind_some(lambda: n, attempt, rng, 0.8)
        for buffer, loop in placed(n):
            if rng.random() < 0.5:
                far, copies = rng.choice([1, 1, 2, 3]), rng.random() < 0.5
                attempt(rng.choice([DoubleBuffer(buffer), Pipeline(loop, buffer, far, copies)]))
        grids = [x.name for x in n.body if isinstance(x, Loop) and x.kind in BLOCKS]
        for k, name in enumerate(grids):
            if rng.random() < 0.5:
                attempt(FinishLast(name, f"done{k}"))
        if attempt(Synchronise()):
            judge = Judge(s.group, dims, seed)
            judge.nest(n)
            judge.simt(n)
    except Exception as why:
        return s.group, dims, trace, describe(why)
    return s.group, dims, trace, None


def bind_some(
    nest: Callable[[], Nest], attempt: Callable[[Step], object], rng: random.Random, shared: float
) -> None:
    """Attempts to bind loops of the nest as it then is, and to share that part of its memory."""
    for name in loop_names(nest()):
        if rng.random() < 0.5:
            attempt(Bind(name, rng.choice(["block.x", "block.y"])))
    one = rng.random() < 0.6
    for name in loop_names(nest()):
        if rng.random() < 0.9:
            attempt(Bind(name, "thread.x" if one else rng.choice(["thread.x", "thread.y"])))
    for b in nest().buffers:
        if b.scope == "local" and rng.random() < shared:
            attempt(SetScope(b.name, "shared"))
            if rng.random() < 0.4:
                bits = rng.randint(1, 2)
                attempt(Swizzle(b.name, bits, rng.randint(0, 2), bits + rng.randint(0, 1)))


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
        last: Step | None = None
        for step in trace:
            try:
                n, last = step.apply(n), step
            except TilewrightError:
                continue
            for k in range(len(dims)):
                judge.nest(n, k)
        try:
            if threaded(n):
                judge.simt(n if isinstance(last, Synchronise) else Synchronise().apply(n))
            else:
                judge.native(n)
        except (Unsupported, Refused):
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
        for fewer in smaller(*best):
            if time.monotonic() > end:
                break
            if replay(*fewer, seed) is not None:
                best, progress = fewer, True
                break
    return best


def smaller(
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
    out = alive(replace(g, buffers=tuple(bufs), stages=rest))
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


def special(group: Group, trace: Sequence[Step]) -> list[str]:
    """What a trace counts for."""
    out = []
    if len(trace) >= MIN_STEPS:
        out.append(f"traces of {MIN_STEPS} steps or more")
        if len(group.stages) >= 3 and any(s.is_reduce for s in group.stages):
            out.append("of these on three stages or more with a reduction")
        if group.precision == "strict":
            out.append("of these with strict precision")
        if group.dims():
            out.append("of these with symbolic extents")
    return out


def fuzz(seeds: Sequence[int]) -> tuple[Counts, list[str]]:
    """Explore the seeds; the counts and a report per failure."""
    counts = Counts()
    reports = []
    for seed in seeds:
        favour = counts.rarest(seed)
        found = explore(seed, counts, favour)
        counts.traces.update(special(found[0], found[2]))
        if found[3] is not None:
            reports.append(report(seed, found, counts, favour))
    return counts, reports


def report(seed: int, found: Found, counts: Counts, favour: str | None = None) -> str:
    """A failure, shrunk, as a reproducer."""
    counts.wrong.append(seed)
    group, dims, trace, why = found
    small = shrink(group, dims, trace, seed)
    now = replay(*small, seed)
    which = f"seed {seed}" + (f" favouring {favour}" if favour else "")
    return f"# {which}: {now or why}\n{case_text(*small)}"


def campaign(count: int, threads: int, first: int, keep: bool) -> Counts:
    """So many traces on the CPU and so many with shared memory on the SIMT executor."""
    counts = Counts()
    seed = first

    def note(found: Found, favour: str | None = None) -> None:
        if found[3] is None:
            return
        text = report(seed, found, counts, favour)
        bar.console.print(text, markup=False, highlight=False)
        if keep:
            (CASES / f"seed-{seed}.txt").write_text(text)

    with Progress() as bar:
        task = bar.add_task("traces", total=count, visible=count > 0)
        plain = 0
        while bar.tasks[0].completed < count:
            seed += 1
            g = sample(seed).group
            rich = len(g.stages) >= 3 and any(s.is_reduce for s in g.stages)
            if not rich and plain >= count // 2:
                continue
            favour = counts.rarest(seed)
            found = explore(seed, counts, favour)
            note(found, favour)
            what = special(found[0], found[2])
            counts.traces.update(what)
            if what:
                plain += not rich
                bar.advance(task)
                done = int(bar.tasks[0].completed)
                if not bar.console.is_terminal and done % 250 == 0:
                    print(f"… {done} traces, {counts.accepted.total()} steps", flush=True)
        task = bar.add_task("threads", total=threads, visible=threads > 0)
        ran = 0
        while ran < threads:
            seed += 1
            found = explore_threads(seed, counts)
            note(found)
            kinds = {type(s).__name__ for s in found[2]}
            shared = any(isinstance(s, SetScope) and s.scope == "shared" for s in found[2])
            if {"Bind", "Synchronise"} <= kinds:
                counts.traces["with blocks or threads"] += 1
                counts.traces["of these with shared memory"] += shared
                ran += shared
                bar.update(task, completed=ran)
                if shared and not bar.console.is_terminal and ran % 50 == 0:
                    print(f"… {ran} with shared memory", flush=True)
    print(f"  seeds {first + 1} to {seed}")
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=1000, help="how many traces on the CPU")
    parser.add_argument("--threads", type=int, default=0, help="how many with shared memory")
    parser.add_argument("--first", type=int, default=0, help="the seed before the first one")
    parser.add_argument("--seed", type=int, help="one seed only")
    parser.add_argument("--favour", help="with --seed: the kind of step that was drawn more often")
    parser.add_argument("--replay", type=Path, help="a file with a printed reproducer")
    parser.add_argument("--keep", action="store_true", help="write failures to tests/kernel/cases")
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
    began = time.monotonic()
    if options.seed is not None:
        counts = Counts()
        found = (
            explore_threads(options.seed, counts)
            if options.threads
            else explore(options.seed, counts, options.favour)
        )
        if found[3] is not None:
            print(report(options.seed, found, counts, options.favour))
    else:
        counts = campaign(options.count, options.threads, options.first, options.keep)
    print(counts.table())
    print(f"  {time.monotonic() - began:.0f} s")
    return int(bool(counts.wrong))


if __name__ == "__main__":
    sys.exit(main())
