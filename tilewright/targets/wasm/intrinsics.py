"""The instructions of WebAssembly that schedules may use."""

from __future__ import annotations

from tilewright.ir.product import Product
from tilewright.ir.types import f32
from tilewright.kernel.intrinsic import declare_product
from tilewright.llvm.products import FmaTile, fused

_V = "<4 x float>"
_APART = 3  # products under way
_MADD = "llvm.wasm.relaxed.madd.v4f32"


def _products(name: str, relaxed: bool, many: bool) -> tuple[Product, Product]:
    """a lies in vectors along the sum, or along its rows. `many`: engines have 32 vectors, as on
    Arm, where lanes of loaded vectors are spread: loads that spread one element each take longer
    there. Engines on x86-64 have fifteen, and such loads are one instruction."""
    feature = "relaxed-simd" if relaxed else "simd128"
    declares = (f"declare {_V} @{_MADD}({_V}, {_V}, {_V})",) if relaxed else ()
    add, apart = (fused(_MADD), 0) if relaxed else (None, _APART)
    found = []
    for own, loads in ((name, "sum"), (f"{name}.rows", "rows")):
        product = Product(own, f32, f32, f32, rows=8, columns=12, lanes=4, loads=loads)
        along = "k" if loads == "sum" else "i"
        tile = FmaTile(4, along, add, apart, ordered=relaxed and not many, each=not many)
        found.append(declare_product(product, tile, declares, (feature,)))
    return found[0], found[1]


# By whether products are fused (relaxed), and whether there are many registers.
PRODUCTS = {
    (False, False): _products("wasm.madd", relaxed=False, many=False),
    (False, True): _products("wasm.madd.many", relaxed=False, many=True),
    (True, False): _products("wasm.relaxed", relaxed=True, many=False),
    (True, True): _products("wasm.relaxed.many", relaxed=True, many=True),
}
