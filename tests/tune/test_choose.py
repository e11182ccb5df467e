"""Choosing among schedules: what is tried, what wins, what is cached, and what the user sees."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from tests.driver.running import call
from tests.kernel.examples import EXAMPLES
from tests.kernel.fuzz import Judge
from tests.kernel.test_chain import attention
from tests.seeds import crossed
from tilewright import ops
from tilewright.base import knobs
from tilewright.base.cache import Cache
from tilewright.base.errors import Invalid
from tilewright.base.events import Log
from tilewright.driver.looking.explain import explain
from tilewright.driver.program.options import Options
from tilewright.driver.program.programs import compile_graph
from tilewright.ir.node import Graph, input
from tilewright.ir.target import Target
from tilewright.ir.types import TensorType, f32
from tilewright.kernel.group import Group
from tilewright.kernel.nest import Nest, Work
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import print_trace
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.split import Split
from tilewright.kernel.text import parse_group
from tilewright.targets import default, get
from tilewright.tune import choosers, measure, timed
from tilewright.tune.candidates import candidates, tiles_of
from tilewright.tune.choose import Chosen, Default, Ranked
from tilewright.tune.choosers import chooser
from tilewright.tune.timed import Timed

ARM = replace(get("arm64"), l1=65536, l2=1 << 20, l3=32 << 20, cores=1)

PACKED = """
group packed
  in x: f32[{m},{k}]
  in w: f32[{blocks},{k},12] laid out by k, j -> j//12, k, j%12
  out y: f32[{m},{n}]
  local t: f32[{m},{n}]
  t[t.i0,t.i1] add= x[t.i0,t.r0] * w[t.i1//12,t.r0,t.i1%12] for {loops} from 0.0
  y[y.i0,y.i1] = max(t[y.i0,y.i1], 0.0) for y.i0 in {m}, y.i1 in {n}
"""


def packed(m: int, k: int, n: int) -> Group:
    loops = f"t.i0 in {m}, t.i1 in {n}, t.r0 in {k}"
    return parse_group(PACKED.format(m=m, k=k, n=n, blocks=n // 12, loops=loops))


def product(m: int = 40, k: int = 64, n: int = 48) -> Graph:
    x, w = (input(name, TensorType(f32, s)) for name, s in (("x", (m, k)), ("w", (k, n))))
    return Graph("product", (x, w), (ops.relu(ops.matmul(x, w)),))


def test_tiles_are_read_off_a_trace() -> None:
    group = packed(100, 64, 120)
    tiles = tiles_of(default_schedule(group, ARM)[0], group, group.stage("t"))
    assert tiles is not None
    assert (tiles.rows, tiles.tall, tiles.columns, tiles.wide) == (100, 6, 120, 12)
    assert (tiles.outer, tiles.deep) == ("columns", 64)
    assert tiles_of((), group, group.stage("t")) is None


def test_where_nothing_is_lost_nothing_else_is_tried() -> None:
    assert len(candidates(packed(96, 512, 96), ARM)) == 1
    assert len(candidates(packed(96, 512, 96), ARM, thorough=True)) > 3


@pytest.mark.parametrize(("columns", "taken"), [(60, "outer rows"), (1200, "block")])
def test_rows_that_no_cache_keeps_are_walked_through_once(columns: int, taken: str) -> None:
    """As they are where all columns stay in the cache, else in blocks."""
    group = packed(3000, 256, columns)
    found = Ranked().choose(group, replace(ARM, cores=2))
    assert taken in found.considered[0].choices
    assert len([x for x in found.considered if "block" in x.choices]) == (taken == "block")
    rules = next(x for x in found.considered if x.choices == "rules")
    best = found.considered[0]
    assert best.estimated is not None and rules.estimated is not None
    assert best.estimated < 0.97 * rules.estimated


def test_rows_that_do_not_fill_tiles_get_other_tiles() -> None:
    found = Ranked().choose(packed(25, 256, 240), ARM)
    assert found.considered[0].choices == "rows 5"


def test_rows_that_a_taller_tile_divides_leave_none_over() -> None:
    """By the rules alone: no part of a tile needs code of its own, and nothing else is tried."""
    (found,) = candidates(packed(49, 256, 240), ARM)
    tiles = tiles_of(found.trace, packed(49, 256, 240), packed(49, 256, 240).stage("t"))
    assert tiles is not None and tiles.tall == 7
    assert not any(isinstance(step, Peel) for step in found.trace)
    both = packed(42, 256, 240)
    assert Split("y.i0", 6) in default_schedule(both, ARM)[0]


def test_steps_that_candidates_share_are_applied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And each candidate is what it is without the others."""
    applied: list[Split] = []
    apply = Split.apply

    def counted(self: Split, n: Nest) -> Nest:
        applied.append(self)
        return apply(self, n)

    group = packed(3000, 256, 60)
    monkeypatch.setattr(Split, "apply", counted)
    found = candidates(group, ARM, thorough=True)
    splits = [step for c in found for step in c.trace if isinstance(step, Split)]
    assert len(found) > 2 and len(applied) < len(splits)
    for c in found:
        assert default_schedule(group, ARM, c.choices) == (c.trace, c.nest)


MACHINES = ["host", "x86-64", "x86-64-v3", "x86-64-v4"]


@pytest.mark.parametrize(("name", "machine"), crossed(EXAMPLES, MACHINES, 4))
def test_every_candidate_computes_the_same(name: str, machine: str) -> None:
    example = EXAMPLES[name]
    target = default() if machine == "host" else get(machine)
    judge = Judge(example.group, example.dims)
    judge.exact = False
    found = candidates(example.group, target, thorough=True)
    assert len({c.trace for c in found}) == len(found)
    for c in found:
        judge.nest(c.nest)
    if machine == "host":
        judge.native(found[-1].nest)


def test_blocks_of_a_chain_are_candidates() -> None:
    group = attention(149, 17, 4, False, ARM, heads=(1, 1))
    found = candidates(group, default(), thorough=True)
    said = [str(c.choices) for c in found]
    assert "rules" in said and sum(x.startswith("block ") for x in said) > 1
    judge = Judge(group, [{}])
    judge.exact = False
    for c in (found[0], found[-1]):
        judge.nest(c.nest)
    judge.native(found[1].nest)


def test_the_model_alone_does_what_the_rules_do_without_contractions() -> None:
    group = EXAMPLES["softmax"].group
    trace, nest = default_schedule(group, ARM)
    assert Ranked().choose(group, ARM) == Chosen(trace, nest) == Default().choose(group, ARM)


def test_what_the_model_does_not_know_is_left_to_the_rules() -> None:
    group = EXAMPLES["depthwise"].group
    assert Ranked().choose(group, ARM) == Default().choose(group, ARM)


def test_names() -> None:
    cache = Cache(Path("nowhere"), enabled=False)
    assert [chooser(name, cache, 1).name for name in choosers.NAMES] == list(choosers.NAMES)
    with pytest.raises(Invalid, match="no way to choose called 'best'") as caught:
        chooser("best", cache, 1)
    assert "'default', 'early', 'ranked', 'timed' or 'records'" in str(caught.value)


# ---- with the clock


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path)


def slow_rules(monkeypatch: pytest.MonkeyPatch, factor: float) -> list[int]:
    """Times by an invented clock: the rules' schedule comes first and takes `factor` as long."""
    calls: list[int] = []

    def invented(nests: Sequence[Nest], target: Target, **_: object) -> list[float]:
        usual = default_schedule(packed(49, 256, 240), target)[1]
        calls.append(len(nests))
        return [1e-3 * (factor if n == usual else 1 + 0.1 * k) for k, n in enumerate(nests)]

    monkeypatch.setattr(timed, "timed", invented)
    return calls


def test_measurements_decide_and_are_made_once(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, group = slow_rules(monkeypatch, 2.0), packed(49, 256, 240)
    first = Timed(cache, 60).choose(group, default())
    assert calls == [timed.TOP] and first.final
    assert first.considered[0].choices != "rules"
    assert first.considered[0].timed == min(x.timed or 0 for x in first.considered)
    assert [x.choices for x in first.considered].count("rules") == 1
    again = Timed(cache, 60).choose(group, default())
    assert calls == [timed.TOP] and again == first


def test_what_is_hardly_faster_does_not_win(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_rules(monkeypatch, 1.01)
    found = Timed(cache, 60).choose(packed(49, 256, 240), default())
    assert found.considered[0].choices == "rules"


def test_without_time_the_model_has_the_last_word_for_now(cache: Cache) -> None:
    group = packed(49, 256, 240)
    spent = Timed(cache, 0)
    found = spent.choose(group, default())
    assert not found.final
    assert found.trace == Ranked().choose(group, default()).trace
    assert all(x.timed is None for x in found.considered)
    assert cache.size() == 0


def test_short_kernels_are_left_to_the_model(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, group = slow_rules(monkeypatch, 2.0), packed(12, 8, 24)
    found = Timed(cache, 60).choose(group, default())
    assert not calls and found.final
    assert found.trace == Ranked().choose(group, default()).trace


def test_what_computes_most_is_chosen_first() -> None:
    groups = {"small": packed(12, 8, 24), "large": packed(48, 64, 24), "middle": packed(12, 32, 24)}
    assert list(choosers.choose_all(Default(), groups, ARM)) == ["large", "middle", "small"]


def test_clocks_are_real(cache: Cache) -> None:
    found = Timed(cache, 60).choose(packed(49, 256, 240), default())
    assert found.final and all(x.timed is not None and x.timed > 0 for x in found.considered)
    assert cache.size() > 0


def test_timing_stops_when_time_is_up() -> None:
    _, nest = default_schedule(packed(12, 8, 24), default())
    assert measure.timed([nest], default(), going_on=lambda: False) is None
    answers = iter([True, True, True, False])
    found = measure.timed([nest, nest], default(), going_on=lambda: next(answers))
    assert found is not None and len(found) == 2 and min(found) > 0


def test_symbolic_sizes_and_indices_are_timed() -> None:
    for name in ("symbolic-matmul", "gather", "scatter-add"):
        _, nest = default_schedule(EXAMPLES[name].group, default())
        found = measure.timed([nest], default(), rounds=1)
        assert found is not None and found[0] > 0


# ---- in whole programs


@dataclass
class Strange:
    """Someone else's chooser."""

    name: str = "strange"
    alone: bool = False
    choices: int = 0

    def choose(self, group: Work, target: Target) -> Chosen:
        self.choices += 1
        return Default().choose(group, target)


@pytest.mark.parametrize("name", choosers.NAMES)
def test_programs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    g, log = product(), Log()
    monkeypatch.setattr(timed, "TOO_SHORT", 0.0)
    program = compile_graph(g, Options(choose=name, tune_seconds=30), log)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s, np.float32) for s in ((40, 64), (64, 48)))
    (got,) = call(program, [x, w])
    np.testing.assert_allclose(got, np.maximum(x @ w, 0), rtol=1e-4, atol=1e-4)
    events = log.of("schedule")
    assert len(events) == len(program.kernels)
    report = explain(program)
    k = next(k for k, info in enumerate(report.kernels) if "matmul" in info.name)
    text = report.considered(k)
    rules = dict.fromkeys(("default", "early", "records"), "by the rules")
    wanted = {**rules, "ranked": "estimated", "timed": "timed"}[name]
    assert wanted in text and any(wanted in e.message for e in events)
    again = compile_graph(g, Options(choose=name, tune_seconds=30), Log())
    assert all(info.cached for info in again.kernels)
    assert explain(again).considered(k) == text
    assert explain(again).trace(k) == report.trace(k)


def test_a_chooser_of_ones_own_and_a_users_trace() -> None:
    mine = Strange()
    program = compile_graph(product(), Options(choose=mine))
    assert mine.choices == len(program.kernels)
    symbol = next(info.symbol for info in program.kernels if "matmul" in info.name)
    trace = explain(compile_graph(product())).trace
    given = {symbol: trace([x.symbol for x in program.kernels].index(symbol))}
    log, other = Log(), Strange(name="another")
    compile_graph(product(), Options(choose=other, schedules=given), log)
    assert other.choices == len(program.kernels) - 1
    assert any(f"{symbol} is scheduled by the given trace" in e.message for e in log)


def test_the_switch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    with knobs.choose.override("ranked"):
        log = Log()
        compile_graph(product(), log=log)
        assert any("estimated" in e.message for e in log.of("schedule"))
    monkeypatch.setenv("TILEWRIGHT_CHOOSE", "luck")
    with pytest.raises(Invalid, match="one of auto, default, early, ranked, timed"):
        compile_graph(product())


@pytest.mark.parametrize("rated", [False, True])
def test_the_model_decides_where_it_was_measured(
    rated: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    log = Log()
    compile_graph(product(), Options(target=replace(default(), rated=rated)), log)
    assert any("estimated" in e.message for e in log.of("schedule")) == rated


def test_what_is_cached_is_plain_text(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_rules(monkeypatch, 2.0)
    made = Timed(cache, 60).choose(packed(49, 256, 240), default())
    (file,) = [p for p in cache.directory.rglob("*") if p.is_file()]
    stored = json.loads(file.read_bytes().partition(b"\n")[2])
    assert stored["trace"] == print_trace(made.trace)
