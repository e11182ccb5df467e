"""Who makes operations: the functions of the language ask the builder of the moment.

While a kernel is compiled that is an `IRBuilder`, which writes operations into blocks; while one is
run step by step it is a builder that computes (evaluate.py). The functions of the language see
values only and do not know which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from tilewright.base.errors import Invalid
from tilewright.lang.tile.ir import Block, Operation, Place, TileType, Value, operation

# Takes all components of two partial results and gives those of the combined one.
Combine = Callable[[Sequence[Value]], Sequence[Value]]


class Builder(Protocol):
    eager: bool  # are values known, so that Python itself can branch and loop on them?

    def emit(
        self,
        name: str,
        args: Sequence[Value],
        types: Sequence[TileType],
        attrs: dict[str, Any] | None = None,
    ) -> tuple[Value, ...]:
        """One operation without blocks; its results."""
        ...

    def combine(
        self,
        name: str,
        args: Sequence[Value],
        types: Sequence[TileType],
        attrs: dict[str, Any],
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


class IRBuilder:
    """Appends operations to the innermost open block."""

    eager = False

    def __init__(self) -> None:
        self.blocks: list[Block] = [Block()]
        self.place: Place | None = None  # of what is being translated

    @property
    def block(self) -> Block:
        return self.blocks[-1]

    @contextmanager
    def inside(self, block: Block) -> Iterator[Block]:
        """Operations go into another block for a while."""
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
        attrs: dict[str, Any] | None = None,
    ) -> tuple[Value, ...]:
        return self.add(operation(name, args, types, attrs, (), self.place)).results

    def add(self, o: Operation) -> Operation:
        self.block.operations.append(o)
        return o

    def control(
        self,
        name: str,
        args: Sequence[Value],
        types: Sequence[TileType],
        blocks: Sequence[Block],
    ) -> tuple[Value, ...]:
        """A for, an if or a while over blocks that are complete."""
        return self.add(operation(name, args, types, {}, blocks, self.place)).results

    def combine(
        self,
        name: str,
        args: Sequence[Value],
        types: Sequence[TileType],
        attrs: dict[str, Any],
        function: Combine,
    ) -> tuple[Value, ...]:
        block = Block()
        for _ in range(2):
            for a in args:
                block.parameter(TileType(a.element))
        with self.inside(block):
            block.yields[:] = function(block.parameters)
        return self.add(operation(name, args, types, attrs, (block,), self.place)).results
