"""The instructions of WebAssembly that schedules may use."""

from __future__ import annotations

from tilewright.ir.product import Product
from tilewright.ir.types import f32
from tilewright.kernel.intrinsic import declare_product
from tilewright.llvm.products import FmaTile, fused

_V = "<4 x float>"
_APART = 3  # products under way
_MADD = "llvm.wasm.relaxed.madd.v4f32"


def _products(name: str, relaxed: bool) -> tuple[Product, Product]:
    """a is loaded in vectors along the sum, or along its rows, and their lanes are spread: loads
    that spread one element each take longer."""
    feature = "relaxed-simd" if relaxed else "simd128"
    declares = (f"declare {_V} @{_MADD}({_V}, {_V}, {_V})",) if relaxed else ()
    add = fused(_MADD) if relaxed else None
    found = [
        declare_product(
            Product(own, f32, f32, f32, rows=8, columns=12, lanes=4, loads=loads),
            FmaTile(4, "k" if loads == "sum" else "i", add, 0 if relaxed else _APART, relaxed),
            declares,
            (feature,),
        )
        for own, loads in ((name, "sum"), (f"{name}.rows", "rows"))
    ]
    return found[0], found[1]


APART = _products("wasm.madd", relaxed=False)
RELAXED = _products("wasm.relaxed", relaxed=True)
