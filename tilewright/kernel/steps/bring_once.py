from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.ir import dim as D
from tilewright.kernel.box import own_statements
from tilewright.kernel.intrinsic import INTRINSICS
from tilewright.kernel.nest import (
    Acquire,
    Commit,
    Loop,
    Nest,
    Release,
    Stmt,
    Wait,
    transform,
    walk,
)
from tilewright.kernel.roles import has_roles, role_faults
from tilewright.kernel.step import Step
from tilewright.kernel.steps.pipeline import Pipeline
from tilewright.kernel.threads import launches


@dataclass(frozen=True)
class BringOnce(Step):
    """A tile that the copy engine brings before loops with roles is asked for by their producer
    too: as one more iteration, which begins when all earlier ones are released. Roles first,
    Synchronise afterwards.

    t = x                                for t.once in 1:
    for k in n:                            acquire 1              # the producer
      acquire 4                            async t = x
      …                                    commit
      y += t * u[k%4]                      wait 0                 # the threads
                                           release 0
                                         for k in n: …

    So a block that walks over tiles has the next one brought while it stores the last one. The
    memory is used again only when all iterations after this one are released too.
    """

    stays: ClassVar[bool] = True
    stage: str

    def apply(self, n: Nest) -> Nest:
        found = own_statements(n, self.stage)
        self.need(found, f"nothing copies {self.stage}")
        own, paths = [s for s, _ in found], [p for _, p in found]
        one = all(p == paths[0] for p in paths)
        self.need(one, f"{self.stage} is copied in several places")
        Pipeline("", self.stage).copies(n, own)
        names = [x.instruction for x, _ in walk(tuple(own)) if isinstance(x, Loop)]
        engine = any(x and INTRINSICS[x].engine for x in names)
        self.need(engine, f"{self.stage} is not brought by the copy engine", "Tensorize first")
        body = paths[0][-1].body if paths[0] else n.body
        last = max(k for k, s in enumerate(body) if any(s is x for x in own))
        after = any(isinstance(s, Loop) and has_roles(s) for s in body[last + 1 :])
        self.need(after, f"no loop with roles comes after {self.stage}", "Roles first")
        self.fresh(n, f"{self.stage}.once")
        asked = [Pipeline("", self.stage, asynchronous=True).marked(s) for s in own]
        inside = (Acquire(1), *asked, Commit(), Wait(0), Release(0))
        once = Loop(D.the_sym(D.var(f"{self.stage}.once", 1)), "serial", inside)

        def one_place(s: Stmt) -> tuple[Stmt, ...]:
            if s is own[0]:
                return (once,)
            return () if any(s is x for x in own) else (s,)

        out = replace(n, body=transform(n.body, one_place))
        for launch in launches(out.body):
            for what, _ in role_faults(launch):
                self.need(False, what)
        return out
