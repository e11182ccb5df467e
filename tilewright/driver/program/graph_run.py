"""A graph on random inputs: native code and the interpreter, both compared with float64."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.ir.in_double import in_double
from tilewright.ir.interpret import evaluate
from tilewright.ir.narrow import FORMATS
from tilewright.ir.node import Graph
from tilewright.ir.types import TensorType

DIGITS = {"f64": 52, "f32": 23, **{name: f.fraction for name, f in FORMATS.items()}}


@dataclass(frozen=True)
class Judged:
    """One result: its largest error against float64, and what is allowed."""

    type: TensorType
    error: float
    allowed: float

    @property
    def right(self) -> bool:
        return self.error <= self.allowed


def judge(
    graph: Graph,
    arrays: Sequence[np.ndarray],
    got: Sequence[np.ndarray],
    sizes: Mapping[str, int] | None = None,
) -> list[Judged]:
    """Is what native code gave right?"""
    own, exact = evaluate(graph, arrays, sizes), in_double(graph, arrays, sizes)
    out = []
    for o, x, y, z in zip(graph.outputs, got, own, exact, strict=True):
        t = o.ttype
        if not t.dtype.is_float:
            out.append(Judged(t, float(np.count_nonzero(x != y)), 0.0))
            continue
        finite = np.isfinite(y) & np.isfinite(z)
        if not np.array_equal(np.isfinite(x), np.isfinite(y)):
            out.append(Judged(t, math.inf, 0.0))
            continue
        x, y, z = (np.where(finite, v, 0).astype(np.float64) for v in (x, y, z))
        largest = float(np.abs(z).max(initial=0.0))
        ulp = 2.0 ** (math.floor(math.log2(max(largest, 1e-30))) - DIGITS[t.dtype.name])
        error, theirs = (float(np.abs(v - z).max(initial=0.0)) for v in (x, y))
        # A larger error than eager may have: numpy sums pairwise, native code need not.
        out.append(Judged(t, error, 4 * theirs + 16 * ulp))
    return out
