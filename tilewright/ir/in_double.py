"""Programs evaluated in float64: every float is twice as wide, and casts between floats round
nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.ir.expr import Fn
from tilewright.ir.interpret import Evaluator, evaluate
from tilewright.ir.node import Graph
from tilewright.ir.types import DType, f64


def in_double(
    graph: Graph, args: Sequence[np.ndarray], dims: Mapping[str, int] | None = None
) -> list[np.ndarray]:
    """The outputs of a graph, computed in float64."""
    return evaluate(graph, args, dims, Doubles)


def _wide(dtype: DType) -> DType:
    return f64 if dtype.is_float else dtype


class Doubles(Evaluator):
    """Evaluates values with float64 for every float."""

    @classmethod
    def held(cls, dtype: DType) -> np.dtype:
        return _wide(dtype).numpy

    def number(self, value: Any, dtype: DType) -> np.ndarray:
        return super().number(value, _wide(dtype))

    def fitted(self, x: Any, dtype: DType) -> np.ndarray:
        return super().fitted(x, _wide(dtype))

    def function(self, v: Fn, args: Sequence[Any], dtype: DType) -> Any:
        if v.name == "cast" and dtype.is_float:
            return np.asarray(args[0], np.float64)
        return super().function(v, args, _wide(dtype))

    def folded(self, combine: str, x: np.ndarray, n: int, dtype: DType) -> np.ndarray:
        return super().folded(combine, x, n, _wide(dtype))

    def joined(self, combine: str, a: Any, b: Any, dtype: DType) -> Any:
        return super().joined(combine, a, b, _wide(dtype))
