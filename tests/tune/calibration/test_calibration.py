"""Calibration: numbers of a machine that answers as told, and what is made of them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright import targets
from tilewright.base import knobs
from tilewright.base.errors import TilewrightError
from tilewright.base.events import Log
from tilewright.driver.cli import main
from tilewright.driver.looking import calibrate as command
from tilewright.driver.looking.explain import Explanation, ProgramReport
from tilewright.driver.program.options import Options
from tilewright.driver.program.trials import chooser_for
from tilewright.ir.target import Target
from tilewright.kernel.nest import Nest
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import Trace
from tilewright.kernel.steps.prefetch import Prefetch
from tilewright.kernel.steps.split import Split
from tilewright.llvm.objects import assembly
from tilewright.runtime.program_data import KernelInfo
from tilewright.targets.measured import Measured, machine_of, path_of
from tilewright.tune.calibration import check, code, numbers, products
from tilewright.tune.calibration.calibrate import Calibration, calibrate, ticks
from tilewright.tune.calibration.check import Ranking
from tilewright.tune.calibration.machine import Native, Probe

SIZES: dict[str, Any] = {"l1": 32 << 10, "l2": 1 << 20, "l3": 16 << 20}
GUESS = replace(targets.get("x86-64-v3"), name="guess", cores=4, **SIZES)


@dataclass
class Fake:
    """A machine whose numbers are known. `noise` gives a factor for each sample of a probe."""

    mhz: float = 2000.0
    pipes: float = 1.0
    latency: float = 5.0
    loads: float = 3.0
    issue: float = 6.0
    # Of each level: bytes, bytes of a cycle by one thread and by all, cycles of a load.
    caches: tuple[tuple[int, float, float, float], ...] = (
        (32 << 10, 96, 96, 5),
        (1 << 20, 48, 40, 14),
        (16 << 20, 20, 12, 60),
    )
    memory: tuple[float, float, float] = (9, 3, 300)
    region: float = 1500.0
    noise: Callable[[Probe], float] = lambda p: 1.0
    broken: tuple[str, ...] = ()
    asked: list[Probe] = field(default_factory=list)

    def seconds(self, probe: Probe) -> float:
        self.asked.append(probe)
        if probe.kind in self.broken:
            raise TilewrightError(f"there is no {probe.kind}")
        return self.cycles(probe) * self.noise(probe) / (self.mhz * 1e6)

    def cycles(self, p: Probe) -> float:
        simple = {
            "add": 1.0,
            "sum": 1 / self.pipes,
            "wait": self.latency,
            "mix": 1 / self.issue,
            "regions": code.REGION_WORK + self.region,
        }
        if p.kind in simple:
            return simple[p.kind]
        held = (p.bytes, p.bytes, p.bytes * p.threads)  # all cores share the third
        fits = [x for x, n in zip(self.caches, held, strict=True) if n <= x[0]]
        one, every, load = fits[0][1:] if fits else self.memory
        return load if p.kind == "chase" else 1 / (one if p.threads == 1 else every)


def measured(machine: Fake, guess: Target = GUESS) -> dict[str, numbers.Number]:
    samples = numbers.sampled(machine, numbers.probes_of(guess), 5)
    return {n.name: n for n in numbers.numbers(guess, samples)}


def same_time(nests: Sequence[Nest], target: Target) -> list[float]:
    return [1.0] * len(nests)


# ---- numbers


def test_numbers_of_a_known_machine() -> None:
    found = {name: n.value for name, n in measured(Fake()).items()}
    assert found == {
        "mhz": 2000,
        "fma_pipes": 1,
        "fma_latency": 5,
        "load_ports": 3,
        "issue": 6,
        "l2_bandwidth": 40,
        "l3_bandwidth": 12,
        "memory_bandwidth": 3,
        "region": 1500,
        "l1": 32 << 10,
        "l2": 1 << 20,
        "l3": 16 << 20,
    }


def test_repeats_take_turns() -> None:
    machine = Fake()
    probes = numbers.probes_of(GUESS)
    numbers.sampled(machine, probes, 3)
    turn = [x for p in probes for x in (numbers.CYCLE, p)]
    assert machine.asked == turn * 3


def test_a_few_disturbed_rounds_change_nothing() -> None:
    count = 0

    def noise(p: Probe) -> float:
        nonlocal count
        count += p.kind == "wait"
        return 9.0 if p.kind == "wait" and count % 5 == 0 else 1.0

    found = measured(Fake(noise=noise))["fma_latency"]
    assert found.value == 5


def test_a_clock_that_changes_its_rate_changes_no_count() -> None:
    machine = Fake()

    def noise(p: Probe) -> float:  # of all that runs after some time
        return 1.0 if len(machine.asked) < 150 else 1.5

    machine.noise = noise
    found = measured(machine)
    assert found["l2_bandwidth"].value == 40 and found["l2_bandwidth"].steady
    assert not found["mhz"].steady


def test_unsteady_numbers_are_known() -> None:
    rng = np.random.default_rng(0)
    found = measured(Fake(noise=lambda p: rng.uniform(0.5, 2) if p.kind == "mix" else 1.0))
    assert [n.name for n in found.values() if not n.steady] == ["issue"]


@pytest.mark.parametrize(("true", "said"), [(16 << 10, 32 << 10), (64 << 10, 32 << 10)])
def test_a_size_that_the_system_has_wrong(true: int, said: int) -> None:
    first = Fake().caches[0]
    machine = Fake(caches=((true, *first[1:]), *Fake().caches[1:]))
    assert measured(machine, replace(GUESS, l1=said))["l1"].value == true


def test_a_size_without_a_step_keeps_the_systems() -> None:
    machine = Fake(memory=(9, 3, 65))  # memory is about as fast as the third cache
    found = measured(machine)["l3"]
    assert found.value == GUESS.l3 and "no step" in found.kept


def test_what_cannot_be_measured_keeps_its_guess() -> None:
    found = measured(Fake(broken=("regions",), latency=99))
    assert found["region"].value == GUESS.region and found["region"].kept == "there is no regions"
    assert found["fma_latency"].value == GUESS.fma_latency
    assert "between 1 and 16" in found["fma_latency"].kept
    alone = measured(Fake(), replace(GUESS, cores=1))["region"]
    assert alone.value == GUESS.region and "one core" in alone.kept
    # As long as a chunk takes: no other thread took part.
    alone = measured(Fake(region=code.REGION_WORK))["region"]
    assert alone.value == GUESS.region and alone.kept
    assert "region" not in numbers.as_mapping([alone])


def test_one_thread_reads_a_third_cache_that_many_cores_share() -> None:
    many = replace(GUESS, cores=64)
    assert measured(Fake(), many)["l3_bandwidth"].value == 20
    assert measured(Fake(), GUESS)["l3_bandwidth"].value == 12


def test_rounds_end_when_it_is_late() -> None:
    machine = Fake()
    samples = numbers.sampled(machine, [Probe("wait")], 9, late=lambda: True)
    assert len(samples.cycles[Probe("wait")]) == numbers.FEWEST


# ---- register tiles and prefetching


def tile_of(nest: Nest, traces: dict[int, Trace]) -> tuple[int, int]:
    splits = [s for s in traces[id(nest)] if isinstance(s, Split)]
    rows = next(s.factor for s in splits if s.loop == "y.i0")
    return rows, next(s.factor for s in splits if s.loop == "y.i1")


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> dict[int, Trace]:
    """The traces of the nests that are raced."""
    made: dict[int, Trace] = {}
    keep: list[Nest] = []

    def schedule(*given: Any) -> tuple[Trace, Nest]:
        trace, nest = default_schedule(*given)
        made[id(nest)] = trace
        keep.append(nest)
        return trace, nest

    monkeypatch.setattr(products, "default_schedule", schedule)
    return made


def test_the_fastest_tile_is_taken(traces: dict[int, Trace]) -> None:
    def race(nests: Sequence[Nest], target: Target) -> list[float]:
        best = (5, 2 * target.lanes(32))
        return [0.5 if tile_of(n, traces) == best else 1.0 for n in nests]

    found = products.tiles(GUESS, race)
    assert [(t.rows, t.vectors) for t in found] == [(5, 2), (14, 1)]
    made = replace(GUESS, tiles=found)
    assert Target.parse(made.text()) == made


def test_a_known_tile_stays_where_none_is_clearly_faster() -> None:
    def race(nests: Sequence[Nest], target: Target) -> list[float]:
        return [1.0, *([0.95] * (len(nests) - 1))]

    found = products.tiles(GUESS, race)
    assert [(t.rows, t.vectors, t.adjacent) for t in found] == [(6, 2, 6), (14, 1, 8)]


def test_tiles_fit_registers() -> None:
    for name in ("x86-64", "x86-64-v3", "x86-64-v4", "arm64"):
        t = targets.get(name)
        for shape in products.shapes(t):
            assert shape.rows * shape.vectors + shape.vectors < t.vector_registers
            replace(t, tiles=(shape,))


def distance(trace: Trace) -> int:
    return next((s.distance for s in trace if isinstance(s, Prefetch)), 0)


@pytest.mark.parametrize("best", [0, 1, 4])
def test_the_best_distance_is_taken(best: int, traces: dict[int, Trace]) -> None:
    target = replace(GUESS, l2=64 << 10)

    def race(nests: Sequence[Nest], target: Target) -> list[float]:
        return [0.5 if distance(traces[id(n)]) == best else 1.0 for n in nests]

    assert products.prefetch(target, race) == best


def test_a_target_says_how_far_ahead_is_prefetched() -> None:
    target = replace(GUESS, l2=64 << 10)
    group = products.product(48, 1024, 320, 16)
    found = [distance(default_schedule(group, replace(target, prefetch=d))[0]) for d in (0, 1, 3)]
    assert found == [0, 1, 3]


@pytest.mark.parametrize("name", ["x86-64-v4", "arm64"])
def test_products_of_every_dtype_have_kernels(name: str) -> None:
    raced: list[Nest] = []

    def race(nests: Sequence[Nest], target: Target) -> list[float]:
        raced.extend(nests)
        return [1e-3] * len(nests)

    t = targets.get(name)
    found = products.peaks(t, race)
    assert len(found) == len(raced) == len({(p.a, p.b) for p in t.products})


# ---- ranking


def test_rank_correlation() -> None:
    assert check.rank_correlation([1, 2, 3], [10, 20, 90]) == pytest.approx(1)
    assert check.rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert check.rank_correlation([1, 1, 1], [3, 2, 1]) == 0
    assert check.rank_correlation([1, 2, 2, 3], [1, 2, 2, 3]) == pytest.approx(1)


def test_estimates_that_are_right_are_found_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "SIZES", check.SIZES[:2])
    arm = replace(targets.get("arm64"), l1=65536, l2=1 << 20, l3=32 << 20)
    alone = replace(arm, cores=1)
    exact = lambda nests, target: [check.cost(n, alone).cycles for n in nests]  # noqa: E731
    (found,) = check.rankings([arm], exact)
    assert found.correlation == pytest.approx(1) and found.gain >= 1 and found.good
    inverse = lambda nests, target: [1 / check.cost(n, alone).cycles for n in nests]  # noqa: E731
    (found,) = check.rankings([arm], inverse)
    assert found.correlation == pytest.approx(-1)
    assert not Ranking((), (0.9,)).good


# ---- all of it


def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two products are ranked, few tiles are tried."""
    monkeypatch.setattr(check, "SIZES", check.SIZES[:1])
    monkeypatch.setattr(products, "MOST_VECTORS", 2)


def test_a_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    count = 0

    def tick() -> None:
        nonlocal count
        count += 1

    found = calibrate(Fake(), GUESS, 0.0, same_time, tick)
    assert not found.doubts and found.measured.rated and count == ticks(GUESS)
    made = found.measured.applied(GUESS)
    assert (made.mhz, made.memory_bandwidth, made.rated) == (2000, 3, True)
    assert made.tiles[0].rows == GUESS.tiles[0].rows
    assert found.measured.seen["cycles of a load from memory"] == "300"
    assert found.measured.seen["GB/s from memory, one thread"] == "18"
    assert found.measured.machine == machine_of(GUESS)
    assert Measured.parse(found.measured.text()) == found.measured


def test_a_busy_machine_is_doubted(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    found = calibrate(Fake(), GUESS, 1.5, same_time)
    assert found.doubts == ("1.5 programs wanted each core during the last minute",)
    rng = np.random.default_rng(0)
    noisy = Fake(noise=lambda p: rng.uniform(0.5, 2))
    found = calibrate(noisy, GUESS, 0.0, same_time)
    assert len(found.doubts) == 1 and "repeats disagree: mhz by" in found.doubts[0]
    assert "mhz" not in found.measured.numbers and "disagree" in found.measured.kept["mhz"]
    believed = calibrate(noisy, GUESS, 0.0, same_time, believe=True)
    assert "mhz" in believed.measured.numbers


def test_slower_picks_are_not_rated(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    worse = lambda *_: [Ranking((0.5,), (1.0,)), Ranking((0.5,), (0.9,))]  # noqa: E731
    monkeypatch.setattr(check, "rankings", worse)
    assert not calibrate(Fake(), GUESS, 0.0, same_time).measured.rated


# ---- the command


@pytest.fixture
def commanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The command measures at once, in a folder of its own, a machine without rated numbers."""
    guess = replace(targets.guessed_host(), rated=False)

    def made(machine: object, guess: Target, load: float, **_: object) -> Calibration:
        doubts = ("the machine was busy",) if load > 1 else ()
        numbers_ = {"mhz": 1234}
        found = Measured(machine_of(guess), numbers_, guess.tiles, True, "today", {"l3": "no step"})
        return Calibration(found, (), Ranking((), ()), Ranking((), (1.0,)), doubts)

    monkeypatch.setattr(targets, "_describe", lambda cores: guess)
    targets._read.cache_clear()
    monkeypatch.setattr(command, "calibrate", made)
    monkeypatch.setattr(command, "load_per_core", lambda: 0.0)
    monkeypatch.setenv(knobs.cache_dir.name, str(tmp_path))
    return tmp_path


def chosen_by() -> str:
    return chooser_for(Options(), targets.default(), Log(), None, None).name  # type: ignore


def test_the_command(commanded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert chosen_by() == "default"
    assert main(["calibrate"]) == 0
    said = capsys.readouterr().out
    assert "1234" in said and "the guess is kept: no step" in said and "kept in" in said
    assert targets.host().mhz == 1234 and chosen_by() == "ranked"
    assert main(["calibrate", "--show"]) == 0
    assert "measured at today" in capsys.readouterr().out
    kernel = KernelInfo("k", "k", "", "", 1)
    shown = Explanation((ProgramReport("f", 1, 1, (kernel,), target=targets.host()),))
    assert "numbers were measured at today" in str(shown)
    assert main(["calibrate", "--forget"]) == 0
    assert "removed" in capsys.readouterr().out
    assert targets.host().mhz != 1234 and chosen_by() == "default"
    assert main(["calibrate", "--show"]) == 0
    assert "nothing was measured" in capsys.readouterr().out


def test_nothing_of_a_busy_machine_is_kept(
    commanded: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "load_per_core", lambda: 2.0)
    assert main(["calibrate"]) == 1
    said = capsys.readouterr().out
    assert "nothing was kept: the machine was busy" in said and "--anyway" in said
    assert list(commanded.iterdir()) == []
    assert main(["calibrate", "--anyway"]) == 0
    assert targets.host().mhz == 1234


def test_a_broken_file_is_shown(commanded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path_of(targets.guessed_host(), commanded).write_text("{")
    assert main(["calibrate", "--show"]) == 0
    assert "is passed over: it is no JSON" in capsys.readouterr().out


# ---- this machine


SERVERS = [n for n in targets.names() if targets.get(n).arch in ("aarch64", "x86_64")]


@pytest.mark.parametrize("name", SERVERS)
def test_loops_are_as_they_are_written(name: str) -> None:
    """Nothing is left out, unrolled or spilled, for processors of servers: one instruction there
    adds 64 bits."""
    t = targets.get(name)
    text = assembly(code.module(t), t)

    def loop(name: str) -> list[str]:
        lines = text.split(f"\n{name}:")[1].split("\n.LBB")[1].splitlines()[1:]
        end = next(k for k, line in enumerate(lines) if ".LBB" in line)  # the branch back
        return [line.strip() for line in lines[:end]]

    chain, sums = loop("add"), loop("sum")
    assert not any("(%rsp)" in x or "[sp" in x for x in (*chain, *sums))
    assert sum(x.startswith(("xor", "eor", "add")) for x in chain) >= code.CHAIN
    assert len(chain) <= code.CHAIN + 2 and len(sums) <= code.chains(t) + 3
    if t.has_fma:
        assert sum(x.startswith(("vfma", "fmla")) for x in sums) == code.chains(t)


def test_operands_stay_as_they_are() -> None:
    machine = Native(targets.guessed_host())
    try:
        for kind in ("add", "wait", "sum", "mix"):
            machine.seconds(Probe(kind))
        at = machine._at("", 4096, 0)
        assert (np.frombuffer(ctypes.string_at(at, code.RESULT), np.float32) == 1).all()
    finally:
        machine.close()


def test_native_probes_run() -> None:
    guess = targets.guessed_host()
    machine = Native(guess)
    try:
        for kind in ("add", "wait", "sum", "mix", "read", "chase", "regions"):
            small = Probe(kind, 4096 if kind in ("read", "chase") else 0)
            assert machine.seconds(small) > 0
        assert machine.seconds(Probe("read", 4096, guess.cores)) > 0
    finally:
        machine.close()


def test_a_circle_leads_through_all_lines() -> None:
    machine = Native(targets.guessed_host())
    size = 64 * 64
    at = machine._at("chase", size, 0)
    owner = machine._memory["chase", size, 0][0]
    words = owner[at - owner.ctypes.data :][: size + 64].view(np.uint64)
    place, seen = int(words[size // 8]), set()
    for _ in range(64):
        seen.add(place)
        place = int(words[(place - at) // 8])
    assert len(seen) == 64 and all(at <= p < at + size for p in seen)
    assert place == int(words[size // 8])
    machine.close()
