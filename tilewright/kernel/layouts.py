"""Layouts: which thread has which element of a tile, and where in its registers.

A layout is a list of digits of a loop variable (or of an index into a buffer), the most significant
first. Each digit is a thread's place along an axis of the block, a lane of a vector, or a register:

    2 z4 y8 x4 v4      element 512*r + 128*z + 16*y + 4*x + lane; r counts a thread's vectors

Two loops around a copy to shared memory may have parts of one axis, which together are all of it:
`4 y4` of rows and `y2 x4 v8` of columns. The part of the loop with lanes, or of the last one,
counts single threads.

A fragment digit (f) is a register too, one of those that an instruction of whole warps takes
together (kernel/fragments.py); it stands after all other registers in the buffer's new axes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from tilewright.base.errors import Invalid

AXES = {"x": "thread.x", "y": "thread.y", "z": "thread.z"}
LANES, FRAGMENT, REGISTER = "v", "f", ""
_ORDER = (REGISTER, "z", FRAGMENT, "y", "x", LANES)  # of a buffer's new axes


@dataclass(frozen=True)
class Digit:
    extent: int
    at: str = REGISTER

    @property
    def axis(self) -> str | None:
        """The axis of threads along which it is their place."""
        return AXES.get(self.at)

    @property
    def rank(self) -> int:
        return _ORDER.index(self.at)

    def __str__(self) -> str:
        return f"{self.at}{self.extent}"


Layout = tuple[Digit, ...]


def whole(extent: int) -> Layout:
    """All elements in every thread."""
    return (Digit(extent),) if extent > 1 else ()


def layout_text(x: Layout) -> str:
    return " ".join(map(str, x))


def parse_layout(text: str) -> Layout:
    out: list[Digit] = []
    for word in text.split():
        at = word.rstrip("0123456789")
        count = word[len(at) :]
        if at not in _ORDER or not count or int(count) < 2:
            raise Invalid(
                f"{word!r} is no digit of a layout",
                hint="a number of at least 2 after x, y, z, v, f or nothing",
            )
        out.append(Digit(int(count), at))
    return tuple(out)


def size(x: Layout) -> int:
    return prod(d.extent for d in x)


def resized(x: Layout, to: int) -> Layout | None:
    """The layout of an axis of which a loop is a part, or of a part of it: more or fewer of its
    outermost registers. None where those are threads, or not whole."""
    rest = size(x[1:])
    whole = bool(x) and x[0].at in (REGISTER, FRAGMENT) and to % rest == 0 and to >= 2 * rest
    return (Digit(to // rest, x[0].at), *x[1:]) if whole else None


def axes_of(x: Layout) -> set[str]:
    """The axes of threads that a layout uses."""
    return {d.axis for d in x if d.axis is not None}


def axis_parts(layouts: Iterable[Layout]) -> dict[str, list[int]]:
    """By axis of threads, how many of them each digit of some loops takes, the first loop first."""
    out: dict[str, list[int]] = {}
    for d in (d for x in layouts for d in x if d.axis is not None):
        out.setdefault(str(d.axis), []).append(d.extent)
    return out


def strides(x: Layout) -> list[int]:
    """How far one step of each digit moves the index."""
    out: list[int] = []
    n = 1
    for d in reversed(x):
        out.append(n)
        n *= d.extent
    return out[::-1]
