"""The instructions of arm64 that schedules may use."""

from __future__ import annotations

from tilewright.ir.product import Product
from tilewright.ir.types import bf16, f32, i8, i32, u8
from tilewright.kernel.intrinsic import Intrinsic, declare, declare_product
from tilewright.llvm.products import DotTile, FmaTile, dot, dot_call


def _fma(name: str, loads: str) -> Product:
    """Products of rows and columns; a is loaded in vectors along the sum, or along its rows."""
    return declare_product(
        Product(name, f32, f32, f32, rows=8, columns=16, lanes=4, loads=loads),
        FmaTile(4, "k" if loads == "sum" else "i"),
        ("declare <4 x float> @llvm.fma.v4f32(<4 x float>, <4 x float>, <4 x float>)",),
    )


FMA = (_fma("arm64.fma", "sum"), _fma("arm64.fma.rows", "rows"))


def _dot(name: str, a: str, b: str, feature: str, accumulator: str, width: int) -> None:
    """One of the dot products of 32 bits with 32 bits, four lanes at a time."""
    sums = {"i32": "i32", "f32": "float"}[accumulator]
    operand = "<8 x bfloat>" if width == 2 else "<16 x i8>"
    types = ("v4i32", "v16i8") if width == 4 else ("v4f32", "v8bf16")
    function = f"@llvm.aarch64.neon.{name}.{types[0]}.{types[1]}"
    c = f"<4 x {sums}>"
    product = f"cast<{accumulator}>(a[c.p]) * cast<{accumulator}>(b[c.j,c.p])"
    declare(
        Intrinsic(
            f"arm64.{name}",
            f"""
group {name} where columns: 4..16
  in a: {a}[{width}]
  in b: {b}[columns,{width}]
  out c: {accumulator}[columns]
  c[c.j] add= {product} for c.j in columns, c.p in {width}
""",
            {"a": (1,), "b": (width, 1), "c": (1,)},
            dot(function, 4, sums, operand),
            (f"declare {c} {function}({c}, {operand}, {operand})",),
            (feature,),
            {"j": 4},
            exact=accumulator == "i32",
        )
    )


_dot("sdot", "i8", "i8", "dotprod", "i32", 4)
_dot("udot", "u8", "u8", "dotprod", "i32", 4)
_dot("usdot", "u8", "i8", "i8mm", "i32", 4)
_dot("bfdot", "bf16", "bf16", "bf16", "f32", 2)

# Dot products that default schedules multiply with, and the feature that each needs.
DOTS: list[tuple[Product, str]] = []


def _dots(name: str, p: Product, feature: str, swapped: bool = False) -> None:
    """A register tile of dot products: groups of 32 bits of the first operand, four of which are
    loaded at once and multiplied lane by lane."""
    operand = "<8 x bfloat>" if p.group == 2 else "<16 x i8>"
    types = "v4f32.v8bf16" if p.group == 2 else "v4i32.v16i8"
    sums = "i32" if p.c.is_int else "float"
    function, v = f"@llvm.aarch64.neon.{name}.{types}", f"<4 x {sums}>"
    # The operand that lanes are picked from comes last.
    call = dot_call(function, sums, 4, operand, swapped=not swapped)
    tile = DotTile(4, sums, (p.a.bytes, p.b.bytes), operand, call, picks=True)
    declare_product(p, tile, (f"declare {v} {function}({v}, {operand}, {operand})",), (feature,))
    DOTS.append((p, f"+{feature}"))


_BYTES, _HALVES = (4, 8, 12, 4), (2, 8, 12, 4)  # group, rows, columns, lanes
_dots("sdot", Product("arm64.sdot.tile", i8, i8, i32, *_BYTES), "dotprod")
_dots("udot", Product("arm64.udot.tile", u8, u8, i32, *_BYTES), "dotprod")
_dots("usdot", Product("arm64.usdot.tile", i8, u8, i32, *_BYTES), "i8mm")
_dots("usdot", Product("arm64.usdot.first", u8, i8, i32, *_BYTES), "i8mm", swapped=True)
_dots("bfdot", Product("arm64.bfdot.tile", bf16, bf16, f32, *_HALVES), "bf16")
