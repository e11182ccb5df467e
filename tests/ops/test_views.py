"""Views: symbolic shapes, definitions that are one load, random compositions against numpy."""

import random

import numpy as np
import pytest

from tilewright import ops
from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.expr import Load, Value, loads
from tilewright.ir.interpret import evaluate
from tilewright.ir.maps import Map
from tilewright.ir.node import Graph, Node, input
from tilewright.ir.operator import OPERATORS, definition, sample_node
from tilewright.ir.positions import matching_groups, reshape_index
from tilewright.ir.types import TensorType, f32


def x_of(*shape: D.Dim) -> Node:
    return input("x", TensorType(f32, shape))


def run(n: Node, *args: np.ndarray) -> np.ndarray:
    ins = tuple(dict.fromkeys(x for x in _inputs(n)))
    return evaluate(Graph("t", ins, (n,)), args)[0]


def _inputs(n: Node) -> list[Node]:
    return [n] if n.op.name == "input" else [y for x in n.inputs for y in _inputs(x)]


def numbers(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


def body_of(n: Node) -> Value:
    _, (out,) = definition(n.op, tuple(x.ttype for x in n.inputs))
    assert out.body is not None
    return out.body


def test_every_view_is_one_load() -> None:
    views = [cls for cls in OPERATORS.values() if cls.view]
    assert {"reshape", "permute", "expand", "slice", "flip", "roll"} <= {c.name for c in views}
    for cls in views:
        for s in cls.samples():  # type: ignore[attr-defined]
            assert isinstance(body_of(sample_node(s)), Load), s.op


def test_merging_and_splitting_symbolic_axes_needs_no_division_that_can_be_avoided() -> None:
    batch, length = D.sym("B", 1, 64), D.sym("S", 1, 512)
    split = ops.reshape(x_of(batch, length, 768), (batch, length, 12, 64))
    assert repr(body_of(split)) == "x0[i0,i1,64*i2+i3]"
    merged = ops.reshape(x_of(batch, length, 768), (batch * length, 768))
    assert repr(body_of(merged)) == "x0[(i0//S),(i0%S),i1]"
    back = ops.reshape(x_of(batch * length, 768), (batch, length, 768))
    assert repr(body_of(back)) == "x0[S*i0+i1,i2]" or repr(body_of(back)) == "x0[i1+S*i0,i2]"
    assert ops.reshape(x_of(batch, 4, 3), (-1, 12)).shape == (batch, 12)


def test_symbolic_views_agree_with_numpy_at_several_sizes() -> None:
    n = D.sym("N", 1, 100)
    x = x_of(n, 6)
    cases = {
        "reshape": (ops.reshape(x, (n * 2, 3)), lambda a: a.reshape(-1, 3)),
        "slice": (ops.slice(x, 0, 1, n), lambda a: a[1:]),
        "step": (ops.slice(x, 0, 0, n, 2), lambda a: a[::2]),
        "flip": (ops.flip(x, (0,)), lambda a: a[::-1]),
        "roll": (ops.roll(x, (3,), (0,)), lambda a: np.roll(a, 3, 0)),
        "pad": (ops.pad(x, (1, 0), (2, 0)), lambda a: np.pad(a, ((1, 2), (0, 0)))),
        "concat": (ops.concat([x, x], 0), lambda a: np.concatenate([a, a])),
        "pack": (ops.relayout(x, "i, j -> i//4, j, i%4"), None),
    }
    for size in (1, 4, 7):
        a = numbers(size, 6)
        for name, (node, want) in cases.items():
            got = run(node, a)
            if want is not None:
                np.testing.assert_array_equal(got, want(a), err_msg=f"{name} at {size}")
        packed = ops.unrelayout(cases["pack"][0], "i, j -> i//4, j, i%4", (n, 6))
        np.testing.assert_array_equal(run(packed, a), a)


@pytest.mark.parametrize("seed", range(40))
def test_random_reshapes(seed: int) -> None:
    rng = random.Random(seed)
    factors = [rng.choice([1, 2, 2, 3, 5]) for _ in range(rng.randint(1, 6))]

    def grouped() -> tuple[int, ...]:
        shape: list[int] = []
        for f in rng.sample(factors, len(factors)):
            if shape and rng.random() < 0.5:
                shape[-1] *= f
            else:
                shape.append(f)
        return tuple(shape)

    a, b = grouped(), grouped()
    got = run(ops.reshape(x_of(*a), b), numbers(*a))
    np.testing.assert_array_equal(got, numbers(*a).reshape(b), err_msg=f"seed {seed}: {a} -> {b}")


def test_groups_are_the_shortest_runs_of_equal_size() -> None:
    assert matching_groups((2, 3, 4), (6, 4)) == [(range(2), range(1)), (range(2, 3), range(1, 2))]
    assert matching_groups((4, 1), (2, 2)) == [(range(1), range(2)), (range(1, 2), range(2, 2))]
    assert reshape_index((5,), (6,), (2, 3)) == (1, 2)


@pytest.mark.parametrize("seed", range(30))
def test_random_chains_of_views_agree_with_numpy(seed: int) -> None:
    rng = random.Random(seed)
    shape = tuple(rng.randint(1, 4) for _ in range(rng.randint(1, 4)))
    a = numbers(*shape)
    node = x_of(*shape)
    first, said = a, []
    for _ in range(5):
        axis = rng.randrange(a.ndim)
        n = a.shape[axis]
        kind = rng.choice(["permute", "slice", "flip", "roll", "unsqueeze", "expand", "flat"])
        said.append(kind)
        if kind == "permute":
            perm = rng.sample(range(a.ndim), a.ndim)
            node, a = ops.permute(node, perm), a.transpose(perm)
        elif kind == "slice":
            lo, step = rng.randint(0, n), rng.randint(1, 3)
            node = ops.slice(node, axis, lo, n, step)
            a = np.take(a, range(lo, n, step), axis)
        elif kind == "flip":
            node, a = ops.flip(node, (axis,)), np.flip(a, axis)
        elif kind == "roll":
            k = rng.randint(-5, 5)
            node, a = ops.roll(node, (k,), (axis,)), np.roll(a, k, axis)
        elif kind == "unsqueeze":
            node, a = ops.unsqueeze(node, axis), np.expand_dims(a, axis)
        elif kind == "expand":
            node, a = ops.expand(node, (2, *a.shape)), np.broadcast_to(a, (2, *a.shape))
        else:
            node, a = ops.reshape(node, (a.size,)), a.reshape(-1)
    np.testing.assert_array_equal(run(node, first), a, err_msg=f"seed {seed}: {shape} {said}")


def test_concat_reads_each_operand_in_its_own_range_only() -> None:
    n = ops.concat([x_of(3, 2), x_of(4, 2), x_of(1, 2)], 0)
    assert [repr(x) for x in sorted(loads(body_of(n)), key=repr)] == [
        "x0[i0,i1]",
        "x1[i0-3,i1]",
        "x2[i0-7,i1]",
    ]


def test_an_exact_relayout_is_one_load_and_a_padded_one_is_guarded() -> None:
    m = Map.parse("k, j -> j//4, k, j%4")
    assert isinstance(body_of(ops.relayout(x_of(3, 8), m)), Load)
    assert not isinstance(body_of(ops.relayout(x_of(3, 9), m)), Load)


@pytest.mark.parametrize(
    ("shape", "offset", "axes"),
    [((4, 5), 1, (0, 1)), ((5, 3), -2, (0, 1)), ((2, 3, 4), 0, (2, 0)), ((3, 3), 9, (0, 1))],
)
def test_diagonal(shape: tuple[int, ...], offset: int, axes: tuple[int, int]) -> None:
    got = run(ops.diagonal(x_of(*shape), offset, *axes), numbers(*shape))
    np.testing.assert_array_equal(got, np.diagonal(numbers(*shape), offset, *axes))


def test_builders_leave_out_what_does_nothing() -> None:
    x = x_of(2, 3)
    assert ops.reshape(x, (2, 3)) is x
    assert ops.permute(x, (0, 1)) is x
    assert ops.expand(x, (2, -1)) is x
    assert ops.slice(x, -1) is x
    assert ops.pad(x, (0, 0), (0, 0)) is x
    assert ops.concat([x], 0) is x
    assert ops.pad(x, (1, 0), (0, 0), 0.0) is not ops.pad(x, (1, 0), (0, 0), -0.0)


def test_slices_are_clamped_as_python_clamps_them() -> None:
    a = numbers(6)
    for bounds in ((-3, None), (2, 100), (4, 2), (-100, 3), (0, -1)):
        got = run(ops.slice(x_of(6), 0, *bounds), a)
        np.testing.assert_array_equal(got, a[slice(*bounds)])


@pytest.mark.parametrize(
    ("build", "part"),
    [
        (lambda: ops.reshape(x_of(2, 3), (4, 2)), "6 elements"),
        (lambda: ops.reshape(x_of(2, 3), (-1, -1)), "more than one -1"),
        (lambda: ops.permute(x_of(2, 3), (0, 0)), "not an order"),
        (lambda: ops.expand(x_of(2, 3), (4, 3)), "cannot become 4"),
        (lambda: ops.slice(x_of(2, 3), 0, 0, 2, 0), "not positive"),
        (lambda: ops.flip(x_of(2, 3), (0, 0)), "twice"),
        (lambda: ops.as_strided(x_of(2, 3), (2, 2), (4, 2)), "leaves the 6 elements"),
        (lambda: ops.concat([x_of(2, 3), x_of(2, 4)], 0), "differ outside axis 0"),
        (lambda: ops.concat([], 0), "nothing to concatenate"),
        (lambda: ops.pad(x_of(2, 3), (-3, 0), (0, 0)), "negative size"),
        (lambda: ops.slice_scatter(x_of(4), x_of(3), 0, 0, 2), "the slice is"),
        (lambda: ops.relayout(x_of(4), "a, b -> b, a"), "does not fit"),
        (lambda: ops.unrelayout(x_of(2, 4), "a -> a//4, a%4", (9,)), "is packed as"),
        (lambda: ops.transpose(x_of(2, 3), 0, 2), "axis 2"),
    ],
)
def test_what_does_not_fit_gets_a_sentence(build, part: str) -> None:
    with pytest.raises(Invalid, match=part):
        build()
