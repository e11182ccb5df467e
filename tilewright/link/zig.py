"""Libraries for macOS and Windows, linked by ziglang: it has linkers for both, and needs no other
tool. Nothing of a C library gets into them.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tilewright.base.errors import MissingExtra, TilewrightError
from tilewright.link.macho import with_exports

# What LLVM has code call that takes more than a page of the stack: every page is touched, from the
# top, so that the system makes it. On x86-64 the size is in rax, and all registers are kept; on
# AArch64 a sixteenth of it is in x15, and x16 and x17 are free.
_PROBES = {
    "x86_64": """
.globl ___chkstk_ms
___chkstk_ms:
  pushq %rcx
  pushq %rax
  leaq 24(%rsp), %rcx
1:
  cmpq $4096, %rax
  jb 2f
  subq $4096, %rcx
  testb $0, (%rcx)
  subq $4096, %rax
  jmp 1b
2:
  subq %rax, %rcx
  testb $0, (%rcx)
  popq %rax
  popq %rcx
  retq
""",
    "aarch64": """
.globl __chkstk
__chkstk:
  lsl x16, x15, #4
  mov x17, sp
1:
  cmp x16, #4096
  b.lo 2f
  sub x17, x17, #4096
  ldr xzr, [x17]
  sub x16, x16, #4096
  b 1b
2:
  sub x17, x17, x16
  ldr xzr, [x17]
  ret
""",
}
# The formats of libraries, by the machine.
_FORMATS = {"x86_64": "i386:x86-64", "aarch64": "arm64"}


def dylib(images: Sequence[bytes], exports: Sequence[str], name: str, machine: str) -> bytes:
    """A library of macOS, for a machine as zig calls it, such as aarch64-macos.11.0. What it does
    not define it takes from the process that loads it."""
    shown = [with_exports(image, exports) for image in images]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        options = ["-target", machine, "-shared", "-nostdlib", "-Wl,-undefined,dynamic_lookup"]
        options += ["-Wl,-dead_strip", "-Wl,-s", f"-Wl,-install_name,{name}", "-o", "made"]
        _zig("cc", *options, *_written(folder, shown), folder=folder)
        return (folder / "made").read_bytes()


def dll(
    images: Sequence[bytes],
    exports: Sequence[str],
    name: str,
    arch: str,
    takes: Mapping[str, Sequence[str]],
) -> bytes:
    """A library of Windows. `takes`: functions of other libraries, by the libraries' names."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        files = _written(folder, images)
        for k, (library, names) in enumerate(takes.items()):
            (folder / f"{k}.def").write_text("\n".join([f"LIBRARY {library}", "EXPORTS", *names]))
            words = ("-d", f"{k}.def", "-l", f"{k}.lib", "-m", _FORMATS[arch])
            _zig("dlltool", *words, folder=folder)
            files.append(f"{k}.lib")
        (folder / "probe.s").write_text(_PROBES[arch])
        _zig(
            "cc", "-target", f"{arch}-windows-gnu", "-c", "probe.s", "-o", "probe.o", folder=folder
        )
        options = ["/dll", "/noentry", "/nodefaultlib", "/lldmingw", "/Brepro", "/opt:ref"]
        options += [f"/export:{x}" for x in exports]
        _zig("lld-link", *options, f"/out:{name}", *files, "probe.o", folder=folder)
        return (folder / name).read_bytes()


def _written(folder: Path, images: Sequence[bytes]) -> list[str]:
    """Objects as files: their names."""
    for k, image in enumerate(images):
        (folder / f"{k}.o").write_bytes(image)
    return [f"{k}.o" for k in range(len(images))]


def require_zig(purpose: str) -> None:
    """An error that says what to install, where ziglang is not."""
    if importlib.util.find_spec("ziglang") is None:
        raise MissingExtra("zig", purpose)


def _zig(*words: str, folder: Path) -> None:
    command = [sys.executable, "-m", "ziglang", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise TilewrightError(f"ziglang {words[0]} failed: {done.stderr.strip()[-2000:]}")
