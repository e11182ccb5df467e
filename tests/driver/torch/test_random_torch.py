"""The generator of torch programs itself: what it draws, how it judges, what it makes small."""

from __future__ import annotations

from typing import Any

import pytest

from tests.driver import torch_judge
from tests.driver.random_torch import GENERATOR, as_code, failure, random_program
from tests.driver.torch_programs import Input, Line, Program
from tests.generators import Failure
from tests.shrinking import shrunk

SEEDS = range(96, 120)  # among these is one of every kind
TANH = Program(
    0,
    {"x0": Input("float32", (3, 5), grad=True)},
    {"m0": "nn.Linear(5, 4)"},
    (Line(("v1",), "v1 = torch.tanh(x0)"), Line(("v2",), "v2 = self.m0(v1)")),
    ("v2",),
    grad=True,
)


def test_a_seed_is_a_program() -> None:
    for seed in range(10):
        assert str(random_program(seed)) == str(random_program(seed))


def test_programs_are_of_every_kind() -> None:
    programs = [random_program(seed) for seed in SEEDS]
    text = "\n".join(str(p) for p in programs)
    words = (
        "self.m0( nn.Linear nn.Conv nn.Embedding Norm( softmax cumsum torch.where( .to(torch. "
        "bfloat16 float16 .detach() clone() _( torch.cat torch.stack @ .permute( // gather( .long()"
    )
    missing = [w for w in words.split() if w not in text]
    assert not missing
    assert any(p.grad for p in programs) and any(p.dynamic for p in programs)
    assert any(len(p.calls) > 1 for p in programs)


def test_a_program_is_the_same_from_its_file() -> None:
    for seed in range(10):
        made = random_program(seed)
        code = as_code(made).replace("reproduce(GENERATOR, PROGRAM)", "")
        scope: dict[str, Any] = {}
        exec(code, scope)
        assert scope["PROGRAM"] == made


def test_results_and_gradients_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    assert failure(TANH) is None
    compiled = torch_judge._ours

    def changed(name: str) -> Failure | None:
        def off(program: Program, strict: bool) -> list[torch_judge.Ran] | Failure:
            ran = compiled(program, strict)
            assert not isinstance(ran, Failure)
            ran[0].values[name].flatten()[1] += 1e-3
            return ran

        monkeypatch.setattr(torch_judge, "_ours", off)
        return failure(TANH)

    for name in ("result 0", "gradient of x0", "gradient of m0.weight"):
        found = changed(name)
        assert found is not None and found.kind == f"wrong {name.split()[0]}"
        assert "expected" in found.text


def test_roundings_inside_a_program_count() -> None:
    """The terms of a sum that cancels are rounded to float32; as inputs they are float64."""
    program = Program(
        0,
        {"x0": Input("float64", (40, 50), "normal")},
        {},
        (Line(("v1",), "v1 = x0.float()"), Line(("v2",), "v2 = v1.sum()")),
        ("v2",),
    )
    (want,) = torch_judge._all_calls(program, program.module())

    def within(off: float) -> bool:
        moved = torch_judge.Ran({**want.values, "result 0": want.values["result 0"] + off})
        return torch_judge._within_rounding(program, 0, "result 0", moved, want)

    assert within(1e-5) and not within(1e-3)


def test_what_fails_is_made_small() -> None:
    def fails(p: Program) -> Failure | None:
        return Failure("softmax", "") if "softmax" in p.source() else None

    program = next(p for p in map(random_program, range(400)) if fails(p) and len(p.lines) > 3)
    small, _ = shrunk(GENERATOR, program, Failure("softmax", ""), fails, 20)
    assert len(small.lines) == 1 and not small.grad and not small.dynamic
    assert failure(small) is None


def test_what_torch_itself_refuses_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Failure("ValueError", "", "error")
    monkeypatch.setattr(torch_judge, "_ours", lambda *_, **__: ours)
    assert failure(TANH) is ours

    def refused(*_: Any) -> Any:
        raise ValueError("not captured")

    monkeypatch.setattr(torch_judge, "_compiled", refused)
    found = failure(TANH)
    assert found is not None and found.skipped
    assert found.kind == "torch's own capture refuses them" and "not captured" in found.text
