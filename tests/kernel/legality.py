"""Is a step refused exactly where it would change the result? Judged by brute force.

    python -m tests.kernel.legality --count 1000       # until so many truly illegal steps are seen
    python -m tests.kernel.legality --seed 1234        # one case, with what was judged

Small random nests (stencils, reversed, strided, diagonal, fused and gathered indices, scans,
scatters, reductions, several statements) and random groups after random steps. A step is forced
past its question of legality and the result is run on integers: iterations of parallel and bound
loops and lanes in random order, every cell watched. Where some input shows a difference or a race
the step is truly illegal, otherwise truly legal. What cannot be done at all (no such loop, not
nested in one another) is neither.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from unittest.mock import patch

import numpy as np
from rich.progress import Progress

from tests.kernel.fuzz import effort
from tests.kernel.legality_nests import random_nest
from tests.kernel.random_groups import arrays, is_exact, sample
from tests.kernel.random_steps import BY_KIND, Maker, random_step
from tilewright.base.errors import Refused, TilewrightError
from tilewright.ir import dim as D
from tilewright.ir.types import i32
from tilewright.kernel.interpret import Env, Machine, RunError, _Race, execute
from tilewright.kernel.nest import BLOCKS, THREADS, Loop, Nest, find, loop_names, start, walk
from tilewright.kernel.step import Step
from tilewright.kernel.steps.bind import Bind
from tilewright.kernel.steps.compute_with import ComputeWith
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.parallel import Parallel
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.steps.vectorize import Vectorize
from tilewright.kernel.text import nest_text
from tilewright.kernel.threads import combined

# A step that changes nothing for so many inputs is legal; a refused one is tried on more.
INPUTS, MORE = 4, 24
MAX_EFFORT = 400


class AnyOrder(Machine):
    """Runs iterations of parallel and bound loops and lanes in random order, one by one, and
    reports every cell that two iterations use while one of them writes it."""

    def loop(self, s: Loop, env: Env) -> None:
        if s.kind not in ("parallel", *BLOCKS, *THREADS):
            inside = (s, *(x for x, _ in walk(s.body)))
            plain = all(x.kind in ("serial", "unroll") for x in inside if isinstance(x, Loop))
            if not (plain and self._at_once(s, env)):
                self._one_by_one(s, env)
            return
        # Threads combine their values of such updates; what else is done to them shows in results.
        joined = {c.store.buffer for c in combined((s,)) if any(q is s for q in c.over)}
        around, self.race = self.race, _Race(s.name, set(self.memory) - joined)
        for k in self.random.permutation(self._count(s, env)):
            self.block(s.body, {**env, s.name: int(k)})
        self.race.judge(self.memory)
        self.race = around

    def _one_by_one(self, s: Loop, env: Env) -> None:
        if s.kind == "lane" and not any(np.ndim(x) for x in env.values()):
            lanes = self.random.permutation(self._count(s, env))
            if len(lanes):
                self.block(s.body, {**env, s.name: lanes})
            return
        super()._one_by_one(s, env)


@contextmanager
def forced() -> Iterator[None]:
    """Steps do not ask whether they keep the result."""
    with patch.object(Step, "keep", lambda *_, **__: None):
        yield


Inputs = dict[str, np.ndarray]


@dataclass
class Case:
    """A nest, inputs to judge it by (as many as one asks for) and what `first` makes of them."""

    nest: Nest
    first: Nest
    inputs: Callable[[int], Inputs]
    sizes: dict[str, int]
    want: dict[int, tuple[Inputs, Inputs]] = field(default_factory=dict)

    def wanted(self, k: int) -> tuple[Inputs, Inputs]:
        if k not in self.want:
            given = self.inputs(k)
            self.want[k] = given, execute(Machine(self.first, self.sizes, 0), given)
        return self.want[k]

    def same(self, n: Nest, which: Iterable[int] = range(INPUTS)) -> bool:
        """Does the nest compute the same, whatever the order of what has none?"""
        for k in which:
            given, want = self.wanted(k)
            try:
                got = execute(AnyOrder(n, self.sizes, 17 * k + 1), given)
            except RunError:
                return False
            if any(not np.array_equal(got[b], want[b]) for b in want):
                return False
        return True


def small_case(seed: int) -> Case:
    n = random_nest(random.Random(seed))

    def inputs(k: int) -> Inputs:
        data = np.random.default_rng((seed, k))
        given = {}
        for b in n.buffers:
            if b.scope in ("in", "out"):
                shape = tuple(int(D.evaluate(d, {})) for d in b.shape)
                # Large and small ones: a maximum must not hide the same terms every time.
                far = int(data.choice([3, 100, 10_000])) if b.dtype is i32 else 12
                given[b.name] = data.integers(-far if b.dtype is i32 else 0, far, shape)
        return given

    return Case(n, n, inputs, {})


def group_case(seed: int) -> Case | None:
    s = sample(seed)
    if not is_exact(s.group):
        return None
    sizes = dict(s.dims[0])
    group = replace(s.group, precision="reassociate")  # whole numbers: no order shows
    first = n = start(group)
    if effort(n.body) > MAX_EFFORT / 4:
        return None
    rng = random.Random(seed)
    for _ in range(rng.randint(0, 6)):
        step = random_step(n, rng)
        try:
            after = step.apply(n) if step is not None else n
        except TilewrightError:
            continue
        n = after if _work(after, sizes) < 3000 else n
    return Case(n, first, lambda k: arrays(group, sizes, seed + k), sizes)


def _work(n: Nest, sizes: dict[str, int]) -> float:
    """About how many stores run one by one."""
    total = 0.0
    for s, p in walk(n.body):
        if not isinstance(s, Loop):
            times = 1.0
            for q in p:
                times *= max(1, min(D.bounds(q.extent)[1], 20))
            total += times
    return total


def question(n: Nest, rng: random.Random, more: Maker) -> Step | None:
    """A step whose legality depends on what the loops do."""
    names = loop_names(n)
    if not names:
        return None
    kind = rng.choice(
        ["parallel", "bind", "vectorize", "reorder", "reorder", "with", "with", "join", "any"]
    )
    if kind == "any":
        return more(n, rng)
    if kind == "parallel":
        return Parallel(rng.choice([s.name for s in n.body if isinstance(s, Loop)] or names))
    if kind == "bind":
        return Bind(rng.choice(names), rng.choice(["block.x", "thread.x"]))
    if kind == "vectorize":
        inner = [s.name for s, _ in walk(n.body) if isinstance(s, Loop) and _innermost(s)]
        some = inner if inner and rng.random() < 0.6 else names
        return Vectorize(rng.choice(some), rng.random() < 0.3)
    if kind == "with":
        stages = [str(getattr(s, "stage", "")) for s, _ in walk(n.body) if hasattr(s, "stage")]
        return ComputeWith(rng.choice(stages), rng.choice(names)) if stages else None
    if kind == "join":
        return BY_KIND["Join"](n, rng)
    s = find(n, rng.choice(names))[0][0]
    chain = [s]
    while len(chain[-1].body) == 1 and isinstance(inside := chain[-1].body[0], Loop):
        chain.append(inside)
    some = [x.name for x in chain]
    if len(some) < 2:
        return None
    return Reorder(tuple(rng.sample(some, rng.randint(2, len(some)))))


def loop_step(n: Nest, rng: random.Random) -> Step | None:
    """A step on loops alone, for nests that come from no group."""
    for _ in range(20):
        step = random_step(n, rng)
        if isinstance(step, (Split, Fuse, Unroll, Peel, Reorder, Vectorize)):
            return step
    return None


def _innermost(s: Loop) -> bool:
    return not any(isinstance(x, Loop) and x.kind != "unroll" for x, _ in walk(s.body))


@dataclass
class Tally:
    legal: Counter[str] = field(default_factory=Counter)
    legal_refused: Counter[str] = field(default_factory=Counter)
    illegal: Counter[str] = field(default_factory=Counter)
    illegal_accepted: list[str] = field(default_factory=list)
    without_reason: list[str] = field(default_factory=list)
    cautious: list[str] = field(default_factory=list)  # legal and refused, in words

    def table(self) -> str:
        lines = ["                   illegal  refused    legal  refused"]
        names = sorted({*self.legal, *self.illegal})
        wrong = Counter(x.split("(")[0] for x in self.illegal_accepted)
        for name in names:
            refused = self.illegal[name] - wrong[name]
            rest = f"{self.legal[name]:8} {self.legal_refused[name]:8}"
            lines.append(f"  {name:16} {self.illegal[name]:8} {refused:8} {rest}")
        share = self.legal_refused.total() / max(1, self.legal.total())
        lines.append(
            f"  {self.illegal.total()} truly illegal: {len(self.illegal_accepted)} accepted, "
            f"{len(self.without_reason)} refused without a reason"
        )
        lines.append(
            f"  {self.legal.total()} truly legal: {self.legal_refused.total()} refused "
            f"({100 * share:.1f} %)"
        )
        return "\n".join(lines)


def judge(case: Case, step: Step, tally: Tally, label: str) -> None:
    n = case.nest
    try:
        with forced():
            after = step.apply(n)
    except Refused:
        return
    if _work(after, case.sizes) > 6000:
        return
    legal = case.same(after)
    name = type(step).__name__
    why: Refused | None = None
    try:
        step.apply(n)
    except Refused as e:
        why = e
    if legal and why is not None:  # it is not luck
        legal = case.same(after, range(INPUTS, INPUTS + MORE))
    if legal:
        tally.legal[name] += 1
        if why is not None:
            tally.legal_refused[name] += 1
            tally.cautious.append(f"{label}: {why}\n{nest_text(n)}")
        return
    tally.illegal[name] += 1
    if why is None:
        tally.illegal_accepted.append(f"{step} ({label})\n{nest_text(n)}\n{nest_text(after)}")
    elif not why.details or "<- " not in str(why):
        tally.without_reason.append(f"{step} ({label}): {why}")


def look(seed: int, tally: Tally) -> None:
    """Some steps on one nest."""
    rng = random.Random(seed)
    grouped = seed % 4 == 3
    case = group_case(seed) if grouped else small_case(seed)
    more = random_step if grouped else loop_step
    if case is None or not case.same(case.nest):
        return  # a scatter in parallel, say: there is nothing to keep
    seen: set[Step] = set()
    for k in range(12):
        step = question(case.nest, rng, more)
        if step is not None and step not in seen:
            seen.add(step)
            judge(case, step, tally, f"seed {seed}.{k}")
        # Go on from somewhere else: split, fused, unrolled, peeled.
        if k in (3, 7):
            change = more(case.nest, rng)
            try:
                after = change.apply(case.nest) if change is not None else case.nest
            except TilewrightError:
                continue
            if _work(after, case.sizes) < 3000 and case.same(after):
                case = replace(case, nest=after)


def survey(first: int, illegal: int, progress: bool = False) -> Tally:
    """Seeds from `first` on, until so many truly illegal steps were seen."""
    tally = Tally()
    seed = first
    with Progress(disable=not progress) as bar:
        task = bar.add_task("truly illegal steps", total=illegal)
        while tally.illegal.total() < illegal:
            look(seed, tally)
            seed += 1
            bar.update(task, completed=tally.illegal.total())
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=1000, help="how many truly illegal steps")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="one seed only")
    parser.add_argument("--show", type=int, default=3, help="how many of each kind to print")
    options = parser.parse_args()
    began = time.monotonic()
    if options.seed is not None:
        tally = Tally()
        look(options.seed, tally)
    else:
        tally = survey(options.first, options.count, progress=sys.stdout.isatty())
    for what, found in (
        ("accepted, and changes the result", tally.illegal_accepted),
        ("refused without a reason", tally.without_reason),
        ("refused, and changes nothing", tally.cautious),
    ):
        for x in found[: options.show]:
            print(f"--- {what}: {x}")
    print(tally.table())
    print(f"  {time.monotonic() - began:.0f} s")
    return int(bool(tally.illegal_accepted or tally.without_reason))


if __name__ == "__main__":
    sys.exit(main())
