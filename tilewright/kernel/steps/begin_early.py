from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.kernel.early import only_begins
from tilewright.kernel.nest import (
    BLOCKS,
    Alloc,
    Await,
    Commit,
    Nest,
    Stmt,
    Wait,
    mentions,
    transform,
    walk,
    writes,
)
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class BeginEarly(Step):
    """The first copies of a loop that copies ahead (Pipeline) come before all else that a block
    does, and the block needs nothing of earlier launches until they are begun: an Await follows.

    block.x b:                         block.x b:
      r = f(x)                           alloc t
      alloc t                            async t[0] = w[b,0]; commit
      async t[0] = w[b,0]; commit        await
      for k in n:                        r = f(x)
        wait 0                           for k in n:
        async t[(k+1)%2] = w[b,k+1]        wait 0
        commit                             async t[(k+1)%2] = w[b,k+1]
        y += t[k%2] * r                    commit
                                           y += t[k%2] * r

    What is copied are inputs. Synchronise afterwards.
    """

    loop: str

    def apply(self, n: Nest) -> Nest:
        found = self.loops(n, self.loop)
        self.need(len(found) == 1, f"{self.loop} is {len(found)} loops", "do this before Peel")
        loop, path = found[0]
        own = path and all(q.kind in BLOCKS for q in path)
        self.need(own, f"{self.loop} does not stand in the body of a block", "Bind first")
        body = path[-1].body
        self.need(Await() not in body, "something begins early already")
        at = next(k for k, s in enumerate(body) if s is loop)
        copies = any(isinstance(s, Wait) and not s.products for s in loop.body)
        self.need(copies, f"{self.loop} waits for no copies", "Pipeline(…, asynchronous=True)")
        first = [s for s in body[:at] if not isinstance(s, Alloc) and only_begins(n, s)]
        self.need(first, f"no copies of inputs are begun before {self.loop}")
        to = frozenset(writes(tuple(first)))
        early = [s for s in body[:at] if s in first or (isinstance(s, Alloc) and s.buffer in to)]
        rest = [s for s in body if all(s is not x for x in early)]
        for s in body[: body.index(first[-1])]:
            if all(s is not x for x in early):
                self._passes(s, to)
        block = path[-1].around((*early, Await(), *rest))
        return replace(n, body=transform(n.body, lambda s: (block,) if s is path[-1] else (s,)))

    def _passes(self, s: Stmt, to: frozenset[str]) -> None:
        """Copies that come before a statement instead of after it change nothing for it."""
        used = sorted(mentions(s) & to)
        self.need(not used, f"{', '.join(used)} is used before it is copied to")
        groups = any(isinstance(x, (Commit, Wait)) for x, _ in walk((s,)))
        self.need(not groups, f"other copies are begun or waited for before {self.loop}")

