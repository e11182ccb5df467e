"""The command line: what it does, and that it answers bad input with a sentence."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tilewright.base.errors import MissingExtra
from tilewright.driver import cli
from tilewright.driver.looking import compare as torch_compare
from tilewright.driver.looking import demo

torch = pytest.importorskip("torch")

FILE = """
import torch

def scores(x, y):
    return torch.softmax(x @ y, -1)

scores_inputs = (torch.randn(4, 8), torch.randn(8, 5))
layer = torch.nn.Linear(8, 3)
inputs = lambda: [torch.randn(2, 8)]
number = 3

def both(x):
    print("both")
    return x, {"more": x + 1}

def unlucky(x):
    raise RuntimeError("unlucky")

class Fragile(torch.nn.Module):
    def __init__(self):
        raise RuntimeError("fragile")
"""

GRAPH = """
graph main(x: f32[4,8], w: weight f32[8]) {
  %0: f32[4,8] = mul(x, w)
  %1: f32[4,1] = sum{axes=(1,), keepdims=True}(%0)
  return %1
}
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(FILE)
    return path


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "main.tw"
    path.write_text(GRAPH)
    return path


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = cli.main([str(a) for a in arguments])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_compile(capsys: pytest.CaptureFixture[str], program: Path, tmp_path: Path) -> None:
    there = tmp_path / "stages"
    status, out, err = call(capsys, "compile", f"{program}:scores", "--dump", there)
    assert status == 0, err
    assert "distinct kernels" in out and "0 fallbacks" in out
    assert list(there.glob("*/00-input.tw"))


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        ("scores", 0, "all of scores is compiled"),
        ("layer", 0, "all of layer is compiled"),
        ("both", 1, 'print("both")'),
        ("unlucky", 1, ""),
    ],
)
def test_doctor(
    capsys: pytest.CaptureFixture[str], program: Path, name: str, status: int, said: str
) -> None:
    given = () if name in ("scores", "layer") else ("-i", "f32[3]")
    found, out, _ = call(capsys, "doctor", f"{program}:{name}", *given)
    assert found == status and said in out
    found, out, _ = call(capsys, "doctor", f"{program}:{name}", *given, "--json")
    facts = json.loads(out)
    assert found == facts["status"] == status
    if name == "both":
        (problem,) = facts["problems"]
        assert "print" in problem["remedy"] and problem["places"][0].startswith(str(program))
        found, out, _ = call(capsys, "compile", f"{program}:{name}", *given)
        assert "1 graph break\n" in out and "program.py:" in out, "as --strict says"


def test_run(capsys: pytest.CaptureFixture[str], program: Path) -> None:
    status, out, err = call(capsys, "run", f"{program}:layer", "--strict")
    assert status == 0, err
    assert "right" in out and "wrong" not in out


def test_results_for_programs_and_in_files(
    capsys: pytest.CaptureFixture[str], program: Path, tmp_path: Path
) -> None:
    """JSON has what the table has, and nothing else is on standard output."""
    x, file = np.ones((2, 8), np.float32), tmp_path / "x.npy"
    np.save(file, x)
    result = tmp_path / "y.npy"
    given = (f"{program}:layer", "-i", f"input=@{file}", "-o", result, "--json")
    status, out, err = call(capsys, "run", *given)
    assert status == 0, err
    (found,) = json.loads(out)["results"]
    y = np.load(result)
    assert (found["dtype"], found["shape"], found["right"]) == ("f32", [2, 3], True)
    assert found["min"] == pytest.approx(y.min()) and found["mean"] == pytest.approx(y.mean())
    assert (y[0] == y[1]).all() and "compiling" in err
    given = (f"{program}:both", "-i", "f32[3]", "--no-check")
    status, out, err = call(capsys, "run", *given, "--output", tmp_path / "y.npz")
    assert status == 0 and "not checked" in out
    assert set(np.load(tmp_path / "y.npz")) == {"0", "1_more"}
    status, out, err = call(capsys, "run", *given, "--output", result, "--json")
    assert "both" in err and json.loads(out)["status"] == 2, "what a model prints is no JSON"
    assert status == 2 and "one result, and there are 2" in err


def test_facts_of_every_kind(capsys: pytest.CaptureFixture[str], graph: Path) -> None:
    """What tables show is there as data."""
    for command, key in (
        (["compile", graph], "programs"),
        (["compile", graph, "--target", "riscv64"], "programs"),
        (["explain", graph], "programs"),
        (["explain", graph, "--kernel", 0, "--form", "nest"], "nest"),
        (["validate", graph], "stages"),
        (["bisect", graph], "right"),
        (["prove", "add-0", "--json"], "rules"),
        (["passes"], "list"),
        (["cache"], "kinds"),
        (["mine", "matrices", "--joining"], "operators"),
    ):
        status, out, err = call(capsys, *command, *([] if "prove" in command else ["--json"]))
        assert status == 0, err
        found = json.loads(out)
        assert found[key] and found["status"] == 0, command


def test_wrong_results_are_told(
    capsys: pytest.CaptureFixture[str], program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_compare, "EAGER_FACTOR", -1e9)
    status, out, _ = call(capsys, "run", f"{program}:scores")
    assert status == 1 and "wrong: result: error" in out


def test_inputs_by_type(capsys: pytest.CaptureFixture[str], program: Path) -> None:
    status, out, err = call(capsys, "run", f"{program}:scores", "-i", "f32[2,3]", "-i", "f32[3,7]")
    assert status == 0, err
    assert "right" in out


def test_explain(capsys: pytest.CaptureFixture[str], program: Path) -> None:
    status, out, err = call(capsys, "explain", f"{program}:scores")
    assert status == 0, err
    assert "clusters" in out and "program.py:5" in out
    status, out, _ = call(capsys, "explain", f"{program}:scores", "--kernel", 0)
    assert status == 0
    assert all(form in out for form in ("group", "trace", "nest", "define void @", "assembly"))


def test_rules(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    listed = tmp_path / "rules.json"
    status, out, err = call(capsys, "rules", "pow-1", "mul-0-*", "--json", listed)
    assert status == 0, err
    assert "2 rules: 1 proved, 1 tested" in out
    assert "no standard says" in out, "it says why a rule is tested only"
    known = {e["name"]: e["status"] for e in json.loads(listed.read_text())}
    assert known == {"pow-1": "tested", "mul-0-whole": "proved"}


def test_graphs(capsys: pytest.CaptureFixture[str], graph: Path) -> None:
    for command in ("compile", "run", "explain"):
        status, out, err = call(capsys, command, graph)
        assert status == 0, err
        assert "main" in out


def test_demo_without_a_compiler(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No C compiler is needed: there is no program at all on the PATH."""
    pytest.importorskip("transformers")
    monkeypatch.setenv("PATH", str(tmp_path))
    for variable in ("CC", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    assert not any(shutil.which(name) for name in ("gcc", "cc", "clang", "ld"))
    status, out, err = call(capsys, "demo", "tiny", "--rounds", 1)
    assert status == 0, err
    assert "compiling" in err and "compiling" not in out, "it says what it is doing"
    for row in ("cold compile", "time per call", "speedup", "memory", "kernels", "fallbacks"):
        assert row in out
    assert "right: " in out


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["run", "missing.py:f"], 2, "there is no file missing.py"),
        (["run", "missing"], 2, "missing names no model: there is no such file"),
        (["run", "{program}"], 2, "which function or module"),
        (["run", "{program}:nothing"], 2, "has no nothing"),
        (["run", "{program}:number"], 2, "cannot be called"),
        (["run", "{program}:Fragile"], 1, "raised RuntimeError: fragile"),
        (["run", "{program}:unlucky"], 1, 'in unlucky\n    raise RuntimeError("unlucky")\n'),
        (["run", "{program}:layer", "-i", "f32"], 2, "does not say an input"),
        (["run", "{program}:layer", "-i", "f99[3]"], 2, "does not say an input"),
        (["run", "{program}:layer", "-i", "f32[2,9]"], 1, "shapes cannot be multiplied"),
        (["run", "{program}:layer", "-i", "y=f32[2,8]"], 2, "its inputs are input"),
        (["run", "{program}:layer", "-i", "@none.npy"], 2, "there is no file none.npy"),
        (["run", "{program}:layer", "-o", "result.txt"], 2, "neither .npy nor .npz"),
        (["compile", "{program}:layer", "--target", "cuda:90"], 2, "is a GPU"),
        (["explain", "{program}:layer", "--kernel", "99"], 2, "there is no kernel 99"),
        (["rules", "no-such-rule"], 2, "no rule is called no-such-rule"),
        (["demo", "nothing"], 2, "there is no demo model 'nothing'"),
    ],
)
def test_bad_input_gets_a_sentence(
    capsys: pytest.CaptureFixture[str], program: Path, arguments: list[str], code: int, says: str
) -> None:
    given = [a.replace("{program}", str(program)) for a in arguments]
    status, out, err = call(capsys, *given)
    assert status == code and not out
    said = err[err.index("error: ") :]  # after what was done before
    assert says in said and "Traceback" not in said
    assert "site-packages" not in said and "tilewright/driver" not in said


def test_errors_as_json(capsys: pytest.CaptureFixture[str], program: Path) -> None:
    status, out, err = call(capsys, "run", f"{program}:nothing", "--json")
    said = json.loads(out)
    assert status == said["status"] == 2 and "has no nothing" in said["error"]
    assert "scores" in said["hint"] and err.startswith("error: ")


def test_a_broken_graph_is_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "broken.tw"
    path.write_text(GRAPH.replace("mul(", "mull("))
    status, _, err = call(capsys, "run", path)
    assert status == 2 and "no operator mull" in err and "broken.tw" in err


def test_tracebacks_for_those_who_ask(
    capsys: pytest.CaptureFixture[str], program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_LOGS", "debug")
    _, _, err = call(capsys, "run", f"{program}:nothing")
    assert "Traceback" in err and "has no nothing" in err


def test_no_inputs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "bare.py"
    path.write_text("def twice(x):\n    return x * 2\n")
    status, _, err = call(capsys, "run", f"{path}:twice")
    assert status == 2 and "needs inputs" in err and "--input" in err


def test_missing_extras(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    status, _, err = call(capsys, "demo")
    assert status == 2 and "pip install 'tilewright[demo]'" in err
    with pytest.raises(MissingExtra):
        demo.demo()


def test_unknown_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["explian"], ["demo", "--fly"], ["tune", "train"]):
        with pytest.raises(SystemExit) as stopped:
            cli.main(arguments)
        assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert "usage: tilewright" in said and "did you mean explain?" in said


def test_bench_is_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Done:
        returncode = 1

    monkeypatch.setattr(subprocess, "run", lambda command: seen.append(command) or Done())
    assert cli.main(["bench", "ops", "--rounds", "7", "--help"]) == 1
    module = [sys.executable, "-m", "tilewright.bench"]
    assert seen == [[*module, "ops", "--rounds", "7", "--help"]]


def test_the_judge_of_torch_programs() -> None:
    x = torch.randn(100).double()
    eager = x.float()
    assert torch_compare.check(eager, eager, x).right
    assert torch_compare.check([eager, 3], [eager, 3], [x, 3]).right
    wrong = [
        eager * 1.0001,
        eager[:50],
        eager.double(),
        torch.where(eager > 0, eager, torch.nan),
        "text",
    ]
    for given in wrong:
        assert not torch_compare.check(given, eager, x).right
    counts = torch.arange(3)
    assert torch_compare.check(counts, counts, counts).right
    assert "1 of 3" in (torch_compare.check(counts, counts.clamp(max=1), counts).problem or "")
    assert not torch_compare.check([eager], [eager, eager], [x, x]).right


def test_memory_of_eager() -> None:
    layers = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
    x = torch.randn(32, 64)
    with torch.no_grad():
        peak = torch_compare.peak_of_results(lambda: layers(x))
    assert peak == 2 * x.nbytes, "a layer's input and output, not the weights"
