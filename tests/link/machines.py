"""Machines to link for, and how to run what was linked: in this process, or under qemu.

Under qemu the C library is the program, and a small library of ours is loaded before it: it opens
the shared object, calls functions and prints what they give. It was linked by the linker under
test, so no compiler or linker for the other machine is needed.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tilewright.ir.target import Target
from tilewright.link.elf import shared_object
from tilewright.llvm.objects import compile_object

# Functions of the C library that tests use.
LIBC = {
    "libc.so.6": """malloc calloc free memcpy memset strlen abs qsort dlopen dlsym dlerror puts
    fflush _exit printf pthread_create pthread_join stdout getenv""".split()
}


@dataclass(frozen=True)
class Machine:
    target: Target
    hosts: tuple[str, ...]  # as Python calls machines of the kind
    emulator: str
    root: Path
    loader: str

    @property
    def native(self) -> bool:
        return platform.machine() in self.hosts and platform.system() == "Linux"

    @property
    def word(self) -> str:
        """An integer as wide as an address, in LLVM's words."""
        return f"i{self.target.pointer_bits}"

    def compiled(self, text: str) -> bytes:
        return compile_object(text.replace("WORD", self.word), self.target)


def _machine(
    name: str, triple: str, hosts: str, loader: str, *features: str, bits: int = 64, cpu: str = ""
) -> Machine:
    target = Target(name, triple, cpu or "generic", features, pointer_bits=bits)
    folder = triple.replace("-unknown", "").replace("armv7", "arm")
    emulator = f"qemu-{'arm' if bits == 32 else target.arch}"
    return Machine(target, tuple(hosts.split()), emulator, Path("/usr") / folder, loader)


RISCV = ("+m", "+a", "+f", "+d", "+c")
MACHINES: Mapping[str, Machine] = {
    m.target.name: m
    for m in (
        _machine(
            "x86-64",
            "x86_64-unknown-linux-gnu",
            "x86_64 AMD64",
            "ld-linux-x86-64.so.2",
            cpu="x86-64",
        ),
        _machine("aarch64", "aarch64-unknown-linux-gnu", "aarch64 arm64", "ld-linux-aarch64.so.1"),
        _machine(
            "riscv64",
            "riscv64-unknown-linux-gnu",
            "riscv64",
            "ld-linux-riscv64-lp64d.so.1",
            *RISCV,
            cpu="generic-rv64",
        ),
        _machine(
            "armv7",
            "armv7-unknown-linux-gnueabihf",
            "armv7l",
            "ld-linux-armhf.so.3",
            "+neon",
            "+vfp3",
            bits=32,
        ),
    )
}
RELAXED = _machine(
    "riscv64-relax",
    "riscv64-unknown-linux-gnu",
    "",
    "ld-linux-riscv64-lp64d.so.1",
    *RISCV,
    "+relax",
    cpu="generic-rv64",
)
NATIVE = next((m for m in MACHINES.values() if m.native), None)


def native() -> Machine:
    if NATIVE is None:
        pytest.skip("shared objects of this machine are not ELF, or it is another one")
    return NATIVE


def called(
    machine: Machine, path: Path, calls: Sequence[tuple[str, int]], repeat: int = 1
) -> list[int]:
    """What functions of the shared object (32 bits in and out) give for their arguments, one after
    another in one process; skips the test where the machine is not there. `repeat`: so many loads
    and unloads, in this process only."""
    if machine.native:
        for _ in range(repeat - 1):
            closed(ctypes.CDLL(os.fspath(path)))
        library = ctypes.CDLL(os.fspath(path), mode=os.RTLD_LOCAL | os.RTLD_NOW)
        try:
            found = []
            for name, argument in calls:
                function = library[name]
                function.argtypes, function.restype = [ctypes.c_int32], ctypes.c_int32
                found.append(function(argument))
            return found
        finally:
            closed(library)
    return _emulated(machine, path, calls)


def closed(library: ctypes.CDLL) -> None:
    """Unloads it."""
    close = ctypes.CDLL(None).dlclose
    close.argtypes = [ctypes.c_void_p]
    close(library._handle)


def _emulated(machine: Machine, path: Path, calls: Sequence[tuple[str, int]]) -> list[int]:
    emulator = shutil.which(machine.emulator)
    if emulator is None:
        pytest.skip(f"{machine.emulator} is not installed (qemu-user)")
    folder = machine.root / "lib"
    if not (folder / "libc.so.6").exists():
        pytest.skip(f"there is no C library for {machine.target.name} in {folder}")
    first = path.with_suffix(".caller.so")
    first.write_bytes(
        shared_object(
            [machine.compiled(_caller(path, calls))], ["call_all"], name="caller.so", needs=LIBC
        )
    )
    command = [emulator, "-L", os.fspath(machine.root), os.fspath(folder / machine.loader)]
    command += ["--preload", os.fspath(first), os.fspath(folder / "libc.so.6")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 7, f"{run.returncode}: {run.stdout}{run.stderr}"
    return [int(line) for line in run.stdout.split()]


def _string(name: str, text: str) -> str:
    data = text.encode() + b"\0"
    shown = "".join(f"\\{b:02X}" for b in data)
    return f'@{name} = internal constant [{len(data)} x i8] c"{shown}"\n'


def _caller(path: Path, calls: Sequence[tuple[str, int]]) -> str:
    """A library that makes these calls when it is loaded, and ends the process with 7."""
    text = _string("path", os.fspath(path)) + _string("form", "%d\n")
    body = "  %h = call ptr @dlopen(ptr @path, i32 2)\n"
    body += "  %bad = icmp eq ptr %h, null\n  br i1 %bad, label %failed, label %good\ngood:\n"
    for k, (name, argument) in enumerate(calls):
        text += _string(f"name{k}", name)
        body += f"""
  %f{k} = call ptr @dlsym(ptr %h, ptr @name{k})
  %r{k} = call signext i32 %f{k}(i32 signext {argument})
  %p{k} = call signext i32 (ptr, ...) @printf(ptr @form, i32 signext %r{k})
"""
    return f"""
{text}
@llvm.global_ctors = appending global [1 x {{ i32, ptr, ptr }}]
  [{{ i32, ptr, ptr }} {{ i32 65535, ptr @call_all, ptr null }}]
declare ptr @dlopen(ptr, i32)
declare ptr @dlsym(ptr, ptr)
declare ptr @dlerror()
declare i32 @puts(ptr)
declare i32 @printf(ptr, ...)
declare i32 @fflush(ptr)
declare void @_exit(i32)
define void @call_all() {{
{body}
  %done = call i32 @fflush(ptr null)
  call void @_exit(i32 7)
  ret void
failed:
  %e = call ptr @dlerror()
  %shown = call i32 @puts(ptr %e)
  %also = call i32 @fflush(ptr null)
  call void @_exit(i32 8)
  ret void
}}
"""
