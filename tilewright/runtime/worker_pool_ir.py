"""The thread pool where threads come from outside: WebAssembly, whose threads are workers of a page
(or of another engine) with one memory. How they share chunks is in pool_regions_ir.py.

Whoever loads the module says how many threads there will be (`tw_pool_resize`), and has each worker
call `tw_worker` with its number, from 1 on, which returns when there are to be fewer threads. A
worker that has not begun yet delays nobody: others take its share.

A worker spins for a while, then sleeps until its word changes. It raises `@sleepers` and then waits
for another value than it saw, a caller publishes the words and then looks at `@sleepers`, both
sequentially consistent: one of them sees the other. A caller never sleeps, since the thread of a
page must not.
"""

from __future__ import annotations

from .pool_regions_ir import LINE, PLACE, regions_ir

MOST_WORKERS = 63
# There is no clock, so that time is looks at a word; about a nanosecond each.
_LOOKS = 50_000

WORKER_POOL = f"""{regions_ir("", "", MOST_WORKERS + 1)}
@sleepers = internal global {LINE}

declare i32 @llvm.wasm.memory.atomic.wait64(ptr, i64, i64)
declare i32 @llvm.wasm.memory.atomic.notify(ptr, i32)

define internal void @adjust() nounwind {{
  %wanted = load atomic i64, ptr @wanted monotonic, align 8
  %workers = sub i64 %wanted, 1
  store atomic i64 %workers, ptr @running monotonic, align 8
  ret void
}}

; Wakes the first %count workers, if any sleeps.
define internal void @wake(i64 %count) nounwind {{
entry:
  %sleeping = load atomic i64, ptr @sleepers seq_cst, align 8
  %none = icmp eq i64 %sleeping, 0
  %running = load atomic i64, ptr @running monotonic, align 8
  %some = call i64 @llvm.umin.i64(i64 %count, i64 %running)
  %nobody = icmp eq i64 %some, 0
  %skip = or i1 %none, %nobody
  br i1 %skip, label %end, label %each
each:
  %i = phi i64 [ 0, %entry ], [ %next, %each ]
  %next = add i64 %i, 1
  %word = call ptr @word_of(i64 %next)
  %woken = call i32 @llvm.wasm.memory.atomic.notify(ptr %word, i32 1)
  %more = icmp ult i64 %next, %some
  br i1 %more, label %each, label %end
end:
  ret void
}}

define void @tw_worker(i32 %number) nounwind {{
entry:
  %self = zext i32 %number to i64
  %word = call ptr @word_of(i64 %self)
  br label %work
work:
  %drained = call {{ i64, i64 }} @drain(i64 %self)
  %generation = extractvalue {{ i64, i64 }} %drained, 0
  %limit = load atomic i64, ptr @spin monotonic, align 8
  %wanted = load atomic i64, ptr @wanted acquire, align 8
  %surplus = icmp uge i64 %self, %wanted
  br i1 %surplus, label %end, label %begin
begin:
  br label %spin
spin:
  %i = phi i64 [ 0, %begin ], [ %i.next, %again ]
  %seen = load atomic i64, ptr %word seq_cst, align 8
  %current = lshr i64 %seen, {2 * PLACE}
  %news = icmp ne i64 %current, %generation
  br i1 %news, label %work, label %again
again:
  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, %limit
  br i1 %more, label %spin, label %sleep
sleep:
  %before = atomicrmw add ptr @sleepers, i64 1 seq_cst, align 8
  %how = call i32 @llvm.wasm.memory.atomic.wait64(ptr %word, i64 %seen, i64 -1)
  %after = atomicrmw sub ptr @sleepers, i64 1 seq_cst, align 8
  br label %work
end:
  ret void
}}

; How many threads there are, the caller included; at most {MOST_WORKERS + 1}. Waits while a region
; runs; workers that are too many are told.
define void @tw_pool_resize(i64 %threads) nounwind {{
entry:
  %fit = call i64 @llvm.umin.i64(i64 %threads, i64 {MOST_WORKERS + 1})
  br label %lock
lock:
  %swap = cmpxchg ptr @busy, i64 0, i64 1 acquire monotonic, align 8
  %mine = extractvalue {{ i64, i1 }} %swap, 1
  br i1 %mine, label %change, label %lock
change:
  store atomic i64 {_LOOKS}, ptr @spin monotonic, align 8
  store atomic i64 %fit, ptr @wanted release, align 8
  call void @publish(i64 0)
  call void @wake(i64 {MOST_WORKERS})
  call void @adjust()
  store atomic i64 0, ptr @busy release, align 8
  ret void
}}

define void @tw_pool_reset() nounwind {{
  ret void
}}
"""
