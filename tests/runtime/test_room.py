"""Memory of large results that stays with the process from one training step to the next."""

from __future__ import annotations

import gc
import random
import subprocess
import sys

import numpy as np
import pytest

from tilewright.base import knobs
from tilewright.bench.resident import ResidentPeak
from tilewright.runtime import room
from tilewright.runtime.memory import LARGE_PAGE
from tilewright.runtime.room import ALIGN, Free, Room

MB = 1 << 20
reserved = pytest.mark.skipif(sys.platform != "linux", reason="such memory is reserved on Linux")


class User:
    """Stands for a program."""


@pytest.fixture
def made() -> Room:
    return Room(256 * MB)


def test_pieces_never_overlap_and_become_one_again() -> None:
    rng, free, held = random.Random(0), Free(1000), []
    for _ in range(2000):
        if rng.random() < 0.5 and held:
            free.put(*held.pop(rng.randrange(len(held))))
        else:
            size = rng.randint(1, 60)
            start = free.take(size)
            if start is None:
                assert all(n < size for n in free.sizes)
                continue
            assert all(start + size <= a or a + n <= start for a, n in held)
            assert start + size <= min(free.touched, 1000)
            held.append((start, size))
        assert sum(free.sizes) + sum(n for _, n in held) == 1000
        ends = [a + n for a, n in zip(free.starts, free.sizes, strict=True)]
        assert all(a < b for a, b in zip(ends, free.starts[1:], strict=False))
    for piece in held:
        free.put(*piece)
    assert (free.starts, free.sizes) == ([0], [1000])


@reserved
def test_what_nobody_refers_to_is_taken_again(made: Room) -> None:
    user = User()
    made.join(user)
    first, second = made.piece(MB), made.piece(MB)
    assert first is not None and second is not None
    assert first.nbytes == MB and first.ctypes.data % ALIGN == 0
    first[:], second[:] = 1, 2
    part = second[5:9]  # refers to the piece
    at = first.ctypes.data
    del first, second
    again, other = made.piece(MB), made.piece(MB)
    assert again is not None and again.ctypes.data == at and again[0] == 1
    assert other is not None and not np.shares_memory(other, part)
    assert list(part) == [2] * 4


@reserved
def test_pages_go_with_the_last_program(made: Room) -> None:
    users = [User(), User()]
    for user in users:
        made.join(user)
    kept, gone = made.piece(4 * MB), made.piece(64 * MB)
    assert kept is not None and gone is not None
    kept[:], gone[:] = 3, 3
    before = _resident()
    del gone, user
    users.pop()
    gc.collect()
    assert _resident() > before - 8 * MB  # one program may ask for it still
    users.pop()
    gc.collect()
    assert _resident() < before - 56 * MB
    assert kept.min() == kept.max() == 3
    del kept  # nobody is there who would have it again
    assert _resident() < before - 60 * MB


@reserved
def test_free_memory_is_given_back_on_request(made: Room) -> None:
    user = User()
    made.join(user)
    piece = made.piece(64 * MB)
    assert piece is not None
    piece[:] = 1
    before = _resident()
    del piece
    made.trim()
    assert _resident() < before - 60 * MB
    piece = made.piece(64 * MB)
    assert piece is not None and piece[0] == 0


@reserved
def test_there_may_be_no_room(made: Room) -> None:
    held = [made.piece(100 * MB), made.piece(100 * MB)]
    assert made.piece(100 * MB) is None
    held.pop()
    assert made.piece(100 * MB) is not None


@reserved
def test_large_pages_begin_where_pieces_do(made: Room) -> None:
    piece = made.piece(1)
    assert piece is not None and piece.ctypes.data % LARGE_PAGE == 0


OUTLIVES = """
import numpy
from tilewright.runtime.room import Room
class User: pass
made, user = Room(1 << 28), User()
made.join(user)
numpy.held = [made.piece(1 << 20) for _ in range(3)]
"""


@reserved
def test_a_process_ends_while_pieces_are_held() -> None:
    """By what outlives the module's own names."""
    done = subprocess.run([sys.executable, "-c", OUTLIVES], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@reserved
def test_the_switch() -> None:
    assert room.room() is not None
    with knobs.keep_pages.override(False):
        assert room.room() is None


def _resident() -> int:
    gc.collect()
    return ResidentPeak().before
