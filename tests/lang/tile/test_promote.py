"""Which type an operation is computed in, and what casts do."""

from __future__ import annotations

import numpy as np
import pytest

from tests.lang.tile.values import FLOATS, FP8, INTS, UINTS, array, given, running, tile, writing
from tilewright.base.errors import Invalid
from tilewright.lang.tile.language import core as tl
from tilewright.lang.tile.language.promote import common_type, type_of_number

NUMBERS = (*INTS, *UINTS, *FLOATS)


@pytest.mark.parametrize("a", NUMBERS, ids=str)
@pytest.mark.parametrize("b", NUMBERS, ids=str)
def test_two_tiles(a, b):
    """The widest float, float32 for bfloat16 with anything else; of integers the wider one, the
    unsigned one of two as wide."""
    both = {a, b}
    if any(d.is_floating() for d in both):
        order = (tl.float64, tl.float32, tl.float16)
        mixed = tl.bfloat16 if both == {tl.bfloat16} else tl.float32
        wanted = next((d for d in order if d in both), mixed)
    else:
        wide = max(a.int_bitwidth, b.int_bitwidth)
        widest = [d for d in (a, b) if d.int_bitwidth == wide]
        wanted = next((d for d in widest if d.is_int_unsigned()), widest[0])
    assert common_type(a, b) == wanted == common_type(b, a)


def test_division_needs_float32_and_one_signedness():
    assert common_type(tl.float16, tl.float16, dividing=True) == tl.float32
    assert common_type(tl.float16, tl.float64, dividing=True) == tl.float64
    assert common_type(tl.int8, tl.int32, dividing=True) == tl.int32
    with pytest.raises(Invalid, match="have different signedness"):
        common_type(tl.int32, tl.uint32, dividing=True)


def test_eight_bit_floats():
    for a in FP8:
        assert common_type(a, a) == a
        assert common_type(a, tl.bfloat16) == tl.float32
        assert common_type(a, tl.float16) == tl.float16
        with pytest.raises(Invalid, match="no common type"):
            common_type(a, tl.int32)
    assert common_type(tl.float8e5, tl.float8e4nv) == tl.float16


@pytest.mark.parametrize(
    "number, wanted",
    [(True, tl.int1), (5, tl.int32), (-(2**31), tl.int32), (2**31, tl.uint32), (2**32, tl.int64)]
    + [(2**63, tl.uint64), (-(2**31) - 1, tl.int64), (1.5, tl.float32), (1e300, tl.float64)]
    + [(float("inf"), tl.float32), (1e-40, tl.float64), (0.0, tl.float32)],
)
def test_numbers_alone(number, wanted):
    assert type_of_number(number) == wanted
    with running():
        assert tl.to_tensor(number).dtype == wanted


def test_numbers_take_the_type_of_the_tile():
    with running():
        for kind in NUMBERS:
            x = tile([1, 2], kind)
            assert (x + 1).dtype == kind and (3 * x).dtype == kind and (x + True).dtype == kind
            wanted = kind if kind.is_floating() else tl.float32
            assert (x + 1.5).dtype == wanted
        flags = tile([True, False], tl.int1)
        assert (flags + 1).dtype == tl.int32 and (flags & True).dtype == tl.int1
        assert (tile([1.0], tl.float32) + 1e300).dtype == tl.float32


def test_numbers_that_do_not_fit():
    with running():
        with pytest.raises(Invalid, match="300 is out of range for int8"):
            _ = tile([1], tl.int8) + 300
        with pytest.raises(Invalid, match="-1 with a tile of uint8"):
            _ = tile([1], tl.uint8) + -1
        with pytest.raises(Invalid, match="does not fit 64 bits"):
            _ = tile([1], tl.int64) + 2**64


def test_comparisons_use_the_numbers_own_type():
    with running():
        small = tile([-1, 100], tl.int8)
        assert (array(small < 300) == [True, True]).all()
        assert (array(tile([5], tl.uint8) > -1) == [True]).all()  # as int32
        assert (array(tile([5], tl.uint32) > tile([-1], tl.int32)) == [False]).all()  # as uint32
        assert (array(tile([0.1], tl.float16) == 0.1) == [False]).all()  # as float32


@pytest.mark.parametrize("kind", [*NUMBERS, *FP8], ids=str)
def test_casts_from_numbers_of_all_kinds(kind):
    # The largest number of fp8e4b15 is below 2.
    values = np.array([0, 1, 5, 12] if kind != tl.float8e4b15 else [0, 1], np.int32)
    with running():
        x = tile(values, tl.int32).to(kind)
        assert x.dtype == kind and (array(x.to(tl.float64)) == values).all()
        assert (array(x.to(tl.int1)) == (values != 0)).all()


def test_casts_round_cut_and_wrap():
    with running():
        assert (array(tile([1.9, -1.9], tl.float32).to(tl.int32)) == [1, -1]).all()
        assert (array(tile([300, -1], tl.int32).to(tl.uint8)) == [44, 255]).all()
        up = np.float32(1 + 3 * 2.0**-9)
        x = tile([up], tl.float32)
        assert array(x.to(tl.bfloat16))[0] == 1 + 2.0**-7
        assert array(x.to(tl.bfloat16, fp_downcast_rounding="rtz"))[0] == 1
        with pytest.raises(Invalid, match="fp_downcast_rounding for a cast"):
            x.to(tl.float64, fp_downcast_rounding="rtz")
        with pytest.raises(Invalid, match="'up'"):
            x.to(tl.float16, fp_downcast_rounding="up")


def test_bitcasts():
    with running():
        assert array(tile([1.0], tl.float32).to(tl.int32, bitcast=True))[0] == 0x3F800000
        back = tile([0x3C00], tl.int16).to(tl.float16, bitcast=True)
        assert array(back)[0] == 1.0
        with pytest.raises(Invalid, match=r"32 bits\) to int16"):
            tile([1.0], tl.float32).to(tl.int16, bitcast=True)


def test_addresses_are_integers_of_64_bits():
    memory = np.arange(4, dtype=np.float32)
    with running(memory) as (p,):
        assert int(p.to(tl.int64)) == memory.ctypes.data
        q = (p.to(tl.int64) + 8).to(tl.pointer_type(tl.float32))
        assert float(tl.load(q)) == 2.0
        assert bool(p.to(tl.int1))
        with pytest.raises(Invalid, match="addresses are"):
            p.to(tl.int32)
        with pytest.raises(Invalid, match="addresses are"):
            tile(1.0, tl.float32).to(tl.pointer_type(tl.float32))


def test_nothing_is_written_for_a_cast_to_the_same_type():
    with writing() as b:
        x = given(b, tl.float32, 8)
        assert x.to(tl.float32).handle is x.handle
        assert (x + 0).handle.type == x.handle.type
    assert [o.name for o in b.block.operations] == ["const", "map"]


def test_broadcasting():
    with running():
        a, b = tile([1, 2], tl.int32), tile([[10], [20], [30], [40]], tl.int32)
        assert (array(a + b) == [[11, 12], [21, 22], [31, 32], [41, 42]]).all()
        with pytest.raises(Invalid, match="axis 0 has 2 and 4"):
            _ = a + tile([1, 2, 3, 4], tl.int32)
