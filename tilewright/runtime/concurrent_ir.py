"""Running iterations that wait for each other, as LLVM text.

The pool (pool_ir.py) runs a few chunks at a time and the others later, so a chunk that waits for a
later one would wait for ever. Here a thread that waits is joined by another one, which takes the
next chunk: there are always as many threads at work as the pool has, and every chunk that another
may wait for gets started, in order, as the blocks of a grid do on a GPU.

A waiting loop calls `tw_wait` between two reads of memory, with a counter of its own, and
`tw_waited` when it ends. When every started chunk waits and none is left to start, nothing can
change any more; after some seconds `tw_wait` answers true, and the loops end.
"""

from __future__ import annotations

from .pool_ir import now_ir

MAX_THREADS = 1024  # as many chunks may wait at the same time
_STACK_BYTES = 8 << 20
_DETACHED = 1  # PTHREAD_CREATE_DETACHED of glibc and musl
# Reads of memory: how many before the thread counts as waiting, and from when on it sleeps.
_SPINS = 64
_YIELDS = 1024
_SLEEP_NS = 20_000
# How long all have to wait before that is taken for a deadlock. A thread whose wait is over may not
# have been given a core yet.
_PATIENCE_NS = 4_000_000_000


def concurrent_ir() -> str:
    return f"""
@busy = internal global i64 0, align 128
@function = internal global ptr null, align 8
@context = internal global ptr null, align 8
@chunks = internal global i64 0, align 8
@next = internal global i64 0, align 128
@live = internal global i64 0, align 128
@waiting = internal global i64 0, align 128
@since = internal global i64 0, align 8
@hopeless = internal global i64 0, align 8

declare void @llvm.reset.fpmode()
declare i32 @clock_gettime(i32, ptr)
declare i32 @nanosleep(ptr, ptr)
declare i32 @sched_yield()
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_attr_init(ptr)
declare i32 @pthread_attr_setstacksize(ptr, i64)
declare i32 @pthread_attr_setdetachstate(ptr, i32)
declare i32 @pthread_attr_destroy(ptr)
declare i64 @tw_pool_threads()

{now_ir()}

define internal void @sleep() {{
  %time = alloca {{ i64, i64 }}, align 8
  store {{ i64, i64 }} {{ i64 0, i64 {_SLEEP_NS} }}, ptr %time, align 8
  %ignored = call i32 @nanosleep(ptr %time, ptr null)
  ret void
}}

; Runs chunks, the lowest first, until none is left to start.
define internal void @drain() {{
entry:
  %function = load ptr, ptr @function, align 8
  %context = load ptr, ptr @context, align 8
  %chunks = load i64, ptr @chunks, align 8
  br label %claim
claim:
  %k = atomicrmw add ptr @next, i64 1 acq_rel, align 8
  %any = icmp slt i64 %k, %chunks
  br i1 %any, label %run, label %end
run:
  call void %function(ptr %context, i64 %k)
  br label %claim
end:
  ret void
}}

define internal ptr @thread(ptr %unused) {{
  call void @llvm.reset.fpmode()
  call void @drain()
  %left = atomicrmw sub ptr @live, i64 1 acq_rel, align 8
  ret ptr null
}}

; One more thread, if there is a chunk for it to start.
define internal void @join() {{
entry:
  %next = load atomic i64, ptr @next monotonic, align 8
  %chunks = load i64, ptr @chunks, align 8
  %any = icmp slt i64 %next, %chunks
  br i1 %any, label %count, label %end
count:
  %live = atomicrmw add ptr @live, i64 1 acq_rel, align 8
  %room = icmp slt i64 %live, {MAX_THREADS}
  br i1 %room, label %start, label %refuse
start:
  %attributes = alloca [128 x i8], align 16
  %handle = alloca i64, align 8
  %r0 = call i32 @pthread_attr_init(ptr %attributes)
  %r1 = call i32 @pthread_attr_setstacksize(ptr %attributes, i64 {_STACK_BYTES})
  %r2 = call i32 @pthread_attr_setdetachstate(ptr %attributes, i32 {_DETACHED})
  %failed = call i32 @pthread_create(ptr %handle, ptr %attributes, ptr @thread, ptr null)
  %r3 = call i32 @pthread_attr_destroy(ptr %attributes)
  %ok = icmp eq i32 %failed, 0
  br i1 %ok, label %end, label %refuse
refuse:
  %back = atomicrmw sub ptr @live, i64 1 acq_rel, align 8
  br label %end
end:
  ret void
}}

; Calls fn(ctx, chunk) for every chunk below %chunks, at least %threads at a time, and returns when
; all have returned. One such region runs at a time.
define internal void @region(ptr %fn, ptr %ctx, i64 %chunks, i64 %threads) {{
entry:
  br label %ask
ask:
  %swap = cmpxchg ptr @busy, i64 0, i64 1 acquire monotonic, align 8
  %mine = extractvalue {{ i64, i1 }} %swap, 1
  br i1 %mine, label %begin, label %later
later:
  call void @sleep()
  br label %ask
begin:
  store ptr %fn, ptr @function, align 8
  store ptr %ctx, ptr @context, align 8
  store i64 %chunks, ptr @chunks, align 8
  store atomic i64 0, ptr @next monotonic, align 8
  store atomic i64 0, ptr @waiting monotonic, align 8
  store atomic i64 0, ptr @since monotonic, align 8
  store atomic i64 0, ptr @hopeless monotonic, align 8
  store atomic i64 1, ptr @live release, align 8
  %fewer = icmp slt i64 %chunks, %threads
  %wanted = select i1 %fewer, i64 %chunks, i64 %threads
  br label %more
more:
  %started = phi i64 [ 1, %begin ], [ %started.next, %another ]
  %enough = icmp sge i64 %started, %wanted
  br i1 %enough, label %work, label %another
another:
  call void @join()
  %started.next = add i64 %started, 1
  br label %more
work:
  call void @drain()
  %left = atomicrmw sub ptr @live, i64 1 acq_rel, align 8
  br label %look
look:
  %live = load atomic i64, ptr @live acquire, align 8
  %done = icmp eq i64 %live, 0
  br i1 %done, label %end, label %patient
patient:
  %r = call i32 @sched_yield()
  br label %look
end:
  store atomic i64 0, ptr @busy release, align 8
  ret void
}}

define void @tw_concurrent(ptr %fn, ptr %ctx, i64 %chunks) {{
entry:
  %any = icmp sgt i64 %chunks, 0
  br i1 %any, label %run, label %end
run:
  %threads = call i64 @tw_pool_threads()
  call void @region(ptr %fn, ptr %ctx, i64 %chunks, i64 %threads)
  br label %end
end:
  ret void
}}

; In a forked child: the region of another thread of the parent is not running here.
define void @tw_concurrent_reset() {{
  store atomic i64 0, ptr @busy release, align 8
  ret void
}}

; Called between two reads. True: no thread is left that could change what is read.
define i1 @tw_wait(ptr %polls) {{
entry:
  %before = load i64, ptr %polls, align 8
  %n = add i64 %before, 1
  store i64 %n, ptr %polls, align 8
  %few = icmp slt i64 %n, {_SPINS}
  br i1 %few, label %no, label %waits
waits:
  %first = icmp eq i64 %n, {_SPINS}
  br i1 %first, label %count, label %again
count:
  %c = atomicrmw add ptr @waiting, i64 1 acq_rel, align 8
  call void @join()
  br label %again
again:
  %r = call i32 @sched_yield()
  %long = icmp sge i64 %n, {_YIELDS}
  br i1 %long, label %sleeps, label %no
sleeps:
  call void @sleep()
  %given.up = load atomic i64, ptr @hopeless acquire, align 8
  %gone = icmp ne i64 %given.up, 0
  br i1 %gone, label %yes, label %all
all:
  %waiting = load atomic i64, ptr @waiting acquire, align 8
  %live = load atomic i64, ptr @live acquire, align 8
  %everyone = icmp sge i64 %waiting, %live
  br i1 %everyone, label %clock, label %someone
someone:
  store atomic i64 0, ptr @since monotonic, align 8
  br label %no
clock:
  %now = call i64 @now()
  %started = cmpxchg ptr @since, i64 0, i64 %now acq_rel acquire, align 8
  %since = extractvalue {{ i64, i1 }} %started, 0
  %running = icmp ne i64 %since, 0
  br i1 %running, label %measure, label %no
measure:
  %passed = sub i64 %now, %since
  %over = icmp sgt i64 %passed, {_PATIENCE_NS}
  br i1 %over, label %give.up, label %no
give.up:
  store atomic i64 1, ptr @hopeless release, align 8
  br label %yes
yes:
  ret i1 true
no:
  ret i1 false
}}

define void @tw_waited(ptr %polls) {{
entry:
  %n = load i64, ptr %polls, align 8
  %counted = icmp sge i64 %n, {_SPINS}
  br i1 %counted, label %back, label %end
back:
  %c = atomicrmw sub ptr @waiting, i64 1 acq_rel, align 8
  store atomic i64 0, ptr @since monotonic, align 8
  br label %end
end:
  ret void
}}
"""
