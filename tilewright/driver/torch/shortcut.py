"""A call of a module as it was, without the code that Dynamo wrote for it.

That code fetches the weights, perhaps two hundred, from module after module, calls the graph and
puts its results together. While nothing of the module has changed it fetches the same tensors, so
here they are known: a call passes what its arguments hold, and returns results in the same form.
"""

from __future__ import annotations

import dis
import re
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilewright.driver.torch.call import Unit
from tilewright.driver.torch.unchanged import Unchanged

Call = Callable[[tuple[Any, ...], dict[str, Any]], Any]
Record = Callable[[Callable[[list[Any]], list[Any]]], Any]

# What arguments hold, as an expression.
_ARGUMENT = re.compile(r"L\['(args|kwargs)'\]((?:\[(?:\d+|'\w+')\])+)")
# Code that only fetches, calls and puts together; by version of Python some have other names.
_HARMLESS = re.compile(
    r"LOAD_\w+|BUILD_\w+|STORE_FAST\w*|DELETE_FAST|UNPACK_SEQUENCE|BINARY_SUBSCR|BINARY_OP"
    r"|LIST_EXTEND|CALL|CALL_FUNCTION_EX|PRECALL|PUSH_NULL|POP_TOP|COPY|COPY_FREE_VARS|SWAP"
    r"|MAKE_CELL|RESUME|NOP|CACHE|EXTENDED_ARG|KW_NAMES|RETURN_VALUE|RETURN_CONST|NOT_TAKEN"
)
# What records a span before the graph is called.
_SPANS = ("record_pregraph_bytecode_enter", "record_pregraph_bytecode_exit")


def shortcut(
    code: types.CodeType,
    unit: Unit,
    sources: Sequence[str],
    unchanged: Unchanged,
    seen: dict[str, Any],
    record: Record,
) -> Call | None:
    """Does what Dynamo's code does for calls that `unchanged` fits. `record` runs that code with a
    function in place of the graph. None: this code does more."""
    if not _is_harmless(code) or len(sources) != len(unit.captured.arguments):
        return None
    results = [object() for _ in unit.captured.results]
    taken: list[Any] = []

    def graph(arguments: list[Any]) -> list[Any]:
        taken.extend(arguments)
        return list(results)

    try:
        returned = record(graph)
    except Exception:  # it looks into results
        return None
    form = _form(returned, {id(x): k for k, x in enumerate(results)})
    given = [_given(s, x, unchanged, seen) for s, x in zip(sources, taken, strict=True)]
    if form is None or any(x is None for x in given):
        return None
    return unit.of_call([x for x in given if x is not None], form, unchanged.hold)


def _is_harmless(code: types.CodeType) -> bool:
    """Straight code that changes nothing, and calls nothing but the graph."""
    names = [i.opname for i in dis.get_instructions(code)]
    calls = sum(n in ("CALL", "CALL_FUNCTION_EX") for n in names)
    known = 1 + sum(n in code.co_names for n in _SPANS)
    return calls == known and all(map(_HARMLESS.fullmatch, names))


def _given(
    source: str, value: Any, unchanged: Unchanged, seen: dict[str, Any]
) -> str | torch.Tensor | None:
    """An argument of the graph: an expression of what a call passes, or a tensor of the module."""
    found = _ARGUMENT.fullmatch(source)
    if found is not None:
        same = eval(source, {"L": seen}) is value
        return f"{found[1]}{found[2]}" if same else None
    known = source in unchanged.sources and isinstance(value, torch.Tensor)
    return value if known and eval(source, {"L": seen}) is value else None


def _form(x: Any, results: dict[int, int]) -> str | None:
    """How something is made of results, as an expression with `{0}` for the first of them. None
    where there is anything else in it."""
    if id(x) in results:
        return f"{{{results[id(x)]}}}"
    if x is None:
        return "None"
    if type(x) is dict:
        parts = [_form(y, results) for y in x.values()]
        if None in parts or not all(type(k) is str and k.isidentifier() for k in x):
            return None
        pairs = ", ".join(f"{k!r}: {y}" for k, y in zip(x, parts, strict=True))
        return f"{{{{{pairs}}}}}"
    if type(x) not in (tuple, list):
        return None
    parts = [_form(y, results) for y in x]
    if None in parts:
        return None
    inside = "".join(f"{y}, " for y in parts)
    return f"({inside})" if type(x) is tuple else f"[{inside}]"
