"""Who compiles the kernels of a program: the caller's thread, threads that turn LLVM text to
objects meanwhile, and other processes, which schedule too."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from tilewright.base.turns import quick_turns
from tilewright.driver.program.kernel_process import (
    Answer,
    KernelProcess,
    Request,
    compile_jobs,
)
from tilewright.ir.target import Target

# Seconds after which a thread that waits for a process to start looks whether it is still needed.
_SOON = 0.02


@dataclass(frozen=True)
class Kernel:
    """A kernel that waits to be compiled: in this process (`here`), or in another, if there is a
    `request` for that; the answer is `taken`."""

    size: int  # of its text: the largest take longest to compile
    here: Callable[[], None]
    taken: Callable[[Answer], None]
    request: Request | None = None


class Compilers:
    """Kernels are begun by the caller's thread and by other processes, the largest first, so that
    all end at about the same time.

    Without other processes, threads turn LLVM text to objects while Python, on the caller's, writes
    more of it. The caller's counts among the jobs: with one more than cores, it would wait for its
    turn. Once all text is written, it compiles too.
    """

    def __init__(self, target: Target, processes: Sequence[KernelProcess] = ()) -> None:
        self._jobs = compile_jobs(target)
        self._pool = ThreadPoolExecutor(self._jobs - 1) if self._jobs > 1 else None
        self._going: list[tuple[Future[None], Callable[[], None]]] = []
        self._turns = quick_turns()
        self._changed = threading.Condition()
        # Under that lock: kernels that nobody has begun, how many other processes compile now, what
        # they answered, and whether more kernels may come.
        self._waiting: list[Kernel] = []
        self._away = 0
        self._answers: list[tuple[Kernel, Answer]] = []
        self._open = True
        for p in processes:
            threading.Thread(target=self._hand_over, args=(p,), daemon=True).start()

    def __enter__(self) -> Compilers:
        self._turns.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._open = False
            self._changed.notify_all()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._turns.__exit__(None, None, None)

    def add(self, kernel: Kernel) -> None:
        """It is begun in another process now, or here by `finish`."""
        with self._changed:
            self._waiting.append(kernel)
            self._changed.notify_all()

    def do(self, work: Callable[[], None]) -> None:
        """Work that is not Python's: on a thread, where no process uses its core."""
        if self._pool is None or self._away >= self._jobs - 1:
            work()
        else:
            self._going.append((self._pool.submit(work), work))

    def finish(self) -> None:
        """Begin whatever waits, and wait for all that was begun."""
        while True:
            while (kernel := self._begin(self._waiting)) is not None:
                kernel.here()
            self._finish_threads()
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or not self._away)
                if not self._waiting:
                    break
        for kernel, answer in self._answers:
            kernel.taken(answer)
        self._answers.clear()

    def _finish_threads(self) -> None:
        """Do what no thread has begun yet, the last first: threads take the first."""
        for going, work in reversed(self._going):
            if going.cancel():
                work()
        for going, _ in self._going:
            if not going.cancelled():
                going.result()
        self._going.clear()

    def _begin(self, among: Iterable[Kernel]) -> Kernel | None:
        with self._changed:
            found = max(among, key=lambda k: k.size, default=None)
            if found is not None:
                self._waiting.remove(found)
            return found

    def _hand_over(self, process: KernelProcess) -> None:
        """Kernels to a process, one at a time, until no more come."""
        while not process.is_ready(_SOON):
            if process.ended or not self._open:
                return process.give_back()
        while not process.ended and (kernel := self._begin_elsewhere()) is not None:
            assert kernel.request is not None
            answer = process.answer(kernel.request)
            with self._changed:
                self._away -= 1
                if answer is None:
                    self._waiting.append(replace(kernel, request=None))
                else:
                    self._answers.append((kernel, answer))
                self._changed.notify_all()
        process.give_back()

    def _begin_elsewhere(self) -> Kernel | None:
        """The next kernel for another process, once there is one; None when no more come."""
        with self._changed:
            while self._open:
                found = self._begin([k for k in self._waiting if k.request is not None])
                if found is not None:
                    self._away += 1
                    return found
                self._changed.wait()
        return None
