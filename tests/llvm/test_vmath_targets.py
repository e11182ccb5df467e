"""Vector math compiles for every kind of target, and calls nothing from a C library."""

from dataclasses import dataclass

import llvmlite.binding as llvm
import pytest

from tilewright.llvm import vmath
from tilewright.runtime.objects import read_symbols

llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()


@dataclass(frozen=True)
class Machine:
    triple: str
    cpu: str
    features: str
    fma: bool
    vector_bytes: int
    magic: bytes  # with which an object file begins


ELF = b"\x7fELF"
MACHINES = {
    "x86-64": Machine("x86_64-unknown-linux-gnu", "x86-64", "", False, 16, ELF),
    "avx2": Machine("x86_64-unknown-linux-gnu", "x86-64", "+avx2,+fma", True, 32, ELF),
    "avx512": Machine("x86_64-unknown-linux-gnu", "skylake-avx512", "", True, 64, ELF),
    "aarch64": Machine("aarch64-unknown-linux-gnu", "generic", "+neon", True, 16, ELF),
    "wasm32": Machine("wasm32-unknown-unknown", "generic", "+simd128", False, 16, b"\0asm"),
}
LLVM = {"f32": "float", "f64": "double"}
LINKERS_OWN = {"__stack_pointer"}  # of WebAssembly
OTHER = """
declare double @other(double)
define double @use.other(double %x) {
  %r = call double @other(double %x)
  ret double %r
}
"""


def module_text(machine: Machine) -> str:
    """Every function at the machine's vector length and as a scalar, each called once."""
    parts: dict[str, str] = {}
    declared: set[str] = set()
    callers: list[str] = []
    for name in sorted(vmath.names()):
        for elem, size in (("f32", 4), ("f64", 8)):
            for lanes in (machine.vector_bytes // size, 1):
                parts |= vmath.functions(name, elem, lanes, machine.fma)
                declared |= vmath.declarations(name, elem, lanes, machine.fma)
                kind = LLVM[elem] if lanes == 1 else f"<{lanes} x {LLVM[elem]}>"
                called = vmath.symbol(name, elem, lanes)
                loads = [
                    f"  %{p} = load {kind}, ptr %at.{p}, align {size}\n"
                    for p in "ab"[: vmath.arity(name)]
                ]
                passed = ", ".join(f"{kind} %{p}" for p in "ab"[: vmath.arity(name)])
                callers.append(
                    f'define void @"use.{called}"(ptr %at.a, ptr %at.b) {{\n{"".join(loads)}'
                    f"  %r = call {kind} @{called}({passed})\n"
                    f"  store {kind} %r, ptr %at.a, align {size}\n  ret void\n}}"
                )
    return "\n".join([*sorted(declared), *parts.values(), *callers])


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.slow if x == "avx2" else ()) for x in MACHINES]
)
def test_compiles_without_calls_to_a_library(name: str) -> None:
    machine = MACHINES[name]
    module = llvm.parse_assembly(module_text(machine) + OTHER)
    module.verify()
    module.triple = machine.triple
    target = llvm.Target.from_triple(machine.triple).create_target_machine(
        cpu=machine.cpu, features=machine.features, opt=2, codemodel="default"
    )
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    passes = llvm.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    passes.run(module, llvm.create_pass_builder(target, options))
    image = target.emit_object(module)
    assert image.startswith(machine.magic)
    needed = set(read_symbols(image).needed) - LINKERS_OWN
    assert needed == {"other"}, "what OTHER calls, which shows that calls are seen, and no more"
