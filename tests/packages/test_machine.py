"""Questions to the processor: the instructions for x86, run there or by an emulator."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from tilewright_runtime import machine
from tilewright_runtime.machine import _CPUID, _XGETBV

BASE = 0x400000


def program(code: bytes, before: bytes, after: bytes) -> bytes:
    """An executable of x86-64 that calls `code` and writes 16 bytes from the stack's end."""
    write_and_exit = bytes.fromhex("b801000000bf010000004889e6ba100000000f05b83c00000031ff0f05")
    rest = after + write_and_exit
    text = bytes.fromhex("4883ec40") + before + b"\xe8" + struct.pack("<i", len(rest)) + rest + code
    head = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 2, 62, 1, BASE + 120, 64, 0, 0, 64, 56, 1, 0, 0, 0
    )
    size = 120 + len(text)
    return head + struct.pack("<IIQQQQQQ", 1, 5, 0, BASE, BASE, size, size, 4096) + text


def ran(path: Path, content: bytes) -> bytes:
    emulator = [] if os.uname().machine == "x86_64" else [shutil.which("qemu-x86_64") or ""]
    if emulator == [""]:
        pytest.skip("needs an x86 processor or qemu-user")
    path.write_bytes(content)
    path.chmod(0o755)
    options = ["-cpu", "max"] if emulator else []
    return subprocess.run([*emulator, *options, str(path)], capture_output=True, check=True).stdout


def asked(path: Path, leaf: int, sub: int) -> tuple[int, ...]:
    # mov edi, leaf; mov esi, sub; mov rdx, rsp
    before = b"\xbf" + struct.pack("<I", leaf) + b"\xbe" + struct.pack("<I", sub) + b"\x48\x89\xe2"
    return struct.unpack("<4I", ran(path, program(_CPUID, before, b"")))


def test_questions_to_an_x86_processor(tmp_path: Path) -> None:
    _, b, c, d = asked(tmp_path / "vendor", 0, 0)
    assert struct.pack("<3I", b, d, c) in (b"GenuineIntel", b"AuthenticAMD", b"TCGTCGTCGTCG")
    saves, has_avx = (asked(tmp_path / "features", 1, 0)[2] >> bit & 1 for bit in (27, 28))
    assert saves
    found = ran(tmp_path / "saved", program(_XGETBV, b"", bytes.fromhex("48890424")))
    saved = int.from_bytes(found[:8], "little")
    assert saved & 3 == 3 and bool(saved & 4) >= bool(has_avx)


def test_words_about_features() -> None:
    assert machine.has("")
    for unknown in ("ask:nobody", "hwcap:", "hwcap:64", "cpuid:1:0:ecx", "cpuid:1:0:rip:3", "x"):
        assert not machine.has(unknown), unknown
    if machine.architecture() == "aarch64":
        assert machine.has("hwcap:0 hwcap:1") and not machine.has("hwcap:1 ask:nobody")
    if machine.architecture() == "x86_64":
        assert machine.has("cpuid:1:0:edx:26") and not machine.has("cpuid:1073741824:0:eax:0")


def test_registers_of_tiles_are_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux saves them for a process that requested them only; it may refuse."""
    asked, answers = [], iter((-1, 0))

    def syscall(*given: int) -> int:
        asked.append(given)
        return next(answers)

    monkeypatch.setattr(machine, "architecture", lambda: "x86_64")
    monkeypatch.setattr(machine, "_xcr0", lambda: 0x602E7)
    monkeypatch.setattr(machine, "of_process", lambda *_: syscall)
    assert machine.has("xcr0:231") and not machine.has("xcr0:524288") and not asked
    assert not machine.has("xcr0:393216") and machine.has("xcr0:393216")
    assert asked == [(158, 0x1023, 18)] * 2
