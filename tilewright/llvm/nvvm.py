"""What LLVM can compile for NVIDIA's GPUs: allow-lists.

LLVM ends the process, without an error to catch, on a PTX version that is too low for a capability
and on an instruction which a capability lacks; unknown processors and versions it accepts in
silence. So whatever is not listed here is refused before LLVM sees it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.base.errors import Invalid
from tilewright.ir.target import Target

TRIPLE = "nvptx64-nvidia-cuda"


@dataclass(frozen=True)
class Capability:
    """One generation: LLVM's name of it, the PTX version that its code is written in by default,
    the lowest that it can be, and the groups of instructions that it has."""

    cpu: str
    ptx: int
    least: int
    has: tuple[str, ...]


_ALWAYS = ("f16",)
_AMPERE = (*_ALWAYS, "bf16", "cp.async", "mma.bf16", "mma.tf32", "redux")
_HOPPER = ("clusters", "tma", "wgmma", "bf16.math", "dependents", "red.vectors")
CAPABILITIES: dict[int, Capability] = {
    75: Capability("sm_75", 70, 63, _ALWAYS),
    80: Capability("sm_80", 80, 70, _AMPERE),
    86: Capability("sm_86", 80, 71, _AMPERE),
    89: Capability("sm_89", 83, 78, (*_AMPERE, "fp8")),
    90: Capability("sm_90a", 83, 80, (*_AMPERE, "fp8", *_HOPPER)),
}
# PTX versions that LLVM 22 was found to write correctly.
VERSIONS = (63, 64, 65, 70, 71, 72, 73, 74, 75, 76, 77, 78, 80, 81, 82, 83, 84, 85, 86, 87)

# Intrinsics by the beginning of their names, with what a capability must have for them. The longest
# beginning counts.
INTRINSICS: dict[str, str] = {
    "read.ptx.sreg.": "",
    "barrier.cta.sync.": "",
    "barrier.cta.red.": "",
    "barrier.cluster.": "clusters",
    "bar.warp.sync": "",
    "shfl.sync.": "",
    "vote.": "",
    "membar.": "",
    "fence.": "clusters",
    "ex2.approx": "",
    "lg2.approx": "",
    "rcp.": "",
    "sqrt.": "",
    "rsqrt.approx": "",
    "div.": "",
    "fma.": "",
    "fmax.": "",
    "fmin.": "",
    "f2bf16": "bf16",
    "ff2bf16x2": "bf16",
    "redux.sync.": "redux",
    "elect.sync": "tma",
    "cp.async.": "cp.async",
    "cp.async.bulk.": "tma",
    "mbarrier.": "cp.async",
    "mma.m16n8k16.row.col.bf16": "mma.bf16",
    "mma.m16n8k16.row.col.f32.f32": "mma.bf16",
    "mma.m16n8k32.row.col.s8": "mma.bf16",
    "mma.m16n8k8.row.col.tf32": "mma.tf32",
    "ldmatrix.": "f16",
    "wgmma.": "wgmma",
}

_NVVM = re.compile(r"@llvm\.nvvm\.([\w.]+)")
# Functions that have no code on a GPU: selecting instructions for them ends the process.
_WITHOUT_CODE = re.compile(
    r"@llvm\.(exp|exp2|exp10|log|log2|log10|pow|sin|cos|tan|sinh|cosh|tanh|asin|acos|atan|atan2)"
    r"\.[\w.]+|\b(frem)\b(?= (?:float|double|half|<))"
)
_BFLOAT = re.compile(r"\b(?:fptrunc|fpext|fadd|fsub|fmul|fdiv|atomicrmw)\b[^\n]*\bbfloat\b")


def check_target(target: Target) -> None:
    """A sentence where LLVM would end the process, or compile for another machine in silence."""
    grid = target.grid
    if grid is None:
        raise Invalid(f"target {target.name} is for {target.arch} and has no grid")
    known = CAPABILITIES.get(grid.capability)
    if known is None or target.cpu != known.cpu:
        shown = ", ".join(f"{c} ({k.cpu})" for c, k in CAPABILITIES.items())
        raise Invalid(
            f"target {target.name} is {target.cpu} of capability {grid.capability}, which is not "
            "known",
            hint=f"known are {shown}",
        )
    if grid.ptx not in VERSIONS or grid.ptx < known.least:
        low = next(v for v in VERSIONS if v >= known.least)
        raise Invalid(
            f"PTX {grid.ptx / 10} cannot be written for {known.cpu}",
            hint=f"from {low / 10} to {VERSIONS[-1] / 10}",
        )
    if target.features != (f"+ptx{grid.ptx}",):
        raise Invalid(
            f"the features of {target.name} are {target.feature_string() or 'none'}",
            hint=f"a GPU's are its PTX version alone: +ptx{grid.ptx}",
        )
    lacking = [name for name in grid.has if name not in known.has]
    if lacking:
        raise Invalid(f"{known.cpu} does not have {', '.join(lacking)}")


def faults(text: str, target: Target) -> Iterator[tuple[str, int]]:
    """What in a module would end the process, and where."""
    grid = target.grid
    assert grid is not None
    for found in _NVVM.finditer(text):
        name = found.group(1)
        own = [x for x in INTRINSICS if name.startswith(x)]
        if not own:
            yield f"llvm.nvvm.{name} is not among the known instructions", found.start()
            continue
        need = INTRINSICS[max(own, key=len)]
        if need and need not in grid.has:
            yield f"llvm.nvvm.{name} needs {need}, which {target.cpu} does not have", found.start()
    for found in _WITHOUT_CODE.finditer(text):
        yield f"{found.group(0)} has no code on a GPU", found.start()
    if "bf16" not in grid.has and (found := _BFLOAT.search(text)):
        yield f"bfloat needs bf16, which {target.cpu} does not have", found.start()
