from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from tilewright.ir import dim as D
from tilewright.ir.expr import loads
from tilewright.kernel.early import only_begins, parts
from tilewright.kernel.nest import (
    BLOCKS,
    Alloc,
    Await,
    Commit,
    Nest,
    Stmt,
    Store,
    Wait,
    mentions,
    own_values,
    transform,
    walk,
    writes,
)
from tilewright.kernel.step import Step

FEWEST, MOST = 2048, 32 * 1024  # bytes of an input that comes to the cache at an Await


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

    What is copied are inputs. Small ones that all blocks read later come to the cache meanwhile:
    the Await names them. Several loops of a block may begin early: what waited for copies in
    between lets these go on, where it begins none itself. Synchronise afterwards.
    """

    loop: str

    def apply(self, n: Nest) -> Nest:
        found = self.loops(n, self.loop)
        self.need(len(found) == 1, f"{self.loop} is {len(found)} loops", "do this before Peel")
        loop, path = found[0]
        own = path and all(q.kind in BLOCKS for q in path)
        self.need(own, f"{self.loop} does not stand in the body of a block", "Bind first")
        body = path[-1].body
        at = next(k for k, s in enumerate(body) if s is loop)
        copies = any(isinstance(s, Wait) and not s.products for s in loop.body)
        self.need(copies, f"{self.loop} waits for no copies", "Pipeline(…, asynchronous=True)")
        begun, rest = parts(body)
        before = rest[: at - len(body) + len(rest)]
        first = [s for s in before if not isinstance(s, Alloc) and only_begins(n, s)]
        self.need(first, f"no copies of inputs are begun before {self.loop}")
        to = frozenset(writes(tuple(first)))
        early = [s for s in before if s in first or (isinstance(s, Alloc) and s.buffer in to)]
        passed = tuple(s for s in before if all(s is not x for x in early))
        used = sorted(to & frozenset().union(*map(mentions, passed)))
        self.need(not used, f"{', '.join(used)} is used before it is copied to")
        later = _waiting_for_less(passed, sum(map(_groups, first)))
        after = (*later, *rest[len(before) :])
        waits = Await(tuple(_small(n, after, frozenset(q.var for q in path))))
        block = path[-1].around((*begun, *early, waits, *after))
        return replace(n, body=transform(n.body, lambda s: (block,) if s is path[-1] else (s,)))


def _small(n: Nest, body: tuple[Stmt, ...], blocks: frozenset[D.Sym]) -> Iterator[str]:
    """Inputs of a few lines of the cache that every block reads at the same places."""
    places: dict[str, list[D.Dim]] = {}
    for s, _ in walk(body):
        for x in (x for v in own_values(s) for x in loads(v)):
            places.setdefault(str(x.source), []).extend(x.index)
    for b in n.buffers:
        size = b.size * b.dtype.bytes if isinstance(b.size, int) else 0
        if b.scope == "in" and not b.pointer and b.name in places and FEWEST <= size <= MOST:
            if not any(blocks & D.symbols(i) for i in places[b.name]):
                yield b.name


def _groups(s: Stmt) -> int:
    """Groups of copies that a statement ends."""
    found = [p for x, p in walk((s,)) if isinstance(x, Commit)]
    return sum(prod(int(D.bounds(q.extent)[0]) for q in p) for p in found)


def _waiting_for_less(body: tuple[Stmt, ...], count: int) -> tuple[Stmt, ...]:
    """Statements that copies now begin before. All that they wait for was begun still earlier, if
    they begin none: so many more groups may be left. Otherwise they wait for more than they need,
    which is right too."""
    if any(isinstance(s, Store) and s.asynchronous for s, _ in walk(body)):
        return body

    def one(s: Stmt) -> tuple[Stmt, ...]:
        if isinstance(s, Wait) and not s.products:
            return (Wait(s.pending + count),)
        return (s,)

    return transform(body, one)
