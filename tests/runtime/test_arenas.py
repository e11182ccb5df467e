"""Large arenas that all programs share."""

from __future__ import annotations

import gc

import pytest

from tilewright.base import knobs
from tilewright.runtime.arenas import Arenas
from tilewright.runtime.memory import OutOfMemory

MB = 1 << 20


class User:
    """Stands for a program."""


def test_one_arena_serves_programs_in_turn() -> None:
    arenas, users = Arenas(), [User(), User()]
    for user, size in zip(users, (8 * MB, 4 * MB), strict=True):
        arenas.join(user, size)
    first = arenas.take(8 * MB)
    other = arenas.take(4 * MB)  # a call that runs meanwhile has its own
    assert other.address != first.address
    arenas.put(other)
    arenas.put(first)
    assert arenas.take(4 * MB).address == other.address
    assert arenas.take(3 * MB).address == first.address  # nothing smaller is free
    assert arenas.held == 0


def test_a_larger_one_takes_the_place_of_a_smaller_one() -> None:
    arenas, user = Arenas(), User()
    arenas.join(user, 16 * MB)
    arenas.put(arenas.take(4 * MB))
    arenas.put(arenas.take(16 * MB))
    assert arenas.held == 16 * MB


def test_memory_goes_with_the_last_program_that_needs_it() -> None:
    arenas, large, small = Arenas(), User(), User()
    arenas.join(large, 8 * MB)
    arenas.join(small, 2 * MB)
    both = arenas.take(8 * MB), arenas.take(2 * MB)
    for a in both:
        arenas.put(a)
    del large
    gc.collect()
    assert arenas.held == 2 * MB
    last = arenas.take(2 * MB)
    del small
    gc.collect()
    arenas.put(last)  # its program died while it was in use
    assert arenas.held == 0


def test_too_much_is_an_error_before_it_is_asked_for() -> None:
    with knobs.memory_mb.override(4), pytest.raises(OutOfMemory, match="arena of a call"):
        Arenas().take(8 * MB)
