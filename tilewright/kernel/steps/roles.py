from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.kernel.intrinsic import INTRINSICS
from tilewright.kernel.nest import (
    Acquire,
    Alloc,
    Commit,
    Loop,
    Nest,
    Path,
    Release,
    Stmt,
    Wait,
    reads,
    substitute_all,
    transform,
    walk,
)
from tilewright.kernel.roles import role_faults
from tilewright.kernel.step import Step
from tilewright.kernel.steps.pipeline import Pipeline
from tilewright.kernel.threads import launches
from tilewright.kernel.versions import version_of

MOST = 16  # versions: every one takes memory


@dataclass(frozen=True)
class Roles(Step):
    """The tiles that the copy engine brings in a loop are asked for by a warp of their own, which
    runs ahead as far as there is memory: so many versions. It waits for the threads of the block
    to release a version, they wait for its bytes, and no barrier is in the loop. Tensorize first,
    Synchronise afterwards.

    for k in n:                        alloc t
      alloc t                          for k in n:
      t = x[k]                           acquire 4              # the producer
      y += t                             async t[k%4] = x[k]
      wait products 0                    commit
                                         wait 0                 # the threads
                                         y += t[k%4]
                                         wait products 1
                                         release 1
                                       wait products 0

    With `slack`, so many asynchronous instructions that read a version go on while later iterations
    begin.
    """

    loop: str
    versions: int
    slack: int = 0

    def apply(self, n: Nest) -> Nest:
        some = isinstance(self.versions, int) and 1 <= self.versions <= MOST
        self.need(some, f"{self.versions} versions", f"1 to {MOST}")
        fits = isinstance(self.slack, int) and 0 <= self.slack < self.versions
        self.need(fits, f"a slack of {self.slack}", f"0 to {self.versions - 1}")
        found = self.loops(n, self.loop)
        self.need(len(found) == 1, f"{self.loop} is {len(found)} loops", "do this before Peel")
        loop, path = found[0]
        self.need(loop.kind == "serial", f"{self.loop} is {loop.kind}")
        made = [s.buffer for s in loop.body if isinstance(s, Alloc)]
        stages = [x for x in made if n.buffer(x).scope == "shared"]
        what = f"nothing shared is allocated in {self.loop}"
        self.need(stages, what, "ComputeAt the copies there, SetScope to 'shared'")
        own = {x: self._copies(n, loop, x) for x in stages}
        self._known_to_all(n, (*path, loop), [s for x in own.values() for s in x])
        main = self._main(n, loop, path, own)
        end: list[Stmt] = [Wait(0, products=True)] if self.slack else []
        # Nobody waits for the last ones, but where more iterations come or other blocks arrive.
        around = any(q.kind in ("serial", "unroll") or dict(q.pragmas).get("cluster") for q in path)
        end += [Release(0)] if self.slack and around else []
        made = (*map(Alloc, stages), main, *end)
        body = transform(n.body, lambda s: made if s is loop else (s,))
        out = replace(n, body=body)
        for x in stages:
            b = out.buffer(x)
            out = out.with_buffer(replace(b, shape=(self.versions, *b.shape)))
        for launch in launches(out.body):
            for what, _ in role_faults(launch):
                self.need(False, what)
        return out

    def check_branches(self, n: Nest) -> None:
        Pipeline(self.loop, self.loop).check_branches(n)

    def _copies(self, n: Nest, loop: Loop, stage: str) -> list[Stmt]:
        """The statements of the loop that copy a stage."""
        as_pipeline = Pipeline(self.loop, stage, asynchronous=True)
        found = as_pipeline.producers(n, loop)
        as_pipeline.independent(found, loop)
        as_pipeline.copies(n, found)
        names = [x.instruction for x, _ in walk(tuple(found)) if isinstance(x, Loop)]
        engine = any(x and INTRINSICS[x].engine for x in names)
        self.need(engine, f"{stage} is not brought by the copy engine", "Pipeline it instead")
        return found

    def _known_to_all(self, n: Nest, loops: Path, copies: list[Stmt]) -> None:
        """Does the producer, which computes nothing, know how often it copies what?"""
        given = {b.name for b in n.buffers if b.scope in ("in", "out")}
        found = {str(x.source) for s in copies for x in reads(s)}
        values = (v for q in loops for v in D.data_values(q.extent))
        found |= {str(x) for v in values for x in v.sources}
        what = f"copies of {self.loop} depend on {', '.join(sorted(found - given))}"
        self.need(found <= given, what, "a producer computes nothing: Pipeline instead")

    def _ordinal(self, loop: Loop, path: Path) -> Dim:
        """The number of an iteration, counted from the beginning of the launch."""
        number, size = D.as_int(loop.var), loop.extent
        for q in reversed([q for q in path if q.kind in ("serial", "unroll")]):
            first, second = (D.substitute(size, {q.var: k}) for k in range(2))
            # Of two rounds that differ, only the first comes before the other.
            same = q.var not in D.symbols(size) or q.extent == 2
            self.need(same, f"how many iterations {self.loop} has differs in {q.name}")
            number += first * D.as_int(q.var)
            size = first + second if q.extent == 2 else size * q.extent
        return number

    def _main(self, n: Nest, loop: Loop, path: Path, own: dict[str, list[Stmt]]) -> Loop:
        copies = [s for s in loop.body if any(s is x for found in own.values() for x in found)]
        gone = {id(s) for s in copies}
        gone |= {id(s) for s in loop.body if isinstance(s, Alloc) and s.buffer in own}
        rest = [s for s in loop.body if id(s) not in gone]
        waits = [k for k, s in enumerate(rest) if isinstance(s, Wait) and s.products]
        what = f"{self.loop} waits for no asynchronous instructions"
        self.need(not self.slack or waits, what, "Tensorize one before this, or no slack")
        if self.slack:
            rest[waits[-1]] = Wait(self.slack, products=True)
        turn = D.mod(self._ordinal(loop, path), self.versions)
        asked = [Pipeline(self.loop, next(iter(own)), asynchronous=True).marked(s) for s in copies]
        body: tuple[Stmt, ...] = (Acquire(self.versions), *asked, Commit(), Wait(0), *rest)
        for stage in own:
            body = substitute_all(body, {}, *version_of(stage, turn))
        return loop.around((*body, Release(self.slack)))
