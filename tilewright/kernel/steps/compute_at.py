from __future__ import annotations

from collections.abc import Callable
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
    OnAccess,
    Path,
    Stmt,
    Store,
    inner_vars,
    on_loops,
    reads,
    stages_in,
    substitute,
    walk,
)
from tilewright.kernel.step import Step

Box = list[tuple[Dim, Dim]]  # per axis: where it begins, how long it is


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
        own = self._own(n)
        mine = {id(s) for s, _ in own}
        rest = replace(n, body=self._without(n.body, mine))
        target, path = self._target(rest)
        around = (*path, target)
        for _, p in own:
            outside = [q.name for q in p if all(q.var is not r.var for r in around)]
            inwards = f"{self.stage} sits inside {', '.join(outside)}: a stage moves inwards only"
            self.need(not outside, inwards)
        tops = [s for s, _ in own]
        axes = self._axes(tops, b)
        moving = set().union(*(inner_vars(s) for s in target.body))
        box = region([x.index for x in reads(target) if self._mine(x)], moving, b.shape)
        self._self_reads(tops, box, b)
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
        varies = any(D.symbols(d) & {q.var for q in around} for d in shape)
        self.need(not varies, f"the size of {self.stage} under {self.at} varies")
        rebase, rebase_store = self._rebased(box)
        moved: list[Stmt] = [Alloc(self.stage)]
        for s in tops:
            moved.extend(_narrow(s, table, rebase, rebase_store))

        def place(x: Loop) -> tuple[Stmt, ...]:
            if x != target:
                return (x,)
            body = tuple(substitute(y, {}, rebase) for y in x.body)
            first = next(k for k, y in enumerate(x.body) if any(map(self._mine, reads(y))))
            return (replace(x, body=(*body[:first], *moved, *body[first:])),)

        out = on_loops(rest, self.at, place).with_buffer(Buffer(b.name, b.dtype, shape, b.scope))
        self.need(out != n, f"{self.stage} is computed at {self.at} already")
        return out

    def _mine(self, x: Load) -> bool:
        return x.source == self.stage

    def _own(self, n: Nest) -> list[tuple[Stmt, Path]]:
        """The outermost statements that compute the stage and nothing else."""
        found = []
        for s, p in walk(n.body):
            inside = any(stages_in(q) == {self.stage} for q in p)
            if not isinstance(s, Alloc) and stages_in(s) == {self.stage} and not inside:
                found.append((s, p))
        self.need(found, f"there is no stage {self.stage}")
        return found

    def _without(self, body: tuple[Stmt, ...], mine: set[int]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for s in body:
            if id(s) in mine or s == Alloc(self.stage):
                continue
            if isinstance(s, Loop):
                inner = self._without(s.body, mine)
                if not inner:
                    continue
                s = replace(s, body=inner)
            out.append(s)
        return tuple(out)

    def _target(self, rest: Nest) -> tuple[Loop, Path]:
        """The one loop to compute at, around everything that reads the stage."""
        found = [(x, p) for x, p in self.loops(rest, self.at) if any(map(self._mine, reads(x)))]
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
            if isinstance(s, Store) and any(map(self._mine, reads(s))):
                inside = any(q.var is target.var for q in p)
                what = f"{s.stage} reads {self.stage} outside {self.at}"
                self.need(inside, what, f"place {s.stage} first")
        return target, path

    def _self_reads(self, own: list[Stmt], box: Box, b: Buffer) -> None:
        """A stage that reads itself keeps whole every axis along which it does."""
        stores = [s for s, _ in walk(tuple(own)) if isinstance(s, Store)]
        for s, x in ((t, x) for t in stores for x in reads(t) if self._mine(x)):
            for i, j, (_, size), full in zip(x.index, s.index, box, b.shape, strict=True):
                kept = D.known_eq(i, j) or D.known_eq(size, full)
                self.need(kept, f"{self.stage} reads itself at {x!r}, which would not be there")

    def _axes(self, own: list[Stmt], b: Buffer) -> list[list[Sym]]:
        """Per axis, the variables (of init and update) that run over it; each still whole."""
        out: list[list[Sym]] = [[] for _ in b.shape]
        for s, p in walk(tuple(own)):
            for k, i in enumerate(s.index) if isinstance(s, Store) else ():
                if i == 0 and b.shape[k] == 1:
                    continue
                whole = any(
                    D.known_eq(D.as_int(q.var), i)
                    and D.known_eq(q.extent, b.shape[k])
                    and q.kind == "serial"
                    for q in p
                )
                broken = f"{self.stage} is no longer one whole loop per axis"
                self.need(whole, broken, "place first, then split")
                once = isinstance(s, Store) and s.index.count(i) == 1
                self.need(once, f"{self.stage} is written along {i} in two axes")
                if D.the_sym(i) not in out[k]:
                    out[k].append(D.the_sym(i))
        return out

    def _rebased(self, box: Box) -> tuple[Callable[[Load], Value], OnAccess]:
        """Accesses to the stage, counted from where the box begins."""

        def move(index: tuple[Dim, ...]) -> tuple[Dim, ...]:
            return tuple(i - base for i, (base, _) in zip(index, box, strict=True))

        def on_load(x: Load) -> Value:
            return load(self.stage, move(x.index), x.dtype) if self._mine(x) else x

        def on_store(buf: str, index: tuple[Dim, ...]) -> tuple[str, tuple[Dim, ...]]:
            return buf, move(index) if buf == self.stage else index

        return on_load, on_store


def _overlap(base: Dim, size: Dim, low: Dim, full: Dim) -> Dim:
    """How many points of [base, base+size) lie in [0, full), where `low` is max(base, 0). A box may
    stick out on either side where what is read there is not used."""
    count = D.minimum(size, full - base) if low is base else D.minimum(base + size, full) - low
    return count if D.nonneg(count) else D.maximum(count, 0)


def _narrow(
    s: Stmt, table: dict[Sym, Dim], rebase: Callable[[Load], Value], rebase_store: OnAccess
) -> list[Stmt]:
    """Loops over the axes in `table` shrink to the box (or vanish when it is one wide)."""
    if not isinstance(s, Loop):
        return [substitute(s, table, rebase, rebase_store)]
    if s.var in table:
        new = [y for x in s.body for y in _narrow(x, table, rebase, rebase_store)]
        inner = [v for v in D.symbols(table[s.var]) if v.name == s.var.name]
        return [Loop(inner[0], "serial", tuple(new))] if inner else new
    e = D.substitute(s.extent, table)
    if e != s.extent:  # ragged along a narrowed axis
        v = D.var(s.name, e)
        table, s = {**table, s.var: v}, replace(s, var=D.the_sym(v))
    body = (y for x in s.body for y in _narrow(x, table, rebase, rebase_store))
    return [replace(s, body=tuple(body))]
