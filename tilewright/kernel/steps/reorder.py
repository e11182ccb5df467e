from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.ir import dim as D
from tilewright.kernel.dependence import reordered
from tilewright.kernel.nest import Loop, Nest, Stmt, transform
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class Reorder(Step):
    """Perfectly nested loops in the given order, outermost first; others stay where they are.

    Reorder(("j", "i")):   for i: for j: …   →   for j: for i: …
    """

    stays: ClassVar[bool] = True
    order: tuple[str, ...]

    def apply(self, n: Nest) -> Nest:
        wanted = set(self.order)
        self.need(len(wanted) == len(self.order) >= 2, "name two or more different loops")
        for name in self.order:
            self.loops(n, name)
        hits = 0

        def one(s: Stmt) -> tuple[Stmt, ...]:
            nonlocal hits
            if not (isinstance(s, Loop) and s.name in wanted):
                return (s,)
            chain = [s]
            while len(chain[-1].body) == 1 and isinstance(chain[-1].body[0], Loop):
                chain.append(chain[-1].body[0])
            while chain and chain[-1].name not in wanted:
                chain.pop()
            if {x.name for x in chain} & wanted != wanted:
                return (s,)
            hits += 1
            body = chain[-1].body
            before = list(chain)
            new = {x.name: x for x in chain if x.name in wanted}
            for x in new.values():
                free = x.kind in ("serial", "unroll")
                self.need(free, f"{x.name} is already {x.kind}", "reorder first")
            slots = iter(self.order)
            chain = [new[next(slots)] if x.name in wanted else x for x in chain]
            lanes = next((k for k, x in enumerate(chain) if x.kind == "lane"), len(chain))
            late = [x.name for x in chain[lanes + 1 :] if x.kind != "unroll"]
            self.need(not late, f"{', '.join(late)} would be inside lanes")
            seen: set[D.Sym] = set()
            for x in chain:
                late = {y.var for y in chain} - seen
                blocked = D.symbols(x.extent) & late
                self.need(
                    not blocked,
                    f"the extent of {x.name} depends on {', '.join(v.name for v in blocked)}",
                )
                seen.add(x.var)
            self.keep(n, reordered(n, before, chain), "{loop} carries an order: ")
            for x in reversed(chain):
                body = (x.around(body),)
            return body

        out = replace(n, body=transform(n.body, one, ("loop", self.order[0])))
        self.need(hits, f"{', '.join(self.order)} are not perfectly nested in one another")
        return out
