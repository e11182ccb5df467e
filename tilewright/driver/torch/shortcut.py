"""A call of a module as it was, without the code that Dynamo wrote for it.

That code fetches the weights, perhaps two hundred, from module after module, calls the graph and
puts its results together. While nothing of the module has changed it fetches the same tensors, so
here they are known: a call passes what its arguments hold, and returns results in the same form.
What that code sets to constants (a model may note that it is being compiled) is set here too.
"""

from __future__ import annotations

import dis
import re
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo import utils

from tilewright.driver.torch.call import Unit
from tilewright.driver.torch.unchanged import Unchanged

Call = Callable[[tuple[Any, ...], dict[str, Any]], Any]
# Given what stands for the graph, for a value of a name, and for Dynamo's functions.
Record = Callable[[Callable[[list[Any]], list[Any]], Callable[[Any, str], Any], Any], Any]

# What arguments hold, as an expression.
_ARGUMENT = re.compile(r"L\['(args|kwargs)'\]((?:\[(?:\d+|'\w+')\])+)")
# Sizes of a tensor that an argument holds.
_SIZE = re.compile(_ARGUMENT.pattern + r"\.(?:size|stride)\(\)\[\d+\]")
# Code that only fetches, calls, puts together and sets attributes; by version of Python some have
# other names.
_HARMLESS = re.compile(
    r"LOAD_\w+|BUILD_\w+|STORE_ATTR|STORE_FAST\w*|DELETE_FAST|UNPACK_SEQUENCE|BINARY_SUBSCR|BINARY_OP"
    r"|LIST_EXTEND|CALL|CALL_FUNCTION_EX|PRECALL|PUSH_NULL|POP_TOP|COPY|COPY_FREE_VARS|SWAP"
    r"|MAKE_CELL|RESUME|NOP|CACHE|EXTENDED_ARG|KW_NAMES|RETURN_VALUE|RETURN_CONST|NOT_TAKEN"
)
# The function of Dynamo's that sets an attribute of an object whatever its class says.
_SET_OWN = "object_setattr_ignore_descriptor"


def shortcut(
    code: types.CodeType,
    unit: Unit,
    sources: Sequence[str],
    unchanged: Unchanged,
    seen: dict[str, Any],
    record: Record,
) -> Call | None:
    """Does what Dynamo's code does for calls that `unchanged` fits. `record` runs that code with
    others in place of the graph and of all that it names. None: this code does more."""
    names = [i.opname for i in dis.get_instructions(code)]
    if not all(map(_HARMLESS.fullmatch, names)) or len(sources) != len(unit.captured.arguments):
        return None
    results = [object() for _ in unit.captured.results]
    taken: list[Any] = []
    effects = _Effects()

    def graph(arguments: list[Any]) -> list[Any]:
        effects.calls += 1
        taken.extend(_value(x) for x in arguments)
        return list(results)

    try:
        returned = record(graph, effects.fetched, _Helpers(effects))
    except Exception:  # it looks into results, or does something else with what it fetches
        return None
    # Straight code makes every call that is in it.
    if sum(n in ("CALL", "CALL_FUNCTION_EX") for n in names) != effects.calls:
        return None
    form = _form(returned, {id(x): k for k, x in enumerate(results)})
    given = [_given(s, x, unchanged, seen) for s, x in zip(sources, taken, strict=True)]
    if form is None or any(x is None for x in given) or not effects.constant:
        return None
    found = [x for x in given if x is not None]
    return unit.of_call(found, form, unchanged.hold, effects.lines(), effects.names)


class _Effects:
    """What code calls and sets, and the names through which it reaches that."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"set_own": getattr(utils, _SET_OWN, None)}
        self.calls = 0
        self.set: list[tuple[str, Any]] = []  # how, and to what

    def fetched(self, value: Any, name: str) -> _Fetched:
        self.names[name] = value
        return _Fetched(self, value, name)

    @property
    def constant(self) -> bool:
        """Only constants are set, and what is fetched anew in every call."""
        kinds = (type(None), bool, int, str, _Fetched)
        return all(type(x) in kinds for _, x in self.set)

    def lines(self) -> list[str]:
        values = [_text(x) if type(x) is _Fetched else repr(x) for _, x in self.set]
        first = [f"v{k} = {x}" for k, x in enumerate(values)]
        return [*first, *(how.format(f"v{k}") for k, (how, _) in enumerate(self.set))]


class _Helpers:
    """Dynamo's functions, as far as they are known here."""

    def __init__(self, effects: _Effects) -> None:
        self._effects = effects

    def record_pregraph_bytecode_enter(self) -> None:
        self._effects.calls += 1

    def record_pregraph_bytecode_exit(self, span: Any) -> None:
        self._effects.calls += 1

    def call_size(self, x: Any, axis: int) -> int:
        self._effects.calls += 1
        return _value(x).size(axis)

    def call_stride(self, x: Any, axis: int) -> int:
        self._effects.calls += 1
        return _value(x).stride(axis)

    def object_setattr_ignore_descriptor(self, place: Any, name: str, value: Any) -> None:
        self._effects.calls += 1
        self._effects.set.append((f"set_own({_text(place)}, {name!r}, {{}})", value))


class _Fetched:
    """A value that code fetches while it is recorded: so is all that it fetches from there."""

    __slots__ = ("_parts",)

    def __init__(self, effects: _Effects, value: Any, text: str) -> None:
        _PARTS.__set__(self, (effects, value, text))

    def __getattribute__(self, name: str) -> _Fetched:
        effects, value, text = _PARTS.__get__(self)
        return _Fetched(effects, getattr(value, name), f"{text}.{name}")

    def __getitem__(self, key: Any) -> _Fetched:
        effects, value, text = _PARTS.__get__(self)
        if type(key) not in (int, str):
            raise TypeError("this key is no constant")
        return _Fetched(effects, value[key], f"{text}[{key!r}]")

    def __setattr__(self, name: str, value: Any) -> None:
        effects, _, text = _PARTS.__get__(self)
        effects.set.append((f"{text}.{name} = {{}}", value))


_PARTS: Any = _Fetched.__dict__["_parts"]


def _value(x: Any) -> Any:
    return _PARTS.__get__(x)[1] if type(x) is _Fetched else x


def _text(x: _Fetched) -> str:
    return _PARTS.__get__(x)[2]


def _given(
    source: str, value: Any, unchanged: Unchanged, seen: dict[str, Any]
) -> str | torch.Tensor | None:
    """An argument of the graph: an expression of what a call passes, or a tensor of the module."""
    found = _ARGUMENT.fullmatch(source)
    if found is not None:
        same = eval(source, {"L": seen}) is value
        return f"{found[1]}{found[2]}" if same else None
    found = _SIZE.fullmatch(source)
    if found is not None:
        same = type(value) is int and eval(source, {"L": seen}) == value
        return source.replace(f"L['{found[1]}']", found[1], 1) if same else None
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
