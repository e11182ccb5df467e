"""The suite of wild kernels itself: stand-ins, what is said of a kernel, what fails a run."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tilewright as tw
import tilewright.language as tl
from tests.suites.emulated import Emulator
from tests.suites.wild_libraries import DRIVERS, LIBRARIES, Library, known_by
from tests.suites.wild_results import catalogue, judge
from tests.suites.wild_runs import Case, Options, Ran, run

KERNELS = """
import triton
import triton.language as tl

@triton.jit
def helper(x):
    return x + 1

@triton.jit
def first(x):
    tl.store(x, helper(tl.load(x)))

@triton.jit
def second(x):
    tl.store(x, 2)

@triton.jit
def third(x):
    tl.store(x, 3)

@triton.jit
def fourth(x):
    tl.store(x, 4)

tuned = triton.autotune(configs=[], key=[])(fourth)

def call(x):
    first[(1,)](x)
    second[(1,)](x)

def wrapped(x):
    torch.library.wrap_triton(third)[(1,)](x)
    chosen = tuned if x else second
    chosen[(1,)](x)
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("import no_such_extension\n")
    (tmp_path / "package" / "kernels.py").write_text(KERNELS)
    return tmp_path


LIBRARY = Library(
    name="theirs", marker="package", sources=(".",), kernels=("package",), tests=("test_*.py",)
)


def ran(checkout: Path, *cases: tuple[str, str, str]) -> Ran:
    """Cases as (name, result, kernels)."""
    file = str(checkout / "package" / "kernels.py")
    return Ran(
        began=0.0,
        cases=[
            Case(name, result, "why", 1.0, [(file, k) for k in kernels.split()])
            for name, result, kernels in cases
        ],
    )


def test_helpers_are_no_kernels(checkout: Path) -> None:
    names = [kernel.rpartition(":")[2] for kernel in catalogue(LIBRARY, checkout)]
    assert names == ["first", "fourth", "second", "third"]


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ("right", {"first": "right", "second": "right"}),
        ("wrong", {"first": "wrong", "second": "wrong"}),
        ("refused", {"first": "not judged", "second": "refused"}),
        ("crashed", {"first": "not judged", "second": "crashed"}),
        ("not run", {"first": "not judged", "second": "not judged"}),
    ],
)
def test_what_is_said_of_kernels(checkout: Path, result: str, said: dict[str, str]) -> None:
    judged = judge(LIBRARY, checkout, ran(checkout, ("a", result, "first second")), {}, True)
    found = {v.kernel.split(":")[1]: v.result for v in judged.verdicts}
    assert {name: found[name] for name in said} == said
    assert bool(judged.problems) == (result in ("wrong", "refused", "crashed"))


def test_the_worst_case_decides(checkout: Path) -> None:
    cases = ran(checkout, ("a", "right", "first"), ("b", "refused", "first"))
    judged = judge(LIBRARY, checkout, cases, {}, True)
    assert judged.counts == {"refused": 1, "not reached": 3}


@pytest.mark.parametrize(
    ("expected", "problems"),
    [
        ({"t.py::a[*": "why"}, []),
        ({"t.py::a[1]": "why", "t.py::b": "why"}, ["unexpected pass"]),
        ({"t.py::a[1]": "why", "t.py::b": "sometimes: why"}, []),
        ({"t.py::a[1]": "why", "t.py::c": "why"}, ["unknown case"]),
    ],
)
def test_what_is_expected(checkout: Path, expected: dict[str, str], problems: list[str]) -> None:
    cases = ran(checkout, ("t.py::a[1]", "wrong", "first"), ("t.py::b", "right", "second"))
    judged = judge(LIBRARY, checkout, cases, expected, True)
    assert [result for _, result, _ in judged.problems] == problems


def test_a_driver_that_does_not_run_is_a_problem(checkout: Path) -> None:
    cases = ran(checkout, ("test_a.py::a", "not run", ""), ("drive_a.py::a", "not run", ""))
    judged = judge(LIBRARY, checkout, cases, {}, True)
    assert [case for case, _, _ in judged.problems] == ["drive_a.py::a"]


def test_refusals_that_name_a_gpu_are_counted_apart(checkout: Path) -> None:
    cases = ran(checkout, ("a", "refused", "first"))
    cases.cases[0].why = "inline assembly 'mbarrier.init' is unknown"
    judged = judge(LIBRARY, checkout, cases, {}, True)
    assert judged.counts["gpu"] == 1 and judged.problems == []


def test_kernels_that_triton_refuses_too_are_counted_apart(checkout: Path) -> None:
    cases = ran(checkout, ("a", "refused", "first"), ("b", "refused", "second"))
    cases.cases.append(replace(cases.cases[0], name="c", result="right"))
    old = {"a": "Triton refuses it too: why", "b": "Triton refuses it too: why"}
    judged = judge(LIBRARY, checkout, cases, old, True)
    found = {v.kernel.split(":")[1]: v.result for v in judged.verdicts}
    assert (found["first"], found["second"]) == ("right", "apart") and judged.problems == []


def test_libraries_are_known_by_their_folders(tmp_path: Path) -> None:
    assert known_by(tmp_path) == []
    for library in LIBRARIES:
        (tmp_path / library.name / library.marker).mkdir(parents=True)
        assert known_by(tmp_path / library.name) == [library]
        assert library.driver is None or any(DRIVERS.glob(library.driver))


STAND_INS = """
import sys
sys.path.insert(0, {drivers!r})
import standins
from pathlib import Path
standins.install(["bare"], ["bare.absent"], [Path({root!r})])
sys.path.insert(0, {root!r})
import user
assert user.fast is None, "the library's own answer to a missing module"
try:
    user.use()
except standins.NotHere as error:
    print(error)
import bare.module
print(bare.module.value, bare.absent.anything.__name__)
"""

USER = """
import missing.part
from missing import Base, decorate

try:
    import missing_too as fast
except ImportError:
    fast = None

class Derived(Base):
    pass

@decorate
def kept():
    return 1

assert kept() == 1

def use():
    missing.part.function(3)
"""


def test_stand_ins_satisfy_imports_and_refuse_use(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "__init__.py").write_text("raise RuntimeError('it is not run')")
    (tmp_path / "bare" / "absent.py").write_text("raise RuntimeError('it is not run')")
    (tmp_path / "bare" / "module.py").write_text("import bare.absent\nvalue = 7\n")
    script = STAND_INS.format(drivers=str(DRIVERS), root=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "missing.part.function is not installed: only its import is satisfied",
        "7 anything",
    ], done.stderr


@tw.jit
def reversed_sums(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + n - 1 - i, tl.cumsum(tl.load(x + i, i < n, 0), 0), i < n)


def test_kernels_run_as_the_code_of_a_gpu() -> None:
    emulator, out = Emulator(), torch.zeros(50, dtype=torch.int32)
    with emulator.installed():
        f = tw.jit(reversed_sums.fn)
        made = f[(1,)](torch.arange(50, dtype=torch.int32), out, 50, BLOCK=64, num_warps=2)
    assert out.tolist() == [k * (k + 1) // 2 for k in range(49, -1, -1)]
    assert emulator.made == ["reversed_sums"] and ".target sm_90a" in made.asm["ptx"]


CASES = """
import os, pytest, time, torch
from package.kernels import call

def test_right():
    x = torch.zeros(1, device="cuda")
    call(x)
    assert x == 2

def test_wrong():
    x = torch.zeros(1, device="cuda")
    call(x)
    assert x == 3

def test_dies():
    os._exit(3)

def test_hangs():
    time.sleep(60)

@pytest.mark.parametrize("n", [1, 2, 3])
def test_skips(n):
    if n < 2:
        pytest.skip("too small")
"""


@pytest.mark.slow
def test_a_library_on_a_gpu_that_is_emulated(checkout: Path) -> None:
    (checkout / "test_theirs.py").write_text(CASES)
    options = Options(limit=20.0, emulated=True, words="right or wrong")
    found = run(LIBRARY, checkout, options, lambda *_: None)
    assert [case.result for case in found.cases] == ["right", "wrong"]


@pytest.mark.slow
def test_a_library_from_end_to_end(checkout: Path) -> None:
    (checkout / "test_theirs.py").write_text(CASES)
    found = run(LIBRARY, checkout, Options(limit=5.0), lambda *_: None)
    assert {case.name.partition("::")[2]: case.result for case in found.cases} == {
        "test_right": "right",
        "test_wrong": "wrong",
        "test_dies": "crashed",
        "test_hangs": "slow",
        "test_skips[1]": "skipped",
        "test_skips[2]": "right",  # without a kernel, so the next one is tried too
        "test_skips[3]": "right",
    }
    assert found.stood_in == {"no_such_extension"}
    judged = judge(LIBRARY, checkout, found, {}, True)
    assert judged.counts == {"wrong": 2}
