"""A slice of the step fuzzer, and every case it once found.

The long run: python -m tests.kernel.fuzz --count 3000 --threads 500
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.kernel.fuzz import (
    CASES,
    Counts,
    Judge,
    Wrong,
    case_text,
    explore,
    explore_threads,
    fuzz,
    parse_case,
    replay,
    shrink,
)
from tests.kernel.random_steps import DRAWN
from tests.seeds import drawn
from tilewright.base.errors import Refused
from tilewright.kernel.nest import start
from tilewright.kernel.step import parse_trace
from tilewright.kernel.steps import vectorize
from tilewright.kernel.text import parse_group

PER_SLICE = 10


@pytest.mark.parametrize("piece", drawn(range(24), quick=1))
def test_slice(piece: int) -> None:
    seeds = range(piece * PER_SLICE, (piece + 1) * PER_SLICE)
    counts, reports = fuzz(seeds)
    assert not reports, f"seeds {counts.wrong}:\n" + "\n".join(reports)
    assert counts.accepted.total() > 3 * PER_SLICE, counts.table()
    assert counts.native > PER_SLICE // 2, counts.table()


def test_every_step_is_drawn_and_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether what they give is right is not looked at here."""
    monkeypatch.setattr("tests.kernel.fuzz.Judge", Mock())
    counts = Counts()
    for seed in range(10_000, 10_200):
        explore(seed, counts, counts.rarest(seed))
        if set(counts.accepted) >= set(DRAWN):
            return
    raise AssertionError(f"never accepted: {sorted(set(DRAWN) - set(counts.accepted))}")


@pytest.mark.parametrize("first", drawn(range(20_000, 20_040, 10), quick=1))
def test_threads(first: int) -> None:
    """Some of the traces with blocks, threads and shared memory run on the SIMT executor."""
    counts = Counts()
    for seed in range(first, first + 10):
        group, dims, trace, why = explore_threads(seed, counts)
        assert why is None, f"seed {seed}: {why}\n{case_text(group, dims, trace)}"
    assert counts.accepted["Synchronise"] > 1, counts.table()


def test_strict_precision_is_judged_bit_by_bit() -> None:
    """A Reorder that ignores the policy shows in the results of some strict group."""
    text = """
group sums strict
  in x: f32[6,7]
  out s: f32[1]
  s[0] add= x[s.r0,s.r1] for s.r0 in 6, s.r1 in 7 from 0.0
"""
    group = parse_group(text)
    (step,) = parse_trace("Reorder(('s.r1', 's.r0'))")
    with pytest.raises(Refused, match="strict precision"):
        step.apply(start(group))
    loose = step.apply(replace(start(group), precision="reassociate"))
    with pytest.raises(Wrong):
        Judge(group, [{}]).nest(loose)


@pytest.mark.parametrize("path", sorted(CASES.glob("*.txt")), ids=lambda p: p.stem)
def test_what_failed_once(path: Path) -> None:
    group, dims, trace = parse_case(path.read_text())
    assert replay(group, dims, trace) is None


def test_a_wrong_step_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fuzzer notices a Vectorize that ignores what a loop carries, and shrinks the case."""
    monkeypatch.setattr(vectorize, "across_lanes", lambda n, x: [])
    first = 278  # one that finds it at once: many of those before take seconds and find nothing
    for seed in range(first, first + 400):
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
