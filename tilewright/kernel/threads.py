"""Blocks and threads in a nest: what bound loops mean, their rules, and which threads communicate.

Six rules make a nest a program for many threads:

1. Sibling thread loops share one block: `thread.x` of one loop and of the next are the same
   threads, and only a barrier orders what they do to shared or global memory.
2. A thread extent smaller than the block is a predicate: the other threads skip the loop.
3. A statement outside thread loops runs in every thread (outside those of one axis: in every
   thread along it). So a "local" buffer allocated there is private: every thread has its own.
4. An update (`s += p[t]`) of a cell that a thread loop does not index, in memory from outside that
   loop, combines the values of all its threads. Of a private cell every thread of the block then
   has the result, also those that skip the loop; another cell is updated by one thread. All threads
   of the block have to come there together, as to a barrier.
5. An instruction of a whole warp (a tensor loop whose operands are fragments, kernel/fragments.py)
   is done by the threads of a warp together: each element of a fragment is read and written in the
   memory of the thread that owns it. One that is asynchronous goes on until a Wait for products.
6. A copy by the copy engine (kernel/intrinsic.py) is issued by one thread of the block. It
   stands outside thread loops and arrives at a Wait like any other asynchronous copy. In a loop
   with roles (kernel/roles.py) a warp of its own issues it, which only Acquire and Wait order.

A grid is the block loops at the outermost level of a nest, alone in one another. Statements next
to them are launches of their own, neighbours without block loops together as one block. Memory that
is allocated at the outermost level is global, unless it is shared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from math import gcd

from tilewright.ir import dim as D
from tilewright.ir.combine import Combiner
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import extent, loads
from tilewright.kernel.atomic import mixed_faults
from tilewright.kernel.dependence import _same_iteration, _window
from tilewright.kernel.early import await_faults
from tilewright.kernel.fragments import WARP
from tilewright.kernel.intrinsic import INTRINSICS, Intrinsic, warp_match
from tilewright.kernel.nest import (
    BLOCKS,
    THREADS,
    Alloc,
    Atomic,
    Barrier,
    Loop,
    Nest,
    Path,
    Stmt,
    Store,
    While,
    mentions,
    own_values,
    store_loads,
    walk,
)
from tilewright.kernel.roles import by_producer, role_faults, role_loop


def launches(body: tuple[Stmt, ...]) -> list[tuple[Stmt, ...]]:
    """The outermost statements as launches: a grid or a library's loop alone, what is between them
    as one block."""
    out: list[tuple[Stmt, ...]] = []
    between: list[Stmt] = []
    for s in body:
        if isinstance(s, Loop) and s.kind in (*BLOCKS, "library"):
            out += [tuple(between), (s,)]
            between = []
        else:
            between.append(s)
    return [x for x in (*out, tuple(between)) if x]


def grid_of(launch: tuple[Stmt, ...]) -> tuple[list[Loop], tuple[Stmt, ...]]:
    """The block loops of a launch and what one block does."""
    loops: list[Loop] = []
    body = launch
    while len(body) == 1 and isinstance(s := body[0], Loop) and s.kind in BLOCKS:
        loops.append(s)
        body = s.body
    return loops, body


def has_threads(body: tuple[Stmt, ...]) -> bool:
    return any(isinstance(s, Loop) and s.kind in THREADS for s, _ in walk(body))


def uses_of(body: tuple[Stmt, ...], buffers: Iterable[str]) -> dict[str, tuple[int, int]]:
    """The first and the last statement of a body that use each of the buffers that are allocated in
    it, or inside its statements."""
    own = {s.buffer for s, _ in walk(body) if isinstance(s, Alloc)} & set(buffers)
    out: dict[str, tuple[int, int]] = {}
    for k, s in enumerate(body):
        for name in own & mentions(s) if not isinstance(s, Alloc) else ():
            out[name] = out.get(name, (k, k))[0], k
    return out


def apart_in_time(n: Nest, launch: tuple[Stmt, ...]) -> frozenset[tuple[str, str]]:
    """Pairs of shared buffers of a block of which one is used up before the other is first used,
    with a barrier between. The copy engine is none of the threads that meet there: it gets no
    memory that threads have written, and a producer, which runs ahead of them, no memory at all."""
    _, body = grid_of(launch)
    uses = uses_of(body, (b.name for b in n.buffers if b.scope == "shared"))
    stores = [(s.buffer, instruction_around(p)) for s, p in walk(body) if isinstance(s, Store)]
    brought = {name for name, i in stores if i is not None and i.engine}
    alone = role_loop(body) is not None
    out: set[tuple[str, str]] = set()
    for a, (_, last) in uses.items():
        for b, (first, _) in uses.items():
            ahead = b in brought and (alone or a not in brought)
            if not ahead and any(isinstance(s, Barrier) for s in body[last + 1 : first]):
                out.add((a, b))
    return frozenset(out)


def handed_on(n: Nest, body: tuple[Stmt, ...], inner: bool = False) -> dict[int, set[str]]:
    """By statement that is the first to use a shared buffer, the shared buffers of the body (and of
    `inner` statements) that are not used any more then."""
    own = {s.buffer for s in body if isinstance(s, Alloc)}
    shared = (b.name for b in n.buffers if b.scope == "shared" and (inner or b.name in own))
    uses = uses_of(body, shared)
    out: dict[int, set[str]] = {}
    for first, _ in uses.values():
        gone = {name for name, (_, last) in uses.items() if last < first}
        if gone:
            out[first] = gone
    return out


def thread_axes(body: tuple[Stmt, ...]) -> tuple[str, ...]:
    """The thread axes that a block has."""
    found = {s.kind for s, _ in walk(body) if isinstance(s, Loop)}
    return tuple(a for a in THREADS if a in found)


@dataclass(frozen=True)
class Combined:
    """An update that combines the values of threads: the loops around it, and those of them whose
    threads are combined."""

    store: Store
    path: Path
    over: Path


def thread_chain(s: Loop) -> list[Loop]:
    """A thread loop and those inside it, as long as each is alone in the one before."""
    out = [s]
    while len(out[-1].body) == 1 and isinstance(x := out[-1].body[0], Loop) and x.kind in THREADS:
        out.append(x)
    return out


def combined(body: tuple[Stmt, ...]) -> list[Combined]:
    """The updates that combine the values of threads (rule 4)."""
    inside: dict[str, int] = {}  # how many loops are around a buffer's allocation
    out: list[Combined] = []
    for s, p in walk(body):
        if isinstance(s, Alloc):
            inside[s.buffer] = len(p)
        elif isinstance(s, Store) and s.combine is not None and not s.atomic:
            along = set().union(*(D.symbols(i) for i in s.index))
            around = p[inside.get(s.buffer, 0) :]
            over = tuple(q for q in around if q.kind in THREADS and q.var not in along)
            if over:
                out.append(Combined(s, p, over))
    return out


def block_size(launch: tuple[Stmt, ...]) -> dict[str, int]:
    """The threads of a block along each axis."""
    size: dict[str, int] = dict.fromkeys(THREADS, 1)
    for s, _ in walk(launch):
        if isinstance(s, Loop) and s.kind in THREADS:
            size[s.kind] = max(size[s.kind], D.bounds(s.extent)[1])
    return size


def _combined_faults(c: Combined, size: Mapping[str, int]) -> Iterator[str]:
    """All threads come to such an update, one value each, and it is the last thing that they do in
    their loops."""
    what = f"{c.store.stage} combines the values of {c.over[0].name}"
    if isinstance(c.store.combine, Combiner):
        yield f"{what} by a combiner, which threads cannot do yet"
    inner = c.path[c.path.index(c.over[0]) :]
    for q in inner:
        if q.kind not in THREADS:
            yield f"{what} in every iteration of {q.name}: RFactor it first"
            return
    for q, x in pairwise(inner):
        if q.body != (x,):
            yield f"{what} inside {x.name}, which is not alone in {q.name}"
    last = inner[-1].body
    if last[-1] is not c.store:
        yield f"{what}, but is not the last thing that its threads do"
    if any(isinstance(s, Store) and _meets(s, c.store) for s, _ in walk(last[:-1])):
        yield f"{what} and reads or writes the same memory besides"
    moving = {q.var for q in c.path if q.kind in THREADS}
    for k, q in enumerate(c.path):
        if q.kind not in THREADS and D.symbols(q.extent) & moving:
            yield f"{what} inside {q.name}, which differs between threads"
        if q.kind in THREADS and q.extent != size[q.kind] and thread_chain(q) != list(c.path[k:]):
            yield f"{what} inside {q.name}, which some threads of the block skip"


def _meets(s: Store, c: Store) -> bool:
    return s.buffer == c.buffer or any(x.source == c.buffer for x in store_loads(s))


def thread_faults(n: Nest) -> Iterator[tuple[str, Stmt]]:
    """What is wrong with the bound loops, shared buffers and barriers of a nest, and where."""
    for launch in launches(n.body):
        found = combined(launch)
        size = block_size(launch) if found else {}
        for c in found:
            yield from ((what, c.store) for what in _combined_faults(c, size))
        yield from _warp_faults(n, launch)
        yield from role_faults(launch)
        yield from mixed_faults(launch)
        yield from await_faults(n, grid_of(launch)[1])
    outermost = {s.buffer for s in n.body if isinstance(s, Alloc)}
    for s, p in walk(n.body):
        threads = [q for q in p if q.kind in THREADS]
        if isinstance(s, Alloc) and p and p[0].kind in BLOCKS and s.buffer in outermost:
            yield f"{s.buffer} is allocated inside the blocks {p[0].name} and outside of them", s
        if isinstance(s, Loop) and s.kind in (*BLOCKS, *THREADS):
            yield from ((what, s) for what in _bound_faults(s, p))
        elif isinstance(s, Alloc) and n.buffer(s.buffer).scope == "shared":
            if threads:
                yield f"the shared {s.buffer} is allocated inside the threads {threads[0].name}", s
            if not p and _used_in_other_launches(n, s):
                yield f"the shared {s.buffer} is allocated outside the blocks that use it", s
        elif isinstance(s, Barrier):
            if any(q.kind in ("lane", "parallel") for q in p):
                yield f"there is a barrier inside {p[-1].kind} {p[-1].name}", s
            moving = {q.var for q in threads}
            for q in p:
                if q.kind not in THREADS and D.symbols(q.extent) & moving:
                    yield f"there is a barrier inside {q.name}, which differs between threads", s


def _bound_faults(s: Loop, p: Path) -> Iterator[str]:
    for q in p:
        if q.kind == s.kind:
            yield f"{s.kind} {s.name} is inside {q.name}, which is {q.kind} too"
        if q.kind in ("parallel", "lane"):
            yield f"{s.kind} {s.name} is inside {q.kind} {q.name}"
    if s.kind in BLOCKS and p:
        around = next((q for q in p if q.kind not in BLOCKS), None)
        if around is not None:
            yield f"{s.kind} {s.name} is inside {around.kind} {around.name}"
        elif len(p[-1].body) != 1:
            yield f"{s.kind} {s.name} is not alone in {p[-1].kind} {p[-1].name}"


def _used_in_other_launches(n: Nest, alloc: Alloc) -> bool:
    rest = [x for x in launches(n.body) if all(s is not alloc for s in x)]
    return any(a.buffer == alloc.buffer for x in rest for s in x for a in accesses(n, s, ()))


# ---- which threads communicate


@dataclass(frozen=True)
class Access:
    """A store or a read, with the thread axes around it and their variables."""

    buffer: str
    index: tuple[Dim, ...]
    writes: bool
    accumulates: bool
    stage: str
    threads: tuple[tuple[str, Sym], ...]
    asynchronous: bool = False
    earlier: frozenset[str] = frozenset()  # loops of which this was done in an earlier iteration
    order: str = ""  # of an atomic operation: how it is ordered with other memory
    elected: bool = False  # by one thread of the block, whichever
    produced: bool = False  # by the producer of a loop with roles
    # Of an asynchronous instruction that goes on: how many others began since.
    lasting: int | None = None
    loops: frozenset[Sym] = frozenset()  # around it

    @cached_property
    def _hash(self) -> int:
        return hash((self.buffer, self.index, self.threads, self.earlier, self.lasting))

    def __hash__(self) -> int:  # they are looked up again and again
        return self._hash

    def __str__(self) -> str:
        return f"{self.buffer}[{','.join(map(str, self.index))}]"

    def elsewhere(self, loop: Loop) -> Access:
        """The same access in any iteration of a loop."""
        return self._at(loop, D.var(f"{loop.name}'", loop.extent))

    def before(self, loop: Loop) -> Access:
        """The same access in the iteration before."""
        return self._at(loop, D.as_int(loop.var) - 1)._earlier(loop)

    def long_before(self, loop: Loop) -> Access:
        """The same access in any iteration before."""
        return self.elsewhere(loop)._earlier(loop)

    def _earlier(self, loop: Loop) -> Access:
        return replace(self, earlier=self.earlier | {loop.name})

    def _at(self, loop: Loop, where: Dim) -> Access:
        if loop.var not in self.loops:
            return self
        new: dict[Sym, Dim] = {loop.var: where}
        index = tuple(_renamed(i, new, "", lambda s: _mentions(s, loop.var)) for i in self.index)
        threads = tuple((axis, D.the_sym(new.get(v, D.as_int(v)))) for axis, v in self.threads)
        return replace(self, index=index, threads=threads)


def accesses(n: Nest, s: Stmt, path: Path) -> list[Access]:
    """What a statement inside `path` does to memory, itself included."""
    out: list[Access] = []
    for x, p in walk((s,), path):
        t = tuple((q.kind, q.var) for q in p if q.kind in THREADS)
        stage = x.stage if isinstance(x, (Store, Atomic)) else line_of(x)
        around = frozenset(q.var for q in p)
        own = [r for v in own_values(x) for r in loads(v)]
        touch = partial(Access, stage=stage, threads=t, loops=around)
        found = [touch(str(r.source), r.index, False, False) for r in own]
        if isinstance(x, Store):
            red, order = x.combine is not None and not x.atomic, "relaxed" if x.atomic else ""
            found += [touch(x.buffer, x.index, True, red, asynchronous=x.asynchronous, order=order)]
            owners = _owners(n, p)
            found = [_by_owner(a, owners[a.buffer]) if a.buffer in owners else a for a in found]
        elif isinstance(x, Atomic):
            found.append(touch(x.buffer, x.index, True, False, order=x.order))
            if x.result is not None:
                found.append(touch(*x.result, True, False))
        i = instruction_around(p)
        if i is not None and (i.asynchronous or i.engine):
            age, made = 0 if i.asynchronous else None, by_producer(p)
            found = [replace(a, lasting=age, elected=bool(i.engine), produced=made) for a in found]
        out += found
    return out


def line_of(s: Stmt) -> str:
    """What a statement that is no stage is called."""
    return s.name if isinstance(s, (Loop, While)) else type(s).__name__.lower()


def instruction_around(path: Path) -> Intrinsic | None:
    """The instruction whose loops are around a statement."""
    name = next((q.instruction for q in path if q.kind == "tensor" and q.instruction), "")
    return INTRINSICS.get(name)


Owners = tuple[tuple[int, str, int], ...]  # axis of the buffer, axis of threads, how many


def _owners(n: Nest, path: Path) -> dict[str, Owners]:
    """Of an instruction of a whole warp, the buffers of which every thread has its own elements:
    by axis, which thread."""
    whole = next((q for q in path if q.kind == "tensor" and q.instruction), None)
    found = warp_match(n, whole) if whole is not None else None
    if found is None:
        return {}
    team = found.intrinsic.team
    owned = (x for x in found.operands if x.owners)
    return {x.buffer: tuple((k, axis, team[axis]) for k, axis in x.owners) for x in owned}


def _by_owner(a: Access, owners: Owners) -> Access:
    """The access as that of the thread whose element it is."""
    index, threads = list(a.index), list(a.threads)
    for k, axis, count in owners:
        v = D.var(f"{a.stage}@{axis}", count)
        index[k] = v
        threads.append((axis, D.the_sym(v)))
    return replace(a, index=tuple(index), threads=tuple(threads))


def _warp_faults(n: Nest, launch: tuple[Stmt, ...]) -> Iterator[tuple[str, Stmt]]:
    """Instructions of whole warps: all threads of a warp come to them, and there are as many."""
    size = block_size(launch)
    for s, p in walk(launch):
        if isinstance(s, Loop) and s.instruction and INTRINSICS[s.instruction].engine:
            alone = next((q for q in p if q.kind in THREADS), None)
            if alone is not None:
                yield f"{s.instruction} is issued once by a block, inside {alone.name}", s
            continue
        found = warp_match(n, s) if isinstance(s, Loop) else None
        if found is None:
            continue
        assert isinstance(s, Loop)
        team = found.intrinsic.team
        what = f"{s.instruction} is for {'whole warps' if team == WARP else 'groups of warps'}"
        wrong = [f"{a} has {size[a]} threads, not {k}" for a, k in team.items() if size[a] != k]
        if wrong:
            yield f"{what}: {wrong[0]}", s
        moving = {q.var for q in p if q.kind in team}
        for q in p:
            if q.kind in team:
                yield f"{what}, inside {q.name} every thread is alone", s
            elif q.kind in ("lane", "parallel") or D.symbols(q.extent) & moving:
                yield f"{what}, inside {q.name} threads part", s


def two_threads(n: Nest, a: Access, b: Access, axes: Iterable[str], uniform: Set[Sym]) -> bool:
    """May two threads touch one cell by these accesses? Threads along an axis that surely are the
    same have one value of their variable for both."""
    if same_thread(n, a, b, axes, uniform):
        return False
    other = dict(b.threads)
    shared = [(axis, v) for axis, v in a.threads if other.get(axis) is v]
    same = {v for axis, v in shared if same_thread(n, a, b, (axis,), uniform)}
    return not apart(a, b, uniform | same)


def apart(a: Access, b: Access, uniform: Set[Sym]) -> bool:
    """Are the cells that two accesses touch surely different ones, whatever the threads are? The
    uniform symbols have one value for both."""
    for i, j in zip(a.index, b.index, strict=True):
        if any(True for x in (i, j) for _ in D.data_values(x)):
            continue
        j = _renamed(j, {}, "*", lambda s: s not in uniform)
        if D.known_ne(i, j) or _other_turn(i, j) or _between_multiples(i - j):
            return True
    return False


def _renamed(x: Dim, new: dict[Sym, Dim], mark: str, which: Callable[[Sym], bool]) -> Dim:
    """x with variables for some of its own: of the same bounds, which mention new ones too."""
    for s in D.symbols(x) - new.keys():
        if which(s):
            low = _renamed(s.lo, new, mark, which)
            high = None if s.hi is None else _renamed(s.hi, new, mark, which)
            new[s] = D.sym(f"{s.name}{mark}", low, high)
    return D.substitute(x, new)


def _mentions(s: Sym, v: Sym) -> bool:
    """Do the bounds of a variable depend on another?"""
    ends = D.symbols(s.lo) | (D.symbols(s.hi) if s.hi is not None else set())
    return v in ends or any(_mentions(x, v) for x in ends)


def _between_multiples(x: Dim) -> bool:
    """Is x surely no multiple of some number? Such as 16*a + b + 8 with a b from -7 to 7; of
    multiples of 16 themselves only the rest counts."""
    terms = _terms(x)
    for by in {abs(k) for mono, k in terms.items() if mono and abs(k) > 1}:
        rest: Dim = 0
        for mono, k in terms.items():
            if k % by:
                rest = rest + k * _product(mono)
        low, high = D.bounds(rest)
        if -D.INF < low <= high < D.INF and low % by and low // by == high // by:
            return True
    return False


def _other_turn(i: Dim, j: Dim) -> bool:
    """x%m and (x+k)%m, or x+k itself: versions of a buffer, used in turn."""
    (p, m), (q, k) = _turn(i), _turn(j)
    gap = p - q
    if not isinstance(m, int) or not isinstance(k, int) or not isinstance(gap, int):
        return False
    by = max(m, k)
    return by > 0 and m in (0, by) and k in (0, by) and gap % by != 0


def _turn(i: Dim) -> tuple[Dim, Dim]:
    """(x, m) of an index x%m; m is 0 where it is none."""
    for mono, c in i.terms if isinstance(i, D.Int) and len(i.terms) == 1 else ():
        if c == 1 and len(mono) == 1 and isinstance(q := mono[0], D.Quo) and q.op == "mod":
            return q.a, q.b
    return i, 0


def same_thread(n: Nest, a: Access, b: Access, axes: Iterable[str], uniform: Set[Sym]) -> bool:
    """Where both touch one cell, is it surely one thread that does, along these axes? The uniform
    symbols have one value for both."""
    mine, other = dict(a.threads), dict(b.threads)
    return all(
        axis in mine
        and axis in other
        and (
            _pinned(n, a, b, mine[axis], other[axis], uniform)
            or _determined(a, b, mine[axis], other[axis], uniform)
        )
        for axis in axes
    )


def _pinned(n: Nest, a: Access, b: Access, va: Sym, vb: Sym, uniform: Set[Sym]) -> bool:
    buffer = n.buffer(a.buffer)
    # One variable for both, which may be any thread of either: i%7 is i for some of them only.
    most = max(D.bounds(extent(va))[1], D.bounds(extent(vb))[1])
    both = D.var("thread", most)
    if most >= D.INF or not D.is_sym(both):
        return most <= 1
    v = D.the_sym(both)
    first = tuple(D.substitute(i, {va: both}) for i in a.index)
    second = tuple(D.substitute(i, {vb: both}) for i in b.index)
    moving = set().union(*(D.symbols(i) for i in first)) - uniform - {v}
    w = _window(buffer, first, v, moving)
    return w is not None and _same_iteration(buffer, second, w, v)


def _determined(a: Access, b: Access, va: Sym, vb: Sym, uniform: Set[Sym]) -> bool:
    """Do equal indices imply equal threads? They do if the digits of a thread's number that they
    determine are all of it, such as t//4 and t%4."""
    digits: list[tuple[int, int | None]] = []
    for i, j in zip(a.index, b.index, strict=True):
        for mono in _terms(i):
            if len(mono) != 1 or va not in _symbols(mono):
                continue
            digit = _digit(mono[0], va)
            other = D.substitute(_product(mono), {va: D.as_int(vb)})
            found = next(iter(_terms(other))) if len(_terms(other)) == 1 else ()
            if digit is not None and _one_digit(i, j, mono, found, uniform):
                digits.append(digit)
    step, most = 1, max(D.bounds(extent(va))[1], D.bounds(extent(vb))[1])
    for at, count in sorted(digits, key=lambda d: (d[0], d[1] or D.INF)):
        if step % at == 0:
            step = most if count is None else max(step, at * count)
    return step >= most


def _digit(x: D.Atom, v: Sym) -> tuple[int, int | None] | None:
    """(step, count) of v//step%count; without a count, of the leading digit."""
    if x is v:
        return 1, None
    if not isinstance(x, D.Quo) or not isinstance(x.b, int) or x.b < 1:
        return None
    inner = _terms(x.a)
    if len(inner) != 1 or next(iter(inner.values())) != 1 or len(next(iter(inner))) != 1:
        return None
    found = _digit(next(iter(inner))[0], v)
    if found is None:
        return None
    step, count = found
    if x.op == "floordiv":
        whole = count is None or count % x.b == 0
        return (step * x.b, None if count is None else count // x.b) if whole else None
    whole = x.op == "mod" and (count is None or count % x.b == 0)
    return (step, x.b) if whole else None


Monomial = tuple[D.Atom, ...]


def _one_digit(i: Dim, j: Dim, ma: Monomial, mb: Monomial, uniform: Set[Sym]) -> bool:
    """Are two terms one digit of two equal indices? Of c*digit + low + high with a low part less
    than c, and a high one of multiples of c*w, the digit is index//c%w, if it is less than w."""
    first, second = _terms(i), _terms(j)
    c = first.pop(ma)
    if c < 1 or second.pop(mb, None) != c:
        return False
    # What has one value in both does not matter.
    same = {m for m, k in first.items() if second.get(m) == k and _symbols(m) <= uniform}
    values = 1 + max(D.bounds(_product(ma))[1], D.bounds(_product(mb))[1])
    if values >= D.INF:
        return False
    lows: list[Dim] = [0, 0]
    high = 0
    for which, terms in enumerate((first, second)):
        for mono, k in terms.items():
            if mono in same:
                continue
            if abs(k) >= c * values:
                high = gcd(high, k)
            else:
                lows[which] = lows[which] + k * _product(mono)
    ends = [e for low in lows for e in D.bounds(low)]
    whole = high == 0 or (high % c == 0 and high // c >= values)
    return whole and all(0 <= e < c for e in ends)


def _terms(x: Dim) -> dict[tuple[D.Atom, ...], int]:
    return {(): x} if isinstance(x, int) else dict(x.terms)


def _product(mono: tuple[D.Atom, ...]) -> Dim:
    out: Dim = 1
    for atom in mono:
        out = out * D.from_atom(atom)
    return out


def _symbols(mono: tuple[D.Atom, ...]) -> set[Sym]:
    return set(D.symbols(_product(mono)))


def advances(n: Nest, a: Access, v: Sym, moving: set[Sym]) -> bool:
    """Do different values of a loop variable touch different cells?"""
    once = v.hi is not None and D.bounds(v.hi)[1] <= 0
    return once or _window(n.buffer(a.buffer), a.index, v, moving) is not None
