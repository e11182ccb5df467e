"""wgmma of 32 or 16 steps of the sum at a time, for tiles that are no wider: rows along the sum are
64 or 32 bytes, swizzled over as many.

Rows across the sum are 128 bytes as in targets/nvptx/group_products.py, in blocks of as many rows
as there are steps.
"""

from __future__ import annotations

from tilewright.kernel.intrinsic import Intrinsic, Sizes, declare
from tilewright.kernel.swizzle import Swizzled
from tilewright.targets.nvptx.group_products import (
    ADDRESSES,
    DEEP,
    ORDERS,
    ROW,
    ROWS,
    WIDE,
    alone,
    product_name,
)

STEPS = (32, 16)
SWIZZLES = {32: 2, 16: 3}  # a descriptor's number for swizzles over 64 and 32 bytes
UNIT = 16  # bytes, in which descriptors count


def short_product_name(kind: str, groups: int, across: tuple[bool, bool], steps: int) -> str:
    return f"{product_name(kind, groups, across)}.{steps}"


def _word(across: bool, steps: int) -> int:
    """What a descriptor says besides the address: the swizzle, how far 8 rows are from the next 8,
    and blocks of 64 across the sum from each other."""
    if across:
        return (1 << 62) | (8 * ROW // UNIT << 32) | (steps * ROW // UNIT << 16)
    return (SWIZZLES[steps] << 62) | (8 * 2 * steps // UNIT << 32) | (1 << 16)


def _block(across: bool, steps: int) -> int:
    """How far 64 rows of an operand are from the next ones."""
    return (steps * ROW if across else ROWS * 2 * steps) // UNIT


def _descriptor(x: str, word: int) -> list[str]:
    signed = word - (1 << 64) if word >> 63 else word
    return [
        f"  %{x}.shared = addrspacecast ptr %{x} to ptr addrspace(3)",
        f"  %{x}.at = ptrtoint ptr addrspace(3) %{x}.shared to i64",
        f"  %{x}.low = and i64 %{x}.at, {ADDRESSES}",
        f"  %{x}.16 = lshr i64 %{x}.low, 4",
        f"  %{x}.d = add i64 %{x}.16, {signed}",
    ]


def _body(kind: str, groups: int, across: tuple[bool, bool], steps: int, sizes: Sizes) -> str:
    """The rows are dealt out to so many groups of warps, 64 at a time."""
    rows = (sizes["i"] or 0) * (sizes.get("g") or 1)
    columns = (sizes["j"] or 0) * (sizes.get("h") or 1)
    count = columns // 2  # sums of a thread, of 64 rows
    parts = rows // (ROWS * groups)
    result = f"{{ {', '.join(['float'] * count)} }}"
    lines = [line for x, o in zip("ab", across) for line in _descriptor(x, _word(o, steps))]
    block = _block(across[0], steps)
    lines += [
        "  %warp = call i32 @llvm.nvvm.read.ptx.sreg.tid.z()",
        "  %group = lshr i32 %warp, 2",
        f"  %group.at = mul i32 %group, {block}",
        "  %group.wide = zext i32 %group.at to i64",
        "  %a.own = add i64 %a.d, %group.wide",
    ]
    for k in range(parts * count):
        lines.append(f"  %p{k} = getelementptr float, ptr %c, i64 {k}")
        lines.append(f"  %c0.{k} = load float, ptr %p{k}, align 4")
    lines.append(alone("wgmma.fence.sync.aligned;"))
    tied = ",".join(["=f"] * count + ["l", "l"] + [str(k) for k in range(count)] + ["~{memory}"])
    names = ", ".join(f"${k}" for k in range(count))
    text = f"{{ /* {steps} steps */ .reg .pred p; setp.ne.b32 p, 1, 0; "
    text += f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} "
    text += f"{{{names}}}, ${count}, ${count + 1}, p, 1, 1, {int(across[0])}, {int(across[1])}; }}"
    further = [DEEP * (ROW if x else 2) // UNIT for x in across]
    for step in range(steps // DEEP):
        lines.append(f"  %b.d{step} = add i64 %b.d, {step * further[1]}")
        for part in range(parts):
            at = part * groups * block + step * further[0]
            lines.append(f"  %a.d{step}.{part} = add i64 %a.own, {at}")
            sums = [f"float %c{step}.{part * count + k}" for k in range(count)]
            given = ", ".join([f"i64 %a.d{step}.{part}", f"i64 %b.d{step}", *sums])
            into = f"%r{step}.{part}"
            call = f'call {result} asm sideeffect "{text}", "{tied}"({given}) convergent'
            lines.append(f"  {into} = {call}")
            for k in range(count):
                to = f"%c{step + 1}.{part * count + k}"
                lines.append(f"  {to} = extractvalue {result} {into}, {k}")
    lines.append(alone("wgmma.commit_group.sync.aligned;"))
    for k in range(parts * count):
        lines.append(f"  store float %c{steps // DEEP}.{k}, ptr %p{k}, align 4")
    return "\n".join([*lines, "  ret void"])


def _declare(kind: str, groups: int, across: tuple[bool, bool], steps: int) -> None:
    name = short_product_name(kind, groups, across, steps)
    least, warps = ROWS * groups, 4 * groups
    along = Swizzled({32: 2, 16: 1}[steps], 3, 3)
    by = {x: Swizzled(3, 3, 3) if o else along for x, o in zip("ab", across)}
    if across[0]:
        rows, a, a_at = f"{ROWS}*parts", f"parts,{steps},{ROWS}", "c.g,c.k,c.i"
        i = f"{ROWS}*c.g+c.i"
        row_loops, row_sizes = f"c.g in parts, c.i in {ROWS}", f"parts: {groups}..2"
    else:
        rows, a, a_at, i = "rows", f"rows,{steps}", "c.i,c.k", "c.i"
        row_loops, row_sizes = "c.i in rows", f"rows: {least}..128"
    if across[1]:
        columns, b, b_at = f"{WIDE}*blocks", f"blocks,{steps},{WIDE}", "c.h,c.k,c.j"
        j, loops, sizes = f"{WIDE}*c.h+c.j", f"c.h in blocks, c.j in {WIDE}", "blocks: 1..4"
    else:
        columns, b, b_at, j = "columns", f"columns,{steps}", "c.j,c.k", "c.j"
        loops, sizes = "c.j in columns", "columns: 8..256"
    value = f"cast<f32>(a[{a_at}]) * cast<f32>(b[{b_at}])"
    row, column = i.replace("c.", ""), j.replace("c.", "")
    multiples = {"g": groups} if across[0] else {"i": least}
    declare(
        Intrinsic(
            name,
            f"""
group wgmma where {row_sizes}, {sizes}
  in a: {kind}[{a}]
  in b: {kind}[{b}]
  out c: f32[{rows},{columns}]
  c[{i},{j}] add= {value} for {row_loops}, {loops}, c.k in {steps}
""",
            {x: (steps * WIDE, WIDE, 1) if o else (steps, 1) for x, o in zip("ab", across)},
            lambda sizes: _body(kind, groups, across, steps, sizes),
            ("declare i32 @llvm.nvvm.read.ptx.sreg.tid.z()",),
            ("wgmma",),
            multiples if across[1] else {**multiples, "j": 8},
            exact=False,
            fragments={
                "c": f"({row})//{least}, thread.z: ({row})//16%{warps}, ({column})//8, "
                f"({row})//8%2, thread.y: ({row})%8, thread.x: ({column})//2%4, ({column})%2"
            },
            warps=warps,
            tiles=by,
            asynchronous=True,
        )
    )


for _steps in STEPS:
    for _kind in ("bf16", "f16"):
        for _groups in (2, 1):
            for _across in ORDERS:
                _declare(_kind, _groups, _across, _steps)
