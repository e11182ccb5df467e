"""Emulated code looks at every address that it reads or writes: is it as aligned as the instruction
says, and inside the memory that it was given? On a GPU the first is a fault, the second may be one.

Memory that is known lies in an arena of its own: what is next to it in the arena is nobody's.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable

BESIDE = 1 << 16  # bytes of an arena before and behind its memory
MOST = 64  # arenas
_ACCESS = re.compile(
    r"^( *)(?:%\S+ = load(?: atomic)? (?P<read>[^,]+)|store(?: atomic)? (?P<kind><[^>]*>|\w+) .*)"
    r", ptr (?P<at>%[\w.]+|\w+ \(.*\))(?: [a-z_]+)?, align (?P<align>\d+)",
    re.MULTILINE,
)
_TYPE = re.compile(r"(?:<(\d+) x )?(\w+)>?")
_BITS = {"half": 16, "bfloat": 16, "float": 32, "double": 64, "ptr": 64}
_CHECK = """
@tw_arenas = external global [0 x i64]
declare void @tw_outside(i64, i64, i64)
define internal void @tw_touched(ptr %p, i64 %size, i64 %align, i1 %part) noinline {
entry:
  %a = ptrtoint ptr %p to i64
  %end = add i64 %a, %size
  %mask = sub i64 %align, 1
  %rest = and i64 %a, %mask
  %odd = icmp ne i64 %rest, 0
  br i1 %odd, label %bad, label %one
one:
  %k = phi i64 [ 0, %entry ], [ %next, %more ]
  %low.p = getelementptr [4 x i64], ptr @tw_arenas, i64 %k, i64 0
  %low = load i64, ptr %low.p
  %none = icmp eq i64 %low, 0
  br i1 %none, label %done, label %look
look:
  %high.p = getelementptr [4 x i64], ptr @tw_arenas, i64 %k, i64 3
  %high = load i64, ptr %high.p
  %above = icmp uge i64 %a, %low
  %below = icmp ult i64 %a, %high
  %here = and i1 %above, %below
  br i1 %here, label %inside, label %more
inside:
  %first.p = getelementptr [4 x i64], ptr @tw_arenas, i64 %k, i64 1
  %first = load i64, ptr %first.p
  %last.p = getelementptr [4 x i64], ptr @tw_arenas, i64 %k, i64 2
  %last = load i64, ptr %last.p
  %begins = icmp uge i64 %a, %first
  %ends = icmp ule i64 %end, %last
  %all = and i1 %begins, %ends
  %reaches = icmp ugt i64 %end, %first
  %starts = icmp ult i64 %a, %last
  %some = and i1 %reaches, %starts
  %right = select i1 %part, i1 %some, i1 %all
  br i1 %right, label %done, label %bad
more:
  %next = add i64 %k, 1
  br label %one
bad:
  call void @tw_outside(i64 %a, i64 %size, i64 %align)
  br label %done
done:
  ret void
}
"""


def with_bounds(text: str) -> str:
    """The module with a look before every access."""
    return _ACCESS.sub(_looked, text) + _CHECK


def _looked(m: re.Match[str]) -> str:
    kind = _TYPE.fullmatch(m["read"] or m["kind"])
    if kind is None:  # several values at a time, which only emulated instructions read
        return m[0]
    count, of = int(kind[1] or 1), kind[2]
    bits = count * (_BITS[of] if of in _BITS else int(of.removeprefix("i")))
    size = -(-bits // 8)
    # An aligned vector of which some elements are there may be read: the others are next to them.
    part = m["read"] is not None and int(m["align"]) >= size
    given = f"ptr {m['at']}, i64 {size}, i64 {m['align']}, i1 {str(part).lower()}"
    # Where an address is less aligned this is said, and the process lives on.
    own = m[0] if " atomic " in m[0] else f"{m[0].removesuffix(m['align'])}1"
    return f"{m[1]}call void @tw_touched({given})\n{own}"


class Arenas:
    """Where known memory lies, by name, as emulated code sees it."""

    def __init__(self) -> None:
        self.known: dict[object, tuple[int, int]] = {}
        self.table = (ctypes.c_int64 * (4 * MOST))()

    def symbols(self, give: Callable[..., None]) -> None:
        number = ctypes.c_int64
        give("tw_outside", None, (number, number, number), self._outside)

    def put(self, name: object, start: int, size: int, before: int = BESIDE) -> None:
        """Memory of so many bytes, with those of nobody before and behind it."""
        self.known[name] = start, size
        k = 4 * list(self.known).index(name)
        assert k < len(self.table) - 4, "too much memory is known"
        self.table[k : k + 4] = [start - before, start, start + size, start + size + BESIDE]

    def look(self, at: int, size: int, align: int) -> None:
        """The same of memory that an emulated instruction touches."""
        near = (x for x in self.known.values() if x[0] - BESIDE <= at < x[0] + x[1] + BESIDE)
        if at % align or not any(s <= at and at + size <= s + count for s, count in near):
            self._outside(at, size, align)

    def _outside(self, at: int, size: int, align: int) -> None:
        if at % align:
            raise AssertionError(f"{size} bytes at an address that is no multiple of {align}")
        for name, (start, count) in self.known.items():
            if start - BESIDE <= at < start + count + BESIDE:
                what = f"{size} bytes at {at - start} are outside {name}"
                raise AssertionError(f"{what}, which has {count}")
