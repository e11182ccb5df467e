"""How threads share the chunks of a parallel loop, as LLVM text: what is the same whatever the
threads are. Who starts them, and how they sleep, is in pool_ir.py (pthread) and
worker_pool_ir.py (workers of a web page).

One region runs at a time, under `@busy`. Every thread has a share of neighbouring chunks, the same
one in every region, so that what it wrote in one kernel is still in its cache in the next. A
share's word holds `generation << 32 | end << 16 | next`. Its thread claims the chunk at `next`,
others that have nothing left claim the one before `end`, all with a compare-exchange. The fields
of a region (function, context, base) are read between the acquiring load of a word and that
exchange. If the exchange succeeds, its chunk was unclaimed all along, hence the region had not
ended and the fields of a later one were not written yet: they belong together. If it fails they are
thrown away.

A region ends when `@done` has counted every chunk, not when every thread has reported: a worker
whose core is busy elsewhere delays no other as long as it has no chunk. Each thread adds its chunks
in one step when it finds no more; a region cannot end before that, so the sum never mixes regions.
"""

from __future__ import annotations

MAX_THREADS = 1024
# Bits of a place in a word, and how many chunks a region may have because of them.
PLACE = 16
_MOST = (1 << PLACE) - 1
# Whole cache lines, two of them since processors fetch neighbours in pairs.
LINE = "[16 x i64] zeroinitializer, align 128"


def regions_ir(pause: str, give_way: str, most_threads: int = MAX_THREADS) -> str:
    """`tw_parallel` and its parts. `pause` is a line for loops that wait, `give_way` one that lets
    another thread have the core. The module has besides: `@adjust`, which brings the number of
    workers (`@running`) to one less than `@wanted`, and `@wake`, which wakes some of them."""
    return f"""
@words = internal global [{16 * most_threads} x i64] zeroinitializer, align 128
@done = internal global {LINE}
@busy = internal global {LINE}
@region = internal global {LINE}
@settings = internal global {LINE}

; fields of a region
@function = internal alias ptr, getelementptr (i64, ptr @region, i64 0)
@context = internal alias ptr, getelementptr (i64, ptr @region, i64 1)
@base = internal alias i64, getelementptr (i64, ptr @region, i64 2)
; threads requested (callers included), workers running, whether they should end, time to spin
@wanted = internal alias i64, getelementptr (i64, ptr @settings, i64 0)
@running = internal alias i64, getelementptr (i64, ptr @settings, i64 1)
@stopping = internal alias i64, getelementptr (i64, ptr @settings, i64 2)
@spin = internal alias i64, getelementptr (i64, ptr @settings, i64 3)

declare i64 @llvm.umin.i64(i64, i64)

define internal ptr @word_of(i64 %thread) alwaysinline nounwind {{
  %at = mul i64 %thread, 16
  %word = getelementptr i64, ptr @words, i64 %at
  ret ptr %word
}}

; Claims and runs chunks, first of a thread's own share, until none is left anywhere; returns the
; generation of its word and how many it ran.
define internal {{ i64, i64 }} @drain(i64 %self) nounwind {{
entry:
  %running = load atomic i64, ptr @running monotonic, align 8
  %threads = add i64 %running, 1
  br label %look
look:
  ; %tried shares, from the own one on, had nothing to claim.
  %ran = phi i64 [ 0, %entry ], [ %ran, %claim ], [ %ran.next, %run ], [ %ran, %other ]
  %tried = phi i64 [ 0, %entry ], [ %tried, %claim ], [ %tried, %run ], [ %tried.next, %other ]
  %last.own = phi i64 [ 0, %entry ], [ %own, %claim ], [ %own, %run ], [ %own, %other ]
  %unwrapped = add i64 %self, %tried
  %over = icmp uge i64 %unwrapped, %threads
  %wrapped = sub i64 %unwrapped, %threads
  %around = select i1 %over, i64 %wrapped, i64 %unwrapped
  ; A worker may get here before its creator has counted it: its own share is its own all the same.
  %mine = icmp eq i64 %tried, 0
  %share = select i1 %mine, i64 %self, i64 %around
  %word = call ptr @word_of(i64 %share)
  %seen = load atomic i64, ptr %word acquire, align 8
  %own = select i1 %mine, i64 %seen, i64 %last.own
  %next = and i64 %seen, {_MOST}
  %shifted = lshr i64 %seen, {PLACE}
  %end = and i64 %shifted, {_MOST}
  %none = icmp uge i64 %next, %end
  br i1 %none, label %other, label %claim
other:
  %tried.next = add i64 %tried, 1
  %more = icmp ult i64 %tried.next, %threads
  br i1 %more, label %look, label %finish
claim:
  %fn = load atomic ptr, ptr @function monotonic, align 8
  %ctx = load atomic ptr, ptr @context monotonic, align 8
  %base = load atomic i64, ptr @base monotonic, align 8
  %step = select i1 %mine, i64 1, i64 {-(1 << PLACE)}
  %claimed = add i64 %seen, %step
  %swap = cmpxchg ptr %word, i64 %seen, i64 %claimed acq_rel monotonic, align 8
  %got = extractvalue {{ i64, i1 }} %swap, 1
  br i1 %got, label %run, label %look
run:
  %last = sub i64 %end, 1
  %place = select i1 %mine, i64 %next, i64 %last
  %chunk = add i64 %base, %place
  call void %fn(ptr %ctx, i64 %chunk)
  %ran.next = add i64 %ran, 1
  br label %look
finish:
  %idle = icmp eq i64 %ran, 0
  br i1 %idle, label %leave, label %report
report:
  %before = atomicrmw add ptr @done, i64 %ran release, align 8
  br label %leave
leave:
  %generation = lshr i64 %own, {2 * PLACE}
  %half = insertvalue {{ i64, i64 }} poison, i64 %generation, 0
  %both = insertvalue {{ i64, i64 }} %half, i64 %ran, 1
  ret {{ i64, i64 }} %both
}}

; A new generation with %count chunks, shared out. The caller holds @busy.
define internal void @publish(i64 %count) nounwind {{
entry:
  %old = load atomic i64, ptr @words monotonic, align 8
  %generation = lshr i64 %old, {2 * PLACE}
  %newer = add i64 %generation, 1
  %high = shl i64 %newer, {2 * PLACE}
  %running = load atomic i64, ptr @running monotonic, align 8
  %threads = add i64 %running, 1
  br label %each
each:
  %i = phi i64 [ 0, %entry ], [ %next, %each ]
  %begin = phi i64 [ 0, %entry ], [ %end, %each ]
  %next = add i64 %i, 1
  ; Of 32 bits: division of 64 takes some machines a function.
  %scaled.64 = mul i64 %next, %count
  %scaled = trunc i64 %scaled.64 to i32
  %threads.32 = trunc i64 %threads to i32
  %end.32 = udiv i32 %scaled, %threads.32
  %end = zext i32 %end.32 to i64
  %shifted = shl i64 %end, {PLACE}
  %places = or i64 %shifted, %begin
  %new = or i64 %high, %places
  %word = call ptr @word_of(i64 %i)
  store atomic i64 %new, ptr %word seq_cst, align 8
  %more = icmp ult i64 %next, %threads
  br i1 %more, label %each, label %end.all
end.all:
  ret void
}}

; Runs %count chunks from %base on with all threads. The caller holds @busy.
define internal void @run_region(ptr %fn, ptr %ctx, i64 %base, i64 %count) nounwind {{
entry:
  %wanted = load atomic i64, ptr @wanted monotonic, align 8
  %running = load atomic i64, ptr @running monotonic, align 8
  %threads = add i64 %running, 1
  %fits = icmp eq i64 %threads, %wanted
  br i1 %fits, label %go, label %change
change:
  call void @adjust()
  br label %go
go:
  store atomic ptr %fn, ptr @function monotonic, align 8
  store atomic ptr %ctx, ptr @context monotonic, align 8
  store atomic i64 %base, ptr @base monotonic, align 8
  store atomic i64 0, ptr @done monotonic, align 8
  call void @publish(i64 %count)
  %others = sub i64 %count, 1
  call void @wake(i64 %others)
  %drained = call {{ i64, i64 }} @drain(i64 0)
  br label %wait
wait:
  %finished = load atomic i64, ptr @done acquire, align 8
  %all = icmp eq i64 %finished, %count
  br i1 %all, label %end, label %patient
patient:
  %i = phi i64 [ 0, %wait ], [ %next, %again ]
  {pause}
  %reported = load atomic i64, ptr @done acquire, align 8
  %complete = icmp eq i64 %reported, %count
  br i1 %complete, label %end, label %again
again:
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, 4096
  br i1 %more, label %patient, label %yield
yield:
  ; A worker that lost its core while holding a chunk may be waiting for this one.
  {give_way}
  br label %wait
end:
  ret void
}}

; Calls fn(ctx, chunk) for every chunk below %chunks and returns when all have returned. While
; another region runs (of another thread, or around this call) chunks run here, one by one, until
; the pool is free.
define void @tw_parallel(ptr %fn, ptr %ctx, i64 %chunks) nounwind {{
entry:
  %any = icmp sgt i64 %chunks, 0
  br i1 %any, label %begin, label %end
begin:
  %wanted = load atomic i64, ptr @wanted monotonic, align 8
  %several = icmp ugt i64 %wanted, 1
  br label %next
next:
  %i = phi i64 [ 0, %begin ], [ %i.next, %alone ], [ %i.later, %together ]
  %left = sub i64 %chunks, %i
  %many = icmp ugt i64 %left, 1
  %share = and i1 %many, %several
  br i1 %share, label %look, label %alone
look:
  %taken = load atomic i64, ptr @busy monotonic, align 8
  %free = icmp eq i64 %taken, 0
  br i1 %free, label %lock, label %alone
lock:
  %swap = cmpxchg ptr @busy, i64 0, i64 1 acquire monotonic, align 8
  %mine = extractvalue {{ i64, i1 }} %swap, 1
  br i1 %mine, label %together, label %alone
together:
  %count = call i64 @llvm.umin.i64(i64 %left, i64 {_MOST})
  call void @run_region(ptr %fn, ptr %ctx, i64 %i, i64 %count)
  store atomic i64 0, ptr @busy release, align 8
  %i.later = add i64 %i, %count
  %rest = icmp ult i64 %i.later, %chunks
  br i1 %rest, label %next, label %end
alone:
  call void %fn(ptr %ctx, i64 %i)
  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, %chunks
  br i1 %more, label %next, label %end
end:
  ret void
}}

define void @tw_pool_set_spin(i64 %time) nounwind {{
  store atomic i64 %time, ptr @spin monotonic, align 8
  ret void
}}

define i64 @tw_pool_threads() nounwind {{
  %wanted = load atomic i64, ptr @wanted monotonic, align 8
  ret i64 %wanted
}}

define i64 @tw_pool_workers() nounwind {{
  %running = load atomic i64, ptr @running monotonic, align 8
  ret i64 %running
}}
"""
