"""Choosers by name, and many kernels at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from typing import TYPE_CHECKING

from tilewright.base.cache import Cache
from tilewright.base.errors import Invalid
from tilewright.base.events import Log
from tilewright.ir.target import Target
from tilewright.kernel.defaults.choices import Choices
from tilewright.kernel.group import Group
from tilewright.tune.choose import EARLY, RECORDS, Chooser, Chosen, Default, Made, Ranked

if TYPE_CHECKING:  # loaded where there is a GPU
    from tilewright.runtime.cuda.machine import Machine

# What uses the clock is loaded when something does: it takes as long as compiling several kernels.
_TIMED = "tilewright.tune.timed"
_ON_GPU = "tilewright.tune.on_gpu"
NAMES = ("default", "early", "ranked", "timed", "records")


def chooser(name: str, cache: Cache, seconds: float) -> Chooser:
    """By name; `seconds` is how long `timed` may take for a whole program."""
    if name == "timed":
        return import_module(_TIMED).Timed(cache, seconds)
    known: dict[str, Chooser] = {c.name: c for c in (Default(), EARLY, RECORDS, Ranked())}
    if name not in known:
        raise Invalid(f"there is no way to choose called {name!r}", hint=f"it is {_or(NAMES)}")
    return known[name]


def on_gpu(
    machine: Machine, cache: Cache, seconds: float, log: Log, make: Callable[[Group, Choices], Made]
) -> Chooser:
    """By the clock of a GPU, libraries among the candidates; `make` compiles one."""
    return import_module(_ON_GPU).Measured(machine, cache, seconds, log, make)


def progress(total: int) -> AbstractContextManager[Callable[[], None]]:
    """A bar where so many measurements take long; the function moves it on."""
    return import_module(_TIMED).bar(total)


def choose_all(by: Chooser, groups: Mapping[str, Group], target: Target) -> dict[str, Chosen]:
    """One after the other, what computes most first, with a bar where that takes long."""
    return import_module(_TIMED).in_order(by, groups, target)


def _or(names: tuple[str, ...]) -> str:
    return f"{', '.join(map(repr, names[:-1]))} or {names[-1]!r}"
