"""A slice of torch's OpInfo database; the whole is `python -m tests.suites.opinfo --strict`."""

import os

import pytest
import torch

from tests.suites import opinfo
from tests.suites.opinfo_entry import entries, entry_name

MODES = [pytest.param(True, id="strict"), pytest.param(False, id="lenient")]


def all_names() -> list[str]:
    return [entry_name(op) for op in entries(torch.float32)]


def check(names: list[str], strict: bool, jobs: int = 2) -> list[opinfo.Outcome]:
    settings = opinfo.Settings(strict=strict, jobs=jobs)
    outcomes = list(opinfo.run(names, settings))
    assert sorted(outcome.name for outcome in outcomes) == sorted(names)
    assert opinfo.surprises(outcomes, opinfo.expected(settings)) == []
    return outcomes


@pytest.mark.parametrize("strict", MODES)
def test_slice(strict: bool) -> None:
    """Every 23rd entry: a prime step, so that families of neighbours all get their turn. Of those
    that are right as whole graphs every fourth has to be so with fallbacks allowed."""
    names = all_names()[::23]
    if not strict:
        broken = opinfo.expected(opinfo.Settings(strict=True))
        names = [name for k, name in enumerate(names) if name in broken or k % 4 == 0]
    check(names, strict, jobs=1)


@pytest.mark.slow
@pytest.mark.parametrize("strict", MODES)
def test_larger_slice(strict: bool) -> None:
    check(all_names()[::13], strict)


@pytest.mark.suite
@pytest.mark.parametrize("strict", MODES)
def test_whole(strict: bool) -> None:
    outcomes = check(all_names(), strict)
    if strict:
        assert sum(outcome.status == "right" for outcome in outcomes) >= 500


def test_a_dying_process_is_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opinfo, "_work", os._exit)
    outcomes = list(opinfo.run(["add", "mul"], opinfo.Settings(backend="counting", jobs=1)))
    assert [(outcome.name, outcome.status) for outcome in outcomes] == [
        ("add", "crash"),
        ("mul", "crash"),
    ]


def test_surprises_go_both_ways() -> None:
    right, wrong = opinfo.Outcome("add", "right"), opinfo.Outcome("mul", "wrong", "by far")
    assert opinfo.surprises([right, wrong], {"mul": "known"}) == []
    assert len(opinfo.surprises([right, wrong], {"add": "known"})) == 2
