"""Left sides to try a rule on: random or symbolic shapes, every dtype the rule is for."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Node, input
from tilewright.ir.operator import OPERATORS
from tilewright.ir.pattern import Apply, Filled, Pattern, Rest, Rule, Var, make
from tilewright.ir.types import DType, TensorType, b1, f32


class Maker:
    """Makes inputs, dims and attributes. With `symbolic`, dims stand for all sizes. `one_shape` is
    the shape of every operand of a pattern."""

    def __init__(
        self,
        seed: int,
        symbolic: bool = False,
        dtype: DType = f32,
        one_shape: tuple[int, ...] | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        self.symbolic, self.dtype, self.one_shape = symbolic, dtype, one_shape
        self._count = 0

    def dim(self, lo: int = 0, hi: int = 5) -> Dim:
        """A symbol of at least `lo`, or a small number."""
        self._count += 1
        return D.sym(f"n{self._count}", lo) if self.symbolic else self.rng.randint(lo, hi)

    def whole(self, lo: int, hi: int) -> int:
        """A plain number, in any case."""
        return self.rng.randint(lo, hi)

    def coin(self) -> bool:
        return self.rng.random() < 0.5

    def shape(self, rank: int | None = None, lo: int = 0, hi: int = 5) -> tuple[Dim, ...]:
        rank = self.rng.randint(0, 3) if rank is None else rank
        return tuple(self.dim(lo, hi) for _ in range(rank))

    def perm(self, rank: int) -> tuple[int, ...]:
        return tuple(self.rng.sample(range(rank), rank))

    def tensor(
        self,
        label: str,
        shape: Sequence[Dim] | None = None,
        dtype: DType | None = None,
        role: str = "arg",
    ) -> Node:
        dims = self.shape() if shape is None else tuple(shape)
        return input(label, TensorType(dtype or self.dtype, dims), role)

    def weight(self, label: str, shape: Sequence[Dim]) -> Node:
        return self.tensor(label, shape, role="weight")

    def condition(self, label: str, shape: Sequence[Dim]) -> Node:
        return self.tensor(label, shape, b1)

    def scalar(self, value: float | int, dtype: DType | None = None) -> Node:
        return make("full", shape=(), value=value, dtype=dtype or self.dtype)


def subject_of(rule: Rule, maker: Maker) -> Node:
    """A left side of the rule: from its `subject`, or its pattern over tensors of one shape."""
    if rule.subject is not None:
        return rule.subject(maker)
    shape = maker.shape() if maker.one_shape is None else maker.one_shape
    bound: dict[str, Node] = {}

    def go(p: Pattern) -> Node:
        if isinstance(p, Var):
            if p.name not in bound:
                # Some operands are broadcast, to try what that does to the rule.
                own = tuple(1 if maker.rng.random() < 0.2 else d for d in shape)
                first = not bound or maker.one_shape is not None
                bound[p.name] = maker.tensor(p.name, shape if first else own)
            return bound[p.name]
        if isinstance(p, Filled):
            return maker.scalar(p.value)
        if isinstance(p, Apply) and not any(isinstance(a, Rest) for a in p.args):
            if any(not isinstance(v, (int, float, str, bool, tuple)) for _, v in p.attrs):
                raise Invalid(f"rule {rule.name} needs a subject: its pattern has attributes")
            args = list(map(go, p.args))
            if OPERATORS[p.op].commutative and maker.coin():
                args.reverse()  # which is matched too
            return make(p.op, *args, **dict(p.attrs))
        raise Invalid(f"rule {rule.name} needs a subject: {p!r} cannot be made up")

    return go(rule.left)
