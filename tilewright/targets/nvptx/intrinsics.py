"""Products of whole warps on NVIDIA's GPUs: mma.sync, and ldmatrix, which brings its operands.

Which thread has which element is PTX's own layout, written as fragments (kernel/fragments.py) for
warps of 4 x 8 threads. The registers of a fragment are adjacent in the thread's memory.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.ir.product import Product
from tilewright.ir.types import DTYPES
from tilewright.kernel.intrinsic import ANY, Intrinsic, Sizes, declare


def _loads(operand: str, t: str, count: int, bytes_: int) -> list[str]:
    """The registers of an operand, out of the thread's memory."""
    out: list[str] = []
    for k in range(count):
        out += [
            f"  %p{operand}{k} = getelementptr {t}, ptr %{operand}, i64 {k}",
            f"  %{operand}{k} = load {t}, ptr %p{operand}{k}, align {bytes_}",
        ]
    return out


def _product(function: str, pair: str, sums: str, registers: tuple[int, int]) -> tuple[str, str]:
    """(body, declaration) of c += a * b by one instruction."""
    result = f"{{ {', '.join([sums] * 4)} }}"
    counts = {"a": registers[0], "b": registers[1], "c": 4}
    types = {"a": pair, "b": pair, "c": sums}
    lines = [line for x, k in counts.items() for line in _loads(x, types[x], k, 4)]
    given = ", ".join(f"{types[x]} %{x}{k}" for x in counts for k in range(counts[x]))
    taken = ", ".join(types[x] for x in counts for _ in range(counts[x]))
    lines.append(f"  %d = call {result} {function}({given})")
    for k in range(4):
        lines.append(f"  %d{k} = extractvalue {result} %d, {k}")
        lines.append(f"  store {sums} %d{k}, ptr %pc{k}, align 4")
    declaration = f"declare {result} {function}({taken}) convergent nounwind memory(none)"
    return "\n".join([*lines, "  ret void"]), declaration


def _mma(name: str, operand: str, sums: str, depth: int, function: str, has: str) -> None:
    """Products of 16 rows with 8 columns. A register has `pack` neighbours along k; 4 threads have
    neighbouring registers, twice over. Of float32 the factors are rounded: default schedules use
    that only where a kernel says so."""
    llvm = {"f32": "float", "i32": "i32"}[sums]
    pair = {"f16": "<2 x half>"}.get(operand, "i32")
    pack = {"bf16": 2, "f16": 2, "i8": 4, "f32": 1}[operand]
    half = 4 * pack
    body, declaration = _product(function, pair, llvm, (4, 2))
    to = "tf32" if operand == "f32" else f"cast<{sums}>"
    product = Product(
        name,
        DTYPES[operand],
        DTYPES[operand],
        DTYPES[sums],
        rows=16,
        columns=8,
        lanes=8,
        tile=(16, 8, depth),
    )
    declare(
        Intrinsic(
            name,
            f"""
group mma
  in a: {operand}[16,{depth}]
  in b: {operand}[8,{depth}]
  out c: {sums}[16,8]
  c[c.i,c.j] add= {to}(a[c.i,c.k]) * {to}(b[c.j,c.k]) for c.i in 16, c.j in 8, c.k in {depth}
""",
            {},
            lambda _: body,
            (declaration,),
            (has,),
            exact=sums == "i32",
            fragments={
                "a": f"k//{half}, i//8, thread.y: i%8, thread.x: k//{pack}%4, k%{pack}",
                "b": f"k//{half}, thread.y: j, thread.x: k//{pack}%4, k%{pack}",
                "c": "i//8, thread.y: i%8, thread.x: j//2, j%2",
            },
            product=None if operand == "f32" else product,
        )
    )


_mma("nvptx.mma.bf16", "bf16", "f32", 16, "@llvm.nvvm.mma.m16n8k16.row.col.bf16", "mma.bf16")
_mma("nvptx.mma.f16", "f16", "f32", 16, "@llvm.nvvm.mma.m16n8k16.row.col.f32.f32", "mma.bf16")
_mma("nvptx.mma.tf32", "f32", "f32", 8, "@llvm.nvvm.mma.m16n8k8.row.col.tf32", "mma.tf32")
_mma("nvptx.mma.i8", "i8", "i32", 32, "@llvm.nvvm.mma.m16n8k32.row.col.s8", "mma.bf16")


def _matrices(trans: str) -> tuple[Callable[[Sizes], str], str]:
    """ldmatrix of four tiles of 8 x 8; each thread gives the address of a row of one of them."""
    result = "{ i32, i32, i32, i32 }"
    function = f"@llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4{trans}.b16.p3"
    lines = [
        "  %q = addrspacecast ptr %s to ptr addrspace(3)",
        f"  %d = call {result} {function}(ptr addrspace(3) %q)",
    ]
    for k in range(4):
        lines += [
            f"  %d{k} = extractvalue {result} %d, {k}",
            f"  %p{k} = getelementptr i32, ptr %f, i64 {k}",
            f"  store i32 %d{k}, ptr %p{k}, align 4",
        ]
    text = "\n".join([*lines, "  ret void"])
    memory = "convergent nounwind memory(argmem: read)"
    return lambda _: text, f"declare {result} {function}(ptr addrspace(3)) {memory}"


def _ldmatrix(name: str, operand: str, fragment: str, given: dict[str, str], along: str) -> None:
    """A tile of 16 x 16 out of shared memory; `along` is the axis whose elements are neighbours."""
    body, declaration = _matrices("" if along == "k" else ".trans")
    index = "f.i,f.k" if along == "k" else "f.k,f.i"
    declare(
        Intrinsic(
            name,
            f"""
group ldmatrix
  in s: {operand}[16,16]
  out f: {operand}[16,16]
  f[f.i,f.k] = s[{index}] for f.i in 16, f.k in 16
""",
            {"s": (ANY, 1)},
            body,
            (declaration,),
            ("f16",),
            fragments={"f": fragment},
            addresses={"s": given},
        )
    )


_A = "k//8, i//8, thread.y: i%8, thread.x: k//2%4, k%2"
_B = "i//8, k//8, thread.y: i%8, thread.x: k//2%4, k%2"
for _type in ("bf16", "f16"):
    _ldmatrix(f"nvptx.ldmatrix.a.{_type}", _type, _A, {"i": "lane%16", "k": "lane//16*8"}, "k")
    _ldmatrix(
        f"nvptx.ldmatrix.b.{_type}", _type, _B, {"i": "lane//16*8+lane%8", "k": "lane//8%2*8"}, "k"
    )
    # Of operands whose rows run across: transposed on the way.
    _ldmatrix(
        f"nvptx.ldmatrix.a.{_type}.trans",
        _type,
        _A,
        {"i": "lane//8%2*8", "k": "lane//16*8+lane%8"},
        "i",
    )
    _ldmatrix(
        f"nvptx.ldmatrix.b.{_type}.trans", _type, _B, {"i": "lane//16*8", "k": "lane%16"}, "i"
    )
