from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.kernel.dependence import anew_hint, carried, exchanged, interleaved
from tilewright.kernel.nest import (
    Alloc,
    Loop,
    Nest,
    Path,
    Stmt,
    Store,
    sources,
    stages_in,
    substitute,
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
        own = [s for s in n.body if isinstance(s, Loop) and self.stage in stages_in(s)]
        self.need(own, f"{self.stage} has no loops at the outermost level")
        targets = self.loops(n, self.at)
        self.need(len(targets) == 1, f"{self.at} has {len(targets)} copies")
        target, path = targets[0]
        shared = (*path, target)
        self.need(all(shared[0] is not s for s in own), f"{self.at} is a loop of {self.stage}")
        kinds = all(q.kind in ("serial", "parallel") for q in shared)
        self.need(kinds, f"{self.at} is {target.kind}", "share loops before Vectorize and Unroll")
        host = next(k for k, s in enumerate(n.body) if s is shared[0])
        positions = [k for k, s in enumerate(n.body) if s in own]
        before = max(positions) < host
        self.need(before or min(positions) > host, f"{self.at} is in the middle of {self.stage}")
        for s, k in zip(own, positions, strict=True):
            for other in n.body[min(k, host) + 1 : max(k, host)]:
                if other not in own:
                    self._pass(n, s, other, before)
        moved = [self._inside(s, shared) for s in own]
        together = tuple(y for part in moved for y in part)
        body = _placed(n.body, own, target, together, before)
        # Memory that what moves forward touches (if only where a condition never holds) is
        # allocated in time.
        late = [
            s
            for s in n.body[host:]
            if isinstance(s, Alloc) and any(s.buffer in _writes(x) | sources(x) for x in own)
        ]
        if late:
            rest = [s for s in body if s not in late]
            at = next(
                k for k, s in enumerate(rest) if isinstance(s, Loop) and s.var is shared[0].var
            )
            body = (*rest[:at], *late, *rest[at:])
        out = replace(n, body=body)
        top = next(y for y in out.body if isinstance(y, Loop) and y.var is shared[0].var)
        bad = interleaved(out, top, moved, before)
        self.keep(out, bad, hint=anew_hint(out, bad))
        for y, _ in walk(out.body):
            if isinstance(y, Loop) and y.kind == "parallel" and y.var is shared[0].var:
                bad = carried(out, y)
                self.keep(out, bad, hint=anew_hint(out, bad))
        return out

    def _pass(self, n: Nest, s: Loop, other: Stmt, before: bool) -> None:
        """Nothing in between writes what the nest touches or touches what it writes."""
        clash = _writes(s) & (_writes(other) | sources(other)) | sources(s) & _writes(other)
        if clash:
            saying = f"{', '.join(sorted(clash))} is used between {self.stage} and {self.at}: "
            self.keep(n, exchanged(n, *((s, other) if before else (other, s))), saying)

    def _inside(self, s: Loop, shared: Path) -> list[Stmt]:
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
        return [substitute(y, table) for y in body]


def _placed(
    body: tuple[Stmt, ...], own: list[Loop], target: Loop, moved: tuple[Stmt, ...], before: bool
) -> tuple[Stmt, ...]:
    def one(s: Stmt) -> tuple[Stmt, ...]:
        if s in own:
            return ()
        if isinstance(s, Loop) and s.var is target.var:
            return (replace(s, body=(*moved, *s.body) if before else (*s.body, *moved)),)
        return (s,)

    return transform(body, one)


def _writes(s: Stmt) -> set[str]:
    return {x.buffer for x, _ in walk((s,)) if isinstance(x, Store)}
