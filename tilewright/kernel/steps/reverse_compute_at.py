from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.kernel.box import (
    Box,
    covers,
    narrow,
    narrowed_axes,
    own_cells,
    own_statements,
    rebased,
    without,
)
from tilewright.kernel.dependence import region
from tilewright.kernel.nest import (
    BLOCKS,
    Alloc,
    Barrier,
    Loop,
    Nest,
    Path,
    Stmt,
    Store,
    find,
    reads,
    stages_in,
    substitute_all,
    transform,
    walk,
)
from tilewright.kernel.step import Step
from tilewright.kernel.variables import inner_vars


@dataclass(frozen=True)
class ReverseComputeAt(Step):
    """A stage is computed inside a loop of what it reads, from the part that one iteration has just
    completed. A buffer between the two that is touched there only shrinks to that part.

    for i: for c: t[i,c] = …           for i:
    for i: for c: y[i,c] = t[i,c]        for c: t[c] = …
                                         for c: y[i,c] = t[c]
    """

    stage: str
    at: str

    def apply(self, n: Nest) -> Nest:
        self.loops(n, self.at)
        body, firsts, user = self._own(n)
        chain, source = self._target(n, user)
        host, target = chain[0], chain[-1]
        begin, end = (next((k for k, s in enumerate(body) if s is x), -1) for x in (host, user))
        self.need(0 <= begin < end, f"{self.stage} is not computed after {host.name}")
        firsts = [s for s in body[begin:] if any(s is x for x in firsts)]
        self._in_time(body[begin:end], source, [*firsts, user])
        moved, box = self._narrowed(n, chain, source, user)
        # What the stage starts from is there before the loops it moves into.
        early = [*(s for s in body[begin:] if s == Alloc(self.stage)), *firsts]

        def move(s: Stmt) -> tuple[Stmt, ...]:
            if s is user or any(s is x for x in early):
                return ()
            return (replace(target, body=(*target.body, *moved)),) if s is target else (s,)

        def prepare(s: Stmt) -> tuple[Stmt, ...]:
            here = isinstance(s, Loop) and s.var is host.var and self.stage in stages_in(s)
            return (*early, s) if here else (s,)

        out = replace(n, body=transform(transform(n.body, move), prepare))
        for q in chain:
            now = next(x for x, _ in find(out, q.name) if self.stage in stages_in(x))
            pieces = f"{q.name} would compute the same cells of {self.stage} piece by piece"
            apart = own_cells(out, now, self.stage)
            self.need(apart, pieces, "move it to a loop that completes what it adds up")
        return self._shrunk(out, chain, source, box)

    def _own(self, n: Nest) -> tuple[tuple[Stmt, ...], list[Stmt], Stmt]:
        """The body the stage stands in, what sets its first values, and what computes it."""
        own = own_statements(n, self.stage)
        self.need(own, f"there is no stage {self.stage} with loops of its own")
        path = own[0][1]
        several = any(
            len(p) != len(path) or any(q is not r for q, r in zip(p, path)) for _, p in own
        )
        self.need(not several, f"{self.stage} is computed in several places")
        tops = [s for s, _ in own]
        updates = [s for s in tops if _accumulates(s)]
        firsts = [s for s in tops if updates and not _accumulates(s)]
        users = updates or tops
        for s, _ in walk(tuple(users)):
            outer = isinstance(s, Loop) and s.kind in ("parallel", *BLOCKS)
            what = f"{s.name} is {s.kind}: it stands outermost" if isinstance(s, Loop) else ""
            self.need(not outer, what, "move first")
        copies = f"{self.stage} is computed by {len(users)} statements"
        self.need(len(users) == 1, copies, "move it before Peel")
        return path[-1].body if path else n.body, firsts, users[0]

    def _target(self, n: Nest, user: Stmt) -> tuple[Path, str]:
        """The loops from the one next to the stage down to where it moves, and the buffer that is
        written there and read by the stage."""
        wanted = {str(x.source) for x in reads(user)} - {self.stage}
        found = [(x, p, sorted(_writes(x) & wanted)) for x, p in find(n, self.at)]
        found = [f for f in found if f[2]]
        self.need(found, f"nothing inside {self.at} computes what {self.stage} reads")
        self.need(len(found) == 1, f"{self.at} has {len(found)} copies", "move before Peel")
        target, path, made = found[0]
        several = f"{self.stage} reads {' and '.join(made)}, which are all computed in {self.at}"
        self.need(len(made) == 1, several)
        kinds = target.kind in ("serial", "parallel")
        self.need(kinds, f"{self.at} is {target.kind}", "move before Vectorize, Unroll and Bind")
        outer = own_statements(n, self.stage)[0][1]
        next_to = len(outer) <= len(path) and all(q is r for q, r in zip(outer, path))
        self.need(next_to, f"{self.at} is not next to {self.stage}", "a stage moves inwards only")
        fences = any(isinstance(s, Barrier) for s, _ in walk(n.body))
        self.need(not fences, "threads are synchronised already", "Synchronise last")
        return (*path[len(outer) :], target), made[0]

    def _narrowed(self, n: Nest, chain: Path, source: str, user: Stmt) -> tuple[list[Stmt], Box]:
        """The stage on the cells that one iteration completes, and which these are."""
        host, target = chain[0], chain[-1]
        written = [x for x in walk((host,)) if isinstance(x[0], Store) and x[0].buffer == source]
        inside = all(any(q is target for q in p) for _, p in written)
        self.need(inside, f"{source} is also written outside {self.at}")
        for q in chain:
            sums = f"{source} is not complete in one iteration of {q.name}"
            self.need(own_cells(n, q, source), sums, "choose a loop outside of those that add up")
        last = [x for x in written if _accumulates(x[0])] or written
        self.need(len(last) == 1, f"{source} is computed by {len(last)} statements there")
        store, path = last[0]
        assert isinstance(store, Store)
        b = n.buffer(source)
        moving = set().union(*(inner_vars(s) for s in target.body))
        box = region([s.index for s, _ in written if isinstance(s, Store)], moving, b.shape)
        axes, full = self._axes(user, source, b.shape, box)
        self._in_itself(user, {v for names in axes for v in names})
        reached = covers(store.index, path, full, chain)
        self.need(reached, f"{host.name} does not reach all of {source} that {self.stage} reads")
        return narrow(user, narrowed_axes(axes, box, full, b.shape)), box

    def _axes(
        self, user: Stmt, source: str, shape: tuple[Dim, ...], box: Box
    ) -> tuple[list[list[Sym]], list[Dim]]:
        """Per axis of the source, the stage's loop along it and how far that reads."""
        found = [x for x in reads(user) if x.source == source]
        axes: list[list[Sym]] = []
        full: list[Dim] = []
        loops = {q.var: q for _, p in walk((user,)) for q in p}
        for k, (d, (_, size)) in enumerate(zip(shape, box, strict=True)):
            if D.known_eq(size, d):  # every iteration completes all of it
                axes.append([])
                full.append(d)
                continue
            i = found[0].index[k]
            alike = all(D.known_eq(x.index[k], i) for x in found)
            apart = f"{self.stage} reads {source} at different places"
            self.need(alike, f"{apart}: {found[0]!r} and others", "ComputeAt instead")
            q = loops.get(D.the_sym(i)) if D.is_sym(i) else None
            plain = q is not None and all(v is not q.var for a in axes for v in a)
            self.need(plain, f"{self.stage} does not read {source} along a loop of its own: {i}")
            assert q is not None
            ready = q.kind == "serial"
            self.need(ready, f"{q.name} is already {q.kind}", "move first")
            axes.append([q.var])
            full.append(q.extent)
        return axes, full

    def _in_itself(self, user: Stmt, cut: set[Sym]) -> None:
        """A stage that reads itself finds what it reads in its own iteration."""
        for s in (s for s, _ in walk((user,)) if isinstance(s, Store)):
            for x in (x for x in reads(s) if x.source == self.stage):
                for i, j in zip(s.index, x.index, strict=True):
                    same = D.known_eq(i, j) or not D.symbols(i) & cut
                    what = f"{self.stage} reads itself at {x!r}, in another iteration of {self.at}"
                    self.need(same, what, "move it to a loop around that order")

    def _in_time(self, passed: tuple[Stmt, ...], source: str, mine: list[Stmt]) -> None:
        """What the stage moves before neither writes what it reads nor touches what it writes."""
        early = any(x.source == source for s in mine[:-1] for x in reads(s))
        self.need(not early, f"{self.stage} starts from values of {source}")
        needs = {str(x.source) for s in mine for x in reads(s)} - {source}
        for k, s in enumerate(passed):
            if any(s is x for x in mine):
                continue
            late = sorted(_writes(s) & (needs | ({source} if k else set())))
            what = f"{self.stage} also reads {', '.join(late)}, which is computed there or later"
            self.need(not late, what)
            touched = _writes(s) | {str(x.source) for x in reads(s)}
            self.need(self.stage not in touched, f"{self.stage} is used before it is computed")

    def _shrunk(self, n: Nest, chain: Path, source: str, box: Box) -> Nest:
        """The buffer in between allocated in the loop, if nothing outside touches it."""
        b = n.buffer(source)
        uses = [p for s, p in walk(n.body) if isinstance(s, Store) and _touches(s, source)]
        inside = all(any(q.var is chain[-1].var for q in p) for p in uses)
        varies = any(D.symbols(size) & {q.var for p in uses for q in p} for _, size in box)
        if b.scope in ("in", "out") or varies or not inside:
            return n
        on_load, on_store = rebased(source, box)

        def one(s: Stmt) -> tuple[Stmt, ...]:
            if not isinstance(s, Loop) or s.var is not chain[-1].var:
                return (s,)
            body = substitute_all(s.body, {}, on_load, on_store, source)
            return (replace(s, body=(Alloc(source), *body)),)

        body = transform(without(n.body, [], source), one)
        return replace(n, body=body).with_buffer(replace(b, shape=tuple(d for _, d in box)))


def _accumulates(s: Stmt) -> bool:
    return any(isinstance(x, Store) and x.combine is not None for x, _ in walk((s,)))


def _writes(s: Stmt) -> set[str]:
    return {x.buffer for x, _ in walk((s,)) if isinstance(x, Store)}


def _touches(s: Store, buffer: str) -> bool:
    return s.buffer == buffer or any(x.source == buffer for x in reads(s))
