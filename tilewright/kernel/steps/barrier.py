from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.kernel.box_copies import by_engine, changed_meanwhile
from tilewright.kernel.nest import (
    BLOCKS,
    THREADS,
    Alloc,
    Barrier,
    If,
    Loop,
    Nest,
    Path,
    Stmt,
    Store,
    Wait,
    While,
    bodies,
    mentions,
    transform,
    walk,
    with_bodies,
)
from tilewright.kernel.roles import by_producer
from tilewright.kernel.step import Step
from tilewright.kernel.threads import (
    Access,
    accesses,
    advances,
    apart,
    grid_of,
    handed_on,
    has_threads,
    launches,
    same_thread,
    thread_axes,
    two_threads,
)
from tilewright.kernel.variables import inner_vars

ONE = (*THREADS, "lane", "tensor")  # loops that are looked at as one statement
OLDEST = 8  # more asynchronous instructions than this are not distinguished


@dataclass(frozen=True)
class Synchronise(Step):
    """Barriers exactly where threads of a block may communicate through shared or global memory:
    one writes a cell that another touches later, also in a later iteration of a loop around both.
    Barriers that are there already are computed again, so this is the last step.

    thread.x i: t[i] = …               thread.x i: t[i] = …
    thread.x j: y[j] = t[31-j]         barrier
                                       thread.x j: y[j] = t[31-j]

    Sibling thread loops share one block; a thread extent smaller than the block is a predicate; a
    statement outside thread loops runs in every thread (see kernel/threads.py). Shared buffers of
    which one is used after the other get a barrier between, so that they can be one memory. A nest
    in which this gives another result than the loops in order is refused.
    """

    stays: ClassVar[bool] = True
    near: tuple[str, ...] = ()  # pairs of pointers into the same memory, "x y"
    tiles: bool = False  # loops around one statement are over a tile's elements: in no order

    def apply(self, n: Nest) -> Nest:
        bare = transform(n.body, lambda s: () if isinstance(s, Barrier) else (s,))
        n = replace(n, body=bare)
        self.need(has_threads(bare), "no loop is bound to threads", "Bind first")
        pairs = [tuple(x.split()) for x in self.near]
        near = frozenset(p for a, b in pairs for p in ((a, b), (b, a)))
        for name in sorted(_behind(n)):
            wrong = changed_meanwhile(n, name, near)
            self.need(wrong is None, f"{wrong}, and the copy engine reads {name}")
        out: list[Stmt] = []
        for launch in launches(bare):
            loops, body = grid_of(launch)
            if has_threads(body):
                scan = _Scan(self, n, thread_axes(body), near)
                scan.refuse_lost(body, tuple(loops))
                scan.copies = _copies(n, body, tuple(loops))
                scan.common -= _brought(n, body, tuple(loops))
                body, _ = scan.body(body, tuple(loops), [])
            for x in reversed(loops):
                body = (replace(x, body=body),)
            out.extend(body)
        return replace(n, body=tuple(out))


@dataclass(frozen=True)
class _Touched:
    """What a statement does to memory: all of it, what others may notice, and that in any
    iteration of the loops inside the statement."""

    all: list[Access]
    here: list[Access]
    left: list[Access]


_Place = tuple[int, ...]
_Passed = tuple[tuple[Stmt, ...], list[Access]]  # with barriers, and what is pending afterwards
_Threads = tuple[tuple[str, Sym], ...]
# Of two accesses: buffer, index and threads of one, those of the other, and symbols that have one
# value for both.
_Question = tuple[str, tuple[Dim, ...], _Threads, tuple[Dim, ...], _Threads, frozenset[Sym]]


class _Scan:
    """One block, statement by statement, with what was touched since the last barrier.

    An asynchronous copy is a write where it is issued and again where a thread waits: only then
    is it visible to that thread, and a barrier makes it visible to others.
    """

    def __init__(
        self, step: Synchronise, n: Nest, axes: tuple[str, ...], near: frozenset[tuple[str, str]]
    ) -> None:
        self.step, self.n, self.axes, self.near = step, n, axes, near
        outermost = {s.buffer for s in n.body if isinstance(s, Alloc)}
        self.private = {
            b.name
            for b in n.buffers
            if b.scope in ("local", "register") and b.name not in outermost
        }
        self.copies: list[Access] = []  # asynchronous ones, in any iteration
        # Loops are looked at again and again until nothing more is pending: what a statement does
        # at its place, what a loop does to what is pending, which accesses meet, and what they
        # are in other iterations, are found once.
        self.touched: dict[_Place, _Touched] = {}
        self.loops: dict[tuple[_Place, tuple[Access, ...]], _Passed] = {}
        self.met: dict[_Question, bool] = {}
        self.elsewhere: dict[tuple[Access, Sym, Callable[[Access, Loop], Access]], Access] = {}
        self.plain: dict[int, frozenset[str] | None] = {}  # what a loop uses that only computes
        self.common = {b.name for b in n.buffers if b.scope != "in" and b.name not in self.private}
        shared = {b.name for b in n.buffers if b.scope == "shared"}
        self.everyones = {x for x in self.common if x not in shared}  # memory of all blocks

    def body(self, stmts: tuple[Stmt, ...], path: Path, pending: list[Access]) -> _Passed:
        out: list[Stmt] = []
        tiles = self.step.tiles
        follows = handed_on(self.n, stmts, tiles) if all(q.kind in BLOCKS for q in path) else {}
        for k, s in enumerate(stmts):
            gone = follows.get(k, ())
            # A barrier says that memory is handed on (apart_in_time). Of tile kernels, which have
            # many tiles, that is said in any case.
            hands = bool(gone) if tiles else any(a.buffer in gone for a in pending)
            if hands and not (out and isinstance(out[-1], Barrier)):
                out.append(Barrier())
                pending = [a for a in pending if a.lasting is not None]
            if isinstance(s, Loop) and self._own(s, pending):
                out.append(s)
                continue
            one = isinstance(s, Loop) and (s.kind in ONE or self._tile(s))
            if isinstance(s, Loop) and not one:
                what = f"{s.name} is parallel, next to threads of one block"
                self.step.need(s.kind != "parallel", what, "Bind it instead")
                inner, after = self._loop(s, path, [])
                met, left = self._loop(s, path, pending) if pending else (inner, after)
                if _barriers(met) > _barriers(inner):  # once before the loop, not in every round
                    out.append(Barrier())
                else:
                    inner, after = met, left
                out.append(replace(s, body=inner))
                pending = after
                continue
            uniform = frozenset(q.var for q in path) | frozenset(self.n.dims)
            if isinstance(s, (If, While)) and not any(q.kind in THREADS for q in path):
                if self._talk(pending, self._condition(s, path), uniform):
                    out.append(Barrier())
                    pending = [a for a in pending if a.lasting is not None]
                made, pending = self._choice(s, path, pending)
                out.append(made)
                continue
            found = self._touched(s, path, uniform)
            here = found.here
            self._refuse_unfinished(pending, found.all, uniform)
            if self._talk(pending, here, uniform):
                out.append(Barrier())
                pending = [a for a in pending if a.lasting is not None]
            if isinstance(s, Wait):
                pending = self._waited(s, pending)
            if any(a.lasting is not None for a in here):
                pending = [_older(a) for a in pending]
            pending = _union(pending, found.left)
            out.append(s)
        return tuple(out), pending

    def _own(self, s: Loop, pending: list[Access]) -> bool:
        """Does a loop only compute in its threads' own memory, of which no asynchronous instruction
        is using any? Nobody else notices."""
        if id(s) not in self.plain:
            inside = [x for x, _ in walk((s,))]
            simple = all(isinstance(x, (Loop, Store, Alloc)) for x in inside)
            loops = [x for x in inside if isinstance(x, Loop)]
            simple = simple and not any(x.instruction or x.kind == "parallel" for x in loops)
            self.plain[id(s)] = mentions(s) if simple else None
        used = self.plain[id(s)]
        if used is None or used & self.common:
            return False
        return not any(a.buffer in used for a in pending if a.lasting is not None)

    def _touched(self, s: Stmt, path: Path, uniform: frozenset[Sym]) -> _Touched:
        at = _place(s, path)
        if at not in self.touched:
            all_ = accesses(self.n, s, path)
            here = [a for a in all_ if a.buffer in self.common]
            self._refuse_replicas(s, here)
            self._refuse_inside(here, uniform)
            here += [a for a in all_ if a.lasting is not None and a.buffer in self.private]
            self.touched[at] = _Touched(all_, here, [_anywhere(a, s) for a in here])
        return self.touched[at]

    def _condition(self, s: If | While, path: Path) -> list[Access]:
        hollow = with_bodies(s, [() for _ in bodies(s)])
        return [a for a in accesses(self.n, hollow, path) if a.buffer in self.common]

    def _choice(
        self, s: If | While, path: Path, pending: list[Access]
    ) -> tuple[Stmt, list[Access]]:
        """A branch or a loop that all threads take alike: what it leaves is what any way through it
        does. A loop also meets what its own iteration before left."""
        before = _union(pending, self._condition(s, path))
        while True:
            made: list[tuple[Stmt, ...]] = []
            after = before
            for inside in bodies(s):
                found, left = self.body(inside, path, before)
                made.append(found)
                after = _union(after, left)
            if isinstance(s, If) or set(after) == set(before):
                break
            before = after
        if isinstance(s, While) and self._talk(
            after, self._condition(s, path), frozenset(self.n.dims)
        ):
            made[0] = (*made[0], Barrier())
        return with_bodies(s, made), after

    def _waited(self, s: Wait, pending: list[Access]) -> list[Access]:
        """After a wait for copies those have arrived, which other threads see after a barrier;
        after one for products their reads are over, which others do not know either."""
        if not s.products:
            return _union(pending, self.copies)
        done = lambda a: a.lasting is not None and a.lasting >= s.pending  # noqa: E731
        return [replace(a, lasting=None) if done(a) else a for a in pending]

    def _loop(self, s: Loop, path: Path, pending: list[Access]) -> _Passed:
        at = _place(s, path), tuple(pending)
        if at not in self.loops:
            self.loops[at] = self._rounds(s, path, pending)
        return self.loops[at]

    def _rounds(self, s: Loop, path: Path, pending: list[Access]) -> _Passed:
        """A loop that all threads run: an iteration may also conflict with the one before, and with
        earlier ones if no barrier is between."""
        before, outside = pending, set(pending)
        once = D.bounds(s.extent)[1] <= 1
        while True:
            inner, after = self.body(s.body, (*path, s), before)
            own = [a for a in after if s.name not in a.earlier]
            inside = [a for a in own if a not in outside]
            left = [self._moved(a, s, Access.before) if a not in outside else a for a in own]
            # Where an iteration has no barrier, those before it are still pending.
            if len(own) < len(after):
                left += [
                    replace(self._moved(a, s, Access.long_before), lasting=None) for a in inside
                ]
            # What goes on is that of one iteration, unless it is never waited for.
            ongoing = [a for a in after if a.lasting is not None and s.name in a.earlier]
            left += [
                self._moved(a, s, Access.long_before)
                if a.lasting == OLDEST
                else self._moved(a, s, Access.before)
                for a in ongoing
            ]
            grown = _union(before, left)
            if once or set(grown) == set(before):
                break
            before = grown
        # What is pending of earlier iterations is so of the last one too: it is the same.
        after = _union([], [self._moved(a, s, Access.elsewhere) for a in own])
        ran = D.bounds(s.extent)[0] >= 1
        return inner, after if ran else _union(pending, after)

    def _moved(self, a: Access, s: Loop, how: Callable[[Access, Loop], Access]) -> Access:
        """An access as one of another iteration."""
        at = a, s.var, how
        if at not in self.elsewhere:
            self.elsewhere[at] = how(a, s)
        return self.elsewhere[at]

    def _refuse_unfinished(
        self, old: list[Access], new: list[Access], uniform: frozenset[Sym]
    ) -> None:
        """What an asynchronous instruction reads does not change before it is waited for, and its
        results may not be used until then, but the next one may go on with them."""
        for a in (a for a in old if a.lasting is not None):
            for b in (b for b in new if b.buffer == a.buffer and (a.writes or b.writes)):
                if b.produced:  # after a release
                    continue
                verb = "writes" if a.writes else "reads"
                what = f"{b.stage} touches {b}, which {a.stage} still {verb} as {a}"
                fine = (a.writes and b.lasting is not None) or apart(a, b, uniform)
                self.step.need(fine, what, "wait for products before, or more versions of it")

    def _talk(self, old: list[Access], new: list[Access], uniform: frozenset[Sym]) -> bool:
        return any(self._meets(a, b, uniform) for b in new for a in old)

    def _meets(self, a: Access, b: Access, uniform: frozenset[Sym]) -> bool:
        if self._ordered(a, b):
            return True
        if a.buffer in self.private or (a.elected and b.elected) or a.produced or b.produced:
            return False
        if not (a.writes or b.writes):
            return False
        if a.buffer != b.buffer or self.n.buffer(a.buffer).scope == "memory":
            return self._anywhere(a.buffer, b.buffer)
        if a.order and b.order:
            return False
        if self._moves(a) or self._moves(b):
            return True
        question = (a.buffer, a.index, a.threads, b.index, b.threads, uniform)
        if question not in self.met:
            self.met[question] = two_threads(self.n, a, b, self.axes, uniform)
        return self.met[question]

    def _moves(self, a: Access) -> bool:
        """Is a cell selected by memory that may have changed since?"""
        found = (x for i in a.index for v in D.data_values(i) for x in v.sources)
        return any(self.n.buffer(str(x)).scope != "in" for x in found)

    def _tile(self, s: Loop) -> bool:
        """Is it all of what is done to the elements of one tile?"""
        inside: Stmt = s
        while isinstance(inside, Loop) and inside.kind not in THREADS and self.step.tiles:
            if len(inside.body) != 1 or (inside.kind == "serial" and not inside.axis.stage):
                return False
            inside = inside.body[0]
        return isinstance(inside, Loop) and inside.kind in THREADS and len(inside.body) == 1

    def _anywhere(self, a: str, b: str) -> bool:
        """Are two buffers memory that may be the same, at unknown places?"""
        if a != b and (a, b) in self.near:
            return True
        first, second = self.n.buffer(a), self.n.buffer(b)
        memory = "memory" in (first.scope, second.scope)
        return memory and first.pointer and second.pointer

    def _ordered(self, a: Access, b: Access) -> bool:
        """Does an atomic operation order what all threads do to memory of all blocks? What was
        written before one that releases is seen by one that acquires, and nothing after one that
        acquires is done before it."""
        if not (a.order or b.order) or (a.order and b.order):
            return False
        if b.order in ("release", "acq_rel") and a.writes:
            return self._of_all(a.buffer)
        return a.order in ("acquire", "acq_rel") and self._of_all(b.buffer)

    def _of_all(self, buffer: str) -> bool:
        return buffer in self.everyones or self.n.buffer(buffer).pointer

    def _refuse_replicas(self, s: Stmt, here: list[Access]) -> None:
        """What runs in every thread along an axis may write a cell once, not update it."""
        under = inner_vars(s)
        for w in (w for w in here if not w.elected):
            inner = under & w.loops
            missing = [x for x in self.axes if x not in dict(w.threads)]
            others = [a for a in here if a.buffer == w.buffer and a is not w]
            again = any(not advances(self.n, w, v, inner - {v}) for v in inner)
            bad = w.writes and missing and (w.accumulates or others or again or w.asynchronous)
            verb = "copies to" if w.asynchronous else "updates"
            what = f"{w.stage} {verb} {w} in every thread of {', '.join(missing)}"
            self.step.need(not bad, what, "bind its loops, or keep it in local memory")

    def _refuse_inside(self, here: list[Access], uniform: frozenset[Sym]) -> None:
        """There is no place for a barrier inside a thread loop: threads must not communicate
        there."""
        for w in (a for a in here if a.writes):
            for a in (a for a in here if a.buffer == w.buffer):
                # Bind has made sure that one index is one thread.
                if a.index == w.index and a.threads == w.threads:
                    continue
                axes = dict([*w.threads, *a.threads])
                what = f"{a.stage} touches {a}, which another thread may write as {w}"
                alone = not two_threads(self.n, w, a, axes, uniform)
                self.step.need(alone, f"{what}, inside one thread loop", "bind inner loops only")

    def refuse_lost(self, body: tuple[Stmt, ...], path: Path) -> None:
        """Private memory is read by the thread that wrote it."""
        by_buffer: dict[str, list[Access]] = {}
        for a in (a for x in body for a in accesses(self.n, x, path)):
            by_buffer.setdefault(a.buffer, []).append(a)
        for s, p in walk(body, path):
            if not isinstance(s, Alloc) or s.buffer not in self.private:
                continue
            touched = by_buffer.get(s.buffer, [])
            uniform = {q.var for q in p} | set(self.n.dims)
            for w in (a for a in touched if a.writes):
                axes = [axis for axis, v in w.threads if v not in uniform and not _all(w, v)]
                for r in touched:
                    if r.writes and not r.accumulates:
                        continue  # into its own memory, whatever was there
                    kept = same_thread(self.n, w, r, axes, uniform)
                    what = f"{r.stage} touches {r} of the private {s.buffer}, which other threads "
                    hint = f"SetScope('{s.buffer}', 'shared'), or bind both to the same axes"
                    self.step.need(kept, f"{what}write as {w}", hint)


def _behind(n: Nest) -> set[str]:
    """Pointers behind which the copy engine reads."""
    copies = (s for s, path in walk(n.body) if isinstance(s, Store) and by_engine(path))
    return {str(x) for s in copies for x in s.value.sources if n.buffer(str(x)).pointer}


def _place(s: Stmt, path: Path) -> _Place:
    """A statement where it stands: equal ones may stand in other loops too."""
    return (*map(id, path), id(s))


def _all(w: Access, v: Sym) -> bool:
    """Do all threads along a loop have the result of an update?"""
    return w.accumulates and not any(v in D.symbols(i) for i in w.index)


def _copies(n: Nest, body: tuple[Stmt, ...], path: Path) -> list[Access]:
    """The asynchronous copies of a block, each in any iteration of the loops inside it."""
    found = [a for s in body for a in accesses(n, s, path) if a.asynchronous]
    found = [a for a in found if not a.produced]
    for s, _ in walk(body):
        found = [_anywhere(a, s) for a in found]
    return found


def _brought(n: Nest, body: tuple[Stmt, ...], path: Path) -> set[str]:
    """Shared buffers that only a producer writes, which orders all their uses; but for those whose
    memory others use afterwards."""
    stores = [(s.buffer, by_producer(p)) for s, p in walk(body, path) if isinstance(s, Store)]
    written = {name for name, _ in stores}
    others = {name for name, produced in stores if not produced}
    again: set[str] = set().union(*handed_on(n, body).values())
    return {x for x in written - others - again if n.buffer(x).scope == "shared"}


def _anywhere(a: Access, s: Stmt) -> Access:
    """An access inside a statement, in any iteration of the loops there."""
    for x, _ in walk((s,)):
        if isinstance(x, Loop) and x.kind not in THREADS:
            a = a.elsewhere(x)
    return a


def _older(a: Access) -> Access:
    """After another asynchronous instruction began."""
    return a if a.lasting is None else replace(a, lasting=min(a.lasting + 1, OLDEST))


def _barriers(body: tuple[Stmt, ...]) -> int:
    return sum(isinstance(s, Barrier) for s, _ in walk(body))


def _union(a: list[Access], b: list[Access]) -> list[Access]:
    return list(dict.fromkeys([*a, *b]))
