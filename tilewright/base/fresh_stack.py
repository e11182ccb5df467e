"""Long work in a thread of its own, for the sake of its empty stack.

CPython stores the frames of a thread in blocks of 16 KiB, about a hundred frames each. A call that
needs a new block takes it from the operating system, and its return gives the block back. Where a
compilation starts inside a deep stack (torch's capture is sixty frames deep), the end of a block
lies in the middle of its inner loops: every call there maps memory and every return unmaps it.
Compiling ResNet-50 took a third longer than in a new thread.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def on_fresh_stack(f: Callable[P, R]) -> Callable[P, R]:
    """The function, called in a thread of its own. What it raises is raised in the caller's, and
    an interrupt of the caller's is raised in it."""

    @wraps(f)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        results: list[R] = []
        problems: list[BaseException] = []
        context, done = copy_context(), threading.Event()

        def run() -> None:
            try:
                results.append(context.run(f, *args, **kwargs))
            except BaseException as problem:  # raised again below
                problems.append(problem)
            finally:
                done.set()

        thread = threading.Thread(target=run, name=f"tilewright {f.__name__}", daemon=True)
        thread.start()
        try:
            done.wait()
        except BaseException as interrupt:
            _raise_in(thread, type(interrupt))
            done.wait()
            raise
        if problems:
            raise problems[0]
        return results[0]

    return called


def _raise_in(thread: threading.Thread, kind: type[BaseException]) -> None:
    """At its next Python instruction; nothing happens where the thread has ended."""
    if thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident), ctypes.py_object(kind)
        )
