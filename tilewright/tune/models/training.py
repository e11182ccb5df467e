"""Training on files of measured schedules, and how well a model ranks what it never saw."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.base.errors import Invalid, TilewrightError
from tilewright.ir.target import Target
from tilewright.kernel.nest import start
from tilewright.kernel.step import apply, parse_trace
from tilewright.kernel.text import parse_group
from tilewright.tune.models.features import rows_of
from tilewright.tune.models.learned import Query, as_times, pairs_of, train
from tilewright.tune.models.samples import Sample, measured

import_module("tilewright.kernel.steps")  # registers all of them: traces name them

FOLDS = 5
TREES = 400


@dataclass(frozen=True)
class Group:
    """The schedules of one sample as a model sees them."""

    family: str
    query: Query
    again: np.ndarray  # times by another measurement


def group_of(s: Sample) -> Group:
    """Raises what a step says that is refused today."""
    target, group = Target.parse(s.target), parse_group(s.group)
    nests, first, second = [], [], []
    usual = s.seconds[0]
    assert usual is not None
    for trace, found in zip(s.traces, s.seconds, strict=True):
        if found is not None:
            nests.append(apply(start(group), parse_trace(trace)))
            first.append(found[0] / usual[0])
            second.append(found[1] / usual[1])
    best = [a for a in s.best if a is not None]
    ratios = [x / best[0] for x in best]
    rows = rows_of(nests, nests[0], target)
    del first
    return Group(s.family, Query(rows, as_times(ratios)), as_times(second))


def groups_of(samples: Iterable[Sample]) -> tuple[list[Group], list[str]]:
    """Those that today's steps still replay, and what is wrong with others."""
    out, problems = [], []
    for s in measured(samples):
        try:
            out.append(group_of(s))
        except TilewrightError as why:
            problems.append(f"group {s.draw} ({s.family}): {why.what}")
    return out, problems


def right(scores: np.ndarray, times: np.ndarray) -> tuple[int, int]:
    """Pairs that differ clearly and are ranked right, and all that do. Equal scores are half."""
    faster = pairs_of(times)
    better = scores[:, None] < scores[None, :]
    same = scores[:, None] == scores[None, :]
    return int((faster & better).sum() + (faster & same).sum() // 2), int(faster.sum())
