"""What was decided for kernels alone is tried in the program: what slows it down is taken back."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from rich.console import Console

import tilewright as tw
from tests.tune.fake_measuring import Fake
from tilewright import ops
from tilewright.driver.looking import fleet, in_program, tune
from tilewright.driver.looking.in_program import to_take_back
from tilewright.driver.looking.shown import Shown
from tilewright.driver.program.options import Options
from tilewright.driver.program.searched import medians
from tilewright.ir.node import Graph, input
from tilewright.ir.types import TensorType, f32
from tilewright.kernel.text import group_text, parse_group
from tilewright.runtime import pool
from tilewright.runtime.program import Program
from tilewright.targets import default
from tilewright.tune.records import Record, Records


def products() -> Graph:
    """Several kernels: products, and operands that are laid out for them."""
    shapes = {"x": (24, 40), "a": (40, 48), "b": (48, 16)}
    x, a, b = (input(name, TensorType(f32, shape)) for name, shape in shapes.items())
    return Graph("products", (x, a, b), (ops.matmul(ops.matmul(x, a), b),))


def decided(graph: Graph) -> list[Record]:
    """A record for each kernel: its naive loops, in half of the time."""
    texts = [group_text(parse_group(k.group)) for k in tw.compile_graph(graph).kernels]
    own = default().machine_key(), pool.get_threads()
    return [Record("best", t, *own, "", 1e-6, 2e-6, trials=1) for t in dict.fromkeys(texts)]


class Clock:
    """Seconds by which kernels have naive loops; notes which of them each program has."""

    def __init__(self, saved: Mapping[str, float]) -> None:
        self.saved, self.seen = saved, list[list[set[str]]]()

    def __call__(self, graph: Graph, programs: Sequence[Program]) -> list[float]:
        naive = [
            {group_text(parse_group(k.group)) for k in p.kernels if not k.trace} for p in programs
        ]
        self.seen.append(naive)
        return [1.0 - sum(self.saved.get(t, 0.0) for t in x) for x in naive]


def test_what_makes_a_program_slower_is_taken_back() -> None:
    graph = products()
    first, second, *_ = records = decided(graph)
    clock = Clock({r.group: 0.05 for r in records} | {second.group: -0.2})
    assert to_take_back(graph, Options(), records, clock) == [second]
    every = {r.group for r in records}
    assert clock.seen[:2] == [[every, every - {r.group}] for r in (first, second)]
    assert clock.seen[-1] == [every - {second.group}, set()]


def test_what_gains_stays_and_little_decides_nothing() -> None:
    graph = products()
    records = decided(graph)
    for saved in (0.05, 0.0, -0.003):
        assert not to_take_back(graph, Options(), records, Clock({records[0].group: saved}))
    clock = Clock({r.group: -0.1 for r in records})
    assert to_take_back(graph, Options(), records, clock) == records


def test_records_of_other_programs_are_not_tried() -> None:
    graph = products()
    other = Record("best", "group other\n", default().machine_key(), 1, "", 1e-6, 2e-6)
    clock = Clock({})
    assert not to_take_back(graph, Options(), [other], clock) and not clock.seen


def test_programs_are_timed() -> None:
    """By the clock that `optimize="search"` has; whatever it says, it says it of these records."""
    graph = products()
    records = decided(graph)
    found = to_take_back(graph, Options(), records, medians)
    assert all(r in records for r in found)


def test_tuning_takes_it_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told, and the record says that the default schedule holds."""
    graph, path = products(), tmp_path / "records.jsonl"
    kernels = tw.compile_graph(graph).kernels
    monkeypatch.setattr(fleet, "Measuring", lambda target, threads: Fake(default()))
    said = io.StringIO()
    shown = Shown(Console(file=said, width=200))

    def taken(graph: Graph, options: Options, listed: Sequence[Record]) -> list[Record]:
        assert listed and all(r.gains for r in listed)
        return in_program.to_take_back(graph, options, listed, lambda g, p: [2.0, 1.0])

    monkeypatch.setattr(tune, "to_take_back", taken)
    tune.tune(
        kernels, default(), shown,
        trials=8, minutes=1.0, search="random", model="analytic", records=path, graphs=[graph],
    )  # fmt: skip
    assert "products is slower with it: taken back" in said.getvalue()
    found = Records.load(path)
    assert sum(r.kind == "best" and r.gains for r in found.records) > 0
    assert found.best() and not any(r.gains for r in found.best().values())
