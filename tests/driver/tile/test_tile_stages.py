"""Every stage of a tile kernel can be dumped, edited and resumed; nonsense is an error."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as tl
from tilewright.base import knobs
from tilewright.base.errors import TilewrightError
from tilewright.driver.program.stages import DIGESTS
from tilewright.kernel.step import parse_trace, print_trace
from tilewright.kernel.text import nest_text, parse_nest
from tilewright.lang.tile.text import kernel_text, parse_kernel

N = 100
X = np.linspace(-2, 2, N, dtype=np.float32)


def scale(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.device_assert(n > 0, "some")
    tl.store(y + i, tl.load(x + i, i < n) * 3.0, i < n)


def wait(flag, y):
    """The last program writes what all others wait for."""
    if tl.program_id(0) == tl.num_programs(0) - 1:
        tl.atomic_xchg(flag, 1)
    else:
        while tl.load(flag, volatile=True) == 0:
            pass
    tl.store(y + tl.program_id(0), 3.0)


@contextmanager
def setting(knob: Any, folder: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(knob.name, str(folder))
        yield


def run(**options: Any) -> tuple[np.ndarray, Any]:
    """A kernel of its own each time: one that was made is not made again."""
    y = np.zeros(N, np.float32)
    kernel = tw.jit(scale)[(2,)](X, y, N, BLOCK=64, **options)
    return y, kernel


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stages, written once; tests copy what they edit."""
    folder = tmp_path_factory.mktemp("dumped")
    with setting(knobs.dump, folder):
        y, _ = run()
    assert (y == X * 3).all()
    return folder


@pytest.fixture
def stages(dumped: Path, tmp_path: Path) -> Path:
    """The folder of the kernel, in a copy to resume from."""
    copied = tmp_path / "copied"
    shutil.copytree(dumped, copied)
    (only,) = copied.iterdir()
    return only


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) >= 1, text
    path.write_text(text.replace(old, new))


def resumed(stages: Path, **options: Any) -> tuple[np.ndarray, Any]:
    with setting(knobs.resume, stages.parent):
        return run(**options)


def test_every_form_is_a_file(stages: Path) -> None:
    kinds = ("ttir", "lowered", "trace", "nest", "legal", "ll", "s")
    assert {p.name for p in stages.iterdir()} == {*(f"scale.{k}" for k in kinds), DIGESTS}
    read: dict[str, tuple[Callable[[str], Any], Callable[[Any], str]]] = {
        "ttir": (parse_kernel, kernel_text),
        "lowered": (parse_nest, nest_text),
        "trace": (parse_trace, print_trace),
        "nest": (parse_nest, nest_text),
    }
    for kind, (parse, show) in read.items():
        text = (stages / f"scale.{kind}").read_text()
        assert show(parse(text)) == text


def test_nothing_edited_changes_nothing(stages: Path) -> None:
    assert (resumed(stages)[0] == X * 3).all()


@pytest.mark.parametrize(
    "kind, old, new",
    [
        ("ttir", "value=3.0", "value=4.0"),
        ("lowered", "* 3.0", "* 4.0"),
        ("nest", "* 3.0", "* 4.0"),
        ("legal", "* 3.0", "* 4.0"),
    ],
)
def test_an_edited_stage_counts(stages: Path, kind: str, old: str, new: str) -> None:
    edit(stages / f"scale.{kind}", old, new)
    y, kernel = resumed(stages)
    assert (y == X * 4).all()
    if kind == "ttir":  # what is shown is what was compiled
        assert "value=4.0" in kernel.asm["ttir"]


def test_edited_llvm_text_counts(stages: Path) -> None:
    edit(stages / "scale.ll", "0x4008000000000000", "0x4010000000000000")
    assert (resumed(stages)[0] == X * 4).all()


def test_how_the_grid_is_shared_is_a_step(stages: Path) -> None:
    path = stages / "scale.trace"
    first, rest = path.read_text().split("\n", 1)
    assert first.startswith("Parallel(loop='program', grain=")
    for step, nest in (("Parallel('program', 7)", "parallel program"), ("", "independent program")):
        path.write_text(f"{step}\n{rest}")
        y, kernel = resumed(stages)
        assert (y == X * 3).all()
        assert nest in kernel.asm["nest"]
        assert ("grain 7" in kernel.asm["nest"]) == bool(step)
        assert ("tw_parallel" in kernel.asm["llir"]) == bool(step)


def test_a_stage_counts_only_in_its_own_kernel(stages: Path) -> None:
    """Debugging kernels have their assertion, and so other stages."""
    edit(stages / "scale.ttir", "value=3.0", "value=4.0")
    assert (resumed(stages, debug=True)[0] == X * 3).all()


def test_what_was_edited_is_not_cached(stages: Path) -> None:
    edit(stages / "scale.ttir", "value=3.0", "value=4.0")
    assert (resumed(stages)[0] == X * 4).all()
    assert (run()[0] == X * 3).all()


# ---- nonsense


@pytest.mark.parametrize(
    "kind, old, new, says",
    [
        ("ttir", 'fn="mul"', 'fn="mull"', "line 4, column 3: map: there is no function mull"),
        ("ttir", "store(", "stroe(", "there is no operation stroe; there are assert, atomic"),
        ("ttir", "%n.2", "%m.2", "the edited kernel has other arguments than scale"),
        ("ttir", "%x.0: *f32 divisor", "%x.0: *f16 divisor", "does not become *f32[1]"),
        ("ttir", "kernel scale", "kernel scale(", "expected"),
        ("lowered", "independent program", "some program", "line"),
        ("lowered", "out x_0: *f32", "in x_0: *f32", "other inputs or outputs"),
        ("lowered", "where grid0: 1..", "where other: 1..", "line"),
        ("trace", "Parallel(", "Paralel(", "line 1 of the trace is not a step"),
        ("trace", "'program'", "'programs'", "there is no loop programs"),
        ("trace", "grain=", "grain=-", "is not a positive grain"),
        ("nest", "* 3.0", "* tree", "line"),
        ("nest", "  parallel program", "  for extra in 4:\n    parallel program", "line"),
        ("ll", "define void @scale(", "define void @other(", "does not define scale"),
        ("ll", "ret void", "ret viod", "viod"),
    ],
)
def test_nonsense_is_refused(stages: Path, kind: str, old: str, new: str, says: str) -> None:
    path = stages / f"scale.{kind}"
    edit(path, old, new)
    with pytest.raises(TilewrightError) as error:
        resumed(stages)
    shown = " ".join(str(error.value).split())
    assert says in shown and str(path) in shown, shown
    assert (run()[0] == X * 3).all()  # nothing of it stays


def test_reports_of_a_nest_are_those_of_its_kernel(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    with setting(knobs.dump, dump):
        run(debug=True)
    (stages,) = dump.iterdir()
    edit(stages / "scale.nest", "assert 0 ", "assert 9 ")
    with pytest.raises(TilewrightError, match="assert 9, which the kernel does not have"):
        resumed(stages, debug=True)


def test_programs_that_wait_run_at_the_same_time(tmp_path: Path) -> None:
    def launched() -> np.ndarray:
        flag, y = np.zeros(1, np.int32), np.zeros(5, np.float32)
        tw.jit(wait)[(5,)](flag, y)
        return y

    dump = tmp_path / "dump"
    with setting(knobs.dump, dump):
        assert (launched() == 3).all()
    (stages,) = dump.iterdir()
    path = stages / "wait.trace"
    step, rest = path.read_text().split("\n", 1)
    assert step == "Parallel(loop='program')"
    for changed, says in (
        ("", "wait for each other, and program is independent"),
        ("Parallel('program', 4)", "iterations of program wait for each other"),
    ):
        path.write_text(f"{changed}\n{rest}")
        with setting(knobs.resume, dump), pytest.raises(TilewrightError, match=says):
            launched()
