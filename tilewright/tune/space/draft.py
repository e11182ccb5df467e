"""A space while rules open it: the steps of one schedule, each with the nest that it is applied to
when nothing but the defaults is chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.graph.classify import guess
from tilewright.ir import dim as D
from tilewright.ir.target import Target
from tilewright.kernel.axis import is_below
from tilewright.kernel.defaults.scheduler import Applied
from tilewright.kernel.nest import Loop, Nest, Work, find, walk
from tilewright.kernel.step import Step, Trace
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.parallel import Parallel
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.set_scope import SetScope
from tilewright.kernel.steps.tensorize import Tensorize
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.steps.vectorize import Vectorize
from tilewright.tune.space.decision import Assignment, Decision, Open, Plain
from tilewright.tune.space.space import Condition, OpenStep, Space

# Kinds of loops that have no iterations when a program runs.
WRITTEN_OUT = frozenset(("unroll", "lane", "tensor"))


@dataclass
class Item:
    """A step of the schedule, or one that a rule put in, and the nest before it by default."""

    step: Step | None  # None: a rule's own
    nest: Nest
    opened: OpenStep


@dataclass
class Draft:
    """What rules work on. They only open arguments, add conditions that hold by default, and put in
    steps that do nothing by default: so the schedule stays a point of the space."""

    work: Work
    target: Target
    items: list[Item]
    last: Nest  # after all steps, by default
    prefix: str = ""
    decisions: list[Decision] = field(default_factory=list)
    # Decisions whose values later steps may refuse, whatever else is decided: they are tried once
    # while the others are by default, or as it says here.
    tested: dict[str, Assignment] = field(default_factory=dict)

    @classmethod
    def of(
        cls, work: Work, target: Target, trace: Trace, applied: Applied, prefix: str = ""
    ) -> Draft:
        nest, items = applied.start(work), []
        for s in trace:
            items.append(Item(s, nest, OpenStep.of(s)))
            nest = applied.apply(s, nest)
        return cls(work, target, items, nest, prefix)

    def decide(
        self, what: str, values: Iterable[Plain], default: Plain, ordered: bool = False
    ) -> str:
        """A new decision; its name."""
        base = self.prefix + "".join(c if c.isalnum() else "_" for c in what)
        name, k = base, 1
        while any(d.name == name for d in self.decisions):
            name, k = f"{base}_{k}", k + 1
        distinct = {(type(v), v): v for v in (*values, default)}
        found = list(distinct.values())
        if ordered:
            found.sort()  # type: ignore[type-var]
        self.decisions.append(Decision(name, tuple(found), default, ordered))
        return name

    def open(self, item: Item, **arguments: str | Open) -> None:
        """Arguments of a step are decisions from now on."""
        opened = {k: Open((x,)) if isinstance(x, str) else x for k, x in arguments.items()}
        given = dict(item.opened.arguments) | opened
        item.opened = replace(item.opened, arguments=tuple(given.items()))

    def rename(self, item: Item, names: Mapping[str, Open]) -> None:
        """Arguments that are these names depend on decisions from now on."""
        given = tuple(
            (k, names.get(x, x) if isinstance(x, str) else x) for k, x in item.opened.arguments
        )
        item.opened = replace(item.opened, arguments=given)

    def attempt(self, item: Item) -> None:
        """A step is passed over where it is refused."""
        item.opened = replace(item.opened, attempted=True)

    def optional(self, item: Item, name: str) -> None:
        """A step is left out where a decision says False."""
        item.opened = item.opened.under(Condition(name, True))

    def after(self, item: Item | None, steps: Sequence[OpenStep]) -> None:
        """Steps of a rule's own behind another step, or behind all."""
        at = len(self.items) if item is None else self.items.index(item) + 1
        nest = self.last if at == len(self.items) else self.items[at].nest
        self.items[at:at] = [Item(None, nest, s) for s in steps]

    def before(self, item: Item, steps: Sequence[OpenStep]) -> None:
        """Steps of a rule's own before another step."""
        at = self.items.index(item)
        self.items[at:at] = [Item(None, item.nest, s) for s in steps]

    def filled(self) -> Item | None:
        """The first step after all stages have their place: what comes in between is placed too."""
        kinds = (Peel, SetScope, Unroll, Vectorize, Tensorize, Parallel)
        placed = [k for k, i in enumerate(self.items) if isinstance(i.step, (Reorder, ComputeAt))]
        for item in self.items[placed[0] if placed else 0 :]:
            if isinstance(item.step, kinds):
                return item
        return None

    def kinds(self, loop: str) -> set[str]:
        """What a loop, or what it was split into, is in the end."""
        return {
            x.kind
            for x, _ in walk(self.last.body)
            if isinstance(x, Loop) and (x.name == loop or is_below(x.name, loop))
        }

    def space(self) -> Space:
        return Space(tuple(self.decisions), tuple(i.opened for i in self.items))


def trips(nest: Nest, loop: str) -> int:
    """Iterations of a loop, at most; guessed where they are no constant."""
    found = [x.extent for x, _ in find(nest, loop)]
    tops = [D.bounds(e)[1] for e in found]
    return max(
        (int(t) if t < D.INF else guess(e) for t, e in zip(tops, found, strict=True)), default=1
    )
