"""Which loops are one with the loop that threads share: more of them are more pieces, fewer keep
what neighbours share in one thread's cache."""

from __future__ import annotations

from dataclasses import replace

from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.parallel import Parallel
from tilewright.tune.space.decision import Argument
from tilewright.tune.space.draft import Draft, Item
from tilewright.tune.space.space import Condition, OpenStep


def open_fusing(draft: Draft) -> None:
    """Comes last: a step that is taken in several forms is no step of the schedule any more."""
    for item in list(draft.items):
        if isinstance(item.step, Parallel):
            chain = _chain(draft, item)
            if chain:
                _open(draft, item, chain)


def _chain(draft: Draft, shared: Item) -> list[Item]:
    """The steps that fuse loops into the one that is shared, the first one first; none where other
    steps depend on what they make."""
    assert isinstance(shared.step, Parallel)
    chain: list[Item] = []
    wanted, at = shared.step.loop, draft.items.index(shared)
    for item in reversed(draft.items[:at]):
        if isinstance(item.step, Fuse) and item.step.into == wanted:
            chain.insert(0, item)
            wanted = item.step.outer
    made = {i.step.into for i in chain if isinstance(i.step, Fuse)}
    for item in draft.items:
        if item is shared or item in chain or not made & _words(item):
            continue
        last = isinstance(item.step, ComputeAt) and item.step.at == shared.step.loop
        if not last or item.step is None or made & _words(item) != {shared.step.loop}:
            return []
    return chain


def _words(item: Item) -> set[str]:
    words = set()
    for _, x in item.opened.arguments:
        words |= {x} if isinstance(x, str) else set(x) if isinstance(x, tuple) else set()
    return {w for w in words if isinstance(w, str)}


def _open(draft: Draft, shared: Item, chain: list[Item]) -> None:
    assert isinstance(shared.step, Parallel)
    loop, count = shared.step.loop, len(chain)
    name = draft.decide(f"fused_{loop}", range(count + 1), count, True)
    arguments = [dict(i.opened.arguments) for i in chain]
    tops = [arguments[0]["outer"], *(a["into"] for a in arguments)]
    inmost = arguments[-1]["inner"]
    for k, item in enumerate(chain):
        item.opened = item.opened.under(*(Condition(name, j, False) for j in range(k + 1)))
    for item in list(draft.items):
        if isinstance(item.step, ComputeAt) and item.step.at == loop:
            whole = item.opened
            item.opened = whole.under(Condition(name, count))
            draft.after(item, [_with(whole, "at", inmost).under(Condition(name, count, False))])
    usual = shared.opened
    shared.opened = usual.under(Condition(name, count))
    others = [_with(usual, "loop", tops[k]).under(Condition(name, k)) for k in range(count)]
    draft.after(shared, others)


def _with(step: OpenStep, argument: str, value: Argument) -> OpenStep:
    return replace(step, arguments=tuple((dict(step.arguments) | {argument: value}).items()))
