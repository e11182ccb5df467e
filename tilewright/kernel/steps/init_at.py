from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.kernel.box import covers, narrow, narrowed_axes, own_cells, whole_axes
from tilewright.kernel.dependence import region
from tilewright.kernel.nest import (
    BRANCHES,
    Loop,
    Nest,
    Path,
    Stmt,
    Store,
    bodies,
    find,
    reads,
    sources,
    transform,
    walk,
    writes,
)
from tilewright.kernel.step import Step
from tilewright.kernel.variables import inner_vars


@dataclass(frozen=True)
class InitAt(Step):
    """The first values of a reduction are set inside a loop of its update, for the cells that one
    iteration accumulates into.

    for i: s[i] = 0                    for i:
    for i: for r: s[i] += x[i,r]         s[i] = 0
                                         for r: s[i] += x[i,r]
    """

    stage: str
    at: str

    def apply(self, n: Nest) -> Nest:
        self.loops(n, self.at)
        update, top, chain = self._places(n)
        host, target = chain[0], chain[-1]
        lanes = [q.name for q in chain if q.kind in ("lane", "tensor")]
        self.need(not lanes, f"{', '.join(lanes)} has a kind already", "set first values first")
        self._nobody_reads(n, top, host)
        for q in chain:
            sums = f"{q.name} accumulates into the same cells of {self.stage} again and again"
            self.need(own_cells(n, q, self.stage), sums, "choose a loop outside of those")
        b = n.buffer(self.stage)
        axes = whole_axes(self, self.stage, [top], b)
        loops = tuple(q for s, p in walk((host,)) if s is update for q in p)
        whole = covers(update.index, loops, b.shape, chain)
        missed = f"the loops from {host.name} to {self.at} do not reach all cells of {self.stage}"
        self.need(whole, missed)
        moving = set().union(*(inner_vars(s) for s in target.body))
        box = region([update.index], moving, b.shape)
        moved = narrow(top, narrowed_axes(axes, box, b.shape, b.shape))

        def one(s: Stmt) -> tuple[Stmt, ...]:
            if s is top:
                return ()
            return (replace(target, body=(*moved, *target.body)),) if s is target else (s,)

        out = replace(n, body=transform(n.body, one))
        for q in chain:
            now = next(x for x, _ in find(out, q.name) if self.stage in writes((x,)))
            wider = f"the cells of {self.stage} in one iteration of {q.name} are not known exactly"
            self.need(own_cells(out, now, self.stage), wider)
        return out

    def _places(self, n: Nest) -> tuple[Store, Stmt, Path]:
        """The update, the statement that sets first values, and the loops from the one next to it
        down to the one to move to."""
        found = [(s, p) for s, p in walk(n.body) if isinstance(s, Store) and s.buffer == self.stage]
        self.need(found, f"there is no stage {self.stage}")
        firsts = [x for x in found if x[0].combine is None]
        updates = [x for x in found if x[0].combine is not None]
        self.need(updates, f"{self.stage} is not a reduction")
        self.need(firsts, f"{self.stage} starts from what is there")
        copies = f"{self.stage} is computed by {len(firsts)} and {len(updates)} statements"
        self.need(len(firsts) == len(updates) == 1, copies, "set first values before Peel")
        (first, outer), (update, path) = firsts[0], updates[0]
        shared = 0
        while shared < min(len(outer), len(path)) and outer[shared] is path[shared]:
            shared += 1
        names = [q.name for q in path[shared:]]
        around = f"{self.at} is not a loop of the update alone"
        hint = f"those are {', '.join(names)}" if names else "there is none"
        self.need(self.at in names, around, hint)
        top: Stmt = outer[shared] if len(outer) > shared else first
        alone = sum(isinstance(s, Store) for s, _ in walk((top,))) == 1
        self.need(alone, f"others share the loops that set the first values of {self.stage}")
        return update, top, path[shared : shared + names.index(self.at) + 1]

    def check_branches(self, n: Nest) -> None:
        """Where what first values are made of may be written again, nothing may write it between
        here and there."""
        _, top, chain = self._places(n)
        body = self._home(n, top)
        at = [next((k for k, s in enumerate(body) if s is x), -1) for x in (top, chain[0])]
        self.need(0 <= at[0] < at[1], f"{self.stage} is not set in the body of its update")
        needed, written = sources(top) - {self.stage}, writes(body[at[0] : at[1] + 1])
        changed = needed & written
        self.need(not changed, f"{', '.join(sorted(changed))} is written before that is read")
        pointers = {b.name for b in n.buffers if b.pointer}
        apart = not (needed & pointers and written & pointers)
        self.need(apart, f"{self.stage} starts from a pointer, and one is written through")
        held = (s for s, _ in walk(body[at[0] : at[1] + 1]) if isinstance(s, BRANCHES))
        self.need(next(held, None) is None, f"there is a branch in {self.stage}")

    def _home(self, n: Nest, top: Stmt) -> tuple[Stmt, ...]:
        """The body that a statement stands in."""
        inside = (x for s, _ in walk(n.body) for x in bodies(s))
        return next(b for b in (n.body, *inside) if any(s is top for s in b))

    def _nobody_reads(self, n: Nest, top: Stmt, host: Loop) -> None:
        """The cells are not touched between the first values and the update, nor read next to
        it."""
        body = self._home(n, top)
        at = [next(k for k, s in enumerate(body) if s is x) for x in (top, host)]
        self.need(at[0] < at[1], f"{self.stage} is set after its update")
        for s in body[at[0] + 1 : at[1] + 1]:
            early = [x for x, _ in walk((s,)) if isinstance(x, Store) and self._reads(x)]
            what = f"{early[0].stage} reads {self.stage} on the way to {self.at}" if early else ""
            self.need(not early, what, "set first values before other stages move in")

    def _reads(self, s: Store) -> bool:
        return any(x.source == self.stage for x in reads(s))
