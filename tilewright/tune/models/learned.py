"""Trees that learn to rank schedules from what was measured (LightGBM, the extra `tune`).

A query is a group on a target: of its schedules, which is faster? Seconds of different groups are
never compared. Training starts from trees that were learned before (`pretrained`), where there are
any for the target's family, and adds trees for what is measured now.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from math import log2
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.base.errors import Invalid, MissingExtra
from tilewright.ir.target import Target
from tilewright.kernel.group import Group
from tilewright.kernel.step import Trace
from tilewright.kernel.text import group_text
from tilewright.tune.models.features import default_features, feature_names, features, relative
from tilewright.tune.models.keeping import Kept
from tilewright.tune.search.state import Measured
from tilewright.tune.space.space import Point

# Times that differ by less than this say nothing about which is faster.
APART = log2(1.05)
# One that does not run counts as so many times slower than the default schedule, as a logarithm.
BROKEN = 6.0
SETTINGS = {
    "metric": "None",
    "learning_rate": 0.1,
    "num_leaves": 31,
    "min_data_in_leaf": 20,
    "lambda_l2": 1.0,
    "feature_fraction": 0.4,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "verbosity": -1,
    "seed": 0,
}
# While tuning there is less to learn from, and less time to do it.
WHILE_TUNING = {"learning_rate": 0.1, "num_leaves": 15, "min_data_in_leaf": 4}
TREES = 40
FEWEST = 8  # schedules to learn from
LATEST = 800  # and the most
# How much the analytic model's estimate, twice the cycles being 1, counts for at first.
PRIOR = 1.0
# Rows of features that are remembered: a search asks for the same points again and again.
MOST_ROWS = 20_000


def available() -> bool:
    return find_spec("lightgbm") is not None


@cache
def broken() -> str:
    """Why LightGBM, which is installed, cannot be loaded; empty where it can."""
    try:
        import_module("lightgbm")
    except (OSError, ImportError) as why:
        needed = (
            " (it needs the system's libgomp: Debian's libgomp1)" if "libgomp" in str(why) else ""
        )
        return f"LightGBM cannot be loaded: {why}{needed}"
    return ""


@dataclass(frozen=True)
class Query:
    """Schedules of one group: features, and times relative to the default schedule's, as
    logarithms to the base of 2."""

    rows: np.ndarray
    times: np.ndarray


def as_times(ratios: Sequence[float | None]) -> np.ndarray:
    return np.array([BROKEN if r is None else log2(max(r, 1e-9)) for r in ratios])


def _silent(what: str) -> None:
    """For a model that has nobody to tell."""


@dataclass
class Learned:
    """Ranks by trees. What it learns is `kept` for the next run, if it is told where. Trees are
    made when something is ranked and not when something is learned: many races may end in between,
    and processes that rank make their own."""

    pretrained: Path | None = None
    kept: Kept | None = None
    tell: Callable[[str], object] = _silent
    name: str = "learned"
    queries: dict[str, Query] = field(default_factory=dict)
    _model: Any = field(default=None, init=False)
    _stale: bool = field(default=False, init=False)  # more is known than the trees were made of
    _rows: dict[tuple[int, Trace], np.ndarray] = field(default_factory=dict, init=False)
    _groups: dict[int, Group] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if not available():
            raise MissingExtra("tune", "a model that learns")
        if why := broken():
            raise Invalid(why, hint="the analytic model needs nothing: `--model analytic`")
        if self.pretrained is not None:
            self._model = trees_of(self.pretrained, self.tell)
            self.pretrained = self.pretrained if self._model is not None else None
        if self.kept is not None:
            self.queries = {k: Query(*v) for k, v in self.kept.load().items()}
            self._stale = True

    def __getstate__(self) -> dict[str, Any]:
        """What another process of this machine needs to make the same trees: rows and times, which
        are sent faster than trees. It keeps and tells nothing."""
        return {
            "name": self.name,
            "pretrained": self.pretrained,
            "queries": {str(k): q for k, q in enumerate(latest(self.queries))},
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.kept, self.tell = None, _silent
        self._rows, self._groups = {}, {}
        self.name, self.pretrained, self.queries = (
            state[k] for k in ("name", "pretrained", "queries")
        )
        self._model, self._stale = _shipped(self.pretrained), True

    def scores(self, group: Group, points: Sequence[Point], target: Target) -> Sequence[float]:
        if self._stale:
            self._train()
        return [float(x) for x in predict(self._model, self._relative(group, points, target))]

    def learn(self, group: Group, measured: Sequence[Measured], target: Target) -> None:
        """From everything that was measured of a group so far."""
        rows = self._relative(group, [m.point for m in measured], target)
        query = Query(rows, as_times([m.ratio for m in measured]))
        key = f"{target.key()}\n{group_text(group)}"
        self.queries.pop(key, None)
        self.queries[key] = query  # the last
        self._stale = True
        if self.kept is not None:
            self.kept.save({k: (q.rows, q.times) for k, q in self.queries.items()})

    def _train(self) -> None:
        self._stale = False
        if sum(len(q.times) for q in self.queries.values()) >= FEWEST:
            first = str(self.pretrained) if self.pretrained is not None else None
            try:
                self._model = train(latest(self.queries), TREES, first, WHILE_TUNING)
            except Invalid:
                return  # nothing is learned from these

    def _relative(self, group: Group, points: Sequence[Point], target: Target) -> np.ndarray:
        """Rows of features. Groups are known by identity, so they are held."""
        if len(self._rows) > MOST_ROWS:
            self._rows.clear()
            self._groups.clear()
        self._groups[id(group)] = group
        out = []
        for p in points:
            key = id(group), p.trace
            if key not in self._rows:
                self._rows[key] = features(p.nest, target)
            out.append(self._rows[key])
        return relative(np.stack(out), default_features(group, target))


def columns() -> str:
    """The features, as an identity: trees and rows of others mean something else."""
    return hashlib.sha256("\n".join(_names()).encode()).hexdigest()[:16]


def _names() -> list[str]:
    """Of all columns, as LightGBM takes them: no punctuation."""
    return ["".join(c if c.isalnum() else "_" for c in name) for name in feature_names()]


def trees_of(path: Path, tell: Callable[[str], object]) -> Any:
    """Trees from a file; None, and a word about it, where they are no good."""
    lightgbm = _lightgbm()
    try:
        found = lightgbm.Booster(model_file=str(path))
        names = found.feature_name()
    except (lightgbm.basic.LightGBMError, OSError, ValueError) as why:
        tell(f"trees cannot be read from {path.name}: {why}")
        return None
    if names != _names():
        tell(f"the trees of {path.name} are of another version's features: passed over")
        return None
    return found


@cache
def _shipped(path: Path | None) -> Any:
    """Trees from a file that was read before without a complaint."""
    return None if path is None else trees_of(path, _silent)


def latest(queries: Mapping[str, Query]) -> list[Query]:
    """The last ones, as many as are learned from in part of a second."""
    found, count = list[Query](), 0
    for q in reversed(list(queries.values())):
        count += len(q.times)
        if found and count > LATEST:
            break
        found.append(q)
    return found[::-1]


Objective = Callable[[np.ndarray, Any], tuple[np.ndarray, np.ndarray]]


def pairs_of(times: np.ndarray) -> np.ndarray:
    """A matrix: is the schedule of the row clearly faster than that of the column?"""
    return times[:, None] < times[None, :] - APART


def pairwise(queries: Sequence[Query]) -> Objective:
    """The loss is that of every pair ranked wrong, by how far: each query counts by its size.
    Trees correct the analytic model's ranking, so that they say nothing where they know nothing."""
    prior = np.concatenate([PRIOR * q.rows[:, 0].astype(float) for q in queries])
    faster = [pairs_of(q.times) for q in queries]
    weights = [len(q.times) / max(1, int(f.sum())) for q, f in zip(queries, faster, strict=True)]
    ends = np.cumsum([len(q.times) for q in queries])

    def loss(scores: np.ndarray, data: Any) -> tuple[np.ndarray, np.ndarray]:
        gradient, curvature = np.zeros_like(scores), np.zeros_like(scores)
        for end, f, w in zip(ends, faster, weights, strict=True):
            here = slice(end - len(f), end)
            s = scores[here] + prior[here]
            wrong = f * _sigmoid(s[:, None] - s[None, :])
            bend = wrong * (1 - wrong)
            gradient[here] = w * (wrong.sum(1) - wrong.sum(0))
            curvature[here] = w * (bend.sum(1) + bend.sum(0)) + 1e-6
        return gradient, curvature

    return loss


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(x, -30, 30)))


def train(
    queries: Sequence[Query], trees: int, first: str | None = None, settings: Any = None
) -> Any:
    """A ranking of all queries, less is faster; `first` is a file of trees to add to."""
    lightgbm = _lightgbm()
    rows = np.concatenate([q.rows for q in queries])
    times = np.concatenate([q.times for q in queries])
    if not np.ptp(rows, axis=0).any():
        raise Invalid("the schedules cannot be told apart by their features")
    given = SETTINGS | (settings or {}) | {"objective": pairwise(queries)}
    binning = {
        "verbosity": -1,
        "num_threads": given["num_threads"],
        "feature_pre_filter": False,
        "min_data_in_bin": 1,
    }
    data = lightgbm.Dataset(rows, times, params=binning, feature_name=_names(), free_raw_data=False)
    return lightgbm.train(given, data, num_boost_round=trees, init_model=first)


def predict(model: Any, rows: np.ndarray) -> np.ndarray:
    """Scores by trees, if there are any, and the analytic model; less is faster. On one thread:
    there are few rows, and threads that wait for one another take longer."""
    trees = 0.0 if model is None else np.asarray(model.predict(rows, num_threads=1))
    return PRIOR * rows[:, 0].astype(float) + trees


def _lightgbm() -> Any:
    import lightgbm

    return lightgbm
