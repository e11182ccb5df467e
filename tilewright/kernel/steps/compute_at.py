from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Load, extent, loads
from tilewright.kernel.box import (
    Box,
    clipped,
    narrow,
    narrowed_axes,
    own_statements,
    rebased,
    whole_axes,
    without,
    written_ends,
)
from tilewright.kernel.dependence import Carried, region
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import (
    BLOCKS,
    BRANCHES,
    Alloc,
    Loop,
    Nest,
    Path,
    Stmt,
    Store,
    bodies,
    on_loops,
    own_values,
    sources,
    substitute_all,
    walk,
    writes,
)
from tilewright.kernel.overlap import uses
from tilewright.kernel.step import Step
from tilewright.kernel.variables import inner_vars


@dataclass(frozen=True)
class ComputeAt(Step):
    """A stage is computed inside a loop of its consumer, only the part which one iteration reads.

    for i: for c: e[i,c] = …           for i:
    for i: for c: y[i,c] = e[i,c]        for c: e[c] = …
                                         for c: y[i,c] = e[c]

    Where only a call says how much an iteration reads, it is computed for as much as it may be, up
    to the end of the stage; `exact`: for as much as it is, where one loop goes through that.
    """

    stage: str
    at: str
    exact: bool = False

    def apply(self, n: Nest) -> Nest:
        b = self.internal(n, self.stage)
        own = self._own(n)
        self.need(own, f"there is no stage {self.stage}")
        rest = replace(n, body=without(n.body, [s for s, _ in own], self.stage))
        target, path = self._target(rest)
        around = (*path, target)
        for _, p in own:
            outside = [q.name for q in p if all(q.var is not r.var for r in around)]
            inwards = f"{self.stage} sits inside {', '.join(outside)}: a stage moves inwards only"
            self.need(not outside, inwards)
        tops = [s for s, _ in own]
        for s, _ in walk(tuple(tops)):
            outer = isinstance(s, Loop) and s.kind in ("parallel", *BLOCKS)
            kind = f"{getattr(s, 'name', '')} is {getattr(s, 'kind', '')}: it stays outermost"
            self.need(not outer, kind, "place first")
        ends = written_ends(tops, b)
        axes = whole_axes(self, self.stage, tops, b, ends)
        moving = set().union(*(inner_vars(s) for s in target.body))
        read = [x.index for x in _reads_of(target, self.stage)]
        box = region(read, moving, b.shape)
        self._self_reads(n, tops, box, b)
        read_ends = _last_read(read, moving, box, ends) if self.exact else ends
        table = narrowed_axes(axes, box, read_ends)
        box = [(clipped(*part, end)[0], part[1]) for part, end in zip(box, ends, strict=True)]
        shape = tuple(size for _, size in box)
        varies = any(D.symbols(d) & {q.var for q in around} for d in shape)
        self.need(not varies, f"the size of {self.stage} under {self.at} varies")
        rebase, rebase_store = rebased(self.stage, box)
        moved: list[Stmt] = [Alloc(self.stage)]
        for s in tops:
            moved.extend(narrow(s, table, rebase, rebase_store))

        def place(x: Loop) -> tuple[Stmt, ...]:
            if x != target:
                return (x,)
            body = substitute_all(x.body, {}, rebase, only=self.stage)
            first = next(k for k, y in enumerate(x.body) if self.stage in sources(y))
            return (replace(x, body=(*body[:first], *moved, *body[first:])),)

        out = on_loops(rest, self.at, place).with_buffer(replace(b, shape=shape))
        self.need(out != n, f"{self.stage} is computed at {self.at} already")
        return out

    def _own(self, n: Nest) -> list[tuple[Stmt, Path]]:
        """The statements that compute the stage. In a tile kernel stages have names of their own:
        the one that fills the buffer."""
        own = own_statements(n, self.stage)
        if own:
            return own
        stores = (s for s, _ in walk(n.body) if isinstance(s, Store))
        filling = {s.stage for s in stores if s.buffer == self.stage}
        return own_statements(n, filling.pop()) if len(filling) == 1 else []

    def check_branches(self, n: Nest) -> None:
        """Where what is read may be written again, nothing may write it between here and there."""
        own = self._own(n)
        self.need(own, f"there is no stage {self.stage}")
        needed = frozenset().union(*(sources(s) for s, _ in own)) - {self.stage}
        whole = (n.body, *(x for s, _ in walk(n.body) for x in bodies(s)))
        home = next((x for x in whole if any(s is own[0][0] for s in x)), ())
        mine = [k for k, s in enumerate(home) if any(s is x for x, _ in own)]
        used = [k for k, s in enumerate(home) if k not in mine and self.stage in sources(s)]
        once = len(mine) == len(own) and len(used) == 1 and used[0] > mine[-1]
        here = f"{self.stage} and the one loop that reads it do not stand in one body"
        self.need(once, here, "a branch or a loop is between them")
        host = home[used[0]]
        self.need(isinstance(host, Loop), f"{self.stage} is read in a branch")
        written = writes(home[mine[0] : used[0] + 1])
        changed = written & needed
        self.need(not changed, f"{', '.join(sorted(changed))} is written before that is read")
        pointers = {x.name for x in n.buffers if x.pointer}
        apart = not (written & pointers and needed & pointers)
        self.need(apart, f"{self.stage} reads through a pointer, and one is written through")
        branches = (s for s, _ in walk((*(s for s, _ in own), host)) if isinstance(s, BRANCHES))
        self.need(next(branches, None) is None, f"there is a branch in {self.stage} or {self.at}")

    def _mine(self, x: Load) -> bool:
        return x.source == self.stage

    def _target(self, rest: Nest) -> tuple[Loop, Path]:
        """The one loop to compute at, around everything that reads the stage."""
        found = [(x, p) for x, p in self.loops(rest, self.at) if self.stage in sources(x)]
        self.need(found, f"nothing inside {self.at} reads {self.stage}")
        several = f"{self.at} has {len(found)} copies that read {self.stage}"
        self.need(len(found) == 1, several, "place before Peel")
        target, path = found[0]
        self.need(
            target.kind in ("serial", "parallel"),
            f"{self.at} is {target.kind}: nothing can be allocated there",
            "place before Vectorize and Unroll",
        )
        for s, p in walk(rest.body):
            if any(self.stage in v.sources for v in own_values(s)):
                inside = any(q.var is target.var for q in p)
                reader = s.stage if isinstance(s, Store) else "another statement"
                what = f"{reader} reads {self.stage} outside {self.at}"
                self.need(inside, what, f"place {reader} first")
        return target, path

    def _self_reads(self, n: Nest, own: list[Stmt], box: Box, b: Buffer) -> None:
        """A stage that reads itself keeps whole every axis along which it does."""
        everything = uses(tuple(own))
        for x in (u for u in everything if u.load is not None and self._mine(u.load)):
            for i, j, (_, size), full in zip(x.index, x.target.index, box, b.shape, strict=True):
                if not D.known_eq(i, j) and not D.known_eq(size, full):
                    writes = next(u for u in everything if u.store is x.store and u.writes)
                    saying = f"{self.stage} reads itself at {x}, which would not be there: "
                    self.keep(n, [Carried("order", None, writes, x)], saying)


def _last_read(
    read: Sequence[tuple[Dim, ...]], moving: set[Sym], box: Box, ends: Sequence[Dim]
) -> list[Dim]:
    """Where what is read ends, along each axis of a box that is larger since only a call decides
    how much that is: one loop goes through it."""
    out = list(ends)
    for k, ((base, size), end) in enumerate(zip(box, ends, strict=True)):
        along = {x[k] - base for x in read}
        v = along.pop() if len(along) == 1 else 0
        if not (isinstance(size, int) and D.is_sym(v) and D.the_sym(v) in moving):
            continue
        count = extent(D.the_sym(v))
        if not isinstance(count, int) and not D.symbols(count) & moving:
            if not D.known_eq(count, clipped(base, size, end)[1]):
                out[k] = base + count
    return out


def _reads_of(s: Stmt, buffer: str) -> list[Load]:
    """What a statement, and those inside, read of a buffer."""
    if buffer not in sources(s):
        return []
    own = [x for v in own_values(s) for x in loads(v, buffer)]
    return own + [x for body in bodies(s) for b in body for x in _reads_of(b, buffer)]
