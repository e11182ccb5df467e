"""How Dynamo traces for our backend, whoever called torch.compile.

A backend is given graphs, and Dynamo's settings decide before that what gets into them. So frames
that are compiled for this backend, and no others, are traced under settings of its own: Dynamo goes
into recurrent layers and into what stands in the place of some of torch's functions, and operators
stay in the graph where only data decides the size of a result. The last holds where nothing has to
be assumed about such a size: other frames are traced again as the user's settings say. Guards of
our frames are not timed, and the names of functions around their lines not looked up, for a log
that nobody reads; nor do their calls mark for the profiler how arguments were fetched.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any
from weakref import WeakSet

import sympy
from torch._dynamo import config as dynamo_config
from torch._dynamo import guards, symbolic_convert
from torch._dynamo.exc import RestartAnalysis, SkipFrame, UnspecializeRestartAnalysis
from torch._dynamo.symbolic_convert import InstructionTranslator

from tilewright.base import knobs
from tilewright.capture.torch.recurrent import recurrent_layers
from tilewright.capture.torch.substitutes import substitutes
from tilewright.capture.torch.traced_loops import one_step_for_all
from tilewright.driver.torch.quick_torch import leave_out

_MARK = "_traces_for_tilewright"
_TIMING = "profile_guard_manager"
_NAMING = "get_funcname"
_MARKS = "record_runtime_overhead"
# Code of frames in which something would have to be assumed about sizes that data decides.
_as_the_user_says: WeakSet[Any] = WeakSet()
# Do sizes that data decides stay in the graph that is traced now because of us?
_kept: ContextVar[bool] = ContextVar("_kept", default=False)


class _Last(threading.local):
    ours = False


_last = _Last()  # the frame that this thread traced last


class SizesAssumed(Exception):
    """A graph holds only for some of the sizes that data may decide."""


def trace_for(is_ours: Callable[[Any], bool]) -> None:
    """From now on frames for backends of which `is_ours` holds are traced so."""
    if hasattr(InstructionTranslator, _MARK):
        return
    setattr(InstructionTranslator, _MARK, True)
    theirs, run = InstructionTranslator.__init__, InstructionTranslator.run
    takes = inspect.signature(theirs)

    @wraps(theirs)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        given = takes.bind(self, *args, **kwargs).arguments
        if not is_ours(innermost(given["compiler_fn"])):
            return theirs(self, *args, **kwargs)
        with _data_sizes(_ask_for_sizes(given["f_code"], given["one_graph"])):
            return theirs(self, *args, **kwargs)

    @wraps(run)
    def traced(self: Any) -> None:
        _last.ours = is_ours(innermost(self.output.compiler_fn))
        if not _last.ours:
            return run(self)
        asked = _ask_for_sizes(self.f_code, self.one_graph)
        with (
            recurrent_layers(),
            substitutes(),
            _data_sizes(asked),
            _unmarked(),
            one_step_for_all(self) as loops,
        ):
            try:
                return run(self)
            except (RestartAnalysis, SkipFrame):
                raise
            except Exception:
                written_out = loops is not None and loops.refused
                if not written_out and not (asked and has_data_sizes(self.output.shape_env)):
                    raise
        if loops is not None and written_out:
            loops.refused = False
            raise UnspecializeRestartAnalysis(restart_reason="steps of a loop")
        _as_the_user_says.add(self.f_code)
        raise UnspecializeRestartAnalysis(restart_reason="sizes that data decides")

    setattr(InstructionTranslator, "__init__", made)  # noqa: B010
    setattr(InstructionTranslator, "run", traced)  # noqa: B010
    if timing := getattr(guards, _TIMING, None):
        setattr(guards, _TIMING, untimed(timing))
    if naming := getattr(symbolic_convert, _NAMING, None):
        setattr(symbolic_convert, _NAMING, unnamed(naming))
    leave_out(lambda: _last.ours)


def untimed(timing: Callable[..., float]) -> Callable[..., float]:
    """What times the guards of a trace, which flushes the processor's caches for it and takes as
    long as a small program does to compile: not of our frames, unless guards are logged."""

    @wraps(timing)
    def called(*args: Any) -> float:
        logged = guards.guards_log.isEnabledFor(logging.DEBUG)
        return timing(*args) if logged or not _last.ours else 0.0

    return called


def unnamed(naming: Callable[..., str | None]) -> Callable[..., str | None]:
    """What finds the function around a line that is traced, for a log, by reading the whole of its
    file (0.4 s for torch's functional.py): not of our frames, unless such lines are logged."""

    @wraps(naming)
    def called(*args: Any) -> str | None:
        logs = (getattr(symbolic_convert, f"trace_{what}_log", None) for what in ("call", "source"))
        logged = any(log is not None and log.isEnabledFor(logging.DEBUG) for log in logs)
        return naming(*args) if logged or not _last.ours else None

    return called


def require_any_size(shape_env: Any) -> None:
    """Refuses a graph in which something was assumed about sizes that data decides, where they are
    in it only because of us. A least or a largest size is what an operator requires of it in eager
    too. That two are equal is an assumption: in eager one of them may be 1."""
    if not _kept.get() or shape_env is None:
        return
    every = (x.expr for found in shape_env.deferred_runtime_asserts.values() for x in found)
    if not all(isinstance(x, (sympy.Ge, sympy.Gt, sympy.Le, sympy.Lt)) for x in every):
        raise SizesAssumed


def kept_for_us() -> bool:
    """Might the frame that is traced now be traced again without sizes that data decides?"""
    return _kept.get()


def innermost(backend: Any) -> Any:
    """What torch.compile was given, under the layers that it put around it."""
    while True:
        if hasattr(backend, "_torchdynamo_orig_backend"):
            backend = backend._torchdynamo_orig_backend
        elif hasattr(backend, "compiler_fn"):
            backend = backend.compiler_fn
        else:
            return backend


def _ask_for_sizes(code: Any, one_graph: bool) -> bool:
    """Where the user asked for one graph, or for such sizes, they are there anyway."""
    theirs = one_graph or dynamo_config.capture_dynamic_output_shape_ops
    return knobs.data_sizes.get() and not theirs and code not in _as_the_user_says


@contextmanager
def _data_sizes(asked: bool) -> Iterator[None]:
    if not asked:
        yield
        return
    before = _kept.set(True)
    try:
        with dynamo_config.patch(capture_dynamic_output_shape_ops=True):
            yield
    finally:
        _kept.reset(before)


@contextmanager
def _unmarked() -> Iterator[None]:
    """Calls of what is traced inside do not tell the profiler when they have fetched arguments:
    two calls of Python that cost as much as all guards of a small function."""
    if not hasattr(dynamo_config, _MARKS):
        yield
        return
    with dynamo_config.patch({_MARKS: False}):
        yield


def has_data_sizes(shape_env: Any) -> bool:
    """Does data decide a size of what is traced?"""
    known = () if shape_env is None else shape_env.var_to_range
    return any(shape_env.is_unbacked_symint(s) for s in known)
