"""Nest form: how. Explicit loops and placed buffers.

Schedule steps map nests to nests; the emitter accepts nests only. A loop variable is a symbol that
carries its own bounds, so an index function can always be simplified where it stands. A tail is an
extent (`min(12, 128-12*i0)`), never a branch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import is_
from typing import Union

from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.combine import Combine, Combiner
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Load, Rewriter, Value, extent, loads
from tilewright.kernel.axis import Axis, axis_named, first_name
from tilewright.kernel.fences import Acquire, Await, Barrier, Commit, Release, Wait
from tilewright.kernel.group import Buffer, Group, Stage
from tilewright.kernel.guards import copied

# serial    one after the other
# independent  any order or at once, as the language says (programs of a tile kernel's grid), so
#           that nothing has to be proved. How is not decided yet: they run one after the other
# parallel  any order, on several threads; `grain` iterations are one piece of work
# unroll    written out
# lane      the lanes of one vector
# tensor    the loops of one declared instruction (kernel/intrinsic.py), which the outermost names;
#           they say what it computes and run one after the other where there is no such instruction
# library   with all inside, a part of what one call of a library computes (kernel/library.py); such
#           loops are outermost, and run one after the other where there is no library
# block.*   the blocks of a grid, in any order
# thread.*  the threads of a block (the rules are in kernel/threads.py)
BLOCKS = ("block.x", "block.y", "block.z")
THREADS = ("thread.x", "thread.y", "thread.z")
PLAIN = ("serial", "independent", "parallel", "unroll", "lane", "tensor", "library")
KINDS = (*PLAIN, *BLOCKS, *THREADS)
ANY_ORDER = ("independent", "parallel")
# shared: one per block of threads; counter: global memory, zero before and after every launch, by
# which blocks know that they are the last (steps/finish_last.py); stack, heap, let: local, of legal
# nests (memory.py and hoist.py of kernel/legal/); the others are explained at group.Buffer
NEST_ROLES = ("product", "scan", "gathered", "described", "specialised")
SCOPES = ("in", "out", "local", "register", "stack", "heap", "let", "shared", "counter", "memory")

# What an Atomic does to its cell, and how it is ordered with the rest of its thread's memory.
ATOMICS = ("add", "and", "or", "xor", "max", "min", "xchg", "cas", "load")
ORDERS = ("relaxed", "acquire", "release", "acq_rel")

# Keys by which statements are found: ("loop", its name), ("stage", its name), and these.
Mark = tuple[str, str]
BRANCH: Mark = ("branch", "")
TENSOR: Mark = ("tensor", "")
WAITS: Mark = ("waits", "")
UNROLLED: Mark = ("unrolled", "")  # lane loops too, where the extent is no constant

# Pragmas of legal nests (kernel/legal/). lanes: how many a lane loop has, if its extent is no
# constant. ragged: fewer of them may exist, but one does. interleave: the stores of an unrolled
# loop fill the places between lanes. masked: lanes may choose differently.
LANES, RAGGED, INTERLEAVE, MASKED = "lanes", "ragged", "interleave", "masked"
# Of an ordered update: what follows each other mostly goes to one place (kernel/legal/rows.py).
RUNS = "runs"


class Block:
    """A statement with statements inside."""

    @cached_property
    def marks(self) -> frozenset[Mark]:
        """Of the statement and of all inside. Nests before and after a step share most of their
        statements, so a search visits only those that contain what it looks for: see `seek`."""
        assert isinstance(self, (Loop, If, While))
        found = set(own_marks(self))
        for body in bodies(self):
            for x in body:
                found.update(marks(x))
        return frozenset(found)

    @cached_property
    def instructions(self) -> tuple[Loop, ...]:
        """The outermost tensor loops, itself or inside."""
        assert isinstance(self, (Loop, If, While))
        if isinstance(self, Loop) and TENSOR in own_marks(self):
            return (self,)
        return tuple(s for body in bodies(self) for x in body for s in instructions(x))

    @cached_property
    def sources(self) -> frozenset[str]:
        """The buffers that the statement and all inside read."""
        assert isinstance(self, (Loop, If, While))
        inside = (sources(x) for body in bodies(self) for x in body)
        return _own_sources(self).union(*inside)

    @cached_property
    def mentions(self) -> frozenset[str]:
        """The buffers that the statement and all inside read, write, allocate or prefetch."""
        assert isinstance(self, (Loop, If, While))
        inside = (mentions(x) for body in bodies(self) for x in body)
        return _own_sources(self).union(*inside)


@dataclass(frozen=True)
class Loop(Block):
    var: Sym
    kind: str
    body: tuple[Stmt, ...]
    grain: int = 1
    instruction: str = ""  # of the outermost tensor loop
    pragmas: tuple[tuple[str, int], ...] = ()  # hints for what comes after (steps/pragma.py)
    of: Axis | None = None  # what it runs along, where its name does not say so

    @property
    def name(self) -> str:
        return self.var.name

    @property
    def extent(self) -> Dim:
        return extent(self.var)

    @property
    def axis(self) -> Axis:
        """The stage that it belongs to, and the axis of this that it, or a part of it, is."""
        return self.of or axis_named(self.name)

    def around(self, body: tuple[Stmt, ...]) -> Loop:
        """The same loop with another body."""
        return Loop(self.var, self.kind, body, self.grain, self.instruction, self.pragmas, self.of)


@dataclass(frozen=True)
class Store:
    """buffer[index] = value, or buffer[index] combine= value.

    An asynchronous store is a copy that is only issued: it belongs to the next Commit of its
    thread and has arrived after the Wait for that. One thread alone sees no difference. Nor does it
    of an atomic addition: blocks and threads may add to one cell, in any order.
    """

    stage: str
    buffer: str
    index: tuple[Dim, ...]
    value: Value
    combine: Combine | None = None
    asynchronous: bool = False
    atomic: bool = False

    @property
    def function(self) -> str | None:
        """The scalar function that combines, where `untuple` has taken combiners apart."""
        assert not isinstance(self.combine, Combiner)
        return self.combine


@dataclass(frozen=True)
class Alloc:
    """The buffer lives from here to the end of the enclosing body."""

    buffer: str


@dataclass(frozen=True)
class Prefetch:
    """Prefetches the cache line of an element, maybe outside its buffer, and those that follow it,
    `lines` in all, into the first cache or only into that of a later `level`; reads nothing."""

    load: Load
    lines: int = 1
    level: int = 1


@dataclass(frozen=True)
class If(Block):
    """One of two bodies. Inside lanes each lane chooses for itself; the condition is read once,
    before either body."""

    condition: Value
    then: tuple[Stmt, ...]
    other: tuple[Stmt, ...] = ()


@dataclass(frozen=True)
class While(Block):
    """The condition is read again before every iteration.

    With `waits`, the loop polls memory that another iteration of the parallel loop around it
    changes: all iterations of that loop have to make progress (runtime/concurrent_ir.py). Such a
    loop ends with its condition still true where no iteration is left that could change it.
    """

    name: str
    condition: Value
    body: tuple[Stmt, ...]
    waits: bool = False


@dataclass(frozen=True)
class Atomic:
    """buffer[index] = kind(buffer[index], value), as one indivisible step of an argument's memory;
    what was there before goes to `result`, a cell of a local buffer.

    "cas" writes the value only where the cell holds `compare`, bit by bit. "load" writes nothing.
    """

    stage: str
    kind: str
    buffer: str
    index: tuple[Dim, ...]
    value: Value
    compare: Value | None = None
    result: tuple[str, tuple[Dim, ...]] | None = None
    order: str = "acq_rel"


@dataclass(frozen=True)
class Report:
    """Reports some values to the caller: always ("print"), or where a condition does not hold
    ("assert"). `site` identifies the report; the caller knows what it means."""

    kind: str
    site: int
    values: tuple[Value, ...] = ()
    condition: Value | None = None


Fence = Union[Barrier, Commit, Wait, Acquire, Release, Await]
Stmt = Union[Loop, Store, Alloc, Fence, Prefetch, If, While, Atomic, Report]
# What orders the threads of a block, and computes nothing.
FENCES = (Barrier, Commit, Wait, Acquire, Release, Await)
BRANCHES = (If, While, Atomic, Report)  # what steps do not move anything across


@dataclass(frozen=True)
class Nest:
    name: str
    buffers: tuple[Buffer, ...]
    body: tuple[Stmt, ...]
    dims: tuple[Sym, ...] = ()
    precision: str = "reassociate"  # what steps may do to sums of floats; see group.Group
    # What a stage, a loop or an argument is, as the kernel's author said it, where its statements
    # do not show it: a "product" of tiles, a loop of a "scan", memory that was "described" as an
    # array to be read in boxes, a loop whose copies a "specialised" warp should issue.
    roles: tuple[tuple[str, str], ...] = ()
    # Why the default schedule left sums of products to plain loops, where it did.
    unscheduled: str = field(default="", compare=False)

    def buffer(self, name: str) -> Buffer:
        for b in self.buffers:
            if b.name == name:
                return b
        raise Invalid(f"nest {self.name} has no buffer {name}")

    def are(self, role: str) -> set[str]:
        """The stages or loops that have a role."""
        return {name for what, name in self.roles if what == role}

    def with_role(self, of: str, name: str) -> Nest:
        """A stage has the role that another one has, if it has one."""
        more = tuple((role, name) for role, stage in self.roles if stage == of)
        return replace(self, roles=(*self.roles, *more)) if more else self

    def with_buffer(self, b: Buffer) -> Nest:
        if any(x.name == b.name for x in self.buffers):
            return replace(self, buffers=tuple(b if x.name == b.name else x for x in self.buffers))
        return replace(self, buffers=(*self.buffers, b))

    def without_buffer(self, name: str) -> Nest:
        return replace(self, buffers=tuple(b for b in self.buffers if b.name != name))


# What is scheduled: a group, whose naive nest follows from its stages, or the naive nest itself (of
# a tile kernel).
Work = Union[Group, Nest]


def start(g: Work) -> Nest:
    """The naive nest: every stage its own loops and a whole buffer. Runnable, never fast."""
    if isinstance(g, Nest):
        return g
    body: list[Stmt] = []
    for s in g.stages:
        b = g.buffer(s.name)
        if b.scope == "local":
            body.append(Alloc(b.name))
        body.extend(stage_loops(s, b))
    dims = tuple(sorted(g.dim_symbols(), key=lambda x: x.name))
    return Nest(g.name, g.buffers, tuple(body), dims, g.precision)


def stage_loops(s: Stage, b: Buffer) -> list[Stmt]:
    out: list[Stmt] = []
    if s.init is not None:
        axes = tuple(D.the_sym(D.var(first_name(s.name, k), d)) for k, d in enumerate(b.shape))
        out.append(wrap(axes, Store(s.name, b.name, tuple(map(D.as_int, axes)), s.init)))
    store = Store(s.name, b.name, s.where, s.value, s.combine)
    if s.runs and s.axes:
        first, *others = (*s.axes, *s.raxes)
        out.append(Loop(first, "serial", (wrap(tuple(others), store),), pragmas=((RUNS, 1),)))
        return out
    out.append(wrap((*s.axes, *s.raxes), store))
    return out


def wrap(axes: tuple[Sym, ...], s: Stmt) -> Stmt:
    for a in reversed(axes):
        s = Loop(a, "serial", (s,))
    return s


# ---- tree tools

Path = tuple[Loop, ...]


def bodies(s: Stmt) -> tuple[tuple[Stmt, ...], ...]:
    """The statements inside a statement."""
    if isinstance(s, (Loop, While)):
        return (s.body,)
    return (s.then, s.other) if isinstance(s, If) else ()


def with_bodies(s: Stmt, inside: Sequence[tuple[Stmt, ...]]) -> Stmt:
    """The same statement with other statements inside."""
    if isinstance(s, Loop):
        return s.around(inside[0])
    if isinstance(s, While):
        return While(s.name, s.condition, inside[0], s.waits)
    return If(s.condition, inside[0], inside[1]) if isinstance(s, If) else s


def walk(body: tuple[Stmt, ...], path: Path = ()) -> Iterator[tuple[Stmt, Path]]:
    """Every statement with the loops around it, outermost first."""
    out: list[tuple[Stmt, Path]] = []
    _walk(body, path, out)
    return iter(out)


def _walk(body: tuple[Stmt, ...], path: Path, out: list[tuple[Stmt, Path]]) -> None:
    # A list, not generators inside generators: nests are walked a dozen times for every step.
    for s in body:
        out.append((s, path))
        if isinstance(s, Loop):
            _walk(s.body, (*path, s), out)
        elif isinstance(s, (If, While)):
            for inside in bodies(s):
                _walk(inside, path, out)


def own_marks(s: Stmt) -> tuple[Mark, ...]:
    if isinstance(s, Store):
        return (("stage", s.stage),)
    if isinstance(s, Loop):
        name = ("loop", s.name)
        if s.kind == "tensor" or s.instruction:
            return name, TENSOR
        if s.kind in ("unroll", "lane") and not isinstance(s.extent, int):
            return name, UNROLLED
        return (name,)
    if isinstance(s, While) and s.waits:
        return BRANCH, WAITS
    return (BRANCH,) if isinstance(s, BRANCHES) else ()


def marks(s: Stmt) -> Collection[Mark]:
    """Of a statement and of all inside."""
    return s.marks if isinstance(s, Block) else own_marks(s)


def seek(body: tuple[Stmt, ...], mark: Mark, path: Path = ()) -> list[tuple[Stmt, Path]]:
    """The statements of a mark with the loops around them, as `walk` finds them."""
    out: list[tuple[Stmt, Path]] = []
    for s in body:
        if mark in marks(s):
            if mark in own_marks(s):
                out.append((s, path))
            for inside in bodies(s):
                out += seek(inside, mark, (*path, s) if isinstance(s, Loop) else path)
    return out


def holds(n: Nest, mark: Mark) -> bool:
    return any(mark in marks(s) for s in n.body)


def instructions(s: Stmt) -> tuple[Loop, ...]:
    """The outermost tensor loops of a statement. Nests before and after a step share those that the
    step left alone."""
    return s.instructions if isinstance(s, Block) and TENSOR in s.marks else ()


def find(n: Nest, name: str) -> list[tuple[Loop, Path]]:
    return [(s, p) for s, p in seek(n.body, ("loop", name)) if isinstance(s, Loop)]


def own_loops(path: Iterable[Loop], stage: str) -> list[Loop]:
    """Those of some loops that belong to a stage."""
    return [p for p in path if p.axis.stage == stage]


def loop_names(n: Nest) -> list[str]:
    return list(dict.fromkeys(s.name for s, _ in walk(n.body) if isinstance(s, Loop)))


def transform(
    body: tuple[Stmt, ...], f: Callable[[Stmt], tuple[Stmt, ...]], at: Mark | None = None
) -> tuple[Stmt, ...]:
    """Rebuild bottom up; what is left without a body disappears. With a mark, only statements that
    have it or hold some that do are looked at."""
    out: list[Stmt] = []
    for s in body:
        if at is not None and at not in marks(s):
            out.append(s)
            continue
        if isinstance(s, (Loop, If, While)):
            before = bodies(s)
            inside = tuple(transform(x, f, at) for x in before)
            if not any(inside):
                continue
            if not all(map(_same, inside, before)):
                s = with_bodies(s, inside)
        out.extend(f(s))
    return tuple(out)


def _same(a: tuple[Stmt, ...], b: tuple[Stmt, ...]) -> bool:
    return len(a) == len(b) and all(map(is_, a, b))


def on_loops(n: Nest, name: str, f: Callable[[Loop], tuple[Stmt, ...]]) -> Nest:
    go = lambda s: f(s) if isinstance(s, Loop) and s.name == name else (s,)  # noqa: E731
    return replace(n, body=transform(n.body, go, ("loop", name)))


_NOTHING_INSIDE = (Alloc, *FENCES)
OnAccess = Callable[[str, tuple[Dim, ...]], "tuple[str, tuple[Dim, ...]]"]


def substitute(
    s: Stmt,
    table: Mapping[Sym, Dim],
    on_load: Callable[[Load], Value] | None = None,
    on_store: OnAccess | None = None,
    only: str | None = None,
) -> Stmt:
    """Substitute symbols in a statement.

    Inner loops whose bounds mention them get a new variable of the same name. `only` is the one
    buffer whose accesses change, where it is known: statements without it stay what they are.
    """
    return _substituted(s, Rewriter(table, on_load, only=only), on_store)


def substitute_all(
    body: Iterable[Stmt],
    table: Mapping[Sym, Dim],
    on_load: Callable[[Load], Value] | None = None,
    on_store: OnAccess | None = None,
    only: str | None = None,
) -> tuple[Stmt, ...]:
    """The same in several statements. What their values share is rewritten once."""
    new = Rewriter(table, on_load, only=only)
    return tuple(_substituted(s, new, on_store) for s in body)


def _substituted(s: Stmt, new: Rewriter, on_store: OnAccess | None) -> Stmt:
    if isinstance(s, _NOTHING_INSIDE):
        return s
    if new.only is not None and not new.table and new.only not in mentions(s):
        return s
    if isinstance(s, Loop):
        e = new.dim(s.extent)
        if e is not s.extent and e != s.extent:
            v = D.var(s.var.name, e)
            new = Rewriter({**new.table, s.var: v}, new.on_load, only=new.only)
            s = replace(s, var=D.the_sym(v) if D.is_sym(v) else s.var)
        return s.around(tuple([_substituted(x, new, on_store) for x in s.body]))

    def cell(buffer: str, index: tuple[Dim, ...]) -> tuple[str, tuple[Dim, ...]]:
        at = tuple([new.dim(i) for i in index])
        return on_store(buffer, at) if on_store is not None else (buffer, at)

    if isinstance(s, Store):
        buf, idx = cell(s.buffer, s.index)
        value = new(s.value)
        copies = s.asynchronous and copied(value) is not None  # what computes cannot be a copy
        return Store(s.stage, buf, idx, value, s.combine, copies, s.atomic)
    if isinstance(s, Prefetch):
        found = new(s.load)
        assert isinstance(found, Load), f"{s} prefetches what is no longer read"
        return replace(s, load=found)
    if isinstance(s, Atomic):
        buf, idx = cell(s.buffer, s.index)
        compare = None if s.compare is None else new(s.compare)
        result = None if s.result is None else cell(*s.result)
        return Atomic(s.stage, s.kind, buf, idx, new(s.value), compare, result, s.order)
    if isinstance(s, Report):
        condition = None if s.condition is None else new(s.condition)
        return Report(s.kind, s.site, tuple(map(new, s.values)), condition)
    s = replace(s, condition=new(s.condition))
    inside = [tuple(_substituted(x, new, on_store) for x in body) for body in bodies(s)]
    return with_bodies(s, inside)


def stages_in(s: Stmt) -> set[str]:
    if isinstance(s, (Store, Atomic)):
        return {s.stage}
    return set().union(*(stages_in(x) for body in bodies(s) for x in body))


def store_loads(s: Store) -> list[Load]:
    """What a store reads, in its value and its indices; not the implicit read of a combine."""
    vals = [s.value, *(v for i in s.index for v in D.data_values(i))]
    return [x for v in vals for x in loads(v)]


def own_values(s: Stmt) -> list[Value]:
    """The values that a statement itself computes, not those of the statements inside; what it
    reads to know where it writes, or how often it runs, included."""
    if isinstance(s, Store):
        return [s.value, *_data(s.index)]
    if isinstance(s, Atomic):
        compare = () if s.compare is None else (s.compare,)
        result = () if s.result is None else s.result[1]
        return [s.value, *compare, *_data((*s.index, *result))]
    if isinstance(s, Report):
        return [*s.values, *(() if s.condition is None else (s.condition,))]
    if isinstance(s, (If, While)):
        return [s.condition]
    return list(D.data_values(s.extent)) if isinstance(s, Loop) else []


def _data(index: tuple[Dim, ...]) -> Iterator[Value]:
    return (v for i in index for v in D.data_values(i))


def _own_sources(s: Stmt) -> frozenset[str]:
    found = [v.sources for v in own_values(s)]
    one = found[0] if len(found) == 1 else frozenset().union(*found)
    return one  # type: ignore[return-value]  # nests read buffers by name


def sources(s: Stmt) -> frozenset[str]:
    """The buffers that a statement, and those inside, read."""
    return s.sources if isinstance(s, Block) else _own_sources(s)


def mentions(s: Stmt) -> frozenset[str]:
    """The buffers that a statement, and those inside, read, write, allocate or prefetch."""
    if isinstance(s, Block):
        return s.mentions
    if isinstance(s, Prefetch):
        return s.load.sources  # type: ignore[return-value]
    own = _own_sources(s)
    if isinstance(s, (Store, Atomic, Alloc)):
        own |= {s.buffer}
    return own | {s.result[0]} if isinstance(s, Atomic) and s.result is not None else own


def reads(s: Stmt) -> list[Load]:
    """What a statement, and those inside, read."""
    own = [x for v in own_values(s) for x in loads(v)]
    return own + [x for body in bodies(s) for b in body for x in reads(b)]


def writes(body: tuple[Stmt, ...]) -> set[str]:
    """The buffers that statements, and those inside, write."""
    found = [s for s, _ in walk(body) if isinstance(s, (Store, Atomic))]
    results = {s.result[0] for s in found if isinstance(s, Atomic) and s.result is not None}
    return results | {s.buffer for s in found}
