"""Random graphs, compiled, against a float64 evaluation of their definitions.

python -m tests.driver.random_programs --count 2000 [--first SEED]
"""

from __future__ import annotations

import argparse
import warnings

from rich.console import Console
from rich.progress import track

from tests.driver.running import run_graph
from tests.ir.judge import disagreement, reference, shrink
from tests.ir.random_graphs import random_graph
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    console = Console()
    bad = 0
    seeds = range(options.first, options.first + options.count)
    for seed in track(seeds, description="random graphs", console=console):
        try:
            check_seed(seed)
        except AssertionError as problem:
            bad += 1
            console.print(str(problem), markup=False)
    console.print(f"{options.count} graphs from seed {options.first}: {bad} wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
