"""Modules of our own linker for WebAssembly run, share memory, and refuse what is wrong."""

from __future__ import annotations

import random
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.link.random_programs import random_program
from tests.link.test_elf import CALLS as OF_ELF
from tests.link.test_elf import OTHER_USED, PROGRAM
from tests.link.test_random import seconds
from tests.seeds import drawn
from tilewright.base.errors import TilewrightError, Unsupported
from tilewright.ir.target import Target
from tilewright.link.wasm import module
from tilewright.llvm.objects import compile_object

WASM = Target("wasm32", "wasm32-unknown-unknown", "generic", ("+simd128",), pointer_bits=32)
THREADS = Target(
    "wasm32-threads",
    "wasm32-unknown-unknown",
    "generic",
    ("+atomics", "+bulk-memory", "+mutable-globals"),
    pointer_bits=32,
)
OUTSIDE = ("malloc", "memcpy", "free", "abs")
# What needs no C library beyond OUTSIDE.
KEPT = ("indirect", "count", "pointers", "bss", "aligned", "missing", "other", "switched")
CALLS = {call: found for call, found in OF_ELF.items() if call[0] in KEPT}
EXPORTS = sorted({name for name, _ in CALLS})


def compiled(text: str, target: Target = WASM) -> bytes:
    # There are no variables that several objects declare and one has to make.
    return compile_object(text.replace("common global", "weak global"), target)


def program() -> list[bytes]:
    return [compiled(text.replace("WORD", "i32")) for text in (PROGRAM, OTHER_USED)]


def instance(image: bytes, imports: Sequence[Any] = ()) -> tuple[Any, Any]:
    """What the module exports, and the store that calls need."""
    wasmtime = pytest.importorskip("wasmtime", reason="wasmtime is not installed")
    engine = wasmtime.Engine()
    store = wasmtime.Store(engine)
    found = wasmtime.Instance(store, wasmtime.Module(engine, image), list(imports))
    return found.exports(store), store


def outside(image: bytes) -> tuple[Any, Any]:
    """The same of the program above, with its functions from outside."""
    wasmtime = pytest.importorskip("wasmtime", reason="wasmtime is not installed")
    engine = wasmtime.Engine()
    store, linker = wasmtime.Store(engine), wasmtime.Linker(engine)
    i32 = wasmtime.ValType.i32()
    for name, count, function in (
        ("malloc", 1, lambda n: 64 * 1024),
        ("memcpy", 3, lambda a, b, n: a),
        ("abs", 1, abs),
    ):
        kind = wasmtime.FuncType([i32] * count, [i32])
        linker.define_func("env", name, kind, function)
    linker.define_func("env", "free", wasmtime.FuncType([i32], []), lambda p: None)
    found = linker.instantiate(store, wasmtime.Module(engine, image))
    return found.exports(store), store


def test_a_program_of_two_objects_runs() -> None:
    exports, store = outside(module(program(), EXPORTS, memory_pages=64, imports=OUTSIDE))
    assert [exports[n](store, x) for n, x in CALLS] == list(CALLS.values())


@pytest.mark.parametrize("seed", drawn(range(300), 30))
def test_random_programs_run(seed: int) -> None:
    drawn_program = random_program(seed)
    objects = [compiled(text) for text in drawn_program.texts]
    exports, store = instance(module(objects, drawn_program.exports, memory_pages=20))
    found = [exports[n](store, x) for n, x in drawn_program.calls]
    assert found == drawn_program.expected


def test_same_input_same_bytes() -> None:
    a, b = (module(program(), EXPORTS, memory_pages=64, imports=OUTSIDE) for _ in range(2))
    assert a == b


def test_what_nothing_reaches_is_left_out() -> None:
    """Functions one by one, not objects."""
    text = """
@unused_data = constant [1000 x i32] zeroinitializer
declare i32 @nobody(i32)
define i32 @one(i32 %x) {
  ret i32 1
}"""
    more = "define i32 @two(i32 %x) {\n %r = call i32 @nobody(i32 %x)\n ret i32 %r\n}"
    alone = module([compiled(text)], ["one"], memory_pages=20)
    assert module([compiled(f"{text}\n{more}")], ["one"], memory_pages=20) == alone
    assert len(alone) < 120


def test_a_stack_that_overflows_traps() -> None:
    text = """
define i32 @deep(i32 %n) {
  %frame = alloca [1024 x i32]
  %p = getelementptr [1024 x i32], ptr %frame, i32 0, i32 %n
  store volatile i32 %n, ptr %p
  %end = icmp eq i32 %n, 0
  br i1 %end, label %last, label %more
last:
  ret i32 0
more:
  %m = sub i32 %n, 1
  %a = call i32 @deep(i32 %m)
  %b = load volatile i32, ptr %p
  %r = add i32 %a, %b
  ret i32 %r
}"""
    image = module([compiled(text)], ["deep"], memory_pages=2, stack_bytes=65536)
    exports, store = instance(image)
    assert exports["deep"](store, 10) == 55
    with pytest.raises(Exception, match="out of bounds"):
        exports["deep"](store, 20)


def test_memory_heap_and_data_are_found_by_name() -> None:
    text = """
@text = constant [6 x i8] c"words\\00", align 64
@counter = global i32 0
define i32 @get(i32 %x) {
  %c = load i32, ptr @counter
  ret i32 %c
}"""
    image = module([compiled(text)], ["get", "text"], memory_pages=40, stack_bytes=1000)
    exports, store = instance(image)
    memory, start = exports["memory"], exports["text"].value(store)
    assert start % 64 == 0 and bytes(memory.read(store, start, start + 6)) == b"words\0"
    assert start + 6 <= exports["__heap_base"].value(store) <= memory.size(store) * 65536
    assert memory.size(store) == 1 and memory.type(store).limits.max == 40
    assert memory.grow(store, 39) == 1
    assert exports["get"](store, 0) == 0


def test_instances_share_memory(tmp_path: Path) -> None:
    """Data is copied by one of them; each has a stack of its own."""
    text = """
@counter = global i32 40
@llvm.global_ctors = appending global [1 x { i32, ptr, ptr }] [
  { i32, ptr, ptr } { i32 65535, ptr @start, ptr null }]
define internal void @start() {
  %c = load i32, ptr @counter
  %d = add i32 %c, 1
  store i32 %d, ptr @counter
  ret void
}
define i32 @next(i32 %x) {
  %r = atomicrmw add ptr @counter, i32 %x seq_cst
  ret i32 %r
}
define i32 @frame(i32 %x) {
  %p = alloca i32
  store volatile i32 %x, ptr %p
  %a = ptrtoint ptr %p to i32
  ret i32 %a
}"""
    image = module([compiled(text, THREADS)], ["next", "frame"], memory_pages=30, shared=True)
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    path = tmp_path / "shared.wasm"
    path.write_bytes(image)
    program = """
const code = new WebAssembly.Module(require("fs").readFileSync(process.argv[1]));
const memory = new WebAssembly.Memory({initial: 20, maximum: 30, shared: true});
const make = () => new WebAssembly.Instance(code, {env: {memory}}).exports;
const [one, two] = [make(), make()];
one.__wasm_init_memory();
const found = [one.next(5), two.next(1)];
two.__stack_pointer.value = 4096;
const [low, high] = [two.frame(1), one.frame(1)];
console.log(JSON.stringify([...found, low < 4096, high > 4096]));
"""
    run = subprocess.run([node, "-e", program, path], capture_output=True, text=True)
    assert run.stdout.strip() == "[41,46,true,true]", run.stderr


# Bad input.


def refused(
    objects: list[bytes], exports: list[str], memory_pages: int = 64, **more: Any
) -> TilewrightError:
    with pytest.raises(TilewrightError) as caught:
        module(objects, exports, memory_pages=memory_pages, **more)
    return caught.value


def test_names_that_nobody_defines_are_listed() -> None:
    error = refused(program(), ["copied"], imports=("malloc",))
    assert error.what == "nobody defines free (for copied of object 1 of 2)"


def test_definitions_and_types_clash() -> None:
    code = compiled("define i32 @same(i32 %x) {\n ret i32 %x\n}")
    assert refused([code, code], ["same"]).what == (
        "same is defined by object 1 of 2 and by object 2 of 2"
    )
    text = "declare i32 @same()\ndefine i32 @f() {\n %r = call i32 @same()\n ret i32 %r\n}"
    assert refused([code, compiled(text)], ["f"]).what == (
        "same has one type in object 1 of 2 and another in object 2 of 2"
    )


def test_requests_that_cannot_be_met() -> None:
    code = compiled("define i32 @one(i32 %x) {\n ret i32 %x\n}")
    assert "two: to be exported, but no object defines it" in refused([code], ["two"]).what
    assert "nothing is exported" in refused([code], []).what
    assert "no objects" in refused([], ["one"]).what
    assert "take 16 pages" in refused([code], ["one"], memory_pages=10).what
    assert "pages" in refused([code], ["one"], memory_pages=70000).what
    assert "not an object of WebAssembly" in refused([b"\x7fELF"], ["one"]).what
    linked = module([code], ["one"], memory_pages=64)
    assert "is a module, not an object" in refused([linked], ["one"]).what


def test_variables_of_threads_are_refused() -> None:
    text = """
@own = thread_local global i32 1
define i32 @get(i32 %x) {
  %v = load i32, ptr @own
  ret i32 %v
}"""
    error = refused([compiled(text, THREADS)], ["get"])
    assert isinstance(error, Unsupported) and "variable of each thread" in error.what


def test_truncated_objects_give_errors() -> None:
    first, *others = program()
    for size in range(0, len(first), 7):
        try:
            module([first[:size], *others], EXPORTS, memory_pages=64, imports=OUTSIDE)
        except TilewrightError as error:
            assert error.what
        else:  # only what comes after all that is needed is missing
            assert b"target_features" not in first[:size]


@pytest.mark.parametrize("seed", drawn(range(100), 3))
def test_damaged_objects_give_errors_or_a_module(seed: int) -> None:
    rng = random.Random(seed)
    first, *others = program()
    for _ in range(300):
        image = bytearray(first)
        for _ in range(rng.choice((1, 1, 2, 10))):
            at = rng.randrange(8, len(image))
            image[at] = rng.choice((0, 255, image[at] ^ 1 << rng.randrange(8)))
        try:
            with seconds(10):
                module([bytes(image), *others], EXPORTS, memory_pages=64, imports=OUTSIDE)
        except TilewrightError as error:
            assert error.what


def test_an_unknown_relocation_is_told() -> None:
    image = bytearray(compiled(OTHER_USED))
    at = image.index(b"reloc.CODE") + len(b"reloc.CODE")
    image[at + 2] = 99  # after the section's number and the count
    error = refused([bytes(image)], ["elsewhere"])
    assert isinstance(error, Unsupported) and "of type 99 is not known" in error.what
    assert "elsewhere of object 1 of 1" in error.what


def test_numbers_are_as_short_as_can_be() -> None:
    image = module(program(), EXPORTS, memory_pages=64, imports=OUTSIDE)
    assert struct.pack("<5B", 0x80, 0x80, 0x80, 0x80, 0x00) not in image
