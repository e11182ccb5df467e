"""What was measured of this machine: a small file beside the cache, which the host's target reads.

`tilewright calibrate` writes it (tune/calibration/). There is one file for each processor and
number of cores, so that machines may share a folder, and a file may be copied to machines of the
same kind. A file that cannot be used is passed over, with a word in the log.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from tilewright.base import knobs
from tilewright.base.cache import write_atomically
from tilewright.base.errors import Invalid, TilewrightError, require
from tilewright.base.machine import cpu_model
from tilewright.ir.product import TileShape
from tilewright.ir.target import Target

FORMAT = 1
Stamp: TypeAlias = tuple[int, int] | None  # when a file was written, and its size
# Fields of a target that a measurement may replace; register tiles are written as text.
NUMBERS = (
    "l1 l2 l3 fma_pipes fma_latency load_ports issue l2_bandwidth l3_bandwidth memory_bandwidth "
    "region mhz prefetch"
).split()


@dataclass(frozen=True)
class Machine:
    """Which machines a measurement is for."""

    cpu: str
    cores: int
    vector_bits: int

    def __str__(self) -> str:
        cores = "1 core" if self.cores == 1 else f"{self.cores} cores"
        return f"{self.cpu} with {cores} and vectors of {self.vector_bits} bits"


@dataclass(frozen=True)
class Measured:
    """Numbers of one machine. `kept` says of fields why they keep their guess, `seen` is what else
    was measured, for people, and `rated` whether schedules that are ranked by these numbers were
    found to be no slower."""

    machine: Machine
    numbers: Mapping[str, int]
    tiles: tuple[TileShape, ...] | None
    rated: bool
    when: str
    kept: Mapping[str, str] = field(default_factory=dict)
    seen: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    def applied(self, guess: Target) -> Target:
        """The target with these numbers in the place of guesses."""
        tiles = guess.tiles if self.tiles is None else self.tiles
        fields: dict[str, Any] = dict(self.numbers)
        return replace(guess, **fields, tiles=tiles, rated=self.rated)

    def text(self) -> str:
        tiles = None if self.tiles is None else [t.text() for t in self.tiles]
        body = {
            "format": FORMAT,
            "machine": vars(self.machine),
            "when": self.when,
            "rated": self.rated,
            "target": dict(self.numbers),
            "tiles": tiles,
            "kept": dict(self.kept),
            "seen": dict(self.seen),
            "versions": dict(self.versions),
        }
        return json.dumps(body, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def parse(cls, text: str) -> Measured:
        """The inverse of `text`."""
        try:
            body: Any = json.loads(text)
        except ValueError as problem:
            raise Invalid(f"it is no JSON ({problem})") from None
        require(isinstance(body, dict), "it is no JSON object")
        require(body.get("format") == FORMAT, f"its format is not {FORMAT}")
        try:
            machine, tiles, numbers = Machine(**body["machine"]), body["tiles"], body["target"]
            unknown = [name for name in numbers if name not in NUMBERS]
            require(not unknown, f"a target has no number {', '.join(unknown)}")
            bad = [n for n, x in numbers.items() if not isinstance(x, int) or isinstance(x, bool)]
            require(not bad, f"{', '.join(bad)} should be whole numbers")
            return cls(
                machine,
                numbers,
                None if tiles is None else tuple(map(TileShape.parse, tiles)),
                body["rated"] is True,
                str(body["when"]),
                *(dict(body[name]) for name in ("kept", "seen", "versions")),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            said = f"{type(problem).__name__}: {problem}"
            raise Invalid(f"something is missing in it, or has another form ({said})") from None


def machine_of(guess: Target) -> Machine:
    """This machine, by what it is sold as, or else by LLVM's name for its processor."""
    return Machine(cpu_model() or guess.cpu, guess.cores, guess.vector_bits)


def path_of(guess: Target, folder: Path) -> Path:
    """The file for machines such as a guessed target describes."""
    m = machine_of(guess)
    name = re.sub(r"[^\w.+-]+", "-", m.cpu)
    return folder / f"machine-{name}-{m.cores}-cores.json"


def stamp_of(path: Path) -> Stamp:
    """What changes when a file does; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def load(guess: Target, path: Path) -> Measured:
    """What a file says of the machine that a guess describes; an error says why it cannot be
    used."""
    try:
        found = Measured.parse(path.read_text())
    except (OSError, UnicodeDecodeError) as problem:
        raise Invalid(f"it cannot be read ({problem})") from None
    here = machine_of(guess)
    require(found.machine == here, f"it was measured on {found.machine}, and this is {here}")
    found.applied(guess)  # numbers that no target may have are an error
    return found


def store(measured: Measured, path: Path) -> None:
    """Writes the file that targets read from then on."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, measured.text().encode())
    except OSError as problem:
        raise TilewrightError(
            f"{path} cannot be written ({problem.strerror})",
            hint=f"set {knobs.cache_dir.name} to a folder that can be written",
        ) from None
