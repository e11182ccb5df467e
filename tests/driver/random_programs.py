"""Random graphs, compiled, against a float64 evaluation of their definitions.

python -m tests.driver.random_programs --count 2000 [--first SEED]
"""

from __future__ import annotations

import warnings

from tests.driver.running import run_graph
from tests.ir.judge import disagreement, reference, shrink
from tests.ir.random_graphs import random_graph
from tests.seeds import run_seeds
from tilewright.ir.node import Graph
from tilewright.ir.text import print_graph


def fault(graph: Graph, args) -> str | None:
    """What is wrong with the compiled graph, or None."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # overflow on extreme values is part of the test
        expected, allowed = reference(graph, args)
        try:
            got = run_graph(graph, args)
        except Exception as problem:  # reported with the graph that shows it
            return f"{type(problem).__name__}: {problem}"
    found = disagreement(expected, allowed, got)
    return str(found) if found else None


def check_seed(seed: int) -> None:
    """Raises with the smallest graph that still fails."""
    graph, args = random_graph(seed)
    problem = fault(graph, args)
    if problem is None:
        return
    small, _ = shrink(graph, args, lambda g, a: fault(g, a) is not None)
    raise AssertionError(f"seed {seed}: {problem}\n{print_graph(small)}")


if __name__ == "__main__":
    raise SystemExit(run_seeds(check_seed, "graphs", 2000, __doc__))
