"""Values of a nest as LLVM text: what is computed."""

from __future__ import annotations

from typing import Any

from tilewright.base.traverse import operands_first
from tilewright.ir.expr import Const, Fn, Index, Load, Value
from tilewright.llvm.accesses import Accesses
from tilewright.llvm.addresses import Addresses
from tilewright.llvm.choices import Choices
from tilewright.llvm.context import Context
from tilewright.llvm.indices import Indices
from tilewright.llvm.loads import Loads
from tilewright.llvm.masks import Masks
from tilewright.llvm.scalar_types import register_type
from tilewright.llvm.writer import Writer

# The deepest recursion over operands: each level is a few calls of Python's.
DEEP = 64


class Values:
    """Computes values; what they read is loaded by `Loads` and `Choices`, which compute conditions
    and indices here in turn."""

    def __init__(
        self,
        w: Writer,
        c: Context,
        indices: Indices,
        addresses: Addresses,
        accesses: Accesses,
    ) -> None:
        self.w, self.c, self.arith, self.indices = w, c, w.arith, indices
        self.masks = Masks(w, c, self)
        self.loads = Loads(w, c, indices, addresses, accesses, self.masks)
        self.choices = Choices(w, c, self, addresses, self.loads)
        indices.values = self

    def value(self, v: Value, guarded: bool = False) -> str:
        """SSA of v: a vector if it depends on the lane, else a scalar."""
        if isinstance(v, Const):
            return self.arith.const(v.value, v.dtype, 1)
        key = self._key(v, guarded)
        found = self.w.known(key)
        if found is not None:
            return found
        if v.depth > DEEP:
            self._below(v, guarded)
        level = self.c.level(v, self.w.depth)
        with self.w.at(level):
            r = self._emit(v, guarded)
        self.w.remember(key, level, r)
        return r

    def lanes_of(self, v: Value, guarded: bool = False) -> str:
        """v as a vector of the current number of lanes (or a scalar outside lane loops)."""
        if self.c.lane is None:
            return self.value(v, guarded)
        w = self.c.lane[1]
        if isinstance(v, Const):
            return self.arith.const(v.value, v.dtype, w)
        x = self.value(v, guarded)
        if self.c.is_vector(v) or w == 1:
            return x
        key = ("splat", x, w)
        if (found := self.w.known(key)) is not None:
            return found
        level = self.c.level(v, self.w.depth)
        with self.w.at(level):
            r = self.arith.splat(x, register_type(v.dtype), w)
        self.w.remember(key, level, r)
        return r

    def _key(self, v: Value, guarded: bool) -> Any:
        c = self.c
        return v, guarded, c.existing, c.constants(v.symbols()), c.epochs(v), *c.masks(v)

    def _below(self, v: Value, guarded: bool) -> None:
        """Writes what a deep value is made of, operands first: then none of it recurses into more
        than a few others. Only what is computed anyway, and in the same circumstances."""
        known: set[tuple[Value, bool]] = set()

        def operands(pair: tuple[Value, bool]) -> list[tuple[Value, bool]]:
            x, inside = pair
            wanted = [(y, more or inside) for y, more in self._surely(x) if y.depth > DEEP]
            return [p for p in wanted if p not in known and self.w.known(self._key(*p)) is None]

        for pair in operands_first((v, guarded), operands, known):
            known.add(pair)
            if pair[0] is not v:
                self.value(*pair)

    def _surely(self, v: Value) -> list[tuple[Value, bool]]:
        """The operands that `_emit` computes in any case, and whether under a guard."""
        if not isinstance(v, Fn) or v.name != "select":
            return [(x, False) for x in v.args]
        condition = self.c.simplified(v.args[0])
        if isinstance(condition, Const):
            return [(v.args[1] if condition.value else v.args[2], False)]
        if any(map(self.c.reads_pointers, v.args[1:])):
            return [(condition, False)]
        return [(condition, False), (v.args[1], True), (v.args[2], True)]

    def _emit(self, v: Value, guarded: bool) -> str:
        vec = self.c.is_vector(v)
        w = self.c.width if vec else 1
        get = self.lanes_of if vec else self.value
        if isinstance(v, Index):
            return self.indices.vector(v.dim, w) if vec else self.indices.dim(v.dim)
        if isinstance(v, Load):
            return self.loads.load(v, w, guarded)
        assert isinstance(v, Fn), f"{v!r} cannot be emitted"
        if v.name == "cast":
            x = get(v.args[0], guarded)
            return self.arith.cast(x, v.args[0].dtype, v.dtype, w)
        if v.name == "select":
            condition = self.c.simplified(v.args[0])
            if isinstance(condition, Const):
                return get(v.args[1] if condition.value else v.args[2], guarded)
            if (found := self.choices.choose(v, condition, w, guarded)) is not None:
                return found
            c = get(condition, guarded)
            a, b = get(v.args[1], True), get(v.args[2], True)
            return self.arith.apply("select", v.dtype, w, [c, a, b])
        if (found := self.indices.compared(v, w)) is not None:
            return found
        if (other := self.arith.instead(v)) is not None:
            return get(other, guarded)
        args = [get(a, guarded) for a in v.args]
        return self.arith.apply(v.name, v.args[-1].dtype, w, args)
