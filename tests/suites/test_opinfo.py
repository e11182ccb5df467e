"""A slice of torch's OpInfo database; the whole is `python -m tests.suites.opinfo --strict`."""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.suites import commands, opinfo, opinfo_entry
from tests.suites.draws import same_bits
from tests.suites.mortal_worker import work
from tests.suites.opinfo_entry import checker, entries, entry_name, settled
from tests.suites.opinfo_runs import Outcome, Settings, run

MODES = [pytest.param(True, id="strict"), pytest.param(False, id="lenient")]


def all_names() -> list[str]:
    return [entry_name(op) for op in entries(torch.float32)]


def as_expected(outcomes: list[Outcome], names: list[str], settings: Settings) -> None:
    assert sorted(outcome.name for outcome in outcomes) == sorted(names)
    assert opinfo.surprises(outcomes, opinfo.expected(settings)) == []


@pytest.mark.parametrize("strict", MODES)
def test_slice(strict: bool) -> None:
    """Every 347th entry: a prime step, so that families of neighbours all get their turn. Of those
    that are right as whole graphs every third has to be so with fallbacks allowed. They run in
    this process, which has most of what they need by now; the larger slice runs in others."""
    names, settings = all_names()[::347], Settings(strict=strict)
    if not strict:
        broken = opinfo.expected(Settings(strict=True))
        names = [name for k, name in enumerate(names) if name in broken or k % 3 == 0]
    check = checker(settings)
    try:
        as_expected([check(name) for name in names], names, settings)
    finally:
        torch._dynamo.reset()


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (Settings(gradients=True), ["fft.ihfftn", "nn.functional.soft_margin_loss"]),
        (Settings("complex64", samples=1), ["mul"]),
        (Settings("float16", samples=1), ["softmax.with_dtype"]),
    ],
    ids=["gradients", "complex64", "float16"],
)
def test_gradients_and_other_dtypes(settings: Settings, names: list[str]) -> None:
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


DTYPES = ("float16", "bfloat16", "float64", "int64", "bool", "complex64")


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [Settings(gradients=True), *(Settings(dtype, samples=1) for dtype in DTYPES)],
    ids=["gradients", *DTYPES],
)
def test_slice_of_gradients_and_dtypes(settings: Settings) -> None:
    known = entries(getattr(torch, settings.dtype), settings.gradients)
    names = [entry_name(op) for op in known][::67]
    as_expected(list(run(names, settings)), names, settings)


def test_a_gradient_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The results are eager's own, the gradient is off by a thousandth."""

    class Off(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx, g: torch.Tensor) -> torch.Tensor:
            return g * 1.001

    def off(function: Any, backend: str, **_: Any) -> Any:
        return function if backend == "aot_eager" else lambda x: Off.apply(function(x))

    monkeypatch.setattr(opinfo_entry, "compiled", off)
    found = checker(Settings(gradients=True, backend="eager"))("sin")
    assert found.status == "wrong" and "where" in found.detail


def test_places_of_equal_values() -> None:
    """Any order of them is right, a place that is given twice is not."""
    op = SimpleNamespace(name="argsort")
    x = torch.tensor([1, 0, 1])
    one, other, twice = (
        settled(op, torch.tensor(places), (x,), {}) for places in ([1, 0, 2], [1, 2, 0], [1, 0, 0])
    )
    assert same_bits(one, other) and not same_bits(one, twice)


def test_a_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    given = Namespace(resume=tmp_path / "run.jsonl")
    asked: list[str] = []

    def some(names: Sequence[str]) -> Iterator[Outcome]:
        for name in names:
            asked.append(name)
            yield Outcome(name, "right")

    def names(key: str, of: str) -> list[str]:
        return [o.name for o in commands.resumed(given, some, of.split(), key)]

    assert names("float32", "add mul") == ["add", "mul"]
    assert names("float32", "add sub mul") == ["add", "mul", "sub"]
    assert names("int64", "add") == ["add"]
    assert asked == ["add", "mul", "sub", "add"]


def test_a_dying_process_is_an_outcome() -> None:
    outcomes = run(["add", "mul", "sub", "mul"], Settings(jobs=1), work)
    died = ("mul", "crash", "exit 7: LLVM ERROR: of no use")
    found = [(outcome.name, outcome.status, outcome.detail) for outcome in outcomes]
    assert found == [("add", "right", ""), died, ("sub", "right", ""), died]


def test_surprises_go_both_ways() -> None:
    right, wrong = Outcome("add", "right"), Outcome("mul", "wrong", "by far")
    assert opinfo.surprises([right, wrong], {"mul": "known"}) == []
    assert len(opinfo.surprises([right, wrong], {"add": "known"})) == 2
