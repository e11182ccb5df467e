"""The one place where the suites touch the compiler: how it is called and how its work is counted.

Every suite takes a backend by name: `tilewright`, `searched` for the same by the graph that a
search prefers whatever a clock says of it, `interpreter` for the same with definitions evaluated by
numpy, or one of torch's. `counting` captures with the same decompositions, counts the operators
that reach a backend and runs them in eager: the suites can be tried on it, and cold compile time is
measured against it.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func

import tilewright as tw
from tilewright.capture.torch.decompositions import decompositions
from tilewright.driver.program.searched import with_search
from tilewright.driver.torch.backend import FallbackError

OURS: dict[str, dict[str, Any]] = {
    "tilewright": {},
    "searched": {"passes": str(with_search(tw.passes()))},
    # Numpy evaluates every operator's definition: slow, and right or wrong without code generation.
    "interpreter": {"executor": "interpreter"},
}


@dataclass
class Work:
    """What a backend did while it was watched."""

    kernels: int = 0
    libraries: list[str] = field(default_factory=list)  # what libraries were called for
    fallbacks: list[str] = field(default_factory=list)
    operators: set[str] = field(default_factory=set)


def compiled(
    function: Callable, backend: str, *, strict: bool, fullgraph: bool, work: Work
) -> Callable:
    """`function` under torch.compile; a strict one raises where it would fall back to eager."""
    if backend in OURS:
        options: Any = {"strict": strict, **OURS[backend]}
        return torch.compile(function, backend="tilewright", fullgraph=fullgraph, options=options)
    chosen: Any = counting(work) if backend == "counting" else backend
    return torch.compile(function, backend=chosen, fullgraph=fullgraph)


@contextmanager
def watched(backend: str) -> Iterator[Work]:
    """Counts native kernels and fallbacks of everything compiled inside."""
    work = Work()
    if backend not in OURS:
        yield work
        return
    with tw.record() as log:
        try:
            yield work
        finally:
            for event in log.of("compile"):
                work.kernels += event.data["kernels"]
            work.libraries += [event.data["operator"] for event in log.of("library")]
            work.fallbacks += [event.data["operator"] for event in log.of("fallback")]


def unsupported_operators(error: BaseException) -> list[str]:
    """The operators that a strict refusal names; empty when the error is about something else."""
    text = str(error)
    if not isinstance(error, FallbackError) and "would run in eager" not in text:
        return []
    return sorted(set(re.findall(r"\b(?:aten|prims|torch_nn)\.\w+(?:\.\w+)?", text))) or ["?"]


def counting(work: Work) -> Callable:
    """A backend that counts what it is given and runs it in eager, one operator at a time."""

    def run_in_eager(graph: torch.fx.GraphModule, _examples: Any) -> Callable:
        names = [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]
        work.operators.update(names)
        work.kernels += len(names)
        return make_boxed_func(graph.forward)

    return aot_autograd(fw_compiler=run_in_eager, decompositions=decompositions())
