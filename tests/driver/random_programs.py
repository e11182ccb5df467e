"""Random graphs, compiled, against a float64 evaluation of their definitions.

python -m tests.driver.random_programs --count 2000 [--first SEED]
"""

from __future__ import annotations

import warnings

import numpy as np

from tests.driver.running import call
from tests.generators import Failure, Generator, compiling
from tests.ir.judge import Case, disagreement, of_operands, reference, smaller
from tests.ir.random_graphs import random_case
from tests.seeds import run_generator
from tests.shrinking import error, shrunk
from tilewright.driver.program.options import Options
from tilewright.driver.program.programs import compile_graph
from tilewright.ir.text import print_graph


def failure(case: Case, options: Options | None = None) -> Failure | None:
    """What is wrong with the compiled graph, or None."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # overflow on extreme values is part of the test
        right = [reference(case.graph, c.args, c.dims) for c in case.calls]
        try:
            with compiling():
                program = compile_graph(case.graph, options)
            got = [call(program, c.args, c.dims) for c in case.calls]
        except Exception as problem:  # reported with the graph that shows it
            return error(problem)
    for c, (expected, allowed), results in zip(case.calls, right, got, strict=True):
        if disagreement(expected, allowed, results) is None:
            continue
        more = of_operands(case.graph, c.args, c.dims)
        allowed = [a + b for a, b in zip(allowed, more, strict=True)]
        if found := disagreement(expected, allowed, results):
            return Failure("wrong result", found + (f" with {dict(c.dims)}" if c.dims else ""))
    return None


def about(case: Case) -> str:
    return " ".join(sorted({n.op.name for n in case.graph.nodes()} - {"input", "constant"}))


def as_code(case: Case, module: str = __name__) -> str:
    calls = ""
    for c in case.calls:
        args = "".join(f"            {_array(a)},\n" for a in c.args)
        calls += f"    Call(\n        (\n{args}        ),\n        {dict(c.dims)},\n    ),\n"
    return (
        "import numpy as np\n\n"
        f"from {module} import GENERATOR\n"
        "from tests.generators import reproduce\n"
        "from tests.ir.judge import Call, Case\n"
        "from tilewright.ir.text import parse_graph\n\n"
        f'GRAPH = """{print_graph(case.graph)}"""\n\n'
        f"CALLS = (\n{calls})\n\n"
        "reproduce(GENERATOR, Case(parse_graph(GRAPH), CALLS))\n"
    )


def _array(a: np.ndarray) -> str:
    listed = repr(a.tolist()).replace("nan", "np.nan").replace("inf", "np.inf")
    return f"np.array({listed}, np.{a.dtype.name}).reshape({a.shape})"


def check_seed(seed: int) -> None:
    """Raises with the smallest graph that still fails."""
    case = random_case(seed)
    found = failure(case)
    if found is not None:
        small, why = shrunk(GENERATOR, case, found, failure, 60)
        raise AssertionError(f"seed {seed}: {why}\n{print_graph(small.graph)}")


GENERATOR = Generator("graphs", random_case, failure, smaller, as_code, about)

if __name__ == "__main__":
    raise SystemExit(run_generator("graphs", 2000, __doc__))
