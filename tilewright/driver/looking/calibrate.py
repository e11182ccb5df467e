"""`tilewright calibrate`: measures this machine, and shows guesses beside what was measured."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tilewright import targets
from tilewright.base import knobs
from tilewright.base.errors import TilewrightError
from tilewright.base.machine import load_per_core
from tilewright.driver.looking.tables import bytes_text, new_table, rendered
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


def run(console: Console, anyway: bool) -> int:
    """Measures, shows and keeps; 1 where it is not kept."""
    guess = targets.guessed_host()
    machine, busy = Native(guess), load_per_core()
    if busy > LOADED and not anyway:
        console.print("the machine is busy: what is measured now will be shown, but not kept")
    columns = (TextColumn("measuring this machine"), BarColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console, transient=True) as bar:
            row = bar.add_task("", total=ticks(guess))
            advance = lambda: bar.advance(row)  # noqa: E731
            found = calibrate(machine, guess, busy, tick=advance, believe=anyway)
    finally:
        machine.close()
    _table(guess, found.measured, console)
    return _kept(found, guess, anyway, console)


def _kept(found: Calibration, guess: Target, anyway: bool, console: Console) -> int:
    path = path_of(guess, knobs.cache_dir.get())
    if found.doubts and not anyway:
        said = "; ".join(found.doubts)
        console.print(f"nothing was kept: {said}", highlight=False, soft_wrap=True)
        hint = "  hint: try again when the machine is idle, or keep it with --anyway"
        console.print(hint, highlight=False)
        return 1
    store(found.measured, path)
    console.print(f"kept in {path}", highlight=False, soft_wrap=True)
    if not found.measured.rated:
        console.print(
            "schedules that estimates prefer were slower than those by rules "
            f"({found.after.gain:.2f}×): the rules choose here, as before",
            highlight=False,
            soft_wrap=True,
        )
    return 0


def show(console: Console) -> int:
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
    _table(guess, found, console)
    console.print(said, highlight=False, soft_wrap=True)
    return 0


def forget(console: Console) -> int:
    path = path_of(targets.guessed_host(), knobs.cache_dir.get())
    known = path.exists()
    path.unlink(missing_ok=True)
    said = f"{path} is removed: guesses count again" if known else "nothing was measured"
    console.print(said, highlight=False, soft_wrap=True)
    return 0


def _table(guess: Target, found: Measured, console: Console) -> None:
    console.print(f"{found.machine}", style="bold", highlight=False)
    table = new_table("number", "guessed", "measured", "")
    for name in NUMBERS:
        value = found.numbers.get(name)
        shown = "–" if value is None else _shown(name, value)
        why = found.kept.get(name, "")
        note = f"the guess is kept: {why}" if why else ""
        table.add_row(_UNITS[name], _shown(name, getattr(guess, name)), shown, note)
    tiles = "–" if found.tiles is None else _tiles(found.tiles)
    table.add_row("register tiles", _tiles(guess.tiles), tiles, "rows x vectors : adjacent : most")
    by = [("rules", "estimates")[x] for x in (guess.rated, found.rated)]
    table.add_row("schedules are chosen by", by[0], by[1] if found.when else "–", "")
    for name, value in found.seen.items():
        table.add_row(name, "", value, "")
    print(rendered(table))


def _shown(name: str, value: int) -> str:
    return bytes_text(value) if name in ("l1", "l2", "l3") else str(value)


def _tiles(tiles: Iterable[TileShape]) -> str:
    return ", ".join(t.text() for t in tiles)
