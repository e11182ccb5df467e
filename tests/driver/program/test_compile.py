"""Graphs through the whole native path: kernels, entry, arena, weights, threads."""

from __future__ import annotations

import gc
import json
import os
import threading
import weakref
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.driver.random_programs import check_seed
from tests.driver.running import call, run_graph
from tests.seeds import drawn
from tilewright import ops
from tilewright.base.events import Log
from tilewright.driver.program.options import Options
from tilewright.driver.program.programs import compile_graph
from tilewright.ir import dim as D
from tilewright.ir.node import Graph, Node, constant, input, item
from tilewright.ir.types import TensorType, bf16, f32, i64
from tilewright.runtime.library import Library
from tilewright.runtime.program import Program

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def like(n: Node) -> np.ndarray:
    return normal(*(d for d in n.shape if isinstance(d, int)))


def tensor(name: str, *shape, dtype=f32, role: str = "arg"):
    return input(name, TensorType(dtype, shape), role)


def layers(count: int) -> Graph:
    x = tensor("x", 8, 32)
    y = x
    weights = [tensor(f"w{k}", 32, 32, role="weight") for k in range(count)]
    for w in weights:
        y = ops.relu(ops.matmul(y, w))
    return Graph("layers", (x, *weights), (y,))


def test_equal_layers_share_one_kernel() -> None:
    g = layers(6)
    program = compile_graph(g)
    assert len(program.kernels) == 1 and program.kernels[0].calls == 6
    args = [like(n) for n in g.inputs]
    expected = args[0].astype(np.float64)
    for w in args[1:]:
        expected = np.maximum(expected @ w, 0)
    (got,) = call(program, args)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_one_symbolic_program_runs_at_every_size() -> None:
    s = D.sym("s", 1)
    x, w1, w2 = tensor("x", s, 16), tensor("w1", 16, 24), tensor("w2", 24, 10)
    y = ops.softmax(ops.matmul(ops.relu(ops.matmul(x, w1)), w2), 1)
    log = Log()
    program = compile_graph(Graph("mlp", (x, w1, w2), (y,)), log=log)
    assert len(log.of("compile")) == 1
    a, b = normal(16, 24), normal(24, 10)
    for size in (1, 7, 4096):
        v = normal(size, 16)
        (got,) = call(program, [v, a, b], {"s": size})
        z = np.maximum(v.astype(np.float64) @ a, 0) @ b
        e = np.exp(z - z.max(1, keepdims=True))
        np.testing.assert_allclose(got, e / e.sum(1, keepdims=True), rtol=2e-5, atol=1e-6)


def test_weights_are_folded_once_and_again_after_refresh() -> None:
    x, w = tensor("x", 8, 32), tensor("w", 64, 32, role="weight")
    g = Graph("linear", (x, w), (ops.matmul(x, ops.permute(w, (1, 0))),))
    program = compile_graph(g)
    assert program.prologue is not None and program.weights == (1,)
    a, b = normal(8, 32), normal(64, 32)
    out = np.zeros((8, 64), np.float32)
    run = lambda: program.run([a.ctypes.data, b.ctypes.data], [out.ctypes.data])  # noqa: E731
    run()
    np.testing.assert_allclose(out, a @ b.T, rtol=1e-4, atol=1e-4)
    before = out.copy()
    b *= 2  # behind the program's back: the packed copy is still the old one
    run()
    np.testing.assert_array_equal(out, before)
    program.refresh()
    run()
    np.testing.assert_allclose(out, a @ b.T, rtol=1e-4, atol=1e-4)


def test_both_branches_of_cond() -> None:
    x = tensor("x", 5)
    two, table = constant(np.float32(2), f32), constant(np.arange(5, dtype=np.float32), f32)
    then = Graph("then", (x,), (ops.mul(x, two),))
    other = Graph("other", (x,), (ops.add(ops.exp(x), table),))
    p = tensor("p")
    predicate = ops.gt(p, constant(np.float32(0), f32))
    y = ops.cond(predicate, then, other, (x,))
    program = compile_graph(Graph("branches", (p, x), (item(y, 0),)))
    v = normal(5)
    np.testing.assert_allclose(call(program, [np.array(1, np.float32), v])[0], v * 2)
    expected = np.exp(v) + np.arange(5)
    np.testing.assert_allclose(call(program, [np.array(-1, np.float32), v])[0], expected, rtol=1e-6)


def test_results_that_are_arguments_constants_or_each_other() -> None:
    x = tensor("x", 3, 4)
    c = constant(np.arange(6, dtype=np.int64), i64)
    y = ops.exp(x)
    v = normal(3, 4)
    got = run_graph(Graph("same", (x,), (x, y, y, c, ops.reshape(x, (12,)))), [v])
    np.testing.assert_array_equal(got[0], v)
    np.testing.assert_array_equal(got[1], got[2])
    np.testing.assert_array_equal(got[3], np.arange(6))
    np.testing.assert_array_equal(got[4], v.reshape(12))


def test_empty_tensors() -> None:
    x = tensor("x", 0, 4)
    got = run_graph(Graph("empty", (x,), (ops.exp(x), ops.sum(x, (0,)))), [normal(0, 4)])
    assert got[0].shape == (0, 4)
    np.testing.assert_array_equal(got[1], np.zeros(4, np.float32))


def test_two_threads_get_their_own_results() -> None:
    x = tensor("x", 64, 257)
    program = compile_graph(Graph("rows", (x,), (ops.softmax(ops.mul(x, x), 1),)))
    wrong: list[str] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(30):
            v = rng.standard_normal((64, 257)).astype(np.float32)
            z = v.astype(np.float64) ** 2
            e = np.exp(z - z.max(1, keepdims=True))
            (got,) = call(program, [v])
            if not np.allclose(got, e / e.sum(1, keepdims=True), rtol=1e-5, atol=1e-7):
                wrong.append(f"thread {seed}")

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_program_survives_a_fork() -> None:
    x = tensor("x", 512, 512)
    program = compile_graph(Graph("forked", (x,), (ops.exp(x),)))
    v = normal(512, 512)
    call(program, [v])
    child = os.fork()
    if child == 0:
        ok = np.allclose(call(program, [v])[0], np.exp(v), rtol=1e-5)
        os._exit(0 if ok else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0


def test_bfloat16_accumulates_in_float32() -> None:
    x = tensor("x", 4, 2000, dtype=bf16)
    v = np.full((4, 2000), 1.0078125, np.float32)  # exact in bfloat16; sums of it are not
    (got,) = run_graph(Graph("sum", (x,), (ops.sum(x, (1,)),)), [v])
    np.testing.assert_allclose(got, 2015.625, rtol=2**-8)


def test_the_cache_is_hit_the_second_time(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    g = layers(2)
    assert not any(k.cached for k in compile_graph(g).kernels)
    assert all(k.cached for k in compile_graph(g).kernels)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            path.write_bytes(b"not an object")
    program = compile_graph(g)
    assert not any(k.cached for k in program.kernels)
    args = [like(n) for n in g.inputs]
    assert np.isfinite(call(program, args)[0]).all()


def test_an_unwritable_cache_is_no_obstacle(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(blocked))
    x = tensor("x", 7)
    v = normal(7)
    (got,) = run_graph(Graph("g", (x,), (ops.tanh(x),)), [v])
    np.testing.assert_allclose(got, np.tanh(v), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", drawn(range(20), quick=4))
def test_random_graphs(seed: int) -> None:
    check_seed(seed)


def _resident() -> int:
    with open("/proc/self/statm") as status:
        return int(status.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def compile_one(k: int) -> weakref.ref[Program]:
    x = tensor("x", 8 + k % 50, 16)
    scale = ops.full(x.shape, float(k), f32)
    program = compile_graph(Graph(f"g{k}", (x,), (ops.softmax(ops.mul(x, scale), 1),)))
    (got,) = call(program, [like(x)])
    np.testing.assert_allclose(got.sum(1), 1, rtol=1e-5)
    return weakref.ref(program)


def test_programs_are_forgotten() -> None:
    """Their code too; the slow test below sees all memory of the process."""
    compile_one(0)  # the threads' own code is loaded once, and stays
    loaded: list[weakref.ref[Library]] = []
    started = Library.__init__

    def noted(self: Library, *given: Any, **named: Any) -> None:
        started(self, *given, **named)
        loaded.append(weakref.ref(self))

    with pytest.MonkeyPatch.context() as m:
        m.setattr(Library, "__init__", noted)
        programs = [compile_one(k) for k in range(1, 4)]
    gc.collect()
    assert len(loaded) >= 3
    assert not any(x() for x in (*programs, *loaded))


@pytest.mark.slow
@pytest.mark.skipif(
    not os.path.exists("/proc/self/statm"),
    reason="how much memory a process holds is read from Linux's /proc",
)
def test_many_compiles_do_not_grow_the_process() -> None:
    count = 1000
    for k in range(30):
        compile_one(k)
    gc.collect()
    before = _resident()
    for k in range(30, 30 + count):
        compile_one(k)
    gc.collect()
    # A program that stayed would be some 200 KiB of code and loops each.
    assert _resident() - before < 8 * 2**20 + count * 8 * 2**10


def test_a_profile_names_what_ran(tmp_path: Path) -> None:
    x, w = tensor("x", 64, 64), tensor("w", 64, 64)
    product = ops.matmul(x, w)
    graph = Graph("profiled", (x, w), (ops.matmul(ops.softmax(product, 1), x),))
    program = compile_graph(graph, Options(profile=True))
    for _ in range(2):
        call(program, [like(x), like(w)])
    marks = program.details.marks
    assert marks is not None
    for name, calls, milliseconds in marks.totals():
        assert calls % 2 == 0 and milliseconds > 0
        assert name.split()[1] in {k.symbol for k in program.kernels}
    assert any(name.startswith("chain") for name, _, _ in marks.totals())
    assert sum(calls for _, calls, _ in marks.totals()) == 2 * sum(k.calls for k in program.kernels)
    marks.chrome_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert len(events) == sum(calls for _, calls, _ in marks.totals())
    # Microseconds as floats: one action ends where the next begins, or before.
    assert all(a["ts"] + a["dur"] <= b["ts"] + 0.01 for a, b in pairwise(events))
