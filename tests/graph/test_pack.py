"""Operands of contractions are laid out in tiles where that pays."""

from dataclasses import replace

import numpy as np
import pytest

from tests.graph.build import TARGET, arg, arguments, build, check, graph, kinds, names, weight
from tilewright.base.events import Log
from tilewright.graph.cost import Roofline, work
from tilewright.graph.fuse import fuse
from tilewright.graph.memory import plan
from tilewright.graph.pack import PackOperands
from tilewright.ir import dim as D
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Node, topological
from tilewright.ir.passes import parse_passes
from tilewright.ir.register_tile import RegisterTile, register_tile
from tilewright.ir.target import Target
from tilewright.ir.types import bf16, f32, f64, i64
from tilewright.kernel.intrinsic import products
from tilewright.targets import get

NEON, AVX2, AVX512 = (get(name) for name in ("arm64", "x86-64-v3", "x86-64-v4"))


def maps(*outputs: Node, target: Target = NEON) -> list[str]:
    g = PackOperands.of(target).apply(graph(*outputs), Log())
    return [str(n.op.map) for n in topological(g.outputs) if n.op.name == "relayout"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("target", "tile"),
    [
        (NEON, RegisterTile(6, 12, 8, 7)),
        (AVX2, RegisterTile(6, 16, 6, 6)),
        (AVX512, RegisterTile(8, 48, 8, 8)),
    ],
)
def test_tiles_fill_the_registers(target: Target, tile: RegisterTile) -> None:
    assert register_tile(target, f32) == tile
    assert register_tile(target, bf16) == tile  # summed in float32
    assert register_tile(target, f64) == replace(tile, columns=tile.columns // 2)


def test_narrower_columns_leave_registers_for_more_rows() -> None:
    assert register_tile(AVX512, f32, 32) == RegisterTile(14, 32, 8, 14)
    assert register_tile(AVX512, f32, 48) == register_tile(AVX512, f32)
    assert register_tile(AVX2, f32, 8).rows == 14
    assert register_tile(AVX2, f32, 4).columns == 8  # one vector is the least
    assert register_tile(NEON, f32, 8) == register_tile(NEON, f32)


@pytest.mark.parametrize(("target", "width"), [(NEON, 12), (AVX2, 16), (AVX512, 48)])
def test_constant_weights(target: Target, width: int) -> None:
    y = build.matmul(arg("x", 64, 96), weight("w", 96, 192))
    assert maps(y, target=target) == [f"a0, a1 -> a1//{width}, a0, a1%{width}"]


def test_transposed_weights_are_packed_from_where_they_are() -> None:
    w = weight("w", 192, 96)
    y = build.matmul(arg("x", 64, 96), build.permute(w, (1, 0)))
    g = PackOperands.of(NEON).apply(graph(y), Log())
    f = fuse(g, TARGET, Log())
    check(f)
    assert kinds(f) == ["map", "contract"]
    assert names(f.clusters[0]) == {"permute", "relayout"} and f.clusters[0].inputs == (w,)


def test_a_left_operand_that_lies_across_is_stored_once_more() -> None:
    """As in the gradient of a weight: rows of a tile would be far from each other in memory."""
    g, x = arg("g", 512, 256), arg("x", 512, 192)
    across, along = (build.permute(g, (1, 0)), arg("h", 256, 512))
    right = "a0, a1 -> a1//48, a0, a1%48"
    panels = "a0, a1 -> a0//16, a1, a0%16"  # whole lines, and tiles of eight rows
    assert maps(build.matmul(across, x), target=AVX512) == [panels, right]
    assert not maps(build.matmul(along, x), target=AVX512)
    # Rows that tiles do not divide are turned, and so is what an instruction loads in vectors.
    ragged = build.matmul(build.permute(arg("r", 512, 250), (1, 0)), x)
    assert maps(ragged, target=AVX512) == ["a0, a1 -> a0, a1", right]
    assert maps(build.matmul(across, x), target=NEON)[0] == "a0, a1 -> a0, a1"
    few = build.matmul(build.permute(arg("f", 64, 128), (1, 0)), arg("y", 64, 128))
    assert len(maps(few, target=AVX512)) < 2  # it is in the caches anyway
    # So are the lines that rows of a tile read of a short sum, if they do not collide.
    heads, of = arg("p", 48, 197, 197), arg("o", 48, 197, 64)
    stays = maps(build.matmul(build.permute(heads, (0, 2, 1)), of), target=AVX512)
    assert not stays
    far = arg("q", 48, 256, 256)
    collide = build.matmul(build.permute(far, (0, 2, 1)), arg("v", 48, 256, 64))
    assert maps(collide, target=AVX512)[0] == "a0, a1, a2 -> a0, a1, a2"
    # Of a long sum, panels of the other operand push these lines out (a vocabulary's gradient):
    # the second cache has to have them, or they are read from memory for each panel.
    for rows, copied in ((50257, True), (511, False)):
        words = build.matmul(build.permute(arg(f"l{rows}", 256, rows), (1, 0)), arg("e", 256, 768))
        assert ("a0, a1 -> a0, a1" in maps(words, target=AVX512)) == copied
    made = PackOperands.of(AVX512).apply(graph(build.matmul(across, x)), Log())
    f = fuse(made, TARGET, Log())
    check(f)
    assert kinds(f) == ["map", "map", "contract"]
    # Fusion moves reshapes, and leaves the copy where it is, although its order is its operand's.
    wide = build.matmul(arg("z", 64, 32), arg("w", 32, 48))
    sunk = build.gelu(build.reshape(wide, (8, 8, 48)))
    both = PackOperands.of(AVX512).apply(graph(ragged, sunk), Log())
    copies = [n for c in fuse(both, TARGET, Log()).clusters for n in c.nodes if n.op.barrier]
    assert sum(n.shape == (250, 512) for n in copies) == 1


def test_operands_of_a_sum_that_threads_share_stay_as_they_lie() -> None:
    """As in the gradient of thin weights: each is read once, a copy would be most of the work."""

    def thin(rows: int, columns: int, terms: int) -> Node:
        g = build.permute(arg(f"g{rows}", terms, rows), (1, 0))
        return build.matmul(g, build.exp(arg(f"x{columns}", terms, columns)))

    assert not maps(thin(24, 144, 25088), target=AVX512)
    assert maps(thin(256, 192, 25088), target=AVX512)
    # Packing what its operands are made of leaves it what it is.
    x, w = arg("x", 25088, 96), arg("w", 96, 144)
    g = build.permute(arg("g", 25088, 24), (1, 0))
    (one,) = maps(build.matmul(g, build.matmul(x, w)), target=AVX512)
    assert one.startswith("a0, a1 -> a1//48")
    # What others sum again may become one kernel with these, which reads panels.
    assert maps(build.sum(thin(24, 144, 25088), (0,)), target=AVX512)


def test_convolution_weights() -> None:
    y = build.conv_valid(arg("x", 2, 8, 10, 10), weight("w", 24, 8, 3, 3), (1, 1), (1, 1), 1)
    assert maps(y) == ["a0, a1, a2, a3 -> a0//12, a1, a2, a3, a0%12"]


def test_grouped_convolutions_keep_tiles_within_groups() -> None:
    x = arg("x", 2, 8, 10, 10)
    fits = build.conv_valid(x, weight("w", 48, 4, 3, 3), (1, 1), (1, 1), 2)
    assert len(maps(fits)) == 1
    narrower = build.conv_valid(x, weight("w", 32, 2, 3, 3), (1, 1), (1, 1), 4)
    assert maps(narrower) == ["a0, a1, a2, a3 -> a0//8, a1, a2, a3, a0%8"]
    straddles = build.conv_valid(x, weight("w", 20, 2, 3, 3), (1, 1), (1, 1), 4)
    assert maps(straddles) == []
    depthwise = build.conv_valid(x, weight("w", 8, 1, 3, 3), (1, 1), (1, 1), 8)
    assert maps(depthwise) == []


def test_attention_operands() -> None:
    q, k = arg("q", 2, 4, 32, 48), arg("k", 2, 4, 36, 48)
    y = build.matmul(q, build.permute(k, (0, 1, 3, 2)))
    assert maps(y) == ["a0, a1, a2, a3 -> a0, a1, a3//12, a2, a3%12"]


def test_few_rows() -> None:
    x = arg("x", 2, 96)
    assert maps(build.matmul(x, arg("y", 96, 192))) == []
    assert len(maps(build.matmul(x, weight("w", 96, 192)))) == 1


def test_narrow_outputs() -> None:
    assert maps(build.matmul(arg("x", 64, 96), weight("w", 96, 1))) == []
    assert maps(build.matmul(arg("x", 64, 96), weight("w", 96, 6))) == ["a0, a1 -> a1//8, a0, a1%8"]


def test_less_padding_is_preferred() -> None:
    assert maps(build.matmul(arg("x", 64, 96), weight("w", 96, 64))) == [
        "a0, a1 -> a1//8, a0, a1%8"
    ]


def test_symbolic_rows() -> None:
    y = build.matmul(arg("x", D.sym("B", 1), 96), weight("w", 96, 192))
    assert len(maps(y)) == 1


@pytest.mark.parametrize(
    ("target", "least", "most", "width"),
    [
        (AVX512, 1, None, 32),  # 64, the usual number: two panels without a rest
        (AVX512, 1, 20, 32),
        (AVX512, 1, 10, 16),
        (AVX512, 2000, None, 48),  # always many
        (AVX2, 1, None, 16),
        (NEON, 1, None, 8),
    ],
)
def test_panels_of_an_unknown_number_of_columns(
    target: Target, least: int, most: int | None, width: int
) -> None:
    n = D.sym("n", least, most)
    y = build.matmul(arg("a", 8, n, 64), arg("b", 8, 64, n))
    (found,) = maps(y, target=target)
    assert f"//{width}" in found and f"%{width}" in found


def test_packing_twice_changes_nothing() -> None:
    y = build.matmul(arg("x", 64, 96), weight("w", 96, 192))
    once = PackOperands.of(NEON).apply(graph(y), Log())
    assert PackOperands.of(NEON).apply(once, Log()) is once


def test_shared_weights_are_packed_once() -> None:
    w = weight("w", 96, 96)
    y = build.matmul(build.relu(build.matmul(arg("x", 64, 96), w)), w)
    assert len(maps(y)) == 1


@pytest.mark.parametrize("target", [NEON, AVX2, AVX512])
def test_packed_graphs_compute_the_same(target: Target) -> None:
    x = arg("x", 2, 8, 6, 6)
    y = build.conv_valid(x, weight("w", 19, 8, 3, 3), (1, 1), (1, 1), 1)
    z = build.matmul(build.reshape(y, (2 * 19, 16)), weight("v", 16, 17))
    s = build.matmul(z, build.permute(z, (1, 0)))
    g = graph(s)
    packed = PackOperands.of(target).apply(g, Log())
    assert len([n for n in packed.nodes() if n.op.barrier]) == 3
    args = arguments(g)
    for a, b in zip(evaluate(packed, args), evaluate(g, args), strict=True):
        np.testing.assert_array_equal(a, b)
    f = fuse(packed, TARGET, Log())
    check(f)
    assert plan(f).size


def test_passes_print_and_parse() -> None:
    p = PackOperands(min_rows=3)
    assert str(p) == "PackOperands{min_rows=3}" and parse_passes(str(p)) == (p,)
    # The machine is no option: it is filled in.
    assert str(p.on(AVX2)) == str(p) and parse_passes(str(p))[0].on(AVX2) == p.on(AVX2)


# ---- costs


def test_work_counts_what_crosses_the_edge() -> None:
    x, w = arg("x", 64, 96), weight("w", 96, 192)
    (c,) = fuse(graph(build.relu(build.matmul(x, w))), TARGET, Log()).clusters
    found = work(c)
    assert found.flops == 64 * 192 * (2 * 96 + 1)
    assert found.bytes_read == 4 * (64 * 96 + 96 * 192)
    assert found.bytes_written == 4 * 64 * 192


def test_a_gather_does_not_read_the_whole_table() -> None:
    (c,) = fuse(
        graph(build.take(weight("t", 1000, 8), arg("i", 4, dtype=i64), 0)), TARGET, Log()
    ).clusters
    assert work(c).bytes_read == 4 * 8 * 4 + 4 * 8


def test_measured_costs_win() -> None:
    f = fuse(graph(build.exp(arg("x", 64, 96))), TARGET, Log())
    estimate = Roofline(NEON)
    assert estimate.total(f) > 0
    assert Roofline(NEON, measured=lambda c: 42.0).total(f) == 42.0
    assert Roofline(NEON, measured=lambda c: None).total(f) == estimate.total(f)


def test_groups_of_the_sum_stay_together_for_instructions_that_add_them_up() -> None:
    tiles = replace(AVX512, products=products("x86.amx.bf16"))
    x, w = arg("x", 64, 96, dtype=bf16), weight("w", 96, 192, dtype=bf16)
    assert maps(build.matmul(x, w), target=tiles) == ["a0, a1 -> a1//32, a0//2, a1%32, a0%2"]
    # Few rows, or a sum that is no whole number of tiles, are packed as anywhere else.
    few = build.matmul(arg("x", 4, 96, dtype=bf16), w)
    assert maps(few, target=tiles) == ["a0, a1 -> a1//48, a0, a1%48"]
    ragged = build.matmul(arg("x", 64, 90, dtype=bf16), weight("w", 90, 192, dtype=bf16))
    assert maps(ragged, target=tiles) == ["a0, a1 -> a1//48, a0, a1%48"]
    assert maps(build.matmul(arg("x", 64, 96), weight("w", 96, 192)), target=tiles) == [
        "a0, a1 -> a1//48, a0, a1%48"
    ]


@pytest.mark.parametrize(
    ("batch", "rows", "deep", "columns", "packed"),
    [
        (12, 128, 64, 128, False),  # all that a tile of columns reads stays in the first cache
        (12, 8, 64, 512, False),  # one tile of rows: nothing is read twice
        (1, 256, 256, 256, False),  # rows a kilobyte apart collide there: threads copy panels
        (1, 128, 3072, 768, False),  # also of a long sum, for few rows
        (1, 768, 768, 768, True),  # more of them share one copy
        (1, 256, 64, 1024, True),  # a short sum of rows that lie on a page each
        (12, 128, 64, 100, True),  # panels have whole vectors, with zeros at their end
    ],
)
def test_a_changing_matrix_is_copied_where_that_gains(
    batch: int, rows: int, deep: int, columns: int, packed: bool
) -> None:
    x, w = arg("x", batch, rows, deep), arg("w", batch, deep, columns)
    assert bool(maps(build.matmul(x, w), target=AVX512)) == packed
    turned = build.transpose(arg("w", batch, columns, deep), -2, -1)
    assert maps(build.matmul(x, turned), target=AVX512)
    computed = build.matmul(build.relu(x), w)  # may be one kernel with what computes its rows
    assert maps(computed, target=AVX512)
