"""Operators are understood from their definitions alone."""

import pytest

from tests.graph.build import arg, build, weight
from tilewright.base.errors import Invalid
from tilewright.graph.classify import (
    OTHER,
    UNIT,
    classify,
    contraction,
    facts,
    flops,
    guess,
)
from tilewright.ir import dim as D
from tilewright.ir.node import constant, item
from tilewright.ir.operator import OPERATORS, is_composed, sample_node
from tilewright.ir.types import b1, bf16, f32, i64

x = arg("x", 4, 6, 8)
image = arg("image", 2, 8, 10, 10)


@pytest.mark.parametrize(
    ("node", "kind"),
    [
        (x, "source"),
        (constant([1.0], f32), "source"),
        (build.add(x, x), "map"),
        (build.full((3,), 1.0, f32), "map"),
        (build.concat([x, x], 1), "map"),
        (build.pad(x, (0, 0, 1), (0, 0, 1), 0.0), "map"),
        (build.take(x, arg("i", 5, dtype=i64), 0), "map"),
        (build.permute(x, (2, 0, 1)), "view"),
        (build.slice(x, 1, 2, 5), "view"),
        (build.expand(arg("s", 1, 8), (6, 8)), "view"),
        (build.sum(x, (2,)), "reduce"),
        (build.amax(x, (0, 2)), "reduce"),
        (build.matmul(x, arg("y", 8, 5)), "contract"),
        (build.matmul(arg("a", 2, 3, dtype=bf16), arg("b", 3, 4, dtype=bf16)), "contract"),
        (build.conv_valid(image, weight("w", 16, 8, 3, 3), (1, 1), (1, 1), 1), "contract"),
        (build.matmul(arg("p", 2, 3, dtype=b1), arg("q", 3, 4, dtype=b1)), "reduce"),
        (build.cumsum(x, 1), "program"),
        (item(build.sort(x, 1), 0), "program"),
    ],
)
def test_kinds(node, kind: str) -> None:
    assert classify(node) == kind


def test_compositions_are_refused() -> None:
    with pytest.raises(Invalid, match="decompose"):
        classify(build.mean(x, (1,)))


def test_every_primitive_sample_is_understood() -> None:
    seen = set()
    for cls in OPERATORS.values():
        for s in cls.samples():  # type: ignore[attr-defined]
            if not is_composed(s.op):
                n = sample_node(s)
                seen.add(classify(n))
                if classify(n) == "view":
                    assert len(facts(n).accesses) == 1
                if s.op.elementwise:
                    assert facts(n).pointwise, s.op.name
    assert seen == {"map", "view", "reduce", "contract", "program"}


@pytest.mark.parametrize("batch", [3, D.sym("B", 1)])
def test_reshapes_keep_positions(batch: D.Dim) -> None:
    y = arg("y", batch, 6, 8)
    assert facts(build.reshape(y, (batch * 6, 8))).reshape
    assert facts(build.reshape(y, (batch, 48))).reshape
    assert facts(build.reshape(build.reshape(y, (batch * 6, 8)), (batch, 6, 8))).reshape
    assert facts(build.reshape(y, (batch, 6, 2, 4))).reshape
    assert facts(build.reshape(arg("three", 3, 4, 64), (1, 768))).reshape
    assert not facts(build.permute(y, (0, 2, 1))).reshape
    assert not facts(build.slice(y, 1, 0, 5)).reshape
    # moving an axis of size 1 moves nothing
    assert facts(build.permute(arg("z", 1, 6, 8), (1, 0, 2))).reshape


def test_axes_of_accesses() -> None:
    (a,) = facts(build.permute(x, (2, 0, 1))).accesses
    assert a.axes == (1, 2, 0) and a.affine
    (b,) = facts(build.expand(arg("s", 6, 1), (4, 6, 8))).accesses
    assert b.axes == (1, UNIT)
    (c,) = facts(build.reshape(x, (4, 48))).accesses
    assert c.axes == (0, OTHER, OTHER) and not c.affine
    (d,) = facts(build.reshape(arg("f", 4, 48), (4, 6, 8))).accesses
    assert d.axes == (0, OTHER) and d.affine
    gathered = facts(build.take(x, arg("i", 5, dtype=i64), 0)).accesses
    assert sorted(a.affine for a in gathered) == [False, True]


def test_rows() -> None:
    assert facts(build.sum(x, (2,))).outer == 2
    assert facts(build.sum(x, (2,), True)).outer == 2
    assert facts(build.amax(x, (1, 2))).outer == 1
    assert facts(build.sum(x, (0, 1, 2))).outer == 0
    assert facts(build.sum(x, (1,))).outer is None
    assert facts(build.sum(x, (0, 2))).outer is None
    assert facts(build.sum(x, (1, 2))).inner == (6, 8)


def test_structure_of_contractions() -> None:
    c = contraction(build.matmul(arg("a", 5, 1, 32, 64), arg("b", 8, 64, 12)))
    assert c is not None
    assert (c.left, c.right, c.lane, c.rows) == (0, 1, 3, (0, 2))
    assert c.columns == (1, 3) and c.batch == ()
    conv = contraction(build.conv_valid(image, weight("w", 16, 8, 3, 3), (1, 1), (1, 1), 1))
    assert conv is not None
    assert (conv.left, conv.right, conv.lane, conv.rows) == (0, 1, 1, (0, 2, 3))
    grouped = contraction(build.conv_valid(image, weight("w", 16, 4, 3, 3), (1, 1), (1, 1), 2))
    assert grouped is not None and grouped.lane == 1 and grouped.columns == ()
    depthwise = build.conv_valid(image, weight("w", 8, 1, 3, 3), (1, 1), (1, 1), 8)
    assert classify(depthwise) == "contract" and contraction(depthwise) is None


def test_estimates() -> None:
    assert flops(build.matmul(arg("a", 10, 20), arg("b", 20, 30))) == 2 * 10 * 20 * 30
    assert flops(build.exp(x)) > flops(build.neg(x)) == 4 * 6 * 8
    assert guess(3) == 3
    assert guess(D.sym("n", 1, 16) * 2) == 32
    assert guess(D.sym("m", 1000) + 1) == 1001
