"""Measurements from end to end, on sizes that take no time; no time is asserted."""

import gc
import json
from pathlib import Path

import pytest
import torch
import torch._dynamo

from tilewright.bench.__main__ import main
from tilewright.bench.catalog import ALL
from tilewright.bench.contenders import Unavailable, _need, as_tensors
from tilewright.bench.process import Failed, Process
from tilewright.bench.worker import Worker, answer_to, sentence

PEERS = """
import os
import time

calls = 0


def right(module, inputs):
    return lambda: module(*inputs).numpy()


def wrong(module, inputs):
    return lambda: 2 * module(*inputs)


def failing(module, inputs):
    raise NotImplementedError("this one cannot:\\nno softmax here")


def dying(module, inputs):
    def call():
        global calls
        calls += 1
        if calls > 100:  # in the middle of the rounds, or while it warms up
            os._exit(3)
        return module(*inputs)

    return call
"""

PROGRAM = """
import torch


def scores(x):
    return torch.softmax(x, -1) * 2


def scores_inputs():
    return torch.randn(5, 7)
"""


@pytest.fixture
def peers(tmp_path: Path) -> Path:
    path = tmp_path / "peers.py"
    path.write_text(PEERS)
    return path


def request(folder: Path, name: str = "softmax", **more: object) -> dict[str, object]:
    case = ALL[name].request()
    common = {"case": case, "tiny": True, "dtype": "float32", "threads": 1, "strict": True}
    common |= {"own_weights": False, "inputs": []}
    return {**common, "folder": str(folder), "file": str(folder / "right"), **more}


@torch.no_grad()
def test_a_worker_judges_contenders(tmp_path: Path, peers: Path) -> None:
    facts = answer_to(Worker(), request(tmp_path, do="judge"))
    assert facts["read"] == facts["written"] == 7 * 33 * 4

    def prepared(name: str) -> dict[str, object]:
        return answer_to(Worker(), request(tmp_path, do="prepare", contender=name))

    assert prepared(f"{peers}:right")["problem"] is None
    assert "error" in str(prepared(f"{peers}:wrong")["problem"])
    assert prepared(f"{peers}:failing") == {
        "failed": "NotImplementedError: this one cannot: no softmax here"
    }
    assert "has no unheard" in str(prepared(f"{peers}:unheard")["failed"])


@torch.no_grad()
def test_ours_in_a_worker(tmp_path: Path) -> None:
    worker = Worker()
    answer_to(worker, request(tmp_path, do="judge"))
    answer = answer_to(worker, request(tmp_path, do="prepare", contender="tilewright"))
    assert answer["problem"] is None and answer["first"] > 0
    assert answer_to(worker, {"do": "warm_up"})["repeats"] >= 1
    assert answer_to(worker, {"do": "round", "what": "call"})["found"] > 0
    held = answer_to(worker, {"do": "memory"})
    assert held["activations"] >= 7 * 33 * 4, "at least the result"


@torch.no_grad()
def test_weights_held(tmp_path: Path) -> None:
    def held(name: str, own: bool) -> int:
        worker = Worker()
        common = request(tmp_path, "matmul_packed", own_weights=own)
        answer_to(worker, common | {"do": "judge"})
        assert answer_to(worker, common | {"do": "prepare", "contender": name})["problem"] is None
        return answer_to(worker, {"do": "memory"})["weights"]

    model = 37 * 37 * 4
    assert held("eager", False) == model
    assert held("tilewright", False) > 2 * model, "packed, with ragged panels filled up"
    torch._dynamo.reset()  # programs of the worker before
    gc.collect()
    assert model <= held("tilewright", True) < 2 * model


def test_missing_peers_say_so() -> None:
    with pytest.raises(Unavailable, match="no_such_package is not installed"):
        _need("torch", "no_such_package")
    with pytest.raises(Unavailable, match=r"no_such and no_such\.either are not installed"):
        _need("no_such", "no_such.either")


def test_results_in_other_forms() -> None:
    x = torch.randn(3)
    (found,) = as_tensors([x.numpy()], "bfloat16")
    assert found.dtype is torch.bfloat16 and torch.equal(found, x.bfloat16())
    assert as_tensors((x, 3), "bfloat16") == [x, 3], "torch's own are taken as they are"


def test_sentences() -> None:
    class Passed(Exception):
        inner_exception = ValueError("the reason")

    assert sentence(Passed("backend raised:")) == "ValueError: the reason"
    assert sentence(ValueError()) == "ValueError: no message"


def test_who_gives_no_answer_is_out(tmp_path: Path) -> None:
    with Process(request(tmp_path), patience=0.01) as child, pytest.raises(Failed, match="within"):
        child.ask("judge")
    assert child.child.returncode is not None


def test_everything_that_fails_is_a_row(
    tmp_path: Path, peers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers, text = tmp_path / "numbers.json", tmp_path / "tables.md"
    names = ["eager", f"{peers}:wrong", f"{peers}:dying"]
    status = main(
        ["softmax", "--tiny", "--only", "time", "--threads", "1", "--rounds", "7"]
        + ["--peers", ",".join(names), "--json", str(numbers), "--markdown", str(text)]
    )
    out = capsys.readouterr().out
    assert status == 0, out
    (found,) = json.loads(numbers.read_text())["results"]
    ours, eager, wrong, dying = (found["timings"][name] for name in ("tilewright", *names))
    assert len(ours["seconds"]) == len(eager["seconds"]) == 7
    assert ours["interval"][0] <= ours["median"] <= ours["interval"][1]
    assert wrong["seconds"] == [] and wrong["problem"].startswith("wrong: ")
    assert dying["seconds"] == [] and "status 3" in dying["problem"]
    assert list(found["ratios"]) == ["eager"] and found["best_peer"] == "eager"
    assert found["of_roof"] > 0 and found["roof"]["bound"] == "bandwidth"
    assert found["memory"]["tilewright"]["activations"] > 0
    for reason in ("wrong: ", "status 3"):
        assert reason in out and reason in text.read_text()


def test_first_calls_of_a_program(tmp_path: Path) -> None:
    program, numbers = tmp_path / "program.py", tmp_path / "numbers.json"
    program.write_text(PROGRAM)
    arguments = ["--only", "compile", "--compile-rounds", "1", "--peers", "eager"]
    assert main([f"{program}:scores", *arguments, "--json", str(numbers)]) == 0
    (found,) = json.loads(numbers.read_text())["results"]
    first = found["first_calls"]["tilewright"]
    assert first["cold"] > 0 and first["warm"] > 0 and first["resident"] > 0
    assert found["capture"] > 0 and found["timings"] == {}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["softmax", "--peers", "eager,tvm"], "no peer is called 'tvm'"),
        (["softmax", "--dtype", "int4"], "nothing is measured in 'int4'"),
        (["softmax", "--threads", "-1"], "must be positive"),
        (["nothing"], "nothing to measure is called 'nothing'"),
    ],
)
def test_bad_input(capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str) -> None:
    assert main(arguments) == 2
    assert sentence in capsys.readouterr().err
