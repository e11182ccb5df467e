from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.base.errors import Refused
from tilewright.kernel.library import LIBRARY, library_loops, recognised
from tilewright.kernel.nest import Alloc, Loop, Nest, Stmt, mentions, stages_in
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class Library(Step):
    """Some stages, a sum of products and a conversion of it, become one call of a library, before
    all others. Their loops stay and say what it computes.

    for s.i0 in 8: …                       library s.init.i0 in 8: …
    for s.i0 in 8: …                       library s.i0 in 8: …
    for y.i0 in 8: y[y.i0] = s[y.i0]       library y.i0 in 8: y[y.i0] = s[y.i0]
    """

    stages: tuple[str, ...]

    def apply(self, n: Nest) -> Nest:
        exact = n.precision != "strict"
        self.need(exact, "a library adds in an order of its own, and the precision is strict")
        self.need(not library_loops(n), "the nest has a library call already")
        wanted = set(self.stages)
        loops = [s for s in n.body if not isinstance(s, Alloc) and stages_in(s) & wanted]
        found = set().union(*map(stages_in, loops)) if loops else set()
        self.need(found == wanted, f"{', '.join(self.stages)} are not outermost loops of their own")
        taken: list[Stmt] = []
        for s in loops:
            plain = isinstance(s, Loop) and s.kind == "serial"
            self.need(plain, "a library is called in place of plain loops", "Library first")
            assert isinstance(s, Loop)
            taken.append(replace(s, kind=LIBRARY))
        try:
            call = recognised(n, taken)
        except Refused as why:
            self.need(False, why.what, why.hint)
            raise
        rest = [s for s in n.body if not any(s is x for x in loops)]
        *operands, result = call.arguments
        for name in operands:
            self.need(n.buffer(name).scope == "in", f"{name} is computed by the kernel itself")
        inside = set().union(*(mentions(s) for s in loops)) - {*operands, result}
        for s in rest:
            for name in inside & mentions(s) if not isinstance(s, Alloc) else ():
                self.need(False, f"{name} is used outside of the call too")
        own = {*inside, result}
        first = [s for s in rest if isinstance(s, Alloc) and s.buffer in own]
        return replace(n, body=(*first, *taken, *(s for s in rest if s not in first)))
