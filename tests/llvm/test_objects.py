"""LLVM text to objects: right code, in parallel, and a sentence where LLVM would abort."""

import subprocess
import sys
import threading

import pytest
from llvmlite.binding import ffi

from tilewright import targets
from tilewright.base.errors import Invalid, Unsupported
from tilewright.ir.target import Target
from tilewright.llvm import objects
from tilewright.llvm.objects import assembly, compile_object, compile_objects, object_key
from tilewright.runtime.objects import read_symbols

DECLARATIONS = """
declare <4 x float> @llvm.fma.v4f32(<4 x float>, <4 x float>, <4 x float>)
"""
FUNCTIONS = """
define internal <4 x float> @helper(<4 x float> %x, <4 x float> %y) alwaysinline {
  %z = call <4 x float> @llvm.fma.v4f32(<4 x float> %x, <4 x float> %y, <4 x float> %y)
  ret <4 x float> %z
}
define internal void @unused() {
  ret void
}
define void @kernel(ptr %x, ptr %y, i64 %n) {
entry:
  %total = alloca <4 x float>, align 16
  store <4 x float> zeroinitializer, ptr %total, align 16
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %slot = getelementptr float, ptr %x, i64 %i
  %v = load <4 x float>, ptr %slot, align 4
  %old = load <4 x float>, ptr %total, align 16
  %new = call <4 x float> @helper(<4 x float> %v, <4 x float> %old)
  store <4 x float> %new, ptr %total, align 16
  %next = add i64 %i, 4
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %end
end:
  %result = load <4 x float>, ptr %total, align 16
  store <4 x float> %result, ptr %y, align 4
  ret void
}
"""


AXPY = DECLARATIONS + FUNCTIONS


def functions(seed: int) -> str:
    """Three functions that no other seed names or means alike."""
    text = FUNCTIONS.replace("add i64 %i, 4", f"add i64 %i, {seed}")
    for name in ("@helper", "@unused", "@kernel"):
        text = text.replace(name, f"{name}{seed}")
    return text


def variant(seed: int) -> str:
    return DECLARATIONS + functions(seed)


@pytest.mark.parametrize("name", [x for x in targets.names() if targets.get(x).grid is None])
def test_objects_for_every_target(name: str) -> None:
    target = targets.get(name)
    assert read_symbols(compile_object(AXPY, target)).arch == target.arch


def test_the_pipeline_inlines_promotes_and_drops() -> None:
    text = assembly(AXPY, targets.get("x86-64-v3"))
    assert "kernel:" in text
    assert "vfmadd" in text
    assert "helper" not in text
    assert "unused" not in text
    # The accumulator lives in a register: nothing goes through the stack inside the loop.
    assert "rsp" not in text


def test_compiling_in_parallel_changes_nothing() -> None:
    texts = [variant(seed) for seed in range(1, 25)]
    target = targets.host()
    alone = compile_objects(texts, target, 1)
    assert compile_objects(texts, target, 4) == alone
    assert len(set(alone)) == len(texts)
    assert compile_objects([], target, 4) == []


def test_an_error_in_one_of_many_is_raised() -> None:
    texts = [variant(1), "define", variant(2)]
    with pytest.raises(Invalid, match="does not parse"):
        compile_objects(texts, targets.host(), 2)


def test_threads_meet_inside_llvm() -> None:
    """A long compilation does not hold up a short one, as it would behind llvmlite's lock."""
    if not objects.compiles_in_parallel():
        pytest.skip("this llvmlite keeps its lock")
    long_text = DECLARATIONS + "".join(functions(seed) for seed in range(1, 300))
    finished: list[str] = []
    started = threading.Event()

    def compile_long() -> None:
        started.set()
        compile_object(long_text, targets.host())
        finished.append("long")

    thread = threading.Thread(target=compile_long)
    thread.start()
    started.wait()
    compile_object(AXPY, targets.host())
    finished.append("short")
    thread.join()
    assert finished == ["short", "long"]


@pytest.mark.parametrize(
    ("text", "message", "where"),
    [
        ("nonsense", "expected top-level entity", "line 1: nonsense"),
        ("define i32 @f() {\n  ret i64 0\n}", "result type 'i32'", "line 2: ret i64 0"),
        ("define i32 @f() {\n  ret i32 0\n", "end of file", "line 3: the end of the text"),
        (
            "define i32 @f(i1 %c) {\n  br i1 %c, label %a, label %b\na:\n  %x = add i32 1, 1\n"
            "  br label %b\nb:\n  ret i32 %x\n}",
            "does not dominate all uses",
            None,
        ),
    ],
)
def test_bad_text_gets_a_sentence(text: str, message: str, where: str | None) -> None:
    with pytest.raises(Invalid, match=message) as caught:
        compile_object(text, targets.host())
    assert caught.value.where == where


def test_code_of_another_architecture_is_refused() -> None:
    x86, arm = targets.get("x86-64"), targets.get("arm64")
    pause = "declare void @llvm.x86.sse2.pause()\ndefine void @f() {\n"
    pause += "  call void @llvm.x86.sse2.pause()\n  ret void\n}\n"
    assert "pause" in assembly(pause, x86)
    with pytest.raises(Invalid, match="intrinsic of x86 cannot be compiled for aarch64"):
        compile_object(pause, arm)
    foreign = arm if targets.host().arch == "x86_64" else x86
    for text in (
        'define void @f() {\n  call void asm sideeffect "nop", ""()\n  ret void\n}\n',
        'module asm "nop"\n',
    ):
        with pytest.raises(Invalid, match="inline assembly"):
            compile_object(text, foreign)
        assert compile_object(text, targets.host())
    empty = 'define float @f(float %x) {\n  %y = call float asm sideeffect "", "=r,0"(float %x)\n'
    assert compile_object(f"{empty}  ret float %y\n}}\n", targets.get("wasm32"))  # nothing to read


def test_an_unknown_triple_gets_a_sentence() -> None:
    with pytest.raises(Unsupported, match="cannot compile for pdp11"):
        compile_object(AXPY, Target("old", "pdp11-dec-none", "generic"))


def test_an_unknown_processor_does_not_abort() -> None:
    program = (
        "from tilewright.ir.target import Target\n"
        "from tilewright.llvm.objects import compile_object\n"
        "target = Target('x', 'x86_64-unknown-linux-gnu', 'not-a-processor')\n"
        "print(len(compile_object('define void @f() { ret void }', target)) > 0)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, "True\n"), run.stderr


def test_other_users_of_llvmlite_keep_their_lock() -> None:
    assert type(ffi.lib._lock).__name__ == "_LLVMLock"
    assert isinstance(ffi.lib.LLVMPY_ParseAssembly, ffi._lib_fn_wrapper)


def test_the_key_tells_targets_and_texts_apart() -> None:
    v3, v4 = targets.get("x86-64-v3"), targets.get("x86-64-v4")
    keys = {object_key(AXPY, v3), object_key(AXPY, v4), object_key(variant(1), v3)}
    assert len(keys) == 3
