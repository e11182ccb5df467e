"""Kernels whose programs wait for each other: natively and step by step, whatever the grid."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as tl
from tests.driver.tile.impatience import impatience
from tilewright.base.errors import Invalid
from tilewright.runtime import pool

MODES = ("native", "step")


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "step":
        monkeypatch.setenv("TILEWRIGHT_INTERPRET", "1")
    return request.param


@tw.jit
def barriers(x, y, arrived, N: tl.constexpr, PHASES: tl.constexpr):
    """In every phase each program adds what its right neighbour has, after all have come so far."""
    pid = tl.program_id(0)
    n = tl.num_programs(0)
    for phase in range(PHASES):
        here = tl.load(x + (pid + 1) % n)
        tl.atomic_add(arrived, 1)
        while tl.atomic_add(arrived, 0) < (2 * phase + 1) * n:
            pass
        tl.store(x + pid, tl.load(x + pid) + here)
        tl.atomic_add(arrived, 1)
        while tl.atomic_add(arrived, 0) < (2 * phase + 2) * n:
            pass
    tl.store(y + pid, tl.load(x + pid))


# Step by step many programs that all wait take long.
MANY = [
    *((mode, programs) for mode in MODES for programs in (1, 2, 3)),
    *(("native", programs) for programs in (7, 40)),
    *(pytest.param("step", programs, marks=pytest.mark.slow) for programs in (7, 40)),
]


@pytest.mark.parametrize(("mode", "programs"), MANY, indirect=["mode"])
def test_all_wait_for_all(mode: str, programs: int) -> None:
    x = np.arange(programs, dtype=np.int32)
    expected = x.copy()
    for _ in range(3):
        expected = expected + np.roll(expected, -1)
    y, arrived = np.zeros_like(x), np.zeros(1, np.int32)
    barriers[(programs,)](x, y, arrived, N=programs, PHASES=3)
    np.testing.assert_array_equal(y, expected)


@tw.jit
def look_back(x, y, sums, flags, B: tl.constexpr):
    """Cumulative sums in one pass: a program waits for the sum up to the one before it."""
    pid = tl.program_id(0)
    at = pid * B + tl.arange(0, B)
    v = tl.load(x + at)
    before = 0
    if pid > 0:
        while tl.load(flags + pid - 1, volatile=True) == 0:
            pass
        before = tl.load(sums + pid - 1)
    tl.store(sums + pid, before + tl.sum(v, 0))
    tl.store(flags + pid, 1)
    tl.store(y + at, before + tl.cumsum(v, 0))


@pytest.mark.parametrize("programs", [3, 60])
def test_each_waits_for_the_one_before(mode: str, programs: int) -> None:
    x = np.random.default_rng(0).integers(0, 9, programs * 16).astype(np.int32)
    y = np.zeros_like(x)
    sums, flags = np.zeros(programs, np.int32), np.zeros(programs, np.int32)
    look_back[(programs,)](x, y, sums, flags, B=16)
    np.testing.assert_array_equal(y, np.cumsum(x))


@tw.jit
def later_first(x, y, part, flags, B: tl.constexpr):
    """The first program adds what the later ones have left for it, as stream-K kernels do."""
    pid = tl.program_id(0)
    at = tl.arange(0, B)
    v = tl.load(x + pid * B + at)
    if pid == 0:
        for k in range(1, tl.num_programs(0)):
            while tl.atomic_cas(flags + k, 1, 1) != 1:
                pass
            v += tl.load(part + k * B + at)
        tl.store(y + at, v)
    else:
        tl.store(part + pid * B + at, v)
        tl.atomic_xchg(flags + pid, 1)


@pytest.mark.parametrize("programs", [2, 33])
def test_the_first_waits_for_the_last(mode: str, programs: int) -> None:
    x = np.random.default_rng(1).random((programs, 32)).astype(np.float32)
    y, part = np.zeros(32, np.float32), np.zeros_like(x)
    later_first[(programs,)](x, y, part, np.zeros(programs, np.int32), B=32)
    np.testing.assert_allclose(y, x.sum(0), rtol=1e-5)


@pytest.mark.parametrize("threads", [1, 3])
def test_the_number_of_threads_does_not_matter(threads: int) -> None:
    before = pool.get_threads()
    pool.set_threads(threads)
    try:
        test_all_wait_for_all("native", 9)
        test_each_waits_for_the_one_before("native", 9)
        test_the_first_waits_for_the_last("native", 9)
    finally:
        pool.set_threads(before)


@tw.jit
def forgotten(flag, y):
    while tl.load(flag, volatile=True) == 0:
        pass
    tl.store(y + tl.program_id(0), 1)


def test_a_wait_without_end_is_an_error(mode: str) -> None:
    flag, y = np.zeros(1, np.int32), np.zeros(3, np.int32)
    with impatience(), pytest.raises(Invalid, match="waits for a value that no one writes") as e:
        forgotten[(3,)](flag, y)
    assert "test_waiting.py" in str(e.value)


@tw.jit
def locked(lock, total, x):
    pid = tl.program_id(0)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(total, tl.load(total) + tl.load(x + pid))
    tl.atomic_xchg(lock, 0)


def test_a_lock_is_no_wait(mode: str) -> None:
    """Who holds it runs: such kernels go on using the pool."""
    x = np.arange(100, dtype=np.int32)
    total, lock = np.zeros(1, np.int32), np.zeros(1, np.int32)
    kernel = locked[(100,)](lock, total, x)
    assert total[0] == x.sum()
    if mode == "native":
        assert "tw_concurrent" not in kernel.asm["llir"]


def test_it_comes_out_of_the_cache_too(tmp_path) -> None:
    """A second process finds code and what a launch has to know."""
    program = (
        "import numpy as np, tests.driver.tile.test_waiting as t\n"
        "t.test_all_wait_for_all('native', 12)\n"
    )
    for _ in range(2):
        subprocess.run(
            [sys.executable, "-c", program],
            check=True,
            env={**__import__("os").environ, "TILEWRIGHT_CACHE_DIR": str(tmp_path)},
            timeout=120,
        )
