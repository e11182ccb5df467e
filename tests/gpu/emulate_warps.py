"""What emulated code asks of whole warps: mma.sync, ldmatrix and asynchronous copies.

Written from PTX's description of the instructions, not from the fragments that are declared for
them. Callbacks return no structures, so such calls go through memory.
"""

from __future__ import annotations

import ctypes
import re

import numpy as np

_DECLARED = re.compile(
    r"declare (\{ [\w ,]+ \}) @nvvm_((?:mma|ldmatrix|wgmma)\w+)\(([^)]*)\)[^\n]*", re.MULTILINE
)


_ASSEMBLER = re.compile(
    r'call (\{ [\w ,]+ \}) asm sideeffect "([^"]*)", "[^"]*"\(([^)]*)\) convergent'
)
# What a descriptor has besides an address, which has all its bits here.
DESCRIPTOR = (1 << 62) | (64 << 32) | (1 << 16)


def _called(found: re.Match[str], defines: dict[str, str]) -> str:
    """Assembler of a group of warps as a call."""
    result, text, given = found.groups()
    types = [x.split()[0] for x in given.split(", ")]
    if "wait_group" in text:
        name = f"tied_{len(types)}"
        taken = ", ".join(f"float %x{k}" for k in range(len(types)))
        lines = [f"define internal {result} @{name}({taken}) {{"]
        for k in range(len(types)):
            old = f"%r{k - 1}" if k else "poison"
            lines.append(f"  %r{k} = insertvalue {result} {old}, float %x{k}, {k}")
        defines[name] = "\n".join([*lines, f"  ret {result} %r{len(types) - 1}", "}"])
        return f"call {result} @{name}({given})"
    product = re.search(r"(m64n\d+k16)\.f32\.(\w+)\.", text)
    assert product is not None, f"no product of a group of warps: {text}"
    shape, kind = product.groups()
    name = f"nvvm_wgmma_{shape}_{kind}"
    defines[name] = f"declare {result} @{name}({', '.join(types)})"
    return f"call {result} @{name}({given})"


def without_assembler(text: str) -> str:
    """Instructions that are written as assembler, as calls; fences are none."""
    defines: dict[str, str] = {}
    text = re.sub(r'^ *call void asm sideeffect "[^"]*", "[^"]*"\(\)[^\n]*\n', "", text, flags=re.M)
    text = _ASSEMBLER.sub(lambda m: _called(m, defines), text)
    text = re.sub(r"(and i64 %\w+\.at), 262143", rf"\1, {(1 << 48) - 16}", text)
    return "\n".join([*defines.values(), text])


def with_structures(text: str) -> str:
    """Instructions that return several registers as functions that hand over addresses."""
    text = without_assembler(text)
    return _DECLARED.sub(lambda m: _through_memory(*m.groups()), text)


def _through_memory(result: str, name: str, arguments: str) -> str:
    types = _split(arguments)
    given = "{ " + ", ".join(types) + " }"
    taken = ", ".join(f"{t} %x{k}" for k, t in enumerate(types))
    lines = [
        f"declare void @emulated_{name}(ptr, ptr)",
        f"define internal {result} @nvvm_{name}({taken}) {{",
        f"  %given = alloca {given}, align 16",
        f"  %result = alloca {result}, align 16",
    ]
    for k, t in enumerate(types):
        lines.append(f"  %p{k} = getelementptr {given}, ptr %given, i32 0, i32 {k}")
        lines.append(f"  store {t} %x{k}, ptr %p{k}")
    lines += [
        f"  call void @emulated_{name}(ptr %given, ptr %result)",
        f"  %r = load {result}, ptr %result",
        f"  ret {result} %r",
        "}",
    ]
    return "\n".join(lines)


def _split(arguments: str) -> list[str]:
    return [x.strip() for x in re.findall(r"<[^>]*>|[^,<]+", arguments) if x.strip()]


def _bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def product(given: list[int], kind: str) -> list[bytes]:
    """mma.sync: 16 rows by 8 columns; each thread gives 4 registers of a, 2 of b and 4 sums."""
    pack = 4 if kind == "s8" else 2
    deep = 8 * pack
    sums = np.int32 if kind == "s8" else np.float32
    a, b, c = np.zeros((16, deep)), np.zeros((deep, 8)), np.zeros((16, 8))
    wide = (np.float64, np.int64)[kind == "s8"]
    a, b, c = a.astype(wide), b.astype(wide), c.astype(wide)
    for lane, address in enumerate(given):
        words = np.frombuffer(ctypes.string_at(address, 40), np.uint32)
        group, within = lane // 4, lane % 4
        for register in range(4):
            row = group + 8 * (register % 2)
            first = pack * within + 4 * pack * (register // 2)
            a[row, first : first + pack] = _numbers(words[register : register + 1], kind)
        for register in range(2):
            first = pack * within + 4 * pack * register
            b[first : first + pack, group] = _numbers(words[4 + register : 5 + register], kind)
        own = words[6:].view(sums)
        for register in range(4):
            c[group + 8 * (register // 2), 2 * within + register % 2] = own[register]
    d = (a @ b + c).astype(sums)
    return [
        np.array(
            [d[lane // 4 + 8 * (r // 2), 2 * (lane % 4) + r % 2] for r in range(4)], sums
        ).tobytes()
        for lane in range(32)
    ]


def _numbers(words: np.ndarray, kind: str) -> np.ndarray:
    if kind == "s8":
        return words.view(np.int8)
    return _bf16(words.view(np.uint16)) if kind == "bf16" else words.view(np.float16)


def matrices(given: list[int], turned: bool) -> list[bytes]:
    """ldmatrix of four tiles: threads 8*k to 8*k+7 give the addresses of the rows of tile k."""
    tiles = np.zeros((4, 8, 8), np.uint16)
    for lane, address in enumerate(given):
        (row,) = np.frombuffer(ctypes.string_at(address, 8), np.uint64)
        assert row % 16 == 0, "the address of a row is no multiple of 16 bytes"
        tiles[lane // 8, lane % 8] = np.frombuffer(ctypes.string_at(int(row), 16), np.uint16)
    if turned:
        tiles = tiles.transpose(0, 2, 1)
    return [
        np.ascontiguousarray(tiles[:, lane // 4, 2 * (lane % 4) : 2 * (lane % 4) + 2]).tobytes()
        for lane in range(32)
    ]


def _tile(descriptor: int, rows: int) -> np.ndarray:
    """16 columns of a tile in memory that is swizzled by 128 bytes, as 16-bit codes."""
    start = (descriptor - DESCRIPTOR) << 4
    assert start % 1024 in range(0, 128, 32), "a tile begins at a multiple of 1024 bytes"
    at = start + 128 * np.arange(rows)[:, None] + 2 * np.arange(16)
    at ^= (at >> 7 & 7) << 4
    first = int(at.min())
    memory = np.frombuffer(ctypes.string_at(first, int(at.max()) - first + 2), np.uint8)
    return memory[at - first] | memory[at - first + 1].astype(np.uint16) << 8


def group_product(given: list[int], columns: int, kind: str) -> list[bytes]:
    """wgmma of 64 rows: threads give two descriptors and their sums."""
    count = columns // 2
    size = 16 + 4 * count
    raw = [ctypes.string_at(x, size) for x in given]
    descriptors = {x[:16] for x in raw}
    assert len(descriptors) == 1, "threads of a group give different descriptors"
    a, b = (int(x) for x in np.frombuffer(raw[0][:16], np.uint64))
    numbers = _bf16 if kind == "bf16" else lambda x: x.view(np.float16)
    left, right = (numbers(_tile(d, n)).astype(np.float64) for d, n in ((a, 64), (b, columns)))
    d = left @ right.T
    out: list[bytes] = []
    for thread, x in enumerate(raw):
        row = 16 * (thread // 32) + thread % 32 // 4
        r = np.arange(count)
        at = row + 8 * (r // 2 % 2), 8 * (r // 4) + 2 * (thread % 4) + r % 2
        out.append((np.frombuffer(x[16:], np.float32) + d[at]).astype(np.float32).tobytes())
    return out


class Copies:
    """One thread's asynchronous copies. Nothing arrives before it is waited for."""

    def __init__(self) -> None:
        self.groups: list[list[tuple[int, int, int]]] = [[]]

    def ask(self, to: int, of: int, size: int) -> None:
        assert to % size == 0 and of % size == 0, f"a copy of {size} bytes is not aligned"
        self.groups[-1].append((to, of, size))

    def commit(self) -> None:
        self.groups.append([])

    def wait(self, pending: int) -> None:
        while len(self.groups) - 1 > pending:
            for to, of, size in self.groups.pop(0):
                ctypes.memmove(to, of, size)
