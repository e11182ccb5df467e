"""A pipeline: the passes of a compile as one value, checked when it is made, printed and parsed.

    tw.passes().without("Winograd").before("Decompose", Squares())

What passes expect of each other is declared on them (`Order` in `ir/passes.py`). A list in which
one of them cannot work is refused here, before anything is applied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

from tilewright.base import knobs
from tilewright.base.errors import Invalid
from tilewright.base.events import HeldLog, Log
from tilewright.ir.node import Graph
from tilewright.ir.operator import is_composed
from tilewright.ir.passes import PASSES, Pass, PassRun, parse_passes, passes_text, run, unknown
from tilewright.ir.repeated import by_regions
from tilewright.ir.rewrite import RewriteLog
from tilewright.ir.target import Target


@dataclass(frozen=True)
class Pipeline:
    """Passes in the order in which they run. It prints as text that `Pipeline.parse` reads back."""

    passes: tuple[Pass, ...]

    def __post_init__(self) -> None:
        for p in self.passes:
            if not isinstance(p, Pass):
                raise Invalid(
                    f"{p!r} is no pass",
                    hint="passes are frozen dataclasses that derive from tw.Pass; "
                    "a list of names is one text",
                )
        for problem, hint in _problems(self.passes):
            raise Invalid(f"these passes cannot run: {problem}\n    {self}", hint=hint)

    @staticmethod
    def parse(text: str) -> Pipeline:
        return Pipeline(parse_passes(text))

    def __str__(self) -> str:
        return passes_text(self.passes)

    def __iter__(self) -> Iterator[Pass]:
        return iter(self.passes)

    def __len__(self) -> int:
        return len(self.passes)

    # ---- edits: each gives another pipeline, checked as a whole

    def without(self, *names: str) -> Pipeline:
        """The list without these passes."""
        for name in names:
            self._place(name)
        return Pipeline(tuple(p for p in self.passes if p.name not in names))

    def before(self, name: str, *new: Pass) -> Pipeline:
        """With `new` before the first pass of this name."""
        at = self._place(name)
        return Pipeline((*self.passes[:at], *new, *self.passes[at:]))

    def after(self, name: str, *new: Pass) -> Pipeline:
        """With `new` after the last pass of this name."""
        at = self._place(name, last=True) + 1
        return Pipeline((*self.passes[:at], *new, *self.passes[at:]))

    def replacing(self, name: str, *new: Pass) -> Pipeline:
        """With `new` in the place of the one pass of this name."""
        at = self._place(name)
        return Pipeline((*self.passes[:at], *new, *self.passes[at + 1 :]))

    def _place(self, name: str, last: bool = False) -> int:
        found = [k for k, p in enumerate(self.passes) if p.name == name]
        if not found:
            what = f"the list has no pass {name}" if name in PASSES else unknown(name)
            raise Invalid(what, hint=f"it has {self}")
        return found[-1 if last else 0]

    # ---- use

    @property
    def rounding(self) -> list[str]:
        """The passes after which results may round differently."""
        return [p.name for p in self.passes if p.rounds_differently]

    def key(self) -> str | None:
        """The part of a program's cache key that names the passes; None where a user's pass has no
        version, so that a change of its code would go unnoticed."""
        if any(p.own and not p.order.version for p in self.passes):
            return None
        versions = [f"{p.name} {p.order.version}" for p in self.passes if p.own]
        return "; ".join([str(self), *versions])

    def run(
        self,
        graph: Graph,
        target: Target,
        log: Log,
        between: Callable[[str, Any], Any] | None = None,
        runs: list[PassRun] | None = None,
    ) -> Graph:
        """The graph after all passes, for a machine. `between` is that of `ir.passes.run`. Equal
        regions are rewritten once by passes that allow it, unless something looks between."""
        bound = [p.on(target) for p in self.passes]
        names = [p.name for p in bound]
        decomposed = len(names) - names[::-1].index("Decompose") if "Decompose" in names else 0

        def some(
            first: int, last: int, graph: Graph, log: Log, runs: list[PassRun] | None
        ) -> Graph:
            """After some of the passes."""
            stage = first

            def after(name: str, made: Graph) -> Graph:
                nonlocal stage
                out = made if between is None else between(name, made)
                doubtful = stage == decomposed or out is not made or bound[stage - 1].own
                if stage >= decomposed > 0 and doubtful:
                    _all_decomposed(out, name)
                stage += 1
                return out

            return run(bound[first:last], graph, log, between=after, runs=runs)

        looked_at = between is not None or isinstance(log, RewriteLog)
        if looked_at or not knobs.regions.get():
            return some(0, len(bound), graph, log, runs)
        first = 0
        for regions, part in groupby(bound, lambda p: p.order.regions):
            last = first + len(list(part))
            change = partial(some, first, last)
            graph = (_by_regions if regions else _whole)(graph, change, log, runs)
            first = last
        return graph


Change = Callable[[Graph, Log, list[PassRun] | None], Graph]


def _whole(graph: Graph, change: Change, log: Log, runs: list[PassRun] | None) -> Graph:
    return change(graph, log, runs)


def _by_regions(graph: Graph, change: Change, log: Log, runs: list[PassRun] | None) -> Graph:
    """What is said of the graph that the result is made of is passed on, and of no other one."""
    said, counted = HeldLog(), list[PassRun]()

    def once(short: Graph) -> Graph:
        nonlocal said, counted
        said, counted = HeldLog(), []
        out = change(short, said, counted)
        whole = 0 if short is graph else len(graph.nodes())
        counted = [replace(r, whole=whole) for r in counted]
        return out

    made = by_regions(graph, once)
    said.release(log)
    if runs is not None:
        runs += counted
    return made


def _all_decomposed(graph: Graph, since: str) -> None:
    for n in graph.nodes():
        if is_composed(n.op):
            raise Invalid(
                f"after {since} the graph has {n.op}, which is written in other operators",
                where=graph.place(n),
                hint="what makes it stands before Decompose, and Decompose keeps none",
            )


def _problems(passes: Sequence[Pass]) -> Iterator[tuple[str, str]]:
    """What is wrong with the order, and how to correct it."""
    names = [p.name for p in passes]
    first = {n: names.index(n) for n in names}
    last = {n: k for k, n in enumerate(names)}
    for cls in sorted(PASSES.values(), key=lambda c: c.name):
        if cls.order.required and cls.name not in first:
            yield f"{cls.name} is missing: {cls.order.required}", f"add {cls.name}"
    for name in first:
        order = passes[first[name]].order
        if not order.repeats and names.count(name) > 1:
            yield f"{name} is listed {names.count(name)} times", "keep one of them"
        for other in order.needs:
            if other not in first:
                hint = f"add {other} before {name}, or leave {name} out"
                yield f"{name} needs {other} before it, and the list has none", hint
            elif first[other] > first[name]:
                yield f"{name} needs {other} before it", f"move {other} before {name}"
        for other in order.after:
            if last.get(other, -1) > last[name]:
                yield f"{name} works only after {other}", f"move {other} before {name}"
        for other in order.before:
            if other in first and first[other] < first[name]:
                yield f"{name} works only before {other}", f"move {name} before {other}"
