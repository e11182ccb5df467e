"""Shared memory of each warp that its instructions pass operands through to the copy engine."""

from __future__ import annotations

from tilewright.kernel.intrinsic import INTRINSICS, Match, match
from tilewright.kernel.nest import Loop, Nest, Stmt, walk
from tilewright.llvm.positions import Positions
from tilewright.llvm.writer import Writer


class Staging:
    def __init__(self, n: Nest, launch: tuple[Stmt, ...], warps: int) -> None:
        self.each = max((_bytes(n, s) for s, _ in walk(launch) if isinstance(s, Loop)), default=0)
        self.bytes = warps * self.each
        self.known = False  # is the address of the warp's own?

    def address(self, w: Writer, positions: Positions, first: str) -> str:
        """That of the warp, where the first one's is known; warps are along thread.z."""
        if not self.known:
            self.known = True
            z = positions.short("thread.z")
            w.line(f"%staged.at = mul i32 {z}, {self.each}", entry=True)
            place = f"getelementptr i8, ptr addrspace(3) {first}, i32 %staged.at"
            w.line(f"%staged = {place}", entry=True)
        return "%staged"


def _bytes(n: Nest, s: Loop) -> int:
    i = INTRINSICS.get(s.instruction)
    if i is None or i.staged is None:
        return 0
    found = match(i, n, s)
    assert isinstance(found, Match), found.reason
    return i.staged(found.constants)
