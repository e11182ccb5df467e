"""Simplify: what disappears, what stays, and that conditions with a known answer go."""

from typing import Any

from tilewright import ops as _ops
from tilewright.base.events import Log
from tilewright.graph.simplify import Simplify
from tilewright.ir import dim as D
from tilewright.ir.maps import Map
from tilewright.ir.node import Graph, Node, input, item, topological
from tilewright.ir.pattern import make
from tilewright.ir.types import TensorType, b1, f32, f64, i32

ops: Any = _ops
A = input("a", TensorType(f32, (4, 6)))
INTS = input("i", TensorType(i32, (4, 6)))


def simplified(n: Node, **options: Any) -> Node:
    graph = Graph("g", (A, INTS), (n,))
    return Simplify(**options).apply(graph, Log()).outputs[0]


def test_identities_vanish() -> None:
    same = make("reshape", make("permute", A, perm=(0, 1)), shape=(4, 6))
    assert simplified(ops.mul(ops.sub(same, 0.0), 1.0)) is A
    assert simplified(ops.add(INTS, 0)) is INTS


def test_signed_zero_is_respected() -> None:
    assert simplified(ops.add(A, 0.0)).op.name == "add"
    assert simplified(ops.add(A, 0.0), changes="sign of zero") is A
    assert simplified(ops.mul(A, 0.0), changes="rounding").op.name == "mul"


def test_chains_of_views_become_one() -> None:
    n = A
    for _ in range(4):
        n = ops.permute(ops.reshape(ops.reshape(n, (2, 2, 6)), (4, 6)), (1, 0))
        n = ops.permute(n, (1, 0))
    assert simplified(n) is A
    cut = ops.slice(ops.slice(A, 1, 1, 6), 1, 1, 4, 2)
    out = simplified(cut)
    assert out.inputs == (A,) and (out.op.start, out.op.step) == (2, 2)  # type: ignore[attr-defined]


def test_parts_are_found_again() -> None:
    both = ops.concat([A, ops.exp(A)], 1)
    assert simplified(ops.slice(both, 1, 6, 12)) is ops.exp(A)
    assert simplified(ops.concat([ops.slice(A, 1, 0, 2), ops.slice(A, 1, 2, 6)], 1)) is A


def test_casts_join_only_where_nothing_is_lost() -> None:
    assert simplified(ops.cast(ops.cast(A, f64), f32)) is A
    narrow = ops.cast(ops.cast(A, i32), f32)
    assert simplified(narrow) is narrow


def test_packing_cancels() -> None:
    m = Map.parse("k, j -> j//4, k, j%4")
    assert simplified(ops.unrelayout(ops.relayout(A, m), m, A.shape)) is A


def test_a_known_predicate_takes_its_branch() -> None:
    then = Graph("then", (A,), (ops.exp(A),))
    other = Graph("other", (A,), (ops.neg(A),))
    known = item(ops.cond(ops.full((), True, b1), then, other, [ops.tanh(A)]), 0)
    assert simplified(known) is ops.exp(ops.tanh(A))
    c = input("c", TensorType(b1, ()))
    unknown = item(ops.cond(c, then, other, [A]), 0)
    assert simplified(unknown) is unknown


def test_common_parts_are_one_node() -> None:
    n = ops.add(ops.exp(A), ops.exp(ops.neg(ops.neg(A))))
    out = simplified(n)
    assert out.inputs[0] is out.inputs[1]


def test_one_matrix_for_a_batch_is_one_product() -> None:
    """As torch.export writes a linear layer whose operand does not lie in order."""
    n = D.sym("n", 1)
    x = input("x", TensorType(f32, (n, 2, 6)))
    rows = ops.permute(x, (1, 0, 2))
    weights = ops.expand(ops.permute(A, (1, 0)), (2, 6, 4))
    graph = Graph("g", (x, A), (ops.matmul(rows, weights),))
    (out,) = Simplify().apply(graph, Log()).outputs
    (product,) = (y for y in topological((out,)) if y.op.name == "matmul")
    assert out.shape == (2, n, 4) and product.shape == (2 * n, 4)
    # Each of these has a matrix of its own.
    own = input("own", TensorType(f32, (2, 6, 4)))
    assert simplified(ops.matmul(rows, own)).shape == (2, n, 4)
    assert simplified(ops.matmul(rows, own)).op.name == "matmul"


def test_products_of_batches_read_permuted_memory() -> None:
    """As einsum writes them: axes of one element come and go, and none is left between memory and
    the product."""

    def rows(name: str, n: int, last: bool) -> Node:
        x = ops.reshape(input(name, TensorType(f32, (2, n, 8, 32))), (2, n, 8, 32, 1))
        perm = (0, 2, 1, 3, 4) if last else (0, 2, 3, 1, 4)
        return ops.reshape(ops.permute(x, perm), (16, n, 32) if last else (16, 32, n))

    flat = ops.matmul(rows("q", 64, True), rows("k", 80, False))
    found = simplified(ops.reshape(flat, (2, 8, 64, 80)))
    assert [x.op.name for x in topological((found,))].count("reshape") == 0
    assert found.op.name == "matmul" and found.shape == (2, 8, 64, 80)


def test_sums_over_a_stack_need_no_stack() -> None:
    """Also as torch puts them together: joined along an axis that then becomes two."""
    parts = [ops.exp(A), A, ops.abs(A)]
    joined = make("reshape", make("concat", *parts, axis=1), shape=(4, 3, 6))
    for total in (ops.sum(ops.stack(parts, 1), (1,)), ops.sum(joined, (1,))):
        found = {n.op.name for n in topological((simplified(total),))}
        assert found <= {"input", "exp", "abs", "add", "full"}
    # Parts of several elements, and stacks of very many, are summed as they lie.
    for kept in (ops.concat(parts, 1), ops.stack([A] * 40, 1)):
        assert "concat" in {n.op.name for n in topological((simplified(ops.sum(kept, (1,))),))}
