from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.kernel.atomic import unlike_atomic
from tilewright.kernel.nest import Nest, Stmt, Store, transform
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class AddAtomically(Step):
    """The additions of a stage may come in any order, from blocks and threads that add to one cell:
    Bind does not mind them afterwards. Sums of floats round in another order at every call, so a
    strict nest keeps its own.

    for i in 1024:                      for i in 1024:
      y[at[i]] += x[i]                    y: atomic y[at[i]] add= x[i]
    """

    stage: str

    def apply(self, n: Nest) -> Nest:
        self.need(n.precision != "strict", "the order of sums may not change")
        found: list[Store] = []

        def one(s: Stmt) -> tuple[Stmt, ...]:
            if not isinstance(s, Store) or s.combine is None:
                return (s,)
            found.append(s)
            return (replace(s, atomic=True),)

        body = transform(n.body, one, ("stage", self.stage))
        self.need(found, f"{self.stage} adds nothing up")
        for s in found:
            what = unlike_atomic(n, s)
            self.need(not what, what)
            self.need(not s.atomic, f"{self.stage} is added up atomically already")
        return replace(n, body=body)
