"""Which maps of a group disappear into their readers, and the nest without them.

The trace says `ComputeInline` once for each. All of them are done at once here, since one after
another they would go through the same growing expressions again and again: every stage is written
over axes that all stages of the same sizes share, so that a read of the same element is the value
itself, and what is read elsewhere is rewritten once for each place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache

from tilewright.base.traverse import operands_first
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Const, Fn, Load, Value, extent, loads, rewrite, walk
from tilewright.ir.scalar import WORTH_STORING, cost_of
from tilewright.kernel.defaults.scheduler import Scheduler
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.group import Group, Stage
from tilewright.kernel.nest import Loop, Nest, start
from tilewright.kernel.steps.compute_inline import ComputeInline

# Simple operations that are done again by every reader: more of them are done once.
LONG = 32


def inline_maps(s: Scheduler) -> list[Stage]:
    """Inline every map that is cheap or read once; the stages that stay, in order."""
    gone, nest, stay = _inlined(s.group)
    s.trace += [ComputeInline(name) for name in gone]
    if gone:
        s.nest = nest if nest.dims == s.nest.dims else replace(nest, dims=s.nest.dims)
    return [st for st in s.group.stages if st.name in stay]


@lru_cache(maxsize=4)  # a group is scheduled in several ways, one after the other
def _inlined(group: Group) -> tuple[tuple[str, ...], Nest, frozenset[str]]:
    """The maps that disappear, the nest without them, and the stages that stay."""
    found = _Inlined(group)
    for st in group.stages:
        if found.disappears(st):
            found.gone[st.name] = None
    # A condition that inlining has decided may have been the only use of a stage.
    found.drop_unread()
    remaining = found.remaining()
    buffers = tuple(b for b in group.buffers if b.name not in found.gone)
    nest = start(Group(group.name, buffers, tuple(remaining), group.precision))
    return tuple(found.gone), nest, frozenset(st.name for st in remaining)


def edges_in_lanes(value: Value, path: list[Loop]) -> bool:
    """Is it a read or a number, and do neighbours of the innermost loop differ in which?"""
    return bool(path) and _edges_along(value, path[-1].var)


def _edges_along(value: Value, var: Sym) -> bool:
    guarded = isinstance(value, Fn) and value.name == "select" and isinstance(value.args[2], Const)
    return guarded and isinstance(value.args[1], Load) and var in value.args[0].symbols()


class _Inlined:
    def __init__(self, group: Group) -> None:
        self.group = group
        self.scope = {b.name: b.scope for b in group.buffers}
        self.size = {b.name: b.size for b in group.buffers}
        self.has_sums = any(st.is_reduce for st in group.stages)
        self.gone: dict[str, None] = {}
        self.axes: dict[str, tuple[Sym, ...]] = {}  # the shared axes that a stage is written over
        self.values: dict[str, Value] = {}  # of maps, over shared axes
        self.after: dict[str, Stage] = {}  # stages that stay, without reads of those that are gone
        self.read: dict[Load, Value] = {}  # what a read of such a stage is
        self.costs: dict[Value, bool] = {}  # does a value have an expensive function in it?
        self.reads: dict[str, set[Load]] = defaultdict(set)
        self.users: dict[str, list[Stage]] = defaultdict(list)
        for st in group.stages:
            found = {x for v in _values(st) for x in loads(v) if isinstance(x.source, str)}
            for name in dict.fromkeys(str(x.source) for x in found):
                self.users[name].append(st)
            for x in found:
                self.reads[str(x.source)].add(x)

    def disappears(self, st: Stage) -> bool:
        if not st.is_map or self.scope[st.name] != "local":
            return False
        value, axes = self.over_shared_axes(st)
        self.values[st.name], self.axes[st.name] = value, axes
        users = self.users[st.name]
        if any(u.combine is not None for u in users) and self.edges_in_rows(value, axes):
            return False  # a copy with the edges is cheaper than conditions in each product
        once = len(self.reads[st.name]) <= 1 and not any(self.reused(u, st) for u in users)
        if once or self.ends_in_one(st):
            return True
        # Maps of one shape share loops, and so what they compute; sums have loops of their own, and
        # so has what reads several elements of the same row.
        again = (self.has_sums and len(users) > 1) or self.read_apart(st)
        return not self.expensive(value) and not (again and _is_long(value))

    def edges_in_rows(self, value: Value, axes: tuple[Sym, ...]) -> bool:
        """Do neighbours differ in whether they are inside the edges, those in memory too? Channels
        that are last there lie next to each other, wherever the edges are."""
        if not axes or not _edges_along(value, axes[-1]):
            return False
        assert isinstance(value, Fn)
        read = value.args[1]
        assert isinstance(read, Load)
        if not isinstance(read.source, str):
            return True
        at = linear_index(self.group.buffer(read.source), read.index)
        near = [a for a in axes if D.coefficient(at, a) == 1]
        return not near or any(_edges_along(value, a) for a in near)

    def reused(self, user: Stage, st: Stage) -> bool:
        """Would inlining st into the user compute its points more than once?"""
        total: Dim = 1
        for a in (*user.axes, *user.raxes):
            total = total * extent(a)
        return not D.known_le(total, self.size[st.name])

    def ends_in_one(self, st: Stage) -> bool:
        """Does one stage get all that it is used for, directly or through maps, and need one
        element at each of its points? It is then one value there, however often it is used."""
        found, waiting, ends = {st.name}, [st], dict[str, Stage]()
        while waiting:
            x = waiting.pop()
            for u in self.users[x.name]:
                if self.reused(u, x):
                    return False
                if not u.is_map or self.scope[u.name] != "local":
                    ends[u.name] = u
                elif self._elements(u, found) != {tuple(map(D.as_int, u.axes))}:
                    return False
                elif u.name not in found:
                    found.add(u.name)
                    waiting.append(u)
        if len(ends) != 1:
            return False
        (end,) = ends.values()
        return not end.ordered and len(self._elements(end, found)) == 1

    def _elements(self, u: Stage, of: Collection[str]) -> set[tuple[Dim, ...]]:
        """Where a stage reads others."""
        return {x.index for v in _values(u) for x in loads(v) if x.source in of}

    def read_apart(self, st: Stage) -> bool:
        """Does a stage read several of its elements, perhaps through views?"""
        seen = {st.name}
        readers: dict[str, Stage] = {}
        waiting = [st.name]
        while waiting:
            for u in self.users[waiting.pop()]:
                view = u.is_map and self.scope[u.name] == "local" and isinstance(u.value, Load)
                if not view:
                    readers[u.name] = u
                elif u.name not in seen:
                    seen.add(u.name)
                    waiting.append(u.name)
        return any(sum(x.source in seen for x in set(loads(u.value))) > 1 for u in readers.values())

    def expensive(self, v: Value) -> bool:
        for x in operands_first(v, lambda x: x.operands(), self.costs):
            own = isinstance(x, Fn) and cost_of(x.name) >= WORTH_STORING
            self.costs[x] = own or any(self.costs[y] for y in x.operands())
        return self.costs[v]

    def over_shared_axes(self, st: Stage) -> tuple[Value, tuple[Sym, ...]]:
        axes = tuple(D.the_sym(D.var(f"@{k}", extent(a))) for k, a in enumerate(st.axes))
        table: dict[Sym, Dim] = {a: D.as_int(b) for a, b in zip(st.axes, axes, strict=True)}
        return self.rewritten(st.value, table), axes

    def rewritten(self, v: Value, table: dict[Sym, Dim]) -> Value:
        """A value over other axes, with what is gone in the place of reads of it."""
        if not self.gone:
            return rewrite(v, table)
        return rewrite(v, table, self.element)

    def element(self, x: Load) -> Value:
        name = str(x.source)
        if name not in self.gone:
            return x
        found = self.read.get(x)
        if found is None:
            there = zip(self.axes[name], x.index, strict=True)
            table = {a: i for a, i in there if not (D.is_sym(i) and D.the_sym(i) is a)}
            found = self.read[x] = rewrite(self.values[name], table)
        return found

    def remaining(self) -> list[Stage]:
        """The stages that stay, over their own axes."""
        found = [st for st in self.group.stages if st.name not in self.gone]
        for st in found:
            if st.name not in self.after:
                self.after[st.name] = self.without(st)
        return [self.after[st.name] for st in found]

    def without(self, st: Stage) -> Stage:
        if not any(str(x.source) in self.gone for v in _values(st) for x in loads(v)):
            return st
        shared, axes = self.over_shared_axes(st)
        back: dict[Sym, Dim] = {b: D.as_int(a) for a, b in zip(st.axes, axes, strict=True)}
        where = tuple(
            D.substitute(w, {}, lambda v: self.rewritten(v, {})) if D.data_values(w) else w
            for w in st.where
        )
        init = None if st.init is None else self.rewritten(st.init, {})
        return replace(st, where=where, value=rewrite(shared, back), init=init)

    def drop_unread(self) -> None:
        remaining = self.remaining()
        reads = {
            st.name: {str(x.source) for v in _values(st) for x in loads(v)} for st in remaining
        }
        readers: dict[str, int] = defaultdict(int)
        for found in reads.values():
            for source in found:
                readers[source] += 1
        for st in reversed(remaining):
            if self.scope[st.name] == "local" and not readers[st.name]:
                self.gone[st.name] = None
                for source in reads[st.name]:
                    readers[source] -= 1


def _is_long(v: Value) -> bool:
    """Is it so many operations that a read of a stored result is cheaper, be they simple ones?"""
    count = 0
    for x in walk(v):
        count += isinstance(x, Fn)
        if count > LONG:
            return True
    return False


def _values(st: Stage) -> list[Value]:
    """All values that a stage computes or reads indices from."""
    init = () if st.init is None else (st.init,)
    return [st.value, *init, *(v for w in st.where for v in D.data_values(w))]
