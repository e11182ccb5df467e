"""What is measured beside each other does not change each other."""

from __future__ import annotations

import torch
import torch._dynamo
from torch import Tensor

from tests.driver.ordinary_programs import apart


def test_a_function_that_one_compiler_passes_over_is_compiled_by_another() -> None:
    half = torch.tensor(0.5)

    def f(x: Tensor, times: int = 2, *, more: float = 1.0) -> Tensor:
        for _ in range(times):
            x = x * half + more
            if passes_over:
                torch._dynamo.graph_break()  # in a loop: the frame is passed over from now on
        return x

    seen = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        seen.append(graph)
        return graph

    torch._dynamo.reset()
    x = torch.ones(3)
    passes_over = True
    torch.compile(apart(f), backend="eager")(x)
    passes_over = False
    assert torch.equal(torch.compile(f, backend=backend)(x), apart(f)(x))
    assert seen
