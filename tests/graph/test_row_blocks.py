"""Attention of few rows on a GPU: which of it is one cluster."""

from __future__ import annotations

import pytest

from tests.gpu.programs import prepared
from tests.graph.build import arg, build, graph, softmax
from tilewright.base.events import Log
from tilewright.graph.fuse import fuse
from tilewright.graph.row_blocks import block_threads
from tilewright.ir.node import Node
from tilewright.ir.types import DType, bf16, f32
from tilewright.targets import get


def attention(
    d: DType, heads: int, rows: int, keys: int, width: int, mine: Node | None = None
) -> Node:
    """Keys in a cache, and one that is not there yet."""
    q, k, v = (arg(x, heads, n, width, dtype=d) for x, n in (("q", rows), ("k", keys), ("v", keys)))
    mine = mine or arg("mine", heads, 1, width, dtype=d)
    turned = build.mul(build.add(q, arg("turn", width, dtype=d)), arg("by", width, dtype=d))
    scores = [build.matmul(turned, build.permute(x, (0, 2, 1))) for x in (k, mine)]
    weights = build.cast(softmax(build.cast(build.concat(scores, 2), f32)), d)
    own = build.mul(build.slice(weights, 2, keys, keys + 1), mine)
    return build.add(build.matmul(build.slice(weights, 2, 0, keys), v), own)


def clusters(*outputs: Node) -> list[str]:
    target = get("cuda:90")
    return [c.kind for c in fuse(prepared(graph(*outputs), target, Log()), target, Log()).clusters]


@pytest.mark.parametrize("d", [f32, bf16], ids=str)
def test_it_is_one_cluster(d: DType) -> None:
    assert clusters(attention(d, 2, 4, 256, 32)) == ["contract"]


@pytest.mark.parametrize(
    "size",
    [
        (8, 32, 256, 64),  # more rows than multiprocessors
        (2, 4, 200, 64),  # threads do not divide the keys
        (2, 4, 256, 48),  # vectors of a head are no power of two
        (1, 1, 8192, 64),  # more bytes than a block should read alone
    ],
    ids=str,
)
def test_what_a_block_should_not_do_alone_is_several(size: tuple[int, int, int, int]) -> None:
    assert len(clusters(attention(bf16, *size))) > 1


def test_rows_that_are_results_are_stored() -> None:
    q, k, v = (arg(x, 2, n, 32, dtype=bf16) for x, n in (("q", 4), ("k", 256), ("v", 256)))
    weights = softmax(build.matmul(q, build.permute(k, (0, 2, 1))))
    assert len(clusters(build.matmul(weights, v), weights)) > 1


def test_small_maps_that_others_read_too_are_made_again() -> None:
    """Blocks need not wait for a kernel that another output needs."""
    product = build.matmul(arg("x", 1, 256, dtype=bf16), arg("w", 256, 64, dtype=bf16))
    mine = build.mul(build.reshape(product, (2, 1, 32)), arg("scale", 32, dtype=bf16))
    found = clusters(attention(bf16, 2, 4, 256, 32, mine), build.concat([mine, mine], 0))
    assert found.count("contract") == 2 and found.count("map") == 1


@pytest.mark.parametrize(
    ("columns", "lanes", "want"), [(64, 8, (8, 32)), (16, 8, (2, 128)), (48, 8, None), (8, 8, None)]
)
def test_threads_of_a_block(columns: int, lanes: int, want: tuple[int, int] | None) -> None:
    assert block_threads(columns, lanes) == want
