"""Whole programs where things are not as expected: busy cores, forks, other threads, processors
that can do less, little memory, and results that go where the caller says."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import tilewright as tw
from tests.driver.random_programs import check_seed
from tests.driver.taken_core import slowdown
from tests.seeds import crossed, drawn, every_run
from tilewright import ops, targets
from tilewright.base import knobs, machine
from tilewright.driver.program import code, programs
from tilewright.driver.program import compile as compiling
from tilewright.driver.program.arrays import random_inputs, run_arrays
from tilewright.driver.program.graph_run import judge
from tilewright.driver.program.options import Options
from tilewright.driver.program.programs import compile_graph
from tilewright.ir.node import Graph, Node, input, item
from tilewright.ir.target import Target
from tilewright.ir.types import TensorType, bf16, f16, f32, f64, i8, i32
from tilewright.llvm.entry import Call, Slot, Together
from tilewright.llvm.objects import HostCpu
from tilewright.runtime import memory, native, pool
from tilewright.runtime.elf import read_symbols
from tilewright.targets import x86
from tilewright.targets.family import Host

ROOT = Path(__file__).resolve().parents[3]
build: Any = ops


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    before = pool.get_threads()
    with torch.no_grad():
        yield
    pool.set_threads(before)


def layers(count: int, width: int) -> Any:
    made = [x for _ in range(count) for x in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*made).eval().requires_grad_(False)


# ---- threads


@pytest.mark.parametrize("straight", [True, False])
def test_several_python_threads_call_at_once(straight: bool) -> None:
    model = layers(6, 96)
    with knobs.straight_calls.override(straight):
        fast = tw.compile(model, torch.randn(32, 96), strict=True)
    wrong: list[object] = []

    def work(seed: int) -> None:
        torch.manual_seed(seed)
        with torch.no_grad():
            for _ in range(30):
                x = torch.randn(32, 96)
                try:
                    torch.testing.assert_close(fast(x), model(x))
                except Exception as problem:
                    wrong.append(problem)

    callers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong
    # Each call in flight had a frame of its own, and no more are kept than were in flight. A
    # straight call has memory of its own: frames are for those that meet one.
    frames = len(fast.units[0].programs[0]._frames)
    assert frames <= 3 if straight else 1 <= frames <= 4


def test_a_program_that_calls_a_program() -> None:
    inner_model, outer_model = layers(2, 64), layers(2, 64)
    inner = tw.compile(inner_model, torch.randn(16, 64), strict=True)

    @torch.compiler.disable
    def host(x: torch.Tensor) -> torch.Tensor:
        return inner(x)

    def outer(x: torch.Tensor) -> torch.Tensor:
        return outer_model(host(outer_model(x)))

    x = torch.randn(16, 64)
    fast = tw.compile(outer)
    for _ in range(3):
        torch.testing.assert_close(fast(x), outer_model(inner_model(outer_model(x))))


def test_torch_uses_its_threads_meanwhile() -> None:
    model = layers(4, 128)
    x, big = torch.randn(64, 128), torch.randn(400, 400)
    fast = tw.compile(model, x, strict=True)
    expected, product = model(x), big @ big
    stop = threading.Event()

    def eager() -> None:
        while not stop.is_set():
            torch.testing.assert_close(big @ big, product)

    other = threading.Thread(target=eager)
    other.start()
    try:
        for _ in range(100):
            torch.testing.assert_close(fast(x), expected)
            torch.testing.assert_close(big @ big, product)
    finally:
        stop.set()
        other.join()


def test_an_idle_process_burns_nothing() -> None:
    model, x = layers(4, 128), torch.randn(64, 128)
    fast = tw.compile(model, x, strict=True)
    pool.set_threads(max(2, pool.get_threads()))
    for _ in range(5):
        fast(x)
    time.sleep(0.05)  # longer than anybody spins
    began = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - began < 0.05


def scans(length: int) -> Graph:
    x, y = (input(name, TensorType(f64, (length,))) for name in "xy")
    first, second = build.cumsum(x, 0), build.cumsum(y, 0)
    return graph(first, second, build.cumsum(build.mul(first, second), 0))


def actions(program: Graph, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    emit = code.emit_entries
    monkeypatch.setattr(
        code, "emit_entries", lambda e, marks: [found.extend(e[-1].actions), emit(e, marks)][1]
    )
    compile_graph(program)
    return found


def test_kernels_on_one_thread_run_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [a for a in actions(scans(50_000), monkeypatch) if isinstance(a, Together)]
    assert [len(a.calls) for a in both] == [2], "the third needs what the others make"
    assert not any(isinstance(a, Together) for a in actions(scans(100), monkeypatch))
    program = compile_graph(scans(50_000))
    x, y = (np.abs(a) for a in random_inputs(scans(50_000)))
    first, second = np.cumsum(x, dtype=np.float64), np.cumsum(y, dtype=np.float64)
    for threads in (1, 2, 3):
        pool.set_threads(threads)
        got = run_arrays(program, [x, y])
        for ours, exact in zip(got, (first, second, np.cumsum(first * second)), strict=True):
            np.testing.assert_allclose(ours, exact, rtol=1e-2)


@pytest.mark.parametrize("seed", drawn(range(12), quick=5))
def test_whatever_does_not_meet_may_run_at_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling.Builder, "_waits_for_others", lambda self, k: True)
    pool.set_threads(3)
    check_seed(seed)


def test_calls_meet_where_one_writes_what_the_other_uses() -> None:
    def call(*slots: tuple[str, int, int], written: int = 1) -> Call:
        args = tuple(Slot(kind, at) for kind, at, _ in slots)
        return Call("k", args, (), tuple(size for *_, size in slots), written)

    first = call(("in", 0, 64), ("arena", 0, 64))
    assert not first.overlaps(call(("in", 0, 64), ("arena", 64, 64))), "both read one operand"
    assert first.overlaps(call(("arena", 32, 8), ("arena", 64, 64))), "the second reads a result"
    assert first.overlaps(call(("in", 1, 64), ("arena", 0, 64))), "both write"
    assert call(("arena", 128, 64), ("out", 0, 64)).overlaps(call(("in", 1, 64), ("arena", 128, 8)))
    assert not first.overlaps(call(("in", 1, 64), ("out", 0, 64)))
    assert first.overlaps(Call("k", (Slot("in", 1),), ())), "nothing is known of its sizes"


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="needs to bind a process to a core"
)
def test_a_core_that_is_taken() -> None:
    """Threads whose core is taken hold up nobody for good, and results stay right."""
    found = slowdown(12, 64, calls=5)
    assert found.right and found.alone > 0 and found.taken > 0


def python(program: str, **variables: str) -> str:
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | variables,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


PROGRAM = """
import multiprocessing, os, sys, torch
import tilewright as tw
from tilewright.runtime import pool
torch.set_grad_enabled(False)
model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4))).eval()
x = torch.randn(64, 256)
fast = tw.compile(model, x, strict=True)
expected = fast(x).clone()
def right(_=0):
    return torch.equal(fast(x), expected)
"""


def test_one_thread_and_forked_processes() -> None:
    """A process that was told to have one thread; then with three, children of `fork`, and those
    of multiprocessing, run what was compiled."""
    forked = """
print(right(), pool.get_threads(), pool.workers())
tw.set_threads(3)
assert right()
for _ in range(2):
    child = os.fork()
    if child == 0:
        model[0].weight.mul_(2)  # what is derived anew is the child's own
        edited = not right()
        os._exit(0 if edited and pool.workers() == 2 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert right()
print("done", pool.workers())
with multiprocessing.get_context("fork").Pool(2) as workers:
    print(workers.map(right, range(4)), right())
"""
    variables = {"OMP_NUM_THREADS": "1", "TILEWRIGHT_THREADS": "1"}
    lines = python(PROGRAM + forked, **variables).splitlines()
    assert lines == ["True 1 0", "done 2", f"{[True] * 4} True"]


# ---- processors that can do less


def tensor(name: str, *shape: int, dtype: Any = f32, role: str = "arg") -> Node:
    return input(name, TensorType(dtype, shape), role)


def graph(*outputs: Node) -> Graph:
    found = Graph("program", (), outputs).nodes()
    return Graph(
        "program", tuple(n for n in found if not n.inputs and n.op.name == "input"), outputs
    )


def product(dtype: Any) -> Graph:
    x, w = tensor("x", 37, 50, dtype=dtype), tensor("w", 50, 29, dtype=dtype, role="weight")
    return graph(build.relu(build.matmul(x, w)))


def integers() -> Graph:
    x, w = tensor("x", 19, 40, dtype=i8), tensor("w", 40, 33, dtype=i8, role="weight")
    return graph(build.matmul(build.cast(x, i32), build.cast(w, i32)))


def convolution(groups: int, stride: int) -> Graph:
    x = tensor("x", 2, 8, 13, 11)
    w = tensor("w", 16, 8 // groups, 3, 3, role="weight")
    return graph(build.relu(build.conv(x, w, stride, 1, 1, groups)))


def attention(dtype: Any) -> Graph:
    q, k, v = (tensor(name, 1, 2, 21, 16, dtype=dtype) for name in "qkv")
    return graph(build.attention(q, k, v, causal=True))


PROGRAMS: dict[str, Callable[[], Graph]] = {
    "matmul": lambda: product(f32),
    "matmul bf16": lambda: product(bf16),
    "matmul f16": lambda: product(f16),
    "matmul int8": integers,
    "conv": lambda: convolution(1, 1),
    "conv strided, grouped": lambda: convolution(2, 2),
    "conv depthwise": lambda: convolution(8, 1),
    "softmax": lambda: graph(build.softmax(tensor("x", 7, 45), 1)),
    "softmax bf16": lambda: graph(build.softmax(tensor("x", 7, 45, dtype=bf16), 1)),
    "norm": lambda: graph(item(build.layer_norm(tensor("x", 9, 30), tensor("w", 30)), 0)),
    "attention": lambda: attention(f32),
    "attention bf16": lambda: attention(bf16),
    "gelu": lambda: graph(build.gelu(tensor("x", 1000))),
    "cumsum": lambda: graph(build.cumsum(tensor("x", 5, 77), 1)),
}


class Unloaded:
    """Objects that are looked at and not loaded."""

    def __init__(self, objects: list[bytes], symbols: dict[str, int]) -> None:
        self.found = [read_symbols(x) for x in objects]
        Unloaded.latest = self.found

    latest: ClassVar[list[Any]] = []

    def function(self, name: str, *arguments: Any) -> None:
        assert any(name in x.defined for x in self.found)


@every_run(0, 2, 4, 6, 8, 10, 12)
@pytest.mark.parametrize(
    ("name", "target"), crossed(PROGRAMS, ["x86-64", "x86-64-v3", "x86-64-v4", "arm64"], 4)
)
def test_programs_compile_for(name: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "Library", Unloaded)
    monkeypatch.setattr(programs, "require_runnable", lambda target: None)
    chosen = targets.get(target)
    compile_graph(PROGRAMS[name](), Options(target=chosen))
    assert len(Unloaded.latest) >= 2, "kernels and an entry"
    assert {x.arch for x in Unloaded.latest} == {chosen.arch}


def runs_here(target: Target) -> bool:
    try:
        targets.require_runnable(target)
    except tw.Invalid:
        return False
    return True


PROCESSORS = [name for name in targets.names() if targets.get(name).grid is None]


@pytest.mark.parametrize(("target", "name"), crossed(PROCESSORS, PROGRAMS, 4))
def test_programs_are_right_with_masked_features(target: str, name: str) -> None:
    if not runs_here(targets.get(target)):
        pytest.skip("this machine cannot run it")
    program = PROGRAMS[name]()
    arrays = random_inputs(program)
    with knobs.target.override(target):
        got = run_arrays(compile_graph(program), arrays)
    assert all(r.right for r in judge(program, arrays, got))


def test_a_target_that_cannot_run_here_is_refused_before_anything_is_compiled() -> None:
    host = targets.host()
    foreign = "x86-64-v3" if host.arch != "x86_64" else "arm64"
    with knobs.target.override(foreign), pytest.raises(tw.Invalid, match="cannot run on this"):
        compile_graph(product(f32))
    more = Target("better", host.triple, host.cpu, (*host.features, "+sve9", "-sse2"))
    with pytest.raises(tw.Invalid, match="better needs sve9, which this processor lacks"):
        compile_graph(product(f32), Options(target=more))


def test_a_named_target_has_this_machines_cores_and_caches() -> None:
    host = targets.host()
    for name in targets.names():
        preset = targets.get(name)
        with knobs.target.override(name):
            chosen = targets.default()
        same = preset.arch == host.arch
        own = (host.cores, host.l2) if same else (preset.cores, preset.l2)
        assert (chosen.cores, chosen.l2) == own
        assert chosen.features == preset.features


@pytest.mark.parametrize("permitted", [True, False])
def test_tiles_are_used_only_by_permission(
    permitted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, ...]] = []

    class System:
        def syscall(self, *arguments: ctypes.c_long) -> int:
            calls.append(tuple(x.value for x in arguments))
            return 0 if permitted else -1

    monkeypatch.setattr(ctypes, "CDLL", lambda name: System())
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine="x86_64"))
    # What this process was told before stays its own.
    monkeypatch.setattr(x86, "registers_on_request", machine.registers_on_request.__wrapped__)
    features = ("+amx-bf16", "+amx-int8", "+amx-tile", "+avx2", "+fma")
    cpu = HostCpu("x86_64-unknown-linux-gnu", "sapphirerapids", features)
    target = x86.describe(Host(cpu, frozenset(), machine.CacheSizes(), 2))
    assert calls == [(158, 0x1023, 18)]
    assert target.has("amx-tile") == target.has("amx-bf16") == permitted
    assert target.has("avx2")
    if not permitted:
        assert {"-amx-tile", "-amx-bf16", "-amx-int8"} <= set(target.features)


# ---- memory


def test_weights_that_do_not_fit_are_refused_before_they_are_packed() -> None:
    model, x = layers(2, 1024), torch.randn(4, 1024)
    with knobs.memory_mb.override(4), pytest.raises(memory.OutOfMemory) as caught:
        tw.compile(model, x, strict=True)
    text = str(caught.value)
    assert "packed and folded weights would take 8." in text and "4.0 MiB are available" in text
    assert "own_weights" in text
    assert isinstance(caught.value, MemoryError)
    fast = tw.compile(model, x, strict=True)
    torch.testing.assert_close(fast(x), model(x))


def test_an_arena_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    x = tensor("x", 1 << 12, 1 << 12)
    # Sums over rows and columns of the same values: they have to be stored in between.
    y = build.softmax(build.exp(x), 1)
    program = compile_graph(graph(build.softmax(build.matmul(y, y), 0)))
    assert program.arena_size() >= 64 << 20
    monkeypatch.setattr(memory, "available_memory", lambda: 50 << 20)
    with pytest.raises(tw.TilewrightError, match=r"the arena of a call would take .* MiB"):
        program.run([0], [0])
    monkeypatch.setattr(memory, "available_memory", lambda: None)
    memory.require_room(1 << 60, "anything")  # nobody says how much there is


def test_available_memory(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 900 kB\nMemAvailable:     300 kB\nSwapFree: 20 kB\nHuge: 1\n")
    assert machine._system_memory(meminfo) == 320 * 1024
    assert machine._system_memory(tmp_path / "missing") is None
    limit, use = tmp_path / "memory.max", tmp_path / "memory.current"
    limit.write_text("max\n")
    use.write_text("700\n")
    assert machine._cgroup_memory(limit, use, tmp_path) is None
    limit.write_text("1000\n")
    assert machine._cgroup_memory(limit, use, tmp_path) == 300
    (tmp_path / "memory.stat").write_text("anon 600\ninactive_file 90\n")
    assert machine._cgroup_memory(limit, use, tmp_path) == 390
    found = machine.available_memory()
    assert found is None or found > 0


# ---- results where the caller says


def test_out_fills_the_callers_memory_call_after_call() -> None:
    model, out = layers(2, 64), torch.empty(8, 64)
    fast = tw.compile(model, torch.randn(8, 64), strict=True, own_weights=True)
    check = layers(2, 64)
    check.load_state_dict(restored(fast))
    for _ in range(3):
        x = torch.randn(8, 64)
        assert fast(x, out=out) is out
        torch.testing.assert_close(out, check(x))


def restored(fast: Any) -> dict[str, torch.Tensor]:
    fast.restore_weights()
    return fast.original.state_dict()


def gone() -> torch.Tensor:
    x = torch.empty(8, 64)
    x.untyped_storage().resize_(0)
    return x


WRONG: dict[str, Callable[[torch.Tensor], Any]] = {
    "of dtype torch.float64, not torch.float32": lambda x: torch.empty(8, 64, dtype=torch.float64),
    r"of shape \(64, 8\), not \(8, 64\)": lambda x: torch.empty(64, 8),
    r"with strides \(1, 8\), not \(64, 1\)": lambda x: torch.empty(64, 8).t(),
    "on meta, not cpu": lambda x: torch.empty(8, 64, device="meta"),
    "a ndarray": lambda x: np.empty((8, 64), np.float32),
    "shares memory with input": lambda x: x,
    "requires a gradient": lambda x: torch.empty(8, 64, requires_grad=True),
    "has no memory": lambda x: gone(),
}


@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_out_gets_a_sentence(message: str) -> None:
    x = torch.randn(8, 64)
    fast = tw.compile(layers(1, 64), x, strict=True)
    with pytest.raises(tw.Invalid, match=message) as caught:
        fast(x, out=WRONG[message](x))
    assert "result 0" in str(caught.value)
    assert "hint" in str(caught.value)
