"""Memory that a program gives back to the system while it runs: of the arena, and of inputs that
nobody needs after the call. A gradient's program needs less and less of what was kept for it while
it makes its results, so their pages need not be there at the same time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tilewright.graph.classify import nbytes
from tilewright.graph.cluster import Fused
from tilewright.graph.memory import Plan
from tilewright.ir.dim import Dim
from tilewright.ir.node import Node

LEAST = 1 << 20  # bytes that are worth a call of the system, and pages that are touched anew


@dataclass(frozen=True)
class Freed:
    """Bytes of an input, or of the arena, that nobody needs any more after a cluster."""

    after: int  # the number of the cluster, or of its batch
    owner: Node | None  # None: the arena
    start: int
    size: int


@dataclass(frozen=True)
class _Used:
    """Bytes from the first cluster that writes them to the last that reads them."""

    start: int
    end: int
    first: int
    last: int


def freed(
    fused: Fused, p: Plan, spent: Collection[Node], inside: Mapping[int, tuple[Dim, Dim]]
) -> list[Freed]:
    """What is worth giving back, in order: as long as more memory will be needed than before.
    `inside`: the bytes of the arena that programs inside a cluster use, by its number."""
    end = fused.batch(len(fused.clusters) - 1) if fused.clusters else 0
    places: dict[Node | int | None, list[_Used]] = {}
    for k, (start, stop) in inside.items():
        if isinstance(start, int) and isinstance(stop, int):
            places.setdefault(None, []).append(_Used(start, stop, k, k))
    for owner, used in _uses(fused, p, spent, end):
        places.setdefault(owner, []).append(used)
    live = [0] * (end + 1)
    found: list[tuple[Node | None, _Used]] = []
    for owner, uses in places.items():
        pages = list(_pages(uses))
        for u in pages if isinstance(owner, int) else _joined(pages):
            # Results are the caller's, and small pieces stay when they were used once.
            stays = isinstance(owner, int) or u.end - u.start < LEAST
            for x in (x for x in pages if u.start <= x.start and x.end <= u.end):
                _add(live, x, max(x.first, 0), end if stays else u.last)
            if not isinstance(owner, int) and not stays:
                found.append((owner, u))
    most = max(live) + LEAST
    kept = []
    for owner, u in sorted(found, key=lambda x: x[1].last, reverse=True):
        # What would not be missed is not given back.
        if max((n + u.end - u.start for n in live[u.last + 1 :]), default=0) <= most:
            _add(live, u, u.last + 1, end)
        else:
            kept.append(Freed(u.last, owner, u.start, u.end - u.start))
    return kept[::-1]


def _add(live: list[int], u: _Used, first: int, last: int) -> None:
    for k in range(first, last + 1):
        live[k] += u.end - u.start


def _uses(
    fused: Fused, p: Plan, spent: Collection[Node], end: int
) -> Iterator[tuple[Node | int | None, _Used]]:
    """Of the memory of inputs, of results (by their positions), and of the arena (None)."""
    first: dict[Node, int] = {}
    last: dict[Node, int] = {}
    for at, c in enumerate(fused.clusters):
        k = fused.batch(at)
        first |= dict.fromkeys(c.outputs, k)
        last |= dict.fromkeys((*c.outputs, *(p.aliases.get(x, x) for x in c.inputs)), k)
    copied = {p.aliases.get(x, x) for _, x in p.copies}
    for x in spent:
        size = nbytes(x.ttype)
        if isinstance(size, int) and x not in copied:
            yield x, _Used(0, size, -1, last.get(x, -1))
    for x in last:
        size = nbytes(x.ttype)
        if not isinstance(size, int) or x not in first:
            continue
        if x in p.outputs:
            yield p.outputs[x], _Used(0, size, first[x], end)
        elif x in p.over:
            owner, start = p.over[x]
            yield owner, _Used(start, start + size, first[x], last[x])
        elif isinstance(start := p.offsets[x], int):
            yield None, _Used(start, start + size, first[x], last[x])


def _pages(found: Sequence[_Used]) -> Iterator[_Used]:
    """Apart in memory, each from its first use to its last."""
    edges = sorted({x for u in found for x in (u.start, u.end)})
    for start, end in pairwise(edges):
        own = [u for u in found if u.start <= start and end <= u.end]
        if own:
            yield _Used(start, end, min(u.first for u in own), max(u.last for u in own))


def _joined(found: Iterable[_Used]) -> list[_Used]:
    """Neighbours that end at the same time as one, and small ones with the neighbour that ends at
    nearly the same time: pieces that are worth to be given back, as far as there are any."""
    out: list[_Used] = []
    for u in found:
        if out and (out[-1].end, out[-1].last) == (u.start, u.last):
            u = _both(out.pop(), u)
        out.append(u)
    while True:
        small = [k for k, u in enumerate(out) if u.end - u.start < LEAST]
        pairs = {j for k in small for j in (k - 1, k) if 0 <= j < len(out) - 1}
        near = [j for j in pairs if out[j].end == out[j + 1].start]
        if not near:
            return out
        k = min(near, key=lambda j: (abs(out[j].last - out[j + 1].last), j))
        out[k : k + 2] = [_both(out[k], out[k + 1])]


def _both(a: _Used, b: _Used) -> _Used:
    return _Used(a.start, b.end, min(a.first, b.first), max(a.last, b.last))
