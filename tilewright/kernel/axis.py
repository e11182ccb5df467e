"""What a loop runs along: an axis of a stage, or a part of one.

A loop's name is the printed form of it, and this file is the only one that reads names:

    t0.i1       axis 1 of the results of stage t0
    t0.r0.1     what t0 reduces over: the inner part of it (Split made .0 and .1)
    t0.init.i1  axis 1 of t0, where its first values are set
    y0.p        an axis of y0 that Fuse has made
    program     a loop of no stage

A loop that Fuse gave a name of another kind stores its axis in a field (`nest.Loop`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

_FIRST = "init"


@dataclass(frozen=True)
class Axis:
    stage: str  # "": of none
    name: str  # among the axes of the stage
    parts: tuple[int, ...] = ()  # of each split on the way here: 0 the outer part, 1 the inner one
    first: bool = False  # where first values are set

    def __str__(self) -> str:
        words = (self.stage, _FIRST if self.first else "", self.name, *map(str, self.parts))
        return ".".join(w for w in words if w)

    @property
    def whole(self) -> Axis:
        """The axis that this is a part of."""
        return replace(self, parts=())

    def part(self, k: int) -> Axis:
        return replace(self, parts=(*self.parts, k))

    def of(self, stage: str) -> Axis:
        """The same axis of another stage."""
        return replace(self, stage=stage)


@lru_cache(1 << 14)
def axis_named(name: str) -> Axis:
    """The axis that a name describes."""
    words = name.split(".")
    parts: list[int] = []
    while len(words) > 1 and words[-1].isdecimal():
        parts.insert(0, int(words.pop()))
    if len(words) == 1:
        return Axis("", words[0], tuple(parts))
    stage, *own = words
    first = own[0] == _FIRST and len(own) > 1
    return Axis(stage, ".".join(own[first:]), tuple(parts), first)


def axis_name(stage: str, k: int, kind: str = "i") -> str:
    """Of an axis of results (i) or of what is reduced over (r)."""
    return f"{stage}.{kind}{k}"


def first_name(stage: str, k: int) -> str:
    """Of an axis of results, where first values are set."""
    return f"{stage}.{_FIRST}.i{k}"


def moved(loop: str, stage: str) -> str:
    """The name of the loop of another stage along the same axis."""
    return str(axis_named(loop).of(stage))


def is_below(loop: str, name: str) -> bool:
    """Is this what a part of `name` is called?"""
    return loop.startswith(f"{name}.")
