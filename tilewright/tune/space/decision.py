"""What a space leaves open: named decisions, and values of arguments that mention them."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Union

from tilewright.base.errors import Invalid, require
from tilewright.ir.reader import is_plain_name

# What a decision may be decided as, and what an argument of a step may be.
Plain = Union[bool, int, str, tuple["Plain", ...]]
Assignment = Mapping[str, Plain]


@dataclass(frozen=True)
class Decision:
    """A named choice of one of several values. Of an `ordered` one, neighbours are alike: sizes,
    which a search may change little by little."""

    name: str
    values: tuple[Plain, ...]
    default: Plain
    ordered: bool = False

    def __post_init__(self) -> None:
        require(is_plain_name(self.name), f"{self.name!r} is not a name for a decision")
        require(self.values, f"{self.name} has no values", hint="give at least one")
        distinct = {(type(v), v) for v in self.values}
        require(len(distinct) == len(self.values), f"{self.name} has a value twice")
        require(
            _is_in(self.default, self.values),
            f"{self.name} is {self.default!r} by default, which is none of its values",
            hint=f"they are {', '.join(map(repr, self.values))}",
        )

    def __str__(self) -> str:
        kind = "ordered" if self.ordered else "choice"
        shown = ", ".join(map(repr, self.values))
        return f"{self.name} = {kind}({shown}, default={self.default!r})"

    @cached_property
    def _known(self) -> frozenset[tuple[type, Plain]]:
        return frozenset((type(v), v) for v in self.values)

    def check(self, value: Plain) -> None:
        if (type(value), value) not in self._known:
            raise Invalid(
                f"{self.name} is {value!r}, which is none of its values",
                hint=f"they are {', '.join(map(repr, self.values))}",
            )


def _is_in(value: Plain, values: tuple[Plain, ...]) -> bool:
    """`True` is not 1 here: one is an answer, the other a size."""
    return any(type(v) is type(value) and v == value for v in values)


@dataclass(frozen=True)
class Open:
    """An argument that depends on decisions: one of them, a product of whole numbers, or an item
    of one that is a tuple, at a place that may be a decision too."""

    names: tuple[str, ...]
    times: int = 1
    at: int | str | None = None

    def __str__(self) -> str:
        if self.at is not None:
            return f"{self.names[0]}[{self.at}]"
        factors = (*self.names, *((str(self.times),) if self.times != 1 else ()))
        return " * ".join(factors)

    @property
    def uses(self) -> tuple[str, ...]:
        return (*self.names, self.at) if isinstance(self.at, str) else self.names

    def value(self, given: Assignment) -> Plain:
        found = [given[name] for name in self.names]
        if self.at is not None:
            at = given[self.at] if isinstance(self.at, str) else self.at
            (items,) = found
            require(isinstance(items, tuple) and isinstance(at, int), f"{self} has no items")
            assert isinstance(items, tuple) and isinstance(at, int)
            require(0 <= at < len(items), f"{self.names[0]} has no item {at}")
            return items[at]
        if len(found) == 1 and self.times == 1:
            return found[0]
        numbers = [v for v in found if isinstance(v, int)]
        require(len(numbers) == len(found), f"{self} is not a product of numbers")
        return prod(numbers) * self.times


Argument = Union[Plain, Open, tuple["Argument", ...]]


def argument_text(x: Argument) -> str:
    if isinstance(x, Open):
        return str(x)
    if isinstance(x, tuple):
        return f"({', '.join(map(argument_text, x))}{',' if len(x) == 1 else ''})"
    return repr(x)


def argument_value(x: Argument, given: Assignment) -> Plain:
    if isinstance(x, Open):
        return x.value(given)
    if isinstance(x, tuple):
        return tuple(argument_value(v, given) for v in x)
    return x


def argument_names(x: Argument) -> tuple[str, ...]:
    """The decisions that an argument mentions."""
    if isinstance(x, Open):
        return x.uses
    return tuple(n for v in x for n in argument_names(v)) if isinstance(x, tuple) else ()


def parse_argument(x: ast.expr) -> Argument:
    """What `argument_text` wrote."""
    if isinstance(x, ast.Name):
        return Open((x.id,))
    if isinstance(x, ast.Tuple):
        return tuple(parse_argument(v) for v in x.elts)
    if isinstance(x, ast.Subscript) and isinstance(x.value, ast.Name):
        at = x.slice.id if isinstance(x.slice, ast.Name) else ast.literal_eval(x.slice)
        return Open((x.value.id,), at=at)
    if isinstance(x, ast.BinOp) and isinstance(x.op, ast.Mult):
        left, right = parse_argument(x.left), parse_argument(x.right)
        sides = [Open((), v) if type(v) is int else v for v in (left, right)]
        if all(isinstance(v, Open) for v in sides):
            a, b = sides
            assert isinstance(a, Open) and isinstance(b, Open)
            return Open((*a.names, *b.names), a.times * b.times)
    try:
        found = ast.literal_eval(x)
    except ValueError:
        raise Invalid(
            f"{ast.unparse(x)!r} is no argument of a step",
            hint="write a literal, a decision, or a product of these",
        ) from None
    return found


def factors(extent: int, most: int | None = None) -> tuple[int, ...]:
    """The divisors of an extent, up to some size."""
    most = extent if most is None else most
    return tuple(d for d in range(1, min(extent, most) + 1) if extent % d == 0)
