"""Registration refuses an operator that says too little of itself, or something else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tilewright.ir.expr import Tensor
from tilewright.ir.node import Op
from tilewright.ir.operator import OPERATORS, Sample, operator
from tilewright.ir.types import TensorType


def facets() -> dict[str, Any]:
    """Those of an operator that is complete."""

    def infer(self: Op, x: TensorType) -> TensorType:
        return x

    def compute(self: Op, x: Tensor) -> Tensor:
        return x

    def reference(self: Op, x: np.ndarray) -> np.ndarray:
        return x

    def samples(cls: type[Op]) -> Iterator[Sample]:
        yield Sample(cls(), (np.zeros(3, np.float32),))

    made = {f.__name__: f for f in (infer, compute, reference)}
    return {**made, "samples": classmethod(samples)}


@pytest.mark.parametrize("missing", ["infer", "reference", "samples"])
def test_a_facet_that_is_missing(missing: str) -> None:
    body = {name: f for name, f in facets().items() if name != missing}
    with pytest.raises(TypeError, match=f"operator toy lacks {missing}"):
        operator(type("Toy", (Op,), body))


def test_two_definitions() -> None:
    body = facets()
    with pytest.raises(TypeError, match="exactly one of"):
        operator(type("Toy", (Op,), {**body, "program": body["compute"]}))


@pytest.mark.parametrize(("name", "value"), [("positions", len), ("view", ()), ("linear", 1)])
def test_a_property_of_another_type(name: str, value: object) -> None:
    """A method that happens to be called as a property is would be taken for it."""
    with pytest.raises(TypeError, match=f"operator toy: {name} is"):
        operator(type("Toy", (Op,), {**facets(), name: value}))
    assert "toy" not in OPERATORS
