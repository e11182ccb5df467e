"""Native code where touching memory beside its arguments is fatal, in a process of its own.

One process takes all calls: it is small and has nothing but the runtime. To fork the process of the
tests instead takes a tenth of a second when it has torch and some thousand tests behind it: all of
its pages are shared then, and copied when they are written. Where a call was its end, another one
starts.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import pickle
import subprocess
import sys
from pathlib import Path
from signal import Signals
from typing import NamedTuple

from tilewright.runtime.native import NativeKernel, callback_address

ACCESSES = (Signals.SIGSEGV, Signals.SIGBUS)
SIDES = ("after the end", "before the beginning")
REPORT = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


class Argument(NamedTuple):
    size: int  # in bytes
    data: bytes  # what it begins with


class Call(NamedTuple):
    code: bytes
    name: str
    arguments: list[Argument]
    sizes: list[int]


_processes: dict[int, subprocess.Popen[bytes]] = {}  # by who started them: a fork starts its own


def fatal_side(call: Call) -> str | None:
    """On which side of its arguments a call touches memory that it must not: it is made with
    arguments at the end of what may be touched, then at the beginning."""
    process = _processes.get(os.getpid()) or _started()
    assert process.stdin is not None and process.stdout is not None
    pickle.dump(call, process.stdin)
    process.stdin.flush()
    for side in SIDES:
        if not process.stdout.readline():
            del _processes[os.getpid()]
            ended = -process.wait()
            assert ended > 0, "the process that makes calls has failed by itself"
            # Any other end, such as an instruction that is not permitted, is no access.
            assert ended in ACCESSES, f"a call was ended by {Signals(ended).name}"
            return side
    return None


def _started() -> subprocess.Popen[bytes]:
    process = _processes[os.getpid()] = subprocess.Popen(
        [sys.executable, "-m", "tests.kernel.beside"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).resolve().parents[2],
    )
    return process


def _guarded(argument: Argument, at_end: bool) -> tuple[mmap.mmap, int]:
    """Memory for it next to pages that must not be touched, and its address."""
    pages = -(-max(argument.size, 1) // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 2) * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    first = start + mmap.PAGESIZE
    last = first + pages * mmap.PAGESIZE
    address = last - argument.size if at_end else first
    ctypes.memmove(address, argument.data, len(argument.data))
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for page in (start, last):
        assert protect(page, mmap.PAGESIZE, 0) == 0
    return memory, address


def _make_calls() -> None:
    """Those that arrive, until there are no more; a line after each side of each."""
    nothing = REPORT(lambda site, count, values: None)
    while True:
        try:
            call: Call = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        kernel = NativeKernel([call.code], call.name, {"tw_report": callback_address(nothing)})
        for side in SIDES:
            memory = [_guarded(x, side == SIDES[0]) for x in call.arguments]
            kernel([address for _, address in memory], call.sizes)
            print(side, flush=True)
        kernel.close()


if __name__ == "__main__":
    _make_calls()
