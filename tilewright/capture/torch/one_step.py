"""One step of a loop of Python, traced by Dynamo in the place of all that are left."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._dynamo.variables.builder import wrap_fx_proxy
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.lists import ListVariable, TupleVariable
from torch._dynamo.variables.misc import CellVariable
from torch._dynamo.variables.tensor import TensorVariable
from torch.fx import Node, Proxy

from tilewright.capture.torch.slices import size_of, value_of
from tilewright.capture.torch.step_number import Numbers, StepNumber, Unfit
from tilewright.capture.torch.step_scan import Step
from tilewright.capture.torch.step_state import State, read_after

_ALL_NAMES = {"locals", "vars", "dir", "eval", "exec"}  # what may read any variable
_LEAVES = ("RETURN", "YIELD", "SEND", "RERAISE")


class _Growing(ListVariable):
    """A list to which a step may append, and of which it may know nothing."""

    numbers: Numbers
    appended: list[tuple[Any, Any]]

    @property
    def items(self) -> Any:
        raise self.numbers.refuse("a step reads a list that steps append to")

    def is_python_constant(self) -> bool:
        return False

    def as_python_constant(self) -> Any:
        raise NotImplementedError("steps append to this list")

    def call_method(self, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name != "append" or len(args) != 1 or kwargs:
            raise self.numbers.refuse(f"a step calls {name} of a list that steps append to")
        tx.output.side_effects.mutation(self)
        self.appended.append((self, args[0]))
        return ConstantVariable.create(None)


class OneStep:
    """`count` steps, beginning at a FOR_ITER."""

    def __init__(self, tx: Any, inst: Any, iterator: Any, count: int, plan: Any) -> None:
        self.tx, self.inst, self.iterator, self.count, self.plan = tx, inst, iterator, count, plan
        self.numbers = Numbers(count)
        self.first: dict[Node, Any] = {}  # what is carried, by what stands for it
        self.before: dict[str, Any] = {}  # local variables, with what stands for carried values
        self.appended: list[tuple[Any, Any]] = []
        self.given: dict[str, Any] = {}  # the same as they were
        self.made: dict[tuple[Node, int], Any] = {}

    # ---- the trace

    def trace(self) -> None:
        tx, head = self.tx, self.tx.indexof[self.inst]
        body = tx.instructions[head + 1 : tx.indexof[self.inst.target]]
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            raise Unfit("autocast is on")
        self.nodes = set(tx.output.current_tracer.graph.nodes)
        names = sorted(self.plan.tensors & tx.symbolic_locals.keys())
        self.given = {x: tx.symbolic_locals[x].realize() for x in names}
        for name in names:
            tx.symbolic_locals[name] = self._carried(name, self.given[name])
        for name in self.plan.varying:  # they are read by no step before it sets them
            tx.symbolic_locals.pop(name, None)
        lists = [list_in(tx, tx.symbolic_locals[x]) for x in sorted(self.plan.growing)]
        self.state = State(tx)
        self.before = dict(tx.symbolic_locals)
        depth = len(tx.stack)
        with _growing(lists, self.numbers, self.appended):
            tx.push(StepNumber(self.numbers, self.iterator.start, self.iterator.step))
            while tx.instruction_pointer != head:
                at = tx.instruction_pointer
                if not head < at <= head + len(body):
                    raise Unfit("a step leaves the loop")
                if tx.instructions[at].opname.startswith(_LEAVES):
                    raise Unfit("a step leaves the function")
                if not tx.step():
                    raise Unfit("a step leaves the function")
        tx.instruction_pointer = head + 1
        if self.numbers.refused is not None:
            raise self.numbers.refused
        if len(tx.stack) != depth:
            raise Unfit("a step leaves something behind")
        self._require_unchanged(lists)

    def require_identities(self) -> None:
        """Python asked whether two tensors are one: what is carried may be nothing else that is
        there, neither before the first step nor after any."""
        known, later = (
            {_object(x) for x in state.held.values() if type(x) is TensorVariable}
            for state in (self.state, State(self.tx))
        )
        given = [_object(leaf) for x in self.given.values() for leaf in _leaves(x)]
        if len({*given}) < len(given) or (known | later).intersection(given):
            raise Unfit("a carried tensor has another name", first=True)
        for name, was in self.before.items():
            now = self.tx.symbolic_locals.get(name)
            if name in self.plan.tensors and now is not None:
                if known.intersection(map(_object, _leaves(now))) - {*map(_object, _leaves(was))}:
                    raise Unfit("a carried tensor is another one after a step")

    def _carried(self, name: str, x: Any) -> Any:
        """What stands for a tensor, or a tuple of tensors, at the beginning of any step."""
        if type(x) is TupleVariable:
            return TupleVariable([self._carried(name, y.realize()) for y in x.items])
        if type(x) is not TensorVariable or x.class_type is not torch.Tensor:
            raise Unfit("a carried variable is no plain tensor at first", first=True)
        output, value = self.tx.output, value_of(x.as_proxy().node)
        needs = name in self.plan.gradients and torch.is_grad_enabled()
        made = output.create_proxy("call_function", torch.clone, (x.as_proxy(),), {})
        with output.fake_mode:
            stands = torch.empty(value.shape, dtype=value.dtype, device=value.device)
            floats = stands.is_floating_point() or stands.is_complex()
            if (needs or value.requires_grad) and floats:
                stands = stands.requires_grad_().clone()
        found = wrap_fx_proxy(self.tx, made, example_value=stands)
        self.first[made.node] = x
        return found

    def _require_unchanged(self, lists: list[Any]) -> None:
        written = {n.args[0] for n in self.tx.output.current_tracer.graph.nodes if _sets(n)}
        for x, what in self.state.changed():
            if x in lists and what == "mutation_type":
                continue
            own = type(x) is TensorVariable and x.as_proxy().node in written
            if own and what in ("requires_grad", "has_grad_fn", "is_leaf"):
                continue
            said = "what Python knows" if x is None else type(x).__name__
            raise Unfit(f"a step changes {what} of {said}")

    # ---- what takes the place of the steps

    def take_place(self) -> None:
        tx, live = self.tx, self._live()
        after = self._after(live)
        self.results = self._results()
        initial = {n: x.as_proxy().node for n, x in self.first.items()}
        self.step = Step(tx.output, self.nodes, self.numbers, initial)
        self._require_alike()
        seen = [x for name, x in after.items() if name in live]
        shown: dict[Node, None] = {}
        ends: dict[Node, None] = {}
        for n in self.step.written:
            self._show(n.args[2], False, shown, ends)
        for _, x in self.appended:
            for leaf in _leaves(x):
                self._show(leaf, False, shown, ends)
        for x in seen:
            for leaf in _leaves(x):
                self._show(leaf, True, shown, ends)
        carried = self._carried_on([*shown, *ends])
        for n in ends:
            if n not in carried.values():
                shown[n] = None
        self.step.require_own([n for n in dict.fromkeys((*shown, *ends)) if n in self.step.own])
        stacks, last = self.step.write(carried, list(shown))
        self.stacks = {n: self._stacked(n, made) for n, made in stacks.items()}
        self.ends = {carried[n]: made for n, made in last.items()}
        variables = {name: self._at(x, self.count - 1) for name, x in after.items() if name in live}
        for name in after:
            del tx.symbolic_locals[name]
        for name, x in self.given.items():  # carried ones that no step changes
            if name not in after:
                tx.symbolic_locals[name] = x
        tx.symbolic_locals.update(variables)
        for k in range(self.count):
            for grown, x in self.appended:
                grown.items.append(self._at(x, k))
        self.step.erase()
        self.iterator.start += self.count * self.iterator.step
        self.iterator.len -= self.count

    def _live(self) -> set[str]:
        """Local variables that are read behind these steps: by the next one, if there is one."""
        tx, index = self.tx, self.tx.indexof
        if _ALL_NAMES & {*tx.f_code.co_names}:
            return {*tx.symbolic_locals}
        left = self.iterator.len > self.count
        start = index[self.inst] + 1 if left else index[self.inst.target]
        return read_after(tx.instructions, start)

    def _after(self, live: set[str]) -> dict[str, Any]:
        """Local variables that a step changes, with what they are after it."""
        found: dict[str, Any] = {}
        now = {name: x.unwrap() for name, x in self.tx.symbolic_locals.items()}
        for name in (self.before.keys() | (self.plan.varying & live)) - now.keys():
            raise Unfit(f"{name} is not there after a step")
        for name, x in now.items():
            was = self.before.get(name)
            was = None if was is None else was.unwrap()
            if x is was or _is_one_constant(was, x):
                continue
            if was is not None and not (name in self.plan.tensors and _form(was) == _form(x)):
                raise Unfit(f"{name} is something else after a step", first=True)
            if name in live and _form(x) is None:
                raise Unfit(f"{name} is an object of the last step", last=True)
            found[name] = x
        return found

    def _results(self) -> dict[Node, Any]:
        """What each carried tensor is after a step."""
        found: dict[Node, Any] = {}
        for name in sorted(self.plan.tensors & self.before.keys()):
            was, now = self.before[name].unwrap(), self.tx.symbolic_locals[name].unwrap()
            pairs = zip(_leaves(was), _leaves(now), strict=True)
            found |= {a.as_proxy().node: b for a, b in pairs}
        return found

    def _require_alike(self) -> None:
        for n, x in self.results.items():
            a, b = value_of(n), value_of(x.as_proxy().node)
            first = value_of(self.first[n].as_proxy().node)
            if not (_is_copied_in_order(first) and _is_copied_in_order(b)):
                raise Unfit("a carried tensor has its axes in another order")
            if (a.dtype, a.device, str(a.shape)) != (b.dtype, b.device, str(b.shape)):
                raise Unfit("a carried tensor changes its kind", first=True)
            if b.requires_grad and not a.requires_grad:
                raise Unfit("a carried tensor begins to need a gradient", first=True)

    def _show(self, x: Any, last: bool, shown: dict[Node, None], ends: dict[Node, None]) -> None:
        """Notes what is seen of a value: of all steps, or of the last one alone."""
        n = x if isinstance(x, Node) else x.as_proxy().node
        passed = set()
        while n in self.results:  # the value of the step before
            after = self.results[n].as_proxy().node
            if after is n:
                return
            if n in passed:
                raise Unfit("carried tensors change places")
            passed.add(n)
            n, last = after, False
        if n in self.step.own:
            (ends if last else shown)[n] = None

    def _carried_on(self, shown: list[Node]) -> dict[Node, Node]:
        """Carried tensors that steps read, each with what it is after a step."""
        read = {x for n in self.step.calls for x in n.all_input_nodes} | {*shown}
        found: dict[Node, Node] = {}
        waiting = [n for n in self.results if n in read]
        while waiting:
            n = waiting.pop()
            after = self.results[n].as_proxy().node
            if n not in found and after is not n:
                found[n] = after
                waiting += [after] if after in self.results else []
        if not found:
            raise Unfit("steps are independent of each other")
        return {n: found[n] for n in self.results if n in found}

    # ---- values behind the steps

    def _stacked(self, n: Node, made: Node) -> tuple[Node, Sequence[torch.Tensor]]:
        """The results of all steps, and each of them as Dynamo's variables are made of them."""
        value, count = value_of(n), self.count
        with self.tx.output.fake_mode:
            shape = (count, *value.shape)
            whole = torch.empty(shape, dtype=value.dtype, device=value.device)
            if not value.requires_grad:  # one call, of which each result costs less than a call
                made.meta["example_value"] = whole
                return made, whole.unbind()
            whole = whole.requires_grad_().clone()
            made.meta["example_value"] = whole
            if value.dim() == 0 or any(size_of(value, k) is None for k in range(value.dim())):
                return made, [whole[k] for k in range(count)]
            # Unlike others, what this gives may be changed in place.
            return made, torch.unsafe_split(whole.flatten(0, 1), value.shape[0], 0)

    def _at(self, x: Any, k: int) -> Any:
        """What a variable of the step is in step k."""
        if isinstance(x, StepNumber):
            return ConstantVariable.create(x.at(k))
        if type(x) is TupleVariable:
            return TupleVariable([self._at(y.unwrap(), k) for y in x.items])
        if type(x) is not TensorVariable:
            return x
        n = x.as_proxy().node
        if n in self.results:
            after = self.results[n]
            return self.first[n] if k == 0 or after.as_proxy().node is n else self._at(after, k - 1)
        if n not in self.step.own:
            return x
        if (n, k) not in self.made:
            self.made[n, k] = self._item(n, k)
        return self.made[n, k]

    def _item(self, n: Node, k: int) -> Any:
        tracer = self.tx.output.current_tracer
        if n in self.stacks:
            whole, values = self.stacks[n]
            value = values[k]
            made = tracer.create_node("call_function", operator.getitem, (whole, k), {})
        else:
            made, value = self.ends[n], value_of(n)
        return wrap_fx_proxy(self.tx, Proxy(made, tracer), example_value=value)


def _object(x: Any) -> int:
    """Which tensor it is: Dynamo has two variables of one that a call changed in place."""
    return id(value_of(x.as_proxy().node))


def _is_copied_in_order(x: Any) -> bool:
    """Are copies of it contiguous, and what is computed of it?"""
    with x.fake_mode:
        return torch.empty_like(x).is_contiguous()


def _is_one_constant(x: Any, y: Any) -> bool:
    if not (isinstance(x, ConstantVariable) and isinstance(y, ConstantVariable)):
        return False
    alike = type(x.value) is type(y.value) and x.value == y.value
    return alike and repr(x.value) == repr(y.value)  # 0.0 and -0.0 are equal, and not the same


def _form(x: Any) -> Any:
    """How a variable is put together of tensors and numbers; None of others."""
    if type(x) is TupleVariable:
        parts = [_form(y.unwrap()) for y in x.items]
        return None if None in parts else ("tuple", *parts)
    if type(x) is TensorVariable:
        return "tensor"
    return "number" if isinstance(x, (StepNumber, ConstantVariable)) else None


def _leaves(x: Any) -> Iterator[Any]:
    """The tensors among the parts of a variable."""
    x = x.unwrap()
    if _form(x) is None:
        raise Unfit("a list grows by something other than tensors")
    if type(x) is TupleVariable:
        for y in x.items:
            yield from _leaves(y)
    elif type(x) is TensorVariable:
        yield x


def list_in(tx: Any, x: Any) -> Any:
    """The list that a variable is, or that it has for functions inside this one; else None."""
    x = x.unwrap()
    if isinstance(x, CellVariable):
        try:
            x = tx.output.side_effects.load_cell(x).unwrap()
        except Exception:  # nothing is in it yet
            return None
    return x if type(x) is ListVariable else None


def _sets(n: Node) -> bool:
    return n.target is operator.setitem


@contextmanager
def _growing(lists: list[Any], numbers: Numbers, appended: list[Any]) -> Iterator[None]:
    """Steps may append to these lists, and do nothing else with them."""
    if not all(type(x) is ListVariable for x in lists):
        raise Unfit("something grows that is not a list")
    for x in lists:
        x.__class__, x.numbers, x.appended = _Growing, numbers, appended
    try:
        yield
    finally:
        for x in lists:
            x.__class__ = ListVariable
            del x.numbers, x.appended
