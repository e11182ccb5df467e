"""Copies from global to shared memory that go on while threads compute (cp.async).

Of an asynchronous store that is a plain copy of 4, 8 or 16 bytes which lie beside each other, on
GPUs that have such copies. Any other is an ordinary one, which is there at once: nobody may tell
the difference before the wait.
"""

from __future__ import annotations

from tilewright.ir.expr import Load
from tilewright.ir.target import Grid
from tilewright.kernel.nest import Store
from tilewright.llvm.addresses import Addresses
from tilewright.llvm.context import Context
from tilewright.llvm.writer import Writer

SIZES = (4, 8, 16)


class AsyncCopies:
    def __init__(self, w: Writer, c: Context, addresses: Addresses, grid: Grid) -> None:
        self.w, self.c, self.addresses = w, c, addresses
        self.possible = grid.copies_in_background

    def copy(self, s: Store) -> bool:
        """Writes the instruction, if there is one for this."""
        c, a = self.c, self.addresses
        v, b = s.value, c.buffers[s.buffer]
        if not self.possible or not isinstance(v, Load) or c.under:
            return False
        source, w = c.buffers[str(v.source)], c.width
        size = w * b.dtype.bytes
        given = source.name in {x.name for x in c.args}
        if b.scope != "shared" or not given or source.dtype is not b.dtype or size not in SIZES:
            return False
        to, of = a.linear(b, s.index), a.linear(source, v.index)
        if any(a.alignment(x, lin, w) < size for x, lin in ((b, to), (source, of))):
            return False
        places: list[str] = []
        for x, lin, space in ((b, to, 3), (source, of, 1)):
            const, terms, lane = a.indices.terms(lin)
            if w > 1 and lane != x.unit:
                return False
            p = a.pointer(x, const, terms)
            places.append(self.w.put(f"addrspacecast ptr {p} to ptr addrspace({space})"))
        # Past the first cache, where all 16 bytes of a vector are copied.
        name = f"@llvm.nvvm.cp.async.{'cg' if size == 16 else 'ca'}.shared.global.{size}"
        self.w.arith.declares.add(f"declare void {name}(ptr addrspace(3), ptr addrspace(1))")
        self.w.line(f"call void {name}(ptr addrspace(3) {places[0]}, ptr addrspace(1) {places[1]})")
        self.c.touch(s)
        return True

    def commit(self) -> None:
        self._group("commit.group", "")

    def wait(self, pending: int) -> None:
        self._group("wait.group", f"i32 {pending}")

    def _group(self, what: str, given: str) -> None:
        if not self.possible:
            return
        name = f"@llvm.nvvm.cp.async.{what}"
        self.w.arith.declares.add(f"declare void {name}({given.partition(' ')[0]})")
        self.w.line(f"call void {name}({given})")
