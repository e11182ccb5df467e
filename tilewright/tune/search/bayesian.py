"""Bayesian search by Optuna's tree of Parzen estimators (`pip install 'tilewright[tune]'`)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

from tilewright.base.errors import MissingExtra
from tilewright.tune.search.state import State
from tilewright.tune.space.space import Point

# Suggestions for each point that is wanted: some are illegal, or known already.
PATIENCE = 20


@dataclass
class Bayesian:
    name: str = "bayesian"
    _study: Any = field(default=None, init=False)
    _told: int = field(default=0, init=False)

    def propose(self, state: State, count: int) -> list[Point]:
        optuna = _optuna()
        if self._study is None:
            sampler = optuna.samplers.TPESampler(seed=state.rng.randrange(1 << 31))
            self._study = optuna.create_study(sampler=sampler)
        kinds = {
            d.name: optuna.distributions.CategoricalDistribution([str(v) for v in d.values])
            for d in state.space.decisions
        }
        for m in state.measured[self._told :]:
            given = {name: str(v) for name, v in m.point.given.items()}
            value = 100.0 if m.ratio is None else m.ratio
            self._study.add_trial(
                optuna.trial.create_trial(params=given, distributions=kinds, value=value)
            )
        self._told = len(state.measured)
        found: list[Point] = []
        for _ in range(PATIENCE * count):
            if len(found) == count:
                break
            asked = self._study.ask(kinds).params
            given = {
                d.name: next(v for v in d.values if str(v) == asked[d.name])
                for d in state.space.decisions
            }
            found = state.fresh([*found, state.point(given)])
        return found


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise MissingExtra("tune", "the Bayesian search") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna
