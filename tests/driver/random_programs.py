"""Random graphs, compiled, against a float64 evaluation of their definitions.

python -m tests.driver.random_programs --count 2000 [--first SEED]
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np

from tests.driver.running import call
from tests.generators import Failure, Generator, compiling
from tests.ir import judge
from tests.ir.judge import Args, disagreement, reference
from tests.ir.random_graphs import random_graph
from tests.seeds import run_generator
from tests.shrinking import error, shrunk
from tilewright.driver.compile import compile_graph
from tilewright.ir.node import Graph
from tilewright.ir.text import print_graph

Case = tuple[Graph, Args]


def failure(case: Case) -> Failure | None:
    """What is wrong with the compiled graph, or None."""
    graph, args = case
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # overflow on extreme values is part of the test
        expected, allowed = reference(graph, args)
        try:
            with compiling():
                program = compile_graph(graph)
            got = call(program, args)
        except Exception as problem:  # reported with the graph that shows it
            return error(problem)
    found = disagreement(expected, allowed, got)
    return Failure("wrong result", found) if found else None


def smaller(case: Case) -> Iterator[Case]:
    return judge.smaller(*case)


def about(case: Case) -> str:
    return " ".join(sorted({n.op.name for n in case[0].nodes()} - {"input", "constant"}))


def as_code(case: Case) -> str:
    graph, args = case
    given = "".join(f"    {_array(a)},\n" for a in args)
    return (
        "import numpy as np\n\n"
        "from tests.driver.random_programs import GENERATOR\n"
        "from tests.generators import reproduce\n"
        "from tilewright.ir.text import parse_graph\n\n"
        f'GRAPH = """{print_graph(graph)}"""\n\n'
        f"ARGS = [\n{given}]\n\n"
        "reproduce(GENERATOR, (parse_graph(GRAPH), ARGS))\n"
    )


def _array(a: np.ndarray) -> str:
    listed = repr(a.tolist()).replace("nan", "np.nan").replace("inf", "np.inf")
    return f"np.array({listed}, np.{a.dtype.name}).reshape({a.shape})"


def check_seed(seed: int) -> None:
    """Raises with the smallest graph that still fails."""
    case = random_graph(seed)
    found = failure(case)
    if found is not None:
        small, why = shrunk(GENERATOR, case, found, failure, 60)
        raise AssertionError(f"seed {seed}: {why}\n{print_graph(small[0])}")


GENERATOR = Generator("graphs", random_graph, failure, smaller, as_code, about)

if __name__ == "__main__":
    raise SystemExit(run_generator("graphs", 2000, __doc__))
