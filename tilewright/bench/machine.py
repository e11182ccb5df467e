"""What the machine can do at most: multiply-adds per second, and bytes moved per second.

Both are native loops that do nothing else. How fast bytes move depends on how many they are and on
how many are written, so the traffic of each case is measured on buffers of its own sizes.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table

from tilewright.base.machine import usable_cores
from tilewright.bench.measure import MIN_ROUNDS, ROUND_SECONDS, busy
from tilewright.ir.target import Target
from tilewright.llvm.objects import compile_object
from tilewright.runtime.library import Library
from tilewright.targets import default

CHAINS = 24
ROUNDS = 4_000_000  # tens of milliseconds: next to that, starting threads takes no time
# A pass over memory handles so many vectors at a time.
UNROLL = 8
PAGE = 4096


class Peak:
    """Calling it measures once: float32 operations per second, two per multiply-add."""

    def __init__(self, target: Target, threads: int = 1) -> None:
        self.lanes, self.threads = target.lanes(32), threads
        self.library = Library([compile_object(_peak_text(self.lanes), target)], {})
        self.function = self.library.function("peak", ctypes.c_void_p, ctypes.c_int64)
        self.numbers = [(ctypes.c_float * (2 * self.lanes))() for _ in range(threads)]

    def __call__(self) -> float:
        for numbers in self.numbers:
            for k in range(2 * self.lanes):
                numbers[k] = 0.5
        calls: list[Callable[[], None]] = [
            partial(self.function, ctypes.addressof(own), ROUNDS) for own in self.numbers
        ]
        return 2.0 * ROUNDS * CHAINS * self.lanes * self.threads / _together(calls)


class Traffic:
    """Calling it measures once: seconds to read and to write so many bytes, by all threads.

    What is read and written alike is copied, the rest is only read or only written. Copies are made
    with ordinary stores and with stores past the caches; the faster way counts.
    """

    def __init__(self, target: Target, read: int, written: int, threads: int = 1) -> None:
        step = UNROLL * target.lanes(32) * 4 * threads
        both = min(read, written)
        self.copied, self.read, self.written = (
            -(-size // step) * step for size in (both, read - both, written - both)
        )
        self.threads = threads
        self.library = Library([compile_object(_traffic_text(target.lanes(32)), target)], {})
        # One array per kind of access; pages are touched before anything is timed.
        sizes = (self.copied, self.copied, self.read, self.written)
        self.memory = [np.ones(size + PAGE, np.uint8) for size in sizes]
        self.starts = [-(-m.ctypes.data // PAGE) * PAGE for m in self.memory]
        self.sink = (ctypes.c_float * 64)()
        self.repeats = 1
        once = min(self._seconds(way) for way in ("copy", "copy_past") for _ in range(2))
        # Starting threads costs more than small buffers do.
        self.repeats = max(1, min(int(ROUND_SECONDS / 2 / max(once, 1e-7)), 100_000))

    def __call__(self) -> float:
        return min(self._seconds("copy"), self._seconds("copy_past"))

    def _function(self, name: str) -> Callable[..., None]:
        words = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
        return self.library.function(name, *words)

    def _seconds(self, copy: str) -> float:
        source, target, seen, filled = self.starts
        copied, read, written = (n // self.threads for n in (self.copied, self.read, self.written))
        sink = ctypes.addressof(self.sink)
        copy_it, read_it, write_it = map(self._function, (copy, "only_read", "only_write"))

        def one(k: int) -> None:
            if copied:
                copy_it(source + k * copied, target + k * copied, copied, self.repeats)
            if read:
                read_it(seen + k * read, sink, read, self.repeats)
            if written:
                write_it(sink, filled + k * written, written, self.repeats)

        return _together([lambda k=k: one(k) for k in range(self.threads)]) / self.repeats


def _together(calls: list[Callable[[], None]]) -> float:
    """Seconds until all calls are done, each on a thread of its own; native code has no lock."""
    if len(calls) == 1:
        start = time.perf_counter()
        calls[0]()
        return time.perf_counter() - start
    with ThreadPoolExecutor(len(calls)) as executor:
        list(executor.map(lambda _: time.sleep(1e-3), calls))  # threads start before the clock does
        start = time.perf_counter()
        list(executor.map(lambda call: call(), calls))
        return time.perf_counter() - start


def _peak_text(lanes: int) -> str:
    v = f"<{lanes} x float>"
    chains = range(CHAINS)
    lines = [
        f"declare {v} @llvm.fma.v{lanes}f32({v}, {v}, {v})",
        "define void @peak(ptr %p, i64 %n) nounwind {",
        "entry:",
        f"  %a = load {v}, ptr %p, align 4",
        f"  %q = getelementptr {v}, ptr %p, i64 1",
        f"  %b = load {v}, ptr %q, align 4",
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]",
        *(f"  %c{k} = phi {v} [ %a, %entry ], [ %d{k}, %loop ]" for k in chains),
        *(f"  %d{k} = call {v} @llvm.fma.v{lanes}f32({v} %a, {v} %b, {v} %c{k})" for k in chains),
        "  %next = add i64 %i, 1",
        "  %more = icmp slt i64 %next, %n",
        "  br i1 %more, label %loop, label %done",
        "done:",
        f"  %s0 = fadd {v} %d0, %d0",
        *(f"  %s{k} = fadd {v} %s{k - 1}, %d{k}" for k in chains if k),
        f"  store {v} %s{CHAINS - 1}, ptr %p, align 4",
        "  ret void",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _traffic_text(lanes: int) -> str:
    """`copy`, `copy_past`, `only_read` and `only_write` of (from, to, bytes, repeats)."""
    v, vectors = f"<{lanes} x i32>", range(UNROLL)

    def load(kind: str = "") -> list[str]:
        return [
            line
            for k in vectors
            for line in (
                f"  %f{k} = getelementptr {v}, ptr %from.at, i64 {k}",
                f"  %x{k} = load {kind}{v}, ptr %f{k}, align 4",
            )
        ]

    def store(value: str, past: str = "") -> list[str]:
        # Stores past the caches need aligned vectors: whole pages and vectors are aligned.
        align = 4 * lanes
        return [
            line
            for k in vectors
            for line in (
                f"  %t{k} = getelementptr {v}, ptr %to.at, i64 {k}",
                f"  store {v} {value.format(k=k)}, ptr %t{k}, align {align}{past}",
            )
        ]

    bodies = {
        "copy": [*load(), *store("%x{k}")],
        "copy_past": [*load(), *store("%x{k}", ", !nontemporal !0")],
        # Volatile: what is read is not used.
        "only_read": load("volatile "),
        "only_write": store("zeroinitializer"),
    }
    return "\n".join(_passes(name, UNROLL * lanes * 4, body) for name, body in bodies.items()) + (
        "\n!0 = !{i32 1}\n"
    )


def _passes(name: str, step: int, body: list[str]) -> str:
    lines = [
        f"define void @{name}(ptr %from, ptr %to, i64 %bytes, i64 %repeats) nounwind {{",
        "entry:",
        "  br label %pass",
        "pass:",
        "  %r = phi i64 [ 0, %entry ], [ %r.next, %end ]",
        # Each pass is one of its own: nothing of an earlier one may stand for it.
        '  call void asm sideeffect "", "~{memory}"()',
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [ 0, %pass ], [ %i.next, %loop ]",
        "  %from.at = getelementptr i8, ptr %from, i64 %i",
        "  %to.at = getelementptr i8, ptr %to, i64 %i",
        *body,
        f"  %i.next = add i64 %i, {step}",
        "  %more = icmp slt i64 %i.next, %bytes",
        "  br i1 %more, label %loop, label %end",
        "end:",
        "  %r.next = add i64 %r, 1",
        "  %again = icmp slt i64 %r.next, %repeats",
        "  br i1 %again, label %pass, label %done",
        "done:",
        "  ret void",
        "}",
    ]
    return "\n".join(lines)


# ---- `tilewright bench peak`


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=9, help=f"at least {MIN_ROUNDS}")
    parser.add_argument("--threads", type=int, default=0, help="the most to try; 0: all cores")


def main(given: argparse.Namespace) -> int:
    console, target = Console(), default()
    most, rounds = given.threads or usable_cores(), max(given.rounds, MIN_ROUNDS)
    warning = busy()
    table = Table(title=f"what {target.name} can do")
    for heading in ("threads", "GFLOP/s", *(f"copy of {mib} MiB, GB/s" for mib in (1, 16, 256))):
        table.add_column(heading, justify="right")
    for threads in sorted({1, most}):
        peak = Peak(target, threads)
        cells = [f"{threads}", f"{median(peak() for _ in range(rounds)) / 1e9:.1f}"]
        for mib in (1, 16, 256):
            traffic = Traffic(target, mib * 2**20, mib * 2**20, threads)
            seconds = median(traffic() for _ in range(rounds))
            cells.append(f"{2 * mib * 2**20 / seconds / 1e9:.1f}")
        table.add_row(*cells)
    console.print(table)
    if warning:
        console.print(f"[yellow]{warning}[/]", highlight=False)
    return 0
