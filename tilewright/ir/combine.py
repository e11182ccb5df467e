"""How a reduction puts partial results together, and what it starts from.

A combine is the name of a scalar function (`add`, `max`, …) or a `Combiner` of a user's own, over
one component or over the several of a tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Union

from tilewright.ir.parts import tuple_of
from tilewright.ir.scalar import neutral
from tilewright.ir.types import DType, tuple_dtype
from tilewright.ir.values import Const, Load, Value, const, load, rewrite


@dataclass(frozen=True)
class Combiner:
    """How a reduction of a user's own puts two partial results together, component by component.

    `results` are over loads `l0[]`, `l1[]`, … and `r0[]`, `r1[]`, …, the components of both sides.
    That it is associative and commutative, and `neutral` its neutral element, is up to the author;
    it is not checked.
    """

    name: str
    results: tuple[Value, ...]
    neutral: tuple[Const, ...]

    @property
    def dtype(self) -> DType:
        """Of what is reduced: a tuple where there are several components."""
        found = tuple(x.dtype for x in self.neutral)
        return found[0] if len(found) == 1 else tuple_dtype(found)

    def check(self, dtype: DType) -> None:
        """Raise where values of this dtype are not what is reduced."""
        if self.dtype is not dtype:
            raise TypeError(f"{self} reduces {self.dtype}, not {dtype}")

    def __call__(self, left: Sequence[Value], right: Sequence[Value]) -> tuple[Value, ...]:
        sides = {f"l{k}": x for k, x in enumerate(left)} | {f"r{k}": x for k, x in enumerate(right)}

        def side(x: Load) -> Value:
            return sides[str(x.source)]

        return tuple(rewrite(v, on_load=side) for v in self.results)

    def __str__(self) -> str:
        return self.name


Combine = Union[str, Combiner]


def combiner(
    name: str,
    combine: Callable[[tuple[Value, ...], tuple[Value, ...]], Sequence[Value]],
    neutral: Sequence[Const],
) -> Combiner:
    """`combine(left, right)` gives the components of both together."""
    sides = [tuple(load(f"{s}{k}", (), x.dtype) for k, x in enumerate(neutral)) for s in "lr"]
    results = tuple(combine(*sides))
    want, got = [x.dtype for x in neutral], [x.dtype for x in results]
    if want != got:
        raise TypeError(f"{name} makes {got} of {want}")
    return Combiner(name, results, tuple(neutral))


def identity(combine: Combine, dtype: DType) -> Value:
    """The neutral element of a reduction."""
    if isinstance(combine, str):
        return const(neutral(combine, dtype), dtype)
    combine.check(dtype)
    return combine.neutral[0] if len(combine.neutral) == 1 else tuple_of(*combine.neutral)
