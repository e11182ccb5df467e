"""From something that torch.compile or tw.compile returned to the sessions behind it.

Dynamo stores what it compiled by code object: the function's own, those of the functions it calls
where a graph breaks, and those in which it resumes after a break.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._dynamo.external_utils import wrap_inline
from torch._dynamo.resume_execution import ContinueExecutionCache
from torch._dynamo.utils import get_compilation_metrics, graph_break_reasons

from tilewright.base.errors import Invalid
from tilewright.base.events import Event
from tilewright.capture.torch.places import place_in_frames
from tilewright.driver.torch.api import Compiled
from tilewright.driver.torch.backend import Session, break_event, session_of

_MODULE_CALLS = torch.nn.modules.module.__file__


def sessions_of(compiled: Any) -> list[Session]:
    """Every session behind a compiled function or module, in the order of compilation."""
    found = _sessions(compiled)
    if not found:
        raise _nothing(compiled)
    return found


def history_of(compiled: Any) -> tuple[list[Session], list[Event]]:
    """The sessions, and why torch passed parts of the function, or all of it, to no backend."""
    sessions, breaks = _sessions(compiled), _breaks(compiled)
    if not sessions and not breaks:
        raise _nothing(compiled)
    return sessions, breaks


def _sessions(compiled: Any) -> list[Session]:
    if isinstance(compiled, Compiled):
        return [compiled.session] if compiled.called or compiled.units else []
    sessions = {order: s for code in _codes(compiled) for order, s in _of_code(code, compiled)}
    return [sessions[order] for order in sorted(sessions)]


def _nothing(compiled: Any) -> Invalid:
    if isinstance(compiled, Compiled):
        return Invalid(
            f"{compiled!r} has compiled nothing yet",
            hint="call it once, or give tw.compile example inputs",
        )
    return Invalid(
        f"nothing that Tilewright compiled is behind this {type(compiled).__name__}",
        hint='pass what torch.compile(…, backend="tilewright") or tw.compile returned, '
        "after its first call",
    )


def _breaks(compiled: Any) -> list[Event]:
    """Torch keeps a record of its latest compilations, those that failed among them."""
    codes = list(_codes(compiled.original if isinstance(compiled, Compiled) else compiled))
    known = {(c.co_name, c.co_filename, c.co_firstlineno) for c in codes}
    found: dict[tuple[str, str | None], Event] = {}
    for m in get_compilation_metrics():
        if m.fail_reason and (m.co_name, m.co_filename, m.co_firstlineno) in known:
            what = str(m.fail_reason).strip().splitlines()[0]
            file, line = m.fail_user_frame_filename, m.fail_user_frame_lineno
            where = f"{file}:{line}" if file else f"{m.co_filename}:{m.co_firstlineno}"
            found[what, where] = break_event(
                str(m.fail_reason), where, f"{m.co_name} runs in eager: "
            )
    for c in codes:
        if c.co_flags & inspect.CO_GENERATOR and not isinstance(compiled, Compiled):
            what = "torch.compile leaves generator functions to eager"
            where = f"{c.co_filename}:{c.co_firstlineno}"
            found[what, where] = break_event(what, where)
    if not isinstance(compiled, Compiled):  # it hears of these itself
        for reason in graph_break_reasons:
            root = next((f for f in reason.user_stack if f.filename != _MODULE_CALLS), None)
            if root is None or not any(_holds(c, root.filename, root.lineno) for c in codes):
                continue
            event = break_event(str(reason.reason), place_in_frames(reason.user_stack))
            found.setdefault((event.message, event.where), event)
    return list(found.values())


def _holds(code: types.CodeType, file: str, line: int | None) -> bool:
    return code.co_filename == file and any(line == n for *_, n in code.co_lines())


def _of_code(code: types.CodeType, compiled: Any) -> Iterator[tuple[tuple[int, int], Session]]:
    """Sessions with when they began: torch numbers frames, and the compilations of each."""
    entries = _debug_get_cache_entry_list(code)
    if code is wrap_inline(compiled).__code__:
        # Every module of torch's own classes runs in this frame: those that another call of
        # torch.compile left are left out, unless they serve this one too.
        own = [e for e in entries if e.backend is _backend(compiled)]
        entries = own or entries
    for entry in entries:
        if not any(name.startswith("__compiled_fn") for name in entry.code.co_names):
            continue  # no graph; after torch._dynamo.reset its number may be that of an older one
        made = entry.compile_id
        session = session_of(made)
        if session is not None:
            yield (made.frame_id or 0, made.frame_compile_id or 0), session


def _backend(compiled: Any) -> Any:
    """What torch.compile was given, under the layers it put around it."""
    found: Any = getattr(getattr(compiled, "dynamo_ctx", None), "callback", None)
    while hasattr(found, "_torchdynamo_orig_backend"):
        found = found._torchdynamo_orig_backend
    return found


def _codes(compiled: Any) -> Iterator[types.CodeType]:
    """Code objects that compiling this may have left entries for."""
    if isinstance(compiled, torch.nn.Module):
        inner = getattr(compiled, "_orig_mod", compiled)
        roots: list[Any] = [type(m).forward for m in inner.modules()]
        roots.append(getattr(compiled.forward, "_torchdynamo_orig_callable", None))
    else:
        roots = [getattr(compiled, "_torchdynamo_orig_callable", compiled)]
    seen: set[types.CodeType] = set()
    while roots:
        function = roots.pop()
        function = getattr(function, "__func__", function)
        if not isinstance(function, types.FunctionType) or function.__code__ in seen:
            continue
        seen.add(function.__code__)
        own = [function.__code__]
        while own:
            code = own.pop()
            yield code
            resumed = ContinueExecutionCache.cache.get(code, {}).values()
            own.extend(c for c in resumed if c not in seen)  # a loop resumes in itself
            seen.update(resumed)
        # Where the graph breaks at a call, Dynamo compiles the called function by itself.
        if any(True for _ in _debug_get_cache_entry_list(function.__code__)):
            roots.extend(_called(function))


def _called(function: types.FunctionType) -> Iterator[Any]:
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield function.__globals__[name]
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue
