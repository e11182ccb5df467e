"""Products of groups of four warps on sm_90a: wgmma, whose operands lie in shared memory.

Rows of a tile are 128 bytes, swizzled as a descriptor of PTX says it (by 128 bytes), or 64 or 32
for tiles with no more steps of the sum. Those of an operand run along the sum (a[i,k], b[j,k]), or
across it, in blocks of 64 (a[i//64,k,i%64]), which is for numbers of 16 bits only. One use is all
of a tile, and goes on until it is waited for. The sums are fragments of all 128 threads.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.product import Product
from tilewright.ir.types import DTYPES
from tilewright.kernel.intrinsic import Intrinsic, Sizes, declare
from tilewright.kernel.swizzle import Swizzled
from tilewright.targets.nvptx.wgmma import (
    ROW,
    ROWS,
    STEP,
    UNIT,
    WIDE,
    Sums,
    columns_of,
    descriptor,
    rows_of,
    word,
)

SHORT = (64, 32)  # bytes of rows along the sum of tiles that are no wider


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


def _body(kind: Kind, groups: int, across: tuple[bool, bool], row: int, sizes: Sizes) -> str:
    """The rows are dealt out to so many groups of warps, 64 at a time."""
    rows = (sizes["i"] or 0) * (sizes.get("g") or 1)
    columns = (sizes["j"] or 0) * (sizes.get("h") or 1)
    deep = row // kind.item
    sums = Sums(kind.sums, rows // (ROWS * groups), columns // 2)
    count, lines = sums.count, sums.lines
    for x, o in zip("ab", across, strict=True):
        lines += descriptor(x, word(o, row, deep))
    block = (deep * ROW if across[0] else ROWS * row) // UNIT  # from 64 rows to the next
    if groups > 1:
        lines += [
            "  %warp = call i32 @llvm.nvvm.read.ptx.sreg.tid.z()",
            "  %group = lshr i32 %warp, 2",
            f"  %group.at = mul i32 %group, {block}",
            "  %group.wide = zext i32 %group.at to i64",
            "  %a.own = add i64 %a.d, %group.wide",
        ]
    first = "%a.own" if groups > 1 else "%a.d"
    sums.load()
    shape = f"m64n{columns}k{STEP // kind.item}.{kind.sums.replace('i', 's')}"
    says = f"/* {deep} steps */ " if row != ROW else ""
    text = sums.text(
        f"{shape}.{kind.name}.{kind.name}", f"${count}, ${count + 1}", kind.ends(across), says
    )
    # One instruction further on: elements of a row, or rows.
    step_a, step_b = ((STEP // kind.item * ROW if x else STEP) // UNIT for x in across)
    for step in range(row // STEP):
        lines.append(f"  %b.d{step} = add i64 %b.d, {step * step_b}")
        for part in range(sums.parts):
            at = part * groups * block + step * step_a
            lines.append(f"  %a.d{step}.{part} = add i64 {first}, {at}")
            sums.add(part, text, ("l", "l"), (f"i64 %a.d{step}.{part}", f"i64 %b.d{step}"))
        sums.next()
    return sums.store()


def product_name(kind: str, groups: int, across: tuple[bool, bool], row: int = ROW) -> str:
    """Of groups of warps, whose rows run across the sum, and steps if those are fewer than usual:
    nvptx.wgmma.2.tn.bf16, nvptx.wgmma.1.nn.bf16.32."""
    order = "".join("t" if x else "n" for x in across)
    steps = "" if row == ROW else f".{row // KINDS[kind].item}"
    return f"nvptx.wgmma.{groups}.{order}.{kind}{steps}"


def _declare(kind: str, groups: int, across: tuple[bool, bool], row: int = ROW) -> None:
    name = product_name(kind, groups, across, row)
    least, warps = ROWS * groups, 4 * groups
    of = KINDS[kind]
    vector = (UNIT // of.item).bit_length() - 1
    along = Swizzled((row // UNIT).bit_length() - 1, vector, 3)
    by = {x: Swizzled(3, vector, 3) if o else along for x, o in zip("ab", across, strict=True)}
    deep = row // of.item  # steps of the sum
    least_columns = 8 if of.sums == "f32" else 32
    a, b = rows_of(across[0], deep, groups), columns_of(across[1], deep, least_columns)
    value = f"cast<{of.sums}>(a[{a.at}]) * cast<{of.sums}>(b[{b.at}])"
    lanes = WIDE if across[1] else least_columns
    multiples = {"g": groups} if across[0] else {"i": least}
    declare(
        Intrinsic(
            name,
            f"""
group wgmma where {a.sizes}, {b.sizes}
  in a: {kind}[{a.shape}]
  in b: {kind}[{b.shape}]
  out c: {of.sums}[{a.size},{b.size}]
  c[{a.place},{b.place}] add= {value} for {a.loops}, {b.loops}, c.k in {deep}
""",
            {"a": a.strides, "b": b.strides},
            lambda sizes: _body(of, groups, across, row, sizes),
            ("declare i32 @llvm.nvvm.read.ptx.sreg.tid.z()",),
            ("wgmma",),
            multiples if across[1] else {**multiples, "j": least_columns},
            exact=of.sums == "i32",
            fragments={
                "c": f"({a.name})//{least}, thread.z: ({a.name})//16%{warps}, ({b.name})//8, "
                f"({a.name})//8%2, thread.y: ({a.name})%8, thread.x: ({b.name})//2%4, ({b.name})%2"
            },
            warps=warps,
            tiles=by,
            asynchronous=True,
            product=Product(
                name,
                DTYPES[kind],
                DTYPES[kind],
                DTYPES[of.sums],
                rows=128,
                columns=256,
                lanes=lanes,
                tile=(least, lanes, deep),
            )
            if row == ROW
            else None,
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
    if KINDS[_name[0]].across:
        for _row in SHORT:
            _declare(*_name, _row)


def bulk_name(kind: str, axes: int, row: int = ROW) -> str:
    """The copy of a box of an argument with so many axes, and elements of a row if those are fewer
    than usual: nvptx.bulk.2.bf16, nvptx.bulk.2.bf16.32."""
    return f"nvptx.bulk.{axes}.{kind}" + ("" if row == ROW else f".{row // KINDS[kind].item}")


def _bulk_body(bytes_: int, sizes: Sizes) -> str:
    """Asked for by one thread, which lets the barrier wait for that many bytes before. In a cluster
    each block asks for its share of the rows, which goes to all of them."""
    rows, blocks, axes = sizes["i"] or 0, sizes.get("cluster") or 1, sizes["axes"] or 0
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


def _bulk(kind: str, axes: int, row: int = ROW) -> None:
    item = DTYPES[kind].bytes
    wide = row // item
    declare(
        Intrinsic(
            bulk_name(kind, axes, row),
            f"""
group bulk where rows: 8..256
  in s: {kind}[rows,{wide}]
  out d: {kind}[rows,{wide}]
  d[d.i,d.k] = s[d.i,d.k] for d.i in rows, d.k in {wide}
""",
            {"s": (None, 1), "d": (wide, 1)},
            lambda sizes: _bulk_body(row, sizes),
            (),
            ("tma",),
            {"i": 8},
            tiles={"d": Swizzled((row // 16).bit_length() - 1, (16 // item).bit_length() - 1, 3)},
            engine=axes,
        )
    )


# The engine takes five axes; those of one element are not among them.
for _kind in KINDS:
    for _axes in range(2, 9):
        _bulk(_kind, _axes)
    for _row in SHORT if KINDS[_kind].across else ():
        for _axes in range(2, 6):
            _bulk(_kind, _axes, _row)
