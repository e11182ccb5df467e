"""From something that torch.compile or tw.compile returned to the sessions behind it.

Dynamo keeps what it compiled by code object: the function's own, those of the functions it calls
where a graph breaks, and those in which it resumes after a break.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import torch
from torch._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._dynamo.external_utils import wrap_inline
from torch._dynamo.resume_execution import ContinueExecutionCache

from tilewright.base.errors import Invalid
from tilewright.driver.torch_api import Compiled
from tilewright.driver.torch_backend import Session, session_of


def sessions_of(compiled: Any) -> list[Session]:
    """Every session behind a compiled function or module, in the order of compilation."""
    if isinstance(compiled, Compiled):
        found = [compiled.session]
        if not compiled.units:
            raise Invalid(
                f"{compiled!r} has compiled nothing yet",
                hint="call it once, or give tw.compile example inputs",
            )
        return found
    sessions = {order: s for code in _codes(compiled) for order, s in _of_code(code, compiled)}
    if not sessions:
        raise Invalid(
            f"nothing that Tilewright compiled is behind this {type(compiled).__name__}",
            hint='pass what torch.compile(…, backend="tilewright") or tw.compile returned, '
            "after its first call",
        )
    return [sessions[order] for order in sorted(sessions)]


def _of_code(code: types.CodeType, compiled: Any) -> Iterator[tuple[tuple[int, int], Session]]:
    """Sessions with when they began: torch numbers frames, and the compilations of each."""
    entries = _debug_get_cache_entry_list(code)
    if code is wrap_inline(compiled).__code__:
        # Every module of torch's own classes runs in this frame: those that another call of
        # torch.compile left are left out, unless they serve this one too.
        own = [e for e in entries if e.backend is _backend(compiled)]
        entries = own or entries
    for entry in entries:
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
            own.extend(ContinueExecutionCache.cache.get(code, {}).values())
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
