"""Arguments that a program changes: one kernel, the last of all, copies their new values to them.

A copy by torch would be a launch for each, such as for the statistics of every norm of a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tilewright.runtime.cuda.plan import ALIGN

NAME = "tw_write_back"
THREADS = 256
MOST_BLOCKS = 256  # for one argument
MOST = 400  # arguments: a kernel takes 4 KiB of parameters
MOST_BYTES = 64 << 20  # of new values: a stream keeps the memory for them
_UNITS = {16: "<4 x i32>", 8: "i64", 4: "i32", 2: "i16", 1: "i8"}  # what is copied at a time


@dataclass(frozen=True)
class Room:
    """Where new values of so many bytes lie, behind one another."""

    sizes: tuple[int, ...]

    @cached_property
    def offsets(self) -> list[int]:
        found = [0]
        for n in self.sizes:
            found.append(found[-1] + -(-n // ALIGN) * ALIGN)
        return found[:-1]

    @property
    def size(self) -> int:
        return self.offsets[-1] + self.sizes[-1] if self.sizes else 0

    @property
    def blocks(self) -> tuple[int, int, int]:
        most = max(-(-n // (_unit(n) * THREADS)) for n in self.sizes)
        return min(MOST_BLOCKS, max(1, most)), len(self.sizes), 1


def _unit(size: int) -> int:
    return next(n for n in _UNITS if size % n == 0)


def text(room: Room) -> str:
    """A kernel that takes the address of what checks found or 0, that of the first new value, and
    those of all arguments. Blocks (x, y) copy argument y, each its share of it; where something was
    found, arguments stay as they are."""
    to = ", ".join(f"ptr addrspace(1) %to{k}" for k in range(len(room.sizes)))
    cases = " ".join(f"i32 {k}, label %p{k}" for k in range(len(room.sizes)))
    kinds: dict[int, list[int]] = {}
    for k, n in enumerate(room.sizes):
        kinds.setdefault(_unit(n), []).append(k)
    parts = [f"p{k}:\n  br label %u{u}" for u, ks in kinds.items() for k in ks]
    loops = [_loop(u, ks, room) for u, ks in kinds.items()]
    return f"""
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.y()

define ptx_kernel void @{NAME}(ptr addrspace(1) %found, ptr addrspace(1) %from, {to}) {{
entry:
  %thread = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %block = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %which = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.y()
  %before = mul i32 %block, {THREADS}
  %own = add i32 %before, %thread
  %first = zext i32 %own to i64
  %checks = icmp ne ptr addrspace(1) %found, null
  br i1 %checks, label %look, label %copy
look:
  %what = load i64, ptr addrspace(1) %found
  %fine = icmp eq i64 %what, 0
  br i1 %fine, label %copy, label %end
copy:
  switch i32 %which, label %end [ {cases} ]
{chr(10).join((*parts, *loops))}
end:
  ret void
}}
"""


def _loop(unit: int, which: Sequence[int], room: Room) -> str:
    def phi(kind: str, values: Sequence[object]) -> str:
        pairs = ", ".join(f"[ {v}, %p{k} ]" for k, v in zip(which, values, strict=True))
        return f"phi {kind} {pairs}"

    kind, u, step = _UNITS[unit], unit, room.blocks[0] * THREADS
    counts = [room.sizes[k] // unit for k in which]
    return f"""u{u}:
  %to.{u} = {phi("ptr addrspace(1)", [f"%to{k}" for k in which])}
  %start.{u} = {phi("i64", [room.offsets[k] for k in which])}
  %count.{u} = {phi("i64", counts)}
  %from.{u} = getelementptr i8, ptr addrspace(1) %from, i64 %start.{u}
  br label %head{u}
head{u}:
  %k.{u} = phi i64 [ %first, %u{u} ], [ %next.{u}, %body{u} ]
  %more.{u} = icmp ult i64 %k.{u}, %count.{u}
  br i1 %more.{u}, label %body{u}, label %end
body{u}:
  %x.{u} = getelementptr {kind}, ptr addrspace(1) %from.{u}, i64 %k.{u}
  %value.{u} = load {kind}, ptr addrspace(1) %x.{u}, align {u}
  %y.{u} = getelementptr {kind}, ptr addrspace(1) %to.{u}, i64 %k.{u}
  store {kind} %value.{u}, ptr addrspace(1) %y.{u}, align {u}
  %next.{u} = add i64 %k.{u}, {step}
  br label %head{u}"""
