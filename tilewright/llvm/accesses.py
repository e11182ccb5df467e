"""Instructions that read and write memory, at addresses that are computed.

In registers numbers have the form in which they are computed, in memory that of their dtype
(llvm/scalars.py): what is read is widened, what is written is narrowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tilewright.kernel.group import Buffer
from tilewright.kernel.legal.accesses import COLD
from tilewright.llvm.context import Context
from tilewright.llvm.machine import Traits
from tilewright.llvm.scalar_types import memory_type, suffix, vector
from tilewright.llvm.writer import Writer


class Accesses:
    def __init__(self, w: Writer, c: Context, traits: Traits) -> None:
        self.w, self.c, self.arith = w, c, w.arith
        self.keeping, self.vector = traits.keeping, traits.aligned_vector
        self.masked_bytes = traits.masked_bytes

    # ---- all lanes

    def load(self, b: Buffer, p: str, w: int = 1, align: int = 0) -> str:
        """So many elements from an address on."""
        t, align = vector(memory_type(b.dtype), w), align or b.dtype.bytes
        if self.is_shifted(b, w, align):
            x = self._anywhere(t, p, align)
        else:
            x = self.w.put(f"load {t}, ptr {p}, align {align}")
        return self.arith.widen(x, b.dtype, w)

    def is_shifted(self, b: Buffer, w: int, align: int) -> bool:
        """Is it a vector that the machine reads at other addresses only?"""
        return b.scope == "in" and align < self.vector == w * b.dtype.bytes

    def _anywhere(self, t: str, p: str, align: int) -> str:
        """A vector of 16 bytes at any address."""
        put, size = self.w.put, self.vector // 2
        past = put(f"and i64 {put(f'ptrtoint ptr {p} to i64')}, {size - 1}")
        start = put(f"getelementptr i8, ptr {p}, i64 {put(f'sub i64 0, {past}')}")
        more = put(f"and i64 {put(f'add i64 {past}, {size - 1}')}, {size}")
        middle = put(f"getelementptr i8, ptr {start}, i64 {size}")
        far = put(f"getelementptr i8, ptr {middle}, i64 {more}")
        return self._shifted(t, (start, middle, far), past, align)

    def part(self, b: Buffer, halves: Sequence[str], past: str, w: int, align: int) -> str:
        """So many elements that begin some bytes past the first of three addresses, which are
        multiples of 8: there are the parts that have all of them."""
        t = vector(memory_type(b.dtype), w)
        return self.arith.widen(self._shifted(t, halves, past, align), b.dtype, w)

    def _shifted(self, t: str, halves: Sequence[str], past: str, align: int) -> str:
        """A vector of 16 bytes out of the three parts of 8 bytes that have all of it; where two
        have, the last one may be the second again, so that nothing else is touched. Parts of 8
        bytes leave half the choices to make that whole vectors would."""
        put = self.w.put
        words: list[str] = []
        for q in halves:
            x = put(f"load <2 x i32>, ptr {q}, align {self.vector // 2}")
            words += [put(f"extractelement <2 x i32> {x}, i64 {k}") for k in range(2)]
        past = put(f"trunc i64 {past} to i32")
        if align <= 4:
            bit = put(f"icmp ne i32 {put(f'and i32 {past}, 4')}, 0")
            pairs = pairwise(words)
            words = [put(f"select i1 {bit}, i32 {far}, i32 {near}") for near, far in pairs]
        if align < 4:
            bits = put(f"shl i32 {put(f'and i32 {past}, 3')}, 3")
            words = [
                self.arith.intrinsic("fshr", "i32", 1, far, near, bits)
                for near, far in pairwise(words)
            ]
        return put(f"bitcast <4 x i32> {self.w.build(words[:4], 'i32')} to {t}")

    def store(
        self,
        b: Buffer,
        x: str,
        p: str,
        w: int = 1,
        function: str | None = None,
        align: int = 0,
        hint: str = "",
    ) -> None:
        """So many elements from an address on; with a function, what is there is combined with
        them."""
        if function:
            old = self.load(b, p, w, align)
            x = self.arith.combine(function, b.dtype, w, [old, x])
        self.raw_store(b, self.arith.narrow(x, b.dtype, w), p, w, align, hint)

    def raw_store(
        self, b: Buffer, x: str, p: str, w: int = 1, align: int = 0, hint: str = ""
    ) -> None:
        """The same of elements in the form of memory."""
        t = vector(memory_type(b.dtype), w)
        self.w.line(f"store {t} {x}, ptr {p}, align {align or b.dtype.bytes}{hint}")

    # ---- lanes that a mask chooses; in the form of memory

    def has_masks(self, b: Buffer) -> bool:
        """Has the machine accesses that leave out elements of a buffer?"""
        return 0 < self.masked_bytes <= b.dtype.bytes

    def masked_load(self, b: Buffer, p: str, m: str, w: int) -> str:
        return self._masked_read("load", "ptr", "p0", b, p, m, w)

    def masked_gather(self, b: Buffer, p: str, m: str, w: int) -> str:
        return self._masked_read("gather", f"<{w} x ptr>", f"v{w}p0", b, p, m, w)

    def _masked_read(
        self, how: str, pointer: str, form: str, b: Buffer, p: str, m: str, w: int
    ) -> str:
        """Zeros in the other lanes."""
        t = memory_type(b.dtype)
        v = f"<{w} x {t}>"
        name = f"@llvm.masked.{how}.{suffix(t, w)}.{form}"
        self.arith.declares.add(f"declare {v} {name}({pointer}, i32, <{w} x i1>, {v})")
        given = f"{pointer} {{}}, i32 {b.dtype.bytes}, <{w} x i1> {{}}, {v} zeroinitializer"
        return self.w.put(self._call(v, name, given, ((pointer, p), (f"<{w} x i1>", m))))

    def masked_store(self, b: Buffer, x: str, p: str, m: str, w: int) -> None:
        if b.dtype.bytes < 4 or memory_type(b.dtype) == "i32":
            m = self._unknown_mask(p, m, w)
        self._masked_write("store", "ptr", "p0", b, x, p, m, w)

    def masked_scatter(self, b: Buffer, x: str, p: str, m: str, w: int) -> None:
        self._masked_write("scatter", f"<{w} x ptr>", f"v{w}p0", b, x, p, m, w)

    def _masked_write(
        self, how: str, pointer: str, form: str, b: Buffer, x: str, p: str, m: str, w: int
    ) -> None:
        t = memory_type(b.dtype)
        v = f"<{w} x {t}>"
        name = f"@llvm.masked.{how}.{suffix(t, w)}.{form}"
        self.arith.declares.add(f"declare void {name}({v}, {pointer}, i32, <{w} x i1>)")
        given = f"{v} {{}}, {pointer} {{}}, i32 {b.dtype.bytes}, <{w} x i1> {{}}"
        self.w.line(self._call("void", name, given, ((v, x), (pointer, p), (f"<{w} x i1>", m))))

    def _unknown_mask(self, p: str, m: str, w: int) -> str:
        """The same mask, combined with a condition that always holds, which LLVM cannot know. Where
        LLVM for x86 knows that one lane is stored it stores the wider number of which the lane was
        cut: 64 bits for an int32 that comes out of an int64 (issue 179489 of llvm-project)."""
        put = self.w.put
        holds = put(f"icmp ne ptr {p}, inttoptr (i64 1 to ptr)")
        return put(f"and <{w} x i1> {m}, {self.arith.splat(holds, 'i1', w)}")

    def _call(self, result: str, name: str, given: str, args: tuple[tuple[str, str], ...]) -> str:
        """A call of a masked access; where these are branches per lane, of a function that has it
        once."""
        if COLD not in self.c.hints:
            return f"call {result} {name}({given.format(*(v for _, v in args))})"
        own = name.replace("@llvm.", "@tw.")
        inner = given.format(*(f"%a{k}" for k in range(len(args))))
        call, back = f"call {result} {name}({inner})", "ret void"
        if result != "void":
            call, back = f"%r = {call}", f"ret {result} %r"
        head = ", ".join(f"{t} %a{k}" for k, (t, _) in enumerate(args))
        self.arith.defines[own] = (
            f"define internal {self.keeping}{result} {own}({head}) noinline cold nounwind {{\n"
            f"  {call}\n  {back}\n}}"
        )
        return f"call {self.keeping}{result} {own}({', '.join(f'{t} {v}' for t, v in args)})"
