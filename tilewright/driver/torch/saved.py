"""What `tw.compile` returned as a program that runs without torch.

Dynamo wrote code that takes the arguments apart, calls the graph and puts its results together. It
is run once with stand-ins for the arguments and for the graph, to see which argument became which
input and where each result went: that is what a file says about a call (runtime/signature.py).
"""

from __future__ import annotations

import ctypes
import dis
import gc
import inspect
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sympy
import torch
from torch.utils import _pytree as pytree

from tilewright.base.errors import Invalid, TilewrightError, Unsupported
from tilewright.capture.torch import captured as capture
from tilewright.capture.torch.captured import Captured, SymbolicScalar
from tilewright.driver.program.saved import with_weights
from tilewright.driver.torch.api import Compiled, Helpers
from tilewright.driver.torch.call import Unit
from tilewright.driver.torch.segment_runner import Specialised
from tilewright.driver.weights.given_up import require_elements
from tilewright.driver.weights.watch import address, known
from tilewright.ir import dim as D
from tilewright.ir.slots import Number, SymbolicInt, Value, symbol_from
from tilewright.ir.types import DTYPES, DType
from tilewright.runtime.numbers import FUNCTIONS
from tilewright.runtime.program import Program
from tilewright.runtime.program_data import Stored
from tilewright.runtime.program_file import SavedProgram
from tilewright.runtime.signature import (
    Argument,
    ArrayArgument,
    Constant,
    Expression,
    Fixed,
    Given,
    Held,
    Items,
    Leaf,
    Named,
    NumberArgument,
    Operation,
    Parameter,
    Scalar,
    Signature,
    Size,
    Tree,
    UnusedArgument,
)

# Of Dynamo's code: instructions and functions that change something besides its own variables
# (torch/_dynamo/side_effects.py writes them).
_CHANGES = {"STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "STORE_SUBSCR", "DELETE_SUBSCR"}
_CHANGING = {"__setattr__", "update", "extend", "append", "iter_next", "setstate"}
_CHANGING |= {"set_torch_function_mode_stack"}
_MISSING = object()
# The first of the integers that stand for those of the arguments, which no program has by chance.
_FIRST = 7_368_787


def saved(compiled: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SavedProgram:
    """The program that was compiled for arguments like these, or the only one."""
    if not isinstance(compiled, Compiled):
        raise Invalid(
            f"a {type(compiled).__name__} cannot be saved",
            hint="save what tw.compile or tw.compile_graph returned",
        )
    name = getattr(compiled.original, "__name__", type(compiled.original).__name__)
    entry, args, kwargs = compiled.entry_like(args, kwargs)
    unit = compiled.session.direct.get(str(entry.compile_id))
    if unit is None:
        raise Unsupported(
            f"{name} cannot be saved: it is not one graph that leaves its arguments as they are",
            hint="compile it under torch.no_grad(), without graph breaks, and so that it changes "
            "no argument and returns no view of one",
        )
    if _CHANGING & {*entry.code.co_names} or any(
        i.opname in _CHANGES for i in dis.get_instructions(entry.code)
    ):
        raise _changes(name, "the content of a list, a dictionary or an object")
    inner = _only_program(unit, name)
    seen = _observed(name, compiled, entry, unit, args, kwargs)
    made = _saved(name, unit.captured, inner, seen)
    tensors = [weakref.ref(x) for x in seen.results if isinstance(x, torch.Tensor)]
    del seen
    gc.collect()
    if any(x() is not None for x in tensors):
        raise _changes(name, "the attributes of an object")
    return made


def _changes(name: str, what: str) -> Unsupported:
    return Unsupported(
        f"{name} cannot be saved: besides giving results it changes {what}",
        hint="return the values instead",
    )


def _only_program(unit: Unit, name: str) -> Specialised:
    captured = unit.captured
    for call in captured.host_calls:
        raise Unsupported(
            f"{name} cannot be saved: {call.operator} runs in torch, because {call.why}",
            where=call.place,
            hint="write it with operators that have a native form",
        )
    if len(captured.steps) != 1 or len(unit.segments) != 1:
        raise Unsupported(f"{name} cannot be saved: it looks at results while it runs, in torch")
    found = unit.segments[0].specialised()
    whole = unit.segments[0].is_whole
    if not whole or not isinstance(found[0].program, Program):
        why = "it is compiled again for every size" if not whole else "it is interpreted"
        raise Unsupported(
            f"{name} cannot be saved: {why}", hint="compile it for fixed sizes (dynamic=False)"
        )
    return found[0]


# ---- what a call does, seen from outside


@dataclass
class _Seen:
    """A call of Dynamo's code with stand-ins."""

    parameters: list[tuple[str, str, Any]]  # name, kind, what was given
    inputs: list[Any]  # of the graph
    returned: Any
    results: list[Any]  # stand-ins for those of the graph
    real: dict[int, Any] = field(default_factory=dict)  # numbers by that which stands for them


class _Watching(Helpers):
    """Dynamo's functions; what they set on objects is undone afterwards."""

    def __init__(self) -> None:
        self.set: list[tuple[Any, str, Any, Any]] = []  # object, attribute, new and old value

    def object_setattr_ignore_descriptor(self, x: Any, name: str, value: Any) -> None:
        attributes = object.__getattribute__(x, "__dict__")
        self.set.append((x, name, value, attributes.get(name, _MISSING)))
        attributes[name] = value

    def undo(self) -> None:
        for x, name, _, old in reversed(self.set):
            attributes = object.__getattribute__(x, "__dict__")
            if old is _MISSING:
                del attributes[name]
            else:
                attributes[name] = old

    def changed(self, returned: Any, results: Sequence[Any]) -> str:
        """Where a result went besides what is returned. Plain values, such as a flag, are nothing
        that a file could set."""
        own = set(map(id, _containers(returned)))
        for x, name, value, _ in self.set:
            leaves = pytree.tree_leaves(value)
            if id(x) not in own and any(leaf is r for leaf in leaves for r in results):
                return f"{name} of a {type(x).__name__}"
        return ""


def _containers(value: Any) -> Iterator[Any]:
    yield value
    inside = value.values() if isinstance(value, Mapping) else value
    if isinstance(value, (Mapping, tuple, list)):
        for x in inside:
            yield from _containers(x)


def _observed(
    name: str,
    compiled: Compiled,
    entry: Any,
    unit: Unit,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> _Seen:
    real: dict[int, Any] = {}
    stand_ins: list[Any] = []

    def stand_in(x: Any) -> Any:
        """Numbers that differ from all others, by value and by identity."""
        if isinstance(x, bool) or not isinstance(x, (int, float)):
            return x
        made = type(x)(_FIRST + 2 * len(stand_ins))
        stand_ins.append(made)
        real[id(made)] = x
        return made

    args, kwargs = pytree.tree_map(stand_in, (args, kwargs))
    inputs: list[Any] = []
    results = [_result(k, r) for k, r in enumerate(unit.captured.results)]

    def graph(given: list[Any]) -> list[Any]:
        inputs.extend(given)
        return list(results)

    helpers = _Watching()
    run = compiled.runner(entry, graph, helpers)
    try:
        returned = run(compiled.original, args, kwargs)
    except TilewrightError:
        raise
    except Exception as problem:
        raise Unsupported(
            f"{name} cannot be saved: its results are used while it runs ({problem})"
        ) from None
    finally:
        helpers.undo()
    changed = helpers.changed(returned, results)
    if changed:
        raise _changes(name, changed)
    given = _parameters(compiled.original, args, kwargs)
    seen = _Seen(given, inputs, returned, results, real)
    seen.real[0] = stand_ins  # references: as long as their identities count
    return seen


def _result(k: int, r: Any) -> Any:
    """What stands for a result: something of its kind that nothing else is."""
    if isinstance(r, Value):
        return r.value
    if isinstance(r, SymbolicInt):
        return _FIRST + 2 * k + 1
    if isinstance(r, Number):
        return r.type(_FIRST + 2 * k + 1)
    return torch.empty(0, device="meta")


def _parameters(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[str, str, Any]]:
    """The arguments by the function's own names for them, where it has some."""
    try:
        known = inspect.signature(getattr(function, "forward", function))
        bound = known.bind(*args, **kwargs)
    except (TypeError, ValueError):
        return [("args", "VAR_POSITIONAL", args), ("kwargs", "VAR_KEYWORD", kwargs)]
    kinds = {name: p.kind.name for name, p in known.parameters.items()}
    return [(name, kinds[name], value) for name, value in bound.arguments.items()]


# ---- from that to a signature


class _Arguments:
    """The leaves of what a call gives, as arguments of the program."""

    def __init__(self, captured: Captured, seen: _Seen) -> None:
        self.seen = seen
        self.found: list[Argument] = []
        self.values: list[Any] = []
        self.taken: set[int] = set()  # inputs that arguments are
        self._inputs = list(zip(captured.arguments, seen.inputs, strict=True))

    def tree(self, value: Any, name: str) -> Tree:
        if isinstance(value, (tuple, list)):
            items = tuple(self.tree(x, f"{name}[{k}]") for k, x in enumerate(value))
            return Items(items, isinstance(value, list))
        if isinstance(value, Mapping):
            _require_words(value, name)
            return Named({k: self.tree(x, f"{name}[{k!r}]") for k, x in value.items()})
        if isinstance(value, torch.Tensor) or id(value) in self.seen.real:
            return self._leaf(value, name)
        if value is None or isinstance(value, (bool, int, float, str)):
            return Fixed(value)
        raise Unsupported(
            f"the argument {name} is a {type(value).__name__}, which a file cannot describe",
            hint="pass tensors and numbers, in tuples, lists and dictionaries",
        )

    def _leaf(self, value: Any, name: str) -> Tree:
        if any(value is x for x in self.values):
            raise Unsupported(
                f"{name} is the same tensor as another argument, and the program relies on it",
                hint="compile it with tensors of their own",
            )
        made = self._argument(value, name)
        if made is None and not isinstance(value, torch.Tensor):
            return Fixed(self.seen.real[id(value)])
        self.found.append(made or UnusedArgument(name))
        self.values.append(value)
        return Leaf(len(self.found) - 1)

    def _argument(self, value: Any, name: str) -> Argument | None:
        for k, (a, x) in enumerate(self._inputs):
            if x is value and a.kind == "tensor" and a.dtype is not None:
                self.taken.add(k)
                return ArrayArgument(name, a.slot, a.dtype, a.shape, a.stride, a.paired)
            if x is value and a.kind in ("int", "float"):
                self.taken.add(k)
                return NumberArgument(name, a.slot, a.value)
            # Dynamo makes tensors of floats.
            if isinstance(value, float) and _holds(x, value):
                self.taken.add(k)
                return NumberArgument(name, a.slot)
        return None


def _holds(x: Any, value: float) -> bool:
    is_number = isinstance(x, torch.Tensor) and x.ndim == 0 and x.dtype is torch.float64
    return is_number and x.device.type == "cpu" and x.item() == value


def _require_words(value: Mapping[Any, Any], name: str) -> None:
    for k in value:
        if not isinstance(k, str):
            raise Unsupported(f"{name} has the key {k!r}, and a file has words as keys only")


def _saved(name: str, captured: Captured, inner: Specialised, seen: _Seen) -> SavedProgram:
    program = inner.program
    assert isinstance(program, Program)
    given = _Arguments(captured, seen)
    parameters = tuple(Parameter(n, how, given.tree(x, n)) for n, how, x in seen.parameters)
    tensors: dict[str, Any] = {
        a.slot: x
        for k, (a, x) in enumerate(zip(captured.arguments, seen.inputs, strict=True))
        if k not in given.taken and a.kind in ("tensor", "float")
    }
    tensors |= captured.constants
    slots: list[str | None] = list(inner.labels)
    folded = [tensors[inner.labels[k]] for k in program.weights]
    data = with_weights(program, list(map(address, folded)), list(map(known, folded)))
    for k in set(program.weights) - set(program.kept):
        slots[k] = None
    arrays = tuple(
        Held(slot, _stored(tensors[slot], inner.dtypes[inner.labels.index(slot)], slot))
        for slot in dict.fromkeys(slots)
        if slot is not None and slot in tensors
    )
    segment = inner.segment
    signature = Signature(
        parameters,
        tuple(given.found),
        tuple(slots),
        segment.buffers,
        captured.results,
        _returned(seen.returned, seen, given),
        arrays,
        segment.checks,
        segment.watched,
        tuple(_scalar(s, captured) for s in captured.scalars),
        captured.seed,
    )
    _require_sizes(name, program, signature)
    return SavedProgram(name, data, signature)


def _stored(x: Any, dtype: DType, name: str) -> Stored:
    """The memory of a tensor, from its first element to its last."""
    if isinstance(x, float):
        return Stored(DTYPES["f64"], np.array(x))
    require_elements(x)
    if x.device.type != "cpu":
        raise Invalid(f"{name} is a tensor on {x.device}", hint="call it once with CPU tensors")
    reach = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    size = reach * x.element_size() if x.numel() else 0
    data = np.frombuffer(bytearray(ctypes.string_at(address(x), size)), np.uint8)
    return Stored(dtype, data.view(dtype.memory))


def _returned(value: Any, seen: _Seen, given: _Arguments) -> Tree:
    for k, r in enumerate(seen.results):
        if value is r and value is not None and not isinstance(value, (bool, str)):
            return Leaf(k)
    for k, x in enumerate(given.values):
        if value is x:
            return Given(k)
    if id(value) in seen.real:
        return Fixed(seen.real[id(value)])
    if isinstance(value, (tuple, list)):
        items = tuple(_returned(x, seen, given) for x in value)
        return Items(items, isinstance(value, list))
    if isinstance(value, Mapping):
        _require_words(value, "the result")
        return Named({k: _returned(x, seen, given) for k, x in value.items()})
    if value is None or isinstance(value, (bool, int, float, str)):
        return Fixed(value)
    raise Unsupported(
        f"a result is a {type(value).__name__}, which a file cannot describe",
        hint="return tensors that the function computes, in tuples, lists and dictionaries",
    )


def _require_sizes(name: str, program: Program, s: Signature) -> None:
    """Every symbol of the program gets its value from a call."""
    known = {x.symbol for x in s.scalars}
    for a in s.arguments:
        dims = a.shape if isinstance(a, ArrayArgument) else (getattr(a, "dim", None),)
        known |= {found[0] for found in map(symbol_from, dims) if found is not None}
    for symbol in program.dims:
        if symbol not in known:
            raise Unsupported(
                f"{name} cannot be saved: no argument's size determines {symbol}",
                hint="compile it for fixed sizes (dynamic=False)",
            )


def _scalar(s: SymbolicScalar, captured: Captured) -> Scalar:
    numbers = {a.symbol: a for a in captured.arguments if a.symbol is not None}
    expression = _expression(s.expression, s.dims, numbers)
    if s.slot.startswith("dim:"):
        return Scalar(expression, symbol=s.slot.removeprefix("dim:"))
    return Scalar(expression, slot=s.slot)


def _expression(
    e: Any, dims: Mapping[str, D.Dim], numbers: Mapping[str, capture.Argument]
) -> Expression:
    """An expression of torch's as data."""
    if isinstance(e, sympy.Symbol):
        if str(e) in dims:
            return Size(dim=dims[str(e)])
        if str(e) in numbers:
            return Size(slot=numbers[str(e)].slot)
    elif isinstance(e, sympy.Integer):
        return Constant(int(e), whole=True)
    elif isinstance(e, sympy.Rational):
        return Operation("IntTrueDiv", (Constant(e.p, True), Constant(e.q, True)))
    elif isinstance(e, sympy.Float):
        return Constant(float(e))
    elif type(e).__name__ in FUNCTIONS:
        operands: Sequence[Any] = e.args
        return Operation(type(e).__name__, tuple(_expression(x, dims, numbers) for x in operands))
    raise Unsupported(f"a number is computed as {e}, which a file cannot describe")
