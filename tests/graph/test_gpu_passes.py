"""Passes that only graphs for a GPU take."""

from __future__ import annotations

from tests.graph.build import arg, build, graph
from tilewright.base.events import Log
from tilewright.driver.program.default_passes import passes
from tilewright.graph.align import SinkReshapes
from tilewright.graph.fuse import fuse
from tilewright.graph.narrow_products import NarrowProducts
from tilewright.ir.types import bf16, f32
from tilewright.targets import get


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
