"""What the thread pool calls of POSIX, in the words of Windows: LLVM text of internal functions."""

from __future__ import annotations

_INFINITE = -1
_STACK_IS_A_RESERVATION = 0x10000
_STACK_BYTES = 8 << 20

# A mutex is a slim lock, a condition is Windows' own: one pointer each, which begins as null.
WINDOWS_THREADS = f"""\
declare void @AcquireSRWLockExclusive(ptr)
declare void @ReleaseSRWLockExclusive(ptr)
declare i32 @SleepConditionVariableSRW(ptr, ptr, i32, i32)
declare void @WakeConditionVariable(ptr)
declare void @WakeAllConditionVariable(ptr)
declare ptr @CreateThread(ptr, i64, ptr, ptr, i32, ptr)
declare i32 @WaitForSingleObject(ptr, i32)
declare i32 @CloseHandle(ptr)
declare i32 @SwitchToThread()
declare i32 @QueryPerformanceCounter(ptr)
declare i32 @QueryPerformanceFrequency(ptr)

; Seconds and nanoseconds of a clock that never steps back.
define internal i32 @clock_gettime(i32 %clock, ptr %time) nounwind {{
  %counter = alloca i64, align 8
  %frequency = alloca i64, align 8
  %r0 = call i32 @QueryPerformanceCounter(ptr %counter)
  %r1 = call i32 @QueryPerformanceFrequency(ptr %frequency)
  %ticks = load i64, ptr %counter, align 8
  %rate = load i64, ptr %frequency, align 8
  %seconds = udiv i64 %ticks, %rate
  %rest = urem i64 %ticks, %rate
  %scaled = mul i64 %rest, 1000000000
  %nanos = udiv i64 %scaled, %rate
  store i64 %seconds, ptr %time, align 8
  %second = getelementptr i64, ptr %time, i32 1
  store i64 %nanos, ptr %second, align 8
  ret i32 0
}}

define internal i32 @sched_yield() nounwind {{
  %r = call i32 @SwitchToThread()
  ret i32 0
}}

; A thread's function gives a pointer here and 32 bits there, in the same register.
define internal i32 @pthread_create(ptr %slot, ptr %attributes, ptr %fn, ptr %argument) nounwind {{
  %thread = call ptr @CreateThread(ptr null, i64 {_STACK_BYTES}, ptr %fn, ptr %argument, \
i32 {_STACK_IS_A_RESERVATION}, ptr null)
  %number = ptrtoint ptr %thread to i64
  store i64 %number, ptr %slot, align 8
  %none = icmp eq ptr %thread, null
  %code = zext i1 %none to i32
  ret i32 %code
}}

define internal i32 @pthread_join(i64 %number, ptr %result) nounwind {{
  %thread = inttoptr i64 %number to ptr
  %r0 = call i32 @WaitForSingleObject(ptr %thread, i32 {_INFINITE})
  %r1 = call i32 @CloseHandle(ptr %thread)
  ret i32 0
}}

define internal i32 @pthread_attr_init(ptr %attributes) nounwind {{
  ret i32 0
}}

define internal i32 @pthread_attr_setstacksize(ptr %attributes, i64 %size) nounwind {{
  ret i32 0
}}

define internal i32 @pthread_attr_destroy(ptr %attributes) nounwind {{
  ret i32 0
}}

define internal i32 @pthread_mutex_init(ptr %mutex, ptr %attributes) nounwind {{
  store ptr null, ptr %mutex, align 8
  ret i32 0
}}

define internal i32 @pthread_mutex_lock(ptr %mutex) nounwind {{
  call void @AcquireSRWLockExclusive(ptr %mutex)
  ret i32 0
}}

define internal i32 @pthread_mutex_unlock(ptr %mutex) nounwind {{
  call void @ReleaseSRWLockExclusive(ptr %mutex)
  ret i32 0
}}

define internal i32 @pthread_cond_init(ptr %condition, ptr %attributes) nounwind {{
  store ptr null, ptr %condition, align 8
  ret i32 0
}}

define internal i32 @pthread_cond_wait(ptr %condition, ptr %mutex) nounwind {{
  %r = call i32 @SleepConditionVariableSRW(ptr %condition, ptr %mutex, i32 {_INFINITE}, i32 0)
  ret i32 0
}}

define internal i32 @pthread_cond_signal(ptr %condition) nounwind {{
  call void @WakeConditionVariable(ptr %condition)
  ret i32 0
}}

define internal i32 @pthread_cond_broadcast(ptr %condition) nounwind {{
  call void @WakeAllConditionVariable(ptr %condition)
  ret i32 0
}}"""
