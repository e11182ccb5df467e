"""Loading objects: symbols resolve or are named, memory goes back."""

import ctypes
import gc
import os
import threading
from functools import cache

import pytest

from tilewright import targets
from tilewright.base.errors import Invalid, TilewrightError
from tilewright.llvm.objects import compile_object
from tilewright.runtime.library import Library

I64 = ctypes.c_int64

ADD = """
@table = internal constant [4 x i64] [i64 10, i64 20, i64 30, i64 40], align 8
@calls = global i64 0, align 8
define i64 @pick(i64 %i) {
  %slot = getelementptr i64, ptr @table, i64 %i
  %value = load i64, ptr %slot, align 8
  %count = load i64, ptr @calls, align 8
  %next = add i64 %count, 1
  store i64 %next, ptr @calls, align 8
  ret i64 %value
}
"""
USES_OTHERS = """
declare i64 @pick(i64)
declare i64 @given(i64)
define i64 @both(i64 %i) {
  %a = call i64 @pick(i64 %i)
  %b = call i64 @given(i64 %i)
  %sum = add i64 %a, %b
  ret i64 %sum
}
"""
USES_LIBC = """
declare ptr @memcpy(ptr, ptr, i64)
declare ptr @memset(ptr, i32, i64)
declare ptr @memmove(ptr, ptr, i64)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare double @exp(double)
define double @copy(ptr %to, ptr %from, i64 %n, double %x) {
  call ptr @memset(ptr %to, i32 0, i64 %n)
  call ptr @memmove(ptr %to, ptr %from, i64 %n)
  call ptr @memcpy(ptr %to, ptr %from, i64 %n)
  %y = call double @exp(double %x)
  ret double %y
}
@threads = global [2 x ptr] [ptr @pthread_create, ptr @pthread_cond_wait]
"""


@cache
def image(text: str) -> bytes:
    return compile_object(text, targets.host())


def call(library: Library, name: str, argument: int) -> int:
    return ctypes.CFUNCTYPE(I64, I64)(library.address(name))(argument)


def test_objects_call_each_other_and_given_symbols() -> None:
    given = ctypes.CFUNCTYPE(I64, I64)(lambda i: 1000 * i)
    where = ctypes.cast(given, ctypes.c_void_p).value
    assert where is not None
    library = Library([image(USES_OTHERS), image(ADD)], {"given": where})
    assert call(library, "both", 3) == 3040
    assert I64.from_address(library.address("calls")).value == 1
    assert set(library.names) == {"both", "pick", "calls"}


def test_registers_are_requested_before_code_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of x86: without a request the first instruction that uses one ends the process."""
    asked: list[bool] = []
    requests = "tilewright.runtime.library.registers_on_request"
    monkeypatch.setattr(requests, lambda: asked.append(True))
    Library([image(ADD)]).close()
    assert asked == [True]


def test_the_c_library_resolves() -> None:
    library = Library([image(USES_LIBC)])
    to, source = ctypes.create_string_buffer(6), ctypes.create_string_buffer(b"hello")
    copy = ctypes.CFUNCTYPE(
        ctypes.c_double, ctypes.c_void_p, ctypes.c_void_p, I64, ctypes.c_double
    )(library.address("copy"))
    assert copy(to, source, 6, 0.0) == 1.0
    assert to.value == b"hello"


def test_a_missing_symbol_is_named() -> None:
    with pytest.raises(TilewrightError, match="needs 'given'"):
        Library([image(USES_OTHERS), image(ADD)])
    with pytest.raises(TilewrightError, match="no symbol 'nothing'") as caught:
        Library([image(ADD)]).address("nothing")
    assert "pick" in str(caught.value)


def test_a_symbol_defined_twice_is_named() -> None:
    with pytest.raises(Invalid, match="'pick' is defined by object 0 and by object 1"):
        Library([image(ADD), image(ADD)])


def test_another_architecture_is_refused() -> None:
    host = targets.host().arch
    foreign = targets.get("arm64" if host == "x86_64" else "x86-64")
    with pytest.raises(Invalid, match=f"cannot be loaded on {host}"):
        Library([compile_object(ADD, foreign)])


def test_damaged_images_are_refused() -> None:
    good = image(ADD)
    for bad in (b"", b"garbage", good[:50], good[:200], good[:-100], good[:64] + bytes(len(good))):
        with pytest.raises(Invalid, match="object image"):
            Library([bad])


def test_closing_unloads() -> None:
    library = Library([image(ADD)])
    library.close()
    library.close()
    assert library.closed
    with pytest.raises(Invalid, match="closed"):
        library.address("pick")


def resident_kib() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") // 1024


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc")
@pytest.mark.parametrize("explicitly", [True, False])
def test_loading_many_does_not_grow_memory(explicitly: bool) -> None:
    def load(times: int) -> None:
        for i in range(times):
            library = Library([image(ADD)])
            assert call(library, "pick", i % 4) == 10 + 10 * (i % 4)
            if explicitly:
                library.close()

    load(50)
    gc.collect()
    before = resident_kib()
    load(300)
    gc.collect()
    assert resident_kib() - before < 1500


def test_loading_from_several_threads() -> None:
    wrong: list[object] = []

    def work() -> None:
        for i in range(30):
            try:
                library = Library([image(ADD)])
                if call(library, "pick", i % 4) != 10 + 10 * (i % 4):
                    wrong.append(i)
                library.close()
            except Exception as problem:
                wrong.append(problem)

    image(ADD)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
