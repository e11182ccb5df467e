"""Atomics: accesses that other threads never see half done.

They are done for one lane after the other, but for additions to neighbours that one instruction
does.
"""

from __future__ import annotations

from typing import Any

from tilewright.ir.target import Target
from tilewright.ir.types import DType, bf16, f16, f32, f64
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import Atomic
from tilewright.llvm.addresses import Addresses
from tilewright.llvm.context import Context
from tilewright.llvm.scalar_types import memory_type, register_type
from tilewright.llvm.values import Values
from tilewright.llvm.writer import Writer

_ORDER = {
    "relaxed": ("monotonic", "monotonic"),
    "acquire": ("acquire", "acquire"),
    "release": ("release", "monotonic"),
    "acq_rel": ("acq_rel", "acquire"),
}
# LLVM's updates as a GPU's instructions; the number of bits follows.
_PTX = {
    "add": "add.u",
    "fadd": "add.f",
    "max": "max.s",
    "min": "min.s",
    "umax": "max.u",
    "umin": "min.u",
    "and": "and.b",
    "or": "or.b",
    "xor": "xor.b",
    "xchg": "exch.b",
}
# Narrow floats that a GPU adds by one instruction, with what it must have for that.
_HALVES = {f16: "f16", bf16: "bf16.math"}
_TOGETHER = {2: "red.vectors", 4: "red.vectors"}  # floats that one instruction adds to neighbours
_BOOLS = {"add": "or", "max": "or", "min": "and"}


class Atomics:
    def __init__(
        self,
        w: Writer,
        c: Context,
        values: Values,
        addresses: Addresses,
        scope: str,
        target: Target,
    ) -> None:
        self.w, self.c, self.put, self.arith = w, c, w.put, w.arith
        self.values, self.addresses = values, addresses
        self.scope = scope  # the scope of atomics: all threads by default
        self.added = tuple(d for d, has in _HALVES.items() if target.has(has))  # as one instruction
        self.vectors = tuple(n for n, has in _TOGETHER.items() if target.has(has))

    def atomic(self, s: Atomic) -> None:
        if not self._together(s):
            self.values.masks.lane_by_lane(lambda: self._ordered(s))
        self.c.touch(s)

    def _together(self, s: Atomic) -> bool:
        """Additions of all lanes to neighbours, by one instruction; False where there is none."""
        b, w = self.c.buffers[s.buffer], self.c.width
        plain = (s.kind, s.order, s.result) == ("add", "relaxed", None) and not self.c.under
        if not plain or w not in self.vectors or b.dtype is not f32:
            return False
        lin = self.addresses.linear(b, s.index)
        const, terms, lane = self.addresses.indices.terms(lin)
        if lane != b.unit or self.addresses.alignment(b, lin, w) < w * b.dtype.bytes:
            return False
        x = self.arith.narrow(self.values.lanes_of(s.value), b.dtype, w)
        p = self.addresses.pointer(b, const, terms)
        at = self.put(f"addrspacecast ptr {p} to ptr addrspace(1)")
        each = [self.put(f"extractelement <{w} x float> {x}, i64 {k}") for k in range(w)]
        places = ", ".join(f"${k + 1}" for k in range(w))
        text = f"red.relaxed.gpu.global.add.v{w}.f32 [$0], {{{places}}};"
        given = ", ".join([f"ptr addrspace(1) {at}", *(f"float {y}" for y in each)])
        kinds = ",".join(["l", *"f" * w])
        self.w.line(f'call void asm sideeffect "{text}", "{kinds},~{{memory}}"({given})')
        return True

    def _ordered(self, s: Atomic) -> None:
        """LLVM writes `atomicrmw` for a GPU without its order (loads and exchanges by comparison
        have theirs): fences stand around it where it is not written as an instruction here."""
        fenced = bool(self.scope) and s.kind not in ("load", "cas") and not self._has_order(s)
        if fenced and s.order in ("release", "acq_rel"):
            self.w.line(f"fence {self.scope}release")
        self._atomic(s)
        if fenced and s.order in ("acquire", "acq_rel"):
            self.w.line(f"fence {self.scope}acquire")

    def _has_order(self, s: Atomic) -> bool:
        """Is it one instruction of a GPU, on an argument's memory?"""
        b = self.c.buffers[s.buffer]
        known = b.dtype in (f32, f64) or (not b.dtype.is_float and b.dtype.bytes in (4, 8))
        known = known or (b.dtype in self.added and s.kind == "add")
        return bool(self.scope) and b.pointer and known

    def _update(self, op: str, t: str, p: str, x: str, s: Atomic) -> str:
        """What was there before an update."""
        size = self.c.buffers[s.buffer].dtype.bytes
        if not self._has_order(s):
            how, _ = _ORDER[s.order]
            return self.put(f"atomicrmw {op} ptr {p}, {t} {x} {self.scope}{how}, align {size}")
        at = self.put(f"addrspacecast ptr {p} to ptr addrspace(1)")
        half = f"add.noftz.{self.c.buffers[s.buffer].dtype.name}" if t == "i16" else ""
        name = half or f"{_PTX[op]}{8 * size}"
        text = f"atom.global.gpu.{s.order}.{name} $0, [$1], $2;"
        kind = {"float": "f", "double": "d", "i16": "h", "i32": "r", "i64": "l"}[t]
        taken = f'"={kind},l,{kind},~{{memory}}"(ptr addrspace(1) {at}, {t} {x})'
        return self.put(f'call {t} asm sideeffect "{text}", {taken}')

    def _atomic(self, s: Atomic) -> None:
        b = self.c.buffers[s.buffer]
        t, bits = memory_type(b.dtype), f"i{8 * b.dtype.bytes}"
        v = self.values.value(s.value)
        p = self.addresses.of(b, s.index)
        if s.kind == "load":
            _, how = _ORDER[s.order]
            old = self.put(f"load atomic {bits}, ptr {p} {self.scope}{how}, align {b.dtype.bytes}")
            old = self._from_bits(old, bits, t)
        elif s.kind == "cas":
            assert s.compare is not None
            expected = self._stored(self.values.value(s.compare), b)
            old = self._from_bits(self._exchange(p, expected, self._stored(v, b), s, b)[0], bits, t)
        elif s.kind == "xchg":
            old = self._from_bits(self._update("xchg", bits, p, self._stored(v, b), s), bits, t)
        elif b.dtype in (f32, f64) and s.kind in ("max", "min"):
            old = self._extreme_of_bits(s, b, p, v)
        elif b.dtype.is_float and b.dtype not in (f32, f64):
            if self._has_order(s):
                old = self._from_bits(self._update("fadd", bits, p, self._stored(v, b), s), bits, t)
            else:
                old = self._by_exchange(s, b, p, v)
        else:
            x = self.arith.narrow(v, b.dtype, 1)
            old = self._update(self._operation(s.kind, b.dtype), t, p, x, s)
        self.c.touch(s)
        if s.result is not None:
            at = self.addresses.of(self.c.buffers[s.result[0]], s.result[1])
            self.w.line(f"store {t} {old}, ptr {at}, align {b.dtype.bytes}")

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
        x, n = self._stored(v, b), self.w.fresh("x")
        negative = self.put(f"icmp slt {bits} {x}, 0")
        self.w.line(f"br i1 {negative}, label %{n}.minus, label %{n}.plus")
        olds = []
        other = {"max": "umin", "min": "umax"}[s.kind]
        for label, op in ((f"{n}.minus", other), (f"{n}.plus", s.kind)):
            self.w.label(label)
            old = self._update(op, bits, p, x, s)
            olds.append(f"[ {old}, %{label} ]")
            self.w.line(f"br label %{n}.end")
        self.w.label(f"{n}.end")
        return self._from_bits(self.put(f"phi {bits} {', '.join(olds)}"), bits, t)

    def _by_exchange(self, s: Atomic, b: Buffer, p: str, v: str) -> str:
        """An atomic without an instruction: read, compute, write if no other thread has in the
        meantime."""
        t, bits = memory_type(b.dtype), f"i{8 * b.dtype.bytes}"
        n = self.w.fresh("x")
        first = self.put(
            f"load atomic {bits}, ptr {p} {self.scope}monotonic, align {b.dtype.bytes}"
        )
        self.w.line(f"br label %{n}.pre")
        self.w.label(f"{n}.pre")
        self.w.line(f"br label %{n}")
        self.w.label(n)
        old = f"%{n}.old"
        start: list[Any] = []
        self.w.out.append(start)
        x = self.arith.widen(self._from_bits(old, bits, t), b.dtype, 1)
        r = register_type(b.dtype)
        if s.kind == "add":
            y = self.put(f"fadd {r} {x}, {v}")
        else:
            y = self.arith.intrinsic({"max": "maxnum", "min": "minnum"}[s.kind], r, 1, x, v)
        seen, ok = self._exchange(p, old, self._stored(y, b), s, b)
        self.w.line(f"br i1 {ok}, label %{n}.end, label %{n}.again")
        self.w.label(f"{n}.again")
        self.w.line(f"br label %{n}")
        start.append(f"  {old} = phi {bits} [ {first}, %{n}.pre ], [ {seen}, %{n}.again ]")
        self.w.label(f"{n}.end")
        return self._from_bits(old, bits, t)
