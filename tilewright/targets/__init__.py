"""Targets by name: each folder here is one architecture and defines `FAMILY`."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from tilewright.base import knobs
from tilewright.base.discover import import_all
from tilewright.base.errors import Invalid, Unsupported
from tilewright.base.machine import cache_sizes, cpu_flags, usable_cores
from tilewright.ir.target import Target
from tilewright.llvm.objects import host_cpu

from .family import Family, Host


def families() -> tuple[Family, ...]:
    """The architectures found in this folder."""
    modules = import_all(__name__, recursive=False)
    return tuple(module.FAMILY for module in modules if hasattr(module, "FAMILY"))


def host() -> Target:
    """The machine this process runs on."""
    return _describe(usable_cores())


def names() -> tuple[str, ...]:
    """Every name that `get` knows."""
    return ("host", *(preset.name for family in families() for preset in family.presets))


def get(name: str) -> Target:
    """A target by name: `host`, or a preset such as x86-64-v3."""
    if name == "host":
        return host()
    for family in families():
        for preset in family.presets:
            if preset.name == name:
                return preset
    raise Invalid(f"there is no target {name!r}", hint=f"known targets: {', '.join(names())}")


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
    missing = [f[1:] for f in target.features if f[0] == "+" and f not in machine.features]
    if missing:
        shown = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if missing[4:] else "")
        raise Invalid(
            f"code for {target.name} needs {shown}, which this processor lacks "
            "or the system does not permit",
            hint="compile for host, or for a target that needs less",
        )


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
