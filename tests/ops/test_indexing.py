"""Indexing against numpy's and torch's own; out-of-range data never reaches memory."""

import numpy as np
import pytest

from tilewright import ops
from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, Node, input
from tilewright.ir.types import DType, TensorType, b1, f32, i8, i64, u32, u64
from tilewright.ops.shapes import compared_as

rng = np.random.default_rng(7)


def x_of(*shape: D.Dim, name: str = "x", dtype: DType = f32) -> Node:
    return input(name, TensorType(dtype, shape))


def run(n: Node, *args: np.ndarray) -> np.ndarray:
    return evaluate(Graph("t", n.inputs, (n,)), args)[0]


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def ints(lo: int, hi: int, *shape: int) -> np.ndarray:
    return rng.integers(lo, hi, shape)


def i_of(*shape: D.Dim, name: str = "i") -> Node:
    return x_of(*shape, name=name, dtype=i64)


@pytest.mark.parametrize(
    ("shape", "axes", "points"),
    [
        ((4, 5), (0,), [(3,)]),
        ((4, 5), (1,), [(2, 3)]),
        ((4, 5, 6), (0, 1), [(3,), (2, 1)]),
        ((4, 5, 6), (1, 2), [(3,), (3,)]),
        ((4, 5, 6), (0, 2), [(2, 3), (3,)]),
        ((2, 3, 4, 5), (1, 3), [(), (6,)]),
        ((2, 3, 4, 5), (1, 2), [(2, 1), (3,)]),
    ],
)
def test_index_and_index_put_are_numpys(shape, axes, points) -> None:
    x = normal(*shape)
    idx = [ints(-shape[a], shape[a], *p) for a, p in zip(axes, points)]
    key: list = [slice(None)] * len(shape)
    for a, i in zip(axes, idx):
        key[a] = i
    if axes == (1, 3) and () in points:  # numpy takes a 0-d array for a plain integer
        key[1] = idx[0].reshape(1)
    nodes = [i_of(*i.shape, name=f"i{k}") for k, i in enumerate(idx)]
    want = x[tuple(key)]
    got = run(ops.index(x_of(*shape), nodes, axes), x, *idx)
    np.testing.assert_array_equal(got, want)

    values = normal(*want.shape)
    summed = x.copy()
    np.add.at(summed, tuple(key), values)
    put = ops.index_put(x_of(*shape), x_of(*want.shape, name="v"), nodes, axes, accumulate=True)
    np.testing.assert_allclose(run(put, x, values, *idx), summed, rtol=1e-6, atol=1e-6)


def test_the_last_store_wins() -> None:
    x, idx = normal(4), np.array([1, 3, 1, 1])
    put = ops.index_put(x_of(4), x_of(4, name="v"), [i_of(4)], (0,))
    got = run(put, x, np.arange(4, dtype=np.float32), idx)
    np.testing.assert_array_equal(got, [x[0], 3, x[2], 1])


@pytest.mark.parametrize("reduce", [None, "add", "mul", "max", "min"])
@pytest.mark.parametrize("axis", [0, 1])
def test_scatter_is_torchs(axis: int, reduce: str | None) -> None:
    torch = pytest.importorskip("torch")
    x, src = normal(5, 6), normal(5, 6)
    # Distinct targets where the order matters: torch leaves it open which store wins.
    idx = np.argsort(rng.random((5, 6)), axis=axis) if reduce is None else ints(0, 5, 5, 6)
    t = torch.from_numpy(x)
    where, values = torch.from_numpy(idx), torch.from_numpy(src)
    names = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
    if reduce is None:
        want = t.scatter(axis, where, values)
    else:
        want = t.scatter_reduce(axis, where, values, names[reduce])
    built = ops.scatter(x_of(5, 6), i_of(5, 6), x_of(5, 6, name="s"), axis, reduce)
    np.testing.assert_allclose(run(built, x, idx, src), want.numpy(), rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gather_and_take_are_torchs(axis: int) -> None:
    torch = pytest.importorskip("torch")
    x = normal(3, 4, 5)
    idx = ints(0, x.shape[axis], 3, 2, 5) if axis == 1 else ints(0, x.shape[axis], 2, 4, 3)
    want = torch.gather(torch.from_numpy(x), axis, torch.from_numpy(idx)).numpy()
    np.testing.assert_array_equal(
        run(ops.gather(x_of(3, 4, 5), i_of(*idx.shape), axis), x, idx), want
    )
    rows = ints(0, x.shape[axis], 7)
    want = torch.index_select(torch.from_numpy(x), axis, torch.from_numpy(rows)).numpy()
    np.testing.assert_array_equal(run(ops.take(x_of(3, 4, 5), i_of(7), axis), x, rows), want)


def test_wild_indices_stay_inside() -> None:
    """The interpreter refuses a read or write out of range, so running at all is the proof."""
    wild = np.array([-(2**62), -6, -5, -1, 0, 4, 5, 2**62])
    x = normal(5)
    want = x[[0, 0, 0, 4, 0, 4, 4, 4]]
    np.testing.assert_array_equal(run(ops.take(x_of(5), i_of(8), 0), x, wild), want)
    np.testing.assert_array_equal(run(ops.gather(x_of(5), i_of(8), 0), x, wild), want)
    added = run(
        ops.scatter(x_of(5), i_of(8), x_of(8, name="s"), 0, "add"), x, wild, np.ones(8, np.float32)
    )
    np.testing.assert_allclose(added - x, [4, 0, 0, 0, 4], rtol=1e-6)


def test_rows_of_a_symbolic_table() -> None:
    n, m = D.sym("N", 1, 100), D.sym("M", 1, 100)
    table = ops.take(x_of(n, 3), i_of(m, 2), 0)
    assert table.shape == (m, 2, 3)
    for rows, count in ((4, 1), (9, 5)):
        x, idx = normal(rows, 3), ints(-rows, rows, count, 2)
        np.testing.assert_array_equal(run(table, x, idx), x[idx])


@pytest.mark.parametrize(
    ("build", "part"),
    [
        (lambda: ops.take(x_of(3, 4), x_of(2, name="i"), 0), "i64 or i32"),
        (lambda: ops.take(x_of(3, 4), x_of(3, name="i", dtype=b1), 0), "i64 or i32"),
        (lambda: ops.take(x_of(3, 4), x_of(3, name="i", dtype=i8), 0), "i64 or i32"),
        (lambda: ops.take(x_of(0, 4), i_of(2), 0), "empty"),
        (lambda: ops.gather(x_of(3, 4), i_of(4, 4), 1), "does not fit"),
        (lambda: ops.index(x_of(3, 4), [i_of(2)], (0, 1)), "2 axes are indexed by 1"),
        (lambda: ops.index(x_of(3, 4), [i_of(2), i_of(3)], (0, 1)), "broadcast"),
        (lambda: ops.index(x_of(3, 4), [], ()), "no axis"),
        (lambda: ops.index_put(x_of(3), x_of(4, name="v"), [i_of(2)], (0,)), "broadcast"),
        (lambda: ops.scatter(x_of(3), i_of(2), x_of(2, name="s"), 0, "mean"), "not one of"),
    ],
)
def test_what_does_not_fit_gets_a_sentence(build, part: str) -> None:
    with pytest.raises(Invalid, match=part):
        build()


def test_an_index_that_is_known_to_be_inside_is_compared_in_32_bits() -> None:
    assert compared_as(5) is u32
    assert compared_as(1 << 31) is u64 is compared_as(D.sym("n"))
    # What is outside is told elsewhere: here another element is read, of the same row.
    where = np.array([[0, 4, -1, 5], [2**31, 2**32, 2**32 + 1, 2**62], [-(2**63), 2**63 - 1, 3, 1]])
    got = run(
        ops.gather(x_of(3, 5), i_of(3, 4), 1, "within"),
        np.arange(15, dtype=np.float32).reshape(3, 5),
        where,
    )
    assert (got // 5 == np.arange(3)[:, None]).all()
    assert got[0, :2].tolist() == [0, 4]
