"""Invariants of groups and nests, as named checks; `verify` runs them (see ir.check).

All of them hold for every prefix of a trace; `incomplete` checks what holds of a complete schedule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.check import CheckFailed, Fault, check, level, verify
from tilewright.ir.dim import Dim, Int, Sym
from tilewright.ir.expr import Load, Reduce, Value, extent, loads, walk
from tilewright.ir.maps import Map
from tilewright.kernel.atomic import unlike_atomic
from tilewright.kernel.axis import first_name
from tilewright.kernel.group import ANYWHERE, ROLES, Buffer, Group, Stage
from tilewright.kernel.guards import copied
from tilewright.kernel.intrinsic import tensor_faults
from tilewright.kernel.nest import (
    ANY_ORDER,
    ATOMICS,
    BLOCKS,
    KINDS,
    NEST_ROLES,
    ORDERS,
    SCOPES,
    THREADS,
    WAITS,
    Alloc,
    Atomic,
    If,
    Loop,
    Nest,
    Path,
    Prefetch,
    Report,
    Stmt,
    Store,
    Wait,
    While,
    bodies,
    own_values,
    reads,
    store_loads,
    with_bodies,
    writes,
)
from tilewright.kernel.nest import walk as walk_nest
from tilewright.kernel.text import group_text, nest_lines, nest_text
from tilewright.kernel.threads import thread_faults
from tilewright.kernel.variables import free_vars

__all__ = ["CheckFailed", "incomplete", "verify"]

# Lines of a nest shown above and below a fault.
AROUND = 4


def _nest_around(n: Nest, subject: Any) -> str:
    """The lines around a statement, which is marked; all lines where the fault has no place."""
    said = nest_lines(n)
    lines = [line for line, _ in said]
    at = next((k for k, (_, s) in enumerate(said) if s is not None and s is subject), None)
    if at is None:
        return "\n".join(lines)
    lines[at] = ">" + lines[at][1:]
    lo, hi = max(0, at - AROUND), min(len(lines), at + AROUND + 1)
    return "\n".join([*(["…"] if lo else []), *lines[lo:hi], *(["…"] if hi < len(lines) else [])])


level("group", Group, group_text)
level("nest", Nest, nest_text, _nest_around)


# ---- both


def _buffer_faults(buffers: Sequence[Buffer]) -> Iterator[Fault]:
    for name, count in Counter(b.name for b in buffers).items():
        if count > 1:
            yield Fault(f"two buffers are called {name}")
    for b in buffers:
        if b.scope not in SCOPES:
            yield Fault(f"{b.name} has scope {b.scope!r}; the scopes are {', '.join(SCOPES)}")
        if b.scope == "register" and any(isinstance(d, Int) for d in b.shape):
            yield Fault(f"the register buffer {b.name} has a size that is not a constant")
        if b.pointer and b.scope not in ("in", "out", "memory"):
            yield Fault(f"{b.name} is a pointer and {b.scope}: pointers are arguments")
        if b.pointer != (b.shape == ANYWHERE) or (b.scope == "memory" and not b.pointer):
            yield Fault(f"{b.name} is {b.scope} and has shape {b.shape}: only pointers have none")
        if b.layout is not None:
            yield from _layout_faults(b, b.layout)


def _layout_faults(b: Buffer, by: Map) -> Iterator[Fault]:
    if len(by.target) != len(b.shape):
        yield Fault(f"{b.name} has {len(b.shape)} axes, its layout {by} has {len(by.target)}", b)
        return
    try:
        by.inverse()
    except Invalid as wrong:
        yield Fault(f"{b.name} cannot be laid out by {by}: {wrong.what}", b)


def _load_faults(table: dict[str, Buffer], found: Sequence[Load], subject: Any) -> Iterator[Fault]:
    for x in found:
        b = table.get(x.source) if isinstance(x.source, str) else None
        if b is None:
            yield Fault(f"{x!r} reads what is no buffer", subject)
        elif len(x.index) != len(b.shape):
            yield Fault(
                f"{x!r} has {len(x.index)} indices, {b.name} has {len(b.shape)} axes", subject
            )
        elif x.dtype is not b.dtype:
            yield Fault(f"{x!r} is read as {x.dtype}, {b.name} holds {b.dtype}", subject)


def _unbound(found: frozenset[Sym] | set[Sym], bound: set[Sym]) -> list[str]:
    """Names without a meaning here; a name bound with other bounds is one too."""
    names = {s.name for s in bound}
    return sorted(
        s.name + (" (with other bounds)" if s.name in names else "") for s in found - bound
    )


def _symbols(value: Value, index: Sequence[Dim]) -> set[Sym]:
    return set(value.symbols()).union(*(D.symbols(i) for i in index))


# ---- groups


@check("group", "buffers-sound")
def _group_buffers(g: Group) -> Iterator[Fault]:
    """Distinct names, known scopes; every buffer but an input is the result of one stage."""
    yield from _buffer_faults(g.buffers)
    written = Counter(s.name for s in g.stages)
    for b in g.buffers:
        want = 0 if b.scope == "in" else 1
        if written[b.name] != want:
            yield Fault(
                f"{b.scope} {b.name} is computed by {written[b.name]} stages, not {want}", b
            )
    for name in written:
        if all(b.name != name for b in g.buffers):
            yield Fault(f"stage {name} has no buffer")


@check("group", "roles-known")
def _group_roles(g: Group) -> Iterator[Fault]:
    """A role is scores, weights, sums or end, once: weights of any stage, the others of one that
    reduces something."""
    for role, n in Counter(role for role, _ in g.roles).items():
        if role not in ROLES or n > 1:
            yield Fault(f"{n} stages are {role}; one each may be {', '.join(ROLES)}")
    reduces = {s.name for s in g.stages if s.raxes}
    known = {s.name for s in g.stages}
    for role, name in g.roles:
        if name not in known:
            yield Fault(f"{name} cannot be {role}: there is no such stage")
        elif role != "weights" and name not in reduces:
            yield Fault(f"{name} cannot be {role}: it is no stage that reduces something")


@check("nest", "roles-known")
def _nest_roles(n: Nest) -> Iterator[Fault]:
    """A role is one that a kernel's author can say (NEST_ROLES)."""
    for role, name in n.roles:
        if role not in NEST_ROLES:
            yield Fault(f"{name} is {role}; it may be {' or '.join(NEST_ROLES)}")


@check("group", "symbols-bound")
def _group_symbols(g: Group) -> Iterator[Fault]:
    """A stage mentions its own axes and dimensions only; its init the axes of its buffer."""
    dims = g.dim_symbols()
    for s in g.stages:
        lost = _unbound(_symbols(s.value, s.where), {*s.axes, *s.raxes} | dims)
        if s.init is not None:
            shape = g.buffer(s.name).shape
            own = {D.the_sym(D.var(first_name(s.name, k), d)) for k, d in enumerate(shape)}
            lost += _unbound(s.init.symbols(), own | dims)
        for a in (*s.axes, *s.raxes):
            lost += _unbound(D.symbols(extent(a)), dims)
        if lost:
            yield Fault(f"stage {s.name} mentions {', '.join(lost)}, which nothing binds", s)


@check("group", "accesses-agree")
def _group_accesses(g: Group) -> Iterator[Fault]:
    """Indices have the buffer's rank, values its dtype; reductions are stages, never values."""
    table = {b.name: b for b in g.buffers}
    for s in g.stages:
        b = table.get(s.name)
        if b is None:
            continue
        if len(s.where) != len(b.shape):
            yield Fault(
                f"{s.name} is written with {len(s.where)} indices, it has {len(b.shape)} axes", s
            )
        for v in (s.value, *((s.init,) if s.init is not None else ())):
            if v.dtype is not b.dtype:
                yield Fault(f"stage {s.name} computes {v.dtype}, its buffer holds {b.dtype}", s)
            if any(isinstance(x, Reduce) for x in walk(v)):
                yield Fault(f"stage {s.name} has a reduction inside its value", s)
        yield from _load_faults(table, _stage_loads(s), s)


@check("group", "stages-in-order")
def _group_order(g: Group) -> Iterator[Fault]:
    """A stage reads inputs and earlier stages; itself only if it is ordered."""
    done = {b.name for b in g.buffers if b.scope == "in"}
    for s in g.stages:
        seen = done | ({s.name} if s.ordered else set())
        for x in _stage_loads(s):
            if x.source not in seen:
                yield Fault(f"stage {s.name} reads {x!r} before it is computed", s)
        done.add(s.name)


@check("group", "stages-whole")
def _group_whole(g: Group) -> Iterator[Fault]:
    """Maps and reductions cover their buffer point by point; a reduction says how and from what."""
    for s in g.stages:
        if s.raxes and (s.combine is None or s.init is None):
            yield Fault(f"stage {s.name} reduces without a combine or an init", s)
        if s.ordered:
            continue
        if s.where != tuple(D.as_int(a) for a in s.axes):
            yield Fault(f"stage {s.name} is not written at its own axes", s)
        shape = g.buffer(s.name).shape
        if len(shape) == len(s.axes) and not all(
            D.known_eq(extent(a), d) for a, d in zip(s.axes, shape)
        ):
            yield Fault(f"the axes of stage {s.name} do not cover its buffer", s)


def _stage_loads(s: Stage) -> list[Load]:
    vals = [s.value, *((s.init,) if s.init is not None else ())]
    vals += [v for w in s.where for v in D.data_values(w)]
    return [x for v in vals for x in loads(v)]


# ---- nests


def _stores(n: Nest) -> Iterator[tuple[Store, Path]]:
    return ((s, p) for s, p in walk_nest(n.body) if isinstance(s, Store))


def _loops(n: Nest) -> Iterator[tuple[Loop, Path]]:
    return ((s, p) for s, p in walk_nest(n.body) if isinstance(s, Loop))


@check("nest", "buffers-sound")
def _nest_buffers(n: Nest) -> Iterator[Fault]:
    yield from _buffer_faults(n.buffers)


@check("nest", "loops-sound")
def _nest_loops(n: Nest) -> Iterator[Fault]:
    """Known kinds, variables from 0, names unique on every path."""
    for s, p in _loops(n):
        if s.kind not in KINDS:
            yield Fault(f"{s.name} is {s.kind}; the kinds are {', '.join(KINDS)}", s)
        if s.var.lo != 0 or s.var.hi is None:
            yield Fault(f"{s.name} does not run from 0 to an extent", s)
        if any(q.name == s.name for q in p):
            yield Fault(f"{s.name} is inside another loop of that name", s)
        if not s.body:
            yield Fault(f"{s.name} has no body", s)


@check("nest", "symbols-bound")
def _nest_symbols(n: Nest) -> Iterator[Fault]:
    """Every symbol is a dimension or the variable of a loop around, with the same bounds."""
    dims = set(n.dims)
    for s, p in walk_nest(n.body):
        bound = dims | {q.var for q in p}
        if isinstance(s, Alloc):
            lost = _unbound(set().union(*(D.symbols(d) for d in n.buffer(s.buffer).shape)), dims)
        else:
            hollow = with_bodies(s, [()] * len(bodies(s)))
            lost = _unbound(free_vars(hollow), bound)
        if lost:
            yield Fault(f"{', '.join(lost)} is bound by no loop around", s)


@check("nest", "accesses-agree")
def _nest_accesses(n: Nest) -> Iterator[Fault]:
    """Indices have the buffer's rank, values its dtype; inputs are only read."""
    table = {b.name: b for b in n.buffers}
    for s, _ in _stores(n):
        b = table.get(s.buffer)
        if b is None:
            yield Fault(f"{s.stage} writes {s.buffer}, which is no buffer", s)
            continue
        if b.scope == "in":
            yield Fault(f"{s.stage} writes the input {b.name}", s)
        if len(s.index) != len(b.shape):
            yield Fault(
                f"{b.name} is written with {len(s.index)} indices, it has {len(b.shape)} axes", s
            )
        if s.value.dtype is not b.dtype:
            yield Fault(f"{s.stage} computes {s.value.dtype}, {b.name} holds {b.dtype}", s)
        if any(isinstance(x, Reduce) for x in walk(s.value)):
            yield Fault(f"{s.stage} has a reduction inside its value", s)
        if s.asynchronous and (s.combine is not None or copied(s.value) is None):
            yield Fault(f"the asynchronous {s.stage} is not a copy", s)
        if s.atomic and (what := unlike_atomic(n, s)):
            yield Fault(what, s)
    for s, _ in walk_nest(n.body):
        yield from _load_faults(table, [x for v in own_values(s) for x in loads(v)], s)
        if isinstance(s, Prefetch):
            yield from _load_faults(table, [s.load], s)
        elif isinstance(s, Wait) and s.pending < 0:
            yield Fault(f"nothing can wait for {s.pending} groups to be left", s)


@check("nest", "buffers-live")
def _nest_live(n: Nest) -> Iterator[Fault]:
    """Memory is allocated once, before its first use, in a body around every use."""
    table = {b.name: b for b in n.buffers}
    counts = Counter(s.buffer for s, _ in walk_nest(n.body) if isinstance(s, Alloc))

    def body(stmts: tuple[Stmt, ...], live: set[str]) -> Iterator[Fault]:
        live = set(live)
        for s in stmts:
            if isinstance(s, Alloc):
                b = table.get(s.buffer)
                if b is None or b.scope in ("in", "out", "memory"):
                    yield Fault(f"{s.buffer} is allocated but is an argument or unknown", s)
                if s.buffer in live:
                    yield Fault(f"{s.buffer} is allocated while it is live", s)
                live.add(s.buffer)
            elif isinstance(s, Prefetch) and s.load.source not in live:
                yield Fault(f"{s.load!r} is prefetched where it is not allocated", s)
            hollow = with_bodies(s, [()] * len(bodies(s)))
            for name in sorted(writes((hollow,)) | {str(x.source) for x in reads(hollow)}):
                if name not in live:
                    yield Fault(f"{_name(s)} uses {name}, which is not allocated here", s)
            for inside in bodies(s):
                yield from body(inside, live)

    given = ("in", "out", "memory")
    yield from body(n.body, {b.name for b in n.buffers if b.scope in given})
    for b in n.buffers:
        if b.scope not in given and not counts[b.name]:
            yield Fault(f"{b.name} is never allocated")


@check("nest", "parallel-outermost")
def _nest_parallel(n: Nest) -> Iterator[Fault]:
    for s, p in _loops(n):
        if s.kind in ANY_ORDER and p:
            yield Fault(f"{s.kind} {s.name} is inside {p[-1].name}", s)
        elif s.kind in ANY_ORDER and not any(x is s for x in n.body):
            yield Fault(f"{s.kind} {s.name} is inside a branch", s)
        if s.kind == "parallel" and s.grain < 1:
            yield Fault(f"parallel {s.name} has grain {s.grain}", s)
        if s.kind == "parallel" and s.grain > 1 and WAITS in s.marks:
            yield Fault(f"iterations of {s.name} wait for each other, and its grain is not 1", s)


@check("nest", "lanes-simple")
def _nest_lanes(n: Nest) -> Iterator[Fault]:
    """Unrolled and lane loops have a constant bound; lanes hold stores and unrolled loops only."""
    for s, _ in _loops(n):
        if s.kind not in ("unroll", "lane"):
            continue
        if D.bounds(s.extent)[1] >= D.INF:
            yield Fault(f"{s.kind} {s.name} has extent {s.extent}, which has no constant bound", s)
        if s.kind == "lane":
            for x, _ in walk_nest(s.body):
                if isinstance(x, Alloc):
                    yield Fault(f"{x.buffer} is allocated inside the lanes {s.name}", x)
                if isinstance(x, Loop) and s.var in D.symbols(x.extent):
                    yield Fault(f"the extent of {x.name} differs between the lanes {s.name}", x)
                if isinstance(x, Loop) and x.kind != "unroll":
                    yield Fault(f"{x.kind} {x.name} is inside the lanes {s.name}", x)
                if isinstance(x, While):
                    yield Fault(f"while {x.name} is inside the lanes {s.name}", x)


@check("nest", "branches-sound")
def _nest_branches(n: Nest) -> Iterator[Fault]:
    """Conditions are bools, branches have bodies; threads of a block do not report."""
    for s, p in walk_nest(n.body):
        if isinstance(s, (If, While)):
            if not s.condition.dtype.is_bool:
                yield Fault(f"the condition of {_name(s)} is {s.condition.dtype}, not bool", s)
            if not any(bodies(s)):
                yield Fault(f"{_name(s)} has no body", s)
        if isinstance(s, Report):
            if s.kind not in ("print", "assert"):
                yield Fault(f"a report is print or assert, not {s.kind}", s)
            elif (s.kind == "assert") != (s.condition is not None):
                has = "has no condition" if s.kind == "assert" else "has a condition"
                yield Fault(f"{_name(s)} {has}", s)
            elif s.condition is not None and not s.condition.dtype.is_bool:
                yield Fault(f"the condition of {_name(s)} is {s.condition.dtype}, not bool", s)
        bound = next((q for q in p if q.kind in (*BLOCKS, *THREADS)), None)
        if bound is not None and isinstance(s, Report):
            yield Fault(f"{_name(s)} is inside {bound.kind} {bound.name}: threads have none", s)


@check("nest", "atomics-sound")
def _nest_atomics(n: Nest) -> Iterator[Fault]:
    """Atomics work on arguments or memory that threads share, on what machines can exchange;
    results go to other memory."""
    table = {b.name: b for b in n.buffers}
    for s, _ in walk_nest(n.body):
        if isinstance(s, Atomic):
            yield from (Fault(what, s) for what in _atomic_faults(table, s))


def _atomic_faults(table: dict[str, Buffer], s: Atomic) -> Iterator[str]:
    b = table.get(s.buffer)
    if s.kind not in ATOMICS or s.order not in ORDERS:
        kinds, orders = ", ".join(ATOMICS), ", ".join(ORDERS)
        yield f"{s.stage} is {s.kind} {s.order}; the kinds are {kinds}, the orders {orders}"
    if (s.kind == "cas") != (s.compare is not None):
        yield f"{s.stage} is {s.kind}: cas and nothing else compares"
    if b is None or b.scope not in ("out", "memory", "shared", "counter"):
        what = "unknown" if b is None else "an input" if b.scope == "in" else "no argument"
        yield f"{s.stage} is an atomic on {s.buffer}, which is {what}"
        return
    if b.dtype.is_float and s.kind in ("and", "or", "xor"):
        yield f"{s.stage} is {s.kind} of {b.dtype}"
    cells = [(b, s.index)]
    if s.result is not None:
        into = table.get(s.result[0])
        if into is None or into.scope == "in" or into.pointer or into.dtype is not b.dtype:
            yield f"the result of {s.stage} goes to {s.result[0]}, which is no {b.dtype} to write"
        else:
            cells.append((into, s.result[1]))
    for x, index in cells:
        if len(index) != len(x.shape):
            yield f"{x.name} is written with {len(index)} indices, it has {len(x.shape)} axes"
    for v in (s.value, *(() if s.compare is None else (s.compare,))):
        if v.dtype is not b.dtype:
            yield f"{s.stage} computes {v.dtype}, {b.name} holds {b.dtype}"


def _name(s: Stmt) -> str:
    """A statement as messages name it."""
    if isinstance(s, (Store, Atomic)):
        return s.stage
    if isinstance(s, Report):
        return f"{s.kind} {s.site}"
    if isinstance(s, While):
        return f"while {s.name}"
    return s.name if isinstance(s, Loop) else "an if"


@check("nest", "instructions-match")
def _nest_tensor(n: Nest) -> Iterator[Fault]:
    """Tensor loops compute what the instruction that they name computes."""
    for what, s in tensor_faults(n):
        yield Fault(what, s)


@check("nest", "swizzles-fit")
def _nest_swizzles(n: Nest) -> Iterator[Fault]:
    """Swizzled memory is shared, and every element has a place of its own in it."""
    for b in n.buffers:
        if b.swizzle is None:
            continue
        if b.scope != "shared":
            yield Fault(f"{b.name} is swizzled and is {b.scope}, not shared", b)
        for what in b.swizzle.faults(b.size):
            yield Fault(f"{b.name} cannot be swizzled by {b.swizzle}: {what}", b)


@check("nest", "threads-sound")
def _nest_threads(n: Nest) -> Iterator[Fault]:
    """Blocks outside threads, no axis inside itself, shared memory per block, safe barriers."""
    for what, s in thread_faults(n):
        yield Fault(what, s)


def incomplete(n: Nest) -> list[Fault]:
    """Register buffers still indexed by a loop variable: they will live in memory."""
    registers = {b.name for b in n.buffers if b.scope == "register"}
    out = []
    for s, p in _stores(n):
        fixed = {q.var for q in p if q.kind in ("unroll", "lane", "tensor") or q.extent == 1}
        used = [(s.buffer, s.index), *((str(x.source), x.index) for x in store_loads(s))]
        for name, index in used:
            loose = (
                set().union(*(D.symbols(i) for i in index)) - fixed if name in registers else set()
            )
            if loose:
                which = ", ".join(sorted(v.name for v in loose))
                out.append(
                    Fault(
                        f"the register buffer {name} is indexed by {which}, which is not unrolled",
                        s,
                    )
                )
    return out
