"""Through which arguments a kernel stores: found by following pointers back to where they come
from. What cannot be followed counts: an argument that is not named here is never changed."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.lang.tile.ir import Kernel, Operation, Pointer, Value, makers, walk

_STORES = frozenset(("store", "atomic", "cas"))


def stored_arguments(kernel: Kernel) -> set[int]:
    """Positions of the arguments into whose memory it may store."""
    operations = list(walk(kernel.body))
    made = makers(kernel)
    arguments = {v: k for k, v in enumerate(kernel.arguments)}
    carried: dict[Value, list[Value]] = {}
    for o in operations:
        for block in o.blocks:
            for parameter in block.parameters:
                carried[parameter] = [*o.args, *(y for b in o.blocks for y in b.yields)]
    pending = [o.args[0] for o in operations if o.name in _STORES]
    seen: set[Value] = set(pending)
    found: set[int] = set()
    while pending:
        v = pending.pop()
        if v in arguments:
            found.add(arguments[v])
            continue
        origins = list(_origins(made[v])) if v in made else list(carried[v])
        if isinstance(v.element, Pointer):
            # A pointer comes from pointers; one that is made of numbers comes from all of them.
            origins = [x for x in origins if isinstance(x.element, Pointer)] or origins
        for x in origins:
            if x not in seen:
                seen.add(x)
                pending.append(x)
    return found


def _origins(o: Operation) -> Iterator[Value]:
    yield from o.args
    for block in o.blocks:
        yield from block.yields
