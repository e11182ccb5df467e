"""The conditions in force as bits: one, or a mask of the lanes.

Of a pointer nothing but the address is known, so no address can be clamped into a buffer as it is
for other arguments. What is read under a `select`, or written under an `If`, is read and written
under a branch (one value) or a mask (lanes). Where lanes may all choose alike the nest has versions
without a mask (kernel/legal/masks.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tilewright.llvm.context import Context, Test
from tilewright.llvm.indices import Evaluates
from tilewright.llvm.writer import Writer


class Masks:
    def __init__(self, w: Writer, c: Context, values: Evaluates) -> None:
        self.w, self.c, self.values = w, c, values

    def passed(self) -> str:
        """Are all conditions in force fulfilled? One bit: outside lanes, or in one of them."""
        return self.w.all_of([self._one(t) for t in self._every()], 1)

    def mask(self, w: int) -> str:
        """The lanes that fulfil all conditions in force."""
        return self.w.all_of([self._each(t, w) for t in self._every()], w)

    def vary(self) -> bool:
        """Does some condition in force differ between lanes?"""
        if self.c.lane is None:
            return False
        return any(t.lanes is not None or self.c.is_vector(t.condition) for t in self.c.under)

    def _every(self) -> Iterator[Test]:
        """The conditions in force, each while those before it are."""
        for k, t in enumerate(self.c.under):
            with self.c.testing(self.c.under[:k]):
                yield t

    def _one(self, t: Test) -> str:
        """Whether a test is passed, where that is one bit."""
        if t.lanes is not None:
            assert t.lane is not None
            at = self.c.env[t.lane]
            return self.w.put(f"extractelement <{t.width} x i1> {t.lanes}, i64 {at}")
        x = self.values.value(t.condition, True)
        return x if t.holds else self.w.negated(x, 1)

    def _each(self, t: Test, w: int) -> str:
        """Which lanes pass a test."""
        if t.lanes is not None:
            return t.lanes
        x = self.values.lanes_of(t.condition, True)
        return x if t.holds else self.w.negated(x, w)

    def where(self, bit: str, f: Callable[[], None]) -> None:
        """Does something under a branch, which decides all conditions."""

        def decided() -> None:
            with self.c.testing(()):
                f()

        self.w.branch(bit, decided)

    def lane_by_lane(self, f: Callable[[], None]) -> None:
        """Does something for each lane that is chosen, in order."""
        if self.c.lane is None:
            f()
            return
        for k in range(self.c.lane[1]):
            self.c.with_lane(k, lambda: self._in_lane(f))

    def _in_lane(self, f: Callable[[], None]) -> None:
        if self.c.under:
            self.where(self.passed(), f)
        else:
            f()
