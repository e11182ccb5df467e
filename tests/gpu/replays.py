"""A printed trace, read and applied again, gives the nest that it was printed of."""

from __future__ import annotations

from tilewright.kernel.group import Group
from tilewright.kernel.nest import Nest, start
from tilewright.kernel.step import Step, apply, parse_trace, print_trace

_seen: set[tuple[type[Step], ...]] = set()


def replays(g: Group, trace: tuple[Step, ...], nest: Nest) -> str:
    """The text of the trace. Of traces with the same kinds of steps one is applied again: it takes
    as long as to schedule, and tests of such groups differ in their sizes."""
    text = print_trace(trace)
    assert parse_trace(text) == trace
    kinds = tuple(type(s) for s in trace)
    if kinds not in _seen:
        _seen.add(kinds)
        assert apply(start(g), parse_trace(text)) == nest
    return text
