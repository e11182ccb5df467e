"""What Python knows while Dynamo traces: what a step of a loop changes, and what is read later.

Whatever a step changes of variables that were there before is found by comparing all of them, with
what they hold, before and after; what nobody thought of is a change that is not understood.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.variables.base import AttributeMutationNew, MutationType, VariableTracker
from torch._dynamo.variables.lazy import LazyVariableTracker
from torch._dynamo.variables.misc import NewGlobalVariable

# Names and places of variables, and what Dynamo finds out about them when it is first asked.
_SAID = {"source", "source_location", "user_code_variable_name", "_is_name_set", "_tensor_var"}
_ENDS = ("RETURN", "RERAISE", "RAISE")


class State:
    """All variables that can be reached now, with what they hold."""

    def __init__(self, tx: Any) -> None:
        self.tx = tx
        self.seen: dict[int, tuple[VariableTracker, dict[str, Any]]] = {}
        self.frames = _frames(tx)
        self.effects = _effects(tx)
        self.settings = _settings(tx)
        self.held: dict[int, VariableTracker] = {}  # those that Python's variables hold
        noted, attributes = self.effects["known"], self.effects["attributes"]
        waiting = [(noted, False), *((x, True) for x in (_roots(tx), self.frames, attributes))]
        while waiting:
            found, held = waiting.pop()
            for x in _variables(found):
                if held:
                    self.held[id(x)] = x
                if id(x) not in self.seen:
                    self.seen[id(x)] = x, _contents(x)
                    waiting.append((self.seen[id(x)][1], True))

    def changed(self) -> Iterator[tuple[Any, str]]:
        """(variable, name of what it holds) of what has changed since; (None, what) of the rest."""
        for x, before in self.seen.values():
            after = _contents(x)
            for name in before.keys() | after.keys():
                if name not in before or name not in after or not _same(before[name], after[name]):
                    yield x, name
        if not _same(self.settings, _settings(self.tx)):
            yield None, "a setting of torch"
        if not _same(self.frames, _frames(self.tx)):
            yield None, "a function that calls this one"
        yield from self._changed_effects()

    def _changed_effects(self) -> Iterator[tuple[Any, str]]:
        """Attributes that are set, and objects that Dynamo met in the step and that it changes."""
        before, after = self.effects, _effects(self.tx)
        for x, held in after["attributes"]:
            was = next((h for y, h in before["attributes"] if y is x), {})
            of_step = isinstance(x.mutation_type, AttributeMutationNew) and id(x) not in self.seen
            if (not of_step or isinstance(x, NewGlobalVariable)) and not _same(was, held):
                yield x, "an attribute"
        for x in after["known"]:
            if id(x) not in self.seen and getattr(x.mutation_type, "is_modified", False):
                yield x, "what it holds"
        if before["rest"] != after["rest"]:
            yield None, "hooks or random numbers"


def _translators(tx: Any) -> list[Any]:
    found = []
    while tx is not None:
        found.append(tx)
        tx = getattr(tx, "parent", None)
    return found


def _roots(tx: Any) -> list[Any]:
    return [tx.symbolic_locals, list(tx.stack), tx.symbolic_globals]


def _frames(tx: Any) -> list[Any]:
    """The functions that call this one, and what of this one a step leaves as it is."""
    callers = [(t.symbolic_locals, list(t.stack), t.instruction_pointer) for t in _translators(tx)]
    return [len(tx.stack), len(tx.block_stack), len(tx.exn_vt_stack), *callers[1:]]


def _effects(tx: Any) -> dict[str, Any]:
    found = tx.output.side_effects
    hooks = len(found.tensor_hooks), len(found.save_for_backward), len(tx.output.random_calls)
    return {
        "attributes": [(x, dict(held)) for x, held in found.store_attr_mutations.items()],
        "known": list(found.id_to_variable.values()),
        "rest": hooks,
    }


def _settings(tx: Any) -> list[Any]:
    return [
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
        id(tx.output.current_tracer),
        sum(len(getattr(t, "debug_locals", ())) for t in _translators(tx)),  # what is printed
    ]


def _contents(x: VariableTracker) -> dict[str, Any]:
    if _is_lazy(x):
        return {}
    return {name: _held(v) for name, v in x.__dict__.items() if name not in _SAID}


def _is_lazy(x: Any) -> bool:
    return issubclass(type(x), LazyVariableTracker)


def _held(v: Any) -> Any:
    """A copy of what a variable holds, down to other variables."""
    if isinstance(v, MutationType):
        return (type(v), {name: _held(x) for name, x in v.__dict__.items()})
    if isinstance(v, random.Random):
        return v.getstate()
    if type(v) in (list, tuple, set, frozenset):
        return [_held(x) for x in v]
    if isinstance(v, dict):
        return [(_held(getattr(k, "vt", k)), _held(x)) for k, x in v.items()]
    if isinstance(v, InstructionTranslatorBase):  # of a generator
        return [v.instruction_pointer, dict(v.symbolic_locals), list(v.stack)]
    return v


def _variables(held: Any) -> Iterator[VariableTracker]:
    waiting = [held]
    while waiting:
        x = waiting.pop()
        if issubclass(type(x), VariableTracker):
            found = x.unwrap()
            yield found
        elif isinstance(x, dict):
            waiting += x.values()
        elif isinstance(x, (list, tuple)):
            waiting += x


def _same(a: Any, b: Any) -> bool:
    a, b = (x.unwrap() if issubclass(type(x), VariableTracker) else x for x in (a, b))
    if a is b:
        return True
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    alike = type(a) is type(b) and type(a) in (int, float, str, bool, bytes) and a == b
    return alike and repr(a) == repr(b)  # 0.0 and -0.0 are equal, and not the same


# ---- names of variables in the code of a function


def _names(inst: Any) -> tuple[str, ...]:
    names = inst.argval if isinstance(inst.argval, tuple) else (inst.argval,)
    fast = any(word in inst.opname for word in ("_FAST", "_DEREF", "_CLOSURE"))
    return tuple(x for x in names if isinstance(x, str)) if fast else ()


def stored(instructions: Sequence[Any]) -> set[str]:
    """Variables that instructions may set."""
    return {x for inst in instructions if "STORE" in inst.opname for x in _names(inst)}


def read_after(instructions: Sequence[Any], start: int) -> set[str]:
    """Variables whose values may be read from an instruction on."""
    index = {id(inst): k for k, inst in enumerate(instructions)}
    count = len(instructions)
    live: list[set[str]] = [set() for _ in range(count + 1)]
    changed = True
    while changed:
        changed = False
        for k in reversed(range(count)):
            inst = instructions[k]
            out = set() if inst.opname.startswith(_ENDS) else set(live[k + 1])
            if inst.target is not None:
                out |= live[index[id(inst.target)]]
            if inst.opname.startswith(("JUMP_BACKWARD", "JUMP_FORWARD", "JUMP_ABSOLUTE")):
                out = set(live[index[id(inst.target)]])
            entry = getattr(inst, "exn_tab_entry", None)
            if inst.opname == "STORE_FAST":
                out.discard(inst.argval)
            else:
                out |= set(_names(inst))
            if entry is not None:
                out |= live[index[id(entry.target)]]
            if out != live[k]:
                live[k], changed = out, True
    return live[start]
