"""How many multiply-adds one core can do: nothing but independent chains of them."""

from __future__ import annotations

import ctypes
import time

from tilewright.ir.target import Target
from tilewright.llvm.objects import compile_object
from tilewright.runtime.library import Library

CHAINS = 24
ROUNDS = 200_000


class Peak:
    """Calling it measures once: float32 operations per second, two per multiply-add."""

    def __init__(self, target: Target) -> None:
        self.lanes = target.lanes(32)
        self.library = Library([compile_object(_text(self.lanes), target)], {})
        signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
        self.function = signature(self.library.address("peak"))
        self.numbers = (ctypes.c_float * (2 * self.lanes))()

    def __call__(self) -> float:
        for k in range(2 * self.lanes):
            self.numbers[k] = 0.5
        start = time.perf_counter()
        self.function(ctypes.addressof(self.numbers), ROUNDS)
        seconds = time.perf_counter() - start
        return 2.0 * ROUNDS * CHAINS * self.lanes / seconds


def _text(lanes: int) -> str:
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
