"""Statements that choose, wait for others or tell: If, While, Atomic, Report.

Inside lanes a condition that is the same for all of them is a branch; one that differs is a mask.
Atomics and reports are done for one lane after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.base.errors import Unsupported
from tilewright.ir.expr import Const, Value
from tilewright.ir.types import DType, f32, f64
from tilewright.kernel.group import Buffer
from tilewright.kernel.legal.masks import is_likely
from tilewright.kernel.nest import Atomic, If, Report, Stmt, While
from tilewright.llvm.masked import Masked
from tilewright.llvm.scalars import memory_type, register_type
from tilewright.llvm.writer import Level, Test

_ORDER = {
    "relaxed": ("monotonic", "monotonic"),
    "acquire": ("acquire", "acquire"),
    "release": ("release", "monotonic"),
    "acq_rel": ("acq_rel", "acquire"),
}
_BOOLS = {"add": "or", "max": "or", "min": "and"}


class Branches(Masked):
    scope = ""  # whom atomics are ordered with: everybody, if nothing else is said

    def block(self, body: tuple[Stmt, ...]) -> None:
        raise AssertionError("statements are written by the emitter")

    def branching(self, s: If | While | Atomic | Report) -> None:
        if isinstance(s, If):
            self._if(s)
        elif isinstance(s, While):
            self._while(s)
        elif isinstance(s, Atomic):
            self._lane_by_lane(lambda: self._atomic(s))
            self.touch(s)
        else:
            self._lane_by_lane(lambda: self._report(s))

    # ---- control

    def branch(
        self,
        condition: str,
        then: Callable[[], None],
        other: Callable[[], None] | None = None,
        likely: bool = False,
    ) -> None:
        """Code under a condition; what it computes is known inside only."""
        n = self.fresh("b")
        no = f"{n}.else" if other else f"{n}.end"
        weights = self.likely() if likely else ""
        self.line(f"br i1 {condition}, label %{n}.then, label %{no}{weights}")
        level = self.levels[self.depth]
        saved = level.memo
        for label, body in (("then", then), ("else", other)):
            if body is None:
                continue
            self.label(f"{n}.{label}")
            level.memo = dict(saved)
            body()
            self.line(f"br label %{n}.end")
        level.memo = saved
        self.label(f"{n}.end")

    def under_branch(self, bit: str, f: Callable[[], None]) -> None:
        def settled() -> None:
            with self._settled_by_branch():
                f()

        self.branch(bit, settled)

    def _if(self, s: If) -> None:
        condition = self._settled(s.condition)
        if isinstance(condition, Const):
            self.block(s.then if condition.value else s.other)
            return
        other = (lambda: self.block(s.other)) if s.other else None
        if not self.is_vector(condition):
            bit = self.value(condition)
            self.branch(bit, lambda: self.block(s.then), other, likely=is_likely(s))
            return
        assert self.lane is not None
        lane, w = self.lane
        before = self.under
        lanes = self.lanes_of(condition)
        rest = self._not(lanes, w) if s.other else lanes
        for body, chosen, holds in ((s.then, lanes, True), (s.other, rest, False)):
            with self._testing((*before, Test(condition, holds, chosen, lane, w))):
                self.block(body)

    def _while(self, s: While) -> None:
        if self.lane is not None:
            raise Unsupported(f"while {s.name} is inside the lanes {self.lane[0].name}")
        n = self.fresh("W")
        if s.waits:
            self._begin_waiting(n)
        pre: list[Any] = []
        self.out.append(pre)
        self.line(f"br label %{n}")
        self.touch(s)
        self.levels.append(Level(pre))
        self.depth += 1
        self.label(n)
        more = self.value(s.condition)
        self.line(f"br i1 {more}, label %{n}.body, label %{n}.exit")
        self.label(f"{n}.body")
        self.block(s.body)
        if s.waits:
            hopeless = self.put(f"call i1 @tw_wait(ptr %{n}.polls)")
            self.line(f"br i1 {hopeless}, label %{n}.exit, label %{n}")
        else:
            self.line(f"br label %{n}")
        self.label(f"{n}.exit")
        self.levels.pop()
        self.depth -= 1
        if s.waits:
            self.line(f"call void @tw_waited(ptr %{n}.polls)")
        self.touch(s)

    def _begin_waiting(self, n: str) -> None:
        """The number of polls so far, which the runtime counts (runtime/concurrent_ir.py)."""
        self.arith.declares |= {"declare i1 @tw_wait(ptr)", "declare void @tw_waited(ptr)"}
        self.line(f"%{n}.polls = alloca i64, align 8", entry=True)
        self.line(f"store i64 0, ptr %{n}.polls, align 8")

    def _lane_by_lane(self, f: Callable[[], None]) -> None:
        """Does something for each lane that is chosen, in order."""
        if self.lane is None:
            f()
            return
        for k in range(self.lane[1]):
            self._with_lane(k, lambda: self._in_lane(f))

    def _in_lane(self, f: Callable[[], None]) -> None:
        if self.under:
            self.under_branch(self.passed(), f)
        else:
            f()

    # ---- atomics

    def _atomic(self, s: Atomic) -> None:
        b = self.buffers[s.buffer]
        t, bits = memory_type(b.dtype), f"i{8 * b.dtype.bytes}"
        v = self.value(s.value)
        const, terms, _ = self._terms(self._linear(b, s.index))
        p = self.pointer(b, const, terms)
        if s.kind == "load":
            _, how = _ORDER[s.order]
            old = self.put(f"load atomic {bits}, ptr {p} {self.scope}{how}, align {b.dtype.bytes}")
            old = self._from_bits(old, bits, t)
        elif s.kind == "cas":
            assert s.compare is not None
            expected = self._bits(self.arith.narrow(self.value(s.compare), b.dtype, 1), t, bits)
            old = self._from_bits(self._exchange(p, expected, self._stored(v, b), s, b)[0], bits, t)
        elif s.kind == "xchg":
            how, _ = _ORDER[s.order]
            x = self._stored(v, b)
            old = self.put(
                f"atomicrmw xchg ptr {p}, {bits} {x} {self.scope}{how}, align {b.dtype.bytes}"
            )
            old = self._from_bits(old, bits, t)
        elif b.dtype in (f32, f64) and s.kind in ("max", "min"):
            old = self._extreme_of_bits(s, b, p, v)
        elif b.dtype.is_float and b.dtype not in (f32, f64):
            old = self._by_exchange(s, b, p, v)
        else:
            how, _ = _ORDER[s.order]
            x = self.arith.narrow(v, b.dtype, 1)
            op = self._operation(s.kind, b.dtype)
            old = self.put(
                f"atomicrmw {op} ptr {p}, {t} {x} {self.scope}{how}, align {b.dtype.bytes}"
            )
        self.touch(s)
        if s.result is not None:
            into = self.buffers[s.result[0]]
            const, terms, _ = self._terms(self._linear(into, s.result[1]))
            at = self.pointer(into, const, terms)
            self.line(f"store {t} {old}, ptr {at}, align {b.dtype.bytes}")

    @staticmethod
    def _operation(kind: str, d: DType) -> str:
        if d.is_float:
            return f"f{kind}"  # a sum: extremes are those of bits
        if d.is_bool:
            return _BOOLS.get(kind, kind)
        return f"u{kind}" if kind in ("max", "min") and d.kind != "i" else kind

    def _stored(self, x: str, b: Buffer) -> str:
        """The bits of a value in memory."""
        bits = f"i{8 * b.dtype.bytes}"
        return self._bits(self.arith.narrow(x, b.dtype, 1), memory_type(b.dtype), bits)

    def _bits(self, x: str, t: str, bits: str) -> str:
        return x if t == bits else self.put(f"bitcast {t} {x} to {bits}")

    def _from_bits(self, x: str, bits: str, t: str) -> str:
        return x if t == bits else self.put(f"bitcast {bits} {x} to {t}")

    def _exchange(self, p: str, expected: str, new: str, s: Atomic, b: Buffer) -> tuple[str, str]:
        """(what was there, whether it was what was expected)"""
        bits = f"i{8 * b.dtype.bytes}"
        done, failed = _ORDER[s.order]
        pair = self.put(
            f"cmpxchg ptr {p}, {bits} {expected}, {bits} {new} {self.scope}{done} {failed}, "
            f"align {b.dtype.bytes}"
        )
        old, ok = (self.put(f"extractvalue {{ {bits}, i1 }} {pair}, {k}") for k in (0, 1))
        return old, ok

    def _extreme_of_bits(self, s: Atomic, b: Buffer, p: str, v: str) -> str:
        """Floats in the order of their bits: those of one sign are in that of integers. See
        `atomic_extreme`."""
        t, bits = memory_type(b.dtype), f"i{8 * b.dtype.bytes}"
        x, (how, _), n = self._stored(v, b), _ORDER[s.order], self.fresh("x")
        negative = self.put(f"icmp slt {bits} {x}, 0")
        self.line(f"br i1 {negative}, label %{n}.minus, label %{n}.plus")
        olds = []
        other = {"max": "umin", "min": "umax"}[s.kind]
        for label, op in ((f"{n}.minus", other), (f"{n}.plus", s.kind)):
            self.label(label)
            old = self.put(
                f"atomicrmw {op} ptr {p}, {bits} {x} {self.scope}{how}, align {b.dtype.bytes}"
            )
            olds.append(f"[ {old}, %{label} ]")
            self.line(f"br label %{n}.end")
        self.label(f"{n}.end")
        return self._from_bits(self.put(f"phi {bits} {', '.join(olds)}"), bits, t)

    def _by_exchange(self, s: Atomic, b: Buffer, p: str, v: str) -> str:
        """What no machine does at once: read, compute, write if nobody else has in the meantime."""
        t, bits = memory_type(b.dtype), f"i{8 * b.dtype.bytes}"
        n = self.fresh("x")
        first = self.put(
            f"load atomic {bits}, ptr {p} {self.scope}monotonic, align {b.dtype.bytes}"
        )
        self.line(f"br label %{n}.pre")
        self.label(f"{n}.pre")
        self.line(f"br label %{n}")
        self.label(n)
        old = f"%{n}.old"
        start: list[Any] = []
        self.out.append(start)
        x = self.arith.widen(self._from_bits(old, bits, t), b.dtype, 1)
        r = register_type(b.dtype)
        if s.kind == "add":
            y = self.put(f"fadd {r} {x}, {v}")
        else:
            y = self.arith.intrinsic({"max": "maxnum", "min": "minnum"}[s.kind], r, 1, x, v)
        seen, ok = self._exchange(p, old, self._stored(y, b), s, b)
        self.line(f"br i1 {ok}, label %{n}.end, label %{n}.again")
        self.label(f"{n}.again")
        self.line(f"br label %{n}")
        start.append(f"  {old} = phi {bits} [ {first}, %{n}.pre ], [ {seen}, %{n}.again ]")
        self.label(f"{n}.end")
        return self._from_bits(old, bits, t)

    # ---- reports

    def _report(self, s: Report) -> None:
        if s.condition is None:
            self._tell(s)
            return
        condition = self._settled(s.condition)
        if isinstance(condition, Const):
            if not condition.value:
                self._tell(s)
            return
        self.branch(self._not(self.value(condition), 1), lambda: self._tell(s))

    def _tell(self, s: Report) -> None:
        self.arith.declares.add("declare void @tw_report(i64, i64, ptr)")
        where = "null"
        if s.values:
            where = f"%{self.fresh('told')}"
            self.line(f"{where} = alloca [{len(s.values)} x i64], align 8", entry=True)
        for k, v in enumerate(s.values):
            at = self.put(f"getelementptr i64, ptr {where}, i64 {k}")
            self.line(f"store i64 {self._word(v)}, ptr {at}, align 8")
        self.line(f"call void @tw_report(i64 {s.site}, i64 {len(s.values)}, ptr {where})")

    def _word(self, v: Value) -> str:
        """A value in eight bytes: an integer, or a double."""
        d, r, x = v.dtype, register_type(v.dtype), self.value(v)
        if not d.is_float:
            if d.bits == 64 and not d.is_bool:
                return x
            return self.put(f"{'sext' if d.kind == 'i' else 'zext'} {r} {x} to i64")
        if r != "double":
            x = self.put(f"fpext {r} {x} to double")
        return self.put(f"bitcast double {x} to i64")
