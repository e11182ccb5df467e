"""Operators and functions of the language on tiles with known elements."""

from __future__ import annotations

import numpy as np
import pytest

from tests.lang.tile.values import (
    FLOATS,
    INTS,
    UINTS,
    array,
    given,
    pointer,
    running,
    tile,
    writing,
)
from tilewright.base.errors import Invalid, Unsupported
from tilewright.lang.tile.language import core as tl

SMALL = [-7, -2, -1, 1, 2, 3, 5, 7]


@pytest.mark.parametrize("kind", INTS, ids=str)
def test_integer_division_cuts_towards_zero(kind):
    a = np.repeat(SMALL, 8)
    b = np.tile(SMALL, 8)
    with running():
        x, y = tile(a, kind), tile(b, kind)
        assert (array(x // y) == np.trunc(a / b)).all()
        assert (array(x % y) == np.fmod(a, b)).all()
        quotient = x / y
        assert quotient.dtype == tl.float32
        assert (array(quotient) == a.astype(np.float32) / b.astype(np.float32)).all()


@pytest.mark.parametrize("kind", UINTS, ids=str)
def test_unsigned_division(kind):
    top = kind.get_int_max_value()
    with running():
        x = tile(np.array([top, top - 1, 7, 1], kind.ir.numpy), kind)
        assert array(x // 2).tolist() == [top // 2, (top - 1) // 2, 3, 0]
        assert array(x % 4).tolist() == [top % 4, (top - 1) % 4, 3, 1]


def test_a_quotient_is_one_operation():
    with writing() as b:
        _ = given(b, tl.int32, 4) // 3
    assert [o.attrs.get("fn") for o in b.block.operations] == [None, "quo"]


def test_float_division_and_remainder():
    with running():
        x = tile([5.5, -5.5], tl.float32)
        assert array(x % 2.0).tolist() == [1.5, -1.5]
        half = tile([1.0, 3.0], tl.float16)
        assert (half / 2).dtype == tl.float32 and tl.fdiv(half, half).dtype == tl.float16
        with pytest.raises(Invalid, match="on floats"):
            _ = x // 2
        with pytest.raises(Invalid, match="fdiv of int32"):
            tl.fdiv(tile([1], tl.int32), tile([1], tl.int32))


@pytest.mark.parametrize("kind", [*INTS, *UINTS], ids=str)
def test_bits(kind):
    a, b = np.array([0, 1, 5, 127]), np.array([3, 6, 1, 2])
    with running():
        x, y = tile(a, kind), tile(b, kind)
        assert (array(x & y) == (a & b)).all() and (array(x | y) == (a | b)).all()
        assert (array(x ^ y) == (a ^ b)).all()
        top = kind.get_int_max_value()
        assert array(~x).tolist() == [top - v if kind in UINTS else ~v for v in a.tolist()]
        assert (array(x >> 1) == a >> 1).all()
        assert (array((x << 1) >> 1) == a)[:3].all()
        assert (1 << y).dtype == kind
        with pytest.raises(Invalid, match="floats have no bits"):
            _ = tile(a, tl.float32) & y


def test_shifts_keep_the_sign_of_signed_integers():
    with running():
        assert array(tile([-8], tl.int32) >> 1)[0] == -4
        mixed = tile([-8], tl.int8) >> tile([1], tl.uint16)
        assert mixed.dtype == tl.uint16 and array(mixed)[0] == 2**16 - 4
        assert array(tile([-8], tl.int32).to(tl.uint32) >> 1)[0] == (2**32 - 8) // 2


def test_bools_have_one_bit():
    with running():
        t, f = tile([True, True], tl.int1), tile([True, False], tl.int1)
        assert array(t + f).tolist() == [False, True] == array(t ^ f).tolist()
        assert array(t * f).tolist() == [True, False] == array(t & f).tolist()
        assert (t + f).dtype == tl.int1 and array(~f).tolist() == [False, True]
        assert array(f.__not__()).tolist() == [False, True]
        n = tile([2, 0], tl.int32)
        assert array(n.logical_and(t)).tolist() == [True, False]
        assert array(n.logical_or(f)).tolist() == [True, False]


def test_signs():
    with running():
        assert array(-tile([3, -3], tl.int8)).tolist() == [-3, 3]
        assert array(-tile([1], tl.uint8)).tolist() == [255]
        assert np.signbit(array(-tile([0.0], tl.float32)))[0]
        assert array(tl.abs(tile([-3, 3], tl.int8))).tolist() == [3, 3]
        assert array(tl.abs(tile([200], tl.uint8))).tolist() == [200]
        with pytest.raises(Invalid, match="~ of fp32"):
            _ = ~tile([1.0], tl.float32)


def test_where():
    with running():
        c = tile([True, False], tl.int1)
        made = tl.where(c, tile([1, 2], tl.int8), 5)
        assert made.dtype == tl.int8 and array(made).tolist() == [1, 5]
        assert tl.where(c, 1.0, 0).dtype == tl.float32
        both = tl.where(tile([[True], [False]], tl.int1), tile([1, 2], tl.int32), 0)
        assert array(both).tolist() == [[1, 2], [0, 0]]
        assert array(tl.where(True, tile([1, 2], tl.int32), 0)).tolist() == [1, 2]


def test_where_of_pointers():
    a, b = np.array([1.0], np.float32), np.array([2.0], np.float32)
    with running(a, b) as (p, q):
        assert float(tl.load(tl.where(False, p, q))) == 2.0
        with pytest.raises(Invalid, match="both must be pointers"):
            tl.where(True, p, 0)
    with writing() as w:
        p = pointer(w, tl.float32)
        assert tl.where(True, p + tl.arange(0, 2), p + 1).dtype == p.dtype


def test_extremes_and_nan():
    nan = float("nan")
    with running():
        x, y = tile([1.0, nan, 3.0], tl.float32), tile([2.0, 2.0, nan], tl.float32)
        assert array(tl.maximum(x, y)).tolist() == [2.0, 2.0, 3.0]
        every = tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)
        assert np.isnan(array(every)).tolist() == [False, True, True]
        assert array(tl.minimum(tile([1, 200], tl.uint8), 100)).tolist() == [1, 100]
        assert tl.maximum(tile([1.0], tl.bfloat16), tile([2.0], tl.bfloat16)).dtype == tl.float32
        assert array(tl.clamp(tile([-9.0, 0.5, 9.0], tl.float32), -1.0, 1.0)).tolist() == [
            -1,
            0.5,
            1,
        ]
        with pytest.raises(Invalid, match="clamp is for floats"):
            tl.clamp(tile([1], tl.int32), 0, 1)
        assert tl.builtin_max(3, tl.constexpr(5)).value == 5
        assert int(tl.builtin_min(tile(4, tl.int32), 3, 7)) == 3


@pytest.mark.parametrize(
    "name", "exp exp2 log log2 cos sin sqrt sqrt_rn rsqrt erf floor ceil abs".split()
)
def test_functions_of_one_element(name):
    values = np.array([0.25, 0.5, 1.5, 2.0], np.float32)
    numpy = {
        "sqrt_rn": np.sqrt,
        "rsqrt": lambda v: 1 / np.sqrt(v),
        "erf": lambda v: np.array([0.27632639, 0.52049988, 0.96610515, 0.99532227]),
    }
    wanted = numpy[name](values) if name in numpy else getattr(np, name)(values)
    with running():
        made = getattr(tl, name)(tile(values, tl.float32))
        np.testing.assert_allclose(array(made), wanted, rtol=1e-6)
        np.testing.assert_array_equal(array(getattr(tile(values, tl.float32), name)()), array(made))
        if name != "abs":
            with pytest.raises(Invalid, match="Expected dtype fp32"):
                getattr(tl, name)(tile(values, tl.float16))
            with pytest.raises(Invalid, match="but got int32"):
                getattr(tl, name)(tile([1], tl.int32))


def test_functions_of_several_elements():
    with running():
        x, y, z = (tile([v], tl.float32) for v in (1 + 2.0**-12, 1 - 2.0**-12, -1.0))
        assert array(tl.fma(x, y, z))[0] == np.float32(-(2.0**-24))  # rounded once
        big = tile([2**31 + 5, -1], tl.int64).to(tl.uint32)
        wanted = [((2**31 + 5) * 8) >> 32, ((2**32 - 1) * 8) >> 32]
        assert array(tl.umulhi(big, tile([8, 8], tl.uint32))).tolist() == wanted
        assert array(tl.umulhi(tile([-1], tl.int32), tile([-1], tl.int32))).tolist() == [-2]
        with pytest.raises(Invalid, match=r"umulhi: Expected dtype int32 or .* but got int16"):
            tl.umulhi(tile([1], tl.int16), tile([1], tl.int16))
        with pytest.raises(Invalid, match="div_rn: Expected dtype fp32 but got fp64"):
            tl.div_rn(tile([1.0], tl.float64), tile([1.0], tl.float64))


def test_reduce():
    values = np.arange(8, dtype=np.int32).reshape(2, 4)
    with running():
        x = tile(values, tl.int32)
        assert array(tl.reduce(x, 1, lambda a, b: a + b)).tolist() == [6, 22]
        assert array(x.reduce(-2, tl.maximum)).tolist() == [4, 5, 6, 7]
        assert int(tl.reduce(x, None, lambda a, b: a + b)) == 28
        assert tl.reduce(x, 0, tl.maximum, keep_dims=True).handle.shape == (1, 4)
        assert tl.reduce(x, None, tl.maximum, keep_dims=True).handle.shape == (1, 1)
        low, high = tl.reduce((x, x), 1, lambda a, b, c, d: (tl.minimum(a, c), tl.maximum(b, d)))
        assert array(low).tolist() == [0, 4] and array(high).tolist() == [3, 7]
        at = tl._reduce_with_indices(
            x, 1, lambda v, i, w, j: (tl.where(v > w, v, w), tl.where(v > w, i, j))
        )
        assert array(at[1]).tolist() == [3, 3]
        with pytest.raises(Invalid, match="gives fp32 where int32"):
            tl.reduce(x, 0, lambda a, b: a / b)
        with pytest.raises(Invalid, match="invalid axis 2"):
            tl.reduce(x, 2, tl.maximum)
        with pytest.raises(Invalid, match="all inputs have one shape"):
            tl.reduce((x, tile([1, 2], tl.int32)), 0, tl.maximum)


def test_functions_that_branch_are_reduced_element_by_element():
    with running():
        made = tl.reduce(tile([3, 9, 4, 1], tl.int32), 0, lambda a, b: a if a > b else b)
        assert int(made) == 9


def test_scan():
    with running():
        x = tile([1, 2, 3, 4], tl.int32)
        assert array(tl.associative_scan(x, 0, lambda a, b: a + b)).tolist() == [1, 3, 6, 10]
        back = x.associative_scan(0, lambda a, b: a + b, reverse=True)
        assert array(back).tolist() == [10, 9, 7, 4]


def test_reductions_are_written_with_a_block_of_scalars():
    with writing() as b:
        x = given(b, tl.float32, 8, 4)
        assert str(tl.reduce(x, 0, lambda a, c: a + c)) == "fp32[4]"
        tl.associative_scan((x, x), 1, lambda a, c, d, e: (a + d, c * e))
    first, second = b.block.operations
    assert [str(p.type) for p in first.blocks[0].parameters] == ["f32", "f32"]
    assert len(second.blocks[0].parameters) == 4 and second.attrs["reverse"] is False


def test_histogram():
    with running():
        x = tile([0, 3, 3, 1, 7, -1, 2, 3], tl.int32)
        assert array(tl.histogram(x, 4)).tolist() == [1, 1, 1, 3]
        mask = tile([True, True] + [False] * 6, tl.int1)
        assert array(x.histogram(4, mask)).tolist() == [1, 0, 0, 1]
        with pytest.raises(Invalid, match="only supports 32-bit integer"):
            tl.histogram(tile([1], tl.int8), 4)


def test_functions_of_scalars_may_branch():
    def sign(a, b):
        if a < b:
            return -1
        return 1 if a > b else 0

    with running():
        a, b = tile([1, 5, 3, 3], tl.int32), tile([2, 2, 3, 4], tl.int32)
        assert array(tl.map_elementwise(sign, a, b)).tolist() == [-1, 1, 0, -1]


@pytest.mark.parametrize("pack", [1, 2, 4])
def test_functions_of_packed_scalars(pack):
    def halves(*args):
        a, b = args[:pack], args[pack:]
        return tuple(
            [x // y for x, y in zip(a, b, strict=True)] + [x % y for x, y in zip(a, b, strict=True)]
        )

    values, by = np.arange(8) * 5 + 3, np.arange(8) + 1
    with running():
        q, r = tl.map_elementwise(halves, tile(values, tl.uint32), tile(by, tl.uint32), pack=pack)
        assert array(q).tolist() == (values // by).tolist()
        assert array(r).tolist() == (values % by).tolist()
    with writing() as w:
        x, y = given(w, tl.uint32, 8), given(w, tl.uint32, 8)
        q, r = tl.map_elementwise(halves, x, y, pack=pack)
        assert str(q) == str(r) == "uint32[8]"


@pytest.mark.parametrize("kind", [*FLOATS, tl.int8, tl.float8e5, tl.float8e4nv], ids=str)
def test_dot(kind):
    a, b = np.arange(8).reshape(2, 4) % 5, np.arange(8).reshape(4, 2) % 3
    with running():
        x, y = tile(a, kind), tile(b, kind)
        made = tl.dot(x, y)
        wanted = {tl.int8: tl.int32, tl.float64: tl.float64}.get(kind, tl.float32)
        assert made.dtype == wanted and (array(made) == a @ b).all()
        once_more = tl.dot(x, y, made)
        assert (array(once_more) == 2 * (a @ b)).all()
        if kind == tl.float16:
            assert tl.dot(x, y, out_dtype=tl.float16).dtype == tl.float16


def test_dot_of_batches():
    a, b = np.arange(16).reshape(2, 1, 2, 4), np.ones((2, 1, 4, 1), int)
    with running():
        made = tl.dot(tile(a, tl.float32), tile(b, tl.float32), input_precision="tf32x3")
        assert (array(made) == a @ b).all()


def test_dot_refuses():
    with running():
        x, y = tile(np.ones((2, 4)), tl.float16), tile(np.ones((4, 2)), tl.float32)
        half = tile(np.ones((4, 2)), tl.float16)
        for args, said in [
            ((x, y), "both operands have one type"),
            ((x, x), "4 columns and 2 rows differ"),
            ((tile([1.0], tl.float16), half), "two axes"),
            ((x, half, tile(np.ones((2, 2)), tl.int32)), "acc is int32"),
            ((x, half, y), "acc has the shape"),
            ((tile(np.ones((2, 4)), tl.int64), tile(np.ones((4, 2)), tl.int64)), "operands are"),
        ]:
            with pytest.raises(Invalid, match=said):
                tl.dot(*args)
        with pytest.raises(Invalid, match="sums in bfloat16"):
            tl.dot(x, half, out_dtype=tl.bfloat16)
        with pytest.raises(Invalid, match="input_precision='fast'"):
            tl.dot(x, half, input_precision="fast")


FOUR_BITS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def test_dot_of_scaled_four_bit_floats():
    rng = np.random.default_rng(3)
    codes_a, codes_b = rng.integers(0, 16, (2, 64)), rng.integers(0, 16, (64, 4))
    scale_a, scale_b = rng.integers(120, 132, (2, 2)), rng.integers(120, 132, (4, 2))
    a = FOUR_BITS[codes_a] * np.repeat(2.0 ** (scale_a - 127), 32, 1)
    b = FOUR_BITS[codes_b] * np.repeat(2.0 ** (scale_b - 127), 32, 1).T
    packed_a = codes_a[:, 0::2] | codes_a[:, 1::2] << 4
    along_k, along_n = (
        codes_b[0::2] | codes_b[1::2] << 4,
        codes_b[:, 0::2] | codes_b[:, 1::2] << 4,
    )
    with running():
        left, s, u = (tile(v, tl.uint8) for v in (packed_a, scale_a, scale_b))
        for packed, k_pack in ((along_k, True), (along_n, False)):
            right = tile(packed, tl.uint8)
            made = tl.dot_scaled(left, s, "e2m1", right, u, "e2m1", rhs_k_pack=k_pack)
            np.testing.assert_allclose(array(made), a @ b, rtol=1e-6)


@pytest.mark.parametrize("format, kind", [("e4m3", tl.float8e4nv), ("e5m2", tl.float8e5)])
def test_dot_of_scaled_eight_bit_floats(format, kind):
    a, b = np.arange(64).reshape(2, 32) % 9, np.ones((32, 2))
    with running():
        x = tile(a, kind)
        scale = tile([[128], [255]], tl.uint8)
        right = tile(b, tl.float16)
        for left in (x, x.to(tl.uint8, bitcast=True)):
            made = array(tl.dot_scaled(left, scale, format, right, None, "fp16"))
            assert made[0].tolist() == [2 * a[0].sum()] * 2 and np.isnan(made[1]).all()
        with pytest.raises(Invalid, match="lhs_scale is uint8"):
            tl.dot_scaled(x, tile([1, 2], tl.uint8), format, right, None, "fp16")
        with pytest.raises(Invalid, match="the format 'e3m2'"):
            tl.dot_scaled(x, scale, "e3m2", right, None, "fp16")


def test_dot_of_scaled_floats_with_halves_is_exact():
    """Every bit of a number of fp16 counts, and infinity stays one."""
    rng = np.random.default_rng(5)
    halves = rng.integers(1024, 31743, (32, 4)).astype(np.int16).view(np.float16)
    halves[0, 0], halves[1, 1] = np.inf, 65504
    a = rng.integers(1, 8, (2, 32))
    with running():
        x, y = tile(a, tl.float8e4nv), tile(halves.T, tl.float16)
        s = tile([[130], [117]], tl.uint8)
        left = array(tl.dot_scaled(x, s, "e4m3", tl.trans(y), None, "fp16"))
        right = array(tl.dot_scaled(y, None, "fp16", tl.trans(x), s, "e4m3"))
    want = a * 2.0 ** np.array([[3], [-10]]) @ halves.astype(np.float64)
    np.testing.assert_allclose(left, want, rtol=1e-6)
    np.testing.assert_array_equal(left, right.T)


def test_programs():
    with running(grid=(4, 2)):
        assert int(tl.program_id(0)) == 0 and int(tl.num_programs(tl.constexpr(1))) == 2
        with pytest.raises(Invalid, match="program_id axis must be 0, 1, or 2 but got 3"):
            tl.program_id(3)


def test_hints_change_nothing():
    with writing() as b:
        x = given(b, tl.int32, 4, 8)
        assert tl.multiple_of(x, [4, 8]) is x and tl.max_contiguous(x, (tl.constexpr(1), 8)) is x
        assert tl.max_constancy(tl.program_id(0), 1).handle.shape == ()
        tl.assume(x > 0)
        tl.debug_barrier()
        with pytest.raises(Invalid, match="one value for every axis"):
            tl.multiple_of(x, 4)
    assert {o.name for o in b.block.operations} <= {"program_id", "map", "const"}


def test_assertions_and_printing(capsys):
    with writing() as b:
        x = given(b, tl.int32, 4)
        tl.device_print("x", x, 1, hex=True)
        tl.device_assert(x > 0, "not positive", mask=x < 9)
        tl.static_print("block", tl.constexpr(4))
        tl.static_assert(tl.constexpr(True))
        with pytest.raises(Invalid, match="does not hold: too small"):
            tl.static_assert(False, "too small")
        with pytest.raises(Invalid, match="which is no constant"):
            tl.static_assert(x > 0)
        with pytest.raises(Invalid, match="plain ASCII"):
            tl.device_print("ä", x)
    shown = {o.name: o for o in b.block.operations}
    assert shown["print"].attrs == {"prefix": "x: ", "hex": True}
    assert shown["assert"].attrs["message"] == "not positive"
    assert capsys.readouterr().out == "block 4\n"


def test_what_speaks_to_a_gpu_is_refused():
    with running():
        x = tile([1], tl.int32)
        with pytest.raises(Unsupported, match=r"`bar\.sync 0` is not among the instructions"):
            tl.inline_asm_elementwise("bar.sync 0;", "=r,r", [x], tl.int32, True, 1)
        with pytest.raises(Unsupported, match="library for a GPU"):
            tl.extern_elementwise("libdevice", "", [x], {}, True)


def test_truth_is_not_known_while_compiling():
    with writing() as b:
        x = given(b, tl.int32)
        with pytest.raises(Invalid, match="not known while the kernel is compiled"):
            bool(x > 0)
    with running():
        with pytest.raises(Invalid, match="many elements"):
            bool(tile([True, True], tl.int1))
        assert bool(tile(True, tl.int1)) and int(tile([5], tl.int32)) == 5


def test_ranges():
    with running():
        made = list(tl.range(0, tile(5, tl.int32), 2))
        assert [int(i) for i in made] == [0, 2, 4] and made[0].dtype == tl.int32
        assert [i.dtype for i in tl.range(tile(1, tl.int64), num_stages=3)] == [tl.int64]
        assert list(tl.static_range(tl.constexpr(3))) == [0, 1, 2]
        with pytest.raises(Invalid, match=r"end of tl.static_range is int32"):
            tl.static_range(0, tile(5, tl.int32))
    with pytest.raises(Invalid, match="outside a kernel"):
        list(tl.range(3))


def test_tuples():
    with running():
        x = tile([1, 2], tl.int32)
        t = tl.tuple([x, tl.constexpr(2), tl.tuple([x])])
        assert len(t) == 3 and t[tl.constexpr(0)] is x and t[1:][1][0] is x
        assert [v is x for v in t.flatten()] == [True, True]
        y = tile([3, 4], tl.int32)
        again = t.rebuild([y, x])
        assert array(again[0]).tolist() == [3, 4] and again[2][0].handle is x.handle
        assert (tl.tuple([1, 2]) + (3,) == tl.tuple([1, 2, 3])).value
        assert (tl.tuple([1]) * tl.constexpr(2)).values == [1, 1]
        named = tl.tuple([x, y], tl.tuple_type([x.type, y.type], ["left", "right"]))
        assert named.right is y and named.rebuild([y, x]).left.handle is y.handle
        with pytest.raises(AttributeError):
            _ = named.middle
        with pytest.raises(Invalid, match="the index is a constant"):
            t[tile(0, tl.int32)]


def test_aggregates():
    @tl.aggregate
    class State:
        x: tl.tensor
        n: tl.constexpr
        rest: tl.tuple

        def twice(self):
            return self.x * 2

    @tl.aggregate
    class Larger:
        n: tl.constexpr

        def __init__(self, n):
            self.n = tl.constexpr(n + 1)

    with running():
        x, y = tile([1, 2], tl.int32), tile([3, 4], tl.int32)
        s = State(x, 5, rest=(x, 7))
        assert s.n.value == 5 and s.rest[1].value == 7 and array(s.twice()).tolist() == [2, 4]
        assert len(s.flatten()) == 2
        again = s.rebuild([y, x])
        assert array(again.x).tolist() == [3, 4] and array(again.rest[0]).tolist() == [1, 2]
        assert array(tl.aggregate_replace(s, x=y).x).tolist() == [3, 4] and s.x is x
        assert Larger(3).n.value == 4
        with pytest.raises(Invalid, match="set when the object is made"):
            s.x = y
        with pytest.raises(Invalid, match="made without rest"):
            State(x, 5)
        with pytest.raises(Invalid, match="is a tensor, not a constexpr"):
            State(1, 5, (x,))
        with pytest.raises(Invalid, match="no field m"):
            tl.aggregate_replace(s, m=1)
