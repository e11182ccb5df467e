"""Where threads of a GPU make what they stored visible to instructions that read tiles of shared
memory by themselves: a fence between the stores and the next barrier.

A fence waits for all copies that are on their way: in a loop with copies ahead of their use none
would be ahead any more. So it stands only where a thread has stored something since the last one.
Copies by cp.async need none once they are waited for: Triton's and CUTLASS's loops have none.
"""

from __future__ import annotations

from tilewright.kernel.nest import (
    Barrier,
    If,
    Loop,
    Stmt,
    Store,
    While,
    bodies,
    walk,
    writes,
)
from tilewright.llvm.writer import Writer

FENCE = 'call void asm sideeffect "fence.proxy.async.shared::cta;", "~{memory}"()'
IF_COPIED = f"{FENCE} ; of copies"  # kept where an asynchronous store is an ordinary one


class TileFences:
    """The fences of one kernel. `tiles` are those that its threads write, `stored` the ones that
    they write otherwise than by asynchronous stores: by others, or as results of atomics."""

    def __init__(
        self, w: Writer, launch: tuple[Stmt, ...], tiles: set[str], stored: set[str]
    ) -> None:
        self.w, self.tiles, self.stored = w, tiles, stored
        self.open = False  # has a thread stored something since the last fence?
        self.copied_by_stores = False
        # Around a loop what is stored late, after its last barrier, comes before what is early.
        self.around = {
            id(x)
            for s, _ in walk(launch)
            if isinstance(s, (Loop, While)) and _repeats(s) and self._stores(_late(s.body))
            for x, _ in walk((s,))
            if isinstance(x, Barrier)
        }

    def before(self, s: Stmt) -> None:
        """Before each statement is written."""
        if not bodies(s):
            self.open |= self._stores((s,))
        elif self.open and (isinstance(s, If) or _repeats(s)) and _has_barrier(s):
            self._fence()

    def barrier(self, s: Barrier) -> None:
        if self.open or id(s) in self.around:
            self._fence()
        elif self.tiles:
            self.w.line(IF_COPIED)

    def not_copied(self, s: Store) -> None:
        """An asynchronous store is written as an ordinary one."""
        self.copied_by_stores |= s.buffer in self.tiles

    def kept(self, lines: list[str]) -> list[str]:
        """The lines of the kernel without the fences that it turned out not to need."""
        return [x for x in lines if self.copied_by_stores or x.strip() != IF_COPIED]

    def _fence(self) -> None:
        self.w.line(FENCE)
        self.open = False

    def _stores(self, body: tuple[Stmt, ...]) -> bool:
        return bool(self.stored) and not self.stored.isdisjoint(writes(body))


def _late(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """What comes after the last barrier that all iterations come to."""
    last = max((k for k, s in enumerate(body) if isinstance(s, Barrier)), default=-1)
    return body[last + 1 :]


def _repeats(s: Stmt) -> bool:
    return isinstance(s, While) or (isinstance(s, Loop) and s.kind == "serial")


def _has_barrier(s: Stmt) -> bool:
    return any(isinstance(x, Barrier) for x, _ in walk((s,)))
