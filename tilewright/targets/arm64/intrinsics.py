"""The instructions of arm64 that schedules may ask for."""

from __future__ import annotations

from tilewright.kernel.intrinsic import ANY, Intrinsic, declare, grouped_product
from tilewright.llvm.products import DotTile, FmaTile, dot, dot_call


def _fma(name: str, along: str) -> None:
    """Products of rows and columns; a is loaded in vectors along k, or along its rows."""
    shape, index = ("rows,depth", "c.i,c.k") if along == "k" else ("depth,rows", "c.k,c.i")
    declare(
        Intrinsic(
            name,
            f"""
group fma where rows: 1..8, columns: 4..16, depth: 1..
  in a: f32[{shape}]
  in b: f32[depth,columns]
  out c: f32[rows,columns]
  c[c.i,c.j] add= a[{index}] * b[c.k,c.j] for c.i in rows, c.j in columns, c.k in depth
""",
            {"a": (ANY, 1), "b": (ANY, 1), "c": (ANY, 1)},
            FmaTile(4, along),
            ("declare <4 x float> @llvm.fma.v4f32(<4 x float>, <4 x float>, <4 x float>)",),
            multiples={"j": 4},
            dynamic=("i", "k"),
            exact=False,
            ahead=FmaTile(4, along),
        )
    )


_fma("arm64.fma", "k")
_fma("arm64.fma.rows", "i")


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

# What default schedules multiply with: product, instruction, feature.
DOTS: list[tuple[str, str, str]] = []


def _dots(name: str, product: str, feature: str, swapped: bool = False) -> None:
    """A register tile of dot products, such as `i8*i8>i32`: groups of 32 bits of the first, four
    of which are loaded at once and multiplied lane by lane."""
    a, _, rest = product.partition("*")
    b, _, c = rest.partition(">")
    group = 2 if a == "bf16" else 4
    operand = "<8 x bfloat>" if group == 2 else "<16 x i8>"
    types = "v4f32.v8bf16" if group == 2 else "v4i32.v16i8"
    sums = "float" if c == "f32" else "i32"
    function, v = f"@llvm.aarch64.neon.{name}.{types}", f"<4 x {sums}>"
    # The operand that lanes are picked from comes last.
    call = dot_call(function, sums, 4, operand, swapped=not swapped)
    tile = DotTile(4, sums, (4 // group, 4 // group), operand, call, picks=True)
    own = f"arm64.{name}.{'first' if swapped else 'tile'}"
    declare(
        Intrinsic(
            own,
            grouped_product((a, b, c), group, "rows: 1..8, columns: 4..12, depth: 1.."),
            {"a": (ANY, 1), "b": (ANY, group, 1), "c": (ANY, 1)},
            tile,
            (f"declare {v} {function}({v}, {operand}, {operand})",),
            (feature,),
            {"j": 4},
            ("i", "k"),
            exact=c == "i32",
            ahead=tile,
        )
    )
    DOTS.append((product, own, f"+{feature}"))


_dots("sdot", "i8*i8>i32", "dotprod")
_dots("udot", "u8*u8>i32", "dotprod")
_dots("usdot", "i8*u8>i32", "i8mm")
_dots("usdot", "u8*i8>i32", "i8mm", swapped=True)
_dots("bfdot", "bf16*bf16>f32", "bf16")
