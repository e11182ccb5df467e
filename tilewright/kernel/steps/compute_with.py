from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.kernel.dependence import anew_hint, carried, exchanged, interleaved
from tilewright.kernel.nest import (
    BRANCH,
    TENSOR,
    Alloc,
    Loop,
    Nest,
    Path,
    Stmt,
    Store,
    holds,
    marks,
    on_loops,
    sources,
    stages_in,
    substitute_all,
    transform,
    walk,
)
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class ComputeWith(Step):
    """The nest of a stage, with all that was placed in it, shares the loops of another one, paired
    from the outermost down to the loop `at`. Nothing is recomputed.

        for i: a[i] = …               for i:
        for j: b[j] = …                 a[i] = …
                                        b[i] = …
    """

    stage: str
    at: str

    def apply(self, n: Nest) -> Nest:
        return _share([self], n)

    def passes(self, n: Nest, s: Loop, other: Stmt, before: bool) -> None:
        """Nothing in between writes what the nest touches or touches what it writes."""
        clash = _writes(s) & (_writes(other) | sources(other)) | sources(s) & _writes(other)
        if clash:
            saying = f"{', '.join(sorted(clash))} is used between {self.stage} and {self.at}: "
            self.keep(n, exchanged(n, *((s, other) if before else (other, s))), saying)

    def with_loops(self, n: Nest, places: list[int]) -> list[int]:
        """The nests of a stage that share the loops. Where one of these is the loop of a sum, first
        values have none to share: they stay, or come to stand before the shared loops."""
        (_, path), *_ = self.loops(n, self.at)
        first = [k for k in places if not _updates(n.body[k])]
        rest = [k for k in places if k not in first]
        return rest if any(_sums(n.body[k], len(path) + 1) for k in rest) else places

    def inside(self, s: Loop, shared: Path) -> list[Stmt]:
        """What is inside the loops of the stage that are paired with the shared ones."""
        table: dict[Sym, Dim] = {}
        body: tuple[Stmt, ...] = (s,)
        for q in shared:
            x = body[0]
            fits = isinstance(x, Loop) and D.known_eq(D.substitute(x.extent, table), q.extent)
            what = f"{self.stage} has no loop of extent {q.extent} to share with {q.name}"
            self.need(fits and len(body) == 1, what)
            assert isinstance(x, Loop)
            self.need(x.kind == "serial", f"{x.name} is {x.kind}", "share loops first")
            table[x.var] = D.as_int(q.var)
            body = x.body
        return list(substitute_all(body, table))


def share_all(steps: Sequence[ComputeWith], n: Nest) -> Nest:
    """What the steps do one after another, at once: all of them share the loops of one stage, in
    the order in which they stand. Refused where one of them would be."""
    blocked = any(b.pointer for b in n.buffers) or holds(n, BRANCH) or holds(n, TENSOR)
    steps[0].need(not blocked, "there are branches or instructions", "take one step at a time")
    return _share(steps, n)


def _share(steps: Sequence[ComputeWith], n: Nest) -> Nest:
    first = steps[0]
    around = _around(steps, n)
    if around is not None:
        inner = _share(steps, replace(n, body=around.body))
        return on_loops(n, around.name, lambda x: (x.around(inner.body),))
    places: dict[str, list[int]] = {}
    for k, s in enumerate(n.body):
        for stage in stages_in(s) if isinstance(s, Loop) else ():
            places.setdefault(stage, []).append(k)
    moving: dict[int, ComputeWith] = {}
    firsts: dict[int, ComputeWith] = {}  # first values with other loops than the shared ones
    for step in steps:
        found = step.with_loops(n, places.get(step.stage, []))
        firsts.update((k, step) for k in places.get(step.stage, []) if k not in found)
        step.need(found, f"{step.stage} has no loops at the outermost level")
        moving.update(dict.fromkeys(found, step))
    targets = first.loops(n, first.at)
    first.need(len(targets) == 1, f"{first.at} has {len(targets)} copies")
    target, path = targets[0]
    shared = (*path, target)
    host = next(k for k, s in enumerate(n.body) if s is shared[0])
    first.need(host not in moving, f"{first.at} is a loop of {first.stage}")
    kinds = all(q.kind in ("serial", "parallel") for q in shared)
    first.need(kinds, f"{first.at} is {target.kind}", "share loops before Vectorize and Unroll")
    before = max(moving) < host
    middle = before or min(moving) > host
    first.need(middle, f"{first.at} is in the middle of {first.stage}")
    own: list[Loop] = []
    ahead = {k: s for k in sorted(firsts) if k > host and isinstance(s := n.body[k], Loop)}
    for k in sorted(moving):
        s = n.body[k]
        assert isinstance(s, Loop)
        own.append(s)
        for j in range(min(k, host) + 1, max(k, host)):
            if j not in moving and j not in ahead:
                moving[k].passes(n, s, n.body[j], before)
    for k, s in ahead.items():
        for j in range(host, k):
            if j not in moving and j not in ahead:
                firsts[k].passes(n, s, n.body[j], False)
    moved = [moving[k].inside(s, shared) for k, s in zip(sorted(moving), own, strict=True)]
    together = tuple(y for part in moved for y in part)
    body = _placed(n.body, [*own, *ahead.values()], target, together, before)
    # Memory that what moves forward touches (if only where a condition never holds) is
    # allocated in time.
    touched = frozenset().union(*(_writes(x) | sources(x) for x in (*own, *ahead.values())))
    late = [s for s in n.body[host:] if isinstance(s, Alloc) and s.buffer in touched]
    if late:
        rest = [s for s in body if s not in late]
        at = next(k for k, s in enumerate(rest) if isinstance(s, Loop) and s.var is shared[0].var)
        body = (*rest[:at], *late, *rest[at:])
    if ahead:
        at = next(k for k, s in enumerate(body) if isinstance(s, Loop) and s.var is shared[0].var)
        body = (*body[:at], *ahead.values(), *body[at:])
    out = replace(n, body=body)
    top = next(y for y in out.body if isinstance(y, Loop) and y.var is shared[0].var)
    bad = interleaved(out, top, moved, before)
    first.keep(out, bad, hint=anew_hint(out, bad))
    for y, _ in walk(out.body):
        if isinstance(y, Loop) and y.kind == "parallel" and y.var is shared[0].var:
            bad = carried(out, y)
            first.keep(out, bad, hint=anew_hint(out, bad))
    return out


def _around(steps: Sequence[ComputeWith], n: Nest) -> Loop | None:
    """The loop that has all of these nests inside, also the one they are to share loops with."""
    found = {id(s): s for s in n.body for x in steps if ("stage", x.stage) in marks(s)}
    path = steps[0].loops(n, steps[0].at)[0][1]
    (only,) = found.values() if len(found) == 1 else (None,)
    return only if isinstance(only, Loop) and path and path[0] is only else None


def _placed(
    body: tuple[Stmt, ...], own: list[Loop], target: Loop, moved: tuple[Stmt, ...], before: bool
) -> tuple[Stmt, ...]:
    def one(s: Stmt) -> tuple[Stmt, ...]:
        if isinstance(s, Loop) and s.var is target.var:
            return (replace(s, body=(*moved, *s.body) if before else (*s.body, *moved)),)
        return (s,)

    gone = set(map(id, own))
    rest = tuple(s for s in body if id(s) not in gone)
    return transform(rest, one, ("loop", target.name))


def _updates(s: Stmt) -> bool:
    return any(isinstance(x, Store) and x.combine is not None for x, _ in walk((s,)))


def _sums(s: Stmt, depth: int) -> bool:
    """Is one of the outermost loops of a nest one of a reduction?"""
    over: set[Sym] = set()
    while isinstance(s, Loop) and len(over) < depth:
        over.add(s.var)
        s = s.body[0]
    updates = [x for x, _ in walk((s,)) if isinstance(x, Store) and x.combine is not None]
    return any(over - set().union(*map(D.symbols, x.index)) for x in updates)


def _writes(s: Stmt) -> set[str]:
    return {x.buffer for x, _ in walk((s,)) if isinstance(x, Store)}
