"""Loops of Python of which Dynamo traces one step in the place of all.

Dynamo traces a loop step by step, which takes some 35 ms each. Here the first steps are watched.
Where they write equal calls, the frame is traced again, and one step is traced with a number of the
step (`step_number.py`) that Python may only use for what is the same in all steps, and with carried
tensors that stand for those of any step. All that Python knows is compared before and after
(`step_state.py`): a step may set local variables and append to lists, and nothing else. Then a scan
takes the place of the steps (`step_scan.py`), and Python goes on behind the last one. What is
refused is traced step by step, as ever.
"""

from __future__ import annotations

import dis
import operator
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from itertools import pairwise
from typing import Any

from torch._dynamo import symbolic_convert
from torch._dynamo.exc import UnspecializeRestartAnalysis
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.lists import RangeIteratorVariable, TupleVariable
from torch._dynamo.variables.tensor import TensorVariable
from torch.fx import Node

from tilewright.base import knobs
from tilewright.capture.torch.one_step import OneStep, list_in
from tilewright.capture.torch.step_number import Unfit
from tilewright.capture.torch.step_state import stored

LEAST = 16  # steps that are left when one is traced for all
WATCHED = 4  # steps: those that are left out at the beginning may be of another kind
SHORT = 32  # steps of a loop inside one that is watched: it is written out meanwhile
RESTARTS = 24  # of one frame: torch allows a hundred

Key = tuple[Any, int]  # code, and the place of the loop in it


@dataclass
class Plan:
    """How a loop is traced: all steps but the `first` and `last` ones at once."""

    first: int = 0
    last: int = 0
    tensors: frozenset[str] = frozenset()  # variables that are carried
    gradients: frozenset[str] = frozenset()  # those that need one, at least after a step
    varying: frozenset[str] = frozenset()  # variables that are something else in each step
    growing: frozenset[str] = frozenset()  # lists


@dataclass
class _Arrival:
    """What is known when a step begins."""

    calls: int
    variables: dict[str, Any]
    gradients: frozenset[str]


@dataclass
class _Watched:
    iterator: Any
    key: Key
    code: Any
    arrivals: list[_Arrival] = field(default_factory=list)
    count: int = 0  # steps that have begun


@dataclass
class Loops:
    """What is known of the loops of one frame, over all times that it is traced."""

    plans: dict[Key, Plan | None] = field(default_factory=dict)  # None: step by step
    told: list[tuple[str, str]] = field(default_factory=list)  # (what, where)
    refusals: dict[Key, tuple[str, str]] = field(default_factory=dict)
    restarts: int = 0
    scans: int = 0  # in the graph that is traced now
    watched: dict[int, _Watched] = field(default_factory=dict)
    inside: bool = False  # of a step that is traced for all
    compared: bool = False  # that step asks whether two tensors are one
    refused: bool = False  # the graph's scans, by what compiles it

    def begin(self) -> None:
        """Nothing is kept of the trace before this one but what it found out."""
        self.watched.clear()
        self.told.clear()
        self.scans, self.inside = 0, False

    def refuse(self) -> None:
        """The frame is traced again, all loops of it step by step."""
        self.refused, self.restarts = True, RESTARTS  # this happens once
        self.plans.clear()

    def again(self, key: Key, plan: Plan | None) -> UnspecializeRestartAnalysis:
        self.plans[key] = plan
        self.restarts += 1
        return UnspecializeRestartAnalysis(restart_reason="steps of a loop")

    # ---- at the beginning of each step

    def arrive(self, tx: Any, inst: Any) -> None:
        """Watches a step, or traces one for all that are left."""
        iterator = tx.stack[-1].realize()
        if self.inside or type(iterator) is not RangeIteratorVariable:
            return
        key = tx.f_code, inst.offset
        seen = self.watched.get(id(iterator))
        if seen is None:
            if iterator.len < LEAST or tx.output.current_tracer.parent is not None:
                return
            seen = self.watched[id(iterator)] = _Watched(iterator, key, inst)
        seen.count += 1
        if self.restarts >= RESTARTS:
            return
        if key not in self.plans:
            self._watch(tx, inst, seen)
            return
        plan = self.plans[key]
        if plan is None or seen.count != plan.first + 1 or iterator.len - plan.last < LEAST:
            return
        self._trace_for_all(tx, inst, key, plan)

    def _trace_for_all(self, tx: Any, inst: Any, key: Key, plan: Plan) -> None:
        self.inside, self.compared = True, False
        begin, iterator = plan.first, tx.stack[-1].realize()
        count = iterator.len - plan.last
        line = getattr(inst.positions, "lineno", None) or tx.f_code.co_firstlineno
        where = f"{tx.f_code.co_filename}:{line}"
        try:
            step = OneStep(tx, inst, iterator, count, plan)
            step.trace()
            if self.compared:
                step.require_identities()
            step.take_place()
        except Exception as problem:  # what a step says of itself, it says when it is traced alone
            unfit = problem if isinstance(problem, Unfit) else None
            other = None if unfit is None else _other_plan(plan, unfit)
            why = unfit or str(problem).strip().split("\n")[0]
            self.refusals[key] = f"steps of the loop are traced one by one: {why}", where
            raise self.again(key, other) from None
        finally:
            self.inside = False
        self.scans += 1
        self.refusals.pop(key, None)
        said = f"steps {begin}…{begin + count - 1} of the loop became one scan, traced once"
        self.told.append((said, where))

    def _watch(self, tx: Any, inst: Any, seen: _Watched) -> None:
        if seen.iterator.len <= SHORT and self._is_inside_another(tx, seen):
            return
        if len(seen.arrivals) > WATCHED:
            return
        names = stored(_body(tx, inst)) | tx.symbolic_locals.keys()
        found = {x: _kind(tx.symbolic_locals[x]) for x in names & tx.symbolic_locals.keys()}
        lists = {x: list_in(tx, tx.symbolic_locals[x]) for x in found}
        found |= {x: ("list", id(v), len(v.items)) for x, v in lists.items() if v is not None}
        needing = frozenset(x for x in found if _needs_gradient(tx.symbolic_locals[x]))
        seen.arrivals.append(_Arrival(len(_calls(tx)), found, needing))
        if len(seen.arrivals) < 3:
            return
        plan = _plan_of(tx, seen)
        if plan is not None and seen.iterator.len >= LEAST:
            raise self.again(seen.key, plan)
        if len(seen.arrivals) > WATCHED:
            self.plans[seen.key] = None

    def _is_inside_another(self, tx: Any, seen: _Watched) -> bool:
        """Is it in a step of another loop that is still watched?"""
        frame, stacks = tx, []
        while frame is not None:
            stacks += [x.realize() for x in frame.stack if type(x) is RangeIteratorVariable]
            frame = getattr(frame, "parent", None)
        others = [self.watched.get(id(x)) for x in stacks if x is not seen.iterator]
        return any(w is not None and w.key not in self.plans for w in others)


def _other_plan(plan: Plan, problem: Unfit) -> Plan | None:
    """The next one to try: without the last step, or the first one."""
    first = plan.first + 1 if problem.first and plan.first < 2 else plan.first
    last = 1 if problem.last else plan.last
    if (first, last) == (plan.first, plan.last):
        return None
    return Plan(first, last, plan.tensors, plan.gradients, plan.varying, plan.growing)


def _body(tx: Any, inst: Any) -> list[Any]:
    """The instructions of a step."""
    return tx.instructions[tx.indexof[inst] + 1 : tx.indexof[inst.target]]


# ---- what first steps say of the others


def _kind(x: Any) -> Any:
    """What a variable is, as far as it has to be the same in all steps."""
    if not x.is_realized():
        return ("as it was given", id(x))
    x = x.unwrap()
    if type(x) is TensorVariable:
        value = x.proxy.node.meta["example_value"]
        return ("tensor", value.dtype, value.device, str(value.shape))
    if type(x) is TupleVariable:
        return ("tuple", *map(_kind, x.items))
    if isinstance(x, ConstantVariable):
        return ("constant", type(x.value), x.value, repr(x.value))  # -0.0 is equal to 0.0
    return ("object", id(x))


def _is_tensors(kind: Any) -> bool:
    """Is it a tensor, or a tuple of tensors?"""
    if kind[0] == "tuple":
        return len(kind) > 1 and all(map(_is_tensors, kind[1:]))
    return kind[0] == "tensor"


def _needs_gradient(x: Any) -> bool:
    if not x.is_realized():
        return False
    x = x.unwrap()
    if type(x) is TupleVariable:
        return any(map(_needs_gradient, x.items))
    return type(x) is TensorVariable and bool(x.requires_grad)


def _plan_of(tx: Any, seen: _Watched) -> Plan | None:
    """What the last two steps say, where they are alike; with those before them, if these are."""
    arrivals = seen.arrivals
    calls = _calls(tx)
    pieces = [_piece(calls[a.calls : b.calls]) for a, b in pairwise(arrivals)]
    if pieces[-1] is None or pieces[-1] != pieces[-2]:
        return None
    first = len(arrivals) - 3
    names = stored(_body(tx, seen.code))
    one, two, three = (a.variables for a in arrivals[-3:])
    tensors = {x for x, kind in three.items() if x in names and _is_tensors(kind)}
    lists = {x for x, kind in three.items() if kind[0] == "list" and x in two}
    growing = {x for x in lists if two[x][:2] == three[x][:2] and two[x][2] < three[x][2]}
    varying = {x for x, k in three.items() if x not in growing and x not in tensors}
    varying = {x for x in varying if two.get(x) != three[x] and x in names}
    if not tensors or any(two.get(x) != three[x] for x in tensors):
        return None
    if any(x in one and one[x] != three[x] for x in tensors):
        return None
    while first > 0 and pieces[first - 1] == pieces[-1]:
        before = arrivals[first - 1].variables
        if any(x in before and before[x] != three[x] for x in tensors):
            break
        first -= 1
    needing = frozenset.union(*(a.gradients for a in arrivals[first:]))
    sets = (tensors, needing & tensors, varying, growing)
    return Plan(first, 0, *map(frozenset, sets))


def _calls(tx: Any) -> list[Node]:
    kinds = ("call_function", "call_method", "call_module")
    return [n for n in tx.output.current_tracer.graph.nodes if n.op in kinds]


def _piece(calls: list[Node]) -> Any:
    """What calls have to be alike in all steps; None where there are none."""
    own = {n: k for k, n in enumerate(calls)}

    def operand(x: Node) -> Any:
        return own.get(x, x if x.op in ("placeholder", "get_attr") else None)

    return [(n.target, *map(operand, n.all_input_nodes)) for n in calls] or None


# ---- where Dynamo begins a step


class _Now(threading.local):
    compiles: Any = None  # what Dynamo keeps while it traces one frame as often as it has to
    loops: Loops | None = None  # of the frame that this thread compiles
    tracing: Loops | None = None  # the same while it traces for our backend


_now = _Now()


@contextmanager
def one_step_for_all(tx: Any) -> Iterator[Loops | None]:
    """Inside, steps of loops of a frame are traced once where that is the same."""
    if not (knobs.one_step.get() and _is_known):
        yield None
        return
    if _now.loops is None or _now.compiles is not tx.speculation_log:
        _now.compiles, _now.loops = tx.speculation_log, Loops()
    before, loops = _now.tracing, _now.loops
    _now.tracing = loops
    loops.begin()
    try:
        yield loops
    finally:
        loops.begin()
        _now.tracing = before


def loops_traced() -> Loops | None:
    """Those of the frame that this thread traces for our backend."""
    return _now.tracing


def _begins_steps(theirs: Callable[..., None]) -> Callable[..., None]:
    @wraps(theirs)
    def called(self: Any, inst: Any) -> None:
        loops = _now.tracing
        if loops is not None:
            try:
                loops.arrive(self, inst)
            except UnspecializeRestartAnalysis:
                raise
            except Exception:  # of a Dynamo that is not as expected: steps are traced as they are
                loops.restarts = RESTARTS
        theirs(self, inst)

    return called


# What Python may ask of tensors and what need not be the same in all steps: carried ones may need a
# gradient only after the first step, and lie in another order in memory before it.
_ASKED = {"requires_grad", "is_leaf", "grad", "grad_fn", "retain_grad", "_version", "_base"}
_ASKED |= {"is_contiguous", "stride", "storage_offset", "storage", "untyped_storage", "data_ptr"}


def _not_in_steps(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(theirs)
    def var_getattr(self: Any, tx: Any, name: str) -> Any:
        if _now.tracing is not None and _now.tracing.inside and name in _ASKED:
            raise Unfit(f"a step asks for {name} of a tensor")
        return theirs(self, tx, name)

    return var_getattr


def _not_called_in_steps(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(theirs)
    def call_method(self: Any, tx: Any, name: str, *given: Any, **named: Any) -> Any:
        if _now.tracing is not None and _now.tracing.inside and name in _ASKED:
            raise Unfit(f"a step asks for {name} of a tensor")
        return theirs(self, tx, name, *given, **named)

    return call_method


def _no_identity_in_steps(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(theirs)
    def called(*given: Any, **named: Any) -> Any:
        if _now.tracing is not None and _now.tracing.inside:
            raise Unfit("a step asks which object a tensor is")
        return theirs(*given, **named)

    return called


def _notes_comparisons(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(theirs)
    def compared(self: Any, *given: Any, **named: Any) -> Any:
        if _now.tracing is not None and self.fn in (operator.is_, operator.is_not):
            others = [x for x in given if isinstance(x, TensorVariable)]
            _now.tracing.compared = _now.tracing.compared or len(others) > 1
        return theirs(self, *given, **named)

    return compared


# How Dynamo learns which object a tensor is: for `id`, and as a key of a dictionary.
_IDENTITIES = ("get_id", "hash_impl", "is_python_equal")
_COMPARED = "_comparison_with_tensor"  # where it compares one with anything


def _hook() -> bool:
    """Whether Dynamo's parts are as they are expected; then it tells when a step begins."""
    names = ("InstructionTranslator", "InliningInstructionTranslator")
    classes = [getattr(symbolic_convert, x, None) for x in names]
    opcode = dis.opmap["FOR_ITER"]
    try:
        made = RangeIteratorVariable(0, 1, 1, 1)
        tables: list[Any] = [c.dispatch_table for c in classes if c is not None]
        known = all(hasattr(made, x) for x in ("start", "stop", "step", "len"))
        known = known and len(tables) == len(names) and all(callable(t[opcode]) for t in tables)
        known = known and all(hasattr(TensorVariable, x) for x in ("call_method", *_IDENTITIES))
        known = known and hasattr(BuiltinVariable, _COMPARED)
    except Exception:  # another version
        return False
    if known:
        hooks = [(TensorVariable, x, _no_identity_in_steps) for x in _IDENTITIES]
        hooks += [
            (TensorVariable, "var_getattr", _not_in_steps),
            (TensorVariable, "call_method", _not_called_in_steps),
            (BuiltinVariable, _COMPARED, _notes_comparisons),
        ]
        for owner, name, around in hooks:
            setattr(owner, name, around(getattr(owner, name)))
        for table in tables:
            table[opcode] = _begins_steps(table[opcode])
    return known


_is_known = _hook()
