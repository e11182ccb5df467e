"""Passes that only graphs for a GPU take."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.build import arg, build, graph, weight
from tilewright.base.events import Log
from tilewright.driver.program.default_passes import passes
from tilewright.graph.align import SinkReshapes
from tilewright.graph.aligned_rows import AlignRows
from tilewright.graph.fold import split_weights
from tilewright.graph.fuse import fuse
from tilewright.graph.merged_products import MergeProducts
from tilewright.graph.narrow_products import NarrowProducts
from tilewright.graph.one_pass_norms import OnePassNorms
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph
from tilewright.ir.operator import outputs_of
from tilewright.ir.types import DType, bf16, f32, from_memory, to_memory
from tilewright.kernel.group import build_group
from tilewright.kernel.legal import legalise
from tilewright.kernel.schedule import default_schedule
from tilewright.llvm.grid import emit_kernels
from tilewright.ops.norms import BatchNormTrain
from tilewright.targets import get

ODD = {
    "columns": (False, 24, 41, 64),  # x @ w, w of odd rows
    "sum": (True, 24, 40, 67),  # both have rows along the sum
    "all": (False, 24, 35, 67),
}


def test_a_norm_behind_a_product_is_one_kernel() -> None:
    """Frontends put an axis of one around the batch between the two."""
    x, w = arg("x", 128, 64), arg("w", 64, 96)
    y = build.reshape(build.matmul(x, w), (1, 128, 96))
    mean = build.sum(y, (2,), True)
    g = graph(build.mul(build.sub(y, mean), build.rsqrt(build.add(mean, 1.0))))
    moved = SinkReshapes().apply(g, Log())
    sums = [n for n in moved.nodes() if n.op.name == "sum"]
    assert [n.shape for n in sums] == [(128, 1)]
    target = get("cuda:90")
    ready = passes(target).run(g, target, Log())
    assert len(fuse(ready, target, Log()).clusters) == 2


def test_products_read_16_bit_operands_as_they_are() -> None:
    x, w = arg("x", 4, 8, dtype=bf16), arg("w", 6, 8, dtype=bf16)
    turned = build.permute(build.cast(w, f32), (1, 0))
    out = NarrowProducts().apply(graph(build.matmul(build.cast(x, f32), turned)), Log())
    assert [n.op.name for n in out.nodes()].count("cast") == 0
    assert out.outputs[0].op.name == "wide_matmul"


def test_weights_of_attention_are_rounded_and_other_floats_are_not() -> None:
    x, v = arg("x", 4, 8), arg("v", 8, 6, dtype=bf16)
    weights = build.exp(build.sub(x, build.amax(x, (1,), True)))
    wide = build.cast(v, f32)
    out = NarrowProducts().apply(graph(build.matmul(weights, wide)), Log())
    assert out.outputs[0].op.name == "wide_matmul"
    plain = NarrowProducts().apply(graph(build.matmul(x, wide)), Log())
    assert plain.outputs[0].op.name == "matmul"


@pytest.mark.parametrize("name", list(ODD))
def test_rows_for_the_copy_engine(name: str) -> None:
    """Weights of odd rows are copied once, with longer ones; the products are the same, and the
    copy engine brings their tiles."""
    turned, rows, columns, deep = ODD[name]
    x = arg("x", rows, deep, dtype=bf16)
    shape = (columns, deep) if turned else (deep, columns)
    w = weight("w", *shape, dtype=bf16)
    y = build.matmul(x, build.permute(w, (1, 0)) if turned else w)
    g, target = graph(y), get("cuda:90")
    if deep % 8:  # x is no weight: too small to be copied in every call
        assert AlignRows(("bf16",)).apply(g, Log()) is g
        x = weight("x", rows, deep, dtype=bf16)
        g = graph(build.matmul(x, build.permute(w, (1, 0)) if turned else w))
    ready = AlignRows(("bf16",)).apply(g, Log())
    rng = np.random.default_rng(0)
    given = [
        (rng.integers(-4, 5, [int(str(d)) for d in i.shape]) / 2).astype(bf16.numpy)
        for i in g.inputs
    ]
    (want,), (got,) = evaluate(g, given), evaluate(ready, given)
    np.testing.assert_array_equal(got, want)
    prologue, main = split_weights(ready, views=False)
    assert "pad" in {n.op.name for n in prologue.nodes()} | {n.op.name for n in main.nodes()}
    clusters = fuse(ready, target, Log()).clusters
    products = [c for c in clusters if any("matmul" in n.op.name for n in c.nodes)]
    (c,) = products
    _, nest = default_schedule(build_group("k", c.nodes, c.inputs, c.outputs), target)
    kernels = emit_kernels(legalise(nest, target), target)
    assert len(kernels.launches[0].boxes) == 2, "threads copy the tiles"


def test_rows_that_are_aligned_stay() -> None:
    x, w = arg("x", 24, 64, dtype=bf16), weight("w", 64, 40, dtype=bf16)
    g = graph(build.matmul(x, w))
    assert AlignRows(("bf16",)).apply(g, Log()) is g
    odd = graph(build.matmul(x, weight("v", 64, 41, dtype=bf16)))
    assert AlignRows().apply(odd, Log()) is odd, "without a copy engine"


def _clusters(target: str, rows: int, dtype: DType) -> list[str]:
    """The kernels that attention becomes, between permutations of its heads."""
    on = get(target)
    q, k, v = (arg(x, 2, rows, 4, 64, dtype=dtype) for x in "qkv")
    heads = [build.permute(x, (0, 2, 1, 3)) for x in (q, k, v)]
    made = graph(build.permute(build.attention(*heads, causal=True), (0, 2, 1, 3)))
    ready = passes(on).run(made, on, Log())
    return [c.kind for c in fuse(ready, on, Log()).clusters]


def test_attention_is_one_kernel_where_groups_of_warps_multiply() -> None:
    """Keys that no block divides are padded, and heads turned, by that kernel itself."""
    assert _clusters("cuda:90", 100, bf16) == ["chain"]
    assert "chain" not in _clusters("cuda:80", 100, bf16)
    assert "chain" not in _clusters("cuda:90", 100, f32)
    assert "chain" not in _clusters("cuda:90", 8, bf16)


def test_attention_in_wide_floats_is_one_kernel() -> None:
    """Torch's own definition: operands are cast and scaled, rows that see nothing are zero."""
    q, k, v = (build.cast(arg(x, 2, 4, 100, 64, dtype=bf16), f32) for x in "qkv")
    k = build.permute(k, (0, 1, 3, 2))
    mask = build.reshape(arg("mask", 2, 100, dtype=bf16), (2, 1, 1, 100))
    scores = build.add(build.matmul(build.mul(q, 0.35), build.mul(k, 0.35)), build.cast(mask, f32))
    some = build.any(build.ne(scores, float("-inf")), (3,), True)
    weights = build.where(some, build.softmax(scores, 3), 0.0)
    made = graph(build.cast(build.matmul(weights, v), bf16))
    on = get("cuda:90")
    ready = passes(on).run(made, on, Log())
    assert [c.kind for c in fuse(ready, on, Log()).clusters] == ["chain"]


@pytest.mark.parametrize("turned", [False, True])
def test_products_of_one_operand_with_weights_are_one(turned: bool) -> None:
    """Queries, keys and values: one product, whose columns each takes a part of."""
    x = arg("x", 6, 8, dtype=bf16)
    sizes = (5, 3, 4)
    out = []
    for k, n in enumerate(sizes):
        w = weight(f"w{k}", *((n, 8) if turned else (8, n)), dtype=bf16)
        y = build.matmul(x, build.permute(w, (1, 0)) if turned else w)
        out.append(build.reshape(build.add(y, weight(f"b{k}", n, dtype=bf16)), (2, 3, n)))
    g = graph(*out)
    merged = MergeProducts(True).apply(g, Log())
    (product,) = [n for n in merged.nodes() if n.op.name == "matmul"]
    assert product.shape == (6, sum(sizes))
    assert [n.op.name for n in merged.nodes()].count("add") == 1
    assert (product.inputs[1].op.name == "permute") == turned, "rows stay what they are in memory"
    rng = np.random.default_rng(1)
    values = [rng.standard_normal([int(str(d)) for d in n.shape]) for n in g.inputs]
    for got, want in zip(evaluate(merged, values), evaluate(g, values), strict=True):
        np.testing.assert_allclose(got, want)


def test_products_whose_results_go_on_stay_alone() -> None:
    """What is done to the results is their epilogue; changing operands are not put together."""
    x = arg("x", 6, 8, dtype=bf16)
    gate, up = (build.matmul(x, weight(name, 8, 5, dtype=bf16)) for name in ("gate", "up"))
    gated = graph(build.mul(build.tanh(gate), up))
    assert MergeProducts(True).apply(gated, Log()) is gated
    both = [build.matmul(x, arg(name, 8, 5, dtype=bf16)) for name in ("a", "b")]
    given = graph(*(build.reshape(y, (30,)) for y in both))
    assert MergeProducts(True).apply(given, Log()) is given


def test_statistics_of_a_batch_in_one_pass() -> None:
    """Mean and variance are one kernel, and no worse where the mean is far from zero."""
    seed = int(np.random.default_rng().integers(1 << 30))
    print(f"seed {seed}")
    draw = np.random.default_rng(seed)
    n, c, side = (int(draw.integers(*x)) for x in ((2, 5), (2, 9), (3, 7)))
    x, w = arg("x", n, c, side, side, dtype=bf16), [arg(name, c) for name in "wbmv"]
    found = outputs_of(build.batch_norm_train(x, *w, eps=1e-5, momentum=0.1))
    g = Graph("norm", (x, *w), found)
    apart = float(draw.choice([0.0, 3.0, 100.0]))
    values = from_memory(to_memory(draw.normal(apart, 1.0, (n, c, side, side)), bf16), bf16)
    given = [values, *(draw.uniform(0.5, 2.0, c).astype(np.float32) for _ in w)]
    exact = BatchNormTrain(1e-5, 0.1).reference(*(a.astype(np.float64) for a in given))
    one = OnePassNorms().apply(g, Log())
    for k, want in enumerate(exact):
        first, second = (np.abs(evaluate(p, given)[k] - want).max() for p in (g, one))
        assert second <= 2 * first + 4 * 2.0**-23 * max(1.0, apart) * np.abs(want).max(), k
    target = get("cuda:90")
    clusters = fuse(passes(target).run(g, target, Log()), target, Log()).clusters
    assert [c.kind for c in clusters].count("column") == 1


def test_small_maps_of_arguments_are_one_kernel() -> None:
    counts = [arg(f"n{k}") for k in range(9)]
    x = arg("x", 300)
    g = Graph("g", (*counts, x), tuple(build.add(n, 1.0) for n in (*counts, x)))
    target = get("cuda:90")
    assert sorted(len(c.outputs) for c in fuse(g, target, Log()).clusters) == [1, 9]
