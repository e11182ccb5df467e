"""Measurements from end to end, on sizes that take no time; no time is asserted."""

import gc
import json
from pathlib import Path
from typing import Any, Self

import pytest
import torch
import torch._dynamo
from torch import nn

from tilewright.bench import machine, measure, run
from tilewright.bench.__main__ import main
from tilewright.bench.catalog import ALL, chosen
from tilewright.bench.contenders import CONTENDERS, Entrant, Unavailable, _need, as_tensors
from tilewright.bench.example import Example
from tilewright.bench.measure import MIN_ROUNDS
from tilewright.bench.memory import weights_held
from tilewright.bench.process import Failed, Process
from tilewright.bench.report import case_rows
from tilewright.bench.worker import Worker, answer_to, sentence
from tilewright.runtime.cuda.driver import available

PEERS = """
import os
import time

calls = 0


def right(module, inputs):
    return lambda: module(*inputs).numpy()


def inexact(module, inputs):
    return lambda: module(*inputs) * (1 + 1e-5)


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


@pytest.fixture(autouse=True)
def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (measure, machine):
        monkeypatch.setattr(module, "ROUND_SECONDS", 1e-3)


@pytest.fixture
def peers(tmp_path: Path) -> Path:
    path = tmp_path / "peers.py"
    path.write_text(PEERS)
    return path


def request(folder: Path, **more: object) -> dict[str, object]:
    case = ALL["softmax"].request()
    common = {"case": case, "tiny": True, "dtype": "float32", "threads": 1, "strict": True}
    common |= {"own_weights": False, "inputs": [], "device": "cpu"}
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
@pytest.mark.parametrize(("own", "most"), [(False, 2.2), (True, 1.2)])
def test_weights_in_memory(own: bool, most: float) -> None:
    torch._dynamo.reset()  # programs of workers before
    gc.collect()
    before = weights_held(nn.Module())
    module, side = nn.Linear(150, 150, bias=False).eval(), 150
    size = side * side * 4
    assert weights_held(module) - before == size
    entrant = Entrant(
        Example(module, (torch.randn(side, side),)), "float32", 1, Path(), own_weights=own
    )
    call = CONTENDERS["tilewright"](entrant)
    call()
    held = weights_held(module) - before
    assert (1 if own else 2) * size <= held <= most * size, "panels may be filled up"


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


class Inside:
    """A worker in this very process."""

    patience = 1.0

    def __init__(self, common: dict[str, Any], *_: object) -> None:
        self.common, self.worker = common, Worker()

    @torch.no_grad()
    def ask(self, do: str, **more: object) -> dict[str, Any]:
        answer = answer_to(self.worker, {**self.common, **more, "do": do})
        if "failed" in answer:
            raise Failed(answer["failed"])
        return answer

    def close(self) -> None:
        torch._dynamo.reset()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class OneApart(Inside):
    """A worker in this very process, but for the peer that dies."""

    def __init__(self, common: dict[str, Any], *more: Any) -> None:
        super().__init__(common)
        self.more = more
        self.apart: Process | None = None

    def ask(self, do: str, **more: object) -> dict[str, Any]:
        if str(more.get("contender")).endswith(":dying"):
            self.apart = Process(self.common, *self.more)
        return super().ask(do, **more) if self.apart is None else self.apart.ask(do, **more)

    def close(self) -> None:
        if self.apart is not None:
            self.apart.close()
        super().close()


def test_everything_that_fails_is_a_row(
    tmp_path: Path, peers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "Process", Inside)
    names = ("eager", *(f"{peers}:{name}" for name in ("right", "inexact", "wrong", "failing")))
    steps: list[str] = []
    found = run.measure(
        ALL["softmax"], run.Plan(names, 1, tiny=True, compiling=False), tmp_path, steps.append
    )
    assert found.failed is None
    ours, eager, right, inexact, wrong, failing = found.timings.values()
    assert all(len(t.seconds) == MIN_ROUNDS for t in (ours, eager, right, inexact))
    assert inexact.problem is None and (inexact.remark or "").startswith("less exact")
    assert wrong.seconds == [] and (wrong.problem or "").startswith("wrong: ")
    assert failing.seconds == [] and "no softmax here" in (failing.problem or "")
    assert set(found.ratios) == set(names[:3]) and found.best_peer in names[:3]
    assert found.roof is not None and found.roof.bound == "bandwidth"
    assert found.memory["tilewright"]["activations"] > 0
    assert len(steps) == run.Plan(names, 1, tiny=True, compiling=False).steps()
    rows = {row[0]: row for row in case_rows(found)}
    assert rows[names[3]][-1].startswith("wrong: ") and rows[names[3]][1] == "–"


def test_wrong_results_of_ours_are_a_failure(
    tmp_path: Path, peers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Careless(Inside):
        def ask(self, do: str, **more: object) -> dict[str, Any]:
            if more.get("contender") == "tilewright":
                more["contender"] = f"{peers}:inexact"
            return super().ask(do, **more)

    monkeypatch.setattr(run, "Process", Careless)
    plan = run.Plan(("eager",), 1, tiny=True, compiling=False)
    found = run.measure(ALL["softmax"], plan, tmp_path, lambda text: None)
    assert (found.failed or "").startswith("wrong: ") and found.ours is None
    assert found.best_peer == "eager" and found.ratios == {}


def test_first_calls_of_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "Process", Inside)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    plan = run.Plan(("eager",), 1, timing=False, compile_rounds=1)
    (case,) = chosen([f"{program}:scores"])
    steps: list[str] = []
    found = run.measure(case, plan, tmp_path, steps.append)
    first = found.first_calls["tilewright"]
    assert first.problem is None and first.cold and first.warm
    assert found.capture and found.timings == {} and len(steps) == plan.steps()
    (case,) = chosen([f"{program}:unknown"])
    assert "has no unknown" in (run.measure(case, plan, tmp_path, steps.append).failed or "")


def test_cases_get_ready_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds begin when all contenders of all cases are ready, or are out."""
    said: list[str] = []

    class Told:
        """A worker that only says what it would do."""

        def __init__(self, common: dict[str, Any], _: object, patience: float) -> None:
            self.case, self.patience, self.name = common["case"]["name"], patience, ""

        def ask(self, do: str, **more: Any) -> dict[str, Any]:
            said.append(do)
            self.name = more.get("contender", self.name)
            if do == "judge" and self.case == "gelu":
                raise Failed("no gelu here")
            if do == "prepare" and self.name == "late":
                assert self.patience <= 5
                raise Failed("it gave no answer within 5 s")
            facts = {"weights": 0, "flops": 0, "read": 1, "written": 1, "repeats": 1}
            memory = {"activations": 1, "weights": 1}
            found = {"first": 2.0, "resident": 1, "error": 0.0, "problem": None, "fallbacks": 0}
            return {**facts, **memory, **found, "found": 1.0 if self.name == "eager" else 0.5}

        def close(self) -> None:
            said.append("close")

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            self.close()

    monkeypatch.setattr(run, "Process", Told)
    monkeypatch.setattr(run, "SETTLE_SECONDS", 0.0)
    plan = run.Plan(("eager", "late"), 1, device="cuda", together=3, within=5.0)
    cases = [ALL[name] for name in ("softmax", "gelu", "relu")]
    softmax, gelu, relu = run.measure_together(cases, plan, tmp_path, lambda text: None)
    assert gelu.failed == "eager itself does not run: no gelu here" and gelu.timings == {}
    for found in (softmax, relu):
        assert found.ratios["eager"][0] == 2.0 and found.first_calls["tilewright"].cold == 2.0
        assert found.timings["late"].problem == "it gave no answer within 5 s"
        assert found.timings["tilewright"].fallbacks == 0 and found.failed is None
    ready, round_ = (said.count(x) for x in ("prepare", "round"))
    assert (ready, round_) == (6, 2 * 2 * MIN_ROUNDS)
    assert "prepare" not in said[said.index("warm_up") :]


@pytest.mark.parametrize(
    ("worker", "together"),
    [
        pytest.param(OneApart, False, id="one process"),
        pytest.param(Process, False, id="five processes", marks=pytest.mark.slow),
        pytest.param(Process, True, id="five processes, together", marks=pytest.mark.slow),
    ],
)
def test_from_end_to_end(
    worker: type,
    together: bool,
    tmp_path: Path,
    peers: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Processes, one of which dies; files; the exit status."""
    monkeypatch.setattr(run, "Process", worker)
    numbers, text = tmp_path / "numbers.json", tmp_path / "tables.md"
    dying = f"{peers}:dying"
    at_once = ["--together", "--lock", str(tmp_path / "lock")] if together else []
    status = main(
        ["softmax", "--tiny", "--only", "time", "--threads", "1", "--rounds", "7", *at_once]
        + ["--peers", f"eager,{dying}", "--json", str(numbers), "--markdown", str(text)]
    )
    out = capsys.readouterr().out
    assert status == 0, out
    (found,) = json.loads(numbers.read_text())["results"]
    ours, eager = found["timings"]["tilewright"], found["timings"]["eager"]
    assert len(ours["seconds"]) == len(eager["seconds"]) == 7
    assert ours["interval"][0] <= ours["median"] <= ours["interval"][1]
    assert found["timings"][dying]["seconds"] == []
    assert list(found["ratios"]) == ["eager"] and found["of_roof"] > 0
    assert ("eager" in found["first_calls"]) == together
    for shown in (found["timings"][dying]["problem"], out, text.read_text()):
        assert "its process ended with status 3" in shown


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["softmax", "--peers", "eager,tvm"], "no peer is called 'tvm'"),
        (["softmax", "--dtype", "int4"], "nothing is measured in 'int4'"),
        (["softmax", "--threads", "-1"], "must be positive"),
        (["nothing"], "nothing to measure is called 'nothing'"),
        (["softmax", "--part", "3/2"], "'3/2' is no part of the cases"),
        (["--device", "cuda", "nothing"], "no GPU" if not available() else "called 'nothing'"),
    ],
)
def test_bad_input(capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str) -> None:
    assert main(arguments) == 2
    assert sentence in capsys.readouterr().err
