"""A nest under construction with its trace, and queries about memory and work for default
schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.base.errors import Refused
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Fn, Index, Load, Value, extent, loads, walk
from tilewright.ir.scalar import WORTH_STORING, cost_of
from tilewright.ir.target import Target
from tilewright.kernel.defaults.choices import Choices
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.group import Buffer, Group
from tilewright.kernel.nest import (
    Loop,
    Nest,
    Path,
    Stmt,
    Store,
    Work,
    find,
    marks,
    mentions,
    own_loops,
    seek,
    stages_in,
    start,
)
from tilewright.kernel.step import Step
from tilewright.kernel.steps.parallel import Parallel
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.prefetch import Prefetch
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.vectorize import Vectorize
from tilewright.kernel.usual import PIECES, work_at, work_inside

# Registers that a polynomial of one vector takes, with its coefficients.
POLYNOMIAL = 8
# A piece of parallel work should cost tens of microseconds: about this many simple operations.
PIECE = 16384
# What a size that only the call knows is taken for.
USUAL = 64


class Applied:
    """The nests that steps gave. Schedules of one group by different choices begin alike: the steps
    that they share are applied once."""

    def __init__(self) -> None:
        self._starts: dict[int, tuple[Work, Nest]] = {}
        self._after: dict[tuple[int, Step], tuple[Nest, Nest | Refused]] = {}

    @property
    def count(self) -> int:
        """How many nests it holds, about."""
        return len(self._after)

    def start(self, work: Work) -> Nest:
        found = self._starts.get(id(work))
        if found is None:
            found = self._starts[id(work)] = work, start(work)
        return found[1]

    def apply(self, step: Step, nest: Nest) -> Nest:
        found = self._after.get((id(nest), step))
        if found is None:
            try:
                found = nest, step.apply(nest)
            except Refused as why:
                found = nest, why.again(why.what)
            self._after[id(nest), step] = found  # it holds the nest, so that no other has its id
        if isinstance(found[1], Refused):
            # Another one: what was raised holds those that it went through, and all nests by them.
            raise found[1].again(found[1].what)
        return found[1]

    def replay(self, work: Work, trace: Sequence[Step]) -> Nest:
        nest = self.start(work)
        for step in trace:
            nest = self.apply(step, nest)
        return nest


@dataclass
class Scheduler:
    """A nest under construction with the trace that led to it."""

    work: Work
    target: Target
    choices: Choices = Choices()
    nest: Nest = field(init=False)
    trace: list[Step] = field(default_factory=list)
    applied: Applied = field(default_factory=Applied)

    def __post_init__(self) -> None:
        self.nest = self.applied.start(self.work)

    @property
    def group(self) -> Group:
        """What is scheduled, by schedules of stages."""
        assert isinstance(self.work, Group), f"{self.work.name} has no stages"
        return self.work

    def apart(self, stages: Sequence[str]) -> dict[str, Scheduler]:
        """For steps of one stage each, whose statements are neighbours in the outermost body: their
        time does not grow with what else is there. `join` puts the statements back. Empty where
        some stage has no such statements, or is called what steps may call a part of another."""
        parts: dict[str, Scheduler] = {}
        names = [b.name for b in self.nest.buffers]
        for stage in stages:
            mark = ("stage", stage)
            at = [k for k, x in enumerate(self.nest.body) if mark in marks(x)]
            found = self.nest.body[at[0] : at[-1] + 1] if at else ()
            whole = len(found) == len(at) and all(stages_in(x) == {stage} for x in found)
            clash = any(x.startswith(stage) and x[len(stage) :].isalpha() for x in names)
            if not whole or clash or not any(isinstance(x, Loop) for x in found):
                return {}
            used = frozenset().union(*map(mentions, found))
            buffers = tuple(b for b in self.nest.buffers if b.name in used)
            nest = replace(self.nest, buffers=buffers, body=found)
            parts[stage] = Scheduler(nest, self.target, self.choices, self.trace)
        return parts

    def join(self, parts: Mapping[str, Scheduler]) -> None:
        """Put statements back that were taken `apart`, with the buffers and roles that they got."""
        body: list[Stmt] = []
        waiting = dict(parts)
        for x in self.nest.body:
            stages = stages_in(x)
            if not stages & parts.keys():
                body.append(x)
            for name in stages & waiting.keys():
                body.extend(waiting.pop(name).nest.body)
        roles, old = list(self.nest.roles), {b.name: b for b in self.nest.buffers}
        nest, known = replace(self.nest, body=tuple(body)), len(roles)
        for part in parts.values():
            roles += part.nest.roles[known:]
            for b in part.nest.buffers:
                if old.get(b.name) is not b:
                    nest = nest.with_buffer(b)
        self.nest = replace(nest, roles=tuple(roles))

    def do(self, step: Step) -> None:
        self.nest = self.applied.apply(step, self.nest)
        self.trace.append(step)

    def attempt(self, step: Step) -> bool:
        try:
            self.do(step)
        except Refused:
            return False
        return True

    def prefetch(self, buffer: str, loop: str, over: str, level: int = 1) -> bool:
        """What later iterations of a loop read arrives while `over` runs, as early as suits the
        target."""
        ahead = self.target.prefetch
        return ahead > 0 and self.attempt(Prefetch(buffer, loop, ahead, over, level))

    def parallel(self, loop: str, work: int, usual: int = USUAL) -> bool:
        """Threads share a loop, each of whose iterations is so many simple operations, where sizes
        that are not known are as usual."""
        loops, work = self.loops(loop), max(1, work)
        threads = max(1, self.target.cores)
        known = (x.extent for x in loops if isinstance(x.extent, int))
        enough = max((e // (PIECES * threads) for e in known), default=1)
        inside = max((work_inside(x) for x in loops), key=lambda d: work_at(d, usual), default=1)
        if isinstance(inside, int) or self.target.grid is not None:
            return self.attempt(Parallel(loop, max(1, PIECE // work, enough)))
        while usual > 1 and work > PIECE:  # a smaller one, of which some iterations are a piece
            half = work_at(inside, usual // 2) / work_at(inside, usual)
            work, usual = max(1, int(work * half)), usual // 2
        return self.attempt(Parallel(loop, max(1, PIECE // work), usual))

    def loops(self, name: str) -> list[Loop]:
        return [x for x, _ in find(self.nest, name)]

    def store(self, stage: str) -> Store:
        """The last store of a stage (its update, where it has an init)."""
        return self._stores(stage)[-1][0]

    def first_store(self, stage: str) -> Store:
        """The first store of a stage (its init, where it has one)."""
        return self._stores(stage)[0][0]

    def path(self, stage: str) -> list[Loop]:
        return list(self._stores(stage)[-1][1])

    def own(self, stage: str) -> list[Loop]:
        """The loops around a stage that are its own."""
        return own_loops(self.path(stage), stage)

    def axes(self, stage: str) -> tuple[list[Loop], list[Loop]]:
        """Of the loops of a stage, those over its results and those that are reduced over: no index
        of the results mentions them."""
        written = frozenset().union(*map(D.symbols, self.store(stage).index))
        own = self.own(stage)
        return [p for p in own if p.var in written], [p for p in own if p.var not in written]

    def reduced(self, stage: str) -> list[Loop]:
        return self.axes(stage)[1]

    def _stores(self, stage: str) -> list[tuple[Store, Path]]:
        found = seek(self.nest.body, ("stage", stage))
        return [(x, p) for x, p in found if isinstance(x, Store)]


def cost(v: Value) -> int:
    """How many functions of a value are worth computing once rather than in every reader."""
    return sum(1 for x in walk(v) if isinstance(x, Fn) and cost_of(x.name) >= WORTH_STORING)


def store_reads(x: Store) -> list[Load]:
    vals = [x.value, *(v for i in x.index for v in D.data_values(i))]
    return [r for v in vals for r in loads(v)]


def affine_pair(b: Buffer, index: tuple[Dim, ...], outer: Sym, inner: Sym) -> bool:
    lin = linear_index(b, index)
    o, i = D.coefficient(lin, outer), D.coefficient(lin, inner)
    if o is None or i is None:
        return False
    return D.known_eq(o, i * extent(inner))


def accesses(s: Scheduler, st: Store) -> list[tuple[Buffer, tuple[Dim, ...]]]:
    out = [(s.nest.buffer(st.buffer), st.index)]
    out += [
        (s.nest.buffer(x.source), x.index) for x in store_reads(st) if isinstance(x.source, str)
    ]
    return out


def can_fuse(s: Scheduler, st: Store, outer: Sym, inner: Sym) -> bool:
    """Do both loops walk through memory as one, in every access?"""
    for v in walk(st.value):
        if isinstance(v, Index) and D.symbols(v.dim) & {outer, inner}:
            return False
        if isinstance(v, Load) and any(True for i in v.index for _ in D.data_values(i)):
            data = [d for i in v.index for d in D.data_values(i)]
            if any(d.symbols() & {outer, inner} for d in data):
                return False
    return all(affine_pair(b, i, outer, inner) for b, i in accesses(s, st))


def _strides(s: Scheduler, st: Store, v: Sym) -> list[int] | None:
    """How far apart neighbours along v lie in each read; None where one is not known."""
    found = [D.coefficient(linear_index(b, idx), v) for b, idx in accesses(s, st)[1:]]
    known = [c for c in found if isinstance(c, int)]
    return known if len(known) == len(found) else None


def contiguous(s: Scheduler, st: Store, v: Sym) -> bool:
    """Has v stride one in some read, and one or zero in all of them?"""
    found = _strides(s, st, v) or ()
    return 1 in found and all(c in (0, 1) for c in found)


def affine(s: Scheduler, st: Store, v: Sym) -> bool:
    """Are numbers along v at equal distances in each read, which some read varies along? Lanes
    gather what is not adjacent."""
    return any(_strides(s, st, v) or ())


def points(s: Scheduler, stage: str) -> int:
    """Points of a stage inside one outer iteration."""
    n = 1
    for p in s.path(stage)[1:]:
        n *= p.extent if isinstance(p.extent, int) else USUAL
    return min(n, 1 << 24)


def lanes_for(s: Scheduler, stage: str, wide: int = 16) -> int:
    """Lanes for the inner loop of a map: several registers' worth, to keep the units busy."""
    if s.choices.lanes is not None:
        return s.choices.lanes
    st = s.store(stage)
    dtypes = [s.nest.buffer(b.name).dtype for b, _ in accesses(s, st)]
    bits = max([min(d.bits, 64) for d in dtypes] or [32])
    one = s.target.lanes(max(bits, 32))
    # A polynomial needs registers for itself, and waits for itself unless others run at the same
    # time.
    vectors = min(4, s.target.vector_registers // POLYNOMIAL) if cost(st.value) else 4
    return min(wide, max(one * max(1, vectors), 4))


def vector_loop(s: Scheduler, loop: str, lanes: int) -> str | None:
    """Split off lanes and peel the tail; the loop over vectors (None when it is one vector)."""
    found = s.loops(loop)
    if not found:
        return None
    e = found[0].extent
    if isinstance(e, int) and e <= lanes:
        lanes_and_rest(s, loop)  # peeling may have made copies of it that are shorter
        return None
    s.do(Split(loop, lanes))
    if not (isinstance(e, int) and e % lanes == 0):
        s.attempt(Peel(f"{loop}.0"))
    lanes_and_rest(s, f"{loop}.1")
    return f"{loop}.0"


def lanes_and_rest(s: Scheduler, loop: str) -> bool:
    """A loop as lanes; copies of it whose extent is known at a call only are vectors under a mask
    (of processors; a GPU's lanes are elements of one thread)."""
    unknown = s.target.grid is None and any(not isinstance(x.extent, int) for x in s.loops(loop))
    return (unknown and s.attempt(Vectorize(loop, masked=True))) or s.attempt(Vectorize(loop))


def work_per_point(s: Scheduler, stage: str) -> int:
    """Rough operations per element of a stage's value."""
    v = s.store(stage).value
    return 1 + sum(1 for x in walk(v) if isinstance(x, (Fn, Load))) + 12 * cost(v)
