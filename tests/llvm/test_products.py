"""The order of the products that a register tile adds up, as engines of WebAssembly get it."""

from __future__ import annotations

import re

from tilewright.llvm.objects import assembly
from tilewright.llvm.products import FmaTile, fused
from tilewright.targets import get

MADD = "llvm.wasm.relaxed.madd.v4f32"
V = "<4 x float>"
ROWS, COLUMNS, DEPTH = 4, 8, 16


def _instructions(ordered: bool) -> list[str]:
    """Products, and loads, of the loop over k."""
    tile = FmaTile(4, "k", fused(MADD), ordered=ordered)
    sizes = ("%a.0", "%a.1", "%b.0", "%b.1", "%c.0", "%c.1")
    given = ", ".join([*(f"ptr %{x}" for x in "abc"), *(f"i64 {x}" for x in sizes)])
    text = f"""
declare {V} @{MADD}({V}, {V}, {V})
declare ptr @llvm.strip.invariant.group.p0(ptr)
define void @tile({given}) {{
entry:
{tile({"i": ROWS, "j": COLUMNS, "k": DEPTH})}}}
"""
    made = assembly(text, get("wasm32-relaxed"))
    loop = made[made.index("loop") : made.index("end_loop")]
    return re.findall(r"f32x4\.relaxed_madd|v128\.load", loop)


def test_ordered_products_load_operands_where_they_multiply_them() -> None:
    """The last step of k loads its vectors of b, which LLVM has loaded before: with the first row's
    products of all four steps."""
    found, others = _instructions(ordered=True), _instructions(ordered=False)
    products = [k for k, x in enumerate(found) if x != "v128.load"]
    assert len(products) == ROWS * COLUMNS  # four steps of k, in vectors of four columns
    step = products[-len(products) // 4 - 1]  # the product before the last step
    assert found[step:].count("v128.load") == COLUMNS // 4
    first_row = [k for k, x in enumerate(others) if x != "v128.load"][COLUMNS - 1]
    assert others[:first_row].count("v128.load") > COLUMNS  # so the text alone does not say it
