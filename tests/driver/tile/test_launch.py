"""Who runs a kernel, over which grid, and what a launch costs and gives back."""

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as tl
from tilewright.base import knobs
from tilewright.driver.tile.launch import GRIDS, INTERPRET, NATIVE, checked_grid, executor
from tilewright.lang.tile.front import overflow
from tilewright.lang.tile.lowering.reports import DeviceAssertion, Reports
from tilewright.lang.tile.lowering.state import Site


@tw.jit
def where(out, GRID_Y: tl.constexpr, GRID_Z: tl.constexpr):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    at = (x * GRID_Y + y) * GRID_Z + z
    tl.store(out + at, 100 * x + 10 * y + z)


@tw.jit
def both(a, b, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.device_assert(n > 0, "not empty")
    tl.store(b + i, tl.load(a + i, i < n), i < n)


@pytest.mark.parametrize(
    ("given", "sizes"),
    [(3, (3, 1, 1)), ((2,), (2, 1, 1)), ([2, 3], (2, 3, 1)), ((0, 2, 3), (0, 2, 3))]
    + [((2, 3, 1, 1), (2, 3, 1))],  # a fourth size is read by nobody
)
def test_grids(given, sizes):
    assert checked_grid(given, "k") == sizes
    assert checked_grid((np.int64(2),), "k") == (2, 1, 1)


def test_the_largest_grid_is_allowed_and_the_next_is_not():
    assert checked_grid((2**31 - 1,), "k") == (2**31 - 1, 1, 1)
    with pytest.raises(tw.Invalid, match="2,147,483,648 programs"):
        checked_grid((2**31,), "k")


def test_a_compiled_kernel_is_launched_with_or_without_its_constants():
    a, b = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    kernel = both.warmup(a, b, 8, BLOCK=4, grid=(2,))
    kernel[(2,)](a, b, 8, 4)
    assert b.tolist() == a.tolist()
    b[:] = 0
    kernel[(2,)](a, b, 8)
    assert b.tolist() == a.tolist()


def test_three_axes_reach_every_program():
    out = np.full(2 * 3 * 4, -1, np.int32)
    for _ in range(2):  # the second launch knows the grid
        out[:] = -1
        where[(2, 3, 4)](out, 3, 4)
        expected = [100 * x + 10 * y + z for x in range(2) for y in range(3) for z in range(4)]
        assert out.tolist() == expected
    assert GRIDS[(2, 3, 4)] == (2, 3, 4)


def test_grids_that_are_remembered_are_few():
    out = np.zeros(1, np.int32)
    GRIDS.update({("filler", k): (1, 1, 1) for k in range(5000)})
    where[(1, 1)](out, 1, 1)
    assert len(GRIDS) < 10


def test_who_runs_kernels():
    with knobs.interpret.override(True):
        assert executor() is INTERPRET
    with knobs.interpret.override(None), knobs.tile_check.override(True):
        assert executor() is INTERPRET
    with knobs.interpret.override(None), knobs.tile_check.override(None):
        assert executor() is NATIVE


def test_each_launch_looks_who_runs_kernels():
    a, b = np.arange(100, dtype=np.float64), np.zeros(100)
    f = tw.jit(both.fn)
    kernels = []
    for steps, checks in [(None, None), (True, None), (None, True), (False, False), (True, None)]:
        with knobs.interpret.override(steps), knobs.tile_check.override(checks):
            for _ in range(2):
                b[:] = 0
                kernels.append(f[(2,)](a, b, 100, BLOCK=64))
                np.testing.assert_array_equal(a, b)
    assert [k.wants_given for k in kernels] == [bool(x) for x in (0, 0, 1, 1, 1, 1, 0, 0, 1, 1)]
    assert len({id(k) for k in kernels}) == 2  # each is made once


@pytest.mark.parametrize("stepped", [False, True])
def test_both_executors_agree(stepped):
    a, b = np.arange(100, dtype=np.float64), np.zeros(100)
    f = tw.jit(both.fn)
    with knobs.interpret.override(stepped):
        kernel = f[(2,)](a, b, 100, BLOCK=64)
    assert kernel.wants_given is stepped
    np.testing.assert_array_equal(a, b)
    assert kernel.asm["ttir"].startswith("kernel both(")


def test_forms_of_a_kernel():
    a = np.zeros(64, np.float32)
    kernel = both.warmup(a, a, 64, BLOCK=64, grid=(1,))
    assert {"ttir", "nest", "llir", "asm"} <= set(kernel.asm.keys())
    assert "assert" not in kernel.asm["ttir"]
    assert "define" in kernel.asm["llir"] and "llir" in kernel.asm
    forms = kernel.asm
    assert list(forms) == ["ttir", "nest", "trace", "llir", "asm"] and len(forms) == 5
    assert forms.get("llir") == forms["llir"] and forms.get("ptx") is None
    assert {name: text for name, text in forms.items() if text} == dict(forms)
    debugged = both.warmup(a, a, 64, BLOCK=64, grid=(1,), debug=True)
    assert "assert" in debugged.asm["ttir"]
    assert repr(kernel) == "CompiledKernel(both(a: *fp32, b: *fp32, n: i32, BLOCK: constexpr))"
    kernel._init_handles()
    assert kernel.result() is kernel


def test_a_warm_launch_makes_nothing(monkeypatch):
    a, b = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    both[(1,)](a, b, 64, BLOCK=64)

    def never(*_, **__):
        raise AssertionError("prepared again")

    monkeypatch.setattr(NATIVE, "prepare", never, raising=False)
    kernels = dict(both.kernels)
    both[(1,)](a, b, 64, BLOCK=64)
    assert both.kernels == kernels
    np.testing.assert_array_equal(a, b)


def test_errors_in_kernels_come_from_launches():
    @tw.jit
    def odd(x, BLOCK: tl.constexpr):
        tl.store(x + tl.arange(0, BLOCK), 1)

    with pytest.raises(tw.Invalid, match="power of") as found:
        odd[(1,)](np.zeros(100), BLOCK=100)
    assert "tl.arange(0, BLOCK)" in str(found.value) and "^" in str(found.value)
    chain, seen = found.value, []
    while chain is not None:
        seen.append(type(chain))
        chain = chain.__cause__ or chain.__context__
    assert KeyError not in seen, "looking for the kernel is no part of what went wrong"


def test_launches_that_end_together_tell_a_report_once():
    """One thread finds what another has already reported, and reports nothing."""
    reports = Reports("both", [Site("assert", "not empty", (), None)])
    reports.take(0, 3, [1, 0, 0])
    reports.take(0, 3, [2, 0, 0])
    with pytest.raises(DeviceAssertion, match=r"program \(1, 0, 0\): not empty \(and 1 more\)"):
        reports.finish()
    reports.finish()


@tw.jit
def doubled(x, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i) * 2)


def test_kernels_outside_the_package_are_not_part_of_it(monkeypatch, tmp_path):
    """A folder whose name begins like ours is the user's: its sums are looked at."""
    with knobs.cache_dir.override(tmp_path):
        x = np.full(16, 2**30, np.int32)
        monkeypatch.setattr(overflow, "_OURS", Path(__file__[:-4]))
        with pytest.raises(DeviceAssertion, match="int32 overflow detected for operation mul"):
            tw.jit(doubled.fn)[(1,)](x, BLOCK=16, debug=True)
