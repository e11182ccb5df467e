"""Take away what a kernel computes for nothing: operations without users, variables that a loop
carries only because two parts of the program use one name."""

from __future__ import annotations

from tilewright.lang.tile.ir import Block, Kernel, Operation, Value

# Done for what it does, not for its result. A load that nobody uses is not done.
_DONE = frozenset(("store", "atomic", "cas", "print", "assert"))


def sweep(kernel: Kernel) -> None:
    """In place."""
    live = _Live()
    live.block(kernel.body)
    live.close()
    _shorten(kernel.body, live)


class _Live:
    """What the effects of a kernel depend on."""

    def __init__(self) -> None:
        self.values: set[Value] = set()
        self.operations: set[Operation] = set()
        self.waiting: list[Value] = []
        self.owner: dict[Value, Operation] = {}  # of blocks' parameters
        self.parents: dict[Operation, Operation] = {}

    def block(self, b: Block, inside: Operation | None = None) -> None:
        for o in b.operations:
            if inside is not None:
                self.parents[o] = inside
            for inner in o.blocks:
                for p in inner.parameters:
                    self.owner[p] = o
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
        if o in self.operations:
            return
        self.operations.add(o)
        if o.name == "for":
            needed = o.args[:3]
        elif o.name == "while":
            needed = tuple(o.blocks[0].yields)
        else:
            needed = o.args
        for a in needed:
            self.use(a)
        if o.name in ("reduce", "scan"):
            for y in o.blocks[0].yields:
                self.use(y)
        if o in self.parents:
            self.keep(self.parents[o])

    def close(self) -> None:
        while self.waiting:
            v = self.waiting.pop()
            if v.made_by is not None:
                self.keep(v.made_by)
                self._result(v.made_by, v.number)
            elif v in self.owner:
                o = self.owner[v]
                self.keep(o)
                if o.name in ("for", "while"):
                    first = 1 if o.name == "for" else 0
                    if v.number >= first:
                        self._result(o, v.number - first)

    def _result(self, o: Operation, k: int) -> None:
        """Result k of a control operation is used, or what a loop carries as its k-th."""
        if o.name == "for":
            self.use(o.args[3 + k])
            self.use(o.blocks[0].yields[k])
            self.use(o.blocks[0].parameters[1 + k])
            self.use(o.results[k])
        elif o.name == "while":
            self.use(o.args[k])
            self.use(o.blocks[1].yields[k])
            for b in o.blocks:
                self.use(b.parameters[k])
            self.use(o.results[k])
        elif o.name == "if":
            for b in o.blocks:
                self.use(b.yields[k])


def _shorten(b: Block, live: _Live) -> None:
    b.operations[:] = [o for o in b.operations if o in live.operations]
    for o in b.operations:
        if o.name in ("for", "while", "if"):
            _narrow(o, live)
        for inner in o.blocks:
            _shorten(inner, live)


def _narrow(o: Operation, live: _Live) -> None:
    """A control operation without results that nobody uses."""
    kept = [k for k, r in enumerate(o.results) if r in live.values]
    if len(kept) == len(o.results):
        return
    first = 3 if o.name == "for" else 0
    carried = o.args[first:]
    if o.name != "if":
        o.args = (*o.args[:first], *(carried[k] for k in kept))
        own = 1 if o.name == "for" else 0
        for b in o.blocks:
            b.parameters[own:] = [b.parameters[own + k] for k in kept]
            for number, p in enumerate(b.parameters):
                p.number = number
    for b in o.blocks if o.name != "while" else o.blocks[1:]:
        b.yields[:] = [b.yields[k] for k in kept]
    o.results = tuple(o.results[k] for k in kept)
    for number, r in enumerate(o.results):
        r.number = number
