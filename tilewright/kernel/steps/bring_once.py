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
    Path,
    Release,
    Stmt,
    Wait,
    sources,
    transform,
    walk,
)
from tilewright.kernel.roles import has_roles, role_faults
from tilewright.kernel.step import Step
from tilewright.kernel.steps.pipeline import Pipeline
from tilewright.kernel.threads import launches


@dataclass(frozen=True)
class BringOnce(Step):
    """Tiles that the copy engine brings before loops with roles are asked for by their producer
    too: as one more iteration, which begins when nothing reads the memory any more. Roles and Delay
    first, Synchronise afterwards.

    t = x                                for t.once in 1:
    for k in n:                            acquire 1              # the producer
      acquire 4                            async t = x
      …                                    commit
      y += t * u[k%4]                      wait 0                 # the threads
      release 0                            release 0
                                         for k in n: …

    So a block that walks over tiles has the next one brought while it stores the last one. Where
    iterations release what some earlier ones have used, the last of these says that all are past
    their reads: `acquire 2` where it is the one before. Then nor does this one release itself: of
    a tile with a single iteration that would say that it has been read.
    """

    stays: ClassVar[bool] = True
    stages: tuple[str, ...]

    def apply(self, n: Nest) -> Nest:
        names = ", ".join(self.stages)
        found = [x for stage in self.stages for x in self._copies(n, stage)]
        self.need(found, "no tile is named")
        own, paths = [s for s, _ in found], [p for _, p in found]
        one = all(p == paths[0] for p in paths)
        self.need(one, f"{names} are copied in several places")
        body = paths[0][-1].body if paths[0] else n.body
        at = [k for k, s in enumerate(body) if any(s is x for x in own)]
        loops = [s for s in body[at[-1] :] if isinstance(s, Loop) and has_roles(s)]
        self.need(loops, f"no loop with roles comes after {names}", "Roles first")
        others = [s for s in body[at[0] :] if s not in (*own, *loops)]
        read = any(set(self.stages) & sources(s) for s in others)
        self.need(not read, f"{names} are read outside of loops with roles")
        earlier = min(self._released(x) for x in loops)
        self.fresh(n, f"{self.stages[0]}.once")
        asked = [Pipeline("", "", asynchronous=True).marked(s) for s in own]
        inside = (Acquire(1 + earlier), *asked, Commit(), Wait(0), Release(earlier))
        once = Loop(D.the_sym(D.var(f"{self.stages[0]}.once", 1)), "serial", inside)

        def one_place(s: Stmt) -> tuple[Stmt, ...]:
            if s is body[at[-1]]:
                return (once,)
            return () if any(s is x for x in own) else (s,)

        out = replace(n, body=transform(n.body, one_place))
        for launch in launches(out.body):
            for what, _ in role_faults(launch):
                self.need(False, what)
        return out

    def _copies(self, n: Nest, stage: str) -> list[tuple[Stmt, Path]]:
        found = own_statements(n, stage)
        self.need(found, f"nothing copies {stage}")
        inside = [x for s, _ in found for x, _ in walk((s,)) if isinstance(x, Loop)]
        engine = any(x.instruction and INTRINSICS[x.instruction].engine for x in inside)
        self.need(engine, f"{stage} is not brought by the copy engine", "Tensorize first")
        return found

    def _released(self, loop: Loop) -> int:
        """How many iterations are not released yet when one is past all reads of the tiles."""
        body = loop.body
        end = next(k for k, s in enumerate(body) if isinstance(s, Release))
        reads = [k for k, s in enumerate(body) if set(self.stages) & sources(s)]
        late = any(k > end for k in reads)
        self.need(not late, f"{', '.join(self.stages)} are read after a release in {loop.name}")
        read = max(reads, default=0)
        release = body[end]
        assert isinstance(release, Release)
        return release.pending if Wait(0, products=True) in body[read:end] else 0
