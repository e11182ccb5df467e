"""Programs for machines that are not this one: their code is whole, and right where it can run."""

import ctypes
import re
import struct
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.ops.test_samples import (
    QUICK,
    Case,
    Executor,
    _from_memory,
    graph_of,
    problems,
    samples_of,
)
from tests.targets.foreign import WasmModule, runner
from tilewright import ops, targets
from tilewright.base.errors import Invalid, Unsupported
from tilewright.driver.program import elsewhere
from tilewright.driver.program.elsewhere import built_elsewhere, kernels_for
from tilewright.driver.program.options import Options
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Graph, input
from tilewright.ir.operator import OPERATORS, Sample, sample_node
from tilewright.ir.types import TensorType, f32
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import Store, walk
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.text import parse_group
from tilewright.link.wasm import module
from tilewright.llvm.emit import emit
from tilewright.llvm.objects import assembly, compile_object
from tilewright.runtime.library import Library
from tilewright.runtime.objects import read_symbols
from tilewright.runtime.pool_ir import SERIAL_POOL
from tilewright.runtime.program import Program

PROCESSORS = [name for name in targets.names()[1:] if targets.get(name).grid is None]
NEW = ("armv7", "riscv64", "riscv64-v", "wasm32", "wasm32-relaxed")
# What takes machines most: products, transcendental functions, rounding, conversions, division.
FEW = ("matmul", "conv", "softmax", "cast", "floor", "round", "floordiv", "maximum", "randn")
PTHREAD = ("clock_gettime", "sched_yield", "pthread_")


def runs_on(name: str, folder: Path) -> Executor:
    target = targets.get(name)
    run = runner(target, folder)

    def execute(cases: Sequence[Case]) -> list[list[np.ndarray]]:
        graph, memory, ends = graph_of(cases)
        found = run(built_elsewhere(graph, target), memory, ())
        values = [_from_memory(a, o.dtype) for a, o in zip(found, graph.outputs, strict=True)]
        return [values[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    return execute


def spread(name: str, count: int = QUICK) -> list[Sample]:
    found = samples_of(name)
    return found[:: -(-len(found) // count)]


def mlp(rows: Dim) -> Graph:
    w = input("w", TensorType(f32, (24, 40)), role="weight")
    b = input("b", TensorType(f32, (40,)), role="weight")
    x = input("x", TensorType(f32, (rows, 24)))
    return Graph("mlp", (w, b, x), (ops.relu(ops.add(ops.matmul(x, w), b)),))


@pytest.mark.parametrize("name", PROCESSORS)
def test_code_is_whole(name: str) -> None:
    """It calls nothing but the pool and what every system of the kind has; `built_elsewhere`
    refuses other code."""
    data = built_elsewhere(mlp(9), targets.get(name), values=mlp_values())
    found = [read_symbols(image) for image in data.images]
    assert {f.arch for f in found} == {targets.get(name).arch}
    assert data.entry in {x for f in found for x in f.defined}
    assert data.prologue is None and data.constants


@pytest.mark.slow
@pytest.mark.parametrize("name", PROCESSORS)
def test_every_operator_compiles(name: str) -> None:
    for operator in sorted(OPERATORS):
        cases = [(sample_node(s), s.args) for s in samples_of(operator)]
        assert built_elsewhere(graph_of(cases)[0], targets.get(name)).images, operator


@pytest.mark.parametrize("name", ["wasm32", "wasm32-relaxed"])
def test_operators_in_webassembly(name: str, tmp_path: Path) -> None:
    wrong = list(problems([s for x in FEW for s in spread(x, 2)], runs_on(name, tmp_path)))
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NEW, "x86-64", "x86-64-v3"])
def test_every_operator_runs(name: str, tmp_path: Path) -> None:
    run = runs_on(name, tmp_path)
    together = 25  # operators of one program
    names = sorted(OPERATORS)
    for first in range(0, len(names), together):
        some = [s for x in names[first : first + together] for s in spread(x)]
        wrong = list(problems(some, run))
        assert not wrong, "\n".join(wrong)


def mlp_values() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(3)
    shapes = {"w": (24, 40), "b": (40,)}
    return {name: draw.normal(size=n).astype(np.float32) for name, n in shapes.items()}


def check_mlp(name: str, folder: Path, threads: int = 1) -> None:
    target, values = targets.get(name), mlp_values()
    data = built_elsewhere(mlp(D.sym("n", 1, 4096)), target, values=values)
    run = runner(target, folder, threads)
    for rows in (1, 7, 300):
        x = np.random.default_rng(rows).normal(size=(rows, 24)).astype(np.float32)
        got = run(data, [values["w"], values["b"], x], [rows])[0]
        right = np.maximum(x.astype(np.float64) @ values["w"] + values["b"], 0)
        np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "threads"), [("wasm32", 1), ("wasm32-relaxed-threads", 3)])
def test_weights_and_sizes_in_webassembly(name: str, threads: int, tmp_path: Path) -> None:
    check_mlp(name, tmp_path, threads)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", ["armv7", "riscv64", "riscv64-v", "x86-64"])
def test_weights_sizes_and_threads(name: str, threads: int, tmp_path: Path) -> None:
    check_mlp(name, tmp_path, threads)


def test_weights_are_packed_here_for_this_machine() -> None:
    values, host = mlp_values(), targets.host()
    data = built_elsewhere(mlp(9), host, values=values)
    x = np.random.default_rng(0).normal(size=(9, 24)).astype(np.float32)
    out = np.zeros((9, 40), np.float32)
    given = [values["w"], values["b"], x]
    Program(data).run([a.ctypes.data for a in given], [out.ctypes.data])
    right = np.maximum(x.astype(np.float64) @ values["w"] + values["b"], 0)
    np.testing.assert_allclose(out, right, rtol=1e-5, atol=1e-5)


def test_what_cannot_be_built_gets_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    armv7 = targets.get("armv7")
    with pytest.raises(Invalid, match="value of weight w is not given"):
        built_elsewhere(mlp(9), armv7)
    with pytest.raises(Invalid, match="armv7 cannot be timed on this machine"):
        built_elsewhere(mlp(9), armv7, Options(choose="timed"), mlp_values())
    with pytest.raises(Invalid, match="cuda:80 is a GPU"):
        built_elsewhere(mlp(9), targets.get("cuda:80"), values=mlp_values())
    monkeypatch.setattr(elsewhere, "_open", lambda images: {"strange"})
    with pytest.raises(Unsupported, match="code for armv7 calls strange, which is no function of"):
        built_elsewhere(mlp(9), armv7, values=mlp_values())


@pytest.mark.parametrize("name", PROCESSORS)
def test_the_pool_needs_the_system_only(name: str) -> None:
    target = targets.get(name)
    family = targets.family_of(target)
    found = read_symbols(compile_object(family.pool(target), target))
    needed = set(found.needed) - family.system
    assert all(x.startswith(PTHREAD) for x in needed), needed
    serial = read_symbols(compile_object(SERIAL_POOL, target))
    assert set(serial.defined) <= set(found.defined)


@pytest.mark.parametrize("name", PROCESSORS)
def test_the_serial_pool_needs_nothing(name: str) -> None:
    target = targets.get(name)
    found = read_symbols(compile_object(SERIAL_POOL, target))
    assert set(found.needed) <= targets.family_of(target).system


def test_products_of_webassembly() -> None:
    """Constant steps are part of loads, sums are relaxed, or three products are under way before
    the first of them is added. On Arm, rows are loaded in vectors and spread; elsewhere, loads
    spread an element."""
    x, y = (input(k, TensorType(f32, (64, 64))) for k in "xy")
    graph = Graph("product", (x, y), (ops.matmul(x, y),))
    kinds = (("wasm32", "f32x4.mul"), ("wasm32-relaxed", "f32x4.relaxed_madd"))
    for name, adds in [(n + end, adds) for n, adds in kinds for end in ("", "-arm")]:
        target = targets.get(name)
        groups = [parse_group(k.group) for k in kernels_for(graph, Options(), target)]
        nests = [legalise(default_schedule(g, target)[1], target) for g in groups]
        code = "\n".join(assembly(emit(n, target), target) for n in nests)
        shuffles, splats = name.endswith("-arm"), not name.endswith("-arm")
        assert adds in code and ("i8x16.shuffle" in code) == shuffles
        assert ("load32_splat" in code) == splats
        order = " ".join(re.findall(r"f32x4\.(mul|add)\b", code))
        assert ("mul mul mul add mul add mul" in order) == (adds == "f32x4.mul"), order
        assert "v128.load\t32:" in code


def test_limits_in_webassembly(tmp_path: Path) -> None:
    """Engines on x86-64 have many instructions for a maximum and two for a comparison; NaN stays,
    and the maximum of a zero and 0 is no negative one."""
    x = np.array([-0.0, 0, np.nan, -np.nan, 7, -7, 6, np.inf, -np.inf, 1e-42] * 8, np.float32)
    inner = input("x", TensorType(f32, x.shape))
    graph = Graph("limits", (inner,), (ops.minimum(ops.maximum(inner, 0.0), 6.0),))
    right = np.where(np.isnan(x), x, np.clip(x, 0, 6) + np.float32(0))
    for name, instructions in (("wasm32", 0), ("wasm32-arm", 2)):
        target = targets.get(name)
        data = built_elsewhere(graph, target)
        (got,) = runner(target, tmp_path)(data, [x], [])
        assert np.array_equal(np.isnan(got), np.isnan(x))
        numbers = ~np.isnan(x)
        assert np.array_equal(got[numbers].view(np.uint32), right[numbers].view(np.uint32)), got
        (k,) = kernels_for(graph, Options(), target)
        nest = legalise(default_schedule(parse_group(k.group), target)[1], target)
        found = re.findall(r"f32x4\.(min|max)\b", assembly(emit(nest, target), target))
        assert len(set(found)) == instructions, found


def test_deep_products_in_webassembly(tmp_path: Path) -> None:
    """Where a panel leaves the first cache and nothing prefetches it, all rows pass by a part of it
    before the next part."""
    target, (rows, deep, columns) = targets.get("wasm32"), (49, 960, 58)
    w = input("w", TensorType(f32, (deep, columns)), role="weight")
    x = input("x", TensorType(f32, (rows, deep)))
    graph = Graph("deep", (w, x), (ops.relu(ops.matmul(x, w)),))

    def part_is_around(name: str) -> bool:
        (k,) = (k for k in kernels_for(graph, Options(), targets.get(name)) if "matmul" in k.name)
        nest = default_schedule(parse_group(k.group), targets.get(name))[1]
        sums = [p for s, p in walk(nest.body) if isinstance(s, Store) and p[-1].kind == "tensor"]
        names = [q.name for q in max(sums, key=len) if q.kind == "serial"]
        return bool(re.search(r"\.r0\.0 .*\.i0\.0", " ".join(names)))

    assert part_is_around("wasm32") and not part_is_around("arm64")
    draw = np.random.default_rng(0)
    a, b = (draw.normal(size=n).astype(np.float32) for n in ((deep, columns), (rows, deep)))
    data = built_elsewhere(graph, target, values={"w": a})
    (got,) = runner(target, tmp_path)(data, [a, b], [])
    right = np.maximum(b.astype(np.float64) @ a, 0)
    np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-4)


def test_the_serial_pool_runs_chunks_in_order() -> None:
    library = Library([compile_object(SERIAL_POOL, targets.host())])
    seen: list[int] = []
    chunk = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(lambda _, k: seen.append(k))
    parallel = library.function("tw_parallel", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    parallel(chunk, None, 5)
    parallel(chunk, None, 0)
    assert seen == [0, 1, 2, 3, 4]


# Chunks count themselves, each of its own region too; a chunk of every 8 waits a while first.
COUNTED = """
declare void @tw_parallel(ptr, ptr, i64)
@counts = global [64 x i32] zeroinitializer
define internal void @chunk(ptr %ctx, i64 %k) {
entry:
  %low = and i64 %k, 7
  %long = icmp eq i64 %low, 0
  %many = select i1 %long, i32 20000, i32 1
  br label %wait
wait:
  %i = phi i32 [ 0, %entry ], [ %next, %wait ]
  %seen = load volatile i32, ptr %ctx
  %next = add i32 %i, 1
  %more = icmp ult i32 %next, %many
  br i1 %more, label %wait, label %count
count:
  %at = getelementptr i32, ptr %ctx, i64 %k
  %old = atomicrmw add ptr %at, i32 1 monotonic
  ret void
}
@came = internal global i32 0
; Two chunks that wait for each other, each in a thread of its own.
define internal void @waits(ptr %ctx, i64 %k) {
entry:
  %old = atomicrmw add ptr @came, i32 1 seq_cst
  br label %look
look:
  %seen = load atomic i32, ptr @came seq_cst, align 4
  %odd = and i32 %seen, 1
  %alone = icmp ne i32 %odd, 0
  br i1 %alone, label %look, label %end
end:
  ret void
}
define void @meet() {
  call void @tw_parallel(ptr @waits, ptr null, i64 2)
  ret void
}
define void @regions(i32 %times) {
entry:
  br label %each
each:
  %i = phi i32 [ 0, %entry ], [ %next, %each ]
  call void @tw_parallel(ptr @chunk, ptr @counts, i64 64)
  %next = add i32 %i, 1
  %more = icmp ult i32 %next, %times
  br i1 %more, label %each, label %end
end:
  ret void
}
"""


def test_workers_in_webassembly_run_every_chunk_once() -> None:
    """Whether they spin or sleep between two calls, and when there are fewer of them."""
    pytest.importorskip("wasmtime")
    target = targets.get("wasm32-threads")
    texts = (COUNTED, targets.family_of(target).pool(target))
    exports = ["regions", "meet", "counts", "tw_worker", "tw_pool_resize", "tw_pool_workers"]
    objects = [compile_object(x, target) for x in texts]
    m = WasmModule(module(objects, exports, memory_pages=4096, shared=True), 3)
    at = m.exports["counts"].value(m.store)
    for calls in (300, 1, 300, 1):
        m("regions", calls)
        time.sleep(0.005)
        m("meet")
    m("tw_pool_resize", 2)
    assert m("tw_pool_workers") == 1
    m("regions", 1)
    m("meet")
    assert set(struct.unpack("<64i", m.read(at, 256))) == {603}
    m.close()


BLOCKS = """
declare ptr @malloc(i32)
declare void @free(ptr)
define i32 @twice(i32 %size) {
  %p = call ptr @malloc(i32 %size)
  %q = call ptr @malloc(i32 %size)
  %last = sub i32 %size, 1
  %end = getelementptr i8, ptr %p, i32 %last
  store i8 7, ptr %end
  %begin = load i8, ptr %q
  call void @free(ptr %p)
  %r = call ptr @malloc(i32 %size)
  call void @free(ptr %q)
  call void @free(ptr %r)
  %again = icmp eq ptr %p, %r
  %apart = icmp ne ptr %p, %q
  %untouched = icmp eq i8 %begin, 0
  %both = and i1 %again, %apart
  %all = and i1 %both, %untouched
  %address = ptrtoint ptr %p to i32
  %found = select i1 %all, i32 %address, i32 1
  ret i32 %found
}
"""


def test_memory_in_webassembly_is_used_again() -> None:
    wasmtime = pytest.importorskip("wasmtime")
    target = targets.get("wasm32")
    texts = (BLOCKS, targets.family_of(target).support)
    code = module([compile_object(x, target) for x in texts], ["twice"], memory_pages=64)
    store = wasmtime.Store()
    exports = wasmtime.Instance(store, wasmtime.Module(store.engine, code), []).exports(store)
    for size in (1, 65472, 65473, 200_000):
        found = {exports["twice"](store, size) for _ in range(20)}
        assert len(found) <= 2, "memory grows with every call"
        assert all(p % 64 == 0 for p in found)
    with pytest.raises(wasmtime.Trap):
        exports["twice"](store, 100 << 20)


@pytest.mark.parametrize("name", [n for n in PROCESSORS if not n.startswith("wasm")])
def test_features_can_be_tested_where_a_package_is_loaded(name: str) -> None:
    target = targets.get(name)
    tests = targets.family_of(target).tests
    assert {f[1:] for f in target.features if f[0] == "+"} <= set(tests)
    for test in tests.values():
        for word in test.split():
            kind, *numbers = word.split(":")
            assert kind in ("cpuid", "xcr0", "hwcap", "hwcap2") and numbers
