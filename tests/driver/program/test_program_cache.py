"""Programs out of the cache: loaded instead of compiled, and the same in every respect."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tilewright as tw
from tests.driver.running import call
from tilewright import ops
from tilewright.base.events import Log
from tilewright.driver.program import compile as pipeline
from tilewright.driver.program.options import Options
from tilewright.driver.program.program_cache import key_of
from tilewright.driver.program.programs import compile_graph
from tilewright.ir import dim as D
from tilewright.ir.node import Graph, Place, constant, input
from tilewright.ir.types import TensorType, f32
from tilewright.runtime.program import Program
from tilewright.targets import default


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of graphs that went through the pipeline."""
    seen: list[str] = []
    real = pipeline.compiled

    def watched(graph: Graph, *rest) -> Program:
        seen.append(graph.name)
        return real(graph, *rest)

    monkeypatch.setattr(pipeline, "compiled", watched)
    return seen


def mlp(line: int = 1) -> Graph:
    x = input("x", TensorType(f32, (5, 8)))
    w = input("w", TensorType(f32, (8, 24)), "weight")
    b = input("b", TensorType(f32, (24,)), "weight")
    y = ops.softmax(ops.relu(ops.add(ops.matmul(x, w), b)), 1)
    return Graph("mlp", (w, b, x), (y,), {y: frozenset({Place("model.py", line)})})


def values(seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=s).astype(np.float32) for s in ((8, 24), (24,), (5, 8))]


def right(w: np.ndarray, b: np.ndarray, x: np.ndarray) -> np.ndarray:
    y = np.maximum(x.astype(np.float64) @ w + b, 0)
    e = np.exp(y - y.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def test_loaded_not_compiled(compilations: list[str]) -> None:
    first, again = compile_graph(mlp()), compile_graph(mlp())
    assert compilations == ["mlp"]
    assert again.prologue is not None and again.recipes == first.recipes
    assert (again.weights, again.kept, again.arena) == (first.weights, first.kept, first.arena)
    for program in (again, again.prologue):
        assert program.kernels and all(k.cached for k in program.kernels)
    assert [k.symbol for k in again.kernels] == [k.symbol for k in first.kernels]
    for given in map(values, range(3)):
        for program in (first, again):
            program.refresh()  # addresses alone do not tell that these are other weights
            np.testing.assert_allclose(call(program, given)[0], right(*given), atol=1e-6)


def test_explained_like_the_first() -> None:
    logs = Log(), Log()
    programs = [compile_graph(mlp(), log=log) for log in logs]
    cold, warm = (tw.explain(p).programs[0] for p in programs)
    assert (warm.operators, warm.clusters) == (cold.operators, cold.clusters)
    assert [str(r) for r in warm.refusals] == [str(r) for r in cold.refusals]
    assert [k.trace for k in warm.kernels] == [k.trace for k in cold.kernels]
    assert warm.considered == cold.considered
    assert programs[1].details.cut.plan.size == programs[0].details.cut.plan.size

    def messages(log: Log) -> list[str]:
        return [str(e) for e in log if e.kind not in ("cache", "schedule", "compile")]

    assert messages(logs[0]) and messages(logs[1]) == messages(logs[0])
    assert len(logs[1].of("compile")) == 1


def test_whatever_matters_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    g, target = mlp(), default()
    plain = key_of(g, Options(), target)
    assert plain is not None and plain == key_of(mlp(), Options(), target)
    assert key_of(mlp(line=2), Options(), target) != plain
    assert key_of(g, Options(precision="strict"), target) != plain
    assert key_of(g, Options(passes="Simplify, Decompose, EmptyValues"), target) != plain
    assert key_of(g, Options(choose="default"), target) != plain
    monkeypatch.setenv("TILEWRIGHT_CHOOSE", "default")
    assert key_of(g, Options(), target) != plain


def test_what_is_to_be_looked_at_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    g, target = mlp(), default()
    assert key_of(g, Options(profile=True), target) is None
    assert key_of(g, Options(dump=tmp_path), target) is None
    assert key_of(g, Options(schedules={"k_1": ""}), target) is None
    monkeypatch.setenv("TILEWRIGHT_CHECK", "1")
    assert key_of(g, Options(), target) is None


def test_symbolic_sizes_come_back(compilations: list[str]) -> None:
    """Arenas, shapes and bounds are over the symbols of the graph, and results are the same."""
    n = D.sym("n", 1, 64, 2)
    x, y = input("x", TensorType(f32, (n, 8))), input("y", TensorType(f32, (n * 8 + 3,)))
    rows = ops.softmax(ops.matmul(x, ops.permute(x, (1, 0))), 1)
    g = Graph("rows", (x, y), (ops.matmul(rows, x), ops.cumsum(y, 0)))
    first, again = compile_graph(g), compile_graph(g)
    assert compilations == ["rows"]
    assert first.dims == again.dims == ("n",) and first.arena is again.arena
    assert first.inputs == again.inputs and first.outputs == again.outputs
    assert not isinstance(again.arena, int)
    rng = np.random.default_rng(0)
    for size in (2, 10, 64):
        given = [rng.normal(size=s).astype(np.float32) for s in ((size, 8), (8 * size + 3,))]
        results = [call(p, given, {"n": size}) for p in (first, again)]
        for a, b in zip(*results, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_damaged_record_is_made_anew(tmp_path: Path, compilations: list[str]) -> None:
    compile_graph(mlp())
    (record,) = (p for p in (tmp_path / "program").rglob("*") if p.is_file())
    record.write_bytes(record.read_bytes()[:-7])
    given = values(0)
    np.testing.assert_allclose(call(compile_graph(mlp()), given)[0], right(*given), atol=1e-6)
    assert compilations == ["mlp", "mlp"]


def test_constants_come_back() -> None:
    x = input("x", TensorType(f32, (4, 40)))
    table = np.random.default_rng(0).normal(size=(4, 40)).astype(np.float32)
    g = Graph("constants", (x,), (ops.mul(x, constant(table, f32)),))
    given = np.random.default_rng(1).normal(size=(4, 40)).astype(np.float32)
    for _ in range(2):
        np.testing.assert_array_equal(call(compile_graph(g), [given])[0], given * table)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.relu(self.a(x)))


@pytest.mark.parametrize("own_weights", [False, True])
def test_modules_with_weights_of_their_own(own_weights: bool, compilations: list[str]) -> None:
    """One record, two modules; weights that change; weights that are given up and rebuilt."""
    x = torch.randn(3, 16)
    for _ in range(2):
        with torch.no_grad():
            module = Small().eval()
            want = module(x)
            fast = tw.compile(module, x, own_weights=own_weights)
            torch.testing.assert_close(fast(x), want)
            if own_weights:
                fast.restore_weights()
                torch.testing.assert_close(module(x), want)
            module.a.weight.mul_(2)
            torch.testing.assert_close(fast(x), module(x))
    assert len([name for name in compilations if name.startswith("inference")]) == 1
