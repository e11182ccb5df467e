"""Shared objects of our own linker load, run and hold what ELF asks for, on four machines."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.link.machines import LIBC, MACHINES, RELAXED, Machine, called, closed, native
from tilewright.base.errors import Invalid, TilewrightError, Unsupported
from tilewright.link.elf import shared_object, write_shared_object

EVERY = pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES.keys())

# Tables of functions, pointers between variables, zeros, functions at start, jump tables,
# constants with a large alignment, and calls of the C library.
PROGRAM = """
@table = internal constant [3 x ptr] [ptr @inc, ptr @dec, ptr @abs]
@counter = internal global i32 3, align 64
@zeros = internal global [100 x i32] zeroinitializer, align 64
@shared = common global [9 x i32] zeroinitializer, align 32
@inner = global ptr getelementptr (i8, ptr @shared, i32 8)
@where = global ptr @inner
$once = comdat any
@wide = internal constant [4 x i32] [i32 11, i32 22, i32 33, i32 44], align 256
@maybe = extern_weak global i32
@llvm.global_ctors = appending global [2 x { i32, ptr, ptr }] [
  { i32, ptr, ptr } { i32 65535, ptr @second, ptr null },
  { i32, ptr, ptr } { i32 200, ptr @first, ptr null }]
declare ptr @malloc(WORD)
declare ptr @memcpy(ptr, ptr, WORD)
declare void @free(ptr)
declare i32 @abs(i32)
declare i32 @elsewhere(i32)

define internal void @first() {
  store i32 5, ptr @counter
  ret void
}
define internal void @second() {
  %c = load i32, ptr @counter
  %d = mul i32 %c, 7
  store i32 %d, ptr @counter
  ret void
}
define internal i32 @inc(i32 %x) {
  %r = add i32 %x, 1
  ret i32 %r
}
define internal i32 @dec(i32 %x) {
  %r = sub i32 %x, 1
  ret i32 %r
}
define i32 @indirect(i32 %k) align 32 {
  %p = getelementptr [3 x ptr], ptr @table, i32 0, i32 %k
  %f = load ptr, ptr %p
  %r = call i32 %f(i32 -10)
  ret i32 %r
}
define i32 @count(i32 %x) {
  %c = load i32, ptr @counter
  %d = add i32 %c, %x
  store i32 %d, ptr @counter
  ret i32 %d
}
define i32 @pointers(i32 %x) {
  %p = load ptr, ptr @where
  %q = load ptr, ptr %p
  store i32 %x, ptr %q
  %s = getelementptr [9 x i32], ptr @shared, i32 0, i32 2
  %r = load i32, ptr %s
  ret i32 %r
}
define i32 @bss(i32 %k) {
  %p = getelementptr [100 x i32], ptr @zeros, i32 0, i32 %k
  %old = load i32, ptr %p
  store i32 %k, ptr %p
  ret i32 %old
}
define i32 @aligned(i32 %k) {
  %a = ptrtoint ptr @wide to i32
  %t = and i32 %a, 255
  %p = getelementptr [4 x i32], ptr @wide, i32 0, i32 %k
  %v = load i32, ptr %p
  %r = add i32 %t, %v
  ret i32 %r
}
define i32 @copied(i32 %x) align 64 {
  %m = call ptr @malloc(WORD 64)
  store i32 %x, ptr @zeros
  %c = call ptr @memcpy(ptr %m, ptr @zeros, WORD 64)
  %r = load i32, ptr %m
  store i32 0, ptr @zeros
  call void @free(ptr %m)
  ret i32 %r
}
define i32 @missing(i32 %x) {
  %none = icmp eq ptr @maybe, null
  %r = select i1 %none, i32 1, i32 0
  ret i32 %r
}
define i32 @other(i32 %x) {
  %r = call i32 @elsewhere(i32 %x)
  ret i32 %r
}
define linkonce_odr i32 @once(i32 %x) noinline comdat {
  %r = mul i32 %x, 3
  ret i32 %r
}
define i32 @same(i32 %x) {
  %r = call i32 @once(i32 %x)
  ret i32 %r
}
define i32 @switched(i32 %k) {
  switch i32 %k, label %d [ i32 0, label %a
    i32 1, label %b
    i32 2, label %c
    i32 3, label %e
    i32 4, label %f ]
a:
  %ra = call i32 @count(i32 0)
  ret i32 %ra
b:
  ret i32 77
c:
  %rc = call i32 @inc(i32 %k)
  ret i32 %rc
e:
  %re = call i32 @abs(i32 -9)
  ret i32 %re
f:
  ret i32 -4
d:
  ret i32 1000
}
"""
# Another object: a weak definition that loses, a copy of a function that others have too.
OTHER = """
$once = comdat any
@shared = common global [20 x i32] zeroinitializer, align 64
@inner = weak global ptr null
define i32 @elsewhere(i32 %x) {
  %a = call i32 @once(i32 %x)
  %p = getelementptr [20 x i32], ptr @shared, i32 0, i32 19
  %b = load i32, ptr %p
  %r = add i32 %a, %b
  ret i32 %r
}
define linkonce_odr i32 @once(i32 %x) noinline comdat {
  %r = mul i32 %x, 3
  ret i32 %r
}
define i32 @unused(i32 %x) {
  %r = call i32 @nobody(i32 %x)
  ret i32 %r
}
declare i32 @nobody(i32)
"""
OTHER_USED = OTHER[: OTHER.index("define i32 @unused")]
CALLS = {
    ("indirect", 0): -9,
    ("indirect", 1): -11,
    ("indirect", 2): 10,
    ("count", 1): 36,
    ("count", 4): 40,
    ("pointers", 123): 123,
    ("bss", 99): 0,
    ("aligned", 2): 33,
    ("copied", 1234567): 1234567,
    ("missing", 0): 1,
    ("other", 5): 15,
    ("same", -7): -21,
    ("switched", 0): 40,
    ("switched", 1): 77,
    ("switched", 2): 3,
    ("switched", 3): 9,
    ("switched", 4): -4,
    ("switched", 9): 1000,
}
EXPORTS = sorted({name for name, _ in CALLS})


def objects_of(machine: Machine) -> list[bytes]:
    return [machine.compiled(PROGRAM), machine.compiled(OTHER_USED)]


@pytest.mark.parametrize("machine", [*MACHINES.values(), RELAXED], ids=lambda m: m.target.name)
def test_a_program_of_two_objects_runs(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "program.so"
    path.write_bytes(shared_object(objects_of(machine), EXPORTS, name="program.so", needs=LIBC))
    assert called(machine, path, list(CALLS)) == list(CALLS.values())


@EVERY
def test_same_input_same_bytes(machine: Machine) -> None:
    linked = [
        shared_object(objects_of(machine), EXPORTS, name="a.so", needs=LIBC) for _ in range(2)
    ]
    assert linked[0] == linked[1]


def segments(image: bytes) -> Iterator[tuple[int, int, int, int, int, int]]:
    """(type, rights, offset, address, bytes in the file, in memory)."""
    if image[4] == 2:
        start, count = struct.unpack_from("<Q", image, 32)[0], image[56]
        for k in range(count):
            t, r, o, a, _, f, m, _ = struct.unpack_from("<IIQQQQQQ", image, start + 56 * k)
            yield t, r, o, a, f, m
    else:
        start, count = struct.unpack_from("<I", image, 28)[0], image[44]
        for k in range(count):
            t, o, a, _, f, m, r, _ = struct.unpack_from("<IIIIIIII", image, start + 32 * k)
            yield t, r, o, a, f, m


@EVERY
def test_no_page_is_written_and_executed(machine: Machine) -> None:
    image = shared_object(objects_of(machine), EXPORTS, name="a.so", needs=LIBC)
    found = list(segments(image))
    loads = [s for s in found if s[0] == 1]
    assert all(rights & 3 != 3 for _, rights, *_ in found)
    assert [rights for _, rights, *_ in loads] == [4, 5, 6, 6]
    # The stack is not executed, and addresses are protected up to the end of a page.
    assert [s[1] for s in found if s[0] == 0x6474E551] == [6]
    ((_, _, _, address, _, size),) = [s for s in found if s[0] == 0x6474E552]
    assert (address + size) % 4096 == 0
    for k, (_, _, offset, at, _, size) in enumerate(loads):
        assert offset % 4096 == at % 4096
        later = [other[3] & ~4095 for other in loads[k + 1 :]]
        assert all(at + size <= start for start in later)


def test_only_exports_are_seen() -> None:
    image = shared_object(objects_of(native()), ["count"], name="a.so", needs=LIBC)
    for name in (b"pointers\0", b"counter\0", b"elsewhere\0", b"inner\0"):
        assert name not in image
    assert b"\0count\0" in image and b"\0malloc\0" in image


def test_what_nothing_reaches_is_left_out() -> None:
    machine = native()
    small = machine.compiled("define i32 @one(i32 %x) {\n ret i32 1\n}")
    alone = shared_object([small], ["one"], name="a.so")
    unused = machine.compiled(OTHER)
    assert shared_object([small, unused], ["one"], name="a.so") == alone


def test_constructors_run_and_variables_are_fresh_after_1000_loads(tmp_path: Path) -> None:
    machine = native()
    path = tmp_path / "again.so"
    path.write_bytes(shared_object(objects_of(machine), EXPORTS, name="again.so", needs=LIBC))
    called(machine, path, [("count", 1)])
    maps = Path("/proc/self/maps")
    before = maps.read_text().count("again.so")
    assert called(machine, path, [("count", 1), ("count", 1)], repeat=1000) == [36, 37]
    assert maps.read_text().count("again.so") == before == 0


def test_threads_call_one_library(tmp_path: Path) -> None:
    machine = native()
    path = tmp_path / "threads.so"
    path.write_bytes(shared_object(objects_of(machine), EXPORTS, name="threads.so", needs=LIBC))
    library = ctypes.CDLL(os.fspath(path))
    wrong = []

    def work(k: int) -> None:
        for n in range(200):
            if library.other(k * n) != 3 * k * n or library.indirect(0) != -9:
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


THREAD = """
@value = internal global i32 0
define internal ptr @work(ptr %p) {
  %v = load i32, ptr %p
  %w = mul i32 %v, 2
  store i32 %w, ptr @value
  ret ptr null
}
define i32 @doubled(i32 %x) {
  %p = alloca i32
  %id = alloca WORD
  store i32 %x, ptr %p
  %a = call i32 @pthread_create(ptr %id, ptr null, ptr @work, ptr %p)
  %t = load WORD, ptr %id
  %b = call i32 @pthread_join(WORD %t, ptr null)
  %r = load i32, ptr @value
  ret i32 %r
}
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(WORD, ptr)
"""


@EVERY
def test_a_thread_of_the_c_library(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "thread.so"
    image = shared_object([machine.compiled(THREAD)], ["doubled"], name="t.so", needs=LIBC)
    path.write_bytes(image)
    assert called(machine, path, [("doubled", 21)]) == [42]


def test_a_version_of_a_function_is_bound(tmp_path: Path) -> None:
    machine = native()
    text = machine.compiled(
        """
declare i32 @toupper(i32)
define i32 @f(i32 %x) {
  %r = call i32 @toupper(i32 %x)
  ret i32 %r
}"""
    )
    version = {"x86-64": "2.2.5", "aarch64": "2.17", "riscv64": "2.27", "armv7": "2.4"}
    version = f"GLIBC_{version[machine.target.name]}"
    for k, wanted in enumerate((version, "GLIBC_9.99")):
        path = tmp_path / f"version{k}.so"
        needs = {"libc.so.6": [f"toupper@{wanted}"]}
        path.write_bytes(shared_object([text], ["f"], name="v.so", needs=needs))
    assert called(machine, tmp_path / "version0.so", [("f", ord("c"))]) == [ord("C")]
    with pytest.raises(OSError, match=r"GLIBC_9\.99"):
        ctypes.CDLL(os.fspath(tmp_path / "version1.so"))


WEIGHTS = """
@weights = external constant [4 x i32]
define i32 @weight(i32 %k) {
  %p = getelementptr [4 x i32], ptr @weights, i32 0, i32 %k
  %r = load i32, ptr %p
  ret i32 %r
}
"""


@EVERY
def test_data_is_mapped_and_found_by_name(machine: Machine, tmp_path: Path) -> None:
    data = struct.pack("<4i", 5, -6, 7, 8) + bytes(100_000)
    code = machine.compiled(WEIGHTS)
    image = shared_object([code], ["weight"], name="w.so", data={"weights": data})
    file = tmp_path / "weights.bin"
    file.write_bytes(data)
    path = tmp_path / "w.so"
    size = write_shared_object(path, [code], ["weight"], name="w.so", data={"weights": file})
    assert path.read_bytes() == image and size == len(image)
    ((_, rights, offset, address, stored, _),) = [
        s for s in segments(image) if s[0] == 1 and s[4] == len(data)
    ]
    assert rights == 4 and offset % 4096 == address % 4096 == 0 and stored == len(data)
    assert image[offset : offset + stored] == data
    if machine.native:
        library = ctypes.CDLL(os.fspath(path))
        start = ctypes.addressof(ctypes.c_char.in_dll(library, "weights"))
        assert start % mmap.PAGESIZE == 0
        assert ctypes.string_at(start, len(data)) == data
    assert called(machine, path, [("weight", 1), ("weight", 3)]) == [-6, 8]


def test_functions_run_when_it_is_unloaded(tmp_path: Path) -> None:
    text = """
@place = internal global ptr null
@llvm.global_dtors = appending global [2 x { i32, ptr, ptr }] [
  { i32, ptr, ptr } { i32 65535, ptr @first, ptr null },
  { i32, ptr, ptr } { i32 200, ptr @last, ptr null }]
define internal void @first() {
  %p = load ptr, ptr @place
  store i32 5, ptr %p
  ret void
}
define internal void @last() {
  %p = load ptr, ptr @place
  %v = load i32, ptr %p
  %w = mul i32 %v, 7
  store i32 %w, ptr %p
  ret void
}
define void @tell(ptr %p) {
  store ptr %p, ptr @place
  ret void
}"""
    path = tmp_path / "last.so"
    path.write_bytes(shared_object([native().compiled(text)], ["tell"], name="last.so"))
    library, told = ctypes.CDLL(os.fspath(path)), ctypes.c_int32(0)
    library.tell(ctypes.byref(told))
    closed(library)
    assert told.value == 35


def test_only_libc_is_in_the_process(tmp_path: Path) -> None:
    """Libraries of which nothing is used are not asked for."""
    machine = native()
    path = tmp_path / "lean.so"
    needs = {**LIBC, "libnobody-has-this.so.1": ["something"]}
    path.write_bytes(shared_object(objects_of(machine), EXPORTS, name="lean.so", needs=needs))
    program = f"import ctypes; print(ctypes.CDLL({os.fspath(path)!r}).count(1))"
    run = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True)
    assert run.stdout.strip() == "36", run.stderr


# Bad input: each error says what is wrong, and with which object, symbol or type.


def refused(objects: list[bytes], exports: list[str], **more: Any) -> TilewrightError:
    with pytest.raises(TilewrightError) as caught:
        shared_object(objects, exports, name="a.so", **more)
    return caught.value


def test_names_that_nobody_defines_are_listed() -> None:
    code = native().compiled(OTHER)
    error = refused([code], ["unused"])
    assert isinstance(error, Invalid)
    assert error.what == "nobody defines nobody (for object 1 of 1)"
    assert "needs" in (error.hint or "")


def test_definitions_clash() -> None:
    code = native().compiled("define i32 @same(i32 %x) {\n ret i32 %x\n}")
    assert refused([code, code], ["same"]).what == (
        "same is defined by object 1 of 2 and by object 2 of 2"
    )
    clash = refused([code], ["same"], data={"same": b"abc"})
    assert "same is defined by the data that is added and by object 1 of 1" in clash.what


def test_data_that_no_address_reaches_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "sparse.bin"
    with file.open("wb") as empty:
        empty.truncate(3 << 30)
    error = refused([MACHINES["armv7"].compiled(WEIGHTS)], ["weight"], data={"weights": file})
    assert "more memory than ARM has addresses" in error.what
    code = MACHINES["armv7"].compiled(WEIGHTS)
    missing = refused([code], ["weight"], data={"weights": tmp_path / "none"})
    assert "weights: there is no file" in missing.what


def test_exports_have_to_exist() -> None:
    code = native().compiled("define i32 @one(i32 %x) {\n ret i32 %x\n}")
    error = refused([code], ["two"])
    assert "two: to be exported, but no object defines it" in error.what
    assert "one" in (error.hint or "")
    assert "nothing is exported" in refused([code], []).what
    assert "no objects" in refused([], ["two"]).what


def test_machines_are_not_mixed() -> None:
    text = "define i32 @one(i32 %x) {\n ret i32 %x\n}"
    two = [MACHINES["x86-64"].compiled(text), MACHINES["riscv64"].compiled(text)]
    assert refused(two, ["one"]).what == (
        "object 1 of 2 is for x86-64, and object 2 of 2 for RISC-V 64"
    )
    soft = bytearray(two[1])
    struct.pack_into("<I", soft, 48, 1)  # floats passed as integers
    assert "in different ways" in refused([two[1], bytes(soft)], ["one"]).what


def test_other_files_are_refused() -> None:
    code = native().compiled("define i32 @one(i32 %x) {\n ret i32 %x\n}")
    linked = shared_object([code], ["one"], name="a.so")
    assert "not a relocatable object" in refused([linked], ["one"]).what
    assert "is not an ELF object" in refused([b"\0asm\1\0\0\0"], ["one"]).what
    assert "is not an ELF object" in refused([b""], ["one"]).what
    other = bytearray(code)
    struct.pack_into("<H", other, 18, 21)
    error = refused([bytes(other)], ["one"])
    assert isinstance(error, Unsupported) and "machine 21" in error.what


FOUR = struct.pack("<q", -4)


def test_an_unknown_relocation_is_told() -> None:
    code = bytearray(MACHINES["x86-64"].compiled(OTHER_USED))
    # The type of a call, with the number that is added behind it.
    at = next(k for k in range(len(code)) if code[k] == 4 and code[k + 8 : k + 16] == FOUR)
    code[at] = 200
    error = refused([bytes(code)], ["elsewhere"])
    assert isinstance(error, Unsupported)
    assert "of type 200 is not known" in error.what
    assert "section .text of object 1 of 1" in error.what


def test_variables_of_threads_are_refused() -> None:
    text = """
@own = thread_local global i32 1
define i32 @get(i32 %x) {
  %v = load i32, ptr @own
  ret i32 %v
}"""
    error = refused([native().compiled(text)], ["get"])
    assert isinstance(error, Unsupported) and "variables of each thread" in error.what


def test_code_that_is_not_position_independent_is_refused() -> None:
    text = """
@far = external hidden global i32
define i32 @get(i32 %x) {
  %v = load i32, ptr @far
  ret i32 %v
}"""
    error = refused([MACHINES["x86-64"].compiled(text)], ["get"], needs={"libc.so.6": ["far"]})
    assert "needs the place of far, which is not in this file" in error.what


def test_a_table_of_functions_with_odd_places_is_refused() -> None:
    """Older tables are turned round: a place beyond their end would be one before the file."""
    text = """
@llvm.global_ctors = appending global [1 x { i32, ptr, ptr }] [
  { i32, ptr, ptr } { i32 65535, ptr @start, ptr null }]
@value = internal global i32 0
define void @start() {
  store volatile i32 1, ptr @value
  ret void
}"""
    code = MACHINES["x86-64"].compiled(text)
    found = []
    entry = struct.pack("<QI", 0, 1)  # at byte 0, an address
    for k in (k for k in range(len(code)) if code.startswith(entry, k)):
        for offset in (4, 8, 1 << 60):
            image = bytearray(code)
            struct.pack_into("<Q", image, k, offset)
            try:
                shared_object([bytes(image)], ["start"], name="a.so")
            except TilewrightError as error:
                found.append(error.what)
    assert sum("in the middle of a word" in what for what in found) == 2
    assert sum(f"a relocation at {1 << 60}" in what for what in found) == 1
