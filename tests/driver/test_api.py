"""The public face: cheap to import, needs no torch, says what is missing."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import ops
from tilewright.base.events import Log
from tilewright.driver import api
from tilewright.driver.program.arrays import random_inputs, run_arrays
from tilewright.driver.program.graph_run import judge
from tilewright.driver.program.programs import compile_graph
from tilewright.ir.node import Graph, input
from tilewright.ir.types import TensorType, f32

ROOT = Path(__file__).resolve().parents[2]
build: Any = ops


def python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120
    )


WITHOUT_TORCH = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "transformers"}:
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, Refuse())
import importlib.util
find = importlib.util.find_spec
gone = ("torch", "transformers")
importlib.util.find_spec = lambda name, *rest: None if name in gone else find(name, *rest)
"""


def test_import_loads_next_to_nothing() -> None:
    run = python(
        "import sys, tilewright\n"
        "heavy = {'torch', 'numpy', 'llvmlite', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert not [m for m in sys.modules if m.startswith('tilewright.')]\n"
    )
    assert run.returncode == 0, run.stderr


def test_every_name_of_the_face_exists() -> None:
    assert set(tw.__all__) <= set(dir(tw))
    for name in tw.__all__:
        assert getattr(tw, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tw.nothing  # noqa: B018  # type: ignore[attr-defined]


def test_graphs_compile_without_torch() -> None:
    run = python(
        WITHOUT_TORCH + "import tilewright as tw\n"
        "from tilewright.ir.node import Graph, input\n"
        "from tilewright.ir.types import TensorType, f32\n"
        "x = input('x', TensorType(f32, (4,)))\n"
        "print(tw.explain(tw.compile_graph(Graph('main', (x,), (tw.ops.exp(x),)))))\n"
        "assert 'torch' not in sys.modules\n"
    )
    assert run.returncode == 0, run.stderr
    assert "1 operator" in run.stdout


def test_without_torch_a_sentence() -> None:
    run = python(
        WITHOUT_TORCH + "import tilewright as tw\n"
        "for call in (lambda: tw.compile(abs), lambda: tw.explain(abs), lambda: tw.refresh(abs)):\n"
        "    try: call()\n"
        "    except tw.MissingExtra as error: print(error)\n"
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("pip install 'tilewright[torch]'") == 3


def test_threads() -> None:
    before = tw.get_threads()
    try:
        tw.set_threads(1)
        assert tw.get_threads() == 1
        with pytest.raises(tw.Invalid):
            tw.set_threads(0)
    finally:
        tw.set_threads(before)


def scaled(factor: float) -> Graph:
    x = input("x", TensorType(f32, (8,)))
    return Graph("scaled", (x,), (build.mul(x, factor),))


def test_record_hears_every_compilation() -> None:
    compile_graph(scaled(1.5))
    with tw.record() as outer:
        compile_graph(scaled(2.5), log=Log())
        with tw.record() as inner:
            worker = threading.Thread(target=compile_graph, args=(scaled(3.5),))
            worker.start()
            worker.join()
    compile_graph(scaled(4.5))
    assert (len(outer.of("compile")), len(inner.of("compile"))) == (2, 1)
    event = inner.of("compile")[0]
    assert event.data["kernels"] == 1 and event.data["fallbacks"] == []
    assert event in outer.events


def test_refresh_takes_a_program() -> None:
    x = input("x", TensorType(f32, (4,)))
    w = input("w", TensorType(f32, (4,)), "weight")
    program = compile_graph(Graph("main", (x, w), (build.mul(x, build.exp(w)),)))
    a, weight, out = np.ones(4, np.float32), np.zeros(4, np.float32), np.empty(4, np.float32)

    def run() -> float:
        program.run([a.ctypes.data, weight.ctypes.data], [out.ctypes.data])
        return float(out[0])

    assert run() == 1.0
    weight[:] = np.log(np.float32(3))
    assert run() == 1.0, "edits behind our back are not noticed …"
    tw.refresh(program)
    assert run() == pytest.approx(3.0), "… until they are refreshed"


def test_torch_programs() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(4, 4)
    x = torch.randn(2, 4)
    with torch.no_grad(), tw.record() as log:
        fast = tw.compile(module, x, strict=True)
        assert len(log.of("compile")) == 1
        torch.testing.assert_close(fast(x), module(x))
        module.weight.data.numpy()[:] = 0
        tw.refresh(fast)
        torch.testing.assert_close(fast(x), module(x))
    assert api.sessions_of(fast)
    with pytest.raises(tw.Invalid, match="option"):
        tw.compile(module, x, speed="high")
    with pytest.raises(tw.Invalid, match="not callable"):
        tw.compile(3)  # type: ignore[arg-type]


def test_graphs_are_judged_by_float64() -> None:
    x = input("x", TensorType(f32, (3, 50)))
    graph = Graph("main", (x,), (build.exp(build.sum(x, (1,), True)),))
    arrays = random_inputs(graph)
    got = run_arrays(compile_graph(graph), arrays)
    assert all(r.right for r in judge(graph, arrays, got))
    wrong = [got[0] * np.float32(1.001)]
    assert not any(r.right for r in judge(graph, arrays, wrong))
