"""The C program of the tests for other machines: compiled by ziglang, run by qemu-user with the C
library of that machine. None where one of these is not installed."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from tests.export.harness import HERE, caller, header_folder
from tilewright.ir.target import Target

# What zig calls the system, the emulator, and where the C library of the system is.
SYSTEMS = {
    "aarch64": ("aarch64-linux-gnu", "qemu-aarch64 -cpu max", "/usr/aarch64-linux-gnu"),
    "armv7": ("arm-linux-gnueabihf", "qemu-arm -cpu max", "/usr/arm-linux-gnueabihf"),
    "riscv64": (
        "riscv64-linux-gnu",
        "qemu-riscv64 -cpu rv64,v=true,vlen=128,vext_spec=v1.0",
        "/usr/riscv64-linux-gnu",
    ),
    "x86_64": ("x86_64-linux-gnu", "qemu-x86_64 -cpu max", "/usr/x86_64-linux-gnu"),
}


def runs_here(target: Target) -> bool:
    return target.arch == platform.machine()


@cache
def command(arch: str, cpu: str | None = None) -> tuple[str, ...] | str:
    """How to run the C program on an architecture; or why it cannot be run."""
    if arch == platform.machine() and cpu is None:
        return (str(caller()),)
    system, emulator, root = SYSTEMS[arch]
    words = emulator.split()
    if cpu is not None:
        words[words.index("-cpu") + 1] = cpu
    if importlib.util.find_spec("ziglang") is None:
        return "ziglang is not installed"
    if shutil.which(words[0]) is None:
        return f"{words[0]} is not installed"
    if not Path(root).is_dir():
        return f"{root} is not there: the C library of {arch}"
    return (*words, "-L", root, str(_built(system)))


@cache
def _built(system: str) -> Path:
    out = header_folder() / f"caller-{system}"
    options = ["-target", system, "-O2", "-std=c99", f"-I{header_folder()}"]
    command = [sys.executable, "-m", "ziglang", "cc", *options, str(HERE / "caller.c")]
    environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": str(header_folder() / "zig")}
    done = subprocess.run([*command, "-o", str(out)], capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return out
