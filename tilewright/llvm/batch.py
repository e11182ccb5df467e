"""Batches as LLVM text: a table of calls, and the function of one piece of one of them.

A batch may have hundreds of calls. Their arguments are looked up in constant tables, piece by
piece: code that filled them in for each would be long, and slow to compile.
"""

from __future__ import annotations

from collections.abc import Sequence

# Elements of a piece: a multiple of every vector, small enough for the caches, and long enough that
# finding the arguments does not count.
PIECE = 8192

# Of each argument: where it is (the inputs', the results' addresses, or the arena), at which place,
# how many bytes behind it, and the bytes from an element to the next.
Row = tuple[str, int, Sequence[tuple[int, object, int, int]]]


def pieces_of(count: int) -> int:
    """Of so many elements; 0: a call that runs as a whole."""
    return -(-count // PIECE) if count else 1


def batch_tables(name: str, rows: Sequence[Row]) -> tuple[str, int]:
    """Constants `name` and `name.args`, and the number of pieces."""
    calls: list[str] = []
    arguments: list[str] = []
    first = 0
    for symbol, count, args in rows:
        last = len(arguments) + len(args)
        calls.append(
            f"{{ i64, i64, i64, i64, ptr }} {{ i64 {first}, i64 {count}, i64 {len(arguments)}, "
            f"i64 {last}, ptr @{symbol} }}"
        )
        arguments += [
            f"{{ i64, i64, i64, i64 }} {{ i64 {kind}, i64 {at}, i64 {step}, i64 {behind} }}"
            for kind, at, behind, step in args
        ]
        first += pieces_of(count)
    text = [
        f"@{name} = internal constant [{len(calls)} x {{ i64, i64, i64, i64, ptr }}] "
        f"[{', '.join(calls)}]",
        f"@{name}.args = internal constant [{len(arguments)} x {{ i64, i64, i64, i64 }}] "
        f"[{', '.join(arguments)}]",
        f"@{name}.count = internal constant i64 {len(rows)}",
    ]
    return "\n".join(text), first


def batch_function(most: int, declared: bool) -> str:
    """`tw_piece`, for calls of at most so many arguments, and a loop for one thread."""
    parallel = "" if declared else "declare void @tw_parallel(ptr, ptr, i64)\n"
    return f"""{parallel}\
define internal void @tw_piece(ptr %batch, i64 %k) nounwind {{
entry:
  %args = alloca [{most} x ptr]
  %length = alloca i64
  %calls.at = getelementptr ptr, ptr %batch, i64 3
  %calls = load ptr, ptr %calls.at
  %all.at = getelementptr ptr, ptr %batch, i64 4
  %all = load ptr, ptr %all.at
  %number.at = getelementptr ptr, ptr %batch, i64 5
  %number.of = load ptr, ptr %number.at
  %calls.count = load i64, ptr %number.of
  br label %halve
halve:
  ; The piece belongs to one of the calls from %low on, and before %high.
  %low = phi i64 [ 0, %entry ], [ %low.next, %look ]
  %high = phi i64 [ %calls.count, %entry ], [ %high.next, %look ]
  %sum = add i64 %low, %high
  %middle = lshr i64 %sum, 1
  %one = icmp eq i64 %middle, %low
  br i1 %one, label %found, label %look
look:
  %mid = getelementptr {{ i64, i64, i64, i64, ptr }}, ptr %calls, i64 %middle
  %mid.first = load i64, ptr %mid
  %before = icmp ule i64 %mid.first, %k
  %low.next = select i1 %before, i64 %middle, i64 %low
  %high.next = select i1 %before, i64 %high, i64 %middle
  br label %halve
found:
  %call = getelementptr {{ i64, i64, i64, i64, ptr }}, ptr %calls, i64 %low
  %first = load i64, ptr %call
  %count.at = getelementptr i64, ptr %call, i64 1
  %count = load i64, ptr %count.at
  %begin.at = getelementptr i64, ptr %call, i64 2
  %begin = load i64, ptr %begin.at
  %end.at = getelementptr i64, ptr %call, i64 3
  %end = load i64, ptr %end.at
  %function.at = getelementptr i64, ptr %call, i64 4
  %function = load ptr, ptr %function.at
  %piece = sub i64 %k, %first
  %start = mul i64 %piece, {PIECE}
  %left = sub i64 %count, %start
  %short = icmp slt i64 %left, {PIECE}
  %own = select i1 %short, i64 %left, i64 {PIECE}
  store i64 %own, ptr %length
  br label %next
next:
  %a = phi i64 [ %begin, %found ], [ %a.next, %put ]
  %more = icmp ult i64 %a, %end
  br i1 %more, label %argument, label %run
argument:
  %row = getelementptr {{ i64, i64, i64, i64 }}, ptr %all, i64 %a
  %kind = load i64, ptr %row
  %at.at = getelementptr i64, ptr %row, i64 1
  %at = load i64, ptr %at.at
  %step.at = getelementptr i64, ptr %row, i64 2
  %step = load i64, ptr %step.at
  %behind.at = getelementptr i64, ptr %row, i64 3
  %behind = load i64, ptr %behind.at
  %base.at = getelementptr ptr, ptr %batch, i64 %kind
  %base = load ptr, ptr %base.at
  %inside = icmp eq i64 %kind, 2
  br i1 %inside, label %arena, label %listed
arena:
  %place = getelementptr i8, ptr %base, i64 %at
  br label %put
listed:
  %entry.at = getelementptr ptr, ptr %base, i64 %at
  %given = load ptr, ptr %entry.at
  br label %put
put:
  %address = phi ptr [ %place, %arena ], [ %given, %listed ]
  %further = mul i64 %start, %step
  %offset = add i64 %further, %behind
  %moved = getelementptr i8, ptr %address, i64 %offset
  %number = sub i64 %a, %begin
  %arg = getelementptr ptr, ptr %args, i64 %number
  store ptr %moved, ptr %arg
  %a.next = add i64 %a, 1
  br label %next
run:
  call void %function(ptr %args, ptr %length)
  ret void
}}
define internal void @tw_one_by_one(ptr %function, ptr %context, i64 %count) nounwind {{
entry:
  br label %next
next:
  %k = phi i64 [ 0, %entry ], [ %k.next, %run ]
  %more = icmp ult i64 %k, %count
  br i1 %more, label %run, label %end
run:
  call void %function(ptr %context, i64 %k)
  %k.next = add i64 %k, 1
  br label %next
end:
  ret void
}}"""
