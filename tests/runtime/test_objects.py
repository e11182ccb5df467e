"""Symbols of relocatable objects, of every format."""

from contextlib import suppress

import pytest

from tilewright import targets
from tilewright.base.errors import Invalid
from tilewright.llvm.objects import compile_object
from tilewright.runtime.objects import read_symbols

TEXT = """
@shared = global i32 7
@unknown = external global i32
declare void @other(ptr)
define internal void @own(ptr %p) noinline {
  call void @other(ptr %p)
  ret void
}
define void @open(ptr %p) {
  call void @own(ptr %p)
  %x = load i32, ptr @unknown
  store i32 %x, ptr @shared
  ret void
}
"""
PROCESSORS = [name for name in targets.names()[1:] if targets.get(name).grid is None]


@pytest.mark.parametrize("name", PROCESSORS)
def test_defined_and_needed(name: str) -> None:
    target = targets.get(name)
    found = read_symbols(compile_object(TEXT, target))
    assert found.arch == target.arch
    assert set(found.defined) == {"shared", "open"}
    assert {"unknown", "other"} <= set(found.needed)
    # What a linker makes: the table of addresses, the stack.
    assert all(x.startswith("_") for x in set(found.needed) - {"unknown", "other"})


@pytest.mark.parametrize("name", ["armv7", "riscv64", "wasm32"])
def test_damaged_objects_get_a_sentence(name: str) -> None:
    image = compile_object(TEXT, targets.get(name))
    for end in range(8, len(image) - 1, 37):
        with suppress(Invalid):  # what is left may be a whole object with fewer symbols
            read_symbols(image[:end])
    with pytest.raises(Invalid, match="not a little-endian ELF object"):
        read_symbols(b"nothing")
    with pytest.raises(Invalid, match="not an object of WebAssembly"):
        read_symbols(b"\0asm\x02\0\0\0")
