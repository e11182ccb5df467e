"""GPUs as targets: their numbers, and a sentence wherever LLVM would end the process."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.gpu.assembler import assemble
from tilewright import targets
from tilewright.base.errors import Invalid, Unsupported
from tilewright.ir.target import Target
from tilewright.llvm.objects import assembly, compile_object
from tilewright.targets import nvptx

NAMES = [p.name for p in nvptx.PRESETS]

ADD = """
define ptx_kernel void @add(ptr addrspace(1) noalias readonly align 16 %x,
                            ptr addrspace(1) noalias align 16 %y) {
  %v = load <4 x float>, ptr addrspace(1) %x, align 16
  %w = fadd <4 x float> %v, %v
  store <4 x float> %w, ptr addrspace(1) %y, align 16
  ret void
}
"""


def gpu(name: str) -> Target:
    return targets.get(name)


@pytest.mark.parametrize("name", NAMES)
def test_code_for_every_capability(name: str) -> None:
    target = gpu(name)
    ptx = assembly(ADD, target)
    assert f".target {target.cpu}" in ptx
    assert "ld.global.nc.v4" in ptx and "st.global.v4" in ptx
    assemble(ptx, target.cpu)


def body(line: str, declare: str = "") -> str:
    head = f"{declare}\ndefine ptx_kernel void @k(ptr addrspace(1) %p, float %x) {{"
    return f"{head}\n{line}\n  ret void\n}}\n"


COMMIT = body(
    "  call void @llvm.nvvm.cp.async.commit.group()",
    "declare void @llvm.nvvm.cp.async.commit.group()",
)
ROUND = body("  %r = fptrunc float %x to bfloat\n  store bfloat %r, ptr addrspace(1) %p")
EXP = body("  %r = call float @llvm.exp.f32(float %x)", "declare float @llvm.exp.f32(float)")
REM = body("  %r = frem float %x, 3.0")
OTHER = body("  call void @llvm.nvvm.texsurf.handle()", "declare void @llvm.nvvm.texsurf.handle()")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("cuda:75", COMMIT, "cp.async.commit.group needs cp.async, which sm_75 does not have"),
        ("cuda:75", ROUND, "bfloat needs bf16"),
        ("cuda:90", EXP, "llvm.exp.f32 has no code on a GPU"),
        ("cuda:90", REM, "frem has no code"),
        ("cuda:90", OTHER, "not among the known instructions"),
    ],
)
def test_what_would_end_the_process_is_refused(name: str, text: str, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        assembly(text, gpu(name))


def changed(name: str, **grid: Any) -> Target:
    target = gpu(name)
    assert target.grid is not None
    return dataclasses.replace(target, grid=dataclasses.replace(target.grid, **grid))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (changed("cuda:90", ptx=70), "PTX 7.0 cannot be written for sm_90a"),
        (changed("cuda:90", ptx=999), "cannot be written"),
        (changed("cuda:90", capability=99), "which is not known"),
        (changed("cuda:75", has=("bf16",)), "sm_75 does not have bf16"),
        (dataclasses.replace(gpu("cuda:90"), cpu="sm_99"), "which is not known"),
        (dataclasses.replace(gpu("cuda:90"), features=("+ptx60",)), "its PTX version alone"),
        (dataclasses.replace(gpu("cuda:90"), grid=None), "has no grid"),
    ],
)
def test_unknown_pairs_are_refused(target: Target, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        assembly(ADD, target)


def test_there_are_no_objects() -> None:
    with pytest.raises(Invalid, match="no objects for cuda:90"):
        compile_object(ADD, gpu("cuda:90"))


def test_by_capability() -> None:
    assert nvptx.for_capability(90).name == "cuda:90"
    assert nvptx.for_capability(87).name == "cuda:86"
    for unknown in (70, 91, 100):
        with pytest.raises(Unsupported, match="no target for GPUs of capability"):
            nvptx.for_capability(unknown)
