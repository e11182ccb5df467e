"""Copies from global to shared memory that go on while threads compute (cp.async).

Of an asynchronous store that is a plain copy of 4, 8 or 16 bytes which lie beside each other, on
GPUs that have such copies. Any other is an ordinary one, which is there at once: nobody may tell
the difference before the wait.
"""

from __future__ import annotations

from tilewright.ir.expr import Load
from tilewright.kernel.nest import Store
from tilewright.llvm.body import Body

SIZES = (4, 8, 16)


class AsyncCopies(Body):
    def store(self, s: Store) -> None:
        if not (s.asynchronous and self._copied(s)):
            super().store(s)

    @property
    def _possible(self) -> bool:
        grid = self.target.grid
        return grid is not None and grid.copies_in_background

    def _copied(self, s: Store) -> bool:
        """Writes the instruction, if there is one for this."""
        v, b = s.value, self.buffers[s.buffer]
        if not self._possible or not isinstance(v, Load) or self.under:
            return False
        source, w = self.buffers[str(v.source)], self.lane[1] if self.lane else 1
        size = w * b.dtype.bytes
        given = source.name in {x.name for x in self.args}
        if b.scope != "shared" or not given or source.dtype is not b.dtype or size not in SIZES:
            return False
        to, of = self._linear(b, s.index), self._linear(source, v.index)
        if any(self.alignment(x, lin, w) < size for x, lin in ((b, to), (source, of))):
            return False
        places: list[str] = []
        for x, lin, space in ((b, to, 3), (source, of, 1)):
            const, terms, lane = self._terms(lin)
            if w > 1 and lane != x.unit:
                return False
            p = self.pointer(x, const, terms)
            places.append(self.put(f"addrspacecast ptr {p} to ptr addrspace({space})"))
        # Past the first cache, where all 16 bytes of a vector are asked for.
        name = f"@llvm.nvvm.cp.async.{'cg' if size == 16 else 'ca'}.shared.global.{size}"
        self.arith.declares.add(f"declare void {name}(ptr addrspace(3), ptr addrspace(1))")
        self.line(f"call void {name}(ptr addrspace(3) {places[0]}, ptr addrspace(1) {places[1]})")
        self.touch(s)
        return True

    def commit_copies(self) -> None:
        self._group("commit.group", "")

    def wait_for_copies(self, pending: int) -> None:
        self._group("wait.group", f"i32 {pending}")

    def _group(self, what: str, given: str) -> None:
        if not self._possible:
            return
        name = f"@llvm.nvvm.cp.async.{what}"
        self.arith.declares.add(f"declare void {name}({given.partition(' ')[0]})")
        self.line(f"call void {name}({given})")
