"""Programs that are compiled while others run, and that nobody waits for.

One thread takes them in turn and hands each to a process of the lowest priority, which does all the
work: Python runs one thread at a time, so that compiling in this process would stop its calls. The
end of this process ends that one, whatever it is doing.
"""

from __future__ import annotations

import atexit
import os
import pickle
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.base.events import Log
from tilewright.driver.program.kernel_process import KernelProcess, WholeProgram, may_start
from tilewright.driver.program.options import Options
from tilewright.driver.program.programs import from_record
from tilewright.ir.node import Graph
from tilewright.ir.text import print_graph
from tilewright.runtime import pool
from tilewright.runtime.program import Program
from tilewright.targets import default as default_target

_SERVER = "from tilewright.driver.program.program_server import main; main()"
# It compiles one kernel at a time, and starts no others.
_SETTINGS = {"TILEWRIGHT_COMPILE_PROCESSES": "0", "TILEWRIGHT_COMPILE_JOBS": "1"}
# Seconds in which such a process imports what it needs, on a machine that is busy.
_START = 120.0
# Seconds that the end of this process waits for the thread, which has nothing left to do.
_END = 2.0

Done = Callable[[Program | None, str], None]


@dataclass(frozen=True)
class _Work:
    graph: Callable[[], Graph]
    options: Options
    done: Done


class _Compiler:
    """The thread, its queue and its process; both are started when there is work."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._process: KernelProcess | None = None
        self._lock = threading.Lock()
        self._ended = False

    def add(self, work: _Work) -> None:
        with self._lock:
            if self._ended:
                return
            self._work.put(work)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._serve, name="tilewright-meanwhile", daemon=True
                )
                self._thread.start()

    def end(self) -> None:
        """Nothing is begun any more, and what was begun is given up."""
        with self._lock:
            self._ended = True
            self._work.put(None)
            if self._process is not None:
                self._process.kill()
        if self._thread is not None:
            self._thread.join(_END)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None and not self._ended:
            try:
                program, said = self._made(work)
                if not self._ended:
                    work.done(program, said)
            except Exception as problem:  # calls go on with the program that they have
                work.done(None, f"{type(problem).__name__}: {problem}")

    def _made(self, work: _Work) -> tuple[Program | None, str]:
        began, graph = time.perf_counter(), work.graph()
        options = replace(work.options, target=work.options.target or default_target())
        assert options.target is not None
        request = WholeProgram(print_graph(graph), options, pool.get_threads())
        try:
            pickle.dumps(request)
        except Exception as problem:
            return None, f"its options cannot be passed to another process ({problem})"
        process = self._ready()
        found = process.program(request) if process is not None else None
        if found is None:
            return None, "the process that compiles ended"
        if isinstance(found, str):
            return None, found
        program = from_record(found, graph, options, options.target, Log())
        return program, f"compiled in {time.perf_counter() - began:.1f} s"

    def _ready(self) -> KernelProcess | None:
        with self._lock:
            if self._ended:
                return None
            if self._process is None or not self._process.usable:
                self._process = KernelProcess(_SERVER, _SETTINGS)
            process = self._process
        return process if process.is_ready(_START) else None


_compiler = _Compiler()


def compile_meanwhile(graph: Callable[[], Graph], options: Options, done: Done) -> None:
    """`done` is called on another thread, with the program of the graph and what is to be said of
    it, or with None and the reason why there is none."""
    if not may_start():
        done(None, "this process may start no others that compile (TILEWRIGHT_COMPILE_PROCESSES)")
        return
    _compiler.add(_Work(graph, options, done))


@atexit.register
def _end() -> None:
    _compiler.end()


def _anew() -> None:
    """A forked child has no such thread, and the process is its parent's."""
    global _compiler
    _compiler = _Compiler()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_anew)
