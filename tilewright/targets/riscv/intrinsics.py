"""The instructions of RISC-V that schedules may use."""

from __future__ import annotations

from tilewright.ir.product import Product
from tilewright.ir.types import f32
from tilewright.kernel.intrinsic import declare_product
from tilewright.llvm.products import FmaTile

# One operand of a vector's multiply-add may be a float register: elements need not be spread.
_V = "<8 x float>"
FMA = declare_product(
    Product("riscv.v.fma", f32, f32, f32, rows=12, columns=32, lanes=8, loads="each"),
    FmaTile(8),
    (f"declare {_V} @llvm.fma.v8f32({_V}, {_V}, {_V})",),
    ("v",),
)
