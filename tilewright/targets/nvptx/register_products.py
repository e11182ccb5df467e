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
from tilewright.targets.nvptx.group_products import (
    BLOCK,
    DEEP,
    ROW,
    ROWS,
    WIDE,
    alone,
    descriptor,
)

REGISTERS = 4  # of a thread, of the first operand of one instruction: pairs of elements


def register_product_name(kind: str, groups: int, across: bool) -> str:
    """Of groups of warps; rows of the second operand run along the sum or across it:
    nvptx.wgmma.1.rt.bf16."""
    return f"nvptx.wgmma.{groups}.r{'t' if across else 'n'}.{kind}"


def _body(kind: str, groups: int, across: bool, sizes: Sizes) -> str:
    """The rows are dealt out to so many groups of warps, 64 at a time."""
    columns = (sizes["j"] or 0) * (sizes.get("h") or 1)
    count = columns // 2  # sums of a thread, of 64 rows
    parts = (sizes["i"] or 0) // (ROWS * groups)
    steps = WIDE // DEEP
    result = f"{{ {', '.join(['float'] * count)} }}"
    lines = [*descriptor("b", across)]
    for k in range(parts * steps * REGISTERS):
        lines.append(f"  %q{k} = getelementptr i32, ptr %a, i64 {k}")
        lines.append(f"  %a{k} = load i32, ptr %q{k}, align 4")
    for k in range(parts * count):
        lines.append(f"  %p{k} = getelementptr float, ptr %c, i64 {k}")
        lines.append(f"  %c0.{k} = load float, ptr %p{k}, align 4")
    lines.append(alone("wgmma.fence.sync.aligned;"))
    given = ["r"] * REGISTERS + ["l"] + [str(k) for k in range(count)] + ["~{memory}"]
    tied = ",".join(["=f"] * count + given)
    sums = ", ".join(f"${k}" for k in range(count))
    left = ", ".join(f"${count + k}" for k in range(REGISTERS))
    text = "{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned."
    text += f"m64n{columns}k16.f32.{kind}.{kind} {{{sums}}}, {{{left}}}, ${count + REGISTERS}, "
    text += f"p, 1, 1, {int(across)}; }}"
    # 16 steps of the sum further on: elements of a row, or rows.
    further = DEEP * ROW // 16 if across else DEEP * 2 // 16
    for step in range(steps):
        lines.append(f"  %b.d{step} = add i64 %b.d, {step * further}")
        for part in range(parts):
            first = (part * steps + step) * REGISTERS
            own = [f"i32 %a{first + k}" for k in range(REGISTERS)]
            own += [f"i64 %b.d{step}"]
            own += [f"float %c{step}.{part * count + k}" for k in range(count)]
            into = f"%r{step}.{part}"
            lines.append(
                f'  {into} = call {result} asm sideeffect "{text}", "{tied}"'
                f"({', '.join(own)}) convergent"
            )
            for k in range(count):
                to = f"%c{step + 1}.{part * count + k}"
                lines.append(f"  {to} = extractvalue {result} {into}, {k}")
    lines.append(alone("wgmma.commit_group.sync.aligned;"))
    for k in range(parts * count):
        lines.append(f"  store float %c{steps}.{k}, ptr %p{k}, align 4")
    return "\n".join([*lines, "  ret void"])


def _declare(kind: str, groups: int, across: bool) -> None:
    least, warps = ROWS * groups, 4 * groups
    if across:
        columns, b, b_at = f"{WIDE}*blocks", f"blocks,{WIDE},{WIDE}", "c.h,c.k,c.j"
        j, loops, sizes = f"{WIDE}*c.h+c.j", f"c.h in blocks, c.j in {WIDE}", "blocks: 1..4"
    else:
        columns, b, b_at, j = "columns", f"columns,{WIDE}", "c.j,c.k", "c.j"
        loops, sizes = "c.j in columns", "columns: 8..256"
    column = f"({j.replace('c.', '')})"
    value = f"cast<f32>(a[c.i,c.k]) * cast<f32>(b[{b_at}])"
    rows = f"i//{least}, thread.z: i//16%{warps}"
    declare(
        Intrinsic(
            register_product_name(kind, groups, across),
            f"""
group wgmma where rows: {least}..128, {sizes}
  in a: {kind}[rows,{WIDE}]
  in b: {kind}[{b}]
  out c: f32[rows,{columns}]
  c[c.i,{j}] add= {value} for c.i in rows, {loops}, c.k in {WIDE}
""",
            {"b": (BLOCK // 2, WIDE, 1) if across else (WIDE, 1)},
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
