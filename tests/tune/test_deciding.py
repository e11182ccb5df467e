"""The last race of a kernel: noise does not choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tests.tune.fake_measuring import GROUPS, Fake
from tilewright.kernel.group import Buffer
from tilewright.kernel.text import parse_group
from tilewright.targets import default
from tilewright.tune.measure import ROUNDS
from tilewright.tune.measuring import race
from tilewright.tune.measuring.race import Verdict
from tilewright.tune.models.analytic import Analytic
from tilewright.tune.search import search_named
from tilewright.tune.space.space import Point
from tilewright.tune.tuner import FINAL_ROUNDS, Trial, Tuning


def verdict(samples: np.ndarray) -> Verdict:
    return Verdict(float(np.median(samples)), tuple(samples.tolist()))


def decided(tuning: Tuning, point: Point, *samples: np.ndarray) -> Trial | None:
    return tuning.decided([point] * (len(samples) - 1), list(map(verdict, samples)))


def made() -> tuple[Tuning, Point]:
    by = Fake(default()), search_named("random"), Analytic()
    tuning = Tuning(parse_group(GROUPS[0]), default(), *by)
    return tuning, tuning.default


def test_noise_wins_no_race() -> None:
    """Schedules that are alike, on a busy machine: the default one stays nearly always."""
    rng, (tuning, point) = np.random.default_rng(0), made()
    won = sum(
        decided(tuning, point, *rng.lognormal(0.0, 0.5, (4, FINAL_ROUNDS))) is not None
        for _ in range(200)
    )
    assert won <= 16


def test_a_gain_is_seen_through_noise_that_slows_down_all() -> None:
    rng, (tuning, point) = np.random.default_rng(0), made()
    busy = rng.lognormal(0.0, 0.8, FINAL_ROUNDS)
    found = decided(tuning, point, busy, 0.95 * busy, 0.9 * busy[:20], 0.99 * busy)
    assert found is not None and found.number == 1 and found.ratio is not None
    assert abs(found.ratio - 0.9) < 1e-9
    # What is recorded is the same ratio, whatever the medians of all rounds are.
    assert tuning.seconds and found.verdict.seconds
    assert abs(found.verdict.seconds / tuning.seconds - 0.9) < 1e-9
    assert decided(tuning, point, busy, 0.99 * busy) is None


class Turns:
    """Memory whose clock stands still, but for what a race takes."""

    def __init__(self, each: float = 0.0) -> None:
        self.now, self.each = 0.0, each

    def seconds(self, launches: Sequence[object], calls: int) -> float:
        self.now += self.each
        return 1.0


class Nothing:
    """A kernel that is never launched."""

    arguments: Sequence[Buffer] = ()

    def prepared(
        self, addresses: Sequence[int], sizes: Mapping[str, int], stream: int = 0
    ) -> Callable[[], None]:
        raise AssertionError("nothing is launched here")

    def close(self) -> None:
        """There is no code."""


def order(rounds: int, turns: Turns) -> list[int]:
    told: list[int] = []
    runners = [race._Runner(k, Nothing(), []) for k in range(3)]
    race._run(runners, turns, rounds, told.append)
    return told


def test_all_have_as_many_calls_in_a_turn() -> None:
    """Unless one is so slow that its turns would never end."""
    runners = [race._Runner(k, Nothing(), [], once) for k, once in enumerate((2e-5, 1e-5, 1e-2))]
    race._share_out(runners)
    assert [r.calls for r in runners] == [100, 100, 1]


def test_the_order_turns() -> None:
    assert order(4, Turns()) == [0, 1, 2, 1, 2, 0, 2, 0, 1, 0, 1, 2]


def test_a_long_race_ends(monkeypatch) -> None:
    """After its usual rounds, when its time is over."""
    turns = Turns(each=1.0)
    monkeypatch.setattr(race.time, "monotonic", lambda: turns.now)
    assert len(order(FINAL_ROUNDS, turns)) == 3 * ROUNDS
