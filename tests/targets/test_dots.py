"""Products of bytes and of halves by default: the right instruction on every target, and the loops
that it stands for compute the right sums.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.graph.build import arg, build, graph, weight
from tests.kernel.native import Native
from tests.seeds import crossed, every_run
from tilewright.base.events import Log
from tilewright.base.machine import CacheSizes
from tilewright.graph.dots import DotProducts
from tilewright.graph.fold import split_weights
from tilewright.graph.fuse import fuse
from tilewright.graph.pack import PackOperands
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, Node
from tilewright.ir.target import Target
from tilewright.ir.types import DType, bf16, f16, f32, i8, u8
from tilewright.kernel.group import Group, build_group
from tilewright.kernel.interpret import run
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import Nest
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.steps.tensorize import Tensorize
from tilewright.llvm.emit import emit
from tilewright.llvm.objects import HostCpu, assembly
from tilewright.targets import arm64, default, x86
from tilewright.targets.family import Host

V2 = ()
V3 = ("+avx", "+avx2", "+fma")
V4 = (*V3, "+avx512f", "+avx512bw", "+avx512vl", "+avx512dq")
TILES = ("+amx-tile", "+amx-int8", "+amx-bf16")


def x86_with(*features: str, cpu: str = "x86-64") -> Target:
    """What is made of a processor with these features, tiles permitted."""
    host = Host(HostCpu("x86_64-unknown-linux-gnu", cpu, features), frozenset(), SIZES, 2)
    return x86.describe(host)


def arm64_with(*flags: str) -> Target:
    cpu = HostCpu("aarch64-unknown-linux-gnu", "generic", ("+neon",))
    return arm64.describe(Host(cpu, frozenset(flags), SIZES, 2))


SIZES = CacheSizes(32 * 1024, 1024 * 1024, 32 * 1024 * 1024)


@pytest.fixture(autouse=True)
def permitted(monkeypatch: pytest.MonkeyPatch) -> None:
    default()  # the system gives this process permission before all targets are said to have it
    monkeypatch.setattr(x86, "registers_on_request", lambda: True)


def product(a: DType, b: DType, rows: Dim, deep: int, columns: int) -> Graph:
    """Sums with a scale per row and one per column, a bias, and a cast back."""
    x, w = arg("x", rows, deep, dtype=a), weight("w", deep, columns, dtype=b)
    if a.is_float:
        return graph(build.add(build.matmul(x, w), weight("bias", columns, dtype=a)))
    sums = build.cast(build.wide_matmul(x, w), f32)
    scaled = build.mul(build.mul(sums, arg("s", rows, 1)), weight("t", columns))
    return graph(build.add(scaled, weight("bias", columns)))


def last_kernel(g: Graph, target: Target) -> tuple[Graph, Graph, Group, Sequence[Node]]:
    """The prologue, the rest, and the one kernel of the rest with a product in it."""
    for one in (DotProducts.of(target), PackOperands.of(target)):
        g = one.apply(g, Log())
    once, main = split_weights(g)
    (c,) = [c for c in fuse(main, target, Log()).clusters if c.kind == "contract"]
    assert main.outputs[0] in c.outputs
    return once, main, build_group("product", c.nodes, c.inputs, c.outputs), c.inputs


def scheduled(g: Graph, target: Target) -> Nest:
    return default_schedule(last_kernel(g, target)[2], target)[1]


CASES = [
    (arm64_with, ("asimddp",), (i8, i8), "sdot"),
    (arm64_with, ("asimddp",), (u8, i8), "sdot"),
    (arm64_with, ("asimddp",), (u8, u8), "udot"),
    (arm64_with, ("asimddp", "i8mm"), (u8, i8), "sudot|usdot"),
    (arm64_with, ("asimddp", "bf16"), (bf16, bf16), "bfdot"),
    (x86_with, V2, (i8, i8), "pmaddwd"),
    (x86_with, V3, (i8, i8), "vpmaddwd"),
    (x86_with, V3, (u8, i8), "vpmaddwd"),
    (x86_with, (*V3, "+avxvnni"), (i8, i8), "vpdpbusd"),
    (x86_with, (*V3, "+avxvnni", "+avxvnniint8"), (i8, i8), "vpdpbssd"),
    (x86_with, V4, (i8, i8), "vpmaddwd"),
    (x86_with, (*V4, "+avx512vnni"), (i8, i8), "vpdpbusd"),
    (x86_with, (*V4, "+avx512vnni"), (u8, i8), "vpdpbusd"),
    (x86_with, (*V4, "+avx512vnni"), (i8, u8), "vpdpbusd"),
    (x86_with, (*V4, "+avx512bf16"), (bf16, bf16), "vdpbf16ps"),
    (x86_with, (*V4, *TILES), (i8, i8), "tdpbssd"),
    (x86_with, (*V4, *TILES), (u8, i8), "tdpbusd"),
    (x86_with, (*V4, *TILES), (i8, u8), "tdpbsud"),
    (x86_with, (*V4, *TILES), (bf16, bf16), "tdpbf16ps"),
    (x86_with, (*V4, *TILES, "+amx-fp16"), (f16, f16), "tdpfp16ps"),
]


@pytest.mark.parametrize(
    ("case", "size"), crossed(CASES, [(64, 128, 96), (45, 128, 50), (D.sym("B", 1), 128, 64)], 3)
)
def test_by_default(case: tuple, size: tuple) -> None:
    make, features, dtypes, instruction = case
    target = make(*features)
    text = assembly(
        emit(legalise(scheduled(product(*dtypes, *size), target), target), target), target
    )
    assert set(text.split()) & set(instruction.split("|")), (
        f"{target} multiplies without {instruction}"
    )


def given_for(g: Graph) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    out: list[np.ndarray] = []
    for n in g.inputs:
        shape = [d for d in n.shape if isinstance(d, int)]
        if n.dtype.is_int:
            ends = int(n.dtype.lowest), int(n.dtype.highest) + 1
            out.append(rng.integers(*ends, shape).astype(n.dtype.numpy))
        else:
            out.append((rng.integers(-8, 8, shape) / 4).astype(n.dtype.numpy))
    return out


def arguments_of(target: Target, g: Graph) -> tuple[Group, dict[str, np.ndarray], np.ndarray]:
    """The kernel of a product, what it is given, and what should come of it."""
    once, main, group, inputs = last_kernel(g, target)
    given = dict(zip((n for n in g.inputs), given_for(g), strict=True))
    folded = evaluate(once, [given[n] for n in once.inputs])
    names = [n for n in main.inputs if n not in given]
    known = {**given, **dict(zip(names, folded, strict=True))}
    before = Graph("before", main.inputs, tuple(inputs))
    arrays = evaluate(before, [known[n] for n in main.inputs])
    (want,) = evaluate(g, [given[n] for n in g.inputs])
    return group, dict(zip((b.name for b in group.inputs), arrays, strict=True)), want


@pytest.mark.parametrize(("case", "size"), crossed(CASES, [(33, 64, 40), (7, 66, 19)], 2))
def test_loops_of_the_instruction_compute_the_sums(case: tuple, size: tuple) -> None:
    make, features, dtypes, _ = case
    target = make(*features)
    group, arrays, want = arguments_of(target, product(*dtypes, *size))
    _, nest = default_schedule(group, target)
    np.testing.assert_allclose(run(nest, arrays)["y0"], want, rtol=1e-6, atol=1e-6)


@every_run(1, 3, 4, 6, 9)
@pytest.mark.parametrize(
    ("dtypes", "size"),
    crossed(
        [(i8, i8), (u8, i8), (i8, u8), (u8, u8), (bf16, bf16)],
        [(1, 64, 24), (6, 4, 12), (45, 67, 50), (12, 130, 7)],
        2,
    ),
)
def test_native_code_computes_the_sums(dtypes: tuple, size: tuple) -> None:
    group, arrays, want = arguments_of(default(), product(*dtypes, *size))
    _, nest = default_schedule(group, default())
    native = Native(nest)
    np.testing.assert_allclose(native(arrays)["y0"], want, rtol=1e-6, atol=1e-2)
    assert native.strays(arrays) is None


@every_run(0, 2)
@pytest.mark.parametrize("dtypes", [(i8, i8), (u8, i8), (f32, f32)], ids=str)
def test_any_number_of_rows(dtypes: tuple[DType, DType]) -> None:
    """One kernel, however many rows are left after the last whole tile."""
    rows = D.sym("B", 1)
    g = product(*dtypes, rows, 68, 30)
    _, _, group, _ = last_kernel(g, default())
    native = Native(default_schedule(group, default())[1])
    known = ("tile", "fma", "dpb", "maddwd", "dot")
    assert any(name in native.text for name in known) or not default().instructions
    for count in (1, 2, 3, 5, 6, 7, 11, 17, 24):
        _, arrays, want = arguments_of(default(), product(*dtypes, count, 68, 30))
        got = native(arrays, {"B": count})["y0"]
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-4)
        assert native.strays(arrays, {"B": count}) is None


def test_refused_tiles_leave_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(x86, "registers_on_request", lambda: False)
    target = x86_with(*V4, "+avx512vnni", "+avx512bf16", *TILES)
    assert all(p.tile is None for p in target.products)
    for dtypes, instruction in (((i8, i8), "vpdpbusd"), ((bf16, bf16), "vdpbf16ps")):
        text = emit(legalise(scheduled(product(*dtypes, 64, 128, 96), target), target), target)
        assert instruction in assembly(text, target)


@pytest.mark.parametrize("columns", [24, 30, 64])
def test_columns_that_do_not_fill_a_panel_have_the_instruction(columns: int) -> None:
    target = x86_with(*V4)
    _, _, group, _ = last_kernel(product(f32, f32, 45, 68, columns), target)
    trace, _ = default_schedule(group, target)
    assert any(isinstance(step, Tensorize) for step in trace)
