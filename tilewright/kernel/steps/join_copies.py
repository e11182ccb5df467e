from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.ir import dim as D
from tilewright.kernel.box import own_statements
from tilewright.kernel.guards import copied
from tilewright.kernel.nest import (
    Commit,
    Loop,
    Nest,
    Stmt,
    Store,
    Wait,
    sources,
    transform,
    walk,
)
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class JoinCopies(Step):
    """A copy to shared memory joins the group of asynchronous copies that is committed next, and is
    waited for with it. Pipeline first, Synchronise afterwards.

    q = x                                   async q = x
    async t[0] = …; commit                  async t[0] = …; commit
    for k in n:                             for k in n:
      wait 0                                  wait 0
      y += q * t[k%2]                         y += q * t[k%2]
    """

    stage: str

    def apply(self, n: Nest) -> Nest:
        b = self.internal(n, self.stage)
        self.need(b.scope == "shared", f"{self.stage} is {b.scope}", "SetScope to 'shared' first")
        own = [s for s, _ in own_statements(n, self.stage)]
        stores = [s for s, _ in walk(tuple(own)) if isinstance(s, Store)]
        plain = all(s.combine is None and copied(s.value) is not None for s in stores)
        self.need(stores and plain, f"{self.stage} is not a copy")
        bodies = [p[-1].body if p else n.body for _, p in own_statements(n, self.stage)]
        self.need(all(x is bodies[0] for x in bodies), f"{self.stage} is copied in several places")
        last = max(k for k, s in enumerate(bodies[0]) if any(s is x for x in own))
        self._waited(bodies[0][last + 1 :])
        mark = lambda x: (replace(x, asynchronous=True),) if x in stores else (x,)  # noqa: E731
        return replace(n, body=transform(n.body, mark))

    def _waited(self, body: Sequence[Stmt]) -> None:
        """The next group is committed, and waited for before anything reads the copy."""
        groups = 0
        for s in body:
            if isinstance(s, Loop) and _waits(s):
                first = s.body[0]
                enough = isinstance(first, Wait) and not first.products and first.pending < groups
                self.need(enough, f"{s.name} does not begin with a wait for what was committed")
                runs = D.bounds(s.extent)[0] > 0
                self.need(runs, f"{s.name} may have no iteration, and nothing else waits")
                return
            early = f"{self.stage} is read before a group is committed and waited for"
            self.need(self.stage not in sources(s), early)
            times = D.bounds(s.extent)[0] if isinstance(s, Loop) else 1
            groups += int(times) * sum(isinstance(x, Commit) for x, _ in walk((s,)))
        self.need(False, f"nothing waits for copies after {self.stage}", "Pipeline first")


def _waits(s: Loop) -> bool:
    return any(isinstance(x, Wait) and not x.products for x in s.body)
