"""wgmma whose first operand lies in registers: what a softmax leaves of one product is the first
operand of the next one where it is.

The fragment of the first operand has the steps of the sum where that of the sums has columns
(targets/nvptx/group_products.py); else they are the same. The second operand lies in shared memory,
in either order of its axes. One use is a tile of 64 steps of the sum, and goes on until it is
waited for.
"""

from __future__ import annotations

from tilewright.kernel.intrinsic import Intrinsic, Sizes, declare
from tilewright.kernel.swizzle import Swizzled
from tilewright.targets.nvptx.wgmma import (
    DEEP,
    ROW,
    ROWS,
    UNIT,
    WIDE,
    Sums,
    columns_of,
    descriptor,
    word,
)

REGISTERS = 4  # of a thread, of the first operand of one instruction: pairs of elements


def register_product_name(kind: str, groups: int, across: bool) -> str:
    """Of groups of warps; rows of the second operand run along the sum or across it:
    nvptx.wgmma.1.rt.bf16."""
    return f"nvptx.wgmma.{groups}.r{'t' if across else 'n'}.{kind}"


def _body(kind: str, groups: int, across: bool, sizes: Sizes) -> str:
    """The rows are dealt out to so many groups of warps, 64 at a time."""
    columns = (sizes["j"] or 0) * (sizes.get("h") or 1)
    sums = Sums("f32", (sizes["i"] or 0) // (ROWS * groups), columns // 2)
    count, steps, lines = sums.count, WIDE // DEEP, sums.lines
    lines += descriptor("b", word(across, ROW, WIDE))
    for k in range(sums.parts * steps * REGISTERS):
        lines.append(f"  %q{k} = getelementptr i32, ptr %a, i64 {k}")
        lines.append(f"  %a{k} = load i32, ptr %q{k}, align 4")
    sums.load()
    left = ", ".join(f"${count + k}" for k in range(REGISTERS))
    operands = f"{{{left}}}, ${count + REGISTERS}"
    text = sums.text(f"m64n{columns}k16.f32.{kind}.{kind}", operands, f", 1, 1, {int(across)}")
    # 16 steps of the sum further on: elements of a row, or rows.
    further = DEEP * (ROW if across else 2) // UNIT
    for step in range(steps):
        lines.append(f"  %b.d{step} = add i64 %b.d, {step * further}")
        for part in range(sums.parts):
            first = (part * steps + step) * REGISTERS
            own = [f"i32 %a{first + k}" for k in range(REGISTERS)]
            sums.add(part, text, (*"r" * REGISTERS, "l"), (*own, f"i64 %b.d{step}"))
        sums.next()
    return sums.store()


def _declare(kind: str, groups: int, across: bool) -> None:
    least, warps = ROWS * groups, 4 * groups
    b = columns_of(across, WIDE)
    column = f"({b.name})"
    value = f"cast<f32>(a[c.i,c.k]) * cast<f32>(b[{b.at}])"
    rows = f"i//{least}, thread.z: i//16%{warps}"
    declare(
        Intrinsic(
            register_product_name(kind, groups, across),
            f"""
group wgmma where rows: {least}..128, {b.sizes}
  in a: {kind}[rows,{WIDE}]
  in b: {kind}[{b.shape}]
  out c: f32[rows,{b.size}]
  c[c.i,{b.place}] add= {value} for c.i in rows, {b.loops}, c.k in {WIDE}
""",
            {"b": b.strides},
            lambda sizes: _body(kind, groups, across, sizes),
            (),
            ("wgmma",),
            {"i": least} if across else {"i": least, "j": 8},
            exact=False,
            fragments={
                "a": f"{rows}, k//8, i//8%2, thread.y: i%8, thread.x: k//2%4, k%2",
                "c": f"{rows}, {column}//8, i//8%2, thread.y: i%8, thread.x: {column}//2%4, "
                f"{column}%2",
            },
            warps=warps,
            tiles={"b": Swizzled(3, 3, 3)},
            asynchronous=True,
        )
    )


for _kind in ("bf16", "f16"):
    for _groups in (2, 1):
        for _across in (False, True):
            _declare(_kind, _groups, _across)
