"""What spaces of schedules contain: sketches, decisions, how many assignments are legal, and which
steps refuse the others.

    python -m tests.tune.space_report                     # the kernels of tests.tune.gains
    python -m tests.tune.space_report distances sum       # some, by parts of their names
    python -m tests.tune.space_report --target x86-64-v4 --draws 100

Assignments are made at random, each decision by itself. A draw of a search decides step by step,
and a neighbour changes one or two decisions of a legal point: most of what a search tries is of
these two kinds, so their legal shares say more. Refusals are counted by step and reason, names and
numbers left out.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import log10
from random import Random

import torch
import torch._dynamo

import tilewright as tw
from tests.tune.gain_kernels import CASES
from tests.tune.gains import named
from tilewright import targets
from tilewright.base.errors import Invalid, Refused
from tilewright.driver.looking.tables import new_table, rendered
from tilewright.driver.program.elsewhere import kernels_for
from tilewright.driver.program.options import Options
from tilewright.ir.target import Target
from tilewright.kernel.defaults.scheduler import Applied
from tilewright.kernel.group import Group
from tilewright.kernel.step import Trace
from tilewright.kernel.text import parse_group
from tilewright.tune.models.analytic import Analytic
from tilewright.tune.search.state import State
from tilewright.tune.space.made import space_of
from tilewright.tune.space.space import SKETCH, Space

SHOWN = 3  # refusals of a kernel


@dataclass(frozen=True)
class Report:
    """Of one kernel's space. Shares are of as many tries as were asked for; `distinct` counts the
    schedules that draws and neighbours led to."""

    kernel: str
    sketches: int
    decisions: int
    size: int
    at_random: float
    drawn: float
    near: float
    distinct: int
    refusals: Counter[str]


def report_of(name: str, group: Group, target: Target, draws: int, seed: int = 0) -> Report:
    space, rng = space_of(group, target), Random(seed)
    refusals: Counter[str] = Counter()
    at_random = sum(_legal(space, group, rng, refusals) for _ in range(draws))
    state = State(group, target, space, Analytic(), rng)
    found = [p for _ in range(draws) if (p := state.draw()) is not None]
    first = space.replay(group, {})
    beside = [state.neighbour(rng.choice(found or [first]).given, 1 + k % 2) for k in range(draws)]
    near = [p for x in beside if (p := state.point(x)) is not None]
    traces: set[Trace] = {p.trace for p in (*found, *near)}
    sketches = len(space.named[SKETCH].values) if SKETCH in space.named else 1
    shares = at_random / draws, len(found) / draws, len(near) / draws
    counts = sketches, len(space.decisions), space.size
    return Report(name, *counts, *shares, len(traces), refusals)


def _legal(space: Space, group: Group, rng: Random, refusals: Counter[str]) -> bool:
    given = space.random(rng)
    try:
        space.replay(group, given, Applied())
    except (Refused, Invalid) as why:
        refusals[reason(str(why.what))] += 1
        return False
    return True


def reason(text: str) -> str:
    """What a step says, without the names and numbers of one kernel."""
    text = re.sub(r"\([^()]*(\([^()]*\)[^()]*)*\):", ":", text.split("\n")[0], count=1)
    text = re.sub(r"\b\w+\[[^\]]*\]", "BUFFER", text)
    text = re.sub(r"\b\w+(\.\w+)+\b", "LOOP", text)
    return re.sub(r"\b\d+\b", "N", text)


def groups_of(name: str, target: Target) -> Iterator[tuple[str, Group]]:
    """The kernels of a case that have spaces, as they are on a target."""
    case = CASES[name]()
    if case.tuned is not None:  # a tile kernel, whose constants are tuned
        return
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = tw.compile(case.function, *case.inputs, strict=True)
    for program in tw.explain(compiled).programs:
        assert program.graph is not None
        for k, info in enumerate(kernels_for(program.graph, Options(), target)):
            yield f"{name}/{k}" if k else name, parse_group(info.group)


def table(reports: Sequence[Report]) -> str:
    shown = new_table(
        "kernel", "sketches", "decisions", "10^", "at random", "drawn", "near", "distinct"
    )  # fmt: skip
    percent: Callable[[float], str] = "{:.0%}".format
    for r in reports:
        counts = str(r.sketches), str(r.decisions), f"{log10(r.size):.0f}"
        shares = map(percent, (r.at_random, r.drawn, r.near))
        shown.add_row(r.kernel, *counts, *shares, str(r.distinct))
    refused = new_table("kernel", "count", "refused most often")
    for r in reports:
        for why, n in r.refusals.most_common(SHOWN):
            refused.add_row(r.kernel, str(n), why)
    return f"{rendered(shown)}\n\n{rendered(refused)}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("kernels", nargs="*", help="names or parts; all where none is given")
    parser.add_argument("--draws", type=int, default=500, help="of each kind, for each kernel")
    parser.add_argument("--target", help=f"one of {', '.join(targets.names())}; else this machine")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    found = named(options.kernels or [""], CASES)
    if not found:
        parser.error(f"there is no such name; there are {', '.join(CASES)}")
    target = targets.get(options.target) if options.target else targets.default()
    reports = [
        report_of(kernel, group, target, options.draws, options.seed)
        for name in found
        for kernel, group in groups_of(name, target)
    ]
    print(table(reports))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
