"""The thread pool's code, as LLVM text: no C compiler is needed, and kernels call it directly.

How threads share chunks is in pool_regions_ir.py. Workers are threads of the system. They spin for
a while, then sleep on a condition variable. A worker raises `@sleepers` and then looks at its word
again, a caller publishes the words and then looks at `@sleepers`, both sequentially consistent: one
of them sees the other.
"""

from __future__ import annotations

from .pool_regions_ir import LINE, MAX_THREADS, PLACE, regions_ir
from .pool_windows_ir import WINDOWS_THREADS

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

_STACK_BYTES = 8 << 20
_CLOCK_MONOTONIC = {"linux": 1, "macos": 6, "windows": 0}
_PAUSES_PER_CLOCK = 32
# How long a worker that took part spins before it offers its core to others between looks; one that
# came too late offers it at once. Measured on a loaded machine with two cores: regions cost what
# they cost on one thread, where spinning all the time made them up to twice as slow.
_POLITE_AFTER_NS = 5000


def now_ir(long: str = "i64", system: str = "linux") -> str:
    """Nanoseconds on a clock that never steps back, as a function of a module."""
    return f"""\
define internal i64 @now() nounwind {{
  %time = alloca {{ {long}, {long} }}, align 8
  %ignored = call i32 @clock_gettime(i32 {_CLOCK_MONOTONIC[system]}, ptr %time)
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


def _posix(long: str) -> str:
    """What the pool calls of the system."""
    return f"""\
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
declare i32 @pthread_cond_broadcast(ptr)"""


_THREADS = {"linux": _posix, "macos": _posix, "windows": lambda long: WINDOWS_THREADS}


def pool_ir(arch: str, pointer_bits: int = 64, system: str = "linux") -> str:
    """The pool's module for an architecture (x86_64, aarch64, …) and its size of addresses, which
    is that of C's `long` and of a thread's name too; for Linux, macOS or Windows."""
    long = f"i{pointer_bits}"
    declare_pause, pause = _PAUSE.get(arch, ("", ""))
    declare_modes, set_modes = _MODES.get(arch, _PLAIN_MODES)
    return f"""{regions_ir(pause, "%r = call i32 @sched_yield()")}
@sleepers = internal global {LINE}
@mutex = internal global {_OPAQUE}
@wakeup = internal global {_OPAQUE}
@threads = internal global [{MAX_THREADS} x i64] zeroinitializer, align 16

{declare_pause}
{declare_modes}
{_THREADS[system](long)}

{now_ir(long, system)}

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
  %current = lshr i64 %seen, {2 * PLACE}
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
  %current = lshr i64 %seen, {2 * PLACE}
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
"""
