"""Torch programs taken apart: what is captured of them, judged operator by operator, and the calls
of the graphs inside."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx
from torch.utils import _pytree as pytree

from tilewright.base.errors import Invalid, TilewrightError
from tilewright.capture.torch.places import place_of
from tilewright.driver.looking.compare import Error, check, in_double
from tilewright.driver.looking.tables import count
from tilewright.driver.looking.validate import validate_graph
from tilewright.driver.program.interpreted import InterpretedProgram
from tilewright.driver.program.options import Options
from tilewright.driver.program.validation import Fault, Report, Row
from tilewright.driver.torch.api import Compiled, compile
from tilewright.driver.torch.backend import Session
from tilewright.driver.torch.options import TorchOptions
from tilewright.graph.values import Point
from tilewright.ir.node import Graph

# The interpreter adds up in another order than eager: it may be further from float64.
FACTOR, ULPS = 8.0, 64


@dataclass
class Capture:
    """What Dynamo captured, and the calls of native graphs that came of it."""

    modules: list[tuple[torch.fx.GraphModule, list[Any]]] = field(default_factory=list)
    calls: list[tuple[Graph, Point]] = field(default_factory=list)
    result: Any = None


class _Recorded(InterpretedProgram):
    """A graph on the interpreter, whose arguments are noted."""

    def __init__(self, graph: Graph, calls: list[tuple[Graph, Point]]) -> None:
        super().__init__(graph)
        self._calls = calls

    def evaluated(self, args: list[Any], sizes: dict[str, int]) -> list[Any]:
        if all(g is not self.graph for g, _ in self._calls):
            self._calls.append((self.graph, Point(tuple(a.copy() for a in args), dict(sizes))))
        return super().evaluated(args, sizes)


class _Recorder(Session):
    """Compiles nothing: graphs run on the interpreter."""

    def __init__(self, options: TorchOptions) -> None:
        super().__init__(options)
        self.capture = Capture()

    def backend(
        self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **rest: Any
    ) -> Callable[..., Any]:
        kept = copy.deepcopy(gm)
        run = super().backend(gm, example_inputs, **rest)

        def call(*args: Any) -> Any:
            self.capture.modules.append((kept, _copies(args)))
            return run(*args)

        return call

    def compile_graph(
        self, graph: Graph, machine: Any = None, updates: tuple[tuple[int, int], ...] = ()
    ) -> Any:
        if machine is not None:
            raise Invalid(
                "a program is taken apart on the CPU, and its tensors are on a GPU",
                hint="give it .cpu() and TILEWRIGHT_TARGET=cuda:90, which judges a GPU's passes "
                "and loops; tw.compile(…, validate=True) judges those of a program on the GPU",
            )
        return _Recorded(graph, self.capture.calls)


def _copies(args: Sequence[Any]) -> list[Any]:
    return [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in args]


def captured(function: Callable[..., Any], inputs: Sequence[Any], options: TorchOptions) -> Capture:
    """A run of a program on the interpreter, by torch's own way to call what is compiled."""
    session = _Recorder(options)
    run = Compiled(function, session, False, None)
    session.capture.result = run(*_copies(inputs))
    return session.capture


def agrees(ours: Any, eager: Any, reference: Any) -> Error:
    return check(ours, eager, reference, FACTOR, ULPS)


def bisect(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    options: Options,
    only_if_wrong: bool = True,
    **given: Any,
) -> list[Report]:
    """The stages of a torch program, up to the one that is wrong. `only_if_wrong`: none are looked
    at where the compiled program's results are right."""
    with torch.no_grad():
        eager = function(*_copies(inputs))
        reference = in_double(function, _copies(inputs))
        if only_if_wrong:
            ours = compile(function, *inputs, **given)(*_copies(inputs))
            if check(ours, eager, reference).right:
                return []
        began = time.perf_counter()
        capture = captured(function, inputs, TorchOptions.parse(given))
        first = Report("capture")
        error = agrees(capture.result, eager, reference)
        how = "the interpreter on the given inputs, against eager in float64"
        bound = f"{FACTOR:.0f} times eager's error, and {ULPS} units in the last place"
        graphs, seconds = count(len(capture.calls), "graph"), time.perf_counter() - began
        first.rows.append(Row("capture", "torch", graphs, how, bound, seconds))
        if not error.right:
            first.fault = _capture_fault(capture, error, TorchOptions.parse(given))
            return [first]
    reports = [first]
    for graph, point in capture.calls:
        reports.append(validate_graph(graph, options, [point]))
        if not reports[-1].right:
            return reports
    if only_if_wrong:
        said = "every stage is right, and the results are not: how graphs are called is wrong"
        first.fault = Fault("call", "tilewright/driver/torch", said)
    return reports


def _capture_fault(capture: Capture, error: Error, options: TorchOptions) -> Fault:
    """The first operator whose translation computes something else."""
    unjudged: dict[str, None] = {}
    for gm, args in capture.modules:
        finder = _Finder(gm, options)
        finder.run(*args)
        if finder.fault is not None:
            return finder.fault
        unjudged |= finder.unjudged
    said = f"{error.problem}; each operator alone is right"
    if unjudged:
        said += f", but for those that cannot be run alone: {', '.join(unjudged)}"
    return Fault("capture", "the graph", said)


class _Finder(torch.fx.Interpreter):
    """Runs a captured graph in eager, and each operator of it on the interpreter besides."""

    def __init__(self, gm: torch.fx.GraphModule, options: TorchOptions) -> None:
        super().__init__(gm)
        self.options = options
        self.fault: Fault | None = None
        self.unjudged: dict[str, None] = {}  # operators that cannot be run alone

    def run_node(self, n: torch.fx.Node) -> Any:
        before = pytree.tree_map(_copy, self.fetch_args_kwargs_from_env(n))
        found = super().run_node(n)
        if self.fault is None and n.op in ("call_function", "call_method"):
            self.fault = self._judged(n, *before)
        return found

    def _judged(self, n: torch.fx.Node, args: Any, kwargs: Any) -> Fault | None:
        leaves, form = pytree.tree_flatten((args, kwargs))
        at = [k for k, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
        tensors = [leaves[k] for k in at]
        if not tensors:
            return None

        def alone(*given: torch.Tensor) -> Any:
            every = list(leaves)
            for k, x in zip(at, given, strict=True):
                every[k] = x
            a, k = pytree.tree_unflatten(every, form)
            if n.op == "call_method":
                return getattr(a[0], str(n.target))(*a[1:], **k)
            assert callable(n.target), f"{n.target} is a function"
            return n.target(*a, **k)

        name = n._pretty_print_target(n.target)
        try:
            eager = alone(*_copies(tensors))
            reference = alone(*(x.double() if x.is_floating_point() else x for x in tensors))
            ours = captured(alone, tensors, self.options).result
        except (TilewrightError, RuntimeError, TypeError, torch._dynamo.exc.TorchDynamoException):
            self.unjudged[name] = None
            return None
        error = agrees(ours, eager, reference)
        if error.right:
            return None
        place = place_of(n)
        text = _program(n, tensors)
        said = str(error.problem)
        where = str(place) if place is not None else None
        return Fault("capture", name, said, operator=name, where=where, reproducer=text)


def _copy(x: Any) -> Any:
    return x.detach().clone() if isinstance(x, torch.Tensor) else x


def _program(n: torch.fx.Node, tensors: Sequence[torch.Tensor]) -> str:
    """The operator alone, as a program of random inputs of the same types."""
    graph = torch.fx.Graph()
    new: dict[torch.fx.Node, torch.fx.Node] = {}
    for x in n.all_input_nodes:
        new[x] = graph.placeholder(x.name)
    graph.output(graph.node_copy(n, lambda x: new[x]))
    code = torch.fx.GraphModule({}, graph).code.strip()
    code = code.replace("def forward(self, ", "def fault(")
    made = ", ".join(map(_random, tensors))
    head = "import torch\nfrom torch import device, inf, nan\n"
    return f"{head}\n\n{code}\n\n\nfault_inputs = ({made},)\n"


def _random(x: torch.Tensor) -> str:
    kind = str(x.dtype)
    if x.is_floating_point():
        return f"torch.randn({list(x.shape)}, dtype={kind})"
    high = 2 if x.dtype is torch.bool else 10
    return f"torch.randint(0, {high}, {list(x.shape)}).to({kind})"
