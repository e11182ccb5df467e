"""Tasks → LLVM text: one kernel whose blocks go through the phases of a task graph.

Kinds of tasks are functions (`emit_kernels(…, tasks=True)`); the kernel calls them by what a table
in memory says (kernel/tasks.py says what it means). The table has a record of 64-bit words for each
phase. A block has the record that it works on in shared memory, and reads the next ones meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilewright.base.errors import Unsupported
from tilewright.ir.target import Grid
from tilewright.llvm.awaiting import AWAIT, AWAITED
from tilewright.llvm.grid import SHARED
from tilewright.llvm.launch import Launch

ENTRY = "tw_tasks"
# Words of a record: those of every phase, waits, and the values that the task's function takes.
KIND, TASKS, ALONG_X, ALONG_Y, FIRST, COUNTER, WAITS, EARLY, WAIT = range(9)
MOST_WAITS = 16
VALUES = WAIT + 2 * MOST_WAITS
DEEP = 4  # records, the one in use among them, that a block has or has asked for
LINE = 128  # bytes from counter to counter, so that each is alone in a line of the cache
# The first line counts blocks that are done; counter k is in line k + 1.
MOST_REGISTERS = 128  # of a thread, so that a multiprocessor has at least two blocks of 256
# Is it written down when phases end, and where, in bytes behind a counter? For measurements.
TIMED: bool = False
TIME = 16
STATIC = 4096  # bytes of shared memory besides that of tasks, at most


@dataclass(frozen=True)
class Kind:
    """A kind of tasks: its function, the threads that take part, the buffers and sizes it takes;
    can it wait for others itself, when it has begun early?"""

    symbol: str
    threads: int
    buffers: int
    sizes: int
    early: bool = False


@dataclass(frozen=True)
class TaskCode:
    """The module of a kernel that runs tasks: its text, threads of a block, bytes of shared memory,
    kinds in the order of their numbers, words of a record, and blocks that a multiprocessor has
    registers for at least."""

    text: str
    threads: int
    shared: int
    kinds: tuple[Kind, ...]
    words: int
    blocks: int


def counter_place(number: int) -> int:
    """Where a counter is, in bytes."""
    return LINE * (number + 1)


def emit_tasks(modules: Sequence[tuple[str, Sequence[Launch], int]], grid: Grid) -> TaskCode:
    """One kernel of the functions of several modules; each has its launches, and how many sizes
    these take."""
    kinds = tuple(
        Kind(x.symbol, prod(x.threads), len(x.arguments), sizes, bool(x.early))
        for _, found, sizes in modules
        for x in found
    )
    words = VALUES + max((k.buffers + k.sizes for k in kinds), default=0)
    threads = max((words, *(k.threads for k in kinds)))
    threads = -(-threads // grid.warp) * grid.warp
    if threads > grid.block_threads:
        raise Unsupported(f"a record of {words} words is more than the threads of a block read")
    shared = max((x.shared for _, found, _ in modules for x in found), default=0)
    room = grid.shared // (shared + STATIC)
    blocks = max(1, min(grid.registers // (MOST_REGISTERS * threads), room))
    body = _kernel(kinds, threads, words, blocks, grid)
    text = merged([text for text, _, _ in modules] + [body])
    return TaskCode(text, threads, shared, kinds, words, blocks)


# ---- modules as one

_ITEM = re.compile(r"^define .*?^\}$|^[^\n]+$", re.M | re.S)
_NAME = re.compile(r"@([\w.]+)")
_NUMBER = re.compile(r"(?<![\w\"])!(\d+)\b")


def merged(texts: Sequence[str]) -> str:
    """Modules as one. Equal functions and declarations stand there once; others of one name get
    names of their own."""
    known: dict[str, str] = {}
    heads: dict[str, None] = {}
    bodies: list[str] = []
    numbered: list[str] = []
    for n, text in enumerate(texts):
        start = len(numbered)
        text = _NUMBER.sub(lambda m, start=start: f"!{int(m[1]) + start}", text)
        items = _ITEM.findall(text)
        renamed: dict[str, str] = {}
        for x in items:
            if x.startswith("define"):
                found = _NAME.search(x)
                assert found is not None
                if known.get(found[1], x) != x:
                    renamed[found[1]] = f"{found[1]}.{n}"
        if renamed:
            text = _NAME.sub(lambda m, by=renamed: f"@{by.get(m[1], m[1])}", text)
            items = _ITEM.findall(text)
        for x in items:
            if x.startswith("!"):
                numbered.append(x)
            elif not x.startswith("define"):
                heads[x] = None
            else:
                found = _NAME.search(x)
                assert found is not None
                if found[1] not in known:
                    known[found[1]] = x
                    bodies.append(x)
    return "\n".join([*heads, *bodies, *numbered]) + "\n"


# ---- the kernel


_HEAD = """\
@{shared}_shared = external addrspace(3) global [0 x i8], align 1024
@tw_record = internal addrspace(3) global [{twice} x i64] undef, align 16
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)
define ptx_kernel void @{entry}(ptr addrspace(1) noalias readonly align 16 %table, i64 %phases, \
ptr addrspace(1) align 16 %counters, i64 %count, i64 %grid) "nvvm.reqntid"="{threads},1,1" \
"nvvm.minctasm"="{blocks}" convergent nounwind {{
entry:
  %tid.32 = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %tid = zext nneg i32 %tid.32 to i64
  %block.32 = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %block = zext nneg i32 %block.32 to i64
  %leads = icmp eq i64 %tid, {leader}
  %reads = icmp ult i64 %tid, {words}
  %last.phase = sub i64 %phases, 1
  br i1 %reads, label %begin, label %begun
begin:
{first}
  store i64 %word.0, ptr addrspace(3) %to.0, align 8
  br label %begun
begun:
{begun}
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  br label %phase

phase:
  %p = phi i64 [ 0, %begun ], [ %p.next, %told ]
{waiting}
  %p.next = add nuw i64 %p, 1
  %turn = and i64 %p, 1
  %place = mul nuw i64 %turn, {words}
  %record = getelementptr i64, ptr addrspace(3) @tw_record, i64 %place
  %more = icmp ult i64 %p.next, %phases
  %reads.next = and i1 %more, %reads
  br i1 %reads, label %fetch, label %fetched
fetch:
  %far = add nuw i64 %p, {deep}
{fetch}
  br label %fetched
fetched:
  %word.far = phi i64 [ %word, %fetch ], [ 0, %phase ]
"""


def _word(row: str, k: str) -> str:
    """The load of a thread's word of a record, or of the last one where there are fewer."""
    return f"""\
  %inside{k} = icmp ult i64 {row}, %last.phase
  %at{k} = select i1 %inside{k}, i64 {row}, i64 %last.phase
  %row{k} = mul nuw i64 %at{k}, {{words}}
  %column{k} = add nuw i64 %row{k}, %tid
  %from{k} = getelementptr i64, ptr addrspace(1) %table, i64 %column{k}
  %word{k} = load i64, ptr addrspace(1) %from{k}, align 8"""


def _head(words: int) -> str:
    """The head, but for the sizes of the kernel: words of the next records are on their way, each
    for so many phases that blocks without tasks do not wait for them."""
    rows = range(1, DEEP)
    first = [_word(str(k), f".{k}") for k in range(DEEP)]
    first.append("  %to.0 = getelementptr i64, ptr addrspace(3) @tw_record, i64 %tid")
    begun = [f"  %begun.{k} = phi i64 [ %word.{k}, %begin ], [ 0, %entry ]" for k in rows]
    after = {k: f"%waiting.{k + 1}" for k in rows} | {DEEP - 1: "%word.far"}
    waiting = [
        f"  %waiting.{k} = phi i64 [ %begun.{k}, %begun ], [ {after[k]}, %told ]" for k in rows
    ]
    given = {"first": first, "begun": begun, "waiting": waiting, "fetch": [_word("%far", "")]}
    text = _HEAD
    for name, lines in given.items():
        text = text.replace(f"{{{name}}}", "\n".join(lines))
    return text.replace("{words}", str(words)).replace("{deep}", str(DEEP))


# Each of the first threads waits for one counter.
_AWAIT = """\
define internal void @{name}({given}) alwaysinline convergent nounwind {{
entry:
  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %looks = icmp ult i32 %tid, %waits
  br i1 %looks, label %look, label %open
look:
  %tid.64 = zext nneg i32 %tid to i64
  %pair = shl nuw i64 %tid.64, 1
  %wait.at = add nuw i64 %pair, {wait}
  %wait.place = getelementptr i64, ptr addrspace(3) %record, i64 %wait.at
  %wait.counter = load i64, ptr addrspace(3) %wait.place, align 8
  %wait.next = getelementptr i64, ptr addrspace(3) %wait.place, i64 1
  %wanted = load i64, ptr addrspace(3) %wait.next, align 8
  %watched = getelementptr i8, ptr addrspace(1) %counters, i64 %wait.counter
  br label %spin
spin:
  %seen.32 = load atomic i32, ptr addrspace(1) %watched syncscope("device") acquire, align 4
  %seen = zext i32 %seen.32 to i64
  %yet = icmp ult i64 %seen, %wanted
  br i1 %yet, label %spin, label %open
open:
  ret void
}}
"""

# The latest time at which a block was done with a phase, in the line of its counter.
_TIMED = """\
  %now = call i64 asm sideeffect "mov.u64 $0, %globaltimer;", "=l"()
  %timed = getelementptr i8, ptr addrspace(1) %place.own, i64 {time}
  call void asm sideeffect "red.relaxed.gpu.global.max.u64 [$0], $1;", "l,l,~{{memory}}"\
(ptr addrspace(1) %timed, i64 %now)"""

# Which tasks are this block's. Those that begin early wait themselves.
_WAIT = """\
  %tasks = {tasks}
  %first = {first}
  %gap = sub i64 %block, %first
  %behind = icmp slt i64 %gap, 0
  %around = add i64 %gap, %grid
  %start = select i1 %behind, i64 %around, i64 %gap
  %some = icmp slt i64 %start, %tasks
  br i1 %some, label %mine, label %hand
mine:
  %waits.64 = {waits}
  %waits = trunc i64 %waits.64 to i32
  %early = {early}
  %late = icmp eq i64 %early, 0
  br i1 %late, label %await, label %open
await:
  call void @{name}({given}) convergent
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  br label %open
open:
  %left.first = phi i32 [ 0, %await ], [ %waits, %mine ]
  %kind = {kind}
  %gx.64 = {along_x}
  %gy.64 = {along_y}
  %gx = trunc i64 %gx.64 to i32
  %gy = trunc i64 %gy.64 to i32
  br label %task

task:
  %t = phi i64 [ %start, %open ], [ %t.next, %done ]
  %ran = phi i32 [ 0, %open ], [ %ran.next, %done ]
  %left = phi i32 [ %left.first, %open ], [ 0, %done ]
  %t.32 = trunc i64 %t to i32
  %task.x = urem i32 %t.32, %gx
  %t.rest = udiv i32 %t.32, %gx
  %task.y = urem i32 %t.rest, %gy
  %task.z = udiv i32 %t.rest, %gy
  switch i64 %kind, label %done [ {cases} ]
"""

# All have left the task before the next one uses shared memory. A thread of the last warp then says
# how many were done, and what they wrote is visible to whoever sees it: that takes long, and the
# other warps begin the next phase meanwhile. (LLVM writes an atomicrmw with `release` as one
# without; a fence would drop the first cache too.)
_SIGNAL = """\
done:
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  %t.next = add i64 %t, %grid
  %ran.next = add i32 %ran, 1
  %again = icmp slt i64 %t.next, %tasks
  br i1 %again, label %task, label %signal
signal:
  %counter.own = {counter}
  br label %hand
hand:
  %counter = phi i64 [ -1, %fetched ], [ %counter.own, %signal ]
  %count.own = phi i32 [ 0, %fetched ], [ %ran.next, %signal ]
  br i1 %reads.next, label %put, label %passed
put:
  %other = sub nuw i64 {words}, %place
  %other.at = add nuw i64 %other, %tid
  %to = getelementptr i64, ptr addrspace(3) @tw_record, i64 %other.at
  store i64 %waiting.1, ptr addrspace(3) %to, align 8
  br label %passed
passed:
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  %counts = icmp sge i64 %counter, 0
  %tells = and i1 %counts, %leads
  br i1 %tells, label %tell, label %told
tell:
  %place.own = getelementptr i8, ptr addrspace(1) %counters, i64 %counter
{timed}
  call void asm sideeffect "red.release.gpu.global.add.u32 [$0], $1;", "l,r,~{{memory}}"\
(ptr addrspace(1) %place.own, i32 %count.own)
  br label %told
told:
  br i1 %more, label %phase, label %finish

finish:
  br i1 %leads, label %count.me, label %end
count.me:
  fence syncscope("device") acq_rel
  %ended = atomicrmw add ptr addrspace(1) %counters, i32 1 syncscope("device") monotonic
  fence syncscope("device") acq_rel
  %others = zext i32 %ended to i64
  %ended.all = add i64 %others, 1
  %last = icmp eq i64 %ended.all, %grid
  br i1 %last, label %reset, label %end
reset:
  %c = phi i64 [ 0, %count.me ], [ %c.next, %reset ]
  %c.place = mul i64 %c, {line}
  %c.pointer = getelementptr i8, ptr addrspace(1) %counters, i64 %c.place
  store i32 0, ptr addrspace(1) %c.pointer, align 4
  %c.next = add i64 %c, 1
  %c.more = icmp ule i64 %c.next, %count
  br i1 %c.more, label %reset, label %end
end:
  ret void
}}
"""


def _kernel(kinds: Sequence[Kind], threads: int, words: int, blocks: int, grid: Grid) -> str:
    count = 0

    def word(at: int) -> str:
        """The load of a word of the record; its place is written before."""
        nonlocal count
        count += 1
        places.append(f"  %w{count} = getelementptr i64, ptr addrspace(3) %record, i64 {at}")
        return f"load i64, ptr addrspace(3) %w{count}, align 8"

    parts: list[str] = []
    places: list[str] = []

    def add(text: str, **given: object) -> None:
        """A part, whose places of words stand before it."""
        made = text.format(**given)
        parts.extend(places)
        places.clear()
        parts.append(made.rstrip("\n"))

    size = {"threads": threads, "blocks": blocks, "words": words, "twice": 2 * words}
    size["leader"] = threads - grid.warp
    add(_head(words), shared=SHARED, entry=ENTRY, **size)
    own = {
        name: word(at)
        for name, at in (
            ("tasks", TASKS),
            ("first", FIRST),
            ("waits", WAITS),
            ("early", EARLY),
            ("kind", KIND),
            ("along_x", ALONG_X),
            ("along_y", ALONG_Y),
        )
    }
    signal = word(COUNTER)
    cases = " ".join(f"i64 {k}, label %kind{k}" for k in range(len(kinds)))
    add(_WAIT, name=AWAIT, given=AWAITED, cases=cases, **own)
    for k, kind in enumerate(kinds):
        parts += _call(k, kind, threads)
    timed = _TIMED.format(time=TIME) if TIMED else ""
    add(_SIGNAL, counter=signal, words=words, line=LINE, timed=timed)
    await_ = _AWAIT.format(name=AWAIT, given=AWAITED, wait=WAIT)
    return "\n".join([*parts, await_]) + "\n"


def _call(k: int, kind: Kind, threads: int) -> list[str]:
    """A case: the threads that take part call the function."""
    lines = [f"kind{k}:"]
    if kind.threads < threads:
        lines += [
            f"  %k{k}.in = icmp ult i64 %tid, {kind.threads}",
            f"  br i1 %k{k}.in, label %kind{k}.run, label %done",
            f"kind{k}.run:",
        ]
    given: list[str] = []
    for j in range(kind.buffers + kind.sizes):
        value, at = f"%k{k}.{j}", VALUES + j
        lines += [
            f"  {value}.place = getelementptr i64, ptr addrspace(3) %record, i64 {at}",
            f"  {value} = load i64, ptr addrspace(3) {value}.place, align 8",
        ]
        if j < kind.buffers:
            lines.append(f"  {value}.pointer = inttoptr i64 {value} to ptr addrspace(1)")
            given.append(f"ptr addrspace(1) {value}.pointer")
        else:
            given.append(f"i64 {value}")
    given += [f"i32 %task.{axis}" for axis in "xyz"]
    if kind.early:
        given.append(AWAITED.replace("%waits", "%left"))
    lines += [f"  call void @{kind.symbol}({', '.join(given)}) convergent", "  br label %done"]
    return lines
