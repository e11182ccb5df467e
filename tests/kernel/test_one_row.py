"""Products of one row on a GPU: every warp makes the row, a gate is computed along with it, and all
loads of a warp are on their way at a time."""

from __future__ import annotations

import pytest

from tests.gpu import emulate
from tests.gpu.assembler import assemble
from tests.gpu.programs import groups, inputs
from tests.graph.build import arg, average, build, graph, weight
from tests.kernel.test_grids import GPU, judge, scheduled
from tests.seeds import every_run
from tilewright.base.errors import Refused
from tilewright.ir.node import Graph, Node
from tilewright.ir.types import DType, bf16, f32
from tilewright.kernel.interpret import run_group
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import start
from tilewright.kernel.step import apply
from tilewright.kernel.steps.bind import Bind
from tilewright.kernel.steps.pragma import Pragma
from tilewright.kernel.steps.split import Split
from tilewright.kernel.text import nest_text, parse_nest
from tilewright.llvm.grid import emit_kernels
from tilewright.llvm.objects import assembly


def normed(x: Node, d: DType, depth: int) -> Node:
    """An RMS norm, in float32."""
    wide = build.cast(x, f32)
    scale = build.rsqrt(build.add(average(build.mul(wide, wide), (1,)), 1e-5))
    return build.cast(build.mul(build.mul(wide, scale), weight("g", depth)), d)


def times(x: Node, name: str, d: DType, rows: int, depth: int) -> Node:
    return build.matmul(x, build.permute(weight(name, rows, depth, dtype=d), (1, 0)))


def gated(d: DType, rows: int = 16, depth: int = 256) -> Graph:
    """The first half of a Llama's MLP, with the norm before it."""
    y = normed(arg("x", 1, depth, dtype=d), d, depth)
    gate, up = (times(y, name, d, rows, depth) for name in ("gate", "up"))
    return graph(build.mul(build.silu(gate), up))


@every_run(0)
@pytest.mark.parametrize("d", [f32, bf16], ids=str)
def test_a_norm_and_a_gate_are_parts_of_the_product(d: DType) -> None:
    (g,) = groups(gated(d))
    nest = scheduled(g)
    judge(g, nest, {}, d)
    args = inputs(g, {})
    want, got = run_group(g, args, {}), emulate.run(nest, args, target=GPU)
    for name, x in got.items():
        close = 2e-2 if d is bf16 else 1e-5
        assert abs(x.astype("f8") - want[name].astype("f8")).max() <= close * abs(x).max()
    made = emit_kernels(legalise(nest, GPU), GPU)
    assert len(made.launches) == 1 and "addrspace(3)" not in made.text  # the row is in registers


def test_a_row_that_others_read_is_stored() -> None:
    y = normed(arg("x", 1, 256, dtype=bf16), bf16, 256)
    first, second = times(y, "a", bf16, 32, 256), times(y, "b", bf16, 24, 256)
    assert len(groups(graph(build.exp(first), second))) == 3
    assert len(groups(graph(times(y, "a", bf16, 32, 256), y))) == 2


@pytest.mark.parametrize("depth", [250, 4096])
def test_a_row_that_is_not_a_few_vectors_of_each_lane_is_stored(depth: int) -> None:
    y = normed(arg("x", 1, depth, dtype=bf16), bf16, depth)
    assert len(groups(graph(times(y, "w", bf16, 32, depth)))) == 2


def test_a_result_that_the_row_alone_reads_in_float32_is_stored_once() -> None:
    """The sum of a layer is stored as it is, and the norm converts it."""
    x = build.add(
        times(arg("z", 1, 512, dtype=bf16), "a", bf16, 256, 512), arg("x", 1, 256, dtype=bf16)
    )
    y = build.add(times(normed(x, bf16, 256), "b", bf16, 256, 256), x)
    first, second = groups(graph(y))
    assert [b.dtype for b in first.outputs] == [bf16]
    judge(second, scheduled(second), {}, bf16)


def test_sixteen_loads_are_on_their_way() -> None:
    """Without a limit that leaves registers, ptxas puts two or three at a time."""
    (g,) = groups(graph(times(arg("x", 1, 8192, dtype=bf16), "w", bf16, 2048, 8192)))
    made = emit_kernels(legalise(scheduled(g), GPU), GPU)
    assert made.text.count('"nvvm.minctasm"="4"') == 1
    for x in assemble(assembly(made.text, GPU), GPU.cpu):
        assert 96 < x.registers <= 128 and x.spilled == 0, x


def test_registers_are_left_by_blocks_of_a_grid() -> None:
    (g,) = groups(graph(build.exp(arg("x", 512))))
    trace = (Split("y0.i0", 32), Bind("y0.i0.0", "block.x"))
    nest = apply(start(g), (*trace, Pragma("y0.i0.0", "resident", 4)))
    assert "pragma resident 4" in nest_text(nest) and parse_nest(nest_text(nest)) == nest
    with pytest.raises(Refused, match=r"not block\.x"):
        apply(start(g), (*trace, Pragma("y0.i0.1", "resident", 4)))
    with pytest.raises(Refused, match="not a value of resident"):
        apply(start(g), (*trace, Pragma("y0.i0.0", "resident", 33)))
