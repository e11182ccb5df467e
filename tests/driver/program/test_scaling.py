"""Deep, wide and long programs compile, are right, and take work in proportion to their size."""

import math
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from tests.driver.running import run_graph
from tests.driver.scaling import FAMILIES, growth, measure
from tests.graph.build import TARGET, arg, build, fused, graph
from tilewright.base import knobs
from tilewright.base.events import Log
from tilewright.graph.fuse import Fuse
from tilewright.ir.node import Graph, Node
from tilewright.llvm import emit


def lines_of(run: Callable[[], object]) -> int:
    """How many lines of LLVM text a program takes, all of it written by this process."""
    found: list[int] = []
    whole = emit._Module.text

    def counted(self: object) -> str:
        text = whole(self)  # type: ignore[arg-type]
        found.append(text.count("\n"))
        return text

    here = {knobs.cache.name: "off", knobs.compile_processes.name: "0"}
    with patch.object(emit._Module, "text", counted), patch.dict(os.environ, here):
        run()
    return sum(found)


def x(*shape: int) -> np.ndarray:
    return np.random.rand(*shape).astype(np.float32)


def recurrence(n: int) -> tuple[Graph, list[np.ndarray], np.ndarray]:
    """h = a[t] * h + b[t], and a sum of every h."""
    a, b = arg("a", n, 8, 4), arg("b", n, 8, 4)
    values = [x(n, 8, 4), x(n, 8, 4)]
    h, sums, right, now = None, [], [], np.zeros((8, 4), np.float32)
    for t in range(n):
        at, bt = (build.reshape(build.slice(v, 0, t, t + 1, 1), (8, 4)) for v in (a, b))
        h = bt if h is None else build.add(build.mul(at, h), bt)
        sums.append(build.reshape(build.sum(h, (1,), False), (8, 1)))
        now = values[0][t] * now + values[1][t]
        right.append(now.sum(1))
    return Graph("scan", (a, b), (build.concat(sums, 1),)), values, np.stack(right, 1)


def test_an_unrolled_scan_with_sums() -> None:
    program, values, right = recurrence(24)
    (got,) = run_graph(program, values)
    np.testing.assert_allclose(got, right, rtol=1e-4)


def test_kernels_are_cut_by_their_reductions() -> None:
    program, _, _ = recurrence(40)
    f = fused(*program.outputs)
    per_kernel = [sum(n.op.name == "sum" for n in c.nodes) for c in f.clusters]
    assert max(per_kernel) <= Fuse().max_reductions and sum(per_kernel) == 40
    assert any(r.criterion == "too large" and "reductions" in r.detail for r in f.refusals)


def test_kernels_are_cut_by_their_results() -> None:
    a = arg("a", 9)
    results = [build.add(a, float(k)) for k in range(100)]
    f = Fuse(max_nodes=1000, max_inputs=1000)(graph(*results), TARGET, Log())
    assert max(len(c.outputs) for c in f.clusters) <= Fuse().max_results
    assert len(f.clusters) == 2  # what does not fit the first shares another


def test_text_of_a_scan_is_linear() -> None:
    def lines(n: int) -> int:
        program, values, _ = recurrence(n)
        return lines_of(lambda: run_graph(program, values))

    assert lines(64) < 2.6 * lines(32)


def test_many_operands_of_one_concatenation() -> None:
    parts, values = [arg(f"p{k}", 3, 2) for k in range(200)], [x(3, 2) for _ in range(200)]
    (got,) = run_graph(graph(build.concat(parts, 1)), values)
    np.testing.assert_array_equal(got, np.concatenate(values, 1))


def test_a_function_that_is_called_very_often_is_not_written_out() -> None:
    def wide(n: int) -> list[Node]:
        a, total = arg("a", 32), None
        for k in range(n):
            s = build.sin(build.mul(a, k + 1.0))
            total = s if total is None else build.add(total, s)
        assert total is not None
        return [total]

    value = x(32)
    few, many = (lines_of(lambda n=n: run_graph(graph(*wide(n)), [value])) for n in (4, 40))
    assert many < 6 * few
    right = sum(np.sin(value * (k + 1)) for k in range(40))
    np.testing.assert_allclose(run_graph(graph(*wide(40)), [value])[0], right, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "size", "most"),
    # Of a sorting network 10 steps are one vector of 16 lanes, and 21 are four: its steps are not
    # all alike, and the text of the longer one is 3.3 times that of the shorter. A square is 4.4.
    [
        ("tile_chain", 10, 3),
        pytest.param("tile_sums", 6, 3, marks=pytest.mark.slow),  # like the chain
        pytest.param("bitonic", 10, 3.5, marks=pytest.mark.slow),
        pytest.param("tile_integers", 8, 3, marks=pytest.mark.slow),  # like the chain
    ],
)
def test_long_tile_kernels(name: str, size: int, most: float) -> None:
    """They are right, and twice the program is about twice the text."""
    found = [lines_of(lambda n=n: right(name, n)) for n in (size, 2 * size + 1)]
    assert found[1] < most * found[0]


def right(name: str, size: int) -> None:
    assert not measure(FAMILIES[name], size).error


def test_a_long_expression_of_a_tile_kernel(tmp_path: Path, monkeypatch: Any) -> None:
    terms = " + ".join(["v"] * 600)
    (tmp_path / "long_expression.py").write_text(
        "import tilewright as tw\nimport tilewright.language as tl\n\n@tw.jit\n"
        "def kernel(x, out):\n    at = tl.arange(0, 16)\n    v = tl.load(x + at)\n"
        f"    tl.store(out + at, {terms})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    out = torch.zeros(16)
    import_module("long_expression").kernel[(1,)](torch.ones(16), out)
    assert out.tolist() == [600.0] * 16


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_growth(name: str) -> None:
    torch._dynamo.config.recompile_limit = 10_000
    measure(FAMILIES["chain"], 2)
    measure(FAMILIES["tile_chain"], 2)
    found, slope = growth(FAMILIES[name], 60)
    assert not any(m.error for m in found), found
    assert math.isnan(slope) or slope < 1.4, found
