"""A process that compiles kernels for another one, which started it.

Python runs one thread at a time, so with threads alone a program is compiled no faster than its
schedules are made. A group prints and parses, and what becomes of it is text and bytes: another
process can make it as well. This one reads requests from its input and writes answers to its
output. It ends when its input is closed, or when nothing was requested for a while. It never
imports torch.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import IO, Any

from tilewright.base.errors import TilewrightError
from tilewright.driver.program.kernel_process import READY, Answer, Request, Scheduled, has_more
from tilewright.kernel.group import Group
from tilewright.kernel.legal import legalise
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import Trace, print_trace
from tilewright.kernel.steps.parallel import Parallel
from tilewright.kernel.text import parse_group
from tilewright.llvm.emit import emit
from tilewright.llvm.objects import compile_object
from tilewright.targets import families
from tilewright.tune.choose import EARLY, RECORDS, Chooser, Chosen, Default, Ranked

_CODE = "tilewright.driver.program.grid_code"  # of GPUs: loaded where there is one

# Seconds without a request after which the process ends: another program may follow soon.
_IDLE = 30.0

# What chooses a schedule by its group and target alone, in any process.
CHOOSERS: dict[str, Chooser] = {c.name: c for c in (Default(), EARLY, RECORDS, Ranked())}


def scheduled(trace: Trace, found: Chosen | None) -> Scheduled:
    """`found` is None where the user gave the trace."""
    parallel = any(isinstance(step, Parallel) for step in trace)
    if found is None:
        return Scheduled(print_trace(trace), parallel)
    why = found.nest.unscheduled
    return Scheduled(print_trace(trace), parallel, str(found), found.considered, found.final, why)


def answer(request: Request) -> Answer:
    """The same as the process that requests it would make."""
    began = time.perf_counter()
    group, target = replace(parse_group(request.text), name=request.symbol), request.target
    try:
        found = _chosen(request, group)
        if target.grid is None:
            image = compile_object(emit(legalise(found.nest, target), target), target)
        else:
            image = import_module(_CODE).grid_image(found.nest, group, target, request)
    except TilewrightError as why:
        if request.choices is None:
            raise
        return Answer(Scheduled("", parallel=False), b"", time.perf_counter() - began, why.what)
    return Answer(scheduled(found.trace, found), image, time.perf_counter() - began)


def _chosen(request: Request, group: Group) -> Chosen:
    if request.choices is None:
        return CHOOSERS[request.chooser].choose(group, request.target)
    return Chosen(*default_schedule(group, request.target, request.choices))


def serve(
    requests: IO[bytes], answers: IO[bytes], answered: Callable[[Any], object] = answer
) -> None:
    """Answer until there are no more requests. Where a kernel cannot be compiled the answer is
    None: the process that requested it tries the same, and reports what is wrong with it."""
    _send(answers, READY)
    while _waits(requests):
        try:
            request = pickle.load(requests)
        except EOFError:
            return
        try:
            made = answered(request)
        except Exception:
            made = None
        _send(answers, made)


def _send(answers: IO[bytes], what: object) -> None:
    pickle.dump(what, answers)
    answers.flush()


def _waits(requests: IO[bytes]) -> bool:
    """Is there a request, or the end of all? The collector has its turn while there is none."""
    if has_more(requests, 1.0):
        return True
    gc.collect()
    return has_more(requests, _IDLE)


def main(answered: Callable[[Any], object] = answer) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the process that started this one
    gc.disable()
    families()  # declares their instructions
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anything else prints is no answer
    try:
        serve(requests, answers, answered)
    except BrokenPipeError:
        pass
    finally:
        sys.stderr.flush()
        os._exit(0)  # nothing has to be tidied up, and LLVM takes its time for it
