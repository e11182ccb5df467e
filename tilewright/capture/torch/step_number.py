"""The number of a step while Dynamo traces one step in the place of all.

Python may do with it what is the same in all steps: add to it, multiply it by a number, take slices
of tensors at it, and compare it where the answer is one for all steps. Whatever else asks for it is
refused, and the steps are traced one after the other.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, ClassVar

from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.constant import ConstantVariable
from torch.fx import Node, Proxy


class Unfit(Exception):
    """Steps cannot be traced as one. `ends`: perhaps all can but the first or the last one."""

    def __init__(self, why: str, first: bool = False, last: bool = False) -> None:
        super().__init__(why)
        self.first, self.last = first, last


class Numbers:
    """The numbers of one trace. What was refused is remembered, if somebody catches it."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.refused: Unfit | None = None
        self.nodes: dict[Node, StepNumber] = {}

    def refuse(self, why: str, first: bool = False, last: bool = False) -> Unfit:
        self.refused = self.refused or Unfit(why, first, last)
        return self.refused


def number_of_step(number: int) -> int:
    """Stands for the number in the graph while the step is traced."""
    return number


# What Dynamo asks of any variable, and what says nothing that differs from step to step.
_ALLOWED = {
    *("clone", "realize", "unwrap", "is_realized", "is_tensor"),
    *("is_constant_none", "set_name_hint", "set_source_location", "is_mutable", "is_immutable"),
    *("get_handler_type_for_dispatch", "visit", "build", "debug_repr", "maybe_fx_node"),
    *("is_strict_mode", "next_variable"),
}


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(self: StepNumber, *args: Any, **kwargs: Any) -> Any:
        raise self.numbers.refuse(f"the number of a step is asked for ({name})")

    return refuse


class _Refusing(VariableTracker):
    """Everything is refused that Dynamo may ask of a variable."""

    for _name in dir(VariableTracker):
        if not _name.startswith("__") and _name not in _ALLOWED:
            if callable(getattr(VariableTracker, _name)) and not _name.startswith("_"):
                locals()[_name] = _refusing(_name)
    del _name


class StepNumber(_Refusing):
    """`start + by * k` in step k, from 0 on."""

    _nonvar_fields: ClassVar[set[str]] = {
        "numbers",
        "start",
        "by",
        "_proxy",
        *VariableTracker._nonvar_fields,
    }

    def __init__(self, numbers: Numbers, start: int, by: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.numbers, self.start, self.by = numbers, start, by
        self._proxy: Proxy | None = None

    def at(self, step: int) -> int:
        return self.start + self.by * step

    def python_type(self) -> type:
        return int

    def is_python_constant(self) -> bool:
        return False

    def is_constant_match(self, *values: Any) -> bool:
        if any(isinstance(x, (int, float, complex)) for x in values):
            raise self.numbers.refuse("the number of a step is compared")
        return False

    def as_proxy(self) -> Proxy:
        """What stands for it among the operands of a call: what reads it is looked at later."""
        from torch._dynamo.symbolic_convert import InstructionTranslator

        if self._proxy is None:
            output = InstructionTranslator.current_tx().output
            made = output.create_proxy("call_function", number_of_step, (self.start,), {})
            made.node.meta["example_value"] = self.start
            self.numbers.nodes[made.node] = self
            self._proxy = made
        return self._proxy

    # ---- arithmetic

    def _moved(self, start: int, by: int) -> VariableTracker:
        if by == 0:
            return ConstantVariable.create(start)
        return StepNumber(self.numbers, start, by)

    def _other(self, other: VariableTracker) -> tuple[int, int]:
        if isinstance(other, StepNumber) and other.numbers is self.numbers:
            return other.start, other.by
        if isinstance(other, ConstantVariable) and type(other.value) is int:
            return other.value, 0
        raise self.numbers.refuse("a number is computed of the number of a step and something else")

    def nb_add_impl(self, tx: Any, other: VariableTracker, reverse: bool = False) -> Any:
        start, by = self._other(other)
        return self._moved(self.start + start, self.by + by)

    def nb_subtract_impl(self, tx: Any, other: VariableTracker, reverse: bool = False) -> Any:
        start, by = self._other(other)
        start, by = self.start - start, self.by - by
        return self._moved(-start, -by) if reverse else self._moved(start, by)

    def nb_multiply_impl(self, tx: Any, other: VariableTracker, reverse: bool = False) -> Any:
        start, by = self._other(other)
        if by:
            raise self.numbers.refuse("numbers of steps are multiplied")
        return self._moved(self.start * start, self.by * start)

    def nb_inplace_add_impl(self, tx: Any, other: VariableTracker) -> Any:
        return self.nb_add_impl(tx, other)

    def nb_inplace_subtract_impl(self, tx: Any, other: VariableTracker) -> Any:
        return self.nb_subtract_impl(tx, other)

    def nb_inplace_multiply_impl(self, tx: Any, other: VariableTracker) -> Any:
        return self.nb_multiply_impl(tx, other)

    def nb_negative_impl(self, tx: Any) -> Any:
        return self._moved(-self.start, -self.by)

    # ---- comparisons

    def richcompare_impl(self, tx: Any, other: VariableTracker, op: str) -> Any:
        start, by = self._other(other)
        return self._one_for_all(getattr(operator, op), start, by)

    def bool_impl(self, tx: Any) -> Any:
        return self._one_for_all(operator.ne, 0, 0)

    def _one_for_all(
        self, compare: Callable[[int, int], bool], start: int, by: int
    ) -> VariableTracker:
        """The answer in all steps, where it is one."""

        def answers(first: int, stop: int) -> set[bool]:
            return {bool(compare(self.at(k), start + by * k)) for k in range(first, stop)}

        found, n = answers(0, self.numbers.count), self.numbers.count
        if len(found) == 1:
            return ConstantVariable.create(found.pop())
        raise self.numbers.refuse(
            "a branch depends on the number of a step",
            first=len(answers(1, n)) == 1 or len(answers(1, n - 1)) == 1,
            last=len(answers(0, n - 1)) == 1 or len(answers(1, n - 1)) == 1,
        )
