"""Trees that learn to rank schedules from what was measured (LightGBM, the extra `tune`).

A query is a group on a target: of its schedules, which is faster? Seconds of different groups are
never compared. Training starts from a model that was learned before (`pretrained`), where there is
one for the target's family, and adds trees for what is measured now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.base.errors import MissingExtra
from tilewright.ir.target import Target
from tilewright.kernel.group import Group
from tilewright.kernel.text import group_text
from tilewright.tune.models.features import features
from tilewright.tune.search.state import Measured
from tilewright.tune.space.space import Point

# Speeds relative to the fastest, in so many classes.
CLASSES = 31
SETTINGS = {
    "objective": "lambdarank",
    "metric": "None",
    "learning_rate": 0.1,
    "num_leaves": 15,
    "min_data_in_leaf": 3,
    "lambda_l2": 1.0,
    "lambdarank_truncation_level": 64,
    "label_gain": [float(k) for k in range(CLASSES + 1)],
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "verbosity": -1,
    "seed": 0,
}
# Trees for what is measured now, and the fewest schedules to learn from.
TREES = 60
FEWEST = 8


def available() -> bool:
    return find_spec("lightgbm") is not None


@dataclass
class Query:
    """Features of schedules of one group, and their speeds relative to the default schedule."""

    rows: list[np.ndarray] = field(default_factory=list)
    speeds: list[float] = field(default_factory=list)

    @property
    def labels(self) -> np.ndarray:
        speeds = np.array(self.speeds)
        return np.rint(CLASSES * speeds / max(speeds.max(), 1e-12)).astype(int)


@dataclass
class Learned:
    """Ranks by trees; as long as nothing was learned, by the analytic model's estimate of cycles,
    which is a feature too."""

    pretrained: Path | None = None
    name: str = "learned"
    queries: dict[str, Query] = field(default_factory=dict)
    _model: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        if not available():
            raise MissingExtra("tune", "a model that learns")
        if self.pretrained is not None:
            self._model = _lightgbm().Booster(model_file=str(self.pretrained))

    def scores(self, group: Group, points: Sequence[Point], target: Target) -> Sequence[float]:
        rows = np.stack([features(p.nest, target) for p in points])
        if self._model is None:
            return [float(x) for x in rows[:, 0]]
        return [-float(x) for x in self._model.predict(rows, num_threads=1)]

    def learn(self, group: Group, measured: Sequence[Measured], target: Target) -> None:
        """From everything that was measured of a group so far."""
        query = Query()
        for m in measured:
            # One that did not run is as slow as anything; one that was refused says nothing.
            query.rows.append(features(m.point.nest, target))
            query.speeds.append(0.0 if m.ratio is None else 1.0 / m.ratio)
        self.queries[f"{target.key()}\n{group_text(group)}"] = query
        if sum(len(q.rows) for q in self.queries.values()) >= FEWEST:
            self._model = self._trained()

    def _trained(self) -> Any:
        from_disk = str(self.pretrained) if self.pretrained is not None else None
        return train(list(self.queries.values()), TREES, from_disk)


def train(queries: Sequence[Query], trees: int, first: str | None = None) -> Any:
    """A ranking of all queries; `first` is a file of trees to add to."""
    lightgbm = _lightgbm()
    rows = np.concatenate([np.stack(q.rows) for q in queries])
    labels = np.concatenate([q.labels for q in queries])
    sizes = [len(q.rows) for q in queries]
    data = lightgbm.Dataset(rows, label=labels, group=sizes, params={"verbosity": -1})
    return lightgbm.train(SETTINGS, data, num_boost_round=trees, init_model=first)


def _lightgbm() -> Any:
    import lightgbm

    return lightgbm
