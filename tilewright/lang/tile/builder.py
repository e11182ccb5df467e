"""Builders make operations: the functions of the language call the current builder.

While a kernel is compiled that is an `IRBuilder`, which writes operations into open blocks and ends
in an immutable kernel; while one is run step by step it is a builder that computes (evaluate.py).
The functions of the language see values only and do not know which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from tilewright.base.errors import Invalid
from tilewright.lang.tile.ir import (
    Block,
    Kernel,
    Operation,
    Place,
    TileType,
    Value,
    substituted,
)
from tilewright.lang.tile.rules import check

# Takes all components of two partial results and gives those of the combined one.
Combine = Callable[[Sequence[Value]], Sequence[Value]]


class Builder(Protocol):
    eager: bool  # are values known, so that Python itself can branch and loop on them?

    def emit(
        self,
        name: str,
        args: Sequence[Value],
        types: Sequence[TileType],
        attrs: Mapping[str, Any] | None = None,
    ) -> tuple[Value, ...]:
        """One operation without blocks; its results."""
        ...

    def combine(
        self,
        name: str,
        args: Sequence[Value],
        types: Sequence[TileType],
        attrs: Mapping[str, Any],
        function: Combine,
    ) -> tuple[Value, ...]:
        """A reduce or a scan with a function of the user's; its results."""
        ...


_current: ContextVar[Builder | None] = ContextVar("tile builder", default=None)


def current() -> Builder:
    found = _current.get()
    if found is None:
        what = "functions of the tile language work inside kernels only"
        raise Invalid(what, hint="decorate the function with @tw.jit and launch it: f[grid](…)")
    return found


def building() -> Builder | None:
    return _current.get()


@contextmanager
def using(builder: Builder) -> Iterator[None]:
    token = _current.set(builder)
    try:
        yield
    finally:
        _current.reset(token)


@dataclass(eq=False)
class OpenBlock:
    """A block that is being written."""

    fresh: Callable[[TileType, str], Value]
    parameters: list[Value] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    yields: list[Value] = field(default_factory=list)

    def parameter(self, type: TileType, name: str = "") -> Value:
        self.parameters.append(self.fresh(type, name))
        return self.parameters[-1]

    def done(self) -> Block:
        return Block(tuple(self.parameters), tuple(self.operations), tuple(self.yields))


class IRBuilder:
    """Appends operations to the innermost open block."""

    eager = False

    def __init__(self) -> None:
        self.count = 0  # of values
        self.made: dict[Value, Operation] = {}
        self.names: dict[Value, str] = {}  # of the user's variables
        self.blocks: list[OpenBlock] = [self.opened()]
        self.place: Place | None = None  # of what is being translated

    @property
    def block(self) -> OpenBlock:
        return self.blocks[-1]

    def opened(self) -> OpenBlock:
        return OpenBlock(self.fresh)

    def fresh(self, type: TileType, name: str = "") -> Value:
        self.count += 1
        return Value(type, self.count - 1, name)

    def name(self, v: Value, name: str) -> None:
        """What the user calls a value. The first name stays."""
        if not v.name:
            self.names.setdefault(v, name)

    @contextmanager
    def inside(self, block: OpenBlock) -> Iterator[OpenBlock]:
        """Inside a `with`, operations go into another block."""
        self.blocks.append(block)
        try:
            yield block
        finally:
            self.blocks.pop()

    def emit(
        self,
        name: str,
        args: Sequence[Value],
        types: Sequence[TileType],
        attrs: Mapping[str, Any] | None = None,
        blocks: Sequence[OpenBlock] = (),
    ) -> tuple[Value, ...]:
        """An operation at the end of the innermost block. It is checked here, where the place
        is known for an error."""
        results = tuple(self.fresh(t) for t in types)
        inside = tuple(b.done() for b in blocks)
        made = Operation(name, tuple(args), results, attrs or {}, inside, self.place)
        check(made)
        self.block.operations.append(made)
        self.made.update(dict.fromkeys(results, made))
        return results

    def combine(
        self,
        name: str,
        args: Sequence[Value],
        types: Sequence[TileType],
        attrs: Mapping[str, Any],
        function: Combine,
    ) -> tuple[Value, ...]:
        block = self.opened()
        for _ in range(2):
            for a in args:
                block.parameter(TileType(a.element))
        with self.inside(block):
            block.yields += function(block.parameters)
        return self.emit(name, args, types, attrs, (block,))

    def change(self, v: Value, **attrs: Any) -> None:
        """Set an attribute of the operation that made a value, in a block that is still open."""
        old = self.made[v]
        new = replace(old, attrs={**old.attrs, **attrs})
        for block in reversed(self.blocks):
            for k, o in reversed(list(enumerate(block.operations))):
                if o is old:
                    block.operations[k] = new
                    self.made.update(dict.fromkeys(new.results, new))
                    return

    def substitute(self, block: OpenBlock, new: Mapping[Value, Value]) -> None:
        """Let the operations of a block use other values."""
        block.operations[:] = [substituted(o, new) for o in block.operations]
        block.yields[:] = [new.get(y, y) for y in block.yields]
        self.made.update((r, o) for o in block.operations for r in o.results)

    def kernel(
        self,
        name: str,
        arguments: Sequence[Value],
        divisors: Sequence[int] = (),
        positive: Sequence[bool] = (),
    ) -> Kernel:
        """The finished kernel; `self.names` are for callers that renumber its values."""
        (block,) = self.blocks
        return Kernel(name, tuple(arguments), block.done(), tuple(divisors), tuple(positive))


def maker(v: Value) -> Operation | None:
    """The operation that made a value of a kernel that is being written."""
    builder = building()
    return builder.made.get(v) if isinstance(builder, IRBuilder) else None
