"""The entry function of a program: every kernel call in order over one arena, so that Python makes
one call.

void entry(ptr in, ptr out, ptr dims, ptr arena)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Union

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.llvm.batch import batch_function, batch_tables
from tilewright.llvm.sizes import DECLARED, Sizes


@dataclass(frozen=True)
class Slot:
    """Where a value lives: in[k], out[k], or at a byte offset of the arena. One over an input that
    is not needed any more lies `offset` bytes behind its beginning."""

    kind: str  # "in", "out", "arena"
    at: Dim
    offset: int = 0


@dataclass(frozen=True)
class Call:
    """A kernel over slots, the last `written` of which it fills. `dims` are sizes that it takes, by
    the program's name for them or as numbers; `sizes` are the bytes of its slots."""

    symbol: str
    args: tuple[Slot, ...]
    dims: tuple[str | int, ...]
    sizes: tuple[Dim, ...] = ()
    written: int = 0

    def overlaps(self, other: Call) -> bool:
        """May one of them write what the other uses? True where it is not known."""
        if len(self.sizes) != len(self.args) or len(other.sizes) != len(other.args):
            return True
        pairs = [(a, b) for a in self._uses() for b in other._uses() if a[2] or b[2]]
        return any(_overlap(a[0], a[1], b[0], b[1]) for a, b in pairs)

    def _uses(self) -> list[tuple[Slot, Dim, bool]]:
        reads = len(self.args) - self.written
        return [
            (slot, size, k >= reads)
            for k, (slot, size) in enumerate(zip(self.args, self.sizes, strict=True))
        ]


def _overlap(a: Slot, size_a: Dim, b: Slot, size_b: Dim) -> bool:
    if a.kind != b.kind:
        return False  # results, operands and the arena lie apart
    if a.kind != "arena":
        if a.at != b.at:
            return False
        a, b = Slot("in", a.offset), Slot("in", b.offset)
    numbers = (a.at, size_a, b.at, size_b)
    if not all(isinstance(x, int) for x in numbers):
        return True
    return D.known_lt(a.at, b.at + size_b) and D.known_lt(b.at, a.at + size_a)


@dataclass(frozen=True)
class Together:
    """Kernels that are independent, one per thread: for those that use one thread each."""

    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Part:
    """A call of a batch. It runs as a whole, or as `pieces` of so many elements: `steps` are the
    bytes from an element to the next of each argument, 0 for one that all share. The kernel takes
    the number of elements as its one size."""

    call: Call
    count: int = 0  # elements; 0: as a whole
    steps: tuple[int, ...] = ()


@dataclass(frozen=True)
class Batch:
    """Calls that are independent, in one parallel loop over the pieces of all of them."""

    parts: tuple[Part, ...]
    parallel: bool = True


@dataclass(frozen=True)
class Branch:
    """One of two programs, by the byte at `predicate`. Both share the arena from `arena` on."""

    predicate: Slot
    then: str
    other: str
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    dims: tuple[tuple[str, ...], tuple[str, ...]]
    arena: Dim


@dataclass(frozen=True)
class Slices:
    """A value of which each round of a loop sees another part: `step` bytes further, or as many
    before, from the last one on."""

    slot: Slot
    step: Dim
    back: bool = False


@dataclass(frozen=True)
class Carried:
    """A value that each round of a loop makes anew of the last: `first` before the first round,
    `result` in the end. Rounds write `result` and `spare` in turn, so that what is read and what is
    written differ; or it is what they write of results `stacked`; or they update it `in_place`, in
    `result`. `copy` takes it there, before the first round or after the last."""

    first: Slot
    result: Slot
    spare: Slot
    copy: str
    dims: tuple[str, ...]
    stacked: int | None = None
    in_place: bool = False


@dataclass(frozen=True)
class Loop:
    """A program over and over: `count` times, or while the program `condition` writes a byte other
    than 0 to `flag`. Its inputs are carried values, slices, and `inputs`; its results are carried
    values (but for those that are among the stacked ones), then stacked ones. It uses the arena
    from `arena` on."""

    body: str
    dims: tuple[str, ...]
    count: Dim
    condition: str
    condition_dims: tuple[str, ...]
    flag: Slot
    carried: tuple[Carried, ...]
    slices: tuple[Slices, ...]
    inputs: tuple[Slot, ...]
    stacked: tuple[Slices, ...]
    arena: Dim


@dataclass(frozen=True)
class GiveBack:
    """The whole pages in `size` bytes go back to the system: nobody needs what they hold. Their
    memory is there again, and new, for whoever uses it next."""

    slot: Slot
    size: int
    page: int


Action = Union[Call, Together, Batch, Branch, Loop, GiveBack]

_DONT_NEED = 4  # Linux's MADV_DONTNEED

# One of several calls; a call is its function, its arguments and its sizes.
_EACH = """\
define internal void @tw_each(ptr %calls, i64 %k) nounwind {
  %call = getelementptr { ptr, ptr, ptr }, ptr %calls, i64 %k
  %function = load ptr, ptr %call
  %args.at = getelementptr ptr, ptr %call, i64 1
  %args = load ptr, ptr %args.at
  %sizes.at = getelementptr ptr, ptr %call, i64 2
  %sizes = load ptr, ptr %sizes.at
  call void %function(ptr %args, ptr %sizes)
  ret void
}
declare void @tw_parallel(ptr, ptr, i64)"""


@dataclass(frozen=True)
class Entry:
    """`in_place` are results that lie where an input does, as whoever calls it has said."""

    symbol: str
    actions: tuple[Action, ...]
    dims: tuple[str, ...]
    in_place: tuple[int, ...] = ()


def emit_entries(entries: Sequence[Entry], marks: bool = False) -> str:
    """One module with the entry functions (a program's own and those of its branches and loops).

    With `marks`, the last entry calls `tw_mark(k)` before its k-th action and once at the end: how
    a profile is taken. Entries before it are inside of it: they belong to an action of the last.
    """
    own = {e.symbol for e in entries}
    needed = {c.symbol for e in entries for a in e.actions for c in calls_of(a)} - own
    loops = [a for e in entries for a in e.actions if isinstance(a, Loop)]
    needed |= {c.copy for a in loops for c in a.carried if c.copy}
    lines = [f"declare void @{s}(ptr, ptr)" for s in sorted(needed)]
    lines.append(DECLARED)
    if marks:
        lines.append("declare void @tw_mark(i64)")
    if any(isinstance(a, Together) for e in entries for a in e.actions):
        lines.append(_EACH)
    batches = [a for e in entries for a in e.actions if isinstance(a, Batch)]
    if batches:
        most = max(len(p.call.args) for a in batches for p in a.parts)
        shared = any(isinstance(a, Together) for e in entries for a in e.actions)
        lines.append(batch_function(most, declared=shared))
    if any(isinstance(a, GiveBack) for e in entries for a in e.actions):
        lines.append("declare i32 @madvise(ptr, i64, i32)")
    for e in entries:
        lines += _Writer(e, marks and e is entries[-1]).lines()
    return "\n".join(lines) + "\n"


def calls_of(a: Action) -> tuple[Call, ...]:
    """The kernels of an action; those of branches and loops are actions of other entries."""
    if isinstance(a, Together):
        return a.calls
    if isinstance(a, Batch):
        return tuple(p.call for p in a.parts)
    return (a,) if isinstance(a, Call) else ()


class _Writer(Sizes):
    def __init__(self, e: Entry, marks: bool) -> None:
        super().__init__()
        self.e, self.marks = e, marks
        self.tables: list[str] = []  # of batches

    def lines(self) -> list[str]:
        e = self.e
        width = max([len(a.args) for a in e.actions if isinstance(a, Call)] + [1])
        deep = max([len(a.dims) for a in e.actions if isinstance(a, Call)] + [1])
        head = [
            f"define void @{e.symbol}(ptr %in, ptr %out, ptr %dims, ptr %arena) nounwind {{",
            f"  %args = alloca [{width} x ptr]",
            f"  %sizes = alloca [{deep} x i64], align 8",
        ]
        self.read_symbols(e.dims)
        for k, a in enumerate(e.actions):
            if self.marks:
                self.line(f"call void @tw_mark(i64 {k})")
            if isinstance(a, Call):
                self.call(a)
            elif isinstance(a, Together):
                self.together(a)
            elif isinstance(a, Batch):
                self.batch(a)
            elif isinstance(a, Branch):
                self.branch(a)
            elif isinstance(a, GiveBack):
                self.give_back(a)
            else:
                self.loop(a)
        if self.marks:
            self.line(f"call void @tw_mark(i64 {len(e.actions)})")
        return [*self.tables, *head, *self.out, "  ret void", "}"]

    def slot(self, s: Slot) -> str:
        if s.kind == "arena":
            return self.put(f"getelementptr i8, ptr %arena, i64 {self.dim(s.at)}")
        p = self.put(f"getelementptr ptr, ptr %{s.kind}, i64 {s.at}")
        start = self.put(f"load ptr, ptr {p}")
        return self.put(f"getelementptr i8, ptr {start}, i64 {s.offset}") if s.offset else start

    def size(self, d: str | int) -> str:
        return self.values[d] if isinstance(d, str) else str(d)

    def call(self, a: Call) -> None:
        self.fill("%args", "ptr", [self.slot(s) for s in a.args])
        sizes = "%dims"
        if a.dims != self.e.dims:
            sizes = "%sizes"
            self.fill(sizes, "i64", list(map(self.size, a.dims)))
        self.line(f"call void @{a.symbol}(ptr %args, ptr {sizes})")

    def together(self, t: Together) -> None:
        table = self.put(f"alloca [{3 * len(t.calls)} x ptr]")
        values = []
        for c in t.calls:
            args = self.put(f"alloca [{max(1, len(c.args))} x ptr]")
            self.fill(args, "ptr", [self.slot(s) for s in c.args])
            sizes = self.put(f"alloca [{max(1, len(c.dims))} x i64], align 8")
            self.fill(sizes, "i64", list(map(self.size, c.dims)))
            values += [f"@{c.symbol}", args, sizes]
        self.fill(table, "ptr", values)
        self.line(f"call void @tw_parallel(ptr @tw_each, ptr {table}, i64 {len(t.calls)})")

    def batch(self, b: Batch) -> None:
        name = f"{self.e.symbol}.b{len(self.tables)}"
        rows = [
            (
                p.call.symbol,
                p.count,
                [
                    (("in", "out", "arena").index(s.kind), s.at, s.offset, step)
                    for s, step in zip(p.call.args, p.steps or (0,) * len(p.call.args), strict=True)
                ],
            )
            for p in b.parts
        ]
        text, pieces = batch_tables(name, rows)
        self.tables.append(text)
        context = self.put("alloca [6 x ptr]")
        tables = [f"@{name}", f"@{name}.args", f"@{name}.count"]
        self.fill(context, "ptr", ["%in", "%out", "%arena", *tables])
        run = "tw_parallel" if b.parallel else "tw_one_by_one"
        self.line(f"call void @{run}(ptr @tw_piece, ptr {context}, i64 {pieces})")

    def give_back(self, a: GiveBack) -> None:
        start = self.put(f"ptrtoint ptr {self.slot(a.slot)} to i64")
        above = self.put(f"add i64 {start}, {a.page - 1}")
        first = self.put(f"and i64 {above}, {-a.page}")
        behind = self.put(f"add i64 {start}, {a.size}")
        end = self.put(f"and i64 {behind}, {-a.page}")
        size = self.put(f"sub i64 {end}, {first}")
        pages = self.put(f"inttoptr i64 {first} to ptr")
        self.put(f"call i32 @madvise(ptr {pages}, i64 {size}, i32 {_DONT_NEED})")

    def branch(self, b: Branch) -> None:
        self.count += 1
        n = f"b{self.count}"
        ins = self.put(f"alloca [{max(1, len(b.inputs))} x ptr]")
        outs = self.put(f"alloca [{max(1, len(b.outputs))} x ptr]")
        self.fill(ins, "ptr", [self.slot(s) for s in b.inputs])
        self.fill(outs, "ptr", [self.slot(s) for s in b.outputs])
        arena = self.put(f"getelementptr i8, ptr %arena, i64 {self.dim(b.arena)}")
        byte = self.put(f"load i8, ptr {self.slot(b.predicate)}, align 1")
        yes = self.put(f"icmp ne i8 {byte}, 0")
        self.line(f"br i1 {yes}, label %{n}.then, label %{n}.else")
        for label, target, dims in (("then", b.then, b.dims[0]), ("else", b.other, b.dims[1])):
            self.label(f"{n}.{label}")
            sizes = self.sizes(dims)
            self.line(f"call void @{target}(ptr {ins}, ptr {outs}, ptr {sizes}, ptr {arena})")
            self.line(f"br label %{n}.end")
        self.label(f"{n}.end")
        self.memo = {}

    def loop(self, a: Loop) -> None:
        """Everything that is the same in all rounds goes before the first."""
        self.count += 1
        n = f"l{self.count}"
        carried, width = len(a.carried), len(a.carried) + len(a.slices)
        ins = self.put(f"alloca [{max(1, width + len(a.inputs))} x ptr]")
        outs = self.put(f"alloca [{max(1, carried + len(a.stacked))} x ptr]")
        sizes, flag = self.sizes(a.dims), self.slot(a.flag)
        arena = self.put(f"getelementptr i8, ptr %arena, i64 {self.dim(a.arena)}")
        self.fill(ins, "ptr", [self.slot(s) for s in a.inputs], width)
        count, last = self.dim(a.count), self.dim(a.count - 1)
        starts = [(self.slot(s.slot), self.dim(s.step), s.back) for s in (*a.slices, *a.stacked)]
        places = [(self.slot(c.first), self.slot(c.result), self.slot(c.spare)) for c in a.carried]
        copies = [self.sizes(c.dims) for c in a.carried]
        for j, c in enumerate(a.carried):
            if c.in_place:
                first, result, spare = places[j]
                self.copy(c, first, result, copies[j])
                places[j] = result, result, spare
        told = asked = ""
        if a.condition:
            asked, told = self.sizes(a.condition_dims), self.put("alloca [1 x ptr]")
            self.fill(told, "ptr", [flag])
        # The last of a known number of rounds writes the result.
        odd = self.put(f"trunc i64 {count} to i1") if not a.condition else "true"
        begins = [self.put(f"select i1 {odd}, ptr {r}, ptr {s}") for _, r, s in places]
        self.line(f"br label %{n}.start")
        self.label(f"{n}.start")
        self.line(f"br label %{n}.head")
        self.label(f"{n}.head")
        self.line(f"%{n}.k = phi i64 [ 0, %{n}.start ], [ %{n}.next, %{n}.body ]")
        for j, (first, _, _) in enumerate(places):
            now, new = f"%{n}.now{j}", f"%{n}.new{j}"
            made = new if a.carried[j].stacked is None else f"%{n}.made{j}"
            self.line(f"{now} = phi ptr [ {first}, %{n}.start ], [ {made}, %{n}.body ]")
            self.line(f"{new} = phi ptr [ {begins[j]}, %{n}.start ], [ %{n}.turn{j}, %{n}.body ]")
        self.fill(ins, "ptr", [f"%{n}.now{j}" for j in range(carried)])
        if a.condition:
            self.line(f"call void @{a.condition}(ptr {ins}, ptr {told}, ptr {asked}, ptr {arena})")
            byte = self.put(f"load i8, ptr {flag}, align 1")
            more = self.put(f"icmp ne i8 {byte}, 0")
        else:
            more = self.put(f"icmp slt i64 %{n}.k, {count}")
        self.line(f"br i1 {more}, label %{n}.body, label %{n}.end")
        self.label(f"{n}.body")
        self.line(f"%{n}.next = add i64 %{n}.k, 1")
        back = self.put(f"sub i64 {last}, %{n}.k")
        parts = [self.part(p, step, back if b else f"%{n}.k") for p, step, b in starts]
        self.fill(ins, "ptr", parts[: len(a.slices)], carried)
        stacked = parts[len(a.slices) :]
        written = [f"%{n}.new{j}" for j, c in enumerate(a.carried) if c.stacked is None]
        self.fill(outs, "ptr", [*written, *stacked])
        self.line(f"call void @{a.body}(ptr {ins}, ptr {outs}, ptr {sizes}, ptr {arena})")
        for j, c in enumerate(a.carried):
            _, result, spare = places[j]
            new, turn = f"%{n}.new{j}", f"%{n}.turn{j}"
            if c.stacked is not None:
                self.line(f"%{n}.made{j} = getelementptr i8, ptr {stacked[c.stacked]}, i64 0")
            is_spare = self.put(f"icmp eq ptr {new}, {spare}")
            self.line(f"{turn} = select i1 {is_spare}, ptr {result}, ptr {spare}")
        self.line(f"br label %{n}.head")
        self.label(f"{n}.end")
        for j, c in enumerate(a.carried):
            if not c.copy or c.in_place:
                continue
            differ = self.put(f"icmp ne ptr %{n}.now{j}, {places[j][1]}")
            self.line(f"br i1 {differ}, label %{n}.copy{j}, label %{n}.copied{j}")
            self.label(f"{n}.copy{j}")
            self.copy(c, f"%{n}.now{j}", places[j][1], copies[j])
            self.line(f"br label %{n}.copied{j}")
            self.label(f"{n}.copied{j}")
        self.memo = {}

    def copy(self, c: Carried, source: str, to: str, sizes: str) -> None:
        if c.copy:
            args = self.put("alloca [2 x ptr]")
            self.fill(args, "ptr", [source, to])
            self.line(f"call void @{c.copy}(ptr {args}, ptr {sizes})")

    def part(self, start: str, step: str, k: str) -> str:
        offset = self.put(f"mul i64 {k}, {step}")
        return self.put(f"getelementptr i8, ptr {start}, i64 {offset}")

    def sizes(self, dims: Sequence[str]) -> str:
        """An array of the sizes that a program or kernel takes."""
        array = self.put(f"alloca [{max(1, len(dims))} x i64], align 8")
        self.fill(array, "i64", [self.values[d] for d in dims])
        return array
