"""Products of groups of four warps on sm_90a: wgmma, whose operands lie in shared memory.

Rows of a tile are 128 bytes, swizzled as a descriptor of PTX says it (by 128 bytes). Those of an
operand run along the sum (a[i,k], b[j,k]), or across it, in blocks of 64 (a[i//64,k,i%64]), which
is for numbers of 16 bits only. One use is all of a tile of 128 bytes of the sum, and goes on until
it is waited for. The sums are fragments of all 128 threads.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.product import Product
from tilewright.ir.types import DTYPES
from tilewright.kernel.intrinsic import Intrinsic, Sizes, declare
from tilewright.kernel.swizzle import Swizzled

ROWS, DEEP = 64, 16  # of one instruction, of elements of 16 bits
STEP = 32  # bytes of the sum of one instruction
WIDE = 64  # elements of 16 bits of a row, and of a block that lies across the sum
ROW = 128  # bytes
BLOCK = WIDE * ROW  # 64 rows
# Of a tile that is swizzled by 128 bytes: 8 rows are 1024 bytes apart from the next 8; across the
# sum, blocks of 64 are one after the other. In units of 16 bytes.
ALONG = (1 << 62) | (64 << 32) | (1 << 16)
ACROSS = (1 << 62) | (64 << 32) | (BLOCK // 16 << 16)
# Addresses of shared memory, in a descriptor as multiples of 16.
ADDRESSES = (1 << 18) - 1


def descriptor(x: str, across: bool) -> list[str]:
    """The operand's address as an instruction takes it."""
    return [
        f"  %{x}.shared = addrspacecast ptr %{x} to ptr addrspace(3)",
        f"  %{x}.at = ptrtoint ptr addrspace(3) %{x}.shared to i64",
        f"  %{x}.low = and i64 %{x}.at, {ADDRESSES}",
        f"  %{x}.16 = lshr i64 %{x}.low, 4",
        f"  %{x}.d = add i64 %{x}.16, {ACROSS if across else ALONG}",
    ]


@dataclass(frozen=True)
class Kind:
    """Numbers that are multiplied: their dtype, what PTX calls them, the dtype of sums, and whether
    rows may run across the sum."""

    dtype: str
    name: str
    sums: str = "f32"
    across: bool = False

    @property
    def item(self) -> int:
        return DTYPES[self.dtype].bytes

    @property
    def llvm(self) -> str:
        """The type of a sum."""
        return "float" if self.sums == "f32" else "i32"

    def ends(self, across: tuple[bool, bool]) -> str:
        """The last operands of the instruction: signs of the factors, and their order."""
        signs = "" if self.sums == "i32" else ", 1, 1"
        return signs + (f", {int(across[0])}, {int(across[1])}" if self.across else "")


KINDS = {
    x.dtype: x
    for x in (
        Kind("bf16", "bf16", across=True),
        Kind("f16", "f16", across=True),
        Kind("f8e4m3", "e4m3"),
        Kind("f8e5m2", "e5m2"),
        Kind("i8", "s8", "i32"),
    )
}


def alone(text: str) -> str:
    return f'  call void asm sideeffect "{text}", "~{{memory}}"() convergent'


def _body(kind: Kind, groups: int, across: tuple[bool, bool], sizes: Sizes) -> str:
    """The rows are dealt out to so many groups of warps, 64 at a time."""
    rows = (sizes["i"] or 0) * (sizes.get("g") or 1)
    columns = (sizes["j"] or 0) * (sizes.get("h") or 1)
    count = columns // 2  # sums of a thread, of 64 rows
    parts = rows // (ROWS * groups)
    t = kind.llvm
    result = f"{{ {', '.join([t] * count)} }}"
    lines = [*descriptor("a", across[0]), *descriptor("b", across[1])]
    if groups > 1:
        lines += [
            "  %warp = call i32 @llvm.nvvm.read.ptx.sreg.tid.z()",
            "  %group = lshr i32 %warp, 2",
            f"  %group.at = mul i32 %group, {BLOCK // 16}",
            "  %group.wide = zext i32 %group.at to i64",
            "  %a.own = add i64 %a.d, %group.wide",
        ]
    first = "%a.own" if groups > 1 else "%a.d"
    for k in range(parts * count):
        lines.append(f"  %p{k} = getelementptr {t}, ptr %c, i64 {k}")
        lines.append(f"  %c0.{k} = load {t}, ptr %p{k}, align 4")
    lines.append(alone("wgmma.fence.sync.aligned;"))
    own = ["=f" if t == "float" else "=r"] * count
    tied = ",".join([*own, "l", "l", *(str(k) for k in range(count)), "~{memory}"])
    names = ", ".join(f"${k}" for k in range(count))
    sums = kind.sums.replace("i", "s")
    shape = f"m64n{columns}k{STEP // kind.item}.{sums}.{kind.name}.{kind.name}"
    text = "{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned."
    text += f"{shape} {{{names}}}, ${count}, ${count + 1}, p{kind.ends(across)}; }}"
    # One instruction further on: elements of a row, or rows.
    step_a, step_b = (STEP // kind.item * ROW // 16 if x else STEP // 16 for x in across)
    for step in range(ROW // STEP):
        lines.append(f"  %b.d{step} = add i64 %b.d, {step * step_b}")
        for part in range(parts):
            at = part * groups * BLOCK // 16 + step * step_a
            lines.append(f"  %a.d{step}.{part} = add i64 {first}, {at}")
            old = [f"{t} %c{step}.{part * count + k}" for k in range(count)]
            given = [f"i64 %a.d{step}.{part}", f"i64 %b.d{step}", *old]
            into = f"%r{step}.{part}"
            lines.append(
                f'  {into} = call {result} asm sideeffect "{text}", "{tied}"'
                f"({', '.join(given)}) convergent"
            )
            for k in range(count):
                to = f"%c{step + 1}.{part * count + k}"
                lines.append(f"  {to} = extractvalue {result} {into}, {k}")
    lines.append(alone("wgmma.commit_group.sync.aligned;"))
    for k in range(parts * count):
        lines.append(f"  store {t} %c{ROW // STEP}.{k}, ptr %p{k}, align 4")
    return "\n".join([*lines, "  ret void"])


def product_name(kind: str, groups: int, across: tuple[bool, bool]) -> str:
    """Of groups of warps, and whose rows run across the sum: nvptx.wgmma.2.tn.bf16."""
    order = "".join("t" if x else "n" for x in across)
    return f"nvptx.wgmma.{groups}.{order}.{kind}"


def _declare(kind: str, groups: int, across: tuple[bool, bool]) -> None:
    name = product_name(kind, groups, across)
    least, warps = ROWS * groups, 4 * groups
    of = KINDS[kind]
    by = Swizzled(3, (16 // of.item).bit_length() - 1, 3)
    deep = ROW // of.item  # steps of the sum
    # Rows and columns are one loop each, or blocks of 64 and a place in them.
    if across[0]:
        rows, a, a_at, i = f"{ROWS}*parts", f"parts,{deep},{ROWS}", "c.g,c.k,c.i", f"{ROWS}*c.g+c.i"
        row_loops, row_sizes = f"c.g in parts, c.i in {ROWS}", f"parts: {groups}..{2}"
    else:
        rows, a, a_at, i = "rows", f"rows,{deep}", "c.i,c.k", "c.i"
        row_loops, row_sizes = "c.i in rows", f"rows: {least}..128"
    least_columns = 8 if of.sums == "f32" else 32
    if across[1]:
        columns, b, b_at = f"{WIDE}*blocks", f"blocks,{deep},{WIDE}", "c.h,c.k,c.j"
        j, loops, sizes = f"{WIDE}*c.h+c.j", f"c.h in blocks, c.j in {WIDE}", "blocks: 1..4"
    else:
        columns, b, b_at, j = "columns", f"columns,{deep}", "c.j,c.k", "c.j"
        loops, sizes = "c.j in columns", f"columns: {least_columns}..256"
    value = f"cast<{of.sums}>(a[{a_at}]) * cast<{of.sums}>(b[{b_at}])"
    row, column = i.replace("c.", ""), j.replace("c.", "")
    multiples = {"g": groups} if across[0] else {"i": least}
    declare(
        Intrinsic(
            name,
            f"""
group wgmma where {row_sizes}, {sizes}
  in a: {kind}[{a}]
  in b: {kind}[{b}]
  out c: {of.sums}[{rows},{columns}]
  c[{i},{j}] add= {value} for {row_loops}, {loops}, c.k in {deep}
""",
            {
                "a": (BLOCK // 2, WIDE, 1) if across[0] else (deep, 1),
                "b": (BLOCK // 2, WIDE, 1) if across[1] else (deep, 1),
            },
            lambda sizes: _body(of, groups, across, sizes),
            ("declare i32 @llvm.nvvm.read.ptx.sreg.tid.z()",),
            ("wgmma",),
            multiples if across[1] else {**multiples, "j": least_columns},
            exact=of.sums == "i32",
            fragments={
                "c": f"({row})//{least}, thread.z: ({row})//16%{warps}, ({column})//8, "
                f"({row})//8%2, thread.y: ({row})%8, thread.x: ({column})//2%4, ({column})%2"
            },
            warps=warps,
            tiles={"a": by, "b": by},
            asynchronous=True,
            product=Product(
                name,
                DTYPES[kind],
                DTYPES[kind],
                DTYPES[of.sums],
                rows=128,
                columns=256,
                lanes=WIDE if across[1] else least_columns,
                tile=(least, WIDE if across[1] else least_columns, deep),
            ),
        )
    )


ORDERS = tuple((x, y) for x in (False, True) for y in (False, True))
NAMES = [
    (kind, groups, across)
    for kind, x in KINDS.items()
    for groups in (2, 1)
    for across in (ORDERS if x.across else ORDERS[:1])
]
for _name in NAMES:
    _declare(*_name)


def bulk_name(kind: str, axes: int) -> str:
    """The copy of a box of an argument with so many axes: nvptx.bulk.2.bf16."""
    return f"nvptx.bulk.{axes}.{kind}"


def _bulk_body(bytes_: int, axes: int, sizes: Sizes) -> str:
    """Asked for by one thread, which lets the barrier wait for that many bytes before. In a cluster
    each block asks for its share of the rows, which goes to all of them."""
    rows, blocks = sizes["i"] or 0, sizes.get("cluster") or 1
    places = ", ".join(f"${k + 2}" for k in range(axes))
    kinds = ",".join(["l", "l", *["r"] * axes, "l"])
    given = [f"i32 %s.{k}" for k in range(axes)]
    shared = "ptr addrspace(3)"
    copy = f"cp.async.bulk.tensor.{axes}d.shared::cluster.global.mbarrier::complete_tx::bytes"
    to, end, share = "%to", "", ""
    if blocks > 1:
        given[1] = "i32 %row"
        to, copy, end = "%own", f"{copy}.multicast::cluster", f", ${axes + 3}"
        kinds += ",h"
        share = f"""  %first = mul i32 %rank, {rows // blocks}
  %row = add i32 %s.1, %first
  %bytes = mul i32 %first, {bytes_}
  %own = getelementptr i8, {shared} %to, i32 %bytes
"""
    last = f", i16 {(1 << blocks) - 1}" if blocks > 1 else ""
    return f"""  %to = addrspacecast ptr %d to {shared}
{share}  call void asm sideeffect "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [$0], $1;", \
"l,n,~{{memory}}"({shared} %arrived, i32 {rows * bytes_})
  call void asm sideeffect "{copy} [$0], [$1, {{{places}}}], [${axes + 2}]{end};", \
"{kinds},~{{memory}}"({shared} {to}, ptr %s, {", ".join(given)}, {shared} %arrived{last})
  ret void"""


def _bulk(kind: str, axes: int) -> None:
    item = DTYPES[kind].bytes
    wide = ROW // item
    declare(
        Intrinsic(
            bulk_name(kind, axes),
            f"""
group bulk where rows: 8..256
  in s: {kind}[rows,{wide}]
  out d: {kind}[rows,{wide}]
  d[d.i,d.k] = s[d.i,d.k] for d.i in rows, d.k in {wide}
""",
            {"s": (None, 1), "d": (wide, 1)},
            lambda sizes: _bulk_body(ROW, axes, sizes),
            (),
            ("tma",),
            {"i": 8},
            tiles={"d": Swizzled(3, (16 // item).bit_length() - 1, 3)},
            engine=axes,
        )
    )


for _kind in KINDS:
    for _axes in (2, 3, 4, 5):
        _bulk(_kind, _axes)
