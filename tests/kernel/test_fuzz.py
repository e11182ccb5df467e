"""A slice of the step fuzzer, and every case it once found.

The long run: python -m tests.kernel.fuzz --count 5000
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kernel.fuzz import Counts, case_text, explore, fuzz, parse_case, replay, shrink
from tilewright.kernel.step import STEPS
from tilewright.kernel.steps import vectorize

CASES = sorted((Path(__file__).resolve().parent / "cases").glob("*.txt"))
SLICES, PER_SLICE = 8, 50


@pytest.mark.parametrize("piece", range(SLICES))
def test_slice(piece: int) -> None:
    seeds = range(piece * PER_SLICE, (piece + 1) * PER_SLICE)
    counts, reports = fuzz(seeds)
    assert not reports, f"seeds {counts.wrong}:\n" + "\n".join(reports)
    assert counts.accepted.total() > 3 * PER_SLICE, counts.table()
    assert counts.native > PER_SLICE // 2, counts.table()


def test_every_step_is_drawn_and_accepted() -> None:
    counts = Counts()
    native = set(STEPS) - {"Bind", "Synchronise"}  # those are drawn in test_simt.py
    for seed in range(10_000, 10_200):
        explore(seed, counts)
        if set(counts.accepted) == native:
            return
    raise AssertionError(f"never accepted: {sorted(native - set(counts.accepted))}")


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_what_failed_once(path: Path) -> None:
    group, dims, trace = parse_case(path.read_text())
    assert replay(group, dims, trace) is None


def test_a_wrong_step_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fuzzer notices a Vectorize that ignores what a loop carries, and shrinks the case."""
    monkeypatch.setattr(vectorize, "carried", lambda n, x: [])
    for seed in range(400):
        group, dims, trace, why = explore(seed, Counts())
        if why is None:
            continue
        small, sizes, steps = shrink(group, dims, trace, seed, patience=20)
        assert any(type(s).__name__ == "Vectorize" for s in steps)
        assert len(steps) <= len(trace) and len(small.stages) <= len(group.stages)
        text = case_text(small, sizes, steps)
        assert replay(*parse_case(text), seed) is not None
        return
    raise AssertionError("400 seeds without a wrong result: the fuzzer sees nothing")
