"""Every compile uses what tuning recorded, without a trial, and says so."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from tests.driver.running import call
from tests.tune import test_choose
from tests.tune.fake_measuring import seconds
from tilewright.base.events import Log
from tilewright.driver.looking.explain import explain
from tilewright.driver.program.options import Options
from tilewright.driver.program.programs import compile_graph
from tilewright.ir.node import Graph
from tilewright.ir.target import Target
from tilewright.kernel.nest import Work
from tilewright.kernel.step import print_trace
from tilewright.runtime import pool
from tilewright.runtime.program import Program
from tilewright.targets import default
from tilewright.tune.campaign import Campaign, tasks_of
from tilewright.tune.choose import Chosen, Default
from tilewright.tune.measuring.race import Verdict
from tilewright.tune.models.analytic import Analytic
from tilewright.tune.records import Record, Records, append, rewrite
from tilewright.tune.search import search_named


@dataclass
class Backwards:
    """Says that every other schedule is twice as fast as the default one."""

    target: Target
    threads: int = field(default_factory=pool.get_threads)

    def measure(
        self, group: str, traces: Sequence[str], rounds: int | None = None
    ) -> list[Verdict]:
        return [Verdict(seconds(group, t) / (1 if k == 0 else 4)) for k, t in enumerate(traces)]

    def close(self) -> None:
        return None


THREADS = 2  # whatever tests before left: records are for a number of threads


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TILEWRIGHT_RECORDS", str(tmp_path / "records.jsonl"))
    before = pool.get_threads()
    pool.set_threads(THREADS)
    yield tmp_path / "records.jsonl"
    pool.set_threads(before)


def product(m: int = 40, k: int = 64, n: int = 50) -> Graph:
    """Two kernels: columns that fill no whole vectors are packed first."""
    return test_choose.product(m, k, n)


@cache
def decided() -> tuple[Record, ...]:
    """All lines of a run."""
    kernels = [(k.group, k.calls, k.name) for k in compile_graph(product()).kernels]
    target = default()
    by = (Backwards(target), lambda: search_named("random"), Analytic(), 0)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "records.jsonl"
        campaign = Campaign(tasks_of(kernels, target, *by), Records.load(path), 8)
        for _ in campaign.run():
            pass
        assert list(campaign.finish())
        return tuple(Records.load(path).records)


def tuned(path: Path) -> dict[str, Record]:
    """A file of records; the schedules that hold, by the text of their groups."""
    append(path, decided())
    return {r.group: r for r in Records.load(path).best().values()}


def traces(program: Program) -> dict[str, str]:
    report = explain(program)
    return {k.group: report.trace(n) for n, k in enumerate(program.kernels)}


def test_a_compile_takes_what_was_recorded(records: Path) -> None:
    before = traces(compile_graph(product()))
    found = tuned(records)
    log = Log()
    program = compile_graph(product(), log=log)
    after = traces(program)
    assert after == {text: r.trace for text, r in found.items()} and after != before
    assert sum("a record of 8 trials" in e.message for e in log.of("schedule")) == len(after)
    assert "a record of 8 trials" in explain(program).considered(0)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s, np.float32) for s in ((40, 64), (64, 50)))
    np.testing.assert_allclose(call(program, [x, w])[0], np.maximum(x @ w, 0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["auto", "default", "ranked", "records"])
def test_whatever_chooses_the_others(records: Path, name: str) -> None:
    found = tuned(records)
    first = next(iter(found.values()))
    rewrite(records, [first])
    log = Log()
    got = traces(compile_graph(product(), Options(choose=name), log))
    assert got[first.group] == first.trace
    others = {text for text in got if text != first.group}
    if name in ("default", "records"):
        rules = traces(compile_graph(product(), Options(choose=Default("mine"))))
        assert others and all(got[text] == rules[text] for text in others)


def test_a_chooser_of_ones_own_decides(records: Path) -> None:
    class Own:
        name, alone = "own", False

        def choose(self, group: Work, target: Target) -> Chosen:
            return Default().choose(group, target)

    usual = traces(compile_graph(product(), Options(choose="default")))
    tuned(records)
    assert traces(compile_graph(product(), Options(choose=Own()))) == usual


def test_records_outlive_other_estimates_of_the_machine(records: Path) -> None:
    """What was measured stays true when its rates are known better."""
    found = tuned(records)
    target = replace(default(), mhz=default().mhz + 1)
    assert target.key() != default().key()
    got = traces(compile_graph(product(), Options(target=target)))
    assert got == {text: r.trace for text, r in found.items()}


@pytest.mark.parametrize(
    "other", [{"target": "another"}, {"threads": 99}, {"kind": "trial"}, {"seconds": 1.0}]
)
def test_records_for_something_else_are_not_used(records: Path, other: dict[str, Any]) -> None:
    before = traces(compile_graph(product()))
    rows = list(tuned(records).values())
    rewrite(records, [replace(r, **other) for r in rows])
    assert traces(compile_graph(product())) == before


def test_stale_records_are_told_once(records: Path) -> None:
    before = traces(compile_graph(product()))
    rows = list(tuned(records).values())
    rewrite(records, [replace(r, trace=f"OldStep()\n{r.trace}") for r in rows])
    log = Log()
    assert traces(compile_graph(product(), log=log)) == before
    said = [e.message for e in log.of("schedule") if "OldStep" in e.message]
    assert len(said) == len(rows) and all("is passed over" in x for x in said)
    again = Log()
    compile_graph(product(43), log=again)
    compile_graph(product(), Options(profile=True), again)
    assert not any("OldStep" in e.message for e in again)


@pytest.mark.parametrize("broken", ["half", "folder"])
def test_a_file_that_cannot_be_read_is_told_and_compiled_without(
    records: Path, broken: str
) -> None:
    if broken == "folder":
        records.mkdir()
    else:
        records.write_text('{"form": 1, "kind": "be')
    log = Log()
    compile_graph(product(), log=log)
    assert any("record" in e.message for e in log.of("schedule"))


def test_records_that_are_added_are_seen(records: Path) -> None:
    rows = list(tuned(records).values())
    records.unlink()
    usual = traces(compile_graph(product()))
    append(records, rows)
    assert traces(compile_graph(product())) != usual


def test_a_second_process_has_the_same_schedules_and_measures_nothing(records: Path) -> None:
    found = tuned(records)
    code = f"""
import sys
from tilewright.runtime import pool
pool.set_threads({THREADS})
import tilewright.tune.measuring.process as process
from tests.tune.test_recorded import product, traces
from tilewright.driver.program.programs import compile_graph
process.Measuring.measure = process.Process = None  # whatever measures fails
for text, trace in traces(compile_graph(product())).items():
    sys.stdout.write(text + "\\0" + trace + "\\0")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=True,
    )
    parts = done.stdout.split("\0")[:-1]
    assert dict(zip(parts[::2], parts[1::2], strict=True)) == {
        text: r.trace for text, r in found.items()
    }
    assert records.read_text().count("\n") == len(Records.load(records).records)


def test_traces_print_as_they_were(records: Path) -> None:
    for r in tuned(records).values():
        assert print_trace(r.replayed()[0]) == r.trace
