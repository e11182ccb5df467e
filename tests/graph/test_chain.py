"""Chains are found in attention however it is spelled, and refused in words."""

from __future__ import annotations

from tests.graph.build import TARGET, arg, attention_block, build, check, graph, kinds, softmax
from tilewright.base.events import Log
from tilewright.graph.cluster import Fused
from tilewright.graph.decompose import Decompose
from tilewright.graph.fuse import fuse
from tilewright.graph.key_blocks import KeyBlocks
from tilewright.graph.pack import PackOperands
from tilewright.graph.simplify import Simplify
from tilewright.ir import dim as D
from tilewright.ir import passes
from tilewright.ir.dim import Dim
from tilewright.ir.node import Node, item
from tilewright.ir.types import f32, i64

BLOCKS = KeyBlocks(block=96, hidden=96)


def fused(*outputs: Node, blocks: KeyBlocks | None = BLOCKS) -> Fused:
    """As the compiler does: packed, then cut into clusters that keep their contract."""
    table = [Simplify(), *filter(None, [blocks]), Decompose(), Simplify(), PackOperands()]
    found = fuse(passes.run(table, graph(*outputs), Log()), TARGET, Log())
    check(found)
    return found


def heads(*shape: Dim) -> tuple[Node, Node, Node]:
    return arg("q", *shape), arg("k", *shape), arg("v", *shape)


def written_out(q: Node, k: Node, v: Node) -> tuple[Node, Node]:
    """Attention as its parts, and the weights in the middle of it."""
    weights = softmax(build.mul(build.matmul(q, build.transpose(k, -2, -1)), 0.125))
    return build.matmul(weights, v), weights


def refusals(f: Fused) -> str:
    return "\n".join(map(str, f.refusals))


def test_attention_is_a_chain() -> None:
    f = fused(build.attention(*heads(2, 4, 64, 16), causal=True))
    assert kinds(f).count("chain") == 1 and set(kinds(f)) == {"chain", "map"}
    (c,) = (c for c in f.clusters if c.kind == "chain")
    assert [o.shape for o in c.outputs] == [(2, 4, 64, 16)]


def test_the_unfused_pattern_is_a_chain() -> None:
    assert "chain" in kinds(fused(written_out(*heads(2, 4, 64, 16))[0]))


def test_flattened_batches_keep_their_axes() -> None:
    q, k, v = heads(2, 4, 64, 16)
    k = build.transpose(k, -2, -1)
    flat = [build.reshape(x, (8, *x.shape[2:])) for x in (q, k, v)]
    scores = build.matmul(flat[0], flat[1])
    mask = arg("mask", 2, 1, 64, 64)
    weights = softmax(build.add(build.reshape(scores, (2, 4, 64, 64)), mask))
    out = build.matmul(build.reshape(weights, (8, 64, 64)), flat[2])
    assert "chain" in kinds(fused(build.reshape(out, (2, 4, 64, 16))))


def test_windows_of_flattened_batches_are_not_copied() -> None:
    """Each of 32 rows sees 8 keys before it: a row of its own, whose axis came with the batches."""
    q, k = arg("q", 1, 4, 32, 16), arg("k", 1, 4, 39, 16)
    windows = build.as_strided(k, (1, 4, 32, 16, 8), (2496, 624, 16, 1, 16), 0)
    q, windows = build.reshape(q, (128, 1, 16)), build.reshape(windows, (128, 16, 8))
    f = fused(build.reshape(build.matmul(q, windows), (1, 4, 32, 8)))
    assert kinds(f) == ["contract"]


def test_a_whole_block_has_one() -> None:
    assert kinds(fused(attention_block(arg("x", 2, 64, 64), 4))).count("chain") == 1


def test_weights_that_are_also_a_result_are_stored() -> None:
    f = fused(*written_out(*heads(2, 4, 64, 16)))
    assert "chain" not in kinds(f)
    assert "more than one consumer: its value is also a result" in refusals(f)


def test_weights_that_others_read_are_stored() -> None:
    q, k, v = heads(2, 4, 64, 16)
    out, weights = written_out(q, k, v)
    f = fused(out, build.matmul(build.transpose(weights, -2, -1), v))
    assert "chain" not in kinds(f) and "more than one consumer" in refusals(f)


def test_scores_that_others_read_are_stored() -> None:
    q, k, v = heads(2, 4, 64, 16)
    scores = build.matmul(q, build.transpose(k, -2, -1))
    f = fused(build.matmul(softmax(scores), v), build.sum(scores, (0, 1)))
    assert "chain" not in kinds(f) and "more than one consumer" in refusals(f)


def test_few_rows_are_no_block() -> None:
    q, k, v = arg("q", 2, 4, 2, 16), arg("k", 2, 4, 64, 16), arg("v", 2, 4, 64, 16)
    f = fused(build.attention(q, k, v))
    assert "chain" not in kinds(f) and "2 rows are too few" in refusals(f)


def test_matrices_that_all_rows_share_are_read_once() -> None:
    """The head of a language model is no chain with the norm before it: a block of 64 rows would be
    one thread's, and several blocks would read the matrix again."""
    for width, chained in ((64, True), (32000, False)):
        hidden = build.matmul(arg("x", 64, 512), arg("down", 512, 128))
        normed = build.mul(hidden, build.rsqrt(build.mean(build.mul(hidden, hidden), (1,), True)))
        f = fused(build.matmul(normed, arg("head", 128, width)))
        assert ("chain" in kinds(f)) == chained, kinds(f)
        assert chained == ("would read the same" not in refusals(f))


def test_rows_that_are_too_long() -> None:
    q = arg("q", 2, 4, 64, 16)
    k, v = (arg(label, 2, 4, 20000, 16) for label in "kv")
    f = fused(build.attention(q, k, v), blocks=None)
    assert "chain" not in kinds(f) and "12 rows of 20000 do not fit the cache" in refusals(f)


def test_a_mask_of_positions_and_data_is_computed_by_its_readers() -> None:
    """Several texts in one row, as language models mask them: what is stored is the part that
    depends on data, so that schedules see what positions hide."""
    n = 64
    q, k, v = heads(1, 4, n, 16)
    place, text = build.iota(n, dtype=i64), arg("text", n, dtype=i64)
    column = build.reshape(text, (n, 1))
    seen = build.le(place, build.reshape(place, (n, 1)))
    seen = build.bitwise_and(seen, build.eq(column, text))
    mask = build.reshape(build.where(seen, build.full((), 0.0, f32), float("-inf")), (1, 1, n, n))
    f = fused(build.attention(build.attention(q, k, v, mask), k, v, mask))
    chains = [c for c in f.clusters if c.kind == "chain"]
    assert len(chains) == 2
    for c in chains:
        assert any(n.op.name == "iota" for n in c.nodes)
        assert [x.shape for x in c.inputs if x.dtype.is_bool] == [(n, n)]
        assert not any(x.shape[-2:] == (n, n) for x in c.inputs if not x.dtype.is_bool)


def test_a_length_that_is_not_known() -> None:
    n = D.sym("n", 1)
    for causal in (False, True):
        f = fused(build.attention(*heads(2, 4, n, 16), causal=causal))
        assert sorted(kinds(f)) == ["chain", "map", "map"]
        (c,) = (c for c in f.clusters if c.kind == "chain")
        assert "softmax_parts" not in {x.op.name for x in c.nodes}


def test_blocks_of_keys_are_one_kernel() -> None:
    """Many keys, and fewer of which a part is hidden; nothing of the size of the scores is
    stored."""
    for rows, keys, causal in ((48, 6000, False), (1100, 1100, True)):
        q, k, v = arg("q", 2, 4, rows, 16), arg("k", 2, 4, keys, 16), arg("v", 2, 4, keys, 16)
        f = fused(build.attention(q, k, v, causal=causal))
        assert sorted(kinds(f)) == ["chain", "map", "map"]
        (c,) = (c for c in f.clusters if c.kind == "chain")
        assert [o.shape for o in c.outputs] == [(2, 4, rows, 16)]
        assert "softmax_parts" in {n.op.name for n in c.nodes}


def test_a_softmax_that_is_spelled_out_is_in_blocks() -> None:
    q, k, v = arg("q", 2, 4, 48, 16), arg("k", 2, 4, 6000, 16), arg("v", 2, 4, 6000, 16)
    f = fused(written_out(q, k, v)[0])
    assert sorted(kinds(f)) == ["chain", "map", "map"]
    # Without blocks it is what it was: the rule that knows it changes nothing.
    few = written_out(*heads(2, 4, 64, 16))[0]
    assert fused(few).graph.outputs == fused(few, blocks=None).graph.outputs


def test_what_is_not_in_blocks() -> None:
    """Weights that are a result as well, sums that are, one query, rows that are no scores."""
    long = arg("q", 2, 4, 48, 16), arg("k", 2, 4, 6000, 16), arg("v", 2, 4, 6000, 16)
    one = (arg("q", 2, 4, 1, 16), *long[1:])
    rows = build.matmul(softmax(arg("x", 2, 4, 48, 6000)), long[2])
    pair = build.attention_forward(*long)
    both = item(pair, 0), item(pair, 1)
    for outputs in (written_out(*long), both, (build.attention(*one),), (rows,)):
        assert "softmax_parts" not in {n.op.name for n in fused(*outputs).graph.nodes()}


def test_an_mlp_whose_inside_leaves_the_cache_is_a_chain() -> None:
    first, second = arg("w1", 64, 256), arg("w2", 256, 64)
    for rows, chained in ((64, False), (4096, True)):
        x = arg("x", rows, 64)
        hidden = build.relu(build.matmul(x, first))
        assert ("chain" in kinds(fused(build.matmul(hidden, second)))) == chained
    assert "chain" not in kinds(fused(build.matmul(hidden, second), hidden))


def test_heads_that_share_keys_are_not_repeated() -> None:
    q, k, v = arg("q", 2, 8, 64, 16), arg("k", 2, 2, 64, 16), arg("v", 2, 2, 64, 16)
    f = fused(build.attention(q, k, v, causal=True))
    (c,) = (c for c in f.clusters if c.kind == "chain")
    assert max(x.ttype.size for x in c.inputs) == q.ttype.size  # type: ignore[type-var]
