"""The native thread pool that parallel loops run on.

Compiled kernels call `tw_parallel(fn, ctx, chunks)` at `address()`; Python only sets it up. Workers
start with the first parallel region, and a forked child starts its own.
"""

from __future__ import annotations

import atexit
import ctypes
import os
from functools import cached_property

from tilewright.base import knobs
from tilewright.base.errors import require
from tilewright.base.machine import usable_cores
from tilewright.ir.target import Target
from tilewright.llvm.objects import cached_object, host_cpu

from .concurrent_ir import concurrent_ir
from .library import Library
from .pool_ir import MAX_THREADS, pool_ir

# Long enough to bridge the serial code between two kernels and from one call to the next, short
# enough not to disturb other processes on the core.
_DEFAULT_SPIN_US = 100


def address() -> int:
    """The address of `void tw_parallel(ptr fn, ptr ctx, i64 chunks)`.

    It calls `void fn(ptr ctx, i64 chunk)` for each chunk, on all threads, and returns when all are
    done. Nested calls and calls while another thread uses the pool run their chunks themselves.
    """
    return _pool().library.address("tw_parallel")


def prepare() -> None:
    """Have the pool's code at hand, which programs need when they are loaded."""
    _pool()


def concurrent_symbols() -> dict[str, int]:
    """The addresses of what kernels call whose programs wait for each other (concurrent_ir.py)."""
    return _pool().concurrent


def set_threads(count: int) -> None:
    """Run regions with this many threads, the caller's included."""
    require(
        isinstance(count, int) and 1 <= count <= MAX_THREADS,
        f"the number of threads must be between 1 and {MAX_THREADS}, not {count!r}",
    )
    _pool().resize(count)


def get_threads() -> int:
    """The number of threads of a region: TILEWRIGHT_THREADS or the usable cores until set."""
    known = _pools.get("pool")
    return _first_threads() if known is None else known.threads()


def _first_threads() -> int:
    return min(MAX_THREADS, knobs.threads.get() or usable_cores())


def workers() -> int:
    """The worker threads that exist now; they start with the first region."""
    return _pool().workers()


def set_spin(microseconds: float) -> None:
    """How long an idle worker watches for the next region before it sleeps."""
    require(microseconds >= 0, f"a time to spin cannot be negative: {microseconds}")
    _pool().set_spin(int(microseconds * 1000))


class _Pool:
    """The pool's code in this process, and its controls."""

    def __init__(self):
        host = host_cpu()
        self.target = Target("pool", host.triple, host.cpu, host.features)
        text = pool_ir(self.target.arch, 8 * ctypes.sizeof(ctypes.c_void_p))
        self.library = Library([cached_object(text, self.target)])
        function = self.library.function
        self.reset = function("tw_pool_reset")
        self.resize = function("tw_pool_resize", ctypes.c_int64)
        self.set_spin = function("tw_pool_set_spin", ctypes.c_int64)
        self.threads = function("tw_pool_threads", result=ctypes.c_int64)
        self.workers = function("tw_pool_workers", result=ctypes.c_int64)
        self.reset()
        self.set_spin(_DEFAULT_SPIN_US * 1000)
        self.resize(_first_threads())

    @cached_property
    def concurrent(self) -> dict[str, int]:
        count = self.library.address("tw_pool_threads")
        image = cached_object(concurrent_ir(), self.target)
        self._waiting = Library([image], {"tw_pool_threads": count})
        names = ("tw_concurrent", "tw_wait", "tw_waited")
        reset = self._waiting.function("tw_concurrent_reset")
        os.register_at_fork(after_in_child=reset)
        return {name: self._waiting.address(name) for name in names}


_pools: dict[str, _Pool] = {}


def _pool() -> _Pool:
    """The one pool of this process, made on first use."""
    if pool := _pools.get("pool"):
        return pool
    made = _Pool()
    # Of two threads that arrive here together the first wins; the other's pool is not used yet.
    pool = _pools.setdefault("pool", made)
    if pool is made:
        os.register_at_fork(after_in_child=pool.reset)
        # Workers end before the interpreter takes down what they might still look at.
        atexit.register(pool.resize, 1)
    return pool
