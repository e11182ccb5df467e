"""`tw.autotune(space=…)`: a search finds constants in ranges. Times come from a rule, so that the
fastest is known; one test has the real clock."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import tilewright as tw
import tilewright.language as tl
from tilewright import tune
from tilewright.base import knobs
from tilewright.driver.tile.autotune import LISTENERS, LONGER, Autotuner
from tilewright.driver.tile.config import Timings
from tilewright.driver.tile.testing import ROUNDS, in_turns
from tilewright.tune.search import WAYS

torch = pytest.importorskip("torch")


@tw.jit
def scale(x, n, factor, BLOCK: tl.constexpr, TIMES: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, i < n) * factor, i < n)


def over(meta: Any) -> tuple[int]:
    return (tw.cdiv(meta["n"], meta["BLOCK"]),)


SPACE = {"BLOCK": tune.factors(512, least=16), "TIMES": [1, 2, 3]}


class Ruled:
    """Times of launches without running them: 128 and 2 are the fastest, others by a step."""

    def __init__(self, step: float = 1.0) -> None:
        self.timed: list[tuple[int, int]] = []
        self.step = step

    def __call__(self, call: Callable[[], None], quantiles: Sequence[float]) -> list[float]:
        call()
        block, times = self.launched
        self.timed.append(self.launched)
        took = 1.0 + self.step * (abs(block.bit_length() - 8) + 0.5 * abs(times - 2))
        return [took] * len(quantiles)

    def hook(self, given: dict[str, Any], reset_only: bool = False) -> None:
        self.launched = given["BLOCK"], given["TIMES"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Iterator[None]:
    with knobs.cache_dir.override(tmp_path):
        yield


def tuned(clock: Ruled, *configs: tw.Config, **options: Any) -> Autotuner:
    options = {"space": SPACE, "pre_hook": clock.hook, "do_bench": clock, **options}
    return tw.autotune(list(configs), key=["n"], **options)(tw.jit(scale.fn))


def launched(f: Autotuner, n: int = 100) -> tw.Config:
    f[over](torch.ones(n), n, 1.0)
    return f.best_config


@pytest.mark.parametrize("way", WAYS)
def test_every_search_finds_the_fastest(way: str) -> None:
    if way == "bayesian":
        pytest.importorskip("optuna")
    f = tuned(Ruled(), trials=18, search=way)
    assert launched(f).kwargs == {"BLOCK": 128, "TIMES": 2}


def test_at_most_so_many_are_timed_and_the_best_few_once_more() -> None:
    clock = Ruled(0.025)
    f = tuned(clock, trials=7)
    launched(f)
    assert len(set(clock.timed)) == len(f.configs_timings) == 7
    assert len(clock.timed) == 7 + 3
    launched(f)
    assert len(clock.timed) == 10, "the same key is not tuned again"


def test_what_is_listed_first_is_in_the_last_race() -> None:
    """Where it is close; another one is taken where it is clearly faster."""
    listed = tw.Config({"BLOCK": 512, "TIMES": 2})
    for step, last, best in ((0.04, 4, 128), (0.009, 4, 512), (0.3, 0, 128)):
        clock = Ruled(step)
        f = tuned(clock, listed, trials=18)
        assert launched(f, n=100 + int(1000 * step)).kwargs == {"BLOCK": best, "TIMES": 2}
        again = clock.timed[18:]
        assert len(again) == last and ((512, 2) in again) == (last > 0), step


def test_the_first_of_a_list_stays_unless_another_is_clearly_faster() -> None:
    a, b, c, d = (tw.Config({"BLOCK": 16 << k}) for k in range(4))
    found = Timings(dict.fromkeys((a, b, c, d), (1.0, 1.0, 1.0)), usual=a)
    assert found.best == a and found.close(2) == [a, b]
    found.times[b] = (0.985, 0.9, 1.0)
    assert found.best == a
    found.times[b] = (0.94, 1.0, 1.0)  # a lucky median: its fastest calls are no faster
    assert found.best == a
    found.times[c] = (0.95, 0.9, 1.0)
    assert found.best == c and found.close(1) == [b, a]
    found.times[d] = (0.5, 0.5, 0.5)
    assert found.best == d and found.close(3) == [d]
    found.problems[d] = found.problems[a] = ValueError("no")
    assert found.best == b


def test_the_best_of_a_list_race_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """For longer, and those only that are close."""
    raced: list[tuple[int, float, int]] = []

    def in_turns(
        calls: Sequence[object], warmup: float, rep: float, advance: object, rounds: int
    ) -> list[list[float]]:
        raced.append((len(calls), rep, rounds))
        return [[1.0], [1.05], [2.0]] if len(raced) == 1 else [[1.0], [0.9]]

    monkeypatch.setattr("tilewright.driver.tile.autotune.in_turns", in_turns)
    configs = [tw.Config({"BLOCK": 16 << k, "TIMES": 1}) for k in range(3)]
    f = tw.autotune(configs, key=["n"], rep=10)(tw.jit(scale.fn))
    assert launched(f) == configs[1]
    assert raced == [(3, 10, ROUNDS), (2, 10 * LONGER, LONGER * ROUNDS)]


def test_times_on_disk_are_found_again() -> None:
    first, again, more = Ruled(), Ruled(), Ruled()
    best = launched(tuned(first, trials=10))
    heard: list[dict[str, Any]] = []
    LISTENERS["test"] = lambda **found: heard.append(found)
    try:
        assert launched(tuned(again, trials=10)) == best and again.timed == []
    finally:
        del LISTENERS["test"]
    assert heard[0]["cache_hit"] and heard[0]["duration"] is None
    launched(tuned(more, trials=14))
    assert 0 < len(more.timed) <= 4 + 3 and not set(first.timed[:10]) & set(more.timed[:4])


def test_listed_configurations_are_the_first_and_may_lie_outside() -> None:
    clock = Ruled()
    listed = (tw.Config({"BLOCK": 1024, "TIMES": 9}), tw.Config({"BLOCK": 256}))
    f = tuned(clock, *listed, trials=5)
    launched(f)
    assert clock.timed[:2] == [(1024, 9), (256, 1)], "what one does not name is the space's default"
    assert all(t <= 3 for _, t in clock.timed[2:5])


def test_what_a_space_does_not_mention_is_as_in_the_first_configuration() -> None:
    clock = Ruled()
    listed = tw.Config({"BLOCK": 64, "TIMES": 3}, num_warps=8)
    f = tuned(clock, listed, space={"BLOCK": [64, 128, 256]}, trials=9)
    assert launched(f).kwargs == {"BLOCK": 128, "TIMES": 3} and f.best_config.num_warps == 8
    assert {t for _, t in clock.timed} == {3}


def test_options_for_a_gpu_are_one_kernel_on_a_processor() -> None:
    clock = Ruled(0.025)
    f = tuned(clock, space={**SPACE, "num_warps": [1, 2, 4, 8], "num_stages": [1, 2]}, trials=40)
    launched(f)
    assert len(set(clock.timed)) == len(clock.timed) - 3 <= 18


def test_hooks_prune_and_rank() -> None:
    clock, seen = Ruled(), []

    def small(configs: list[tw.Config], named: dict[str, Any], **_: Any) -> list[tw.Config]:
        seen.append(named["n"])
        return [c for c in configs if c.kwargs["BLOCK"] <= 64]

    def model(n: int, BLOCK: int, TIMES: int, **_: Any) -> float:
        return abs(BLOCK - 32) + TIMES

    prune = {"early_config_prune": small, "perf_model": model}
    f = tuned(clock, trials=4, prune_configs_by=prune)
    launched(f)
    assert set(seen) == {100} and all(block <= 64 for block, _ in clock.timed)
    assert {(32, 1), (32, 2), (32, 3)} <= set(clock.timed), "the model's best are timed"

    none = {"early_config_prune": lambda configs, named, **_: []}
    with pytest.raises(tw.Invalid, match="leaves no configuration in the space of scale"):
        launched(tuned(clock, prune_configs_by=none))

    def at_least_one(configs: list[tw.Config], named: dict[str, Any], **_: Any) -> list[tw.Config]:
        return [min((c for c in configs if c.kwargs["BLOCK"] == 32), key=str)]

    f = tuned(clock, tw.Config({"BLOCK": 32, "TIMES": 1}), trials=3,
              prune_configs_by={"early_config_prune": at_least_one})  # fmt: skip
    assert launched(f).kwargs["BLOCK"] == 32


def test_one_that_fails_is_told_and_left_out() -> None:
    f = tuned(Ruled(), space={"BLOCK": [48, 64, 96, 128], "TIMES": [2]}, trials=9)
    assert launched(f).kwargs == {"BLOCK": 128, "TIMES": 2}
    told = [e.message for e in f.log.events if "fails" in e.message]
    assert len(told) == 2 and any("BLOCK: 48" in x for x in told)
    with pytest.raises(tw.Invalid, match="power of"):
        launched(tuned(Ruled(), space={"BLOCK": [48, 96], "TIMES": [2]}))


def test_the_clock_itself() -> None:
    f = tw.autotune(space=SPACE, key=["n"], trials=3, warmup=1, rep=1)(tw.jit(scale.fn))
    x = torch.ones(1000)
    f[over](x, 1000, 1.0)
    assert len(f.configs_timings) == 3 and all(0 < t[0] < 1e4 for t in f.configs_timings.values())
    assert torch.equal(x, torch.ones(1000))


def test_functions_take_turns_and_the_slow_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def bench(fn: Callable[[], str], *_: Any, **__: Any) -> list[float]:
        order.append(fn())
        return {"fast": [1.0, 1.1], "near": [1.05, 1.2], "slow": [2.0, 2.0], "long": [9.0, 9.0]}[
            fn()
        ]

    def failing() -> str:
        raise tw.Refused("no")

    monkeypatch.setattr("tilewright.driver.tile.testing.do_bench", bench)
    calls = [lambda: "fast", lambda: "slow", lambda: "near", failing]
    times = in_turns(calls, 10, 40)
    assert order == ["fast", "slow", "near", *["fast", "near"] * (ROUNDS - 1)]
    assert isinstance(times[3], tw.Refused) and times[1] == [2.0, 2.0]
    order.clear()
    in_turns([lambda: "long"], 10, 15)
    assert order == ["long"], "timed for long enough"


@pytest.mark.parametrize(
    "options, said",
    [
        ({"space": {"BLOCKS": [16]}}, "BLOCKS is no constant of scale"),
        ({"space": {"n": [16]}}, "n is no constant of scale"),
        ({"space": {}}, "the space of scale is empty"),
        ({"space": {"BLOCK": []}}, "has no values"),
        ({"space": {"BLOCK": 16}}, "the space of BLOCK is 16, which is no list"),
        ({"space": {"BLOCK": [1.5]}}, "1.5 cannot be a value"),
        ({"space": SPACE, "trials": 0}, "0 trials find nothing"),
        ({"space": SPACE, "search": "guess"}, "no search called 'guess'"),
    ],
)
def test_what_is_no_space_is_told_with_the_kernel(options: dict[str, Any], said: str) -> None:
    with pytest.raises(tw.Invalid, match=re.escape(said)):
        tw.autotune(key=["n"], **options)(scale)


def test_constants_are_not_given_twice() -> None:
    with pytest.raises(tw.Invalid, match="BLOCK, which autotune chooses"):
        tuned(Ruled())[over](torch.ones(100), 100, 2.0, BLOCK=32)
