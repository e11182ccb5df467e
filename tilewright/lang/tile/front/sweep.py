"""Dead code elimination: remove operations without users, and variables that a loop carries only
because two parts of the program use one name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright.lang.tile.ir import Block, Kernel, Operation, Value, renumbered

# Operations with effects. A load whose result is not used is removed.
_DONE = frozenset(("store", "atomic", "cas", "print", "assert"))
# The first argument and the first parameter of a block that a loop carries.
_CARRIED = {"for": (3, 1), "while": (0, 0)}


def sweep(kernel: Kernel, names: Mapping[Value, str] | None = None) -> Kernel:
    """The kernel without dead code, its values numbered in order, and some named."""
    live = _Live()
    live.block(kernel.body)
    live.close()
    return renumbered(replace(kernel, body=_shortened(kernel.body, live)), names)


class _Live:
    """What the effects of a kernel depend on. Operations are compared by identity: two that are
    equal may stand in different branches."""

    def __init__(self) -> None:
        self.values: set[Value] = set()
        self.operations: set[int] = set()
        self.waiting: list[Value] = []
        self.makers: dict[Value, tuple[Operation, int]] = {}
        self.owners: dict[Value, tuple[Operation, int]] = {}  # of blocks' parameters
        self.parents: dict[int, Operation] = {}

    def block(self, b: Block, inside: Operation | None = None) -> None:
        for o in b.operations:
            if inside is not None:
                self.parents[id(o)] = inside
            self.makers.update((r, (o, k)) for k, r in enumerate(o.results))
            for inner in o.blocks:
                self.owners.update((p, (o, k)) for k, p in enumerate(inner.parameters))
                self.block(inner, o)
            if o.name in _DONE or (o.name == "load" and o.attrs.get("volatile")):
                self.keep(o)
            elif o.name == "while":
                self.keep(o)  # it may be waiting for another program

    def use(self, v: Value) -> None:
        if v not in self.values:
            self.values.add(v)
            self.waiting.append(v)

    def keep(self, o: Operation) -> None:
        if id(o) in self.operations:
            return
        self.operations.add(id(o))
        if o.name == "for":
            needed = o.args[:3]
        elif o.name == "while":
            needed = o.blocks[0].yields
        else:
            needed = o.args
        for a in needed:
            self.use(a)
        if o.name in ("reduce", "scan"):
            for y in o.blocks[0].yields:
                self.use(y)
        if id(o) in self.parents:
            self.keep(self.parents[id(o)])

    def close(self) -> None:
        while self.waiting:
            v = self.waiting.pop()
            if v in self.makers:
                o, k = self.makers[v]
                self.keep(o)
                self._result(o, k)
            elif v in self.owners:
                o, k = self.owners[v]
                self.keep(o)
                if o.name in _CARRIED:
                    _, first = _CARRIED[o.name]
                    if k >= first:
                        self._result(o, k - first)

    def _result(self, o: Operation, k: int) -> None:
        """Result k of a control operation is used, or what a loop carries as its k-th."""
        if o.name in _CARRIED:
            given, own = _CARRIED[o.name]
            self.use(o.args[given + k])
            self.use(o.blocks[-1].yields[k])
            for b in o.blocks:
                self.use(b.parameters[own + k])
            self.use(o.results[k])
        elif o.name == "if":
            for b in o.blocks:
                self.use(b.yields[k])


def _shortened(b: Block, live: _Live) -> Block:
    found = (o for o in b.operations if id(o) in live.operations)
    return replace(b, operations=tuple(_narrowed(o, live) for o in found))


def _narrowed(o: Operation, live: _Live) -> Operation:
    """An operation without dead code in its blocks and unused results."""
    if not o.blocks:
        return o
    blocks = tuple(_shortened(b, live) for b in o.blocks)
    kept = [k for k, r in enumerate(o.results) if r in live.values]
    if o.name in ("reduce", "scan") or len(kept) == len(o.results):
        return replace(o, blocks=blocks)
    args = o.args
    if o.name in _CARRIED:
        given, own = _CARRIED[o.name]
        args = (*args[:given], *(args[given + k] for k in kept))
        blocks = tuple(
            replace(b, parameters=(*b.parameters[:own], *(b.parameters[own + k] for k in kept)))
            for b in blocks
        )
    # The condition of a while yields no results.
    fixed, rest = (blocks[:1], blocks[1:]) if o.name == "while" else ((), blocks)
    rest = tuple(replace(b, yields=tuple(b.yields[k] for k in kept)) for b in rest)
    results = tuple(o.results[k] for k in kept)
    return replace(o, args=args, results=results, blocks=(*fixed, *rest))
