"""What an operator does to small tensors, read off its definition.

An operator is evaluated on many tensors at once: its element at a symbolic index is one value
(rewrites/proofs/element.py), which is evaluated on arrays with an axis more. Most
operators are linear in each operand, or in all together: then its values on basis tensors say all
about it, and what follows of it is products of matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from tilewright.ir import dim as D
from tilewright.ir.expr import Load, Value
from tilewright.ir.interpret import Evaluator
from tilewright.ir.node import Node, Op, input, item, node
from tilewright.ir.positions import static
from tilewright.ir.types import TensorType, TupleType, f64
from tilewright.rewrites.proofs.element import Elements

# Elements of all points and reductions of one evaluation: more are done in several.
MOST = 1 << 24
# Whole numbers of float64 that are exact.
EXACT = 2.0**53

Shape = tuple[int, ...]
_FORMS: dict[tuple[Op, tuple[int, ...]], str] = {}


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
        return Elements().at(self._node, at)

    def __call__(self, *rows: np.ndarray) -> np.ndarray:
        """The results for rows of operands, as rows."""
        count = len(rows[0])
        step = max(1, MOST // (8 * max(self.size, *self.sizes)))
        parts = [self._some(*(r[k : k + step] for r in rows)) for k in range(0, count, step)]
        return np.concatenate(parts) if parts else np.zeros((0, self.size))

    def _some(self, *rows: np.ndarray) -> np.ndarray:
        count = len(rows[0])
        memory = {
            f"x{k}": np.ascontiguousarray(r.T).reshape(*s, count)
            for k, (r, s) in enumerate(zip(rows, self.shapes, strict=True))
        }
        rank = len(self.shape)
        grid = {
            f"@{k}": np.arange(n).reshape((1,) * (k + 1) + (-1,) + (1,) * (rank - k - 1))
            for k, n in enumerate(self.shape)
        }
        found = _Many(memory, {}, {**grid, "@which": np.zeros((1,) * (rank + 1), int)})(self._value)
        return np.broadcast_to(found, (count, *self.shape)).reshape(count, self.size)

    # ---- linear operators

    @property
    def form(self) -> str:
        """ "linear": in all operands together; "bilinear": in each of two; else "other". Sizes make
        no difference to it."""
        at = self.op, tuple(map(len, self.shapes))
        if at not in _FORMS:
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

    @cached_property
    def products(self) -> np.ndarray:
        """Of a bilinear operator: [elements of the first operand, of the second, the result's]."""
        n, m = self.sizes
        rows = np.repeat(np.eye(n), m, axis=0), np.tile(np.eye(m), (n, 1))
        return self(*rows).reshape(n, m, self.size)


class _Many(Evaluator):
    """Evaluates on many tensors at once: their number is the first axis of every value, and the
    last one of what is in memory."""

    def _element(self, v: Load, a: np.ndarray) -> np.ndarray:
        index = [np.asarray(self.dim(i)) for i in v.index]
        if not index:
            return a.reshape((-1,) + (1,) * (np.ndim(self.env["@which"]) - 1))
        wide = np.broadcast_arrays(self.env["@which"], *index)[1:]
        inside = [np.clip(i[0], 0, n - 1) for i, n in zip(wide, a.shape, strict=False)]
        return np.moveaxis(a[tuple(inside)], -1, 0)
