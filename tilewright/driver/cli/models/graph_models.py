"""Graphs that are given as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright import ops  # noqa: F401  graph texts name operators
from tilewright.base.errors import Invalid
from tilewright.driver.cli.models.model import How, Model, Result, Step
from tilewright.driver.looking.explain import Explanation, explain
from tilewright.driver.looking.validate import bisect_graph, validate_graph
from tilewright.driver.program.arrays import random_inputs, run_arrays
from tilewright.driver.program.graph_run import Judged, judge
from tilewright.driver.program.programs import compile_graph
from tilewright.driver.program.validation import Report
from tilewright.graph.specialise import specialise
from tilewright.graph.values import MOST_WORK, work
from tilewright.ir.interpret import bind_dims
from tilewright.ir.node import Graph, Input
from tilewright.ir.text import parse_graph
from tilewright.ir.types import as_dtype


def load(path: Path) -> GraphModel:
    try:
        return GraphModel(parse_graph(path.read_text()))
    except Invalid as problem:
        problem.where = f"{path}" + (f", {problem.where}" if problem.where else "")
        raise


class GraphModel(Model):
    def __init__(self, graph: Graph) -> None:
        self.name, self.graph = graph.name, graph

    def explained(self, how: How, **options: Any) -> Explanation:
        return explain(compile_graph(self.graph, how.options(**options)))

    def results(self, how: How, step: Step, check: bool | None = None) -> list[Result]:
        arrays, sizes = self.arrays(how)
        with step(f"compiling {self.name}"):
            program = compile_graph(self.graph, how.options())
        got = run_arrays(program, arrays, sizes)
        names = [f"{self.name} {k}" for k in range(len(got))] if len(got) > 1 else [self.name]
        types = [str(o.dtype) for o in self.graph.outputs]
        judged = Interpreted(self.graph, arrays, sizes, step, check)
        return judged.results(names, types, got)

    def stages(self, how: How, only_if_wrong: bool) -> list[Report]:
        judged = bisect_graph if only_if_wrong else validate_graph
        return [judged(self.graph, how.options())]

    def arrays(self, how: How) -> tuple[list[np.ndarray], dict[str, int]]:
        """Arguments, and the sizes that they give to symbolic dims."""
        if not how.inputs:
            if any(not n.ttype.is_static for n in self.graph.inputs):
                raise self.needs_inputs(": it has symbolic dims")
            return random_inputs(self.graph), {}
        labels = [n.op.label for n in self.graph.inputs if isinstance(n.op, Input)]
        given, sizes = how.inputs.placed(labels, self.name), dict[str, int]()
        arrays: list[np.ndarray] = []
        for n, label in zip(self.graph.inputs, labels, strict=True):
            if label not in given:
                raise Invalid(f"the input {label!r} is missing", hint=f"it is {n.ttype!r}")
            bind_dims(n.ttype, given[label].array.shape, sizes, f"the input {label!r}")
            arrays.append(as_dtype(given[label].array, n.dtype))
        return arrays, sizes


@dataclass(frozen=True)
class Interpreted:
    """A graph's results, compared with those of the interpreter."""

    graph: Graph
    arguments: Sequence[np.ndarray]
    sizes: Mapping[str, int]
    step: Step
    check: bool | None

    def results(
        self, names: Sequence[str], types: Sequence[str], got: Sequence[np.ndarray]
    ) -> list[Result]:
        plain = [Result(*x) for x in zip(names, types, got, strict=True)]
        if self.check is False:
            return plain
        if self.check is None and work(specialise(self.graph, self.sizes)) > MOST_WORK:
            why = "the interpreter would take long; --check asks for it"
            return [replace(r, unchecked=why) for r in plain]
        with self.step("running on the interpreter"):
            judged = judge(self.graph, self.arguments, got, self.sizes)
        return [_with(r, j) for r, j in zip(plain, judged, strict=True)]


def _with(r: Result, j: Judged) -> Result:
    why = None if j.right else f"error {j.error:.3g} where {j.allowed:.3g} is allowed"
    return replace(r, error=j.error, allowed=j.allowed, problem=why)
