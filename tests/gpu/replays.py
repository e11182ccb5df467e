"""A printed trace, read and applied again, gives the nest that it was printed of."""

from __future__ import annotations

from tilewright.kernel.group import Group
from tilewright.kernel.nest import Nest, start
from tilewright.kernel.step import Step, apply, parse_trace, print_trace

_seen: set[type[Step]] = set()


def replays(g: Group, trace: tuple[Step, ...], nest: Nest) -> str:
    """The text of the trace. One is applied again for each kind of step that was in none before:
    it takes as long as to schedule, and tests of such groups differ in their sizes."""
    text = print_trace(trace)
    assert parse_trace(text) == trace
    kinds = {type(s) for s in trace}
    if kinds - _seen:
        _seen.update(kinds)
        assert apply(start(g), parse_trace(text)) == nest
    return text
