"""Native loops that each keep one part of a processor busy, as LLVM text for any target.

What a loop computes is of no use, but nothing in it can be left out: results are stored at the end,
and loads are volatile.
"""

from __future__ import annotations

from tilewright.ir.target import Target

# Instructions of an iteration that wait for each other.
CHAIN = 16
# Vectors that an iteration reads, and whole numbers that it changes, twice each.
READS = 16
WHOLE = 6
# Instructions of an iteration of `mix`: of each kind, and three to count.
MIXED_SUMS, MIXED_READS = 8, 8
MIXED = MIXED_SUMS + MIXED_READS + 2 * WHOLE + 3
# Cycles of a chunk of a parallel region: long enough for other threads to take one.
REGION_WORK = 32_000


# Where results go, behind all operands: these stay as they are, numbers that take no longer than
# others (sums of ones; very small numbers do take longer on some processors).
RESULT = 2048


def chains(target: Target) -> int:
    """Sums that are under way at once: enough to hide latencies, and they stay in registers."""
    return min(24, target.vector_registers - 4)


def read_step(target: Target) -> int:
    """Bytes that an iteration of `read` covers."""
    return READS * target.vector_bits // 8


def module(target: Target) -> str:
    """All loops:

    add(memory, n)      n times CHAIN additions of one cycle, each of which waits for the one before
    wait(memory, n)     n times CHAIN multiply-adds, each of which waits for the one before
    sum(memory, n)      n times `chains` multiply-adds that do not wait for each other
    mix(memory, n)      n times MIXED instructions of several kinds
    read(memory, bytes, passes)  vectors of some memory, in order
    chase(memory, n)    n loads, each of the address that the one before has loaded
    regions(parallel, n, chunks)  n parallel regions whose chunks take REGION_WORK cycles
    """
    v = _v(target)
    parts = [
        f"declare {v} @llvm.fma.{_suffix(target)}({v}, {v}, {v})",
        _add(),
        _sums("wait", target, 1, CHAIN),
        _sums("sum", target, chains(target), 1),
        _mix(target),
        _read(target),
        _chase(),
        _regions(),
    ]
    return "\n".join(parts)


def _v(target: Target) -> str:
    return f"<{target.lanes(32)} x float>"


def _suffix(target: Target) -> str:
    return f"v{target.lanes(32)}f32"


def _loop(name: str, before: list[str], phis: list[str], body: list[str], after: list[str]) -> str:
    """A function of memory and a count whose loop is not unrolled."""
    lines = [
        f"define void @{name}(ptr %p, i64 %n) nounwind {{",
        "entry:",
        *before,
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]",
        *phis,
        *body,
        "  %next = add i64 %i, 1",
        "  %more = icmp slt i64 %next, %n",
        "  br i1 %more, label %loop, label %done",
        "done:",
        f"  %out = getelementptr i8, ptr %p, i64 {RESULT}",
        *after,
        "  ret void",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _add() -> str:
    """Additions and exclusive ors in turn, which no one can write in another way."""
    body, last = [], ("%x", "%y")
    for k in range(CHAIN):
        op = "add" if k % 2 == 0 else "xor"
        body.append(f"  %t{k} = {op} i64 {last[0]}, {last[1]}")
        last = (last[1], f"%t{k}")
    return _loop(
        "add",
        ["  %a = load i64, ptr %p"],
        [
            f"  %x = phi i64 [ %a, %entry ], [ {last[0]}, %loop ]",
            f"  %y = phi i64 [ 1, %entry ], [ {last[1]}, %loop ]",
        ],
        body,
        [f"  store i64 {last[1]}, ptr %out"],
    )


def _multiply_add(target: Target, result: str, sum_: str, k: int) -> list[str]:
    """What one step of a sum is; without the instruction, one of its two parts."""
    v = _v(target)
    if target.has_fma:
        call = f"@llvm.fma.{_suffix(target)}({v} %a, {v} %b, {v} {sum_})"
        return [f"  {result} = call {v} {call}"]
    return [f"  {result} = {'fadd' if k % 2 == 0 else 'fmul'} {v} {sum_}, %a"]


def _operands(target: Target) -> list[str]:
    v = _v(target)
    return [
        f"  %a = load {v}, ptr %p, align 4",
        f"  %q = getelementptr {v}, ptr %p, i64 1",
        f"  %b = load {v}, ptr %q, align 4",
    ]


def _totalled(target: Target, names: list[str]) -> list[str]:
    v = _v(target)
    lines = [f"  %s0 = fadd {v} {names[0]}, {names[0]}"]
    lines += [f"  %s{k} = fadd {v} %s{k - 1}, {x}" for k, x in enumerate(names) if k]
    return [*lines, f"  store {v} %s{len(names) - 1}, ptr %out, align 4"]


def _sums(name: str, target: Target, count: int, deep: int) -> str:
    v, body = _v(target), []
    for k in range(count):
        for d in range(deep):
            before = f"%c{k}" if d == 0 else f"%d{k}.{d - 1}"
            body += _multiply_add(target, f"%d{k}.{d}", before, 0 if deep > 1 else k)
    ends = [f"%d{k}.{deep - 1}" for k in range(count)]
    phis = [f"  %c{k} = phi {v} [ %a, %entry ], [ {ends[k]}, %loop ]" for k in range(count)]
    return _loop(name, _operands(target), phis, body, _totalled(target, ends))


def _mix(target: Target) -> str:
    v, step = _v(target), MIXED_SUMS
    phis = [f"  %c{k} = phi {v} [ %a, %entry ], [ %d{k}, %loop ]" for k in range(step)]
    phis += [f"  %x{k} = phi i64 [ {k}, %entry ], [ %z{k}, %loop ]" for k in range(WHOLE)]
    body = []
    for k in range(max(step, MIXED_READS, WHOLE)):
        if k < step:
            body += _multiply_add(target, f"%d{k}", f"%c{k}", k)
        if k < MIXED_READS:
            body.append(f"  %f{k} = getelementptr {v}, ptr %p, i64 {k + 2}")
            body.append(f"  %l{k} = load volatile {v}, ptr %f{k}, align 4")
        if k < WHOLE:
            body.append(f"  %y{k} = add i64 %x{k}, %w")
            body.append(f"  %z{k} = xor i64 %y{k}, %u")
    whole = ["  %w = load i64, ptr %p", "  %u = load i64, ptr %q"]
    kept = ["  %o0 = add i64 %z0, %z0"]
    kept += [f"  %o{k} = add i64 %o{k - 1}, %z{k}" for k in range(1, WHOLE)]
    kept.append(f"  store volatile i64 %o{WHOLE - 1}, ptr %out")
    ends = [f"%d{k}" for k in range(step)]
    return _loop("mix", [*_operands(target), *whole], phis, body, [*kept, *_totalled(target, ends)])


def _read(target: Target) -> str:
    v = _v(target)
    lines = [
        "define void @read(ptr %p, i64 %bytes, i64 %passes) nounwind {",
        "entry:",
        "  br label %pass",
        "pass:",
        "  %r = phi i64 [ 0, %entry ], [ %r.next, %end ]",
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [ 0, %pass ], [ %i.next, %loop ]",
        "  %at = getelementptr i8, ptr %p, i64 %i",
    ]
    for k in range(READS):
        lines.append(f"  %f{k} = getelementptr {v}, ptr %at, i64 {k}")
        lines.append(f"  %x{k} = load volatile {v}, ptr %f{k}, align 4")
    lines += [
        f"  %i.next = add i64 %i, {read_step(target)}",
        "  %more = icmp slt i64 %i.next, %bytes",
        "  br i1 %more, label %loop, label %end",
        "end:",
        "  %r.next = add i64 %r, 1",
        "  %again = icmp slt i64 %r.next, %passes",
        "  br i1 %again, label %pass, label %done",
        "done:",
        "  ret void",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _chase() -> str:
    """It goes on from where the last call ended: memory holds the address to begin at."""
    body = [
        f"  %q{k + 1} = load volatile ptr, ptr {'%q' if k == 0 else f'%q{k}'}" for k in range(8)
    ]
    return _loop(
        "chase",
        ["  %start = load ptr, ptr %p"],
        ["  %q = phi ptr [ %start, %entry ], [ %q8, %loop ]"],
        body,
        ["  store ptr %q8, ptr %p"],
    )


CHASED = 8  # loads of an iteration of `chase`


def _regions() -> str:
    chunk = _loop(
        "busy",
        [],
        ["  %x = phi i64 [ 1, %entry ], [ %z, %loop ]"],
        ["  %y = add i64 %x, %n", "  %z = xor i64 %y, %x"],
        ["  store volatile i64 %z, ptr %p"],
    )
    return f"""{chunk}
define internal void @chunk(ptr %context, i64 %chunk) nounwind {{
  %own = alloca i64
  call void @busy(ptr %own, i64 {REGION_WORK // 2})
  ret void
}}

define void @regions(ptr %parallel, i64 %n, i64 %chunks) nounwind {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  call void %parallel(ptr @chunk, ptr null, i64 %chunks)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""
