"""PTX assembled by ptxas, where there is one: on the PATH, or out of a wheel (nvidia-cuda-nvcc)."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tilewright.base.errors import Invalid


@dataclass(frozen=True)
class Assembled:
    """What the assembler says of a kernel; bytes spilled are those stored."""

    registers: int
    spilled: int
    shared: int


@cache
def ptxas() -> str | None:
    """Where the assembler is."""
    found = shutil.which("ptxas")
    if found is not None:
        return found
    for folder in sys.path:
        for path in sorted(Path(folder).glob("nvidia/*/bin/ptxas")) if folder else ():
            return str(path)
    return None


needs_ptxas = pytest.mark.skipif(
    ptxas() is None, reason="ptxas comes with the dev extra, on Linux only"
)


def assemble(ptx: str, cpu: str) -> list[Assembled]:
    """The kernels of a module, in order; nothing where there is no assembler."""
    tool = ptxas()
    if tool is None:
        return []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        command = [tool, "-v", f"-arch={cpu}", "-o", str(source.with_suffix(".cubin")), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise Invalid(f"ptxas refuses the code: {done.stderr.strip()}")
    return [_read(part) for part in done.stderr.split("Compiling entry function")[1:]]


def _read(text: str) -> Assembled:
    def number(pattern: str) -> int:
        found = re.search(pattern, text)
        return int(found.group(1)) if found else 0

    spilled = number(r"(\d+) bytes spill stores")
    return Assembled(number(r"Used (\d+) registers"), spilled, number(r"(\d+) bytes smem"))
