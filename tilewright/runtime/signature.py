"""How a saved program is called: its parameters as Python has them, the arrays among what is given,
which inputs these and the program's own arrays are, and how results are assembled.

Plain data (runtime/records.py writes it); runtime/loaded.py makes calls of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from tilewright.base.errors import Invalid
from tilewright.ir.dim import Dim
from tilewright.ir.slots import Buffer, Check, Result
from tilewright.ir.types import DType
from tilewright.runtime.program_data import Stored

# ---- nested values


@dataclass(frozen=True)
class Leaf:
    """The argument, or the result, with this ordinal."""

    ordinal: int


@dataclass(frozen=True)
class Given:
    """In results: the argument with this ordinal, as it was given."""

    ordinal: int


@dataclass(frozen=True)
class Fixed:
    """None, a truth value, a number or a word: what it was when the program was saved."""

    value: Any


@dataclass(frozen=True)
class Items:
    """A tuple or a list."""

    items: tuple[Tree, ...]
    is_list: bool = False


@dataclass(frozen=True)
class Named:
    """A mapping from words."""

    items: Mapping[str, Tree]


Tree = Union[Leaf, Given, Fixed, Items, Named]

# ---- what a call gives


@dataclass(frozen=True)
class Parameter:
    """A parameter of the function: `how` is the name of one of Python's kinds."""

    name: str
    how: str
    tree: Tree


@dataclass(frozen=True)
class ArrayArgument:
    """An array that a call gives. The program reads it with these strides (in elements)."""

    name: str  # for messages: `mask`, `inputs[1]`
    slot: str
    dtype: DType
    shape: tuple[Dim, ...]
    stride: tuple[Dim, ...]
    paired: bool = False  # complex: two of `dtype` per element


@dataclass(frozen=True)
class NumberArgument:
    """A number that a call gives: an integer is the value of a dim, any other goes to a slot."""

    name: str
    slot: str
    dim: Dim | None = None


@dataclass(frozen=True)
class UnusedArgument:
    """Whatever a call gives here makes no difference to the program."""

    name: str


Argument = Union[ArrayArgument, NumberArgument, UnusedArgument]


@dataclass(frozen=True)
class Held:
    """An array that belongs to the program: a weight, or a tensor that the function refers to."""

    slot: str
    value: Stored


# ---- numbers computed from sizes


@dataclass(frozen=True)
class Operation:
    """A function of numbers by name (runtime/numbers.py), of other expressions."""

    name: str
    operands: tuple[Expression, ...]


@dataclass(frozen=True)
class Constant:
    value: float
    whole: bool = False


@dataclass(frozen=True)
class Size:
    """A dim, or an argument that is a number, by its slot."""

    dim: Dim | None = None
    slot: str | None = None


Expression = Union[Operation, Constant, Size]


@dataclass(frozen=True)
class Scalar:
    """A number that is computed before the program runs: for a slot, or the value of a symbol."""

    expression: Expression
    slot: str | None = None
    symbol: str | None = None


@dataclass(frozen=True)
class Signature:
    """Everything between Python's call and the program."""

    parameters: tuple[Parameter, ...]
    arguments: tuple[Argument, ...]
    inputs: tuple[str | None, ...]  # the slot of each input of the program; None: it reads none
    buffers: tuple[Buffer, ...]
    results: tuple[Result, ...]
    returned: Tree
    held: tuple[Held, ...] = ()
    checks: tuple[Check, ...] = ()
    watched: int = 0  # outputs that belong to checks
    scalars: tuple[Scalar, ...] = ()
    seed: str | None = None  # the slot of a random number that is drawn for each call

    def python(self) -> inspect.Signature:
        """The parameters as Python describes them."""
        return inspect.Signature(
            [inspect.Parameter(p.name, _KINDS[p.how]) for p in self.parameters]
        )


_KINDS = {
    k.name: k
    for k in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.KEYWORD_ONLY,
        inspect.Parameter.VAR_KEYWORD,
    )
}


def leaves_of(parameters: tuple[Parameter, ...], given: Mapping[str, Any], count: int) -> list[Any]:
    """The arguments in what a call gives, by ordinal; a sentence where it has another form."""
    found: list[Any] = [None] * count
    for p in parameters:
        if p.name in given:
            _match(p.tree, given[p.name], p.name, found)
        elif not (p.how.startswith("VAR_") and _is_empty(p.tree)):
            raise Invalid(f"the argument {p.name} is missing")
    return found


def _is_empty(tree: Tree) -> bool:
    return isinstance(tree, (Items, Named)) and not tree.items


def _match(tree: Tree, value: Any, name: str, found: list[Any]) -> None:
    if isinstance(tree, (Leaf, Given)):
        found[tree.ordinal] = value
    elif isinstance(tree, Fixed):
        if type(value) is not type(tree.value) or value != tree.value:
            raise Invalid(
                f"{name} is {_shown(value)}, and the program was saved for {tree.value!r}",
                hint="save it again with the other value",
            )
    elif isinstance(tree, Items):
        wanted = f"a {'list' if tree.is_list else 'tuple'} of {len(tree.items)}"
        if not isinstance(value, (list, tuple)) or len(value) != len(tree.items):
            raise Invalid(f"{name} is {_shown(value)}, and {wanted} is needed")
        for k, (t, x) in enumerate(zip(tree.items, value, strict=True)):
            _match(t, x, f"{name}[{k}]", found)
    else:
        keys = ", ".join(tree.items) or "nothing"
        if not isinstance(value, Mapping) or set(value) != set(tree.items):
            raise Invalid(f"{name} is {_shown(value)}, and a mapping with {keys} is needed")
        for key, t in tree.items.items():
            _match(t, value[key], f"{name}[{key!r}]", found)


def _shown(value: Any) -> str:
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, Mapping):
        return f"a mapping with {', '.join(map(str, value)) or 'nothing'}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


def built(tree: Tree, results: Sequence[Any], given: Sequence[Any]) -> Any:
    """A value of this form, with results and arguments in it."""
    if isinstance(tree, Leaf):
        return results[tree.ordinal]
    if isinstance(tree, Given):
        return given[tree.ordinal]
    if isinstance(tree, Fixed):
        return tree.value
    if isinstance(tree, Items):
        items = [built(t, results, given) for t in tree.items]
        return items if tree.is_list else tuple(items)
    return {key: built(t, results, given) for key, t in tree.items.items()}
