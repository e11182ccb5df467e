"""What was measured of this machine: a file that targets read, or pass over with a word."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tilewright import targets
from tilewright.base import knobs
from tilewright.base.cache import Cache
from tilewright.base.errors import Invalid
from tilewright.base.events import recording
from tilewright.base.machine import cpu_model
from tilewright.ir.product import TileShape
from tilewright.targets.measured import Machine, Measured, load, machine_of, path_of, store

GUESS = targets.get("x86-64-v3")
FOUND = Measured(
    machine_of(GUESS),
    {"mhz": 2500, "l2_bandwidth": 30, "prefetch": 2},
    (TileShape(5, 2, 6, 6), TileShape(12, 1, 8)),
    rated=True,
    when="2026-01-02T03:04+00:00",
    kept={"l3": "no step"},
    seen={"GB/s": "19"},
    versions={"llvm": "22"},
)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with knobs.cache_dir.override(tmp_path):
        yield tmp_path


def of_host(**numbers: int) -> Measured:
    return Measured(machine_of(targets.guessed_host()), numbers, None, True, "today")


def test_text_round_trips() -> None:
    assert Measured.parse(FOUND.text()) == FOUND


def test_numbers_replace_guesses() -> None:
    made = FOUND.applied(GUESS)
    assert (made.mhz, made.l2_bandwidth, made.prefetch, made.rated) == (2500, 30, 2, True)
    assert made.tiles == FOUND.tiles and made.l3 == GUESS.l3
    assert made.key() != GUESS.key() and made.codegen_key() == GUESS.codegen_key()


def test_times_stay_true_when_estimates_change() -> None:
    assert FOUND.applied(GUESS).machine_key() == GUESS.machine_key()
    assert replace(GUESS, cores=GUESS.cores + 1).machine_key() != GUESS.machine_key()
    keys = {targets.get(name).machine_key() for name in targets.names()[1:]}
    assert len(keys) == len(targets.names()) - 1


def test_the_host_has_them_from_then_on(folder: Path) -> None:
    guess = targets.guessed_host()
    path = path_of(guess, folder)
    assert targets.host() == guess and targets.measurement() is None
    store(of_host(mhz=1234), path)
    assert targets.host().mhz == 1234 and targets.host().rated
    assert targets.host().key() != guess.key() and targets.host() is targets.host()
    assert targets.measured_at(targets.default()) == "today"
    assert targets.measured_at(guess) == ""
    store(of_host(mhz=12345), path)
    assert targets.host().mhz == 12345
    path.unlink()
    assert targets.host() == guess


def test_a_file_may_be_moved(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    guess, other = targets.guessed_host(), tmp_path_factory.mktemp("other")
    store(of_host(mhz=1234), path_of(guess, folder))
    path_of(guess, folder).rename(path_of(guess, other))
    with knobs.cache_dir.override(other):
        assert targets.host().mhz == 1234


def _edited(**changes: Any) -> str:
    return json.dumps(json.loads(of_host(mhz=1234).text()) | changes)


ELSEWHERE = vars(Machine("another", 3, 128))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no JSON"),
        ("[1]", "no JSON object"),
        (of_host(mhz=1234).text()[:40], "no JSON"),
        (_edited(format=0), "format"),
        (_edited(target={"speed": 3}), "no number speed"),
        (_edited(target={"mhz": "fast"}), "whole numbers"),
        (_edited(target={"mhz": 0}), "must be positive"),
        (_edited(tiles=["99x99:1"]), "does not fit"),
        (_edited(tiles=[7]), "another form"),
        (_edited(machine=ELSEWHERE), "measured on another with 3 cores"),
        (_edited(machine={"cpu": "x"}), "another form"),
    ],
)
def test_a_broken_or_foreign_file_is_passed_over(folder: Path, text: str, why: str) -> None:
    guess = targets.guessed_host()
    path_of(guess, folder).write_text(text)
    with recording() as log:
        assert targets.host() == guess
        assert targets.host() == guess
    (event,) = log.of("target")
    assert why in event.message and "passed over" in event.message
    with pytest.raises(Invalid, match=why):
        load(guess, path_of(guess, folder))


def test_the_cache_does_not_remove_what_was_measured(folder: Path) -> None:
    path = path_of(targets.guessed_host(), folder)
    store(of_host(mhz=1234), path)
    cache = Cache(folder)
    cache.put("object", "key", b"payload")
    cache.clear()
    assert cache.get("object", "key") is None and path.exists()


def test_a_processor_is_named_as_it_is_sold(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nmodel name\t: A  Processor 7\nflags : x\nmodel name: B\n")
    assert cpu_model(info) == "A Processor 7"
    assert cpu_model(tmp_path / "absent") == ""
