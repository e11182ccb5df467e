"""Products of bytes are brought to what an instruction multiplies, and stay exact."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.graph.build import TARGET, arg, build, graph, kinds, weight
from tilewright.base.events import Log
from tilewright.graph.dots import DotProducts
from tilewright.graph.fuse import fuse
from tilewright.graph.pack import PackOperands
from tilewright.ir import dim as D
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, Node
from tilewright.ir.target import Target
from tilewright.ir.types import DType, bf16, f16, f32, i8, i16, i32, i64, u8
from tilewright.kernel.intrinsic import products
from tilewright.ops.layout import Relayout
from tilewright.targets import get

NEON = replace(get("arm64"), products=products("arm64.sdot.tile", "arm64.udot.tile"))
X86 = replace(get("x86-64-v4"), products=())
VNNI = replace(
    X86,
    products=products(
        "x86.avx512.vpdpbusd.u8s8", "x86.avx512.vpdpbusd.s8u8", "x86.avx512.vdpbf16ps"
    ),
)
PAIRS = replace(get("x86-64-v3"), products=products("x86.avx2.vpmaddwd.i8", "x86.avx2.vpmaddwd.u8"))
AMX = products(*(f"x86.amx.{x}" for x in ("bf16", "f16", "s8s8", "u8s8", "s8u8", "u8u8")))
TILES = replace(VNNI, products=(*AMX, *VNNI.products))
TARGETS = {"neon": NEON, "vnni": VNNI, "pairs": PAIRS, "tiles": TILES, "none": X86}
BYTES = [(i8, i8), (u8, i8), (i8, u8), (u8, u8)]


def prepared(g: Graph, target: Target) -> Graph:
    return PackOperands.of(target).apply(DotProducts.of(target).apply(g, Log()), Log())


def only(g: Graph, name: str) -> Node:
    (found,) = [n for n in g.nodes() if n.op.name == name]
    return found


def maps(g: Graph) -> list[str]:
    return [str(n.op.map) for n in g.nodes() if isinstance(n.op, Relayout)]


def whole_range(n: Node, seed: int) -> np.ndarray:
    """Bytes of every value that they can have."""
    ends = int(n.dtype.lowest), int(n.dtype.highest) + 1
    shape = [d for d in n.shape if isinstance(d, int)]
    return np.random.default_rng(seed).integers(*ends, shape).astype(n.dtype.numpy)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtypes", BYTES, ids=str)
@pytest.mark.parametrize("size", [(16, 64, 24), (17, 37, 50), (3, 5, 16), (32, 130, 33)], ids=str)
def test_results_stay_the_same(
    target: str, dtypes: tuple[DType, DType], size: tuple[int, int, int]
) -> None:
    a, b = dtypes
    rows, deep, columns = size
    x, w = arg("x", rows, deep, dtype=a), weight("w", deep, columns, dtype=b)
    g = graph(build.wide_matmul(x, w), build.wide_matmul(arg("y", rows, deep, dtype=a), w))
    new = prepared(g, TARGETS[target])
    given = [whole_range(n, k) for k, n in enumerate(g.inputs)]
    given[0][0] = a.lowest
    for got, want in zip(evaluate(new, given), evaluate(g, given), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("target", "dtypes", "operand", "group"),
    [
        (NEON, (i8, i8), i8, 4),
        (NEON, (u8, i8), i8, 4),
        (NEON, (u8, u8), u8, 4),
        (VNNI, (u8, i8), u8, 4),
        (VNNI, (i8, i8), u8, 4),
        (VNNI, (i8, u8), i8, 4),
        (PAIRS, (i8, i8), i16, 2),
        (PAIRS, (u8, i8), i16, 2),
        (TILES, (i8, i8), i8, 4),
        (TILES, (u8, i8), u8, 4),
    ],
    ids=str,
)
def test_operands_are_what_the_instruction_takes(
    target: Target, dtypes: tuple[DType, DType], operand: DType, group: int
) -> None:
    a, b = dtypes
    g = graph(build.wide_matmul(arg("x", 64, 128, dtype=a), weight("w", 128, 96, dtype=b)))
    new = prepared(g, target)
    assert only(new, "wide_matmul").inputs[0].dtype is operand
    assert maps(new)[0].endswith(f"a0%{group}")
    # Bytes of the other sign cost a sum of the weight's columns, which runs once.
    shifted = operand is not a and operand is not i16
    sums = [n for n in new.nodes() if n.op.name == "sum"]
    assert len(sums) == shifted
    assert all(n.inputs[0].inputs == (g.inputs[1],) for n in sums)


def test_casts_belong_to_the_product() -> None:
    x, w = arg("x", 64, 128, dtype=i8), weight("w", 96, 128, dtype=i8)
    y = build.matmul(build.cast(x, i32), build.permute(build.cast(w, i32), (1, 0)))
    new = DotProducts.of(NEON).apply(graph(y), Log())
    product = only(new, "wide_matmul")
    assert product.inputs[0] is x and product.inputs[1].dtype is i8
    assert not [n for n in new.nodes() if n.op.name == "cast"]
    # Other sums than 32 bits, and operands that are not all bytes, are left alone.
    for other, wide in ((i8, i64), (i16, i32)):
        z = build.cast(arg("z", 64, 128, dtype=other), wide)
        left = graph(build.matmul(z, build.permute(build.cast(w, wide), (1, 0))))
        assert DotProducts.of(NEON).apply(left, Log()) is left


def test_sums_of_no_whole_groups_get_zeros() -> None:
    g = graph(build.wide_matmul(arg("x", 64, 126, dtype=i8), weight("w", 126, 96, dtype=i8)))
    assert only(prepared(g, NEON), "wide_matmul").inputs[0].shape == (64, 128)
    assert only(prepared(g, TILES), "wide_matmul").inputs[0].shape == (64, 128)
    # Where zeros would be too many for tiles, vectors take it.
    g = graph(build.wide_matmul(arg("x", 64, 70, dtype=u8), weight("w", 70, 96, dtype=i8)))
    assert only(prepared(g, TILES), "wide_matmul").inputs[0].shape == (64, 72)
    whole = graph(build.wide_matmul(arg("x", 64, 128, dtype=i8), weight("w", 128, 96, dtype=i8)))
    assert DotProducts.of(NEON).apply(whole, Log()) is whole


def test_rows_that_lie_apart_are_stored() -> None:
    x = build.permute(arg("x", 128, 64, dtype=i8), (1, 0))
    new = prepared(graph(build.wide_matmul(x, weight("w", 128, 96, dtype=i8))), NEON)
    assert only(new, "wide_matmul").inputs[0].op.name == "relayout"
    part = build.slice(arg("x", 64, 200, dtype=i8), 1, 8, 136)
    new = prepared(graph(build.wide_matmul(part, weight("w", 128, 96, dtype=i8))), NEON)
    assert only(new, "wide_matmul").inputs[0] is part


def test_one_row_of_what_changes_is_left() -> None:
    g = graph(build.wide_matmul(arg("x", 1, 128, dtype=u8), arg("w", 128, 96, dtype=i8)))
    assert prepared(g, NEON) is g
    constant = graph(build.wide_matmul(arg("x", 1, 128, dtype=u8), weight("w", 128, 96, dtype=i8)))
    assert only(prepared(constant, NEON), "wide_matmul").inputs[0].dtype is i8


def test_halves_in_pairs() -> None:
    x, w = arg("x", 64, 100, dtype=bf16), weight("w", 100, 96, dtype=bf16)
    assert maps(prepared(graph(build.matmul(x, w)), VNNI)) == [
        "a0, a1 -> a1//48, a0//2, a1%48, a0%2"
    ]
    few = build.matmul(arg("x", 4, 96, dtype=bf16), weight("w", 96, 96, dtype=bf16))
    assert maps(prepared(graph(few), TILES)) == ["a0, a1 -> a1//48, a0//2, a1%48, a0%2"]
    changing = build.matmul(x, arg("y", 100, 96, dtype=bf16))
    assert maps(prepared(graph(changing), VNNI)) == ["a0, a1 -> a1//48, a0, a1%48"]
    # Zeros between the two products of attention would keep them apart.
    ragged = graph(build.matmul(arg("x", 64, 90, dtype=bf16), arg("y", 90, 96, dtype=bf16)))
    assert DotProducts.of(TILES).apply(ragged, Log()) is ragged
    weights = graph(build.matmul(arg("x", 64, 90, dtype=bf16), weight("w", 90, 96, dtype=bf16)))
    assert only(prepared(weights, TILES), "matmul").inputs[0].shape == (64, 96)


def test_halves_of_ieee_take_tiles_that_multiply_them() -> None:
    x, w = arg("x", 64, 96, dtype=f16), weight("w", 96, 96, dtype=f16)
    pairs = "a0, a1 -> a1//32, a0//2, a1%32, a0%2"
    assert maps(prepared(graph(build.matmul(x, w)), TILES)) == [pairs]
    assert maps(prepared(graph(build.matmul(x, w)), VNNI)) == ["a0, a1 -> a1//48, a0, a1%48"]


def test_scales_are_one_kernel_with_the_product() -> None:
    rows = D.sym("B", 1)
    x, w = arg("x", rows, 128, dtype=u8), weight("w", 128, 96, dtype=i8)
    scales = build.mul(arg("s", rows, 1), weight("t", 96))
    y = build.mul(build.cast(build.wide_matmul(x, w), f32), scales)
    new = prepared(graph(build.add(y, weight("b", 96))), NEON)
    found = fuse(new, TARGET, Log())
    assert kinds(found).count("contract") == 1
    last = found.clusters[-1]
    assert last.kind == "contract" and new.outputs[0] in last.outputs
