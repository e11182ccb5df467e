"""What a forward program keeps for its gradient, and what the gradient computes again.

Keeping a value costs the time to read it, and to write it where nothing else needs it in memory;
computing it again costs what its operators do, and whatever these read has to be kept or computed
again as well. The cheapest choice is a smallest cut: every value is a pair of nodes, and which side
of the cut they are on says what becomes of it.

    source ──again──► before ──keep──► after ──∞──► sink, where the gradient reads it
                        ▲ ∞
                after of each operand

Both on the source's side: nobody needs it. Both on the other: it is computed again, and so are its
operands, or they are kept. The edge between them cut: it is kept. A limit of bytes is a price per
byte: `within` raises it as far as needed, so that what saves most bytes for its time goes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.base.min_cut import INFINITE, Network

_UNITS = 10**12  # of capacities in a second
_EACH = 1e-7  # seconds of one more value that is kept: the host's work
# How much more a byte of the first value counts than one of the last. Values of equal layers go one
# after the other, the first layers first: when the gradient needs those, it has used most of what
# was kept.
_FIRST = 0.25


@dataclass(frozen=True)
class Value:
    """One value of a forward program."""

    operands: tuple[int, ...]  # numbers of the values that it is computed from
    bytes: int  # that keeping it takes; 0 of what is there in any case
    keep: float | None  # seconds that keeping it costs; None: it cannot be kept
    again: float | None  # seconds of computing it in the gradient; None: it cannot be computed
    needed: bool  # does the gradient read it?


@dataclass(frozen=True)
class Kept:
    """Numbers of values that are kept, and of those that are computed again."""

    kept: frozenset[int]
    again: frozenset[int]
    bytes: int
    seconds: float


def cheapest(values: Sequence[Value], price: float = 0.0) -> Kept:
    """The least time, where a byte that is kept costs `price` seconds."""
    net = Network()
    before = [net.node() for _ in values]
    after = [net.node() for _ in values]
    for k, v in enumerate(values):
        if v.again is None:
            net.edge(net.SOURCE, before[k], INFINITE)
        else:
            net.edge(net.SOURCE, before[k], int(v.again * _UNITS))
        cost = INFINITE if v.keep is None else _capacity(v, _weight(k, len(values)) * price)
        net.edge(before[k], after[k], cost)
        for x in v.operands:
            net.edge(after[x], before[k], INFINITE)
        if v.needed:
            net.edge(after[k], net.SINK, INFINITE)
    side = net.source_side()
    kept = frozenset(k for k in range(len(values)) if side[before[k]] and not side[after[k]])
    again = frozenset(k for k in range(len(values)) if not side[before[k]])
    seconds = sum(values[k].keep or 0.0 for k in kept) + sum(values[k].again or 0.0 for k in again)
    return Kept(kept, again, sum(values[k].bytes for k in kept), seconds)


def _capacity(v: Value, price: float) -> int:
    assert v.keep is not None
    return int((v.keep + _EACH + price * v.bytes) * _UNITS)


def _weight(k: int, count: int) -> float:
    return 1 + _FIRST * (1 - k / count)


def within(values: Sequence[Value], limit: int) -> Kept:
    """The least time with at most so many bytes; where that cannot be, the fewest bytes.

    Choices that are cheapest at some price are corners of a curve of time over bytes. The corner
    wanted lies between two that are known, and the price at which those cost the same finds it, or
    one nearer to it, or tells that there is none between them.
    """

    def counted(x: Kept) -> float:
        return sum(_weight(k, len(values)) * values[k].bytes for k in x.kept)

    much = cheapest(values)
    if much.bytes <= limit:
        return much
    little = cheapest(values, price=1e-3)  # seconds per byte: more than any machine takes
    while little.bytes <= limit:
        saved = counted(much) - counted(little)
        if saved <= 0:
            break
        price = (little.seconds - much.seconds) / saved
        found = cheapest(values, price)
        if found.kept in (much.kept, little.kept):
            break
        if found.bytes > limit:
            much = found
        else:
            little = found
    return little
