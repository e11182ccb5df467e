from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Load, Value, load
from tilewright.kernel.dependence import region
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import (
    Alloc,
    Loop,
    Nest,
    Stmt,
    Store,
    inner_vars,
    on_loops,
    reads,
    stages_in,
    substitute,
    transform,
    walk,
)
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class ComputeAt(Step):
    """A stage is computed inside a loop of its consumer, only the part which one iteration reads.

    for i: for c: e[i,c] = …           for i:
    for i: for c: y[i,c] = e[i,c]        for c: e[c] = …
                                         for c: y[i,c] = e[c]
    """

    stage: str
    at: str

    def apply(self, n: Nest) -> Nest:
        b = self.internal(n, self.stage)
        mine = lambda s: stages_in(s) == {self.stage}  # noqa: E731
        own = [(s, p) for s, p in walk(n.body) if isinstance(s, (Loop, Store)) and mine(s) and not any(mine(q) for q in p)]  # fmt: skip
        self.need(own, f"there is no stage {self.stage}")
        rest = replace(
            n, body=transform(n.body, lambda s: () if mine(s) or s == Alloc(self.stage) else (s,))
        )
        targets = [
            (x, p)
            for x, p in self.loops(rest, self.at)
            if any(r.source == self.stage for r in reads(x))
        ]
        self.need(targets, f"nothing inside {self.at} reads {self.stage}")
        self.need(
            len(targets) == 1,
            f"{self.at} has {len(targets)} copies that read {self.stage}",
            "place before Peel",
        )
        target, path = targets[0]
        self.need(target.kind in ("serial", "parallel"), f"{self.at} is {target.kind}: nothing can be allocated there", "place before Vectorize and Unroll")  # fmt: skip
        around = {*path, target}
        for s, p in own:
            self.need(all(any(q.var is r.var for r in around) for q in p), f"{self.stage} sits inside {p[-1].name if p else ''}: a stage moves inwards only")  # fmt: skip
        for s, p in walk(rest.body):
            if isinstance(s, Store) and any(x.source == self.stage for x in reads(s)):
                self.need(any(q.var is target.var for q in p), f"{s.stage} reads {self.stage} outside {self.at}", f"place {s.stage} first")  # fmt: skip
        axes = self._axes([s for s, _ in own], b)
        moving = set().union(*(inner_vars(s) for s in target.body))
        box = region([x.index for x in reads(target) if x.source == self.stage], moving, b.shape)
        self._self_reads([s for s, _ in own], box, b)
        table: dict[Sym, Dim] = {}
        for k, (names, full) in enumerate(zip(axes, b.shape, strict=True)):
            base, size = box[k]
            low = base if D.nonneg(base) else D.maximum(base, 0)
            count = _overlap(base, size, low, full)
            box[k] = low, size
            for a in names:
                inner = D.var(a.name, count)
                table[a] = low if isinstance(count, int) and count == 1 else low + inner
        shape = tuple(size for _, size in box)
        self.need(not any(D.symbols(d) & {q.var for q in around} for d in shape), f"the size of {self.stage} under {self.at} varies")  # fmt: skip

        def rebase(x: Load) -> Value:
            if x.source != self.stage:
                return x
            return load(
                self.stage, [i - base for i, (base, _) in zip(x.index, box, strict=True)], x.dtype
            )

        def rebase_store(buf: str, idx: tuple[Dim, ...]) -> tuple[str, tuple[Dim, ...]]:
            if buf != self.stage:
                return buf, idx
            return buf, tuple(i - base for i, (base, _) in zip(idx, box, strict=True))

        moved: list[Stmt] = [Alloc(self.stage)]
        for s, _ in own:
            moved.extend(_narrow(s, table, rebase, rebase_store))

        def place(x: Loop) -> tuple[Stmt, ...]:
            if x != target:
                return (x,)
            body = tuple(substitute(y, {}, rebase) for y in x.body)
            first = next(
                k for k, y in enumerate(x.body) if any(r.source == self.stage for r in reads(y))
            )
            return (replace(x, body=(*body[:first], *moved, *body[first:])),)

        out = on_loops(rest, self.at, place).with_buffer(Buffer(b.name, b.dtype, shape, b.scope))
        self.need(out != n, f"{self.stage} is computed at {self.at} already")
        return out

    def _self_reads(self, own: list[Stmt], box: list[tuple[Dim, Dim]], b: Buffer) -> None:
        """A stage that reads itself keeps whole every axis along which it does."""
        for top in own:
            for s, _ in walk((top,)):
                if not isinstance(s, Store):
                    continue
                for x in reads(s):
                    if x.source != self.stage:
                        continue
                    for i, j, (_, size), full in zip(x.index, s.index, box, b.shape, strict=True):
                        kept = D.known_eq(i, j) or D.known_eq(size, full)
                        self.need(
                            kept, f"{self.stage} reads itself at {x!r}, which would not be there"
                        )

    def _axes(self, own: list[Stmt], b: Buffer) -> list[list[Sym]]:
        """Per buffer axis, the variables (of init and update) that run over it; each still whole."""
        out: list[list[Sym]] = [[] for _ in b.shape]
        for top in own:
            for s, p in walk((top,)):
                if not isinstance(s, Store):
                    continue
                for k, i in enumerate(s.index):
                    if i == 0 and b.shape[k] == 1:
                        continue
                    whole = D.is_sym(i) and any(
                        q.var is D.the_sym(i) and q.kind == "serial" for q in p
                    )
                    self.need(whole and D.known_eq(D.the_sym(i).hi + 1, b.shape[k]), f"{self.stage} is no longer one whole loop per axis", "place first, then split")  # type: ignore[operator]  # fmt: skip
                    once = s.index.count(i) == 1
                    self.need(once, f"{self.stage} is written along {i} in two axes")
                    if D.the_sym(i) not in out[k]:
                        out[k].append(D.the_sym(i))
        return out


def _overlap(base: Dim, size: Dim, low: Dim, full: Dim) -> Dim:
    """How many points of [base, base+size) lie in [0, full). `low` is max(base, 0): a box may stick out
    on either side where what is read there is not used."""
    count = D.minimum(size, full - base) if low is base else D.minimum(base + size, full) - low
    return count if D.nonneg(count) else D.maximum(count, 0)


def _narrow(s: Stmt, table: dict[Sym, Dim], rebase, rebase_store) -> list[Stmt]:
    """Loops over the axes in `table` shrink to the box (or vanish when it is one wide)."""
    if isinstance(s, Loop) and s.var in table:
        new = [y for x in s.body for y in _narrow(x, table, rebase, rebase_store)]
        inner = [v for v in D.symbols(table[s.var]) if v.name == s.var.name]
        if not inner:
            return new
        return [Loop(inner[0], "serial", tuple(new))]
    if isinstance(s, Loop):
        e = D.substitute(s.extent, table)
        if e != s.extent:  # ragged along a narrowed axis
            v = D.var(s.name, e)
            table, s = {**table, s.var: v}, replace(s, var=D.the_sym(v))
        body = tuple(y for x in s.body for y in _narrow(x, table, rebase, rebase_store))
        return [replace(s, body=body)]
    return [substitute(s, table, rebase, rebase_store)]
