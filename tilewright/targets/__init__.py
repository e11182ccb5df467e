"""Targets by name: each folder here is one architecture and defines `FAMILY`."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path

from tilewright.base import knobs
from tilewright.base.discover import import_all
from tilewright.base.errors import Invalid, TilewrightError, Unsupported
from tilewright.base.events import Log
from tilewright.base.machine import cache_sizes, cpu_flags, usable_cores
from tilewright.ir.target import Target
from tilewright.llvm.objects import host_cpu

from .family import Family, Host
from .measured import Measured, Stamp, load, path_of, stamp_of
from .systems import OTHERS, system_of


def families() -> tuple[Family, ...]:
    """The architectures found in this folder."""
    modules = import_all(__name__, recursive=False)
    return tuple(module.FAMILY for module in modules if hasattr(module, "FAMILY"))


def family_of(target: Target) -> Family:
    """The architecture of a target."""
    for family in families():
        if target.arch in family.architectures:
            return family
    raise Unsupported(
        f"no folder of targets/ is for {target.arch}, the architecture of {target.name}",
        hint=f"known are {', '.join(a for f in families() for a in f.architectures)}",
    )


def host() -> Target:
    """The machine this process runs on, with the numbers that were measured of it, if any were."""
    return _known()[0]


def measurement() -> Measured | None:
    """What `tilewright calibrate` measured of this machine, if it did."""
    return _known()[1]


def measured_at(target: Target) -> str:
    """When the numbers of a target were measured, if it is this machine and they were."""
    here, found = _known()
    return found.when if found is not None and here.key() == target.key() else ""


def guessed_host() -> Target:
    """The machine this process runs on, by what its system says, and guesses for the rest."""
    return _describe(usable_cores())


def names() -> tuple[str, ...]:
    """Every name that `get` knows."""
    return ("host", *(preset.name for family in families() for preset in family.presets))


def get(name: str) -> Target:
    """A target by name: `host`, a preset such as x86-64-v3, or a preset with another system than
    Linux such as x86-64-v3-windows."""
    if name == "host":
        return host()
    for system in OTHERS:
        preset = name.removesuffix(f"-{system.name}")
        if preset != name and preset in names()[1:]:
            return system.target(get(preset))
    for family in families():
        for preset in family.presets:
            if preset.name == name:
                return preset
    systems = " and ".join(f"NAME-{s.name}" for s in OTHERS)
    known = f"known targets: {', '.join(names())}; for packages, {systems} too"
    raise Invalid(f"there is no target {name!r}", hint=known)


def default() -> Target:
    """What to compile for when nothing is said: TILEWRIGHT_TARGET, else this machine."""
    return here(get(knobs.target.get() or "host"))


def here(target: Target) -> Target:
    """The target with this machine's cores and caches, if code for it could run here: a processor
    that does less, in the same place.
    """
    machine = host()
    if target.arch != machine.arch:
        return target
    caches = {level: getattr(machine, level) for level in ("l1", "l2", "l3")}
    return replace(target, cores=machine.cores, **caches)


def require_runnable(target: Target) -> None:
    """An error where code for the target cannot run on this machine."""
    machine = host()
    if target.arch != machine.arch:
        raise Invalid(
            f"code for {target.name} ({target.arch}) cannot run on this machine ({machine.arch})",
            hint="compile on the machine where it is to run, or unset TILEWRIGHT_TARGET",
        )
    if (system := system_of(target)) is not system_of(machine):
        raise Invalid(
            f"code for {target.name} runs on {system.name} only",
            hint=f"export it: target={target.name!r}",
        )
    missing = [f[1:] for f in target.features if f[0] == "+" and f not in machine.features]
    if missing:
        shown = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if missing[4:] else "")
        raise Invalid(
            f"code for {target.name} needs {shown}, which this processor lacks "
            "or the system does not permit",
            hint="compile for host, or for a target that needs less",
        )


def _known() -> tuple[Target, Measured | None]:
    cores = usable_cores()
    path = _file(cores, knobs.cache_dir.get())
    return _read(cores, path, stamp_of(path))


@lru_cache(16)
def _file(cores: int, folder: Path) -> Path:
    return path_of(_describe(cores), folder)


@lru_cache(16)
def _read(cores: int, path: Path, stamp: Stamp) -> tuple[Target, Measured | None]:
    """By a file as it was at some time; it is read once."""
    guess = _describe(cores)
    if stamp is None:
        return guess, None
    try:
        found = load(guess, path)
    except TilewrightError as why:
        said = f"the measured numbers in {path} are passed over: {why.what}"
        Log().add("target", f"{said}; `tilewright calibrate` measures them again")
        return guess, None
    return found.applied(guess), found


@cache
def _describe(cores: int) -> Target:
    cpu = host_cpu()
    arch = cpu.triple.split("-")[0]
    for family in families():
        if arch in family.architectures:
            return family.describe(Host(cpu, cpu_flags(), cache_sizes(), cores))
    raise Unsupported(
        f"this machine's architecture, {arch}, is not among the targets",
        hint=f"set TILEWRIGHT_TARGET to one of {', '.join(names()[1:])} to compile for another",
    )
