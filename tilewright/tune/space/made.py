"""The space of a group: sketches, each a schedule that the rules open.

The first sketch is the default schedule; others are what the same rules make of other choices, and
a tiled one that takes any reduction. A decision says which sketch it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import dropwhile

from tilewright.ir.target import Target
from tilewright.kernel.defaults.scheduler import Applied
from tilewright.kernel.nest import Work
from tilewright.tune.space.decision import Assignment, Decision, Plain
from tilewright.tune.space.draft import Draft
from tilewright.tune.space.rules import RULES
from tilewright.tune.space.sketches import sketches
from tilewright.tune.space.space import SKETCH, Condition, OpenStep, Space


def space_of(work: Work, target: Target, applied: Applied | None = None) -> Space:
    """All schedules that rules derive for a group; the default schedule is its default point."""
    applied = applied or Applied()
    traces = sketches(work, target, applied)
    drafts = []
    for k, trace in enumerate(traces):
        draft = Draft.of(work, target, trace, applied, f"s{k}_" if len(traces) > 1 else "")
        for rule in RULES:
            rule(draft)
        drafts.append(_pruned(draft.space(), draft.tested, work, applied))
    if len(drafts) == 1:
        return drafts[0]
    which = Decision(SKETCH, tuple(range(len(drafts))), 0)
    steps: list[OpenStep] = []
    for k, d in enumerate(drafts):
        only = Condition(SKETCH, k)
        steps += [replace(s, when=(only, *s.when)) for s in d.steps]
    return Space((which, *(x for d in drafts for x in d.decisions)), tuple(steps))


def _pruned(space: Space, tested: Mapping[str, Assignment], work: Work, applied: Applied) -> Space:
    """Without values that some step refuses while everything else is by default. Of sizes those are
    left out that are too large or too small for a later step: what refuses one in between is mostly
    the step that takes it, where a draw takes another. A decision with one value left stays, so
    that names mean the same."""

    def left(d: Decision) -> Decision:
        if d.name not in tested and not d.ordered and len(d.values) <= 2:
            return d
        others = tested.get(d.name, {})

        def is_legal(v: Plain) -> bool:
            return space.legal(work, {**others, d.name: v}, applied) is not None

        if d.ordered and d.name not in tested:
            inner = list(dropwhile(lambda v: v != d.default and not is_legal(v), d.values))
            inner = list(dropwhile(lambda v: v != d.default and not is_legal(v), inner[::-1]))
            return replace(d, values=tuple(inner[::-1]))
        legal = [v for v in d.values if is_legal(v)]
        # The default is legal where the others are; what is decided beside it may not be.
        return replace(d, values=tuple(v for v in d.values if v in legal or v == d.default))

    decisions = tuple(map(left, space.decisions))
    gone = {
        (d.name, v) for d, e in zip(space.decisions, decisions) for v in {*d.values} - {*e.values}
    }
    # What is not decided any more is never so: no step waits for it.
    steps = [
        replace(s, when=tuple(c for c in s.when if (c.name, c.value) not in gone))
        for s in space.steps
        if not any(c.equal and (c.name, c.value) in gone for c in s.when)
    ]
    return Space(decisions, tuple(steps))
