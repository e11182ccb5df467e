"""What a shared object says of itself, read back from what the linker wrote."""

from __future__ import annotations

import pytest

from tests.link.machines import MACHINES
from tilewright.base.errors import Invalid
from tilewright.link.elf import PROCESS, shared_object
from tilewright.link.shared import read_shared

TEXT = """
@count = global i32 7
declare i32 @ours(i32)
declare i32 @theirs(i32)
define i32 @one(i32 %x) {
  %c = load i32, ptr @count
  %a = call i32 @ours(i32 %x)
  %b = call i32 @theirs(i32 %a)
  %r = add i32 %b, %c
  ret i32 %r
}
define i32 @two() {
  ret i32 2
}
"""


@pytest.mark.parametrize("name", MACHINES)
def test_read_back(name: str) -> None:
    machine = MACHINES[name]
    needs = {PROCESS: ["ours"], "libtheirs.so.1": ["theirs"]}
    image = shared_object([machine.compiled(TEXT)], ["one", "two"], name="x.so", needs=needs)
    found = read_shared(image, "x")
    assert (found.name, found.needed) == ("x.so", ("libtheirs.so.1",))
    assert (found.exports, found.imports) == (("one", "two"), ("ours", "theirs"))
    assert "r-x" in found.rights and not any("wx" in r for r in found.rights)
    for cut in (3, 40, 200, len(image) // 2):
        with pytest.raises(Invalid):
            read_shared(image[:cut], "x")
