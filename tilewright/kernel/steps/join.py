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
    substitute,
    walk,
    with_bodies,
    writes,
)
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class Join(Step):
    """Two loops of one body that run equally often become one, the second after the first in every
    iteration. What stands between them goes before both.

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
        self._pointers(n, first, second)
        inside = tuple(substitute(s, {second.var: D.as_int(first.var)}) for s in second.body)
        joined = replace(first, body=(*first.body, *inside))
        done = False

        def within(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
            nonlocal done
            at = [k for k, s in enumerate(body) if s is first or s is second]
            if len(at) == 2:
                self.need(body[at[0]] is first, f"{self.second} comes before {self.first}")
                between = body[at[0] + 1 : at[1]]
                for other in between:
                    if not isinstance(other, Alloc):
                        self.keep(n, exchanged(n, first, other), "what is between them: ")
                done = True
                return (*body[: at[0]], *between, joined, *body[at[1] + 1 :])
            return tuple(
                with_bodies(s, [within(x) for x in bodies(s)]) if bodies(s) else s for s in body
            )

        out = replace(n, body=within(n.body))
        self.need(done, f"{self.first} and {self.second} do not stand in one body")
        self.keep(out, interleaved(out, joined, [inside], before=False))
        return out

    def beside(self, n: Nest) -> None:
        """Pointers and branches are looked at where both loops are known."""

    def _pointers(self, n: Nest, first: Loop, second: Loop) -> None:
        """Two pointers may be into the same memory, so at most one of the loops has any that is
        written."""
        known = {b.name for b in n.buffers if b.pointer}
        if not known:
            return
        both = (first, second)
        branches = any(isinstance(s, BRANCHES) for s, _ in walk(both))
        self.need(not branches, "one of the loops has branches")
        touched = [{str(x.source) for x in reads(s)} | writes((s,)) for s in both]
        written = [writes((s,)) & known for s in both]
        apart = not (written[0] and touched[1] & known) and not (written[1] and touched[0] & known)
        self.need(apart, "one of the loops writes through a pointer, the other uses one")
