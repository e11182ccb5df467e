"""Every stage can be dumped, edited and resumed: one constant is changed in each of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import ops
from tilewright.base import knobs
from tilewright.base.errors import Invalid, Refused, TilewrightError
from tilewright.base.events import Log
from tilewright.driver.program.options import Options
from tilewright.driver.program.programs import compile_graph
from tilewright.driver.program.stages import DIGESTS, LIST, clusters_text
from tilewright.ir import dim as D
from tilewright.ir.node import Graph, Place, input, item
from tilewright.ir.pipeline import Pipeline
from tilewright.ir.text import parse_graph, print_graph
from tilewright.ir.types import TensorType, b1, f32
from tilewright.kernel.step import parse_trace, print_trace
from tilewright.kernel.text import group_text, nest_text, parse_group, parse_nest
from tilewright.runtime.program import Program

build: Any = ops

ROWS, COLUMNS = 6, 40


def program_graph() -> Graph:
    """The largest of 3·x + 5·w in each row: one kernel, and one for what depends on w only."""
    x = input("x", TensorType(f32, (ROWS, COLUMNS)))
    w = input("w", TensorType(f32, (COLUMNS,)), "weight")
    y = build.add(build.mul(x, 3.0), build.mul(w, 5.0))
    top = build.amax(y, (1,), True)
    return Graph("scaled", (x, w), (top,), {y: frozenset({Place("model.py", 7)})})


X = np.linspace(-2, 2, ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
W = np.linspace(1, 0, COLUMNS, dtype=np.float32)


def run(p: Program) -> np.ndarray:
    out = np.empty((ROWS, 1), np.float32)
    p.run([X.ctypes.data, W.ctypes.data], [out.ctypes.data])
    return out


def expected(factor: float = 3.0) -> np.ndarray:
    return (X * np.float32(factor) + W * 5).max(1, keepdims=True)


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stages of the program, written once; tests copy what they edit."""
    folder = tmp_path_factory.mktemp("stages")
    p = compile_graph(program_graph(), Options(dump=folder))
    np.testing.assert_allclose(run(p), expected(), rtol=1e-6)
    return folder


def copy(dumped: Path, to: Path) -> Path:
    for path in dumped.rglob("*"):
        if path.is_file():
            there = to / path.relative_to(dumped)
            there.parent.mkdir(parents=True, exist_ok=True)
            there.write_text(path.read_text())
    return to


def one(folder: Path, pattern: str) -> Path:
    """The one file of this pattern in the main program's folder."""
    (found,) = (p for p in folder.glob(f"scaled-*/{pattern}"))
    return found


def edit(path: Path, change: Callable[[str], str]) -> None:
    text = path.read_text()
    changed = change(text)
    assert changed != text, f"nothing changed in {path.name}:\n{text}"
    path.write_text(changed)


def resumed(folder: Path, again: Path | None = None) -> tuple[Program, Log]:
    log = Log()
    return compile_graph(program_graph(), Options(resume=folder, dump=again), log), log


def test_files_of_a_program(dumped: Path) -> None:
    (folder,) = dumped.iterdir()
    names = sorted(p.name for p in folder.iterdir())
    assert names[:2] == ["00-input.tw", "01-Simplify.tw"]
    numbers = [int(n.split("-")[0]) for n in names if n[0].isdigit()]
    assert sorted(set(numbers)) == list(range(max(numbers) + 1))
    kinds = {p.suffix for p in folder.iterdir()}
    assert {".tw", ".txt", ".group", ".trace", ".nest", ".legal", ".ll", ".s", ".json"} <= kinds
    assert names[-4].endswith("-entry.ll") and names[-3:] == [LIST, DIGESTS, "weights"]
    assert (folder / "weights").is_dir(), "what depends on weights only is a program of its own"


def test_every_form_reads_back(dumped: Path) -> None:
    forms: dict[str, Callable[[str], str]] = {
        ".tw": lambda t: print_graph(parse_graph(t)) + "\n",
        ".list": lambda t: ",\n".join(map(str, Pipeline.parse(t))) + "\n",
        ".group": lambda t: group_text(parse_group(t)),
        ".trace": lambda t: print_trace(parse_trace(t)),
        ".nest": lambda t: nest_text(parse_nest(t)),
        ".legal": lambda t: nest_text(parse_nest(t)),
    }
    seen = set()
    for path in dumped.rglob("*"):
        if path.suffix in forms:
            seen.add(path.suffix)
            assert forms[path.suffix](path.read_text()) == path.read_text(), path.name
    assert seen == set(forms)


def test_dumping_again_gives_the_same_text(dumped: Path, tmp_path: Path) -> None:
    compile_graph(program_graph(), Options(dump=tmp_path))
    before, after = (
        {p.relative_to(d): p.read_text() for p in d.rglob("*") if p.is_file()}
        for d in (dumped, tmp_path)
    )
    assert before == after


def test_lines_of_the_user_survive(dumped: Path) -> None:
    assert "# model.py:7" in one(dumped, "00-input.tw").read_text()


def scaled_by_four(text: str) -> str:
    return re.sub(r"\b3\.0\b", "4.0", text)


@pytest.mark.parametrize("stage", ["00-input.tw", "*-Decompose.tw", "*.group", "*.nest", "*.legal"])
def test_an_edited_constant_changes_the_result(dumped: Path, tmp_path: Path, stage: str) -> None:
    folder = copy(dumped, tmp_path / "edited")
    edit(one(folder, stage), scaled_by_four)
    p, log = resumed(folder, tmp_path / "again")
    np.testing.assert_allclose(run(p), expected(4.0), rtol=1e-6)
    assert len(log.of("resume")) == 1
    # What was edited is what is written next time.
    assert one(tmp_path / "again", stage).read_text() == one(folder, stage).read_text()


def test_an_edited_list_of_passes_is_the_one_that_runs(dumped: Path, tmp_path: Path) -> None:
    folder = copy(dumped, tmp_path / "edited")
    edit(one(folder, LIST), lambda t: t.replace("Winograd,\n", ""))
    p, log = resumed(folder, tmp_path / "again")
    np.testing.assert_allclose(run(p), expected(), rtol=1e-6)
    assert len(log.of("resume")) == 1
    assert one(dumped, "*-Winograd.tw") and not list(tmp_path.glob("again/*/*-Winograd.tw"))
    assert one(tmp_path / "again", LIST).read_text() == one(folder, LIST).read_text()
    # An edited stage of the old list is no stage of the new one.
    edit(one(folder, "*-PackOperands.tw"), scaled_by_four)
    with pytest.raises(Invalid, match="is edited, and the passes of this compile have no"):
        resumed(folder)


def test_an_edited_llvm_constant_changes_the_result(dumped: Path, tmp_path: Path) -> None:
    folder = copy(dumped, tmp_path)
    three, four = "0x4008000000000000", "0x4010000000000000"
    path = one(folder, "*-k_*.ll")
    if three not in path.read_text():
        three, four = "3.0", "4.0"
    edit(path, lambda t: t.replace(three, four))
    p, _ = resumed(folder)
    np.testing.assert_allclose(run(p), expected(4.0), rtol=1e-6)


def test_an_edited_trace_changes_the_loops_and_not_the_result(dumped: Path, tmp_path: Path) -> None:
    folder = copy(dumped, tmp_path / "edited")
    edit(
        one(folder, "*.trace"), lambda t: re.sub(r"^(Parallel|Vectorize)\(.*\n", "", t, flags=re.M)
    )
    p, _ = resumed(folder, tmp_path / "again")
    np.testing.assert_allclose(run(p), expected(), rtol=1e-6)
    before, after = (one(d, "*-k_*.ll").read_text() for d in (dumped, tmp_path / "again"))
    assert " x float>" in before and " x float>" not in after, "no vectors without Vectorize"
    trace = one(folder, "*.trace").read_text()
    assert p.kernels[0].trace == trace


def test_an_edited_weight_program(dumped: Path, tmp_path: Path) -> None:
    folder = copy(dumped, tmp_path)
    edit(one(folder, "weights/00-input.tw"), lambda t: re.sub(r"\b5\.0\b", "0.0", t))
    p, _ = resumed(folder)
    np.testing.assert_allclose(run(p), (X * 3).max(1, keepdims=True), rtol=1e-6)


def test_edited_kernels_do_not_enter_the_cache(dumped: Path, tmp_path: Path) -> None:
    folder = copy(dumped, tmp_path)
    edit(one(folder, "*.nest"), scaled_by_four)
    resumed(folder)
    np.testing.assert_allclose(run(compile_graph(program_graph())), expected(), rtol=1e-6)


def test_switches_in_the_environment(dumped: Path, tmp_path: Path) -> None:
    folder = copy(dumped, tmp_path / "edited")
    edit(one(folder, "00-input.tw"), scaled_by_four)
    with knobs.resume.override(folder), knobs.dump.override(tmp_path / "again"):
        p = compile_graph(program_graph())
    np.testing.assert_allclose(run(p), expected(4.0), rtol=1e-6)
    assert one(tmp_path / "again", "00-input.tw").exists()


def test_another_program_is_left_alone(dumped: Path, tmp_path: Path) -> None:
    folder = copy(dumped, tmp_path)
    edit(one(folder, "00-input.tw"), scaled_by_four)
    x = input("x", TensorType(f32, (4,)))
    g = Graph("scaled", (x,), (build.mul(x, 3.0),))
    p = compile_graph(g, Options(resume=folder))
    a, out = np.ones(4, np.float32), np.empty(4, np.float32)
    p.run([a.ctypes.data], [out.ctypes.data])
    assert out.tolist() == [3.0] * 4


def replacing(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new)


def with_step(step: str) -> Callable[[str], str]:
    return lambda text: f"{step}\n{text}"


BAD_EDITS = [
    ("00-input.tw", replacing("amax", "amaxx"), Invalid, "there is no operator amaxx"),
    ("00-input.tw", replacing("w: weight", "w:"), Invalid, "other inputs"),
    ("00-input.tw", replacing("keepdims=True", "keepdims=False"), Invalid, "is declared as"),
    (LIST, replacing("Decompose,\n", ""), Invalid, "Decompose is missing"),
    (LIST, replacing("Winograd", "Winogrd"), Invalid, "did you mean Winograd"),
    ("*.group", replacing("in a0: f32[6,40]", "in a0: f32[6,41]"), Invalid, "other inputs"),
    ("*.trace", with_step("Parallel('nowhere')"), Refused, "there is no loop nowhere"),
    ("*.trace", with_step("Fly()"), Invalid, "is not a step"),
    ("*.nest", replacing("3.0", "3.0 +"), Invalid, "a value"),
    ("*.legal", replacing("stack ", "local "), Invalid, "says neither stack nor heap"),
    ("*-k_*.ll", replacing("define void @k_", "define void @j_"), Invalid, "does not define k_"),
    ("*-k_*.ll", replacing("ret void", "return void"), Invalid, "does not parse"),
]


@pytest.mark.parametrize(("stage", "change", "error", "says"), BAD_EDITS)
def test_a_bad_edit_gets_a_sentence(
    dumped: Path,
    tmp_path: Path,
    stage: str,
    change: Callable[[str], str],
    error: type[TilewrightError],
    says: str,
) -> None:
    folder = copy(dumped, tmp_path)
    path = one(folder, stage)
    edit(path, change)
    with pytest.raises(error, match=says) as caught:
        resumed(folder)
    assert path.name in str(caught.value), "the file is named"


def test_directories_that_cannot_be(dumped: Path, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="same directory"):
        resumed(dumped, dumped)
    with pytest.raises(Invalid, match="there is no directory"):
        resumed(tmp_path / "missing")
    (tmp_path / "file").write_text("")
    with pytest.raises(Invalid, match="cannot be written"):
        compile_graph(program_graph(), Options(dump=tmp_path / "file"))
    broken = copy(dumped, tmp_path / "broken")
    one(broken, DIGESTS).write_text("{")
    with pytest.raises(Invalid, match="not readable"):
        resumed(broken)


def test_clusters_say_what_and_where(dumped: Path) -> None:
    p = compile_graph(program_graph())
    cut = p.details.cut
    fused, plan = cut.fused, cut.plan
    text = clusters_text(fused, plan, lambda c: "k_0")
    assert text.startswith(f"{len(fused.clusters)} cluster")
    assert "cluster 0: row, kernel k_0" in text and "stores" in text and "(output 0)" in text
    assert "arena of" in text
    assert one(dumped, "*-clusters.txt").read_text().count("cluster ") == len(fused.clusters)


def test_digests_name_every_file(dumped: Path) -> None:
    (folder,) = dumped.iterdir()
    for where in (folder, folder / "weights"):
        listed = json.loads((where / DIGESTS).read_text())
        assert set(listed) == {p.name for p in where.iterdir() if p.is_file()} - {DIGESTS}


def test_symbolic_dims_and_branches(tmp_path: Path) -> None:
    """Stages of a graph with a symbol and a branch read back and can be edited."""
    s0 = D.sym("s0", 1, 64)
    x = input("x", TensorType(f32, (s0, 4)))
    p = input("p", TensorType(b1, ()))
    inner = input("v", TensorType(f32, (s0, 4)))
    branches = [Graph(n, (inner,), (build.mul(inner, f),)) for n, f in (("a", 3.0), ("b", 7.0))]
    chosen = item(build.cond(p, branches[0], branches[1], [x]), 0)
    graph = Graph("branchy", (x, p), (build.amax(chosen, (1,), True),))

    def largest(program: Program, which: bool) -> float:
        a, flag = np.ones((5, 4), np.float32), np.array(which)
        out = np.empty((5, 1), np.float32)
        program.run([a.ctypes.data, flag.ctypes.data], [out.ctypes.data], [5])
        return float(out[0, 0])

    first = compile_graph(graph, Options(dump=tmp_path / "first"))
    assert (largest(first, True), largest(first, False)) == (3.0, 7.0)
    (path,) = (tmp_path / "first").glob("branchy-*/00-input.tw")
    edit(path, lambda t: t.replace("3.0", "4.0"))
    second = compile_graph(graph, Options(resume=tmp_path / "first", dump=tmp_path / "second"))
    assert (largest(second, True), largest(second, False)) == (4.0, 7.0)
    for path in (tmp_path / "second").rglob("*"):
        if path.suffix == ".nest":
            assert nest_text(parse_nest(path.read_text())) == path.read_text()


def test_a_torch_program(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    def function(x: Any) -> Any:
        return x * 3.0 + 1.0

    x = torch.ones(8)
    with knobs.dump.override(tmp_path):
        assert tw.compile(function, x)(x)[0] == 4.0
    (path,) = tmp_path.glob("inference0-*/00-input.tw")
    assert "test_stages.py:" in path.read_text(), "the user's lines are in the text"
    edit(path, lambda t: t.replace("3.0", "5.0"))
    with knobs.resume.override(tmp_path):
        assert tw.compile(function, x)(x)[0] == 6.0
