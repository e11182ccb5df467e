"""The thread pool's code, as LLVM text: no C compiler is needed, and kernels call it directly.

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

Workers spin for a while, then sleep on a condition variable. A worker raises `@sleepers` and then
looks at its word again, a caller publishes the words and then looks at `@sleepers`, both
sequentially consistent: one of them sees the other.
"""

from __future__ import annotations

MAX_THREADS = 1024
# Bits of a place in a word, and how many chunks a region may have because of them.
_PLACE = 16
_MOST = (1 << _PLACE) - 1

# A hint to the core that this is a waiting loop. On arm64 `yield` does nothing on most cores, and
# an instruction barrier takes about as long as x86's pause.
_PAUSE = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.isb(i32)", "call void @llvm.aarch64.isb(i32 15)"),
    "armv7": ("declare void @llvm.arm.hint(i32)", "call void @llvm.arm.hint(i32 1)"),
}

# How a thread gets the default modes of rounding and of subnormal floats. What LLVM calls for that
# on x86 is a function of glibc only.
_MODES = {
    "x86_64": (
        "declare void @llvm.x86.sse.ldmxcsr(ptr)\n"
        "@modes = internal constant i32 8064  ; nearest, no traps, no flushing",
        "call void @llvm.x86.sse.ldmxcsr(ptr @modes)",
    )
}
_PLAIN_MODES = ("declare void @llvm.reset.fpmode()", "call void @llvm.reset.fpmode()")

# What pthread's opaque types take at most on the systems served, with room to spare.
_OPAQUE = "[128 x i8] zeroinitializer, align 16"
# Whole cache lines, two of them since processors fetch neighbours in pairs.
_LINE = "[16 x i64] zeroinitializer, align 128"

_STACK_BYTES = 8 << 20
_CLOCK_MONOTONIC = 1
_PAUSES_PER_CLOCK = 32
# How long a worker that took part spins before it offers its core to others between looks; one that
# came too late offers it at once. Measured on a loaded machine with two cores: regions cost what
# they cost on one thread, where spinning all the time made them up to twice as slow.
_POLITE_AFTER_NS = 5000


def now_ir(long: str = "i64") -> str:
    """Nanoseconds on a clock that never steps back, as a function of a module."""
    return f"""\
define internal i64 @now() nounwind {{
  %time = alloca {{ {long}, {long} }}, align 8
  %ignored = call i32 @clock_gettime(i32 {_CLOCK_MONOTONIC}, ptr %time)
  %seconds.long = load {long}, ptr %time
  %rest = getelementptr {long}, ptr %time, i32 1
  %nanos.long = load {long}, ptr %rest
{_as_i64("%seconds", long)}
{_as_i64("%nanos", long)}
  %scaled = mul i64 %seconds, 1000000000
  %sum = add i64 %scaled, %nanos
  ret i64 %sum
}}"""


def _as_i64(name: str, long: str) -> str:
    """A line that makes `name` of `name.long`."""
    if long == "i64":
        return f"  {name} = add i64 {name}.long, 0"
    return f"  {name} = zext {long} {name}.long to i64"


# No threads: a plain loop, under the names by which kernels and programs know the pool.
SERIAL_POOL = """
define void @tw_parallel(ptr %fn, ptr %ctx, i64 %chunks) nounwind {
entry:
  %any = icmp sgt i64 %chunks, 0
  br i1 %any, label %run, label %end
run:
  %i = phi i64 [ 0, %entry ], [ %next, %run ]
  call void %fn(ptr %ctx, i64 %i)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %chunks
  br i1 %more, label %run, label %end
end:
  ret void
}

define void @tw_pool_reset() nounwind {
  ret void
}

define void @tw_pool_resize(i64 %threads) nounwind {
  ret void
}

define void @tw_pool_set_spin(i64 %nanoseconds) nounwind {
  ret void
}

define i64 @tw_pool_threads() nounwind {
  ret i64 1
}

define i64 @tw_pool_workers() nounwind {
  ret i64 0
}
"""


def pool_ir(arch: str, pointer_bits: int = 64) -> str:
    """The pool's module for an architecture (x86_64, aarch64, …) and its size of addresses, which
    is that of C's `long` and of a thread's name too."""
    long = f"i{pointer_bits}"
    declare_pause, pause = _PAUSE.get(arch, ("", ""))
    declare_modes, set_modes = _MODES.get(arch, _PLAIN_MODES)
    return f"""
@words = internal global [{16 * MAX_THREADS} x i64] zeroinitializer, align 128
@done = internal global {_LINE}
@busy = internal global {_LINE}
@sleepers = internal global {_LINE}
@region = internal global {_LINE}
@settings = internal global {_LINE}
@mutex = internal global {_OPAQUE}
@wakeup = internal global {_OPAQUE}
@threads = internal global [{MAX_THREADS} x i64] zeroinitializer, align 16

; fields of a region
@function = internal alias ptr, getelementptr (i64, ptr @region, i64 0)
@context = internal alias ptr, getelementptr (i64, ptr @region, i64 1)
@base = internal alias i64, getelementptr (i64, ptr @region, i64 2)
; threads requested (callers included), workers running, whether they should end, time to spin
@wanted = internal alias i64, getelementptr (i64, ptr @settings, i64 0)
@running = internal alias i64, getelementptr (i64, ptr @settings, i64 1)
@stopping = internal alias i64, getelementptr (i64, ptr @settings, i64 2)
@spin = internal alias i64, getelementptr (i64, ptr @settings, i64 3)

{declare_pause}
{declare_modes}
declare i64 @llvm.umin.i64(i64, i64)
declare i32 @clock_gettime(i32, ptr)
declare i32 @sched_yield()
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join({long}, ptr)
declare i32 @pthread_attr_init(ptr)
declare i32 @pthread_attr_setstacksize(ptr, {long})
declare i32 @pthread_attr_destroy(ptr)
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_signal(ptr)
declare i32 @pthread_cond_broadcast(ptr)

{now_ir(long)}

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
  %shifted = lshr i64 %seen, {_PLACE}
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
  %step = select i1 %mine, i64 1, i64 {-(1 << _PLACE)}
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
  %generation = lshr i64 %own, {2 * _PLACE}
  %half = insertvalue {{ i64, i64 }} poison, i64 %generation, 0
  %both = insertvalue {{ i64, i64 }} %half, i64 %ran, 1
  ret {{ i64, i64 }} %both
}}

; Whether a generation other than the given one arrives while spinning, after %polite nanoseconds
; offering the core to others.
define internal i1 @spin_for_news(i64 %self, i64 %generation, i64 %polite) nounwind {{
entry:
  %word = call ptr @word_of(i64 %self)
  %limit = load atomic i64, ptr @spin monotonic, align 8
  %start = call i64 @now()
  br label %wait
wait:
  %i = phi i64 [ 0, %entry ], [ 0, %longer ], [ 0, %yield ], [ %next, %step ]
  %seen = load atomic i64, ptr %word monotonic, align 8
  %current = lshr i64 %seen, {2 * _PLACE}
  %news = icmp ne i64 %current, %generation
  br i1 %news, label %yes, label %step
step:
  {pause}
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, {_PAUSES_PER_CLOCK}
  br i1 %more, label %wait, label %clock
clock:
  %time = call i64 @now()
  %spent = sub i64 %time, %start
  %on = icmp ult i64 %spent, %limit
  br i1 %on, label %longer, label %no
longer:
  %early = icmp ult i64 %spent, %polite
  br i1 %early, label %wait, label %yield
yield:
  ; On a loaded machine a woken worker may land on the caller's core; spinning there would hold up
  ; the very thread whose work it waits for.
  %r = call i32 @sched_yield()
  br label %wait
yes:
  ret i1 true
no:
  ret i1 false
}}

define internal void @sleep_until_news(i64 %self, i64 %generation) nounwind {{
entry:
  %word = call ptr @word_of(i64 %self)
  %r0 = call i32 @pthread_mutex_lock(ptr @mutex)
  %before = atomicrmw add ptr @sleepers, i64 1 seq_cst, align 8
  br label %look
look:
  %seen = load atomic i64, ptr %word seq_cst, align 8
  %current = lshr i64 %seen, {2 * _PLACE}
  %same = icmp eq i64 %current, %generation
  br i1 %same, label %wait, label %leave
wait:
  %r1 = call i32 @pthread_cond_wait(ptr @wakeup, ptr @mutex)
  br label %look
leave:
  %after = atomicrmw sub ptr @sleepers, i64 1 seq_cst, align 8
  %r2 = call i32 @pthread_mutex_unlock(ptr @mutex)
  ret void
}}

; Wakes up to %count sleeping workers.
define internal void @wake(i64 %count) nounwind {{
entry:
  %sleeping = load atomic i64, ptr @sleepers seq_cst, align 8
  %none = icmp eq i64 %sleeping, 0
  br i1 %none, label %end, label %some
some:
  %r0 = call i32 @pthread_mutex_lock(ptr @mutex)
  %all = icmp ule i64 %sleeping, %count
  br i1 %all, label %everyone, label %signal
everyone:
  %r1 = call i32 @pthread_cond_broadcast(ptr @wakeup)
  br label %unlock
signal:
  %i = phi i64 [ 0, %some ], [ %next, %signal ]
  %r2 = call i32 @pthread_cond_signal(ptr @wakeup)
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %count
  br i1 %more, label %signal, label %unlock
unlock:
  %r3 = call i32 @pthread_mutex_unlock(ptr @mutex)
  br label %end
end:
  ret void
}}

define internal ptr @worker(ptr %number) nounwind {{
entry:
  %self = ptrtoint ptr %number to i64
  ; A thread inherits its creator's rounding and flushing modes; kernels expect the defaults.
  {set_modes}
  br label %work
work:
  %drained = call {{ i64, i64 }} @drain(i64 %self)
  %generation = extractvalue {{ i64, i64 }} %drained, 0
  %ran = extractvalue {{ i64, i64 }} %drained, 1
  %useful = icmp ne i64 %ran, 0
  %polite = select i1 %useful, i64 {_POLITE_AFTER_NS}, i64 0
  %stop = load atomic i64, ptr @stopping acquire, align 8
  %stopped = icmp ne i64 %stop, 0
  br i1 %stopped, label %end, label %spin
spin:
  %news = call i1 @spin_for_news(i64 %self, i64 %generation, i64 %polite)
  br i1 %news, label %work, label %sleep
sleep:
  call void @sleep_until_news(i64 %self, i64 %generation)
  br label %work
end:
  ret ptr null
}}

; A new generation with %count chunks, shared out. The caller holds @busy.
define internal void @publish(i64 %count) nounwind {{
entry:
  %old = load atomic i64, ptr @words monotonic, align 8
  %generation = lshr i64 %old, {2 * _PLACE}
  %newer = add i64 %generation, 1
  %high = shl i64 %newer, {2 * _PLACE}
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
  %shifted = shl i64 %end, {_PLACE}
  %places = or i64 %shifted, %begin
  %new = or i64 %high, %places
  %word = call ptr @word_of(i64 %i)
  store atomic i64 %new, ptr %word seq_cst, align 8
  %more = icmp ult i64 %next, %threads
  br i1 %more, label %each, label %end.all
end.all:
  ret void
}}

; Ends and joins all workers. The caller holds @busy.
define internal void @stop_workers() nounwind {{
entry:
  store atomic i64 1, ptr @stopping release, align 8
  call void @publish(i64 0)
  call void @wake(i64 {MAX_THREADS})
  %count = load atomic i64, ptr @running monotonic, align 8
  br label %check
check:
  %i = phi i64 [ 0, %entry ], [ %next, %join ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %join, label %end
join:
  %slot = getelementptr i64, ptr @threads, i64 %i
  %thread = load {long}, ptr %slot, align 8
  %r = call i32 @pthread_join({long} %thread, ptr null)
  %next = add i64 %i, 1
  br label %check
end:
  store atomic i64 0, ptr @running monotonic, align 8
  store atomic i64 0, ptr @stopping release, align 8
  ret void
}}

; Brings the number of workers to one less than @wanted. The caller holds @busy.
define internal void @adjust() nounwind {{
entry:
  %attributes = alloca {_OPAQUE.split(" zero")[0]}, align 16
  call void @stop_workers()
  %wanted = load atomic i64, ptr @wanted monotonic, align 8
  %workers = sub i64 %wanted, 1
  %r0 = call i32 @pthread_attr_init(ptr %attributes)
  %r1 = call i32 @pthread_attr_setstacksize(ptr %attributes, {long} {_STACK_BYTES})
  br label %check
check:
  %i = phi i64 [ 0, %entry ], [ %next, %created ]
  %more = icmp ult i64 %i, %workers
  br i1 %more, label %create, label %end
create:
  %slot = getelementptr i64, ptr @threads, i64 %i
  %number = add i64 %i, 1
  %argument = inttoptr i64 %number to ptr
  %r2 = call i32 @pthread_create(ptr %slot, ptr %attributes, ptr @worker, ptr %argument)
  %ok = icmp eq i32 %r2, 0
  br i1 %ok, label %created, label %refused
created:
  %next = add i64 %i, 1
  br label %check
refused:
  ; The system gives no more threads: settle for those there are rather than try at every region.
  %have = add i64 %i, 1
  store atomic i64 %have, ptr @wanted monotonic, align 8
  br label %end
end:
  %r3 = call i32 @pthread_attr_destroy(ptr %attributes)
  store atomic i64 %i, ptr @running monotonic, align 8
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
  %r = call i32 @sched_yield()
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

; As if the pool had never run: at the start, and in a forked child, which has no workers.
define void @tw_pool_reset() nounwind {{
entry:
  %running = load atomic i64, ptr @running monotonic, align 8
  br label %clear
clear:
  ; A share that was under way in the parent must not be found by a worker of the child.
  %i = phi i64 [ 0, %entry ], [ %next, %clear ]
  %word = call ptr @word_of(i64 %i)
  store atomic i64 0, ptr %word monotonic, align 8
  %next = add i64 %i, 1
  %more = icmp ule i64 %next, %running
  br i1 %more, label %clear, label %rest
rest:
  store atomic i64 0, ptr @running monotonic, align 8
  store atomic i64 0, ptr @stopping monotonic, align 8
  store atomic i64 0, ptr @sleepers monotonic, align 8
  %r0 = call i32 @pthread_mutex_init(ptr @mutex, ptr null)
  %r1 = call i32 @pthread_cond_init(ptr @wakeup, ptr null)
  store atomic i64 0, ptr @busy release, align 8
  ret void
}}

; Sets the number of threads. Surplus workers end now if the pool is idle, else before the next
; region; missing ones start with the next region.
define void @tw_pool_resize(i64 %threads) nounwind {{
entry:
  store atomic i64 %threads, ptr @wanted monotonic, align 8
  %swap = cmpxchg ptr @busy, i64 0, i64 1 acquire monotonic, align 8
  %mine = extractvalue {{ i64, i1 }} %swap, 1
  br i1 %mine, label %idle, label %end
idle:
  %running = load atomic i64, ptr @running monotonic, align 8
  %surplus = icmp uge i64 %running, %threads
  br i1 %surplus, label %stop, label %unlock
stop:
  call void @stop_workers()
  br label %unlock
unlock:
  store atomic i64 0, ptr @busy release, align 8
  br label %end
end:
  ret void
}}

define void @tw_pool_set_spin(i64 %nanoseconds) nounwind {{
  store atomic i64 %nanoseconds, ptr @spin monotonic, align 8
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
