"""Compiling in threads; the caller's own thread helps once it has nothing else to do."""

from __future__ import annotations

import threading

import pytest

from tilewright.base import knobs
from tilewright.driver.program.compilers import Compilers
from tilewright.targets import default


def test_the_caller_is_one_of_the_jobs() -> None:
    who: list[threading.Thread] = []
    helped = threading.Event()

    def waits() -> None:
        assert helped.wait(30), "nobody does the other work meanwhile"
        who.append(threading.current_thread())

    def helps() -> None:
        who.append(threading.current_thread())
        helped.set()

    with knobs.compile_jobs.override(2), Compilers(default()) as compilers:
        compilers.do(waits)
        compilers.do(helps)
        compilers.finish()
    assert who[0] is threading.current_thread()
    assert who[1] is not threading.current_thread()


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_everything_is_done_once_and_errors_come_out(jobs: int) -> None:
    done: list[int] = []

    def fails() -> None:
        raise ValueError("no code")

    with knobs.compile_jobs.override(jobs), Compilers(default()) as compilers:
        for k in range(20):
            compilers.do(lambda k=k: done.append(k))
        compilers.finish()
        assert sorted(done) == list(range(20))
        with pytest.raises(ValueError, match="no code"):
            compilers.do(fails)
            compilers.finish()
