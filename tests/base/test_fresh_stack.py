"""Work in a thread of its own: results, errors, context and interrupts are those of a call."""

from __future__ import annotations

import signal
import threading
import time
from contextvars import ContextVar

import pytest

from tilewright.base.fresh_stack import on_fresh_stack

NUMBER: ContextVar[int] = ContextVar("number", default=0)


def test_results_and_context_are_the_callers() -> None:
    @on_fresh_stack
    def work(a: int, b: int = 1) -> tuple[int, int, int]:
        return a + b, NUMBER.get(), threading.get_ident()

    token = NUMBER.set(7)
    try:
        total, number, thread = work(2, b=3)
    finally:
        NUMBER.reset(token)
    assert (total, number) == (5, 7)
    assert thread != threading.get_ident()


def test_an_error_is_the_callers_with_its_place() -> None:
    @on_fresh_stack
    def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        work()
    assert caught.traceback[-1].name == "work"


def test_an_interrupt_ends_the_work() -> None:
    ended = threading.Event()

    @on_fresh_stack
    def work() -> None:
        try:
            while True:
                time.sleep(0.005)
        finally:
            ended.set()

    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            work()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    assert ended.is_set()
