"""The shared memory of a kernel on a GPU."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.base.errors import Unsupported
from tilewright.ir import dim as D
from tilewright.ir.target import Grid
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import Stmt, Store, store_loads, walk
from tilewright.kernel.shared_places import alignment_of, shared_places
from tilewright.kernel.swizzle import multiple

# Shared memory that a kernel may have without more being allocated at its launch.
STATIC_SHARED = 48 * 1024
STAGED = 128  # bytes at multiples of which an operand lies that the copy engine reads
_BYTES = {"i8": 1, "i16": 2, "half": 2, "i32": 4, "float": 4, "i64": 8, "double": 8}


def check_lanes(launch: tuple[Stmt, ...], buffers: Mapping[str, Buffer]) -> None:
    """Refuses lanes over swizzled memory that are not adjacent there."""
    for s, path in walk(launch):
        lanes = [q for q in path if q.kind == "lane"]
        if not isinstance(s, Store) or not lanes:
            continue
        used = [(s.buffer, s.index), *((str(x.source), x.index) for x in store_loads(s))]
        for name, index in used:
            by = buffers[name].swizzle if name in buffers else None
            if by is None:
                continue
            lin, v = linear_index(buffers[name], index), lanes[-1].var
            step, width = D.coefficient(lin, v), D.bounds(lanes[-1].extent)[1]
            adjacent = step == 1 and by.block % width == 0 and multiple(lin - D.as_int(v), width)
            if step != 0 and not adjacent:
                raise Unsupported(
                    f"the lanes {lanes[-1].name} are not adjacent in the swizzled {name}",
                    hint=f"lanes of {by.block} neighbours at most, at multiples of their number",
                )


class Shared:
    """The shared memory of a kernel: a variable for each buffer, or, where they are more than a
    kernel has by itself, places in one that the launch allocates."""

    def __init__(
        self,
        symbol: str,
        buffers: list[Buffer],
        grid: Grid,
        apart: frozenset[tuple[str, str]] = frozenset(),
        barriers: int = 0,
        staged: int = 0,
        common: bool = False,
    ) -> None:
        """Buffers that are `apart` may have one place. `barriers` are bytes besides all buffers,
        for memory barriers, `staged` those that instructions of warps pass operands through. All is
        in one dynamic piece where several functions use that in turn (`common`)."""
        self.symbol, self.grid, self.common = symbol, grid, common
        self.lines: list[str] = []
        self.places: dict[str, str] = {}
        sizes = {b.name: bytes_of(b, "shared memory") for b in buffers}
        whole = {b.name: alignment_of(b) for b in buffers}
        places, total = shared_places(buffers, sizes, apart)
        through = -(-total // STAGED) * STAGED if staged else total
        first = through + staged
        total = first + barriers
        if total > grid.block_shared:
            raise Unsupported(
                f"{total:,} bytes of shared memory are more than the {grid.block_shared:,} that a "
                "block can have",
                hint="smaller tiles, or fewer versions of a buffer",
            )
        # What is one memory for several has to be places in one variable.
        together = len(buffers) > 1 and bool(apart)
        dynamic = total > STATIC_SHARED - 4096 or together or common
        self.dynamic = total if dynamic else 0
        if dynamic:
            least = STAGED if staged else 1
            name, most = f"@{symbol}_shared", 1024 if common else max((least, *whole.values()))
            self.lines.append(f"{name} = external addrspace(3) global [0 x i8], align {most}")
        for b in buffers:
            if dynamic:
                at = places[b.name]
                where = f"getelementptr (i8, ptr addrspace(3) @{symbol}_shared, i64 {at})"
            else:
                where = f"@{symbol}_s{len(self.places)}"
                self.lines.append(self._variable(where, sizes[b.name], "i8", whole[b.name]))
            self.places[b.name] = f"addrspacecast (ptr addrspace(3) {where} to ptr)"
        piece = f"getelementptr (i8, ptr addrspace(3) @{symbol}_shared, i64 {{}})"
        self.barriers = self.staged = ""  # their addresses
        if barriers:
            self.barriers = piece.format(first) if dynamic else self.variable(barriers // 8, "i64")
        if staged:
            self.staged = piece.format(through) if dynamic else self.variable(staged, "i8")

    @staticmethod
    def _variable(name: str, count: int, t: str, align: int) -> str:
        kind = "internal addrspace(3) global"
        return f"{name} = {kind} [{max(1, count)} x {t}] undef, align {align}"

    def variable(self, count: int, t: str) -> str:
        """More of it, for the emitter's own use."""
        if self.common:
            at = self.dynamic
            self.dynamic += -(-count * _BYTES[t] // 16) * 16
            return f"getelementptr (i8, ptr addrspace(3) @{self.symbol}_shared, i64 {at})"
        name = f"@{self.symbol}_v{len(self.lines)}"
        self.lines.append(self._variable(name, count, t, 16))
        return name

    def globals(self) -> list[str]:
        return self.lines


def bytes_of(b: Buffer, what: str) -> int:
    size = D.bounds(b.size)[1]
    if size >= D.INF:
        raise Unsupported(f"the size of {b.name} is not known, which is {what}")
    return size * b.dtype.bytes
