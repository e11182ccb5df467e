"""The instructions of x86-64 that schedules may use."""

from __future__ import annotations

from tilewright.ir.product import Product
from tilewright.ir.types import DType, bf16, f16, f32, i8, i16, i32, u8
from tilewright.kernel.intrinsic import Ask, Emission, Intrinsic, Sizes, declare, declare_product
from tilewright.llvm.products import DotTile, FmaTile, Multiply, dot, dot_call, pair_call, prefetch


def _fma(name: str, lanes: int, feature: str) -> Product:
    v = f"<{lanes} x float>"
    p = Product(name, f32, f32, f32, rows=14, columns=4 * lanes, lanes=lanes, loads="each")
    declares = (f"declare {v} @llvm.fma.v{lanes}f32({v}, {v}, {v})",)
    return declare_product(p, FmaTile(lanes), declares, (feature,))


AVX2_FMA = _fma("x86.avx2.fma", 8, "fma")
AVX512_FMA = _fma("x86.avx512.fma", 16, "avx512f")


def _dot(name: str, function: str, types: tuple[str, str, str], feature: str) -> None:
    """A dot product of 32 bits with 32 bits in each of sixteen lanes."""
    a, b, c = types
    width = 2 if a == "bf16" else 4
    sums = {"i32": "i32", "f32": "float"}[c]
    operand = "<32 x bfloat>" if a == "bf16" else "<64 x i8>"
    v = f"<16 x {sums}>"
    declare(
        Intrinsic(
            name,
            f"""
group dot where columns: 16..64
  in a: {a}[{width}]
  in b: {b}[columns,{width}]
  out c: {c}[columns]
  c[c.j] add= cast<{c}>(a[c.p]) * cast<{c}>(b[c.j,c.p]) for c.j in columns, c.p in {width}
""",
            {"a": (1,), "b": (width, 1), "c": (1,)},
            dot(function, 16, sums, operand),
            (f"declare {v} {function}({v}, {operand}, {operand})",),
            (feature,),
            {"j": 16},
            exact=c == "i32",
        )
    )


_dot("x86.vpdpbusd", "@llvm.x86.avx512.vpdpbusd.512", ("u8", "i8", "i32"), "avx512vnni")
_dot("x86.vdpbf16ps", "@llvm.x86.avx512bf16.dpbf16ps.512", ("bf16", "bf16", "f32"), "avx512bf16")

Dtypes = tuple[DType, DType, DType]
# Dot products that default schedules multiply with, and the features that each needs.
DOTS: list[tuple[Product, frozenset[str]]] = []


def _dots(
    name: str, dtypes: Dtypes, lanes: int, multiply: Multiply, declared: str, *features: str
) -> None:
    """A register tile of dot products: groups of 32 bits of the first operand."""
    a, b, c = dtypes
    rows, most = (8, 3) if lanes == 16 else (6, 2)
    p = Product(name, a, b, c, 4 // a.bytes, rows, most * lanes, lanes)
    element = "bfloat" if b is bf16 else "i8"
    # Products apart from their sums would be added up before they join these, and take registers
    # that a tile does not leave: one group after the other.
    step = 1 if a is i16 else 4
    operand = f"<{p.group * lanes} x {element}>"
    sums = "i32" if c.is_int else "float"
    tile = DotTile(lanes, sums, (a.bytes, b.bytes), operand, multiply, step=step)
    declare_product(p, tile, (declared,), features)
    DOTS.append((p, frozenset(f"+{f}" for f in features)))


def _bytes(name: str, function: str, lanes: int, *features: str) -> None:
    """Unsigned times signed bytes, whichever of them is spread."""
    v, operand = f"<{lanes} x i32>", f"<{4 * lanes} x i8>"
    declared = f"declare {v} {function}({v}, {operand}, {operand})"
    for own, dtypes, swapped in (
        (f"{name}.u8s8", (u8, i8, i32), False),
        (f"{name}.s8u8", (i8, u8, i32), True),
    ):
        call = dot_call(function, "i32", lanes, operand, swapped)
        _dots(own, dtypes, lanes, call, declared, *features)


def _signed_bytes(name: str, lanes: int, feature: str) -> None:
    v, operand = f"<{lanes} x i32>", f"<{4 * lanes} x i8>"
    function = f"@llvm.x86.avx2.vpdpbssd.{32 * lanes}"
    declared = f"declare {v} {function}({v}, {operand}, {operand})"
    _dots(name, (i8, i8, i32), lanes, dot_call(function, "i32", lanes, operand), declared, feature)


def _pairs(name: str, function: str, lanes: int, *features: str) -> None:
    """Two products of 16 bits each; eight bits are widened where they are read."""
    v, pairs = f"<{lanes} x i32>", f"<{2 * lanes} x i16>"
    declared = f"declare {v} {function}({pairs}, {pairs})"
    for b, extension in ((i8, "sext"), (u8, "zext")):
        call = pair_call(function, lanes, extension)
        _dots(f"{name}.{b}", (i16, b, i32), lanes, call, declared, *features)


def _halves(name: str, lanes: int, feature: str) -> None:
    v, operand = f"<{lanes} x float>", f"<{2 * lanes} x bfloat>"
    function = f"@llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}"
    declared = f"declare {v} {function}({v}, {operand}, {operand})"
    call = dot_call(function, "float", lanes, operand)
    _dots(name, (bf16, bf16, f32), lanes, call, declared, feature)


_signed_bytes("x86.avx.vpdpbssd", 8, "avxvnniint8")
_bytes("x86.avx512.vpdpbusd", "@llvm.x86.avx512.vpdpbusd.512", 16, "avx512vnni")
_bytes("x86.avx.vpdpbusd", "@llvm.x86.avx512.vpdpbusd.256", 8, "avxvnni")
_pairs("x86.avx512.vpmaddwd", "@llvm.x86.avx512.pmaddw.d.512", 16, "avx512bw")
_pairs("x86.avx2.vpmaddwd", "@llvm.x86.avx2.pmadd.wd", 8, "avx2")
_pairs("x86.sse2.pmaddwd", "@llvm.x86.sse2.pmadd.wd", 4)
_halves("x86.avx512.vdpbf16ps", 16, "avx512bf16")

# Eight tiles of 16 rows of 64 bytes each (palette 1, as the manual lays the table out).
_TILES = bytes([1, *[0] * 15, *[64, 0] * 8, *[0] * 16, *[16] * 8, *[0] * 8])
_CONFIG = "".join(f"\\{byte:02X}" for byte in _TILES)


def _configuration(rows: int | str, last: int) -> list[str]:
    """Tiles of fewer rows (a number, or an i8 of the running program) for the last ones of sums and
    of a, until the usual ones come back."""
    lines = ["  %tiles = alloca [64 x i8], align 64"]
    for k in range(8):
        word = int.from_bytes(_TILES[8 * k : 8 * k + 8], "little")
        lines.append(f"  %tiles.{k} = getelementptr i8, ptr %tiles, i64 {8 * k}")
        lines.append(f"  store i64 {word}, ptr %tiles.{k}, align 8")
    for tile in (2 * last, 2 * last + 1, 4 + last):
        lines.append(f"  %height.{tile} = getelementptr i8, ptr %tiles, i64 {48 + tile}")
        lines.append(f"  store i8 {rows}, ptr %height.{tile}, align 1")
    return [*lines, "  call void @llvm.x86.ldtilecfg(ptr %tiles)"]


def _tile_product(operation: str, element: int) -> Emission:
    """c[i,j] += sum over k and p of a[i,k*g+p] * b[k,j,p], up to 2 by 2 tiles of sums in registers
    while k runs; `element` bytes make g of a 32-bit group. With a number of lines, the body that
    prefetches them as it goes."""

    def body(sizes: Sizes, ahead: tuple[Ask, ...] = ()) -> str:
        rows, columns, depth = sizes["i"], sizes["j"], sizes["k"]
        assert columns is not None and depth is not None
        # Where only the running program knows the rows, 16 of them or fewer at a time.
        tall, wide = 1 if rows is None else -(-rows // 16), columns // 16
        usual = rows is not None and rows % 16 == 0
        lines: list[str] = []
        put = lines.append
        put("  %c.row = mul i64 %c.0, 4")
        put("  %c.down = mul i64 %c.row, 16")
        put(f"  %a.row = mul i64 %a.0, {element}")
        put("  %a.down = mul i64 %a.row, 16")
        put(f"  %b.row = mul i64 %b.0, {element}")
        if rows is None:
            put("  br label %rows.before")
            put("rows.before:")
            put("  %rows.some = icmp ne i64 %size.i, 0")
            put("  br i1 %rows.some, label %rows, label %rows.after")
            put("rows:")
            put("  %row = phi i64 [ 0, %rows.before ], [ %row.next, %done ]")
            put("  %rows.left = sub i64 %size.i, %row")
            put("  %rows.few = icmp ult i64 %rows.left, 16")
            put("  %rows.here = select i1 %rows.few, i64 %rows.left, i64 16")
            put("  %rows.byte = trunc i64 %rows.here to i8")
            lines += _configuration("%rows.byte", 0)
        elif not usual:
            lines += _configuration(rows - 16 * (tall - 1), tall - 1)
        first = "0" if rows is not None else "%row"
        for x in "ac":
            put(f"  %{x}.first = mul i64 %{x}.row, {first}")
            put(f"  %{x}.at = getelementptr i8, ptr %{x}, i64 %{x}.first")
        for r in range(tall):
            for c in range(wide):
                put(f"  %c{r}{c}.r = mul i64 %c.down, {r}")
                put(f"  %c{r}{c}.p = getelementptr i8, ptr %c.at, i64 %c{r}{c}.r")
                put(f"  %c{r}{c} = getelementptr i8, ptr %c{r}{c}.p, i64 {64 * c}")
                where = f"ptr %c{r}{c}, i64 %c.row"
                put(f"  call void @llvm.x86.tileloadd64(i8 {2 * r + c}, {where})")
        put("  br label %entry")
        put("entry:")
        put("  br label %loop")
        put("loop:")
        put("  %k = phi i64 [ 0, %entry ], [ %next, %loop ]")
        # 16 groups of k at a time: 64 bytes of a row of a, 16 rows of b.
        put("  %ka = mul i64 %k, 64")
        put("  %a0 = getelementptr i8, ptr %a.at, i64 %ka")
        put("  %a1 = getelementptr i8, ptr %a0, i64 %a.down")
        put("  %kb = mul i64 %k, 16")
        put("  %kd = mul i64 %kb, %b.row")
        put("  %b0 = getelementptr i8, ptr %b, i64 %kd")
        put("  %b1 = getelementptr i8, ptr %b0, i64 64")
        order = [("b", 0), ("a", 0), *([("b", 1)] if wide > 1 else [])]
        order += [("a", 1)] if tall > 1 else []
        have: set[tuple[str, int]] = set()
        for x, n in order:
            number = {"a": 4, "b": 6}[x] + n
            put(f"  call void @llvm.x86.tileloadd64(i8 {number}, ptr %{x}{n}, i64 %{x}.row)")
            have.add((x, n))
            for r in range(tall):
                for c in range(wide):
                    ready = {("a", r), ("b", c)} <= have
                    if ready and (x, n) in (("a", r), ("b", c)):
                        tiles = f"i8 {2 * r + c}, i8 {4 + r}, i8 {6 + c}"
                        put(f"  call void @llvm.x86.{operation}({tiles})")
        for m, ask in enumerate(ahead):
            each = -(-ask.lines // (depth // 16))
            for n in range(each):
                line = f"%line{m}.{n}"
                put(f"  {line}.at = mul i64 %k, {64 * each}")
                put(f"  {line}.from = getelementptr i8, ptr %ahead.{m}, i64 {line}.at")
                put(f"  {line} = getelementptr i8, ptr {line}.from, i64 {64 * n}")
                put(f"  {prefetch(line, ask.level)}")
        put("  %next = add nuw nsw i64 %k, 1")
        put(f"  %more = icmp ult i64 %next, {depth // 16}")
        put("  br i1 %more, label %loop, label %done")
        put("done:")
        for r in range(tall):
            for c in range(wide):
                where = f"ptr %c{r}{c}, i64 %c.row"
                put(f"  call void @llvm.x86.tilestored64(i8 {2 * r + c}, {where})")
        if rows is None:
            put("  %row.next = add nuw nsw i64 %row, 16")
            put("  %row.more = icmp ult i64 %row.next, %size.i")
            put("  br i1 %row.more, label %rows, label %rows.after")
            put("rows.after:")
        if not usual:
            put("  call void @llvm.x86.ldtilecfg(ptr @tw.tiles)")
        put("  ret void")
        return "\n".join(lines) + "\n"

    return body


# Products of whole tiles, and the feature that each needs.
TILES: list[tuple[Product, str]] = []


def _amx(name: str, operation: str, dtypes: Dtypes, feature: str) -> None:
    a, b, c = dtypes
    # Two by two tiles of sums; one operation adds up 64 bytes of each row.
    p = Product(name, a, b, c, 4 // a.bytes, 32, 32, 16, (16, 16, 16))
    declare_product(
        p,
        _tile_product(operation, a.bytes),
        (
            f'@tw.tiles = internal constant [64 x i8] c"{_CONFIG}", align 64',
            "declare void @llvm.x86.ldtilecfg(ptr)",
            "declare void @llvm.x86.tilerelease()",
            "declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)",
            "declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)",
            f"declare void @llvm.x86.{operation}(i8 immarg, i8 immarg, i8 immarg)",
        ),
        ("amx-tile", feature),
        enter=("call void @llvm.x86.ldtilecfg(ptr @tw.tiles)",),
        leave=("call void @llvm.x86.tilerelease()",),
    )
    TILES.append((p, f"+{feature}"))


_amx("x86.amx.bf16", "tdpbf16ps", (bf16, bf16, f32), "amx-bf16")
_amx("x86.amx.f16", "tdpfp16ps", (f16, f16, f32), "amx-fp16")
_amx("x86.amx.s8s8", "tdpbssd", (i8, i8, i32), "amx-int8")
_amx("x86.amx.u8s8", "tdpbusd", (u8, i8, i32), "amx-int8")
_amx("x86.amx.s8u8", "tdpbsud", (i8, u8, i32), "amx-int8")
_amx("x86.amx.u8u8", "tdpbuud", (u8, u8, i32), "amx-int8")
