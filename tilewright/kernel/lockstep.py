"""Which loops around a few stores may run all of their iterations together, store by store.

For whatever runs nests on whole arrays. Iterations of a loop have nothing to do with each other if
everything they write is either their own memory, allocated inside, or at a place that has the
loop's variable as one of its indices, and is touched nowhere else: `t[i,j]` in loops i and j, as in
a reduction that carries several numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.kernel.nest import LANES, Alloc, Loop, Stmt, Store, store_loads


@dataclass(frozen=True)
class Lockstep:
    """Loops whose iterations run together, and what each of them runs, other loops included."""

    together: tuple[Loop, ...]
    body: tuple[Stmt, ...]
    writes: frozenset[str]  # memory that outlives an iteration


def lockstep(s: Loop) -> Lockstep | None:
    """Loops directly inside each other, from `s` on, around stores: those of them that may."""
    chain = [s]
    while len(chain[-1].body) == 1 and isinstance(inner := chain[-1].body[0], Loop):
        chain.append(inner)
    body = chain[-1].body
    stores = [x for x in body if isinstance(x, Store)]
    own = {x.buffer for x in body if isinstance(x, Alloc)}
    if not stores or len(stores) + len(own) != len(body):
        return None
    if any(q.kind == "parallel" for q in chain[1:]) or len({q.name for q in chain}) < len(chain):
        return None  # what is wrong there is found one by one
    if any(D.data_values(q.extent) or LANES in dict(q.pragmas) for q in chain):
        return None
    places = _places(stores, own)
    if places is None:
        return None
    free = {q.var for q in chain if all(_has(index, q) for index in places.values())}
    loops = {q.var for q in chain}
    while True:  # how often a loop of either kind runs does not depend on those of the other one
        mixed: set[Sym] = set()
        for q in chain:
            around = D.symbols(q.extent) & loops
            if q.var not in free:
                mixed |= around & free
            elif around - free:
                mixed.add(q.var)
        if not mixed:
            break
        free -= mixed
    rest = [q for q in chain if q.var not in free]
    if not free or any(q.kind in ("lane", "parallel") for q in rest):
        return None
    for q in reversed(rest):
        body = (replace(q, body=body),)
    return Lockstep(tuple(q for q in chain if q.var in free), body, frozenset(places))


def _places(stores: list[Store], own: set[str]) -> dict[str, tuple[Dim, ...]] | None:
    """By memory that is written and not allocated there, the one place that is touched of it."""
    places = {x.buffer: x.index for x in stores if x.buffer not in own}
    touched = [(x.buffer, x.index) for x in stores]
    touched += [(str(r.source), r.index) for x in stores for r in store_loads(x)]
    same = all(index == places.get(name, index) for name, index in touched)
    return places if same else None


def _has(index: tuple[Dim, ...], loop: Loop) -> bool:
    return any(D.is_sym(i) and D.the_sym(i) is loop.var for i in index)
