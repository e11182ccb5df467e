from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TypeGuard

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import cast, const, fn, index, load
from tilewright.ir.types import i32, i64
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import (
    ANY_ORDER,
    BLOCKS,
    THREADS,
    Alloc,
    Atomic,
    Await,
    If,
    Loop,
    Nest,
    Path,
    Stmt,
    Store,
    mentions,
    substitute_all,
    walk,
    writes,
)
from tilewright.kernel.roles import role_loop
from tilewright.kernel.step import Step
from tilewright.kernel.threads import (
    Access,
    accesses,
    block_size,
    grid_of,
    same_thread,
    thread_axes,
)


@dataclass(frozen=True)
class FinishLast(Step):
    """What follows the blocks of a grid is done by the last of them that ends, in the same launch.

    alloc p                                     alloc p
    block.x b in 64:                            alloc c
      thread.x t in 32: p[b,t] = …              block.x b in 64:
    thread.x t in 32: y[t] = …p[0,t]…             thread.x t in 32: p[b,t] = …
                                                  alloc c_before
                                                  thread.x c.x in 1: atomic add c[] …
                                                  if c_before[0] == 63:
                                                    thread.x t in 32: y[t] = …p[0,t]…
                                                    thread.x c.x in 1: c[] = 0

    A block that is done adds one to a counter, which tells it how many were done before: whoever is
    the last sees what all others have written, and does the rest in the order of the nest, so that
    results do not depend on who it is. It sets the counter to zero for the next launch. Where what
    follows is a grid too, each of its loops has to run over the same blocks as one of the first
    grid, on the same axis: there is a counter for each of these blocks, and the rest of one needs
    only what blocks of the same number have made. Statements before a grid that it has nothing to
    do with, such as first values of the rest, become part of the rest. Where a grid has one block,
    nothing is counted. Synchronise afterwards.
    """

    loop: str
    counter: str

    def apply(self, n: Nest) -> Nest:
        said = f"{self.counter}_before"
        self.fresh(n, self.counter)
        self.fresh(n, said)
        at = next((k for k, s in enumerate(n.body) if is_grid(s) and s.name == self.loop), None)
        self.need(at is not None, f"{self.loop} is no outermost loop over blocks", "Bind it first")
        assert at is not None
        loops, first = grid_of((n.body[at],))
        rest, others = _next_launch(n.body[at + 1 :])
        self.need(rest, f"nothing follows the blocks of {self.loop}")
        allocs = tuple(x for x in rest if isinstance(x, Alloc))
        rest = tuple(x for x in rest if not isinstance(x, Alloc))
        later, then = grid_of(rest) if len(rest) == 1 else ([], rest)
        table, counted = self._paired(n, loops, later)
        head = n.body[:at]
        if not later:
            head, before_grid = _apart(n, head, n.body[at])
            then = (*before_grid, *then)
        # Memory that only the rest uses goes with it.
        used = _used((*head, *first, *others))
        own = tuple(x for x in (*head, *allocs) if isinstance(x, Alloc) and x.buffer not in used)
        head = tuple(x for x in (*head, *allocs) if x not in own)
        then = substitute_all(then, table)
        self._fit(n, first, then)
        counters = [x for x in loops if x not in counted]
        self._ordered(n, first, tuple(loops), then, counters)
        count = prod(x.extent for x in counted)
        if count == 1:  # the only block is the last one
            return replace(n, body=(*head, *_around(loops, (*first, *own, *then)), *others))
        where = tuple(D.as_int(x.var) for x in counters)
        made = Buffer(self.counter, i32, tuple(x.extent for x in counters), "counter")
        axes = thread_axes((*first, *then))
        one = Atomic(self.counter, "add", self.counter, where, const(1, i32), None, (said, (0,)))
        zero = Store(self.counter, self.counter, where, const(0, i32))
        last = fn("eq", cast(load(said, (0,), i32), i64), index(count - 1))
        body: tuple[Stmt, ...] = (
            *first,
            Alloc(said),
            self._by_one(axes, one),
            If(last, (*own, *then, self._by_one(axes, zero))),
        )
        out = (*head, Alloc(self.counter), *_around(loops, body), *others)
        shared = Buffer(said, i32, (1,), "shared")
        return replace(n, body=out).with_buffer(made).with_buffer(shared)

    def check_branches(self, n: Nest) -> None:
        """Branches stay where they are; what pointers lead to is not known."""
        found = next((b.name for b in n.buffers if b.pointer), None)
        self.need(found is None, f"{found} is a pointer: which blocks write there is not known")

    def _paired(
        self, n: Nest, loops: list[Loop], later: list[Loop]
    ) -> tuple[dict[Sym, Dim], list[Loop]]:
        """Variables of the loops that follow as those of the first grid; and loops over blocks of
        which the last one does the rest."""
        table: dict[Sym, Dim] = {}
        counted = list(loops)
        for x in loops:
            known = D.symbols(x.extent) <= set(n.dims)
            self.need(known, f"the number of blocks of {x.name} differs between blocks")
            together = dict(x.pragmas).get("cluster", 1)
            self.need(together == 1, f"the blocks of {x.name} run in clusters")
        for q in later:
            found = [x for x in loops if x.kind == q.kind and D.known_eq(x.extent, q.extent)]
            what = f"{q.kind} {q.name} in {q.extent} runs over other blocks than {self.loop}"
            self.need(found, what, "split both alike, and bind them to the same axes")
            table[q.var] = D.as_int(found[0].var)
            counted.remove(found[0])
        each = f"each block of {self.loop} would do its own part"
        self.need(counted, each, "ComputeWith or ComputeAt before Bind")
        return table, counted

    def _fit(self, n: Nest, first: tuple[Stmt, ...], then: tuple[Stmt, ...]) -> None:
        """The rest is for the threads that are there."""
        have, want = block_size(first), block_size(then)
        for axis in THREADS:
            what = f"{want[axis]} threads along {axis} do the rest, and a block has {have[axis]}"
            self.need(want[axis] <= have[axis], what, "Split the loops of the rest by fewer")
        inside = [s for s, _ in walk((*first, *then))]
        plain = role_loop(first) is None and not any(isinstance(s, Await) for s in inside)
        self.need(plain, "a block with roles, or one that waits for earlier launches")
        other = next((s for s in inside if isinstance(s, Loop) and s.kind in ANY_ORDER), None)
        what = f"{other.kind} {other.name} would be inside blocks" if other is not None else ""
        self.need(other is None, what, "Bind it instead")
        used = {s.name for s in inside if isinstance(s, Loop)}
        own = {f"{self.counter}.{axis[-1]}" for axis in THREADS}
        self.need(not used & own, f"there is a loop {min(used & own, default='')} already")

    def _ordered(
        self, n: Nest, first: tuple[Stmt, ...], path: Path, then: tuple[Stmt, ...], own: list[Loop]
    ) -> None:
        """What the rest of one block touches is that of blocks of the same number: the last of
        these is not the last of all."""
        if not own:
            return
        axes = [x.kind for x in own]
        local = {s.buffer for s, _ in walk((*first, *then)) if isinstance(s, Alloc)}
        made, used = (_touched(n, x, path, own) for x in (first, then))
        for a in made:
            for b in used:
                if a.buffer != b.buffer or a.buffer in local or not (a.writes or b.writes):
                    continue
                same = same_thread(n, a, b, axes, set(n.dims))
                what = f"{b.stage} touches {b}, which blocks of another {axes[0]} touch as {a}"
                self.need(same, what, "have the last of all blocks do the rest")

    def _by_one(self, axes: tuple[str, ...], s: Stmt) -> Stmt:
        """By one thread of the block."""
        for axis in reversed(axes):
            s = Loop(D.the_sym(D.var(f"{self.counter}.{axis[-1]}", 1)), axis, (s,))
        return s


def _around(loops: list[Loop], body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    for x in reversed(loops):
        body = (x.around(body),)
    return body


def is_grid(s: Stmt) -> TypeGuard[Loop]:
    """Is it a loop over blocks?"""
    return isinstance(s, Loop) and s.kind in BLOCKS


def _next_launch(body: tuple[Stmt, ...]) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...]]:
    """The statements of the launch that comes next, with the memory allocated before it, and all
    others."""
    k = next((k for k, s in enumerate(body) if not isinstance(s, Alloc)), len(body))
    if k < len(body) and is_grid(body[k]):
        return body[: k + 1], body[k + 1 :]
    end = k
    while end < len(body) and not _ends(body[end]):
        end += 1
    return (body[:end], body[end:]) if end > k else ((), body)


def _apart(
    n: Nest, body: tuple[Stmt, ...], grid: Stmt
) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...]]:
    """Statements before a grid, without those of no blocks that it has nothing to do with; and
    these."""
    start = 1 + max((k for k, s in enumerate(body) if _ends(s)), default=-1)
    stays, moved = [grid], []
    for s in reversed(body[start:]):
        alone = all(_exchangeable(s, x) for x in stays if not isinstance(x, Alloc))
        (moved if alone and not isinstance(s, Alloc) else stays).append(s)
    kept = (*body[:start], *reversed(stays[1:]))
    shared = {b.name for b in n.buffers if b.scope == "shared"}
    if shared & _used(kept) & _used(tuple(moved)):
        return body, ()  # it is the memory of one launch
    return kept, tuple(reversed(moved))


def _exchangeable(a: Stmt, b: Stmt) -> bool:
    return not (writes((a,)) & mentions(b) or mentions(a) & writes((b,)))


def _ends(s: Stmt) -> bool:
    return isinstance(s, Loop) and s.kind in (*BLOCKS, "library")


def _used(body: tuple[Stmt, ...]) -> frozenset[str]:
    """The buffers that statements use, besides allocating them."""
    return frozenset().union(*(mentions(s) for s in body if not isinstance(s, Alloc)))


def _touched(n: Nest, body: tuple[Stmt, ...], path: Path, own: list[Loop]) -> list[Access]:
    """What blocks do to memory, with blocks in place of threads."""
    blocks = tuple((x.kind, x.var) for x in own)
    return [replace(a, threads=blocks) for s in body for a in accesses(n, s, path)]
