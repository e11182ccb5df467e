"""`select` whose sides are in memory: what is read, and where."""

from __future__ import annotations

from functools import partial, reduce

from tilewright.ir import dim as D
from tilewright.ir.conditions import parts_of
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Const, Fn, Index, Load, Value, loads
from tilewright.kernel.group import Buffer
from tilewright.kernel.legal.accesses import EDGES, ZEROS
from tilewright.llvm.addresses import Addresses
from tilewright.llvm.context import Context, Test
from tilewright.llvm.indices import Evaluates
from tilewright.llvm.loads import Loads
from tilewright.llvm.scalar_types import memory_type, register_type, vector
from tilewright.llvm.writer import Writer


class Choices:
    def __init__(
        self,
        w: Writer,
        c: Context,
        values: Evaluates,
        addresses: Addresses,
        loads: Loads,
    ) -> None:
        self.w, self.c, self.arith, self.values = w, c, w.arith, values
        self.addresses, self.loads = addresses, loads
        self.zeros: dict[str, str] = {}  # memory that holds them, by type

    def choose(self, v: Fn, condition: Value, w: int, guarded: bool) -> str | None:
        """A choice of which a side is read in a special way; None for any other."""
        c = self.c
        if any(map(c.reads_pointers, v.args[1:])):
            return self._through(v, condition, w, guarded)
        if not c.is_vector(v) or c.existing is not None:  # those are read under a mask
            return None
        if ZEROS in c.hints and not c.is_vector(condition) and _is_zero(v.args[2]):
            found = self._load_or_zero(v.args[1], condition, w)
            if found is not None:
                return found
        if EDGES in c.hints and _between(condition) and self.loads.direction(v.args[1], w):
            return self._load_inside(v, condition, w)
        return None

    # ---- behind pointers

    def _through(self, v: Fn, condition: Value, w: int, guarded: bool) -> str:
        """A choice where one of both is behind a pointer: that is read where it is chosen."""
        t, values = vector(register_type(v.dtype), w), self.values
        under = self.c.under
        if not under and not self.c.is_vector(condition):
            bit = values.value(condition, guarded)
            for x in (x for arm in v.args[1:] for x in loads(arm)):
                self.addresses.early(self.c.buffers[str(x.source)], x.index)
            return self.w.either(bit, t, *(partial(self._arm, x, w, ()) for x in v.args[1:]))
        bits = values.lanes_of(condition, guarded) if w > 1 else values.value(condition, guarded)
        arms = [
            self._arm(x, w, (*under, Test(condition, holds)))
            for x, holds in ((v.args[1], True), (v.args[2], False))
        ]
        return self.arith.apply("select", v.dtype, w, [bits, *arms])

    def _arm(self, v: Value, w: int, tests: tuple[Test, ...]) -> str:
        with self.c.testing(tests):
            return self.values.lanes_of(v, True) if w > 1 else self.values.value(v, True)

    # ---- neighbours

    def _load_or_zero(self, v: Value, condition: Value, w: int) -> str | None:
        """Neighbours in memory where one condition holds for all of them, else zeros: the address
        is chosen, not the result. None where there are no such neighbours."""
        if not self.loads.is_neighbours(v, w):
            return None
        assert isinstance(v, Load) and isinstance(v.source, str)
        b = self.c.buffers[v.source]
        const, terms, _ = self.addresses.indices.terms(self.addresses.linear(b, v.index))
        t = f"<{w} x {memory_type(b.dtype)}>"
        # Of a vector that goes past the end of its row the elements before are needed.
        c = self._there(b, v.index, w, [self.values.value(condition, True)], along=False)
        zeros = self.zeros.get(t)
        if zeros is None:
            zeros = self.zeros[t] = f"%{self.w.fresh('zeros')}"
            self.w.line(f"{zeros} = alloca {t}, align 64", entry=True)
            self.w.line(f"store {t} zeroinitializer, ptr {zeros}, align 64", entry=True)
        p = self.addresses.pointer(b, const, terms)
        p = self.w.put(f"select i1 {c}, ptr {p}, ptr {zeros}")
        return self.loads.accesses.load(b, p, w)

    def _load_inside(self, v: Fn, condition: Value, w: int) -> str:
        """A choice between neighbours in memory and something else: one vector where all lanes
        choose the former, a choice for each lane elsewhere."""
        x, values = v.args[1], self.values
        assert isinstance(x, Load)
        b = self.c.buffers[str(x.source)]
        ends = [self.c.with_lane(k, lambda: values.value(condition, True)) for k in (0, w - 1)]
        inside = self._there(b, x.index, w, ends, backward=self.loads.direction(x, w) < 0)

        def slow() -> str:
            c, other = values.lanes_of(condition, True), values.lanes_of(v.args[2], True)
            edge = self.loads.edge(b, x.index, w)
            return self.arith.apply("select", v.dtype, w, [c, edge, other])

        t = vector(register_type(v.dtype), w)
        return self.w.either(inside, t, lambda: self.loads.at(b, x.index, w), slow)

    def _there(
        self,
        b: Buffer,
        index: tuple[Dim, ...],
        w: int,
        tests: list[str],
        along: bool = True,
        backward: bool = False,
    ) -> str:
        """Do conditions hold, and is a vector in its buffer, also along its lanes if that is asked?
        A choice around this one may be what says so, and its other side is chosen where it is
        not. `backward`: its last lane is the first in memory."""
        put, dim = self.w.put, self.addresses.indices.dim
        low, high = (w - 1, 0) if backward else (0, w - 1)
        assert self.c.lane is not None
        for i, n in zip(index, b.shape, strict=True):
            if not along and self.c.lane[0] in D.symbols(i):
                continue
            if not D.nonneg(i):
                first = self.c.with_lane(low, lambda i=i: dim(i))
                tests.append(put(f"icmp sge i64 {first}, 0"))
            if not D.known_lt(i, n):
                last = self.c.with_lane(high, lambda i=i: dim(i))
                tests.append(put(f"icmp slt i64 {last}, {dim(n)}"))
        return reduce(lambda x, y: put(f"and i1 {x}, {y}"), dict.fromkeys(tests))


def _is_zero(v: Value) -> bool:
    return isinstance(v, Const) and v.value == 0 and not str(v.value).startswith("-")


def _between(condition: Value) -> bool:
    """Does a condition hold for all lanes if it does for the first and the last?"""
    for part in parts_of(condition):
        if not isinstance(part, Fn) or part.name not in ("lt", "le", "gt", "ge"):
            return False
        for x in part.args:
            affine = isinstance(x, Const) or (
                isinstance(x, Index) and all(isinstance(a, Sym) for a in D.atoms(x.dim))
            )
            if not affine:
                return False
    return True
