"""The processes that compile kernels for this one (kernel_server.py is what they run)."""

from __future__ import annotations

import atexit
import os
import pickle
import selectors
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tilewright.base import knobs
from tilewright.base.machine import usable_cores
from tilewright.driver.program.options import Options
from tilewright.ir.node import Graph
from tilewright.ir.target import Target

if TYPE_CHECKING:  # loaded where something is compiled
    from tilewright.kernel.defaults.choices import Choices
    from tilewright.tune.choose import Considered

READY = "ready"  # what a process says when it has imported all it needs
_SERVER = "from tilewright.driver.program.kernel_server import main; main()"
_ROOT = Path(__file__).resolve().parents[3]  # where the package lies
# A process for each so many kernels that a graph may have, by its different operators or by all of
# them, which may become different kernels: it starts in the time of about five.
_KERNELS, _NODES = 24, 1000
# More of them would wait for one another's memory, and for this process to tell them what to do.
_MOST = 8
# The same of GPUs, whose kernels take ten times as long: several schedules of each are compiled.
_GRID_KERNELS, _GRID_MOST = 3, 16


@dataclass(frozen=True)
class Request:
    """A kernel to compile: its name, the text of its group, and what chooses its schedule, or what
    was chosen (`choices`); of GPUs, what kind of code it becomes."""

    symbol: str
    text: str
    chooser: str
    target: Target
    choices: Choices | None = None
    one_kernel: bool = False
    assembles: bool = False
    overlap: bool = False


@dataclass(frozen=True)
class Scheduled:
    """A kernel's schedule, and how it was chosen."""

    trace: str
    parallel: bool  # do threads share any of its loops?
    chosen: str = ""  # in words; nothing where the user gave the trace
    considered: tuple[Considered, ...] = ()
    final: bool = True  # would more time give the same?
    unscheduled: str = ""  # why sums of products are left to plain loops, where they are


@dataclass(frozen=True)
class Answer:
    """A kernel as it was requested, and the seconds that it took; or why there is none by these
    choices."""

    schedule: Scheduled
    image: bytes
    seconds: float
    refused: str = ""


@dataclass(frozen=True)
class WholeProgram:
    """A program to compile, which nobody waits for: the text of its graph, and for how many threads
    it is scheduled. The answer is an entry of the cache (program_cache.py), or why there is none:
    an error's sentence."""

    graph: str
    options: Options
    threads: int


class KernelProcess:
    """One process, for one thread at a time."""

    def __init__(self, server: str = "", settings: Mapping[str, str] | None = None) -> None:
        """`server`: Python that it runs, else what compiles kernels; `settings`: of its
        environment, besides those of this process."""
        paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._owner = os.getpid()
        self._ready = self.ended = False
        # -P: files of the current directory are not what is imported.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", server or _SERVER],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | dict(settings or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def is_ready(self, within: float) -> bool:
        """Has it imported what it needs, or does it in so many seconds?"""
        if not self._ready and not self.ended and has_more(self._output, within):
            self._ready = self._read() == READY
            self.ended = not self._ready
        return self._ready

    def answer(self, request: Request) -> Answer | None:
        """The kernel; None where that process cannot compile it, or has ended."""
        found = self._asked(request)
        return found if isinstance(found, Answer) else None

    def program(self, request: WholeProgram) -> bytes | str | None:
        """The program, or why there is none; None where the process has ended."""
        found = self._asked(request)
        return found if isinstance(found, (bytes, str)) else None

    def _asked(self, request: object) -> Any:
        try:
            pickle.dump(request, self._input)
            self._input.flush()
        except OSError:
            self.ended = True
            return None
        return self._read()

    def give_back(self) -> None:
        """For the next program; one that ends by itself is no longer used."""
        if self.ended:
            self.close()
        else:
            _idle.append(self)

    @property
    def usable(self) -> bool:
        """Is it there, and this process the one that started it, not a copy?"""
        if self._owner == os.getpid() and self._process.poll() is None:
            return not self.ended
        return False

    def kill(self) -> None:
        """End it, while another thread may wait for what it answers."""
        self._process.kill()

    def close(self) -> None:
        """End it: it has nothing to finish."""
        self.ended = True
        self._process.kill()
        self._process.communicate()

    @property
    def _input(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def _output(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    def _read(self) -> Any:
        try:
            return pickle.load(self._output)
        except (EOFError, OSError, pickle.UnpicklingError):
            self.ended = True
            return None


def has_more(pipe: IO[bytes], within: float) -> bool:
    """Is there something to read from a pipe, be it its end, or is there in so many seconds? Each
    message is written once the last one was read, so that none is in a buffer of ours."""
    with selectors.DefaultSelector() as waiting:
        waiting.register(pipe, selectors.EVENT_READ)
        return bool(waiting.select(within))


# Processes that compile nothing now.
_idle: list[KernelProcess] = []


@atexit.register
def _close_all() -> None:
    while _idle:
        p = _idle.pop()
        if p.usable:
            p.close()


def processes_for(graph: Graph, target: Target) -> list[KernelProcess]:
    """Processes that help to compile a graph, where it is large enough; they start while this one
    goes on. None where they cannot be started."""
    jobs = compile_jobs(target)
    if jobs == 1 or not may_start():
        return []
    kernels, most = (_KERNELS, _MOST) if target.grid is None else (_GRID_KERNELS, _GRID_MOST)
    nodes = graph.nodes()
    distinct = {(n.op, n.type, *(x.type for x in n.inputs)) for n in nodes}
    wanted = max(len(distinct) // kernels, len(nodes) // _NODES)
    found: list[KernelProcess] = []
    with suppress(OSError):
        while len(found) < min(jobs - 1, wanted, most):
            found.append(_one())
    return found


def may_start() -> bool:
    """May this process start others that compile for it?"""
    # Where Python is inside another program, that is the executable: it must not be started again.
    python = "py" in os.path.basename(sys.executable or "") and not hasattr(sys, "frozen")
    return bool(knobs.compile_processes.get()) and python


def compile_jobs(target: Target) -> int:
    """How many kernels are compiled at the same time; a GPU's cores compile nothing."""
    cores = target.cores if target.grid is None else usable_cores()
    return knobs.compile_jobs.get() or cores or 1


def _one() -> KernelProcess:
    while _idle:
        p = _idle.pop()
        if p.usable:
            return p
    return KernelProcess()
