"""A slice of ONNX's backend suite; the whole is `python -m tests.suites.onnx_backend`."""

from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("onnx", reason="the extra onnx is not installed")

from tests.suites import onnx_backend
from tests.suites.onnx_cases import GOOD, cases_of, judge, parts_of, work, written
from tests.suites.opinfo_runs import Outcome, Settings, run

# Files of the suite, a few of each family, whose cases are quick to make: those of averagepool and
# maxpool take seconds for their expected results.
FILES = (
    "castlike conv convtranspose cumsum depthtospace dequantizelinear einsum gathernd "
    "globalaveragepool globalmaxpool "
    "gridsample groupnormalization if_ loop pad qlinearmatmul quantizelinear "
    "reduce_log_sum_exp resize scatternd slice softmax split squeeze topk"
).split()
EVERY = 8


def test_slice() -> None:
    chosen = list(cases_of(*FILES).items())[::EVERY]
    assert len(chosen) >= 35
    outcomes = [judge(name, parts_of(case)) for name, case in chosen]
    assert onnx_backend.surprises(outcomes, onnx_backend.expected()) == []


@pytest.mark.suite
def test_whole(tmp_path: Path) -> None:
    names = list(written(tmp_path))
    outcomes = list(run(names, Settings(), partial(work, tmp_path)))
    assert onnx_backend.surprises(outcomes, onnx_backend.expected()) == []
    assert sum(o.status in GOOD for o in outcomes) >= 1850


def test_surprises_go_both_ways() -> None:
    right, refused, wrong = Outcome("a", "right"), Outcome("b", "refused"), Outcome("c", "wrong")
    assert onnx_backend.surprises([right, refused], {"b": "known"}) == []
    assert len(onnx_backend.surprises([right, refused], {"a": "known"})) == 2
    assert len(onnx_backend.surprises([wrong], {"c": "a wrong number is never excused"})) == 1
