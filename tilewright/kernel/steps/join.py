from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir import dim as D
from tilewright.kernel.dependence import exchanged, interleaved
from tilewright.kernel.nest import (
    BRANCHES,
    Alloc,
    Loop,
    Nest,
    Stmt,
    bodies,
    reads,
    substitute_all,
    walk,
    with_bodies,
    writes,
)
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class Join(Step):
    """Two loops of one body that run equally often become one, the second after the first in every
    iteration. What stands between them goes before both, or after both where it uses what the first
    one writes.

        for i in 9: a[i] = …                s[] = 0
        s[] = 0                             for i in 9:
        for j in 9: s[] += a[j]               a[i] = …
                                              s[] += a[i]
    """

    first: str
    second: str

    def apply(self, n: Nest) -> Nest:
        for name in (self.first, self.second):
            found = self.loops(n, name)
            self.need(len(found) == 1, f"{name} has {len(found)} copies")
            self.need(found[0][0].kind == "serial", f"{name} is {found[0][0].kind}")
        first, second = (self.loops(n, name)[0][0] for name in (self.first, self.second))
        equal = D.known_eq(first.extent, second.extent)
        self.need(equal, f"{self.first} and {self.second} do not run equally often")
        pointers = any(b.pointer for b in n.buffers)
        branches = pointers and any(isinstance(s, BRANCHES) for s, _ in walk((first, second)))
        self.need(not branches, "one of the loops has branches")
        self._pointers(n, first, second)
        inside = substitute_all(second.body, {second.var: D.as_int(first.var)})
        joined = replace(first, body=(*first.body, *inside))
        done = False

        def within(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
            nonlocal done
            at = [k for k, s in enumerate(body) if s is first or s is second]
            if len(at) == 2:
                self.need(body[at[0]] is first, f"{self.second} comes before {self.first}")
                early, late = self._parted(n, first, body[at[0] + 1 : at[1]], second)
                done = True
                return (*body[: at[0]], *early, joined, *late, *body[at[1] + 1 :])
            return tuple(
                with_bodies(s, [within(x) for x in bodies(s)]) if bodies(s) else s for s in body
            )

        out = replace(n, body=within(n.body))
        self.need(done, f"{self.first} and {self.second} do not stand in one body")
        self.keep(out, interleaved(out, joined, [inside], before=False))
        return out

    def _parted(
        self, n: Nest, first: Loop, between: tuple[Stmt, ...], second: Loop
    ) -> tuple[list[Stmt], list[Stmt]]:
        """What is between the loops: the part that goes before both and the one that goes after."""
        early: list[Stmt] = []
        late: list[Stmt] = []
        known = {b.name for b in n.buffers if b.pointer}
        for other in between:
            if isinstance(other, Alloc):
                early.append(other)
                continue
            self._pointers(n, first, other)
            used = exchanged(n, first, other)
            if not used and not any(exchanged(n, x, other) for x in late):
                early.append(other)
                continue
            # Two pointers may be into the same memory, which the test for exchanging ignores.
            unseen = known & _used(other) and known & _used(second)
            stuck = unseen or exchanged(n, other, second)
            self.keep(n, used if stuck else [], "what is between them: ")
            self.need(not stuck, f"what is between {self.first} and {self.second} needs both")
            late.append(other)
        return early, late

    def check_branches(self, n: Nest) -> None:
        """Pointers and branches are checked where both loops are known."""

    def _pointers(self, n: Nest, first: Loop, other: Stmt) -> None:
        """Two pointers may be into the same memory: what changes its place with the loop, or runs
        between its iterations, uses none where one of them writes through one."""
        known = {b.name for b in n.buffers if b.pointer}
        used, others = _used(first), _used(other)
        written, theirs = (writes((s,)) & known for s in (first, other))
        apart = not (written and others & known) and not (theirs and used & known)
        with_what = other.name if isinstance(other, Loop) else "what is between them"
        self.need(apart, f"{self.first} or {with_what} writes through a pointer, both use one")


def _used(s: Stmt) -> set[str]:
    return {str(x.source) for x in reads(s)} | writes((s,))
