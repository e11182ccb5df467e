"""Uses of values in a tile kernel, and how loops change the values that they carry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tilewright.lang.tile import ir

# Operations that need one element of each operand, the one at their own index.
ELEMENTWISE = frozenset(("map", "cast", "bitcast"))
Makers = Mapping[ir.Value, ir.Operation]


@dataclass
class Uses:
    counts: dict[ir.Value, int] = field(default_factory=dict)
    elsewhere: set[ir.Value] = field(default_factory=set)  # used by what is not elementwise
    pending: dict[ir.Value, int] = field(default_factory=dict)
    inside_loops: set[ir.Value] = field(default_factory=set)
    depth: dict[ir.Value, int] = field(default_factory=dict)  # how many loops a value is inside of
    carried: dict[str, int] = field(default_factory=dict)  # buffers, and uses of their content
    early: set[ir.Operation] = field(default_factory=set)
    made: Makers = field(default_factory=dict)
    every: bool = True

    @staticmethod
    def of(k: ir.Kernel) -> Uses:
        found = Uses(made=ir.makers(k))
        for a in k.arguments:
            found.depth[a] = 0
        found._block(k.body, 0)
        found.pending = dict(found.counts)
        return found

    @staticmethod
    def lazy() -> Uses:
        """Nothing is worth storing in a buffer."""
        return Uses(every=False)

    def _block(self, b: ir.Block, here: int) -> None:
        def use(v: ir.Value) -> None:
            self.counts[v] = self.counts.get(v, 0) + 1
            if self.depth[v] < here:
                self.inside_loops.add(v)

        for p in b.parameters:
            self.depth[p] = here
        for o in b.operations:
            for a in o.args:
                use(a)
            if o.name not in ELEMENTWISE:
                self.elsewhere.update(o.args)
            for inner in o.blocks:
                self._block(inner, here + (o.name in ("for", "while")))
            for r in o.results:
                self.depth[r] = here
        for y in b.yields:
            use(y)

    def count(self, v: ir.Value) -> int:
        return self.counts.get(v, 0) if self.every else 0

    def left(self, v: ir.Value) -> int:
        """Uses that are still to come."""
        return self.pending.get(v, 0)

    def consumed(self, o: ir.Operation, ahead: bool = False) -> None:
        """An operation was lowered: its uses are over; with `ahead`, just before it is."""
        if o in self.early:
            self.early.discard(o)
            return
        if ahead:
            self.early.add(o)
        for a in o.args:
            if a in self.pending:
                self.pending[a] -= 1

    def again(self, b: ir.Block) -> None:
        """A block will be lowered once more."""
        for o in ir.walk(b):
            for a in o.args:
                self.pending[a] = self.pending.get(a, 0) + 1

    def may_change(self, v: ir.Value) -> bool:
        """May the buffer of a value that is used once be overwritten? That of a loop's parameter
        belongs to the loop, that of a result to the operation that made it; a value of an outer
        block is read in every iteration."""
        return v not in self.inside_loops

    def carry(self, buffer: str, parameter: ir.Value) -> None:
        """A use inside a further loop is one in each of its iterations."""
        again = parameter in self.inside_loops
        self.carried[buffer] = self.counts.get(parameter, 0) + again


# What depends on its arguments alone.
_PURE = frozenset(
    "const program_id num_programs map cast bitcast reshape broadcast permute iota offset".split()
)


def invariants(b: ir.Block, uses: Uses) -> dict[ir.Value, ir.Operation]:
    """Values that the body of a loop computes again in every iteration, always the same: by pure
    operations on what is defined outside the loop, and on each other. In the order of the body."""
    inside = uses.depth[b.parameters[0]]
    found: dict[ir.Value, ir.Operation] = {}
    for o in b.operations:
        if o.name in _PURE and all(uses.depth[a] < inside or a in found for a in o.args):
            found.update(dict.fromkeys(o.results, o))
    return found


def increments(b: ir.Block, uses: Uses) -> dict[int, ir.Value | int]:
    """The induction variables among what a loop carries, by their numbers: those to which every
    iteration adds the same number, with that number. It is a constant or a scalar that is defined
    outside the loop or is one of its invariants; nothing else is known not to change."""
    inside = uses.depth[b.parameters[0]]
    same = invariants(b, uses)
    out: dict[int, ir.Value | int] = {}
    for k, (p, y) in enumerate(zip(b.parameters[1:], b.yields, strict=True)):
        by = _increment(p, y, uses.made)
        if isinstance(by, int) or (by is not None and (uses.depth[by] < inside or by in same)):
            out[k] = by
    return out


def before(
    b: ir.Block, wanted: Iterable[ir.Value], same: Mapping[ir.Value, ir.Operation]
) -> list[ir.Operation]:
    """The operations of a loop's body that some of its invariants need, in order."""
    needed = {v for v in wanted if v in same}
    found: list[ir.Operation] = []
    for o in reversed(b.operations):
        if any(r in needed for r in o.results):
            found.append(o)
            needed.update(a for a in o.args if a in same)
    return found[::-1]


def _increment(p: ir.Value, y: ir.Value, made: Makers) -> ir.Value | int | None:
    o = made.get(y)
    if y is p:
        return 0
    if o is None:
        return None
    adds = o.name == "offset" or (o.name == "map" and o.attrs["fn"] == "add")
    if not adds:
        return None
    for base, by in ((o.args[0], o.args[1]), (o.args[1], o.args[0])):
        if base is p:
            return _uniform(by, made)
        if o.name == "offset":
            break
    return None


def _uniform(v: ir.Value, made: Makers) -> ir.Value | int | None:
    """The one number that a tile is full of."""
    while (o := made.get(v)) is not None and o.name in ("broadcast", "reshape"):
        v = o.args[0]
    if o is not None and o.name == "const" and isinstance(o.attrs["value"], int):
        return int(o.attrs["value"])
    return v if not v.shape else None
