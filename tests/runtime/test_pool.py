"""The thread pool, driven hard from native code: every chunk once, every write seen."""

import ctypes
import ctypes.util
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import cache

import pytest

from tilewright import targets
from tilewright.base import knobs
from tilewright.base.errors import Invalid
from tilewright.base.machine import usable_cores
from tilewright.llvm.objects import compile_object
from tilewright.runtime import pool
from tilewright.runtime.library import Library
from tilewright.runtime.pool_ir import MAX_THREADS, pool_ir

SLOTS = 300

# A context is { stamp, mistakes, slots… }. Region r writes its number to the stamp with a plain
# store, each chunk copies it to its slot with a plain store, and the caller checks all slots with
# plain loads: a lost or doubled chunk, or a missing barrier on either side, is a mistake.
STRESS = f"""
declare void @tw_parallel(ptr, ptr, i64)

define void @body(ptr %ctx, i64 %chunk) {{
entry:
  %stamp = load i64, ptr %ctx, align 8
  %count = getelementptr i64, ptr %ctx, i64 1
  %index = add i64 %chunk, 2
  %slot = getelementptr i64, ptr %ctx, i64 %index
  %old = load i64, ptr %slot, align 8
  %again = icmp eq i64 %old, %stamp
  br i1 %again, label %twice, label %once
twice:
  %ignored = atomicrmw add ptr %count, i64 1 monotonic
  br label %once
once:
  ; Chunks of uneven length, so that the others get some too; a stamp that changes meanwhile says
  ; that the region was declared over too early.
  %mixed = mul i64 %stamp, 40503
  %uneven = add i64 %mixed, %chunk
  %length = and i64 %uneven, 511
  br label %dwell
dwell:
  %i = phi i64 [ 0, %once ], [ %next, %dwell ]
  %now = load volatile i64, ptr %ctx, align 8
  %same = icmp eq i64 %now, %stamp
  %next = add i64 %i, 1
  %within = icmp ult i64 %next, %length
  %on = and i1 %same, %within
  br i1 %on, label %dwell, label %over
over:
  br i1 %same, label %write, label %late
late:
  %ignored.too = atomicrmw add ptr %count, i64 1 monotonic
  br label %write
write:
  store i64 %stamp, ptr %slot, align 8
  ret void
}}

; A region per chunk, each on a context of its own.
define void @nested(ptr %ctx, i64 %chunk) {{
  %step = mul i64 %chunk, {SLOTS + 2}
  %own = getelementptr i64, ptr %ctx, i64 %step
  call i64 @stress(ptr %own, i64 3, i64 {SLOTS})
  ret void
}}

define void @nest(ptr %ctx, i64 %chunks) {{
  call void @tw_parallel(ptr @nested, ptr %ctx, i64 %chunks)
  ret void
}}

define void @regions(ptr %ctx, i64 %regions, i64 %chunks) {{
entry:
  br label %next
next:
  %r = phi i64 [ 0, %entry ], [ %r.next, %next ]
  call void @tw_parallel(ptr @body, ptr %ctx, i64 %chunks)
  %r.next = add i64 %r, 1
  %more = icmp ult i64 %r.next, %regions
  br i1 %more, label %next, label %end
end:
  ret void
}}

; Runs regions of 0 to %most chunks in a scrambled order; returns the mistakes.
define i64 @stress(ptr %ctx, i64 %regions, i64 %most) {{
entry:
  %count = getelementptr i64, ptr %ctx, i64 1
  %modulus = add i64 %most, 1
  %first = load i64, ptr %ctx, align 8
  br label %region
region:
  %r = phi i64 [ 0, %entry ], [ %r.next, %checked ]
  %before = add i64 %first, %r
  %stamp = add i64 %before, 1
  %scrambled = mul i64 %stamp, 7919
  %chunks = urem i64 %scrambled, %modulus
  store i64 %stamp, ptr %ctx, align 8
  call void @tw_parallel(ptr @body, ptr %ctx, i64 %chunks)
  br label %check
check:
  %i = phi i64 [ 0, %region ], [ %i.next, %look ]
  %in = icmp ult i64 %i, %most
  br i1 %in, label %look, label %checked
look:
  %index = add i64 %i, 2
  %slot = getelementptr i64, ptr %ctx, i64 %index
  %value = load i64, ptr %slot, align 8
  %written = icmp eq i64 %value, %stamp
  %expected = icmp ult i64 %i, %chunks
  %wrong = xor i1 %written, %expected
  %one = zext i1 %wrong to i64
  %mistakes = load i64, ptr %count, align 8
  %sum = add i64 %mistakes, %one
  store i64 %sum, ptr %count, align 8
  %i.next = add i64 %i, 1
  br label %check
checked:
  %r.next = add i64 %r, 1
  %more = icmp ult i64 %r.next, %regions
  br i1 %more, label %region, label %end
end:
  %result = load i64, ptr %count, align 8
  ret i64 %result
}}
"""

I64, PTR = ctypes.c_int64, ctypes.c_void_p


@cache
def harness() -> Library:
    return Library([compile_object(STRESS, targets.host())], {"tw_parallel": pool.address()})


def native(name: str, *arguments, result=None):
    return ctypes.CFUNCTYPE(result, *arguments)(harness().address(name))


def new_context(count: int = 1):
    return (I64 * ((SLOTS + 2) * count))()


def mistakes(regions: int, most: int = SLOTS) -> int:
    return native("stress", PTR, I64, I64, result=I64)(new_context(), regions, most)


@pytest.fixture(autouse=True)
def restored_pool() -> Iterator[None]:
    before = pool.get_threads()
    yield
    pool.set_threads(before)
    pool.set_spin(100)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_every_chunk_runs_once(threads: int) -> None:
    pool.set_threads(threads)
    assert mistakes(150_000, 7) == 0
    assert mistakes(4_000, SLOTS) == 0
    assert pool.workers() == threads - 1


@pytest.mark.parametrize("spin", [0, 5, 1000])
def test_sleeping_workers_are_woken(spin: float) -> None:
    pool.set_threads(3)
    pool.set_spin(spin)
    assert mistakes(5_000, 5) == 0
    for _ in range(20):
        time.sleep(0.002)  # Longer than any spin here: everybody sleeps.
        assert mistakes(3, 5) == 0


@pytest.mark.parametrize("chunks", [-1, 0, 1, 2, SLOTS])
def test_number_of_chunks(chunks: int) -> None:
    pool.set_threads(2)
    context = new_context()
    context[0] = 7
    native("regions", PTR, I64, I64)(context, 1, chunks)
    assert list(context)[2:] == [7 if i < chunks else 0 for i in range(SLOTS)]


def test_more_chunks_than_a_word_can_count() -> None:
    pool.set_threads(3)
    chunks = 2 * 65535 + 17
    context = (I64 * (chunks + 2))()
    context[0] = 7
    native("regions", PTR, I64, I64)(context, 1, chunks)
    assert set(context[2:]) == {7}
    assert context[1] == 0


def test_threads_keep_their_shares_and_help_with_the_rest() -> None:
    pool.set_threads(2)
    pool.set_spin(1000)
    ran: list[tuple[int, int]] = []

    def body(_: int | None, chunk: int) -> None:
        ran.append((chunk, threading.get_native_id()))
        time.sleep(0.02 if chunk == 0 else 0.001)

    region = ctypes.CFUNCTYPE(None, PTR, PTR, I64)(pool.address())
    callback = ctypes.CFUNCTYPE(None, PTR, I64)(body)
    region(ctypes.cast(callback, PTR), None, 16)
    me = threading.get_native_id()
    by_me = [chunk for chunk, thread in ran if thread == me]
    by_other = [chunk for chunk, thread in ran if thread != me]
    assert sorted(by_me + by_other) == list(range(16))
    for mine, share in ((by_me, range(8)), (by_other, range(8, 16))):
        own, helped = [c for c in mine if c in share], [c for c in mine if c not in share]
        # The own share from its front, then the other's from its end.
        assert mine == [*sorted(own), *sorted(helped, reverse=True)]


def test_two_callers() -> None:
    pool.set_threads(3)
    harness()
    found: list[int] = []
    callers = [threading.Thread(target=lambda: found.append(mistakes(10_000, 9))) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert found == [0, 0, 0]


def test_nested_regions_run_inline() -> None:
    pool.set_threads(3)
    context = new_context(50)
    for _ in range(20):
        native("nest", PTR, I64)(context, 50)
    counts = [context[i * (SLOTS + 2) + 1] for i in range(50)]
    assert counts == [0] * 50


def test_resizing_while_regions_run() -> None:
    harness()
    running = True
    found: list[int] = []

    def caller() -> None:
        while running:
            found.append(mistakes(50, 9))

    thread = threading.Thread(target=caller)
    thread.start()
    for step in range(200):
        pool.set_threads(1 + step % 4)
    running = False
    thread.join()
    assert found
    assert set(found) == {0}


def test_surplus_workers_end() -> None:
    pool.set_threads(4)
    assert mistakes(1) == 0
    assert pool.workers() == 3
    pool.set_threads(1)
    assert pool.workers() == 0
    assert mistakes(100) == 0


def in_child(check) -> int:
    """Fork, run the check in the child, return the child's exit status."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.005)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return -1


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_its_own_pool() -> None:
    pool.set_threads(3)
    assert mistakes(100) == 0
    child = in_child(lambda: pool.workers() == 0 and mistakes(2_000) == 0 and pool.workers() == 2)
    assert child == 0
    assert mistakes(100) == 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_while_another_thread_is_in_a_region() -> None:
    pool.set_threads(2)
    harness()
    running = True
    found: list[int] = []

    def caller() -> None:
        while running:
            found.append(mistakes(200, 9))

    thread = threading.Thread(target=caller)
    thread.start()
    children = [in_child(lambda: mistakes(200) == 0) for _ in range(10)]
    running = False
    thread.join()
    assert children == [0] * 10
    assert set(found) == {0}


@pytest.mark.parametrize("daemon_in_region", [False, True])
def test_the_interpreter_exits(daemon_in_region: bool) -> None:
    program = f"""
import ctypes, threading, time
from tilewright.runtime import pool
pool.set_threads(3)
body = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(
    lambda ctx, chunk: time.sleep(0.001))
run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(pool.address())
entry = ctypes.CDLL(None).usleep
if {daemon_in_region}:
    threading.Thread(target=lambda: [entry(100) for _ in iter(int, 1)], daemon=True).start()
    pause = ctypes.cast(entry, ctypes.c_void_p)
    threading.Thread(target=lambda: run(pause, 100, 10**9), daemon=True).start()
    time.sleep(0.05)
else:
    run(ctypes.cast(body, ctypes.c_void_p), None, 9)
print("done", pool.workers())
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (run.returncode, run.stdout) == (0, "done 2\n"), run.stderr


ROUNDING_UP = {"x86_64": 0x800, "aarch64": 0x400000}
DIVIDE = """
declare i64 @pthread_self()
declare i32 @usleep(i32)
; ctx: pairs of (thread, bits of 1/3)
define void @divide(ptr %ctx, i64 %chunk) {
  %three = load volatile double, ptr @three, align 8
  %third = fdiv double 1.0, %three
  %position = mul i64 %chunk, 2
  %pair = getelementptr i64, ptr %ctx, i64 %position
  %thread = call i64 @pthread_self()
  store i64 %thread, ptr %pair, align 8
  %value = getelementptr i64, ptr %pair, i64 1
  store double %third, ptr %value, align 8
  %r = call i32 @usleep(i32 200)
  ret void
}
@three = internal global double 3.0, align 8
"""


@pytest.mark.skipif(platform.machine() not in ROUNDING_UP, reason="rounding constant unknown")
def test_workers_round_to_nearest_whatever_their_creator_does() -> None:
    libm = ctypes.CDLL(ctypes.util.find_library("m"))
    library = Library([compile_object(DIVIDE, targets.host())])
    run = ctypes.CFUNCTYPE(None, PTR, PTR, I64)(pool.address())
    pool.set_threads(1)
    pool.set_threads(3)
    pairs = (I64 * 200)()
    libm.fesetround(ROUNDING_UP[platform.machine()])
    try:
        run(library.address("divide"), pairs, 100)
    finally:
        libm.fesetround(0)
    assert libm.fegetround() == 0
    # 1/3 rounds down to nearest: the bits end in 5 there, in 6 when rounding up.
    last = {(pairs[2 * i], pairs[2 * i + 1] & 15) for i in range(100)}
    assert len(last) == 3, "each thread took part, and each has one way of rounding"
    assert sorted(bits for _, bits in last) == [5, 5, 6]


def test_default_number_of_threads() -> None:
    show = "from tilewright.runtime import pool; print(pool.get_threads())"

    def threads(value: int | None) -> str:
        with knobs.threads.override(value):
            run = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True)
        return run.stdout.strip()

    assert threads(None) == str(usable_cores())
    assert threads(5) == "5"


@pytest.mark.parametrize("count", [0, -1, MAX_THREADS + 1, "2"])
def test_bad_number_of_threads(count) -> None:
    with pytest.raises(Invalid, match="between 1 and"):
        pool.set_threads(count)


def test_bad_spin() -> None:
    with pytest.raises(Invalid, match="negative"):
        pool.set_spin(-1)


@pytest.mark.parametrize("name", ["x86-64", "x86-64-v4", "arm64"])
def test_the_code_compiles_for_other_machines(name: str) -> None:
    target = targets.get(name)
    assert compile_object(pool_ir(target.arch), target)[:4] == b"\x7fELF"
