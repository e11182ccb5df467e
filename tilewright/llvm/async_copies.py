"""Copies from global to shared memory that go on while threads compute (cp.async).

Of an asynchronous store that is a copy of 4, 8 or 16 bytes which are adjacent, or zeros
where a condition fails that all of them share, on GPUs that have such copies. Any other is an
ordinary one, which is there at once: no thread may read it before the wait.
"""

from __future__ import annotations

from tilewright.ir.expr import all_of
from tilewright.ir.target import Grid
from tilewright.kernel.divisors import Divisors, whole_lanes
from tilewright.kernel.guards import conditions, copied
from tilewright.kernel.nest import Store
from tilewright.llvm.addresses import Addresses
from tilewright.llvm.context import Context
from tilewright.llvm.values import Values
from tilewright.llvm.writer import Writer

SIZES = (4, 8, 16)


class AsyncCopies:
    def __init__(
        self, w: Writer, c: Context, addresses: Addresses, values: Values, grid: Grid
    ) -> None:
        self.w, self.c, self.addresses, self.values = w, c, addresses, values
        self.possible = grid.copies_in_background
        self.divisors = Divisors(())

    def copy(self, s: Store) -> bool:
        """Writes the instruction, if there is one for this."""
        c, a = self.c, self.addresses
        # A condition that all lanes fulfil alike is written without the lane.
        one = s if c.lane is None else whole_lanes(s, c.lane[0], self.divisors)
        assert isinstance(one, Store)
        v, b = copied(one.value), c.buffers[s.buffer]
        given_if = conditions(one.value)
        if not self.possible or v is None or c.under or any(map(c.is_vector, given_if)):
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
        to_from = f"ptr addrspace(3) {places[0]}, ptr addrspace(1) {places[1]}"
        kinds = "ptr addrspace(3), ptr addrspace(1)"
        if given_if:
            # Bytes that are read; the others are zeros. Where none are, the address is any.
            name, kinds = f"{name}.s", f"{kinds}, i32"
            bit = self.values.value(all_of(*given_if))
            to_from += f", i32 {self.w.put(f'select i1 {bit}, i32 {size}, i32 0')}"
        self.w.arith.declares.add(f"declare void {name}({kinds})")
        self.w.line(f"call void {name}({to_from})")
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
