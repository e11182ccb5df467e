"""Equal regions of a graph are rewritten and cut into clusters once: what is made is the same."""

from __future__ import annotations

import pytest

from tests.driver.program.random_regions import COLUMNS, ROWS, build, check_seed, compared
from tests.seeds import drawn
from tilewright import targets
from tilewright.base.events import Log
from tilewright.driver.program.compile import split
from tilewright.driver.program.default_passes import passes
from tilewright.driver.program.distinct import structure
from tilewright.driver.program.options import Options
from tilewright.driver.program.schedules import by_first_use
from tilewright.graph.fuse import fuse
from tilewright.ir.node import Graph, Input, Node, constant, input, topological
from tilewright.ir.repeated import find, shortened
from tilewright.ir.text import parse_graph, print_graph
from tilewright.ir.types import TensorType, f32, i64


def _graph(*outputs: Node) -> Graph:
    inputs = tuple(n for n in topological(outputs) if isinstance(n.op, Input))
    return Graph("layers", inputs, outputs)


def _layers(count: int, odd: int | None = None, dropout: bool = False) -> Graph:
    """Layers of a norm, a product and an activation; one of them may be another one."""
    x = input("x", TensorType(f32, (ROWS, COLUMNS)))
    seed = input("seed", TensorType(i64, ()), "scalar")
    for k in range(count):
        w = input(f"w{k}", TensorType(f32, (COLUMNS, COLUMNS)), "weight")
        centred = build.sub(x, build.mean(x, (1,), True))
        y = build.matmul(
            build.mul(centred, build.rsqrt(build.mean(build.square(x), (1,), True))), w
        )
        y = build.tanh(y) if k == odd else build.gelu(y)
        if dropout:
            number = constant(k + 1 << 32, i64, passed=True)
            y = build.mul(y, build.rand(seed, number, (ROWS, COLUMNS), f32))
        x = build.add(x, y)
    return _graph(x)


@pytest.mark.parametrize("seed", drawn(range(100, 130), 2))
def test_random_layers(seed: int) -> None:
    check_seed(seed)


@pytest.mark.parametrize("target", ["x86-64-v4", "cuda:90"])
def test_layers_become_what_they_were(target: str) -> None:
    assert compared(_layers(12), targets.get(target))


@pytest.mark.parametrize("target", ["x86-64-v4", "cuda:90"])
def test_all_passes_go_by_regions(target: str) -> None:
    """One that does not would have layers written out before it, and found again behind it."""
    assert not [p.name for p in passes(target) if not p.order.regions]


def test_what_is_rewritten_does_not_grow() -> None:
    sizes = set()
    for count in (8, 16, 40):
        short = shortened(_layers(count))
        assert short is not None and short.left_out >= count - 6
        sizes.add(len(short.graph.nodes()))
    assert len(sizes) == 1


def test_other_layers_are_no_region() -> None:
    """Regions are on one side of a layer that differs, or there are none."""
    run = find(_layers(20, odd=14))
    assert run is not None and 12 <= run.count <= 14
    assert find(_layers(9, odd=4)) is None


def test_what_reads_all_layers_prevents_it() -> None:
    inside = _layers(14)
    sums = [n for n in inside.nodes() if n.op.name == "add"]
    assert find(_graph(build.concat(sums, 0))) is None


def test_layers_with_random_numbers_share_kernels() -> None:
    """The stream of each layer is an argument of its kernel."""
    target = targets.get("x86-64-v4")
    counts = set()
    for count in (4, 5):
        fused = fuse(
            split(_layers(count, dropout=True), Options(), target, Log()).main, target, Log()
        )
        counts.add(len({structure(by_first_use(c), {}) for c in fused.clusters}))
    assert len(counts) == 1


def test_passed_constants_are_read_back() -> None:
    graph = _layers(2, dropout=True)
    text = print_graph(graph)
    assert text.count("passed literal") == 2
    assert parse_graph(text).outputs == graph.outputs
