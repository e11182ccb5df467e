"""Which instruction multiplies, and in which register tile: one place, for every target."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.product import Product, TileShape
from tilewright.ir.register_tile import (
    exact_products,
    in_registers,
    products_of,
    ragged_rows,
    whole_tile,
)
from tilewright.ir.target import Target
from tilewright.ir.types import DType, bf16, f32, i8, i16, i32, u8
from tilewright.kernel.intrinsic import INTRINSICS, products
from tilewright.targets import families, get

PRESETS = [p for family in families() for p in family.presets]
VNNI = replace(
    get("x86-64-v4"),
    products=products("x86.avx512.vpdpbusd.u8s8", "x86.avx512.vpmaddwd.i8"),
)


@pytest.mark.parametrize("target", PRESETS, ids=lambda t: t.name)
def test_tiles_fit_the_registers(target: Target) -> None:
    assert all(in_registers(target, t.rows, t.vectors) for t in target.tiles)
    for p in target.products:
        tile = whole_tile(target, p, 64, 192)
        assert tile is not None
        assert 64 % tile[0] == 0 and 192 % tile[1] == 0
        assert tile[0] <= p.rows and tile[1] <= p.columns and tile[1] % p.lanes == 0


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_a_smaller_last_tile_saves_instructions_or_is_none(target: str) -> None:
    t = get(target)
    (p,) = (p for p in t.products if p.dtypes == (f32, f32, f32))

    def instructions(rows: int, height: int, vectors: int) -> int:
        full, last = divmod(rows, height)
        return sum(n * (h * vectors + h + vectors) for n, h in ((full, height), (1, last)) if h)

    ragged = 0
    for rows in range(1, 300):
        plain = whole_tile(t, p, rows, 4 * p.lanes)
        assert plain is not None
        height, width = ragged_rows(t, p, rows, plain[1]), plain[1]
        vectors = width // p.lanes
        assert 1 <= height <= min(rows, p.rows) and in_registers(t, height, vectors)
        if rows % height:
            ragged += 1
            assert instructions(rows, height, vectors) < instructions(rows, plain[0], vectors)
    assert ragged > 50


def test_elements_that_are_loaded_one_by_one_count_as_loads() -> None:
    t = get("x86-64-v4")
    (p,) = (p for p in t.products if p.dtypes == (f32, f32, f32))
    assert whole_tile(t, p, 256, 256) == (4, 64)  # 8 loads for 16 sums; 8 rows of 32 take 10
    assert ragged_rows(t, p, 256, 64) == 6
    assert ragged_rows(t, p, 24, 64) == 6 and ragged_rows(t, p, 4, 64) == 4


def test_a_record_is_what_its_instruction_declares() -> None:
    known = [i for i in INTRINSICS.values() if i.product is not None]
    assert len(known) > 20
    for i in known:
        p = i.product
        assert p is not None and p.instruction == i.name
        a, b, c = i.group.buffers
        assert (a.dtype, b.dtype, c.dtype) == p.dtypes
        rows, columns = (D.bounds(d) for d in c.shape)
        assert rows[1] == p.rows and columns == (p.lanes, p.columns)
        assert i.multiples.get("j", p.lanes) == p.lanes and i.exact == p.c.is_int


@pytest.mark.parametrize(
    ("dtypes", "left", "shift"),
    [((u8, i8), u8, 0), ((i8, i8), u8, 128), ((i16, i8), i16, 0)],
    ids=str,
)
def test_operands_are_shifted_for_an_instruction(
    dtypes: tuple[DType, DType], left: DType, shift: int
) -> None:
    found = next(exact_products(VNNI, (*dtypes, i32)))
    assert (found.left, found.shift) == (left, shift)
    assert not list(exact_products(VNNI, (u8, u8, i32)))


def test_bytes_of_the_other_sign_the_other_way() -> None:
    signed = replace(get("arm64"), products=products("arm64.sdot.tile"))
    assert [(e.left, e.shift) for e in exact_products(signed, (u8, i8, i32))] == [(i8, -128)]
    assert list(products_of(signed, (u8, i8, i32))) == []


def test_columns_that_no_tile_divides_have_none() -> None:
    (fma,) = products("x86.avx512.fma")
    assert whole_tile(get("x86-64-v4"), fma, 64, 24) is None
    (tiles,) = products("x86.amx.bf16")
    assert whole_tile(get("x86-64-v4"), tiles, 64, 48) == (32, 16)


def test_products_print_and_parse() -> None:
    p = Product("mine.dot", bf16, bf16, f32, 2, 8, 32, 16, (16, 16, 8), "each")
    assert Product.parse(p.text()) == p
    assert p.depth == 16 and p.takes(48, 32) and not p.takes(40, 32) and not p.takes(48, 24)
    assert TileShape.parse("8x3:8") == TileShape(8, 3, 8)


HEAD = "target t\n  triple a-b-c\n  cpu c\n  "


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("products fma", "should read NAME A"),
        ("products fma f31*f32>f32", "known dtypes"),
        ("products fma f32*f32>f32 rows", "should read NAME A"),
        ("products fma f32*f32>f32 wings 2", "no 'wings'"),
        ("products fma f32*f32>f32 rows two", "whole numbers"),
        ("products fma f32*f32>f32 rows 0", "must be positive"),
        ("products fma f32*f32>f32 tile 2x2", "three positive numbers"),
        ("products fma f32*f32>f32 loads all", "one of sum, rows, each"),
        ("products fma f32*f32>f32 columns 2", "fewer columns than lanes"),
        ("tiles", "needs a register tile"),
        ("tiles 6", "whole numbers"),
        ("tiles 6:6", "ROWSxVECTORS:ADJACENT"),
        ("tiles 6x0:6", "positive sizes"),
        ("tiles 14x1:8,6x2:6", "many vectors to few"),
        ("tiles 8x3:8", "does not fit its 16 registers"),
    ],
)
def test_bad_text_gets_a_sentence(line: str, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        Target.parse(HEAD + line)


def test_an_unknown_product_lists_the_known() -> None:
    with pytest.raises(Invalid, match=r"no product 'x86.fmb'") as caught:
        products("x86.fmb")
    assert "x86.avx512.fma" in str(caught.value)
