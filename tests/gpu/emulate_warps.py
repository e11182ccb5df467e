"""What emulated code asks of whole warps: mma.sync, ldmatrix, wgmma and asynchronous copies.

Written from PTX's description of the instructions, not from the fragments that are declared for
them. Callbacks return no structures, so such calls go through memory.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.gpu.emulate_additions import NAMES, with_additions

_DECLARED = re.compile(
    r"declare (\{ [\w ,]+ \}) @nvvm_((?:mma|ldmatrix|wgmma)\w+)\(([^)]*)\)[^\n]*", re.MULTILINE
)


_ASSEMBLER = re.compile(
    r'call (\{ [\w ,]+ \}) asm sideeffect "([^"]*)", "[^"]*"\(([^)]*)\) convergent'
)
_WITHOUT_RESULT = re.compile(
    r'call void asm sideeffect "([^"]*)", "[^"]*"\(([^\n]+)\)( convergent)?$', re.MULTILINE
)


PATIENCE = 90.0  # seconds in which a thread that waits has to get on
# Of warps of 4 by 8 threads: the first one. It is asked for before threads part.
_ELECTED = """define internal { i32, i1 } @nvvm_elect_sync(i32 %mask) {
  %x = call i32 @nvvm_read_ptx_sreg_tid_x()
  %y = call i32 @nvvm_read_ptx_sreg_tid_y()
  %xy = or i32 %x, %y
  %first = icmp eq i32 %xy, 0
  %r = insertvalue { i32, i1 } { i32 0, i1 undef }, i1 %first, 1
  ret { i32, i1 } %r
}"""


def _called(found: re.Match[str], defines: dict[str, str]) -> str:
    """Assembler of a group of warps as a call."""
    result, text, given = found.groups()
    types = [x.split()[0] for x in given.split(", ")]
    if not text or "wait_group" in text:
        name = f"tied_{len(types)}_{types[0]}"
        taken = ", ".join(f"{t} %x{k}" for k, t in enumerate(types))
        lines = [f"define internal {result} @{name}({taken}) {{"]
        for k, t in enumerate(types):
            old = f"%r{k - 1}" if k else "poison"
            lines.append(f"  %r{k} = insertvalue {result} {old}, {t} %x{k}, {k}")
        defines[name] = "\n".join([*lines, f"  ret {result} %r{len(types) - 1}", "}"])
        return f"call {result} @{name}({given})"
    # The order of operands: numbers of 16 bits have it, of the first one where it is no register.
    ends = r" p(?:, 1, 1)?(?:(?:, ([01]))?, ([01]))?;"
    product = re.search(rf"(m64n\d+k\d+)\.\w32\.(\w+)\..*{ends}", text)
    assert product is not None, f"no product of a group of warps: {text}"
    shape, kind, first, second = product.groups()
    own = "r" if second is not None else "0"
    name = f"nvvm_wgmma_{shape}_{kind}_{first or own}{second or '0'}"
    short = re.search(r"/\* (\d+) steps \*/", text)
    name += f"_{short[1]}" if short is not None else ""
    defines[name] = f"declare {result} @{name}({', '.join(types)})"
    return f"call {result} @{name}({given})"


def _asked(found: re.Match[str], defines: dict[str, str]) -> str:
    """Assembler that returns nothing, as a call named by its instruction."""
    text, given, _ = found.groups()
    bulk = re.search(r"cp\.async\.bulk\.tensor\.(\d)d\.", text)
    plain = re.search(r"mbarrier\.(init|arrive|expect_tx|try_wait)\.", text)
    known = NAMES.get(text.split()[0])
    if bulk is not None:
        name = f"nvvm_bulk_tensor_{bulk[1]}d"
    elif known is not None:
        name = known
    else:
        assert plain is not None, f"unknown assembler: {text}"
        name = f"nvvm_mbarrier_{plain[1]}"
    name += "_to_all" if ".multicast::cluster" in text else "_at" if "mapa." in text else ""
    types = ", ".join(x.split()[0] for x in _arguments(given))
    defines[name] = f"declare void @{name}({types})"
    return f"call void @{name}({given})"


def _arguments(given: str) -> list[str]:
    """Those of a call; commas in constant expressions are none of them."""
    out, depth, last = [], 0, 0
    for k, c in enumerate(given):
        depth += {"(": 1, ")": -1}.get(c, 0)
        if c == "," and depth == 0:
            out.append(given[last:k].strip())
            last = k + 1
    return [*out, given[last:].strip()]


def without_assembler(text: str) -> str:
    """Instructions that are written as assembler, as calls; fences are none."""
    defines: dict[str, str] = {}
    text = with_additions(text)
    text = re.sub(r'^ *call void asm sideeffect "[^"]*", "[^"]*"\(\)[^\n]*\n', "", text, flags=re.M)
    text = _ASSEMBLER.sub(lambda m: _called(m, defines), text)
    text = _WITHOUT_RESULT.sub(lambda m: _asked(m, defines), text)
    # A descriptor of one address: what tells how it lies is not looked at, but for its kind.
    text = re.sub(r"(and i64 %\w+\.at), 262143", rf"\1, {(1 << 48) - 16}", text)
    text = re.sub(r"(%\w+\.d = add i64 %\w+\.16), -?\d+", r"\1, 0", text)
    return "\n".join([*defines.values(), text])


def with_structures(text: str) -> str:
    """Instructions that return several registers as functions that hand over addresses."""
    text = without_assembler(text)
    text = re.sub(r"declare \{ i32, i1 \} @nvvm_elect_sync[^\n]*", _ELECTED, text)
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


def _words(given: list[int], size: int) -> np.ndarray:
    """What threads give, a row of bytes for each."""
    raw = b"".join([ctypes.string_at(x, size) for x in given])
    return np.frombuffer(raw, np.uint8).reshape(len(given), size)


def product(given: list[int], kind: str) -> list[bytes]:
    """mma.sync: 16 rows by 8 columns; each thread gives 4 registers of a, 2 of b and 4 sums."""
    pack = {"s8": 4, "tf32": 1}.get(kind, 2)
    deep = 8 * pack
    sums, wide = (np.int32, np.int64) if kind == "s8" else (np.float32, np.float64)
    words = _words(given, 40)
    lane = np.arange(32)[:, None, None]
    group, within = lane // 4, lane % 4
    register, part = np.arange(4)[:, None], np.arange(pack)
    a, b = np.zeros((16, deep), wide), np.zeros((deep, 8), wide)
    numbers = _numbers(words[:, :24], kind).reshape(32, 6, pack)
    along = pack * within + part + 4 * pack * (register // 2)
    a[group + 8 * (register % 2), along] = numbers[:, :4]
    b[pack * within + part + 4 * pack * register[:2], group] = numbers[:, 4:]
    at = lane[:, 0] // 4 + 8 * (register.T // 2), 2 * (lane[:, 0] % 4) + register.T % 2
    own = np.ascontiguousarray(words[:, 24:]).view(sums).astype(wide)
    d = ((a @ b)[at] + own).astype(sums)
    return [x.tobytes() for x in d]


def _numbers(words: np.ndarray, kind: str) -> np.ndarray:
    words = np.ascontiguousarray(words)
    if kind == "s8":
        return words.view(np.int8)
    if kind == "tf32":
        return (words.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
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


def _tile(descriptor: int, rows: int, across: bool, item: int, width: int = 128) -> np.ndarray:
    """32 bytes of the rows of a tile in memory, as codes: rows of `width` bytes, swizzled over
    them; across, 16 rows of blocks of 64, as many rows as others have elements."""
    start = descriptor << 4
    row, column = np.arange(rows)[:, None], np.arange(32 // item)
    if across:
        assert start % 1024 == 0, "a tile begins at a multiple of 1024 bytes"
        at = start + row // 64 * 64 * width + 128 * column + 2 * (row % 64)
    else:
        whole = 8 * width
        assert start % whole in range(0, width, 32), f"a tile begins at a multiple of {whole}"
        at = start + width * row + item * column
    at ^= (at >> 7 & (7 if across else width // 16 - 1)) << 4
    first = int(at.min())
    memory = np.frombuffer(ctypes.string_at(first, int(at.max()) - first + item), np.uint8)
    codes = memory[at - first].astype(np.uint16)
    return codes if item == 1 else codes | memory[at - first + 1].astype(np.uint16) << 8


def _floats(bits: np.ndarray, exponent: int, fraction: int) -> np.ndarray:
    """Floats of 8 bits, finite ones."""
    sign = np.where(bits >> 7, -1.0, 1.0)
    power = (bits >> fraction & (1 << exponent) - 1).astype(np.int64)
    part = (bits & (1 << fraction) - 1) / 2.0**fraction
    bias = (1 << exponent - 1) - 1
    return sign * np.where(power == 0, part * 2.0 ** (1 - bias), (1 + part) * 2.0 ** (power - bias))


NUMBERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "bf16": _bf16,
    "f16": lambda x: x.view(np.float16),
    "e4m3": lambda x: _floats(x, 4, 3),
    "e5m2": lambda x: _floats(x, 5, 2),
    "s8": lambda x: x.astype(np.uint8).view(np.int8),
}


def _registers(raw: np.ndarray) -> np.ndarray:
    """64 rows of 16 elements out of the first four registers of 128 threads, as codes."""
    out = np.zeros((64, 16), np.uint16)
    thread, register = np.arange(128)[:, None, None], np.arange(4)[:, None]
    row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (register % 2)
    column = 2 * (thread % 4) + 8 * (register // 2) + np.arange(2)
    out[row, column] = np.ascontiguousarray(raw[:, :16]).view(np.uint16).reshape(128, 4, 2)
    return out


def group_product(
    given: list[int], columns: int, kind: str, order: str, steps: int = 64
) -> list[bytes]:
    """wgmma of 64 rows: threads give two descriptors and their sums, or registers of the first
    operand (order "r.") and a descriptor. The order of an operand is 1 where its rows run across
    the sum."""
    count = columns // 2
    own = order[0] == "r"
    head = 24 if own else 16
    raw = _words(given, head + 4 * count)
    descriptors = np.ascontiguousarray(raw[:, 16 if own else 0 : head]).view(np.uint64)
    assert (descriptors == descriptors[0]).all(), "threads of a group give different descriptors"
    *first, b = (int(x) for x in descriptors[0])
    item = 2 if kind in ("bf16", "f16") else 1
    a = _registers(raw) if own else _tile(first[0], 64, order[0] == "1", item, 2 * steps)
    tiles = a, _tile(b, columns, order[1] == "1", item, 2 * steps)
    left, right = (NUMBERS[kind](x).astype(np.float64) for x in tiles)
    d = left @ right.T
    sums = np.int32 if kind == "s8" else np.float32
    thread, r = np.arange(128)[:, None], np.arange(count)
    row = 16 * (thread // 32) + thread % 32 // 4
    at = row + 8 * (r // 2 % 2), 8 * (r // 4) + 2 * (thread % 4) + r % 2
    mine = np.ascontiguousarray(raw[:, head:]).view(sums)
    return [x.tobytes() for x in (mine + d[at]).astype(sums)]


class Copies:
    """One thread's asynchronous copies. Nothing arrives before it is waited for."""

    def __init__(self) -> None:
        self.groups: list[list[tuple[int, int, int, int]]] = [[]]

    def ask(self, to: int, of: int, size: int, given: int) -> None:
        """The rest of what is not given are zeros; where nothing is, the address is any."""
        assert to % size == 0 and (of % size == 0 or not given), f"{size} bytes are not aligned"
        ctypes.memset(to, 0xFF, size)
        self.groups[-1].append((to, of, size, given))

    def commit(self) -> None:
        self.groups.append([])

    def wait(self, pending: int) -> None:
        while len(self.groups) - 1 > pending:
            for to, of, size, given in self.groups.pop(0):
                ctypes.memset(to, 0, size)
                ctypes.memmove(to, of, given)


def described(
    item: int,
    address: int,
    shape: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    swizzle: int,
) -> np.ndarray:
    """A tensor map, in words of the emulator's own."""
    return np.array([address, item, len(shape), *shape, *strides, item, *box, swizzle], np.int64)


@dataclass
class _Barrier:
    """A memory barrier: its phase ends when all arrivals have come and all bytes have."""

    count: int
    left: int  # arrivals of this phase
    block: int  # of a cluster, in whose memory it is
    phase: int = 0
    bytes_left: int = 0
    copies: list[tuple[Any, ...]] = field(default_factory=list)
    late: list[int] = field(default_factory=list)  # threads of other blocks, on their way here


class Arrivals:
    """Memory barriers of the blocks of a cluster and the copies they wait for. Nothing arrives
    before somebody waits, and then only what was asked for in the phase; until then there is
    garbage where it goes. Threads of other blocks arrive as late: when somebody waits for them, or
    when they release what they did to the cluster. Nothing may arrive at a block that has ended."""

    def __init__(self) -> None:
        self.barriers: dict[int, _Barrier] = {}
        self.first: dict[int, int] = {}  # by block of a cluster, the address of its first one
        self.ended: set[int] = set()  # blocks
        self.changed = threading.Condition()

    def start(self) -> None:
        """Another cluster."""
        self.barriers.clear()
        self.first.clear()
        self.ended.clear()

    def begin(self, at: int, block: int, count: int) -> None:
        with self.changed:
            self.barriers[at] = _Barrier(count, count, block)
            self.first[block] = min(at, self.first.get(block, at))

    def end(self, block: int) -> None:
        """All its threads have ended, and its memory is another one's."""
        with self.changed:
            self.ended.add(block)
            own = [b for b in self.barriers.values() if b.block == block]
            what = "a block has ended, and {} on their way to its memory"
            assert not any(b.late for b in own), what.format("arrivals of others are")
            assert not any(b.copies for b in own), what.format("copies are")

    def arrive(self, at: int) -> None:
        with self.changed:
            b = self.barriers[at]
            assert b.left, "a phase has too many arrivals"
            b.left -= 1
            self._ended(b)

    def arrive_at(self, block: int, at: int, other: int, thread: int) -> None:
        """At the same memory barrier of another block of the cluster."""
        there = at + self.first[other] - self.first[block]
        if other == block:
            self.arrive(there)
            return
        with self.changed:
            assert other not in self.ended, "a thread arrives at a block that has ended"
            self.barriers[there].late.append(thread)
            self.changed.notify_all()

    def release(self, thread: int) -> None:
        """What a thread has done, other blocks see that it meets from here on."""
        with self.changed:
            for b in self.barriers.values():
                while thread in b.late:
                    b.late.remove(thread)
                    b.left -= 1
                    self._ended(b)

    def expect(self, at: int, count: int) -> None:
        with self.changed:
            self.barriers[at].bytes_left += count

    def copy_to_all(self, block: int, to: int, described_at: int, *rest: int) -> None:
        """The same to several blocks of a cluster, at the same place of their shared memory."""
        *rest_, blocks = rest
        for other, first in self.first.items():
            if blocks >> other & 1:
                far = first - self.first[block]
                self.copy(to + far, described_at, *rest_[:-1], rest_[-1] + far)

    def copy(self, to: int, described_at: int, *rest: int) -> None:
        *places, at = rest
        head = np.frombuffer(ctypes.string_at(described_at, 24), np.int64)
        count = 4 + 3 * int(head[2])
        numbers = np.frombuffer(ctypes.string_at(described_at, 8 * count), np.int64)
        rank = int(head[2])
        with self.changed:
            size = int(head[1]) * int(np.prod(numbers[3 + 2 * rank : 3 + 3 * rank]))
            ctypes.memset(to, 0xFF, size)
            b = self.barriers[at]
            assert b.block not in self.ended, "a copy to the memory of a block that has ended"
            b.copies.append((to, numbers.copy(), tuple(reversed(places))))
            if not b.left:
                self.changed.notify_all()

    def wait(self, at: int, parity: int) -> None:
        with self.changed:
            b = self.barriers[at]

            def over() -> bool:
                while b.late and b.left and b.phase % 2 == parity:
                    b.late.pop(0)
                    b.left -= 1
                    self._ended(b)
                if not b.left and b.phase % 2 == parity:
                    for x in b.copies:
                        b.bytes_left -= _copied(*x)
                    b.copies.clear()
                    self._ended(b)
                return b.phase % 2 != parity

            ended = self.changed.wait_for(over, PATIENCE)
            assert ended, "nobody ends the phase of a memory barrier"

    def _ended(self, b: _Barrier) -> None:
        if b.left:
            return  # nobody that waits can go on
        if not b.bytes_left and not b.copies:
            b.phase, b.left = b.phase + 1, b.count
        self.changed.notify_all()


def _copied(to: int, numbers: np.ndarray, first: tuple[int, ...]) -> int:
    """A box to shared memory, zeros where it is outside its tensor; how many bytes."""
    address, item, rank = (int(x) for x in numbers[:3])
    shape, strides, box = (
        [int(x) for x in numbers[3 + k * rank : 3 + (k + 1) * rank]] for k in range(3)
    )
    over = int(numbers[-1])
    assert to % 128 == 0 and address % 16 == 0, "the copy engine takes aligned memory"
    assert all(n % 16 == 0 for n in strides[:-1]), "rows are no multiples of 16 bytes"
    size = sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + item
    memory = (ctypes.c_ubyte * size).from_address(address)
    whole = np.ndarray((*shape, item), np.uint8, memoryview(memory), 0, (*strides, 1))
    out = np.zeros((*box, item), np.uint8)
    low = [max(0, x) for x in first]
    high = [min(int(n), x + int(b)) for n, x, b in zip(shape, first, box, strict=True)]
    inside = tuple(slice(a, b) for a, b in zip(low, high, strict=True))
    where = tuple(slice(a - x, b - x) for a, b, x in zip(low, high, first, strict=True))
    if all(b > a for a, b in zip(low, high, strict=True)):
        out[where] = whole[inside]
    at = to + np.arange(out.size)
    if over:
        assert int(box[-1]) * item == over and to % (8 * over) == 0
        at ^= (at >> 7 & over // 16 - 1) << 4
    flat = (ctypes.c_ubyte * out.size).from_address(to)
    np.frombuffer(memoryview(flat), np.uint8)[at - to] = out.reshape(-1)
    return out.size
