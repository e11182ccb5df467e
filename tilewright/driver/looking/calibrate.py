"""`tilewright calibrate`: measures this machine, and shows guesses beside what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tilewright import targets
from tilewright.base import knobs
from tilewright.base.errors import TilewrightError
from tilewright.base.machine import load_per_core
from tilewright.driver.looking.shown import Column, Shown
from tilewright.driver.looking.tables import bytes_text
from tilewright.ir.product import TileShape
from tilewright.ir.target import Target
from tilewright.targets.measured import NUMBERS, Measured, load, machine_of, path_of, store
from tilewright.tune.calibration.calibrate import LOADED, Calibration, calibrate, ticks
from tilewright.tune.calibration.machine import Native

_UNITS = {
    "fma_pipes": "multiply-adds a cycle",
    "fma_latency": "cycles of a multiply-add",
    "load_ports": "loads a cycle",
    "issue": "instructions a cycle",
    "l2_bandwidth": "bytes a cycle from the second cache, all threads",
    "l3_bandwidth": "bytes a cycle from the third cache, all threads",
    "memory_bandwidth": "bytes a cycle from memory, all threads",
    "region": "cycles of a parallel region",
    "mhz": "MHz",
    "prefetch": "iterations that operands are prefetched ahead",
    "l1": "first cache",
    "l2": "second cache",
    "l3": "third cache",
}


def run(out: Shown, anyway: bool) -> int:
    """Measures, shows and keeps; 1 where it is not kept."""
    guess = targets.guessed_host()
    machine, busy = Native(guess), load_per_core()
    if busy > LOADED and not anyway:
        out.say("the machine is busy: what is measured now will be shown, but not kept")
    columns = (TextColumn("measuring this machine"), BarColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=out.progress, transient=True) as bar:
            row = bar.add_task("", total=ticks(guess))
            advance = lambda: bar.advance(row)  # noqa: E731
            found = calibrate(machine, guess, busy, tick=advance, believe=anyway)
    finally:
        machine.close()
    _table(guess, found.measured, out)
    return _kept(found, guess, anyway, out)


def _kept(found: Calibration, guess: Target, anyway: bool, out: Shown) -> int:
    path = path_of(guess, knobs.cache_dir.get())
    if found.doubts and not anyway:
        said = "; ".join(found.doubts)
        out.put(kept=None, doubts=list(found.doubts))
        out.say(f"nothing was kept: {said}")
        out.say("  hint: try again when the machine is idle, or keep it with --anyway")
        return 1
    store(found.measured, path)
    out.put(kept=path)
    out.say(f"kept in {path}")
    if not found.measured.rated:
        out.say(
            "schedules that estimates prefer were slower than those by rules "
            f"({found.after.gain:.2f}×): the rules choose here, as before"
        )
    return 0


def show(out: Shown) -> int:
    """What is known of this machine."""
    guess = targets.guessed_host()
    path = path_of(guess, knobs.cache_dir.get())
    found = Measured(machine_of(guess), {}, None, guess.rated, "")
    said = "nothing was measured: `tilewright calibrate` does"
    if path.exists():
        try:
            found = load(guess, path)
            by = ", ".join(f"{k} {v}" for k, v in found.versions.items())
            said = f"measured at {found.when} by {by}; in {path}"
        except TilewrightError as why:
            said = f"{path} is passed over: {why.what}; `tilewright calibrate` measures again"
    _table(guess, found, out)
    out.put(measured=found.when or None)
    out.say(said)
    return 0


def forget(out: Shown) -> int:
    path = path_of(targets.guessed_host(), knobs.cache_dir.get())
    known = path.exists()
    path.unlink(missing_ok=True)
    said = f"{path} is removed: guesses count again" if known else "nothing was measured"
    out.put(removed=known)
    out.say(said)
    return 0


def _table(guess: Target, found: Measured, out: Shown) -> None:
    out.put(machine=str(found.machine))
    out.say(f"{found.machine}", "bold")
    rows = [
        _row(_UNITS[name], _shown(name, getattr(guess, name)), found.numbers.get(name), name)
        | {"note": f"the guess is kept: {why}" if (why := found.kept.get(name, "")) else ""}
        for name in NUMBERS
    ]
    tiles = None if found.tiles is None else _tiles(found.tiles)
    note = "rows x vectors : adjacent : most"
    rows.append(_row("register tiles", _tiles(guess.tiles), tiles) | {"note": note})
    by = [("rules", "estimates")[x] for x in (guess.rated, found.rated)]
    rows.append(_row("schedules are chosen by", by[0], by[1] if found.when else None))
    rows += [_row(name, "", value) for name, value in found.seen.items()]
    columns: dict[str, Column] = {"number": "number", "guessed": "guessed"}
    out.table("numbers", rows, {**columns, "measured": _measured, "": "note"})


def _row(number: str, guessed: str, measured: int | str | None, name: str = "") -> dict[str, Any]:
    row = {"number": number, "name": name, "guessed": guessed, "measured": measured}
    return {**row, "note": ""}


def _measured(row: Mapping[str, Any]) -> str:
    value = row["measured"]
    return "–" if value is None else value if isinstance(value, str) else _shown(row["name"], value)


def _shown(name: str, value: int) -> str:
    return bytes_text(value) if name in ("l1", "l2", "l3") else str(value)


def _tiles(tiles: Iterable[TileShape]) -> str:
    return ", ".join(t.text() for t in tiles)
