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
from tilewright.llvm.sizes import DECLARED, Sizes


@dataclass(frozen=True)
class Slot:
    """Where a value lives: in[k], out[k], or at a byte offset of the arena."""

    kind: str  # "in", "out", "arena"
    at: Dim


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
        return a.at == b.at
    numbers = (a.at, size_a, b.at, size_b)
    if not all(isinstance(x, int) for x in numbers):
        return True
    return D.known_lt(a.at, b.at + size_b) and D.known_lt(b.at, a.at + size_a)


@dataclass(frozen=True)
class Together:
    """Kernels that are independent, one per thread: for those that use one thread each."""

    calls: tuple[Call, ...]


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


Action = Union[Call, Together, Branch]

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
    symbol: str
    actions: tuple[Action, ...]
    dims: tuple[str, ...]


def emit_entries(entries: Sequence[Entry], marks: bool = False) -> str:
    """One module with the entry functions (a program's own and those of its branches).

    With `marks`, the last entry calls `tw_mark(k)` before its k-th action and once at the end: how
    a profile is taken. Entries before it are branches, which belong to an action of the last.
    """
    own = {e.symbol for e in entries}
    needed = {c.symbol for e in entries for a in e.actions for c in calls_of(a)} - own
    lines = [f"declare void @{s}(ptr, ptr)" for s in sorted(needed)]
    lines.append(DECLARED)
    if marks:
        lines.append("declare void @tw_mark(i64)")
    if any(isinstance(a, Together) for e in entries for a in e.actions):
        lines.append(_EACH)
    for e in entries:
        lines += _Writer(e, marks and e is entries[-1]).lines()
    return "\n".join(lines) + "\n"


def calls_of(a: Action) -> tuple[Call, ...]:
    """The kernels of an action; those of a branch are actions of other entries."""
    if isinstance(a, Together):
        return a.calls
    return (a,) if isinstance(a, Call) else ()


class _Writer(Sizes):
    def __init__(self, e: Entry, marks: bool) -> None:
        super().__init__()
        self.e, self.marks = e, marks

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
            else:
                self.branch(a)
        if self.marks:
            self.line(f"call void @tw_mark(i64 {len(e.actions)})")
        return [*head, *self.out, "  ret void", "}"]

    def slot(self, s: Slot) -> str:
        if s.kind == "arena":
            return self.put(f"getelementptr i8, ptr %arena, i64 {self.dim(s.at)}")
        p = self.put(f"getelementptr ptr, ptr %{s.kind}, i64 {s.at}")
        return self.put(f"load ptr, ptr {p}")

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
            sizes = self.put(f"alloca [{max(1, len(dims))} x i64], align 8")
            self.fill(sizes, "i64", [self.values[d] for d in dims])
            self.line(f"call void @{target}(ptr {ins}, ptr {outs}, ptr {sizes}, ptr {arena})")
            self.line(f"br label %{n}.end")
        self.label(f"{n}.end")
        self.memo = {}
