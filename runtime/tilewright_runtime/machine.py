"""This machine: its architecture, and whether its processor has a feature.

Packages say how to find out, in words: `cpuid:LEAF:SUBLEAF:REGISTER:BIT` and `xcr0:MASK` ask an x86
processor and what its system saves, `hwcap:BIT` and `hwcap2:BIT` what Linux tells every process.
Registers of tiles, which Linux saves on request only, are requested when a package asks for them.
"""

from __future__ import annotations

import ctypes
import os
import sys

from tilewright_runtime.native import Code, of_process

_NAMES = {"armv7l": "armv7", "armv8l": "armv7", "AMD64": "x86_64"}
_REGISTERS = ("eax", "ebx", "ecx", "edx")
_HWCAP = {"hwcap": 16, "hwcap2": 26}
_TILES = 18  # the bit of their data in XCR0

# push rbx; mov r8, rdx; mov eax, edi; mov ecx, esi; cpuid; mov [r8], eax; mov [r8+4], ebx;
# mov [r8+8], ecx; mov [r8+12], edx; pop rbx; ret
_CPUID = bytes.fromhex("534989d089f889f10fa24189004189580441894808418950" + "0c5bc3")
# xor ecx, ecx; xgetbv; shl rdx, 32; or rax, rdx; ret
_XGETBV = bytes.fromhex("31c90f01d048c1e2204809d0c3")


def architecture() -> str:
    name = os.uname().machine
    if name == "aarch64" and ctypes.sizeof(ctypes.c_void_p) == 4:
        return "armv7"  # a process of 32 bits
    return _NAMES.get(name, name)


def has(test: str) -> bool:
    """Whether all words hold; those that are not known do not."""
    return all(map(_holds, test.split()))


def _holds(word: str) -> bool:
    kind, *values = word.split(":")
    try:
        if kind in _HWCAP and len(values) == 1:
            return bool(_hwcap(kind) >> int(values[0]) & 1)
        if architecture() != "x86_64" or ctypes.sizeof(ctypes.c_void_p) != 8:
            return False
        if kind == "cpuid" and len(values) == 4 and values[2] in _REGISTERS:
            leaf, sub, bit = int(values[0]), int(values[1]), int(values[3])
            known = leaf <= _cpuid(leaf & 0x80000000, 0)[0]
            return known and bool(_cpuid(leaf, sub)[_REGISTERS.index(values[2])] >> bit & 1)
        if kind == "xcr0" and len(values) == 1:
            mask = int(values[0])
            return _xcr0() & mask == mask and (not mask >> _TILES & 1 or _tiles_permitted())
    except (ValueError, OSError):
        pass
    return False


def _hwcap(kind: str) -> int:
    ask = of_process("getauxval", ctypes.c_ulong, ctypes.c_ulong)
    return 0 if ask is None else ask(_HWCAP[kind])


_asked: dict[tuple[int, ...], tuple[int, ...]] = {}


def _cpuid(leaf: int, sub: int) -> tuple[int, ...]:
    """Registers a, b, c, d."""
    if (leaf, sub) not in _asked:
        out = (ctypes.c_uint32 * 4)()
        ask = Code(_CPUID, None, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)
        ask.call(leaf, sub, out)
        ask.close()
        _asked[leaf, sub] = tuple(out)
    return _asked[leaf, sub]


def _xcr0() -> int:
    """The registers that the system saves."""
    if () not in _asked:
        ask = Code(_XGETBV, ctypes.c_uint64)
        _asked[()] = (ask.call(),)
        ask.close()
    return _asked[()][0]


def _tiles_permitted() -> bool:
    """Requests their registers for this process; without that the first use of one ends it."""
    arch_prctl, request = 158, 0x1023
    ask = of_process("syscall", ctypes.c_long, *[ctypes.c_long] * 3)
    return sys.platform == "linux" and ask is not None and ask(arch_prctl, request, _TILES) == 0
