"""A slice of torch's OpInfo database; the whole is `python -m tests.suites.opinfo --strict`."""

import pytest
import torch

from tests.suites import opinfo
from tests.suites.mortal_worker import work
from tests.suites.opinfo_entry import checker, entries, entry_name
from tests.suites.opinfo_runs import Outcome, Settings, run

MODES = [pytest.param(True, id="strict"), pytest.param(False, id="lenient")]


def all_names() -> list[str]:
    return [entry_name(op) for op in entries(torch.float32)]


def as_expected(outcomes: list[Outcome], names: list[str], settings: Settings) -> None:
    assert sorted(outcome.name for outcome in outcomes) == sorted(names)
    assert opinfo.surprises(outcomes, opinfo.expected(settings)) == []


@pytest.mark.parametrize("strict", MODES)
def test_slice(strict: bool) -> None:
    """Every 173rd entry: a prime step, so that families of neighbours all get their turn. Of those
    that are right as whole graphs every third has to be so with fallbacks allowed. They run in
    this process, which has most of what they need by now; the larger slice runs in others."""
    names, settings = all_names()[::173], Settings(strict=strict)
    if not strict:
        broken = opinfo.expected(Settings(strict=True))
        names = [name for k, name in enumerate(names) if name in broken or k % 3 == 0]
    check = checker(settings)
    try:
        as_expected([check(name) for name in names], names, settings)
    finally:
        torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.parametrize("strict", MODES)
def test_larger_slice(strict: bool) -> None:
    names, settings = all_names()[::13], Settings(strict=strict)
    as_expected(list(run(names, settings)), names, settings)


@pytest.mark.suite
@pytest.mark.parametrize("strict", MODES)
def test_whole(strict: bool) -> None:
    names, settings = all_names(), Settings(strict=strict)
    outcomes = list(run(names, settings))
    as_expected(outcomes, names, settings)
    if strict:
        assert sum(outcome.status == "right" for outcome in outcomes) >= 600


def test_a_dying_process_is_an_outcome() -> None:
    outcomes = run(["add", "mul", "sub", "mul"], Settings(jobs=1), work)
    died = ("mul", "crash", "exit 7: LLVM ERROR: of no use")
    found = [(outcome.name, outcome.status, outcome.detail) for outcome in outcomes]
    assert found == [("add", "right", ""), died, ("sub", "right", ""), died]


def test_surprises_go_both_ways() -> None:
    right, wrong = Outcome("add", "right"), Outcome("mul", "wrong", "by far")
    assert opinfo.surprises([right, wrong], {"mul": "known"}) == []
    assert len(opinfo.surprises([right, wrong], {"add": "known"})) == 2
