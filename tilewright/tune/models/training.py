"""Training on files of measured schedules, and how well a model ranks what it never saw."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.base.collector import garbage_waits
from tilewright.base.errors import Invalid, TilewrightError
from tilewright.base.machine import usable_cores
from tilewright.ir.target import Target
from tilewright.kernel.defaults.scheduler import Applied
from tilewright.kernel.step import parse_trace
from tilewright.kernel.text import parse_group
from tilewright.targets import families
from tilewright.tune.models import family
from tilewright.tune.models.features import rows_of
from tilewright.tune.models.learned import Query, as_times, pairs_of, predict, train
from tilewright.tune.models.samples import Sample, measured

import_module("tilewright.kernel.steps")  # registers all of them: traces name them

FOLDS = 5
TREES = 400
# Bytes of a model that ships.
MOST_BYTES = 2_000_000


@dataclass(frozen=True)
class Measurements:
    """The schedules of one group as a model sees them, and their times by each of two races."""

    family: str  # of operators
    target: str  # its family
    text: str
    query: Query
    first: np.ndarray
    second: np.ndarray


def measurements(s: Sample) -> Measurements:
    """Raises what a step says that is refused today."""
    target, group = Target.parse(s.target), parse_group(s.group)
    usual = s.seconds[0]
    assert usual is not None
    found = [(t, x) for t, x in zip(s.traces, s.seconds, strict=True) if x is not None]
    applied = Applied()  # schedules of a group begin alike
    nests = [applied.replay(group, parse_trace(trace)) for trace, _ in found]
    best = [min(x) / min(usual) for _, x in found]
    first, second = ([x[k] / usual[k] for _, x in found] for k in range(2))
    query = Query(rows_of(nests, nests[0], target), as_times(best))
    place = (s.family, family(target), s.group)
    return Measurements(*place, query, as_times(first), as_times(second))


def all_measurements(
    samples: Iterable[Sample], advance: Callable[[], object] = lambda: None
) -> tuple[list[Measurements], list[str]]:
    """Those that today's steps still replay, and what is wrong with others."""
    families()  # declares their instructions, which traces name
    out, problems = [], []
    for s in measured(samples):
        try:
            with garbage_waits():
                out.append(measurements(s))
        except TilewrightError as why:
            problems.append(f"group {s.draw} ({s.family}): {why.what}")
        advance()
    return out, problems


def right(scores: np.ndarray, times: np.ndarray) -> tuple[float, int]:
    """Pairs that differ clearly and are ranked right, and all that do. Equal scores are half."""
    faster = pairs_of(times)
    better = scores[:, None] < scores[None, :]
    same = scores[:, None] == scores[None, :]
    return float((faster & better).sum() + (faster & same).sum() / 2), int(faster.sum())


@dataclass(frozen=True)
class Ranked:
    """Which part of the pairs of a family is ranked right, by what."""

    family: str
    groups: int
    schedules: int
    pairs: int
    analytic: float
    shapes: float  # learned, from groups of all families, others than these
    operators: float  # learned, without this family
    again: float  # by a second measurement


def report(found: Sequence[Measurements], trees: int = TREES) -> list[Ranked]:
    """A row for each family of operators, then one for all."""
    names = sorted({m.family for m in found})
    if len(found) < FOLDS or len(names) < 2:
        raise Invalid(
            f"{len(found)} groups of {len(names)} families are too few to judge a model by",
            hint=f"collect at least {FOLDS} groups of 2 families",
        )
    texts = sorted({m.text for m in found})
    number = {text: k % FOLDS for k, text in enumerate(texts)}
    by_shape = predicted(found, [number[m.text] for m in found], trees)
    by_family = predicted(found, [m.family for m in found], trees)
    rows = []
    for name in (*names, "all"):
        here = [k for k, m in enumerate(found) if name in (m.family, "all")]

        def part(
            scores: Sequence[np.ndarray], times: Sequence[np.ndarray], here: list[int] = here
        ) -> float:
            counted = [right(scores[k], times[k]) for k in here]
            total = sum(n for _, n in counted)
            return sum(r for r, _ in counted) / total if total else nan

        times = [m.query.times for m in found]
        rows.append(
            Ranked(
                name,
                len(here),
                sum(len(times[k]) for k in here),
                sum(right(times[k], times[k])[1] for k in here),
                part([m.query.rows[:, 0] for m in found], times),
                part(by_shape, times),
                part(by_family, times),
                part([m.first for m in found], [m.second for m in found]),
            )
        )
    return rows


def predicted(
    found: Sequence[Measurements], parts: Sequence[Hashable], trees: int
) -> list[np.ndarray]:
    """Scores of each by a model that was trained on all other parts."""
    out = [np.empty(0)] * len(found)
    for part in dict.fromkeys(parts):
        model = trained([m for m, p in zip(found, parts, strict=True) if p != part], trees)
        for k, (m, p) in enumerate(zip(found, parts, strict=True)):
            if p == part:
                out[k] = predict(model, m.query.rows)
    return out


def trained(found: Sequence[Measurements], trees: int = TREES) -> Any:
    return train([m.query for m in found], trees, settings={"num_threads": usable_cores()})


def write_model(found: Sequence[Measurements], path: Path, trees: int = TREES) -> int:
    """The model of everything that was measured of one family of targets; its bytes."""
    targets = sorted({m.target for m in found})
    if len(targets) != 1:
        raise Invalid(
            f"the schedules are of {len(targets)} families of targets: {', '.join(targets)}",
            hint="train a model for each",
        )
    text = trained(found, trees).model_to_string().encode()
    if len(text) > MOST_BYTES:
        raise Invalid(
            f"{trees} trees take {len(text):,} bytes, and a model may take {MOST_BYTES:,}",
            hint="give fewer --trees",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    return len(text)
