"""Types of the language: names, queries, constants."""

from __future__ import annotations

import pytest

from tilewright.base.errors import Invalid
from tilewright.ir import types as elements
from tilewright.lang.tile.ir import Pointer, TileType
from tilewright.lang.tile.language import core as tl
from tilewright.lang.tile.language.types import check_shape, dtype_of, type_of, unwrap


def test_names_and_elements():
    wanted = {
        tl.int1: ("int1", elements.b1),
        tl.uint8: ("uint8", elements.u8),
        tl.int64: ("int64", elements.i64),
        tl.float8e4nv: ("fp8e4nv", elements.DTYPES["f8e4m3"]),
        tl.float8e5: ("fp8e5", elements.DTYPES["f8e5m2"]),
        tl.bfloat16: ("bf16", elements.bf16),
        tl.float32: ("fp32", elements.f32),
    }
    for kind, (name, element) in wanted.items():
        assert (str(kind), kind.ir) == (name, element)
        assert dtype_of(element) == kind
    assert tl.bfloat16.codegen_name() == "bfloat16" and tl.float8e5.codegen_name() == "float8e5"


def test_queries():
    assert tl.int1.primitive_bitwidth == 1 and tl.int1.is_int_unsigned() and tl.int1.is_bool()
    assert tl.uint16.get_int_max_value() == 65535 and tl.int8.get_int_min_value() == -128
    assert tl.float16.fp_mantissa_width == 10 and tl.bfloat16.exponent_bias == 127
    assert tl.float8e5.is_fp8() and tl.float8e5.is_floating()
    assert not tl.float8e5.is_standard_floating()
    assert tl.int1.kind().value < tl.uint64.kind().value < tl.float8e5.kind().value
    assert tl.get_int_dtype(16, False) == tl.uint16
    with pytest.raises(Invalid, match="no integer of 24 bits"):
        tl.get_int_dtype(24, True)
    with pytest.raises(Invalid, match="no element type 'fp24'"):
        tl.dtype("fp24")


def test_pointers_and_blocks():
    p = tl.pointer_type(tl.float16)
    assert p.is_ptr() and p.ir == Pointer(elements.f16) and p.element_ty == tl.float16
    assert p == tl.pointer_type(tl.float16) and p != tl.pointer_type(tl.float16, const=True)
    b = tl.block_type(tl.int8, [4, 8])
    assert b.is_block() and b.shape == (4, 8) and b.numel == 32 and b.scalar == tl.int8
    assert b.with_element_ty(p).scalar == p
    assert type_of(TileType(elements.f16, (2,))) == tl.block_type(tl.float16, (2,))
    assert type_of(TileType(elements.f16)) == tl.float16
    assert len({tl.float16, p, b, tl.block_type(tl.int8, (4, 8))}) == 3


@pytest.mark.parametrize(
    "shape, said",
    [((4, 12), "12, which is no power of two"), ((0,), "no power of two")]
    + [((2**20, 2), "more than 1048576"), ((2.0,), "not known while compiling")],
)
def test_bad_shapes(shape, said):
    with pytest.raises(Invalid, match=said):
        check_shape(shape)
    assert check_shape((1, 8)) == (1, 8)


def test_constants_compute_as_python_does():
    a = tl.constexpr(7)
    for made, wanted in [
        (a + 2, 9), (2 - a, -5), (a // 2, 3), (-a % 4, 1), (a / 2, 3.5), (2**a, 128), (a << 1, 14),
        (a > 6, True), (a == tl.constexpr(7), True), (a != 7, False), (~a, -8), (a & 3, 3),
    ]:  # fmt: skip
        assert isinstance(made, tl.constexpr) and made.value == wanted
    assert bool(a) and list(builtin_range := range(a)) == list(range(7)) and builtin_range
    assert unwrap([a, (a, 1)]) == [7, (7, 1)]
    assert tl.constexpr(tl.constexpr(3)).value == 3
    assert a.logical_and(0).value == 0 and a.__not__().value is False


def test_constants_give_way_to_tiles():
    assert tl.constexpr(1).__add__(tl.tuple([1])) is NotImplemented
