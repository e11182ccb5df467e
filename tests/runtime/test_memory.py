"""Memory that programs allocate."""

import ctypes

import pytest

from tilewright.runtime.memory import ALIGN, LARGE_PAGE, aligned


@pytest.mark.parametrize("size", [0, 1, 1000, LARGE_PAGE - 1, LARGE_PAGE, 5 * LARGE_PAGE // 2 + 3])
def test_all_of_it_can_be_written(size: int) -> None:
    memory, address = aligned(size)
    assert address % (LARGE_PAGE if size >= LARGE_PAGE else ALIGN) == 0
    start = memory.ctypes.data
    assert start <= address and address + size <= start + memory.nbytes
    ctypes.memset(address, 7, size)
    assert int((memory == 7).sum()) >= size
