"""The instructions of ARMv7 that schedules may use."""

from __future__ import annotations

from tilewright.ir.product import Product
from tilewright.ir.types import f32
from tilewright.kernel.intrinsic import declare_product
from tilewright.llvm.products import FmaTile

_V = "<4 x float>"


def _fma(name: str, loads: str) -> Product:
    """Products of rows and columns; a is loaded in vectors along the sum, or along its rows."""
    return declare_product(
        Product(name, f32, f32, f32, rows=8, columns=8, lanes=4, loads=loads),
        FmaTile(4, "k" if loads == "sum" else "i"),
        (f"declare {_V} @llvm.fma.v4f32({_V}, {_V}, {_V})",),
        ("vfp4",),
    )


FMA = (_fma("arm.fma", "sum"), _fma("arm.fma.rows", "rows"))
