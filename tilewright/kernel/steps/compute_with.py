from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.kernel.dependence import carried
from tilewright.kernel.nest import (
    Loop,
    Nest,
    Stmt,
    Store,
    on_loops,
    reads,
    stages_in,
    substitute,
    transform,
    walk,
)
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class ComputeWith(Step):
    """A stage shares the loops of another one, paired from the outermost, down to the loop `at`. Nothing is recomputed.

    for i: a[i] = …               for i:
    for j: b[j] = …                 a[i] = …
                                    b[i] = …
    """

    stage: str
    at: str

    def apply(self, n: Nest) -> Nest:
        mine = lambda s: stages_in(s) == {self.stage}  # noqa: E731
        own = [s for s in n.body if isinstance(s, Loop) and mine(s)]
        self.need(own, f"{self.stage} is not a nest of its own at the outermost level")
        targets = [(x, p) for x, p in self.loops(n, self.at)]
        self.need(len(targets) == 1, f"{self.at} has {len(targets)} copies")
        target, path = targets[0]
        self.need(not mine(target), f"{self.at} belongs to {self.stage}")
        shared = (*path, target)
        positions = [k for k, s in enumerate(n.body) if s in own]
        host = next(k for k, s in enumerate(n.body) if s is shared[0] or s == shared[0])
        self.need(all(k not in range(min(positions) + 1, host) or n.body[k] in own or not isinstance(n.body[k], Loop) or not (_touch(n.body[k]) & _touch(own[0])) for k in range(len(n.body))), "another stage in between touches the same memory")  # fmt: skip
        moved: list[Stmt] = []
        for s in own:
            table: dict[Sym, Dim] = {}
            x: Stmt = s
            for q in shared:
                ok = isinstance(x, Loop) and D.known_eq(x.extent, q.extent)
                self.need(
                    ok, f"{self.stage} has no loop of extent {q.extent} to share with {q.name}"
                )
                assert isinstance(x, Loop)
                self.need(
                    x is s or len(last.body) == 1,
                    f"the loops of {self.stage} are not perfectly nested",
                )  # type: ignore[name-defined]  # noqa: F821,E501
                table[x.var] = D.as_int(q.var)
                last = x
                x = x.body[0]
            moved.extend(substitute(y, table) for y in last.body)
        before = max(positions) < host
        body = transform(n.body, lambda s: () if mine(s) and s in own else (s,))
        at = target

        def place(y: Loop) -> tuple[Stmt, ...]:
            if y != at:
                return (y,)
            return (replace(y, body=(*moved, *y.body) if before else (*y.body, *moved)),)

        out = on_loops(replace(n, body=body), self.at, place)
        for y, _ in walk(out.body):
            if isinstance(y, Loop) and any(y.var is q.var for q in shared):
                bad = [c for c in carried(out, y) if c.kind == "order"]
                self.need(not bad, bad[0].reason if bad else "")
        return out


def _touch(s: Stmt) -> set[str]:
    out = {x.source for x in reads(s) if isinstance(x.source, str)}
    return out | {y.buffer for y, _ in walk((s,)) if isinstance(y, Store)}
