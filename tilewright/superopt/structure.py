"""What an operator does to small tensors, read off its definition.

An operator is evaluated on many tensors at once: its element at a symbolic index is one value
(rewrites/proofs/element.py), which is evaluated on arrays with an axis more. Most
operators are linear in each operand, or in all together: then its values on basis tensors say all
about it, and what follows of it is products of matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from tilewright.base.errors import Unsupported
from tilewright.ir import dim as D
from tilewright.ir.expr import Fn, Load, Value
from tilewright.ir.interpret import Evaluator
from tilewright.ir.node import Constant, Node, Op, input, item, node
from tilewright.ir.positions import static
from tilewright.ir.types import DType, TensorType, TupleType, f64
from tilewright.rewrites.proofs.element import Elements

# Elements of all points and reductions of one evaluation: more are done in several.
MOST = 1 << 24
# Whole numbers of float64 that are exact.
EXACT = 2.0**53

Shape = tuple[int, ...]
_FORMS: dict[tuple[Op, tuple[int, ...]], str] = {}


class Many(Evaluator):
    """Evaluates on many tensors at once: their number is the first axis of every value, and the
    last one of what is in memory."""

    def _element(self, v: Load, a: np.ndarray) -> np.ndarray:
        index = [np.asarray(self.dim(i)) for i in v.index]
        if not index:
            return a.reshape((-1,) + (1,) * (np.ndim(self.env["@which"]) - 1))
        wide = np.broadcast_arrays(self.env["@which"], *index)[1:]
        inside = [np.clip(i[0], 0, n - 1) for i, n in zip(wide, a.shape, strict=False)]
        return np.moveaxis(a[tuple(inside)], -1, 0)


class Whole(Many):
    """In whole numbers, as float64: there are no NaN and no signs of zeros."""

    def function(self, v: Fn, args: Sequence[Any], dtype: DType) -> Any:
        if dtype.is_float and v.name in ("max", "min"):
            return (np.maximum if v.name == "max" else np.minimum)(*args)
        return super().function(v, args, dtype)


@dataclass(frozen=True)
class Structure:
    """An operator on operands of given shapes. Tensors are rows of their elements."""

    op: Op
    shapes: tuple[Shape, ...]

    @cached_property
    def shape(self) -> Shape:
        return static(self._node.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Elements of each operand."""
        return tuple(map(prod, self.shapes))

    @cached_property
    def _node(self) -> Node:
        types = (TensorType(f64, s) for s in self.shapes)
        made = node(self.op, *(input(f"x{k}", t) for k, t in enumerate(types)))
        return item(made, 0) if isinstance(made.type, TupleType) else made

    @cached_property
    def _value(self) -> Value:
        at = [D.var(f"@{k}", d) for k, d in enumerate(self.shape)]
        elements = Elements()
        found = elements.at(self._node, at)
        if any(isinstance(n.op, Constant) for n in elements.names):
            raise Unsupported(f"{self.op.name} has constants inside")
        return found

    def __call__(self, *rows: np.ndarray, by: type[Many] = Whole) -> np.ndarray:
        """The results for rows of operands, as rows. Operands may have more axes in front, which
        evaluators that know of them take."""
        count = rows[0].shape[-2]
        step = max(1, MOST // (8 * max(self.size, *self.sizes)))
        parts = [
            self._some([r[..., k : k + step, :] for r in rows], by) for k in range(0, count, step)
        ]
        return np.concatenate(parts) if parts else np.zeros((0, self.size))

    def _some(self, rows: list[np.ndarray], by: type[Many]) -> np.ndarray:
        count = rows[0].shape[-2]
        memory = {
            f"x{k}": np.ascontiguousarray(r.swapaxes(-1, -2)).reshape(*r.shape[:-2], *s, count)
            for k, (r, s) in enumerate(zip(rows, self.shapes, strict=True))
        }
        rank = len(self.shape)
        grid = {
            f"@{k}": np.arange(n).reshape((1,) * (k + 1) + (-1,) + (1,) * (rank - k - 1))
            for k, n in enumerate(self.shape)
        }
        found = by(memory, {}, {**grid, "@which": np.zeros((1,) * (rank + 1), int)})(self._value)
        return np.broadcast_to(found, (count, *self.shape)).reshape(count, self.size)

    # ---- linear operators

    @property
    def form(self) -> str:
        """ "linear": in all operands together; "bilinear": in each of two; else "other". Sizes make
        no difference to it."""
        at = self.op, tuple(map(len, self.shapes))
        if at not in _FORMS:
            with np.errstate(all="ignore"):
                _FORMS[at] = self._form()
        return _FORMS[at]

    def _form(self) -> str:
        rng = np.random.default_rng(1)
        a, b = ([rng.integers(-9, 10, (3, n)).astype(float) for n in self.sizes] for _ in "ab")
        none = [np.zeros((3, n)) for n in self.sizes]

        def additive(first: list[np.ndarray], second: list[np.ndarray]) -> bool:
            both = [x + y if x is not y else x for x, y in zip(first, second, strict=True)]
            left, right = self(*both), self(*first) + self(*second)
            scaled = [3 * x if x is not y else x for x, y in zip(first, second, strict=True)]
            return bool((left == right).all() and (self(*scaled) == 3 * self(*first)).all())

        found = self(*a)
        if not np.array_equal(found, np.rint(found)):  # quotients: sums of them are rounded
            return "other"
        if not self(*none).any() and additive(a, b):
            return "linear"
        if len(self.sizes) == 2 and additive(a, [b[0], a[1]]) and additive(a, [a[0], b[1]]):
            return "bilinear"
        return "other"

    @cached_property
    def matrices(self) -> tuple[np.ndarray, ...]:
        """Of a linear operator, for each operand: [its elements, the result's]."""
        out = []
        for k, n in enumerate(self.sizes):
            rows = [np.eye(n) if j == k else np.zeros((n, m)) for j, m in enumerate(self.sizes)]
            out.append(self(*rows))
        return tuple(out)

    def forms(self, weights: np.ndarray, p: int) -> np.ndarray:
        """Of a bilinear operator: the weighted sum of a result's elements, modulo p, as a form of
        both operands: [elements of the first, of the second]."""
        n, m = self.sizes
        out = np.zeros((n, m))
        i, j, k, times = self._products
        np.add.at(out, (i, j), times * weights[k] % p)
        return out % p

    @cached_property
    def _products(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Of a bilinear operator: element k of the result is the sum of elements i of the first
        operand times j of the second, so many times."""
        n, m = self.sizes
        # In most operators an element of the first is multiplied by one of the second for each of
        # the result: which one that is, numbers in place of the second say.
        rng = np.random.default_rng(1)
        tried = np.stack([np.ones(m), np.arange(1.0, m + 1), *rng.integers(1, 1 << 16, (2, m))])
        rows = np.tile(np.eye(n), (len(tried), 1)), np.repeat(tried, n, axis=0)
        times, place, *others = self(*rows).reshape(len(tried), n, self.size)
        i, k = np.nonzero((times != 0) | (place != 0) | (others[0] != 0))
        number = times[i, k]
        j = np.rint(place[i, k] / np.where(number, number, 1)).astype(int) - 1
        if ((0 <= j) & (j < m)).all() and all(
            np.array_equal(number * t[j], found[i, k])
            for t, found in zip(tried[2:], others, strict=True)
        ):
            return i, j, k, number
        rows = np.repeat(np.eye(n), m, axis=0), np.tile(np.eye(m), (n, 1))
        dense = self(*rows).reshape(n, m, self.size)
        i, j, k = np.nonzero(dense)
        return i, j, k, dense[i, j, k]
