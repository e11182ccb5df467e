"""The static memory plan: one arena, offsets by lifetime, results in place where that is safe.

Every value that a cluster stores gets an offset in one arena, unless it is a result of the program:
then it is written to the caller's buffer. Reshapes share the storage of what they rename. Sizes may
be symbolic; then values take turns in slots as large as their largest; offsets are sums of these.
Inputs that nobody needs after a call are memory for values, too, once they have been read, and so
are results whose memory is new for each call, until they are written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from tilewright.graph.classify import facts, guess, nbytes
from tilewright.graph.cluster import Cluster, Fused
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Load, Tensor, loads
from tilewright.ir.node import Node
from tilewright.ir.operator import stages

ALIGNMENT = 64  # a cache line, and the widest vector


@dataclass(frozen=True, eq=False)
class Plan:
    """Where every stored value lives. Sizes and offsets are bytes."""

    size: Dim  # of the arena
    offsets: Mapping[Node, Dim]  # in the arena
    outputs: Mapping[Node, int]  # values stored in the buffer of the result at this position
    aliases: Mapping[Node, Node]  # a reshape and the stored value or source whose bytes it names
    in_place: Mapping[Node, Node]  # a cluster's output and its input that it overwrites
    copies: tuple[tuple[int, Node], ...]  # results that are copied at the end, and from what
    peak: int  # the arena's size, with usual values for symbols
    lower_bound: int  # the most bytes of the arena alive at once: no plan is smaller
    updated: tuple[tuple[int, Node], ...] = ()  # results that may lie where an input does
    # Values in the memory of inputs that are not needed any more, or of the result at a position,
    # before it is written; and how many bytes from there
    over: Mapping[Node, tuple[Node | int, int]] = field(default_factory=dict)
    # Of values in the arena: where they end, and the first and the last batch that needs them
    ends: tuple[tuple[Dim, int, int], ...] = ()

    def free_from(self, batch: int) -> Dim:
        """The offset in the arena behind all that lives there while a batch runs."""
        found = [end for end, first, last in self.ends if first <= batch <= last]
        known = [end for end in found if isinstance(end, int)]
        return max(known, default=0) if len(known) == len(found) else self.size

    def where(self, x: Node) -> tuple[str, Dim | Node | tuple[Node | int, int]]:
        """("arena", offset), ("output", position), ("over", (input or position, at)) or
        ("source", node)."""
        base = self.aliases.get(x, x)
        if base in self.outputs:
            return "output", self.outputs[base]
        if base in self.over:
            return "over", self.over[base]
        if base in self.offsets:
            return "arena", self.offsets[base]
        return "source", base

    def __str__(self) -> str:
        over = f", {len(self.over)} over inputs and results" if self.over else ""
        return (
            f"arena of {self.size} bytes for {len(self.offsets)} values, "
            f"{len(self.in_place)} in place{over}, {len(self.copies)} copied at the end"
        )


@dataclass
class _Storage:
    """Bytes with one lifetime, from the cluster that first writes them to the last that reads."""

    nodes: list[Node]
    size: Dim
    first: int
    last: int
    output: int | None = None
    over: Node | None = None  # the input whose bytes they are


def plan(
    fused: Fused,
    overwritten: Mapping[Node, int] | None = None,
    updates: Mapping[int, Node] | None = None,
    spent: Collection[Node] = (),
    fresh: bool = False,
) -> Plan:
    """`overwritten`: inputs that may lie where the result at a position goes, such as values that a
    loop carries. They do where that result is an update of them in place.

    `updates`: results that are new values of inputs, which the caller would have there. The plan
    says of which this is possible, whatever else the program reads.

    `spent`: inputs whose values nobody needs after the call. `fresh`: the memory of results, other
    than `updates`, has nothing in it before the call."""
    return _Planner(fused, overwritten or {}, updates or {}, spent, fresh).run()


class _Planner:
    def __init__(
        self,
        fused: Fused,
        overwritten: Mapping[Node, int],
        updates: Mapping[int, Node],
        spent: Collection[Node],
        fresh: bool,
    ) -> None:
        self.fused, self.overwritten, self.updates, self.spent = fused, overwritten, updates, spent
        self.fresh = fresh
        self.storage: dict[Node, _Storage] = {}
        self.in_place: dict[Node, Node] = {}
        self.readers: dict[tuple[Node, int], int] = {}  # of a value in a batch

    def run(self) -> Plan:
        last, results, copies = self.uses()
        copied = {x for _, x in copies}
        for x, at in self.overwritten.items():
            if x in last and x not in copied:
                self.storage[x] = _Storage([x], aligned(nbytes(x.ttype)), -1, last[x], at)
        lent = [x for x in self.spent if x not in copied and self.may_lend(x)]
        for x in lent:
            self.storage[x] = _Storage([x], nbytes(x.ttype), -1, last.get(x, -1), over=x)
        updated = []
        for k, c in enumerate(self.fused.clusters):
            taken: set[Node] = set()
            for o in c.outputs:
                x = self.updates.get(results.get(o, -1))
                if x is not None and x not in copied and self.replaces(k, c, o, x, last):
                    # No other value lives there before it: x does.
                    batch = self.fused.batch(k)
                    size = aligned(nbytes(o.ttype))
                    self.storage[o] = _Storage([o], size, batch, last[o], results[o])
                    updated.append((results[o], x))
                else:
                    self.give(self.fused.batch(k), c, o, last, results, taken)
        for x in self.overwritten:
            if x in self.storage and self.storage[x].nodes == [x]:
                del self.storage[x]
        storages = list({id(s): s for s in self.storage.values()}.values())
        rooms = [_Room(s.over, _room_of(s.over), s) for s in storages if s.over is not None]
        over: dict[Node, tuple[Node | int, int]]
        over = {n: (s.over, 0) for s in storages if s.over for n in s.nodes if n is not s.over}
        inside = _place_over(
            [s for s in storages if s.output is None and s.over is None], rooms, over
        )
        if self.fresh:
            inside = _place_before(inside, list(self.unwritten(storages)), over)
        size = _place_all(inside, offsets := {})
        bound = _most_alive([(guess(s.size), s.first, s.last) for s in inside])
        outputs = {n: s.output for s in storages if s.output is not None for n in s.nodes}
        return Plan(
            size,
            offsets,
            outputs,
            dict(self.fused.aliases),
            self.in_place,
            tuple(copies),
            guess(size),
            bound,
            tuple(updated),
            over,
            tuple((offsets[s.nodes[0]] + s.size, s.first, s.last) for s in inside),
        )

    def may_lend(self, x: Node) -> bool:
        """Has an input enough bytes, of a known number?"""
        size = nbytes(x.ttype)
        return isinstance(size, int) and size >= LENT

    def unwritten(self, storages: Sequence[_Storage]) -> Iterator[_Room]:
        """The memory of results, which is free until they are written."""
        taken = {*self.overwritten.values(), *self.updates}
        end = len(self.fused.clusters)
        for s in storages:
            if s.output is None or s.output in taken or not isinstance(s.size, int):
                continue
            size = nbytes(self.fused.graph.outputs[s.output].ttype)
            if s.first > 0 and isinstance(size, int) and size >= LENT:
                yield _Room(s.output, size, replace(s, last=end))

    def base(self, x: Node) -> Node:
        return self.fused.aliases.get(x, x)

    def uses(self) -> tuple[dict[Node, int], dict[Node, int], list[tuple[int, Node]]]:
        """Last reader of each value; position of each result; results that need a copy."""
        last: dict[Node, int] = {}
        made: set[Node] = set()
        for at, c in enumerate(self.fused.clusters):
            k = self.fused.batch(at)
            for o in c.outputs:
                last[o] = k
                made.add(o)
            for x in {self.base(x) for x in c.inputs}:
                last[x] = k
                self.readers[x, k] = self.readers.get((x, k), 0) + 1
        results: dict[Node, int] = {}
        copies: list[tuple[int, Node]] = []
        for j, o in enumerate(self.fused.graph.outputs):
            base = self.base(o)
            if base in made and base not in results:
                results[base] = j
            else:  # an input, a constant, or a value that another result already is
                copies.append((j, base))
        return last, results, copies

    def give(
        self,
        k: int,
        c: Cluster,
        o: Node,
        last: Mapping[Node, int],
        results: Mapping[Node, int],
        taken: set[Node],
    ) -> None:
        """Storage for output o of cluster k: an input that dies here, or new bytes."""
        for x in overwritable(c, o, self.fused.aliases):
            base = self.base(x)
            found = self.storage.get(base)
            dies = found is not None and self.is_last(base, k, last) and base not in results
            if found is None or not dies or base in taken:
                continue
            at = self.overwritten.get(base)
            if at is not None and (c.kind != "program" or results.get(o) != at):
                continue  # a copy before the loop pays where a round updates a few elements
            if found.over is not None and o in results:
                continue  # a result is the caller's
            taken.add(base)
            found.nodes.append(o)
            found.last = last[o]
            if o in results:
                found.output = results[o]
            self.storage[o] = found
            self.in_place[o] = x
            return
        size = aligned(nbytes(o.ttype))
        self.storage[o] = _Storage([o], size, k, last[o], results.get(o))

    def is_last(self, x: Node, k: int, last: Mapping[Node, int]) -> bool:
        """Does one cluster of the batch k read it, and none after it?"""
        return last[x] == k and self.readers[x, k] == 1

    def replaces(self, k: int, c: Cluster, o: Node, x: Node, last: Mapping[Node, int]) -> bool:
        """May output o of cluster k lie where input x does? Nothing may read x after it."""
        batch = self.fused.batch(k)
        if last.get(x, -1) < batch:
            return True
        own = [y for y in c.inputs if self.base(y) is x]
        if c.kind != "map" or not own or not self.is_last(x, batch, last):
            return False
        there = _read_at_output_index(c, o)
        return all(y in there and not _read_later(c, o, y) for y in own)


def overwritable(c: Cluster, o: Node, aliases: Mapping[Node, Node]) -> Iterator[Node]:
    """Inputs whose every element is read before, or exactly where, the output replaces it."""
    if len(c.outputs) != 1:
        return  # another output's loop might still read what this one's has replaced
    found = _read_at_output_index(c, o) if c.kind == "map" else _updated_base(c)
    for x in found:
        base = aliases.get(x, x)
        others = [y for y in c.inputs if aliases.get(y, y) is base and y is not x]
        if x.dtype.bytes == o.dtype.bytes and not others:
            yield x


def _read_at_output_index(c: Cluster, o: Node) -> list[Node]:
    """Inputs of a map that are read at exactly the output's index on every path."""
    elsewhere: set[Node] = set()
    for q in reversed(c.nodes):
        f = facts(q)
        exact = q not in elsewhere
        for a in f.accesses:
            x = q.inputs[a.operand]
            if not (exact and a.pointwise(x.shape, o.shape)):
                elsewhere.add(x)
    return [x for x in c.inputs if x not in elsewhere]


def _read_later(c: Cluster, o: Node, x: Node) -> bool:
    """Does an output behind o need x, other than through outputs? Then a loop of its own might read
    what that of o has replaced."""
    position = {n: k for k, n in enumerate(c.nodes)}
    stack = [y for q in c.outputs if position[q] > position[o] for y in q.inputs]
    ends, seen = set(c.outputs), set[Node]()
    while stack:
        y = stack.pop()
        if y is x:
            return True
        if y not in seen and y not in ends and y in position:
            seen.add(y)
            stack += y.inputs
    return False


def _updated_base(c: Cluster) -> list[Node]:
    """The operand that a single ordered update starts from, where nothing else reads it."""
    if c.kind != "program" or c.anchor is None:
        return []
    f = facts(c.anchor)
    if len(f.outputs) != 1 or list(stages(f.outputs)) != list(f.outputs):
        return []
    (t,) = f.outputs
    if t.kind != "update" or t.base is None or t.base in _loaded(t):
        return []
    x = c.anchor.inputs[f.inputs.index(t.base)]
    if any(x in n.inputs for n in c.nodes if n is not c.anchor):
        return []
    return [x] if c.anchor.inputs.count(x) == 1 else []


def _loaded(t: Tensor) -> set[Tensor | str]:
    assert t.body is not None
    values = [t.body, *(v for w in t.where or () for v in D.data_values(w))]
    return {x.source for v in values for x in loads(v) if isinstance(x, Load)}


# ---- placement

LENT = 1 << 16  # bytes of an input from which on its memory is used again
# Before a result is written, its memory serves values that are so much of what the arena would be:
# smaller ones take turns in memory that the caches know.
SHARE = 16
MOVES = 64  # of such values, at most


def _room_of(x: Node) -> int:
    size = nbytes(x.ttype)
    assert isinstance(size, int)
    return size


class _Room:
    """The memory of an input, after it has been read, or of a result, before it is written; and
    what lives there."""

    def __init__(self, owner: Node | int, size: int, own: _Storage) -> None:
        self.owner = owner
        self.size = size // ALIGNMENT * ALIGNMENT
        self.tenants = [(0, self.size, own.first, own.last)]  # first and last byte, and moment

    def offset(self, size: int, first: int, last: int) -> tuple[int, int] | None:
        """The bytes that are left of the smallest gap with room for a lifetime, and where it is."""
        best: tuple[int, int] | None = None
        top = 0
        alive = [t for t in self.tenants if not (t[3] < first or last < t[2])]
        for begin, end, _, _ in sorted((*alive, (self.size, self.size, 0, 0))):
            left = begin - top - size
            if left >= 0 and (best is None or left < best[0]):
                best = left, top
            top = max(top, end)
        return best


def _place_over(
    storages: Sequence[_Storage], rooms: Sequence[_Room], over: dict[Node, tuple[Node | int, int]]
) -> list[_Storage]:
    """Those that find no room in the memory of inputs; the largest look for it first."""
    largest = sorted(storages, key=lambda s: (-guess(s.size), s.first))
    return [s for s in largest if not _finds_room(s, rooms, over)]


def _finds_room(
    s: _Storage, rooms: Sequence[_Room], over: dict[Node, tuple[Node | int, int]]
) -> bool:
    """In the gap that it fills best."""
    size = s.size
    if not isinstance(size, int) or size < LENT:
        return False
    at = ((r.offset(size, s.first, s.last), k) for k, r in enumerate(rooms))
    found = [(where, k) for where, k in at if where is not None]
    if not found:
        return False
    (_, offset), k = min(found)
    rooms[k].tenants.append((offset, offset + size, s.first, s.last))
    over.update((n, (rooms[k].owner, offset)) for n in s.nodes)
    return True


def _place_before(
    storages: Sequence[_Storage], rooms: Sequence[_Room], over: dict[Node, tuple[Node | int, int]]
) -> list[_Storage]:
    """Those that stay in the arena when, as long as that makes it smaller, the largest of those
    that are alive with the most bytes lie where results will be."""
    rest = list(storages)
    for _ in range(MOVES if rooms else 0):
        alive, moment = _fullest([(guess(s.size), s.first, s.last) for s in rest])
        there = [s for s in rest if s.first <= moment <= s.last and guess(s.size) * SHARE >= alive]
        there.sort(key=lambda s: -guess(s.size))
        moved = next((s for s in there if _finds_room(s, rooms, over)), None)
        if moved is None:
            break
        rest.remove(moved)
    return rest


def aligned(size: Dim) -> Dim:
    """Bytes, as many as are given out for so many."""
    if D.divisor(size) % ALIGNMENT == 0:
        return size
    return D.ceildiv(size, ALIGNMENT) * ALIGNMENT


@dataclass
class _Slot:
    """Memory that values have one after the other: as large as the largest, whichever that is."""

    tenants: list[_Storage]
    sizes: list[Dim]  # of tenants, without those that are known to be no larger than another

    def free(self, s: _Storage) -> bool:
        return all(s.last < t.first or t.last < s.first for t in self.tenants)

    def holds(self, s: _Storage) -> bool:
        return any(D.known_le(s.size, x) for x in self.sizes)

    def take(self, s: _Storage) -> None:
        self.tenants.append(s)
        if not self.holds(s):
            self.sizes = [*(x for x in self.sizes if not D.known_le(x, s.size)), s.size]


def _place_all(storages: Sequence[_Storage], offsets: dict[Node, Dim]) -> Dim:
    """Static storages first, then slots of symbolic size behind them; gives the arena's size.

    Usual sizes decide who shares a slot, the largest first: images that get smaller from layer to
    layer are no multiples of each other, and nothing is known of their order."""
    fixed = [s for s in storages if isinstance(s.size, int)]
    at, top = place([(int(s.size), s.first, s.last) for s in fixed])  # type: ignore[arg-type]
    for s, offset in zip(fixed, at, strict=True):
        offsets.update(dict.fromkeys(s.nodes, offset))
    slots: list[_Slot] = []
    open_ended = [s for s in storages if not isinstance(s.size, int)]
    for s in sorted(open_ended, key=lambda s: (-guess(s.size), s.first)):
        free = [x for x in slots if x.free(s)]
        slot = next((x for x in free if x.holds(s)), free[0] if free else None)
        if slot is None:
            slots.append(slot := _Slot([], []))
        slot.take(s)
    end: Dim = top
    for x in slots:
        for s in x.tenants:
            offsets.update(dict.fromkeys(s.nodes, end))
        end = end + reduce(D.maximum, x.sizes)
    return end


STRETCH = 8  # moments

Lifetime = tuple[int, int, int]  # size, first and last moment, both inclusive


def place(items: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Offsets that never overlap in space and time, and the total; the better of two orders."""
    by_size = sorted(range(len(items)), key=lambda k: (-items[k][0], items[k][1]))
    by_time = sorted(range(len(items)), key=lambda k: (items[k][1], -items[k][0]))
    return min((_best_fit(items, order) for order in (by_size, by_time)), key=lambda r: r[1])


def _best_fit(items: Sequence[Lifetime], order: Sequence[int]) -> tuple[list[int], int]:
    """Each item in the smallest gap between those placed before it that are alive with it."""
    at = [0] * len(items)
    # Offset, end, first and last moment of those that were placed, by stretches of time: most live
    # for a short time, and are compared with few others.
    placed: dict[int, list[tuple[int, int, int, int]]] = {}
    total = 0
    for k in order:
        size, first, last = items[k]
        if size == 0:
            continue
        best: tuple[int, int] | None = None
        top = 0
        stretches = range(first // STRETCH, last // STRETCH + 1)
        for offset, end, f, e in sorted({x for s in stretches for x in placed.get(s, ())}):
            if e < first or last < f:
                continue
            if size <= offset - top and (best is None or offset - top < best[0]):
                best = offset - top, top
            top = max(top, end)
        at[k] = top if best is None else best[1]
        for s in stretches:
            placed.setdefault(s, []).append((at[k], at[k] + size, first, last))
        total = max(total, at[k] + size)
    return at, total


def _most_alive(items: Sequence[Lifetime]) -> int:
    return _fullest(items)[0]


def _fullest(items: Sequence[Lifetime]) -> tuple[int, int]:
    """The most bytes that are alive at once, and when."""
    change: dict[int, int] = {}
    for size, first, last in items:
        change[first] = change.get(first, 0) + size
        change[last + 1] = change.get(last + 1, 0) - size
    live = best = when = 0
    for moment in sorted(change):
        live += change[moment]
        if live > best:
            best, when = live, moment
    return best, when
