"""Products of groups of four warps on sm_90a: wgmma, whose operands lie in shared memory.

The rows of both run along the sum, 128 bytes at a time, swizzled as a descriptor of PTX says it
(by 128 bytes). One use is all of a tile of 64 steps of the sum: it waits for itself, so that its
reads are over when it is. The sums are fragments of all 128 threads.
"""

from __future__ import annotations

from tilewright.ir.product import Product
from tilewright.ir.types import DTYPES, f32
from tilewright.kernel.intrinsic import Intrinsic, Sizes, declare
from tilewright.kernel.swizzle import Swizzled

ROWS, DEEP = 64, 16  # of one instruction
WIDE = 64  # elements of 128 bytes
# Of a tile that is swizzled by 128 bytes: 8 rows are 1024 bytes apart from the next 8.
DESCRIPTOR = (1 << 62) | (64 << 32) | (1 << 16)
# Addresses of shared memory, in a descriptor as multiples of 16.
ADDRESSES = (1 << 18) - 1


def _descriptor(x: str) -> list[str]:
    """The operand's address as an instruction takes it."""
    return [
        f"  %{x}.shared = addrspacecast ptr %{x} to ptr addrspace(3)",
        f"  %{x}.at = ptrtoint ptr addrspace(3) %{x}.shared to i64",
        f"  %{x}.low = and i64 %{x}.at, {ADDRESSES}",
        f"  %{x}.16 = lshr i64 %{x}.low, 4",
        f"  %{x}.d = add i64 %{x}.16, {DESCRIPTOR}",
    ]


def _alone(text: str) -> str:
    return f'  call void asm sideeffect "{text}", "~{{memory}}"() convergent'


def _body(kind: str, groups: int, sizes: Sizes) -> str:
    """The rows are dealt out to so many groups of warps, 64 at a time."""
    rows, columns = sizes["i"], sizes["j"]
    assert rows is not None and columns is not None
    count = columns // 2  # sums of a thread, of 64 rows
    parts = rows // (ROWS * groups)
    result = f"{{ {', '.join(['float'] * count)} }}"
    lines = [*_descriptor("a"), *_descriptor("b")]
    if groups > 1:
        lines += [
            "  %warp = call i32 @llvm.nvvm.read.ptx.sreg.tid.z()",
            "  %group = lshr i32 %warp, 2",
            f"  %group.at = mul i32 %group, {ROWS * 128 // 16}",
            "  %group.wide = zext i32 %group.at to i64",
            "  %a.own = add i64 %a.d, %group.wide",
        ]
    first = "%a.own" if groups > 1 else "%a.d"
    for k in range(parts * count):
        lines.append(f"  %p{k} = getelementptr float, ptr %c, i64 {k}")
        lines.append(f"  %c0.{k} = load float, ptr %p{k}, align 4")
    lines.append(_alone("wgmma.fence.sync.aligned;"))
    tied = ",".join(["=f"] * count + ["l", "l"] + [str(k) for k in range(count)] + ["~{memory}"])
    names = ", ".join(f"${k}" for k in range(count))
    shape = f"m64n{columns}k16.f32.{kind}.{kind}"
    text = "{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned."
    text += f"{shape} {{{names}}}, ${count}, ${count + 1}, p, 1, 1, 0, 0; }}"
    for step in range(WIDE // DEEP):
        # 16 elements further on; 64 rows are 64 * 128 bytes.
        lines.append(f"  %b.d{step} = add i64 %b.d, {step * DEEP * 2 // 16}")
        for part in range(parts):
            at = part * groups * ROWS * 128 // 16 + step * DEEP * 2 // 16
            lines.append(f"  %a.d{step}.{part} = add i64 {first}, {at}")
            sums = [f"%c{step}.{part * count + k}" for k in range(count)]
            given = [f"i64 %a.d{step}.{part}", f"i64 %b.d{step}", *(f"float {c}" for c in sums)]
            into = f"%r{step}.{part}"
            lines.append(
                f'  {into} = call {result} asm sideeffect "{text}", "{tied}"'
                f"({', '.join(given)}) convergent"
            )
            for k in range(count):
                to = f"%c{step + 1}.{part * count + k}"
                lines.append(f"  {to} = extractvalue {result} {into}, {k}")
    lines.append(_alone("wgmma.commit_group.sync.aligned;"))
    # The sums are there after the wait only, which LLVM is told by handing them through it.
    every = parts * count
    whole = f"{{ {', '.join(['float'] * every)} }}"
    ends = ",".join(["=f"] * every + [str(k) for k in range(every)] + ["~{memory}"])
    last = ", ".join(f"float %c{WIDE // DEEP}.{k}" for k in range(every))
    lines.append(
        f'  %w = call {whole} asm sideeffect "wgmma.wait_group.sync.aligned 0;", "{ends}"'
        f"({last}) convergent"
    )
    for k in range(every):
        lines.append(f"  %w.{k} = extractvalue {whole} %w, {k}")
        lines.append(f"  store float %w.{k}, ptr %p{k}, align 4")
    return "\n".join([*lines, "  ret void"])


def _declare(kind: str, groups: int) -> None:
    name = f"nvptx.wgmma.{kind}" if groups == 1 else f"nvptx.wgmma.{groups}.{kind}"
    rows, warps = ROWS * groups, 4 * groups
    by = Swizzled(3, 3, 3)
    value = "cast<f32>(a[c.i,c.k]) * cast<f32>(b[c.j,c.k])"
    declare(
        Intrinsic(
            name,
            f"""
group wgmma where rows: {rows}..128, columns: 8..256
  in a: {kind}[rows,{WIDE}]
  in b: {kind}[columns,{WIDE}]
  out c: f32[rows,columns]
  c[c.i,c.j] add= {value} for c.i in rows, c.j in columns, c.k in {WIDE}
""",
            {"a": (WIDE, 1), "b": (WIDE, 1)},
            lambda sizes: _body(kind, groups, sizes),
            ("declare i32 @llvm.nvvm.read.ptx.sreg.tid.z()",),
            ("wgmma",),
            {"i": rows, "j": 8},
            exact=False,
            fragments={
                "c": f"i//{rows}, thread.z: i//16%{warps}, j//8, i//8%2, "
                "thread.y: i%8, thread.x: j//2%4, j%2"
            },
            warps=warps,
            tiles={"a": by, "b": by},
            product=Product(
                name,
                DTYPES[kind],
                DTYPES[kind],
                f32,
                rows=128,
                columns=256,
                lanes=8,
                tile=(rows, 8, WIDE),
            ),
        )
    )


for _kind in ("bf16", "f16"):
    _declare(_kind, 1)
    _declare(_kind, 2)
