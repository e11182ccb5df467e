from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeGuard

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.kernel.box import own_statements
from tilewright.kernel.guards import copied
from tilewright.kernel.nest import (
    Alloc,
    Atomic,
    Commit,
    Loop,
    Nest,
    Report,
    Stmt,
    Store,
    Wait,
    While,
    reads,
    substitute_all,
    transform,
    walk,
)
from tilewright.kernel.step import Step
from tilewright.kernel.versions import loop_of, version_of

# Every version takes memory, and latency is hidden long before this.
MAX_AHEAD = 15

# The axis of a loop of one iteration, or none: a stage of an iteration that there may not be.
_SOME = "some"


@dataclass(frozen=True)
class Pipeline(Step):
    """What an iteration of a loop needs of a stage is computed `ahead` iterations early, so that
    its latency is hidden behind the work of those between. Bind first, Synchronise afterwards.

    for k in n:                        t[0] = …(0)                          # if 0 < n
      alloc t                          for k in n:
      t = …(k)                           for s in min(1, n-1-k): t[(k+1)%2] = …(k+1)
      y += t                             y += t[k%2]

    With `asynchronous`, the stage is a copy to shared memory which a thread issues and waits for
    before it is needed; stages of one loop that are as far ahead share their groups.

      async t[0] = x[0]; commit
      for k in n:
        wait 0
        for s in min(1, n-1-k): async t[(k+1)%2] = x[k+1]
        commit
        y += t[k%2]

    With `slack`, so many asynchronous instructions that read the stage go on while later iterations
    begin, those before the loop's last wait: there are as many versions more, and what is left is
    waited for after the loop. With `late`, copies are issued at the end of an iteration, when fewer
    of those instructions go on: there is one version less, and one barrier more. With `always`, the
    last iterations copy too, what the last one has: nobody reads it, and there is no branch.
    """

    loop: str
    stage: str
    ahead: int = 1
    asynchronous: bool = False
    slack: int = 0
    late: bool = False
    always: bool = False

    def apply(self, n: Nest) -> Nest:
        enough = isinstance(self.ahead, int) and 1 <= self.ahead <= MAX_AHEAD
        self.need(enough, f"{self.ahead} iterations ahead", f"1 to {MAX_AHEAD}")
        some = isinstance(self.slack, int) and 0 <= self.slack <= MAX_AHEAD
        self.need(some, f"a slack of {self.slack} iterations", f"0 to {MAX_AHEAD}")
        late = self.asynchronous or not self.late
        self.need(late, "only what is copied in the background may be late", "asynchronous=True")
        self.need(self.asynchronous or not self.always, "only copies may be made for nobody")
        self.loops(n, self.loop)
        loop, _ = loop_of(self, n, self.stage)
        some = not self.always or D.bounds(loop.extent)[0] >= 1
        self.need(some, f"{self.loop} may have no iteration, whose copies are made always")
        inside = f"{self.stage} is allocated in {loop.name}, not in {self.loop}"
        self.need(loop.name == self.loop, inside, f"ComputeAt('{self.stage}', '{self.loop}') first")
        own = self.producers(n, loop)
        self.independent(own, loop)
        self._waited(loop)
        if self.asynchronous:
            self.copies(n, own)
        body = self._rebuilt(n.body, loop, own)
        b = n.buffer(self.stage)
        return replace(n, body=body).with_buffer(replace(b, shape=(self.versions(loop), *b.shape)))

    def versions(self, loop: Loop) -> int:
        """As many as there are on their way and in use; of a loop that all of them come before, one
        for each iteration."""
        count = loop.extent
        first = isinstance(count, int) and 1 <= count <= self.ahead
        most = self.ahead + 1 + self.slack - (self.late and self.slack > 0)
        return count if isinstance(count, int) and first else most

    def _for_nobody(self, loop: Loop) -> bool:
        """Are there copies that nobody reads? Of a loop that all of them come before there is no
        room for more."""
        count = loop.extent
        return self.always and not (isinstance(count, int) and count <= self.ahead)

    def _waited(self, loop: Loop) -> None:
        """If asynchronous instructions are left to go on, they are those before the last wait."""
        waits = [s.pending for s in loop.body if isinstance(s, Wait) and s.products]
        what = f"{self.loop} waits for no asynchronous instructions"
        self.need(not self.slack or waits, what, "Tensorize one before this")
        other = f"{self.loop} has a slack of {max(waits, default=0)} already"
        same = not self.slack or set(waits) <= {0, self.slack}
        self.need(same, other, "use the same number for all")

    def check_branches(self, n: Nest) -> None:
        """Pointers and branches do not matter if the loop changes no argument's memory and is in no
        branch."""
        found = self.loops(n, self.loop)
        inside = [x for loop, _ in found for x, _ in walk(loop.body)]
        branch = next((x for x in inside if isinstance(x, (While, Atomic, Report))), None)
        changes = [x for x in inside if isinstance(x, Store) and n.buffer(x.buffer).pointer]
        what = f"{self.loop} changes memory that {self.stage} may be read from"
        self.need(branch is None and not changes, what)
        reached = {id(x) for x in _plain_loops(n.body)}
        self.need(all(id(x) in reached for x, _ in found), f"{self.loop} is inside a branch")

    def producers(self, n: Nest, loop: Loop) -> list[Stmt]:
        """The statements of the loop that compute the stage, and nothing else."""
        stores = [s for s, _ in walk(n.body) if isinstance(s, Store) and s.buffer == self.stage]
        named = dict.fromkeys(s.stage for s in stores)
        own = [s for x in named for s, p in own_statements(n, x) if p and p[-1] is loop]
        mine = [s for s, _ in walk(tuple(own)) if isinstance(s, Store)]
        mixed = f"{self.stage} is not computed by statements of its own in {self.loop}"
        self.need(own and stores == mine, mixed)
        done = max(k for k, s in enumerate(loop.body) if any(s is x for x in own))
        others = (s for s in loop.body[:done] if all(s is not x for x in own))
        early = any(x.source == self.stage for s in others for x in reads(s))
        self.need(not early, f"{self.stage} is read before it is complete")
        return own

    def independent(self, own: list[Stmt], loop: Loop) -> None:
        """What is computed early needs nothing that the loop makes on its way."""
        rest = [s for s in loop.body if all(s is not x for x in own)]
        made = {s.buffer for s, _ in walk(tuple(rest)) if isinstance(s, Store)}
        for x in (x for s in own for x in reads(s)):
            late = f"{self.stage} reads {x!r}, which {self.loop} writes on its way"
            self.need(x.source not in made, late, f"leave {self.stage} in its iteration")

    def copies(self, n: Nest, own: list[Stmt]) -> None:
        stores = [s for s, _ in walk(tuple(own)) if isinstance(s, Store)]
        plain = len(stores) == 1 and copied(stores[0].value) and not stores[0].combine
        self.need(plain, f"{self.stage} is not a plain copy", "leave out asynchronous")
        shared = n.buffer(self.stage).scope == "shared"
        hint = f"SetScope('{self.stage}', 'shared') first"
        self.need(shared, f"{self.stage} is not shared memory, to which copies go", hint)

    def _rebuilt(self, body: tuple[Stmt, ...], loop: Loop, own: list[Stmt]) -> tuple[Stmt, ...]:
        at = next((k for k, s in enumerate(body) if s is loop), None)
        if at is None:
            inner = ((s, self._rebuilt(s.body, loop, own)) for s in body if isinstance(s, Loop))
            new = {id(s): replace(s, body=b) for s, b in inner if b != s.body}
            return tuple(new.get(id(s), s) for s in body)
        main = self._main(loop, own)
        grouped = self.asynchronous and any(_for_copies(s) for s in loop.body)
        rest: tuple[Stmt, ...] = body[at + 1 :]
        if self._for_nobody(loop) and Wait(0) not in rest[:1]:
            rest = (Wait(0), *rest)  # the memory may be used for something else
        if self.slack and Wait(0, products=True) not in rest[:1]:
            rest = (Wait(0, products=True), *rest)
        if not grouped:
            return *body[:at], Alloc(self.stage), *self._begin(loop, own), main, *rest
        # The copies join those of another stage, which stand right before the loop.
        first = max((k for k in range(at) if self._commits(body[k])), default=None)
        self.need(first is not None, f"{self.loop} is not where its first copies are any more")
        assert first is not None
        group = body[first]
        if isinstance(group, Loop):
            made = self._made(loop, own, D.as_int(group.var), loop.extent - D.as_int(group.var))
            joined: tuple[Stmt, ...] = (replace(group, body=_before_commit(group.body, made)),)
        else:
            joined = (*self._made(loop, own, 0, loop.extent), group)
        before = (*body[:first], Alloc(self.stage), *joined, *body[first + 1 : at])
        return *before, main, *rest

    def _commits(self, s: Stmt) -> bool:
        if isinstance(s, Loop):
            return s.name == self._first and Commit() in s.body
        return isinstance(s, Commit) and self.ahead == 1

    @property
    def _first(self) -> str:
        return f"{self.loop}.first"

    def _made(self, loop: Loop, own: list[Stmt], u: Dim, left: Dim) -> list[Stmt]:
        """The stage of iteration u, if there is one: if any are left."""
        turn = version_of(self.stage, D.mod(u, self.versions(loop)))
        of = D.minimum(u, loop.extent - 1) if self._for_nobody(loop) else u
        made = [self.marked(s) for s in substitute_all(own, {loop.var: of}, *turn)]
        if self._for_nobody(loop):
            return made
        there = D.minimum(1, D.maximum(left, 0))
        if isinstance(there, int):
            return made if there else []
        return [Loop(D.the_sym(D.var(f"{self.stage}.{_SOME}", there)), "serial", tuple(made))]

    def _later(self, body: list[Stmt]) -> list[Stmt]:
        """The last wait lets the latest asynchronous instructions go on."""
        waits = [k for k, s in enumerate(body) if isinstance(s, Wait) and s.products]
        if self.slack and waits:
            body[waits[-1]] = Wait(self.slack, products=True)
        return body

    def marked(self, s: Stmt) -> Stmt:
        if not self.asynchronous:
            return s
        mark = lambda x: (replace(x, asynchronous=True),) if isinstance(x, Store) else (x,)  # noqa: E731
        return transform((s,), mark)[0]

    def _begin(self, loop: Loop, own: list[Stmt]) -> list[Stmt]:
        """The first iterations' stage. There are always as many groups, some maybe empty."""
        end: list[Stmt] = [Commit()] if self.asynchronous else []
        if self.ahead == 1:
            return [*self._made(loop, own, 0, loop.extent), *end]
        count = self.ahead if self.asynchronous else D.minimum(self.ahead, loop.extent)
        u = D.var(self._first, count)
        left = loop.extent - u if self.asynchronous else 1
        made = self._made(loop, own, u, left)
        return [Loop(D.the_sym(u), "serial", (*made, *end))] if made or end else []

    def _main(self, loop: Loop, own: list[Stmt]) -> Loop:
        """The loop, which computes the stage of a later iteration, then uses that of its own."""
        v = D.as_int(loop.var)
        made = self._made(loop, own, v + self.ahead, loop.extent - self.ahead - v)
        turn = version_of(self.stage, D.mod(v, self.versions(loop)))
        kept = [s for s in loop.body if s != Alloc(self.stage) and all(s is not x for x in own)]
        body = self._later(list(substitute_all(kept, {}, *turn)))
        waits = [s for s in body if isinstance(s, Wait) and not s.products]
        if not self.asynchronous:
            return replace(loop, body=(*waits, *made, *(s for s in body if s not in waits)))
        if not waits and self.late:
            return replace(loop, body=(Wait(self.ahead - 1), *body, *made, Commit()))
        if not waits:
            return replace(loop, body=(Wait(self.ahead - 1), *made, Commit(), *body))
        together = f"{self.loop} copies another stage {waits[0].pending + 1} iterations ahead"
        self.need(waits[0].pending == self.ahead - 1, together, "use the same number for all")
        ends = isinstance(body[-1], Commit)
        mixed = f"{self.loop} copies another stage {'late' if ends else 'early'}"
        self.need(ends == self.late, mixed, "the same for all")
        return replace(loop, body=_before_commit(tuple(body), made))


def _for_copies(s: Stmt) -> bool:
    return isinstance(s, Wait) and not s.products


def _plain_loops(body: tuple[Stmt, ...]) -> Iterator[Loop]:
    """The loops that are inside loops only."""
    for s in body:
        if isinstance(s, Loop):
            yield s
            yield from _plain_loops(s.body)


def _before_commit(body: tuple[Stmt, ...], made: list[Stmt]) -> tuple[Stmt, ...]:
    """Copies join those of their group, under the same condition where both are under one."""
    at = body.index(Commit())
    last = body[at - 1] if at else None
    (new,) = made if len(made) == 1 else (None,)
    if _some(last) and _some(new) and last.extent == new.extent:
        inside = substitute_all(new.body, {new.var: D.as_int(last.var)})
        return *body[: at - 1], replace(last, body=(*last.body, *inside)), *body[at:]
    return *body[:at], *made, *body[at:]


def _some(s: Stmt | None) -> TypeGuard[Loop]:
    return isinstance(s, Loop) and s.axis.name == _SOME
