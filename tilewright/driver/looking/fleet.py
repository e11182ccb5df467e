"""What measures for `tilewright tune`: this machine, or a fleet, whose workers are listed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from tilewright.base import knobs
from tilewright.base.cache import code_version
from tilewright.base.errors import Invalid
from tilewright.base.machine import usable_cores
from tilewright.driver.looking.shown import Shown
from tilewright.driver.looking.tables import count
from tilewright.ir.target import Target
from tilewright.runtime import pool
from tilewright.tune.measuring.measurer import Measurer
from tilewright.tune.measuring.process import Measuring
from tilewright.tune.proposing import HERE, Proposing

_ON_RAY = "tilewright.tune.fleet.on_ray"
_POOL = "tilewright.tune.fleet.pool"
_SHOP = "tilewright.tune.fleet.shop"
_MEASURING = "tilewright.tune.fleet.measuring"
# Kernels that are worked on for each worker: to propose schedules and to compile them takes several
# times as long as to measure them. With four, workers measured half of the time, with eight 70 to
# 83 %.
LANES = 8


@dataclass(frozen=True)
class Means:
    """What measures, how many kernels are worked on at a time, and where schedules are proposed."""

    measuring: Measurer
    lanes: int = 1
    proposing: Proposing = HERE


@contextmanager
def means(
    address: str | None, target: Target, out: Shown, wanted: str | None = None
) -> Iterator[Means]:
    """This machine, or the fleet at an address: its machines of a target, which is the one that is
    wanted, by its name or the beginning of its key, or else the given one if there are such."""
    if address is None:
        with closing(Measuring(target, pool.get_threads())) as measuring:
            yield Means(measuring)
        return

    with connected(address, out) as fleet, ExitStack() as stack:
        with out.step("starting workers"):
            there = [Target.parse(t) for w in fleet.find(()) for t in w.facts.targets]
            target = chosen_target(there, target, wanted)
            workers = import_module(_POOL).Pool(target, fleet.find, knobs.threads.get(), out.say)
        lanes = max(workers.count, min(LANES * workers.count, usable_cores()))
        who = f"{count(workers.count, 'worker')} with {count(workers.threads, 'thread')} each"
        out.say(f"{who}; {lanes} kernels at a time")
        shop = import_module(_SHOP).Shop(lanes)
        measuring = stack.enter_context(
            closing(import_module(_MEASURING).FleetMeasuring(workers, shop))
        )
        yield Means(measuring, lanes, shop)


@contextmanager
def connected(address: str, out: Shown) -> Iterator[Any]:
    """A fleet that this process is connected to."""
    on_ray = import_module(_ON_RAY)
    with ExitStack() as stack:
        with out.step("connecting to the fleet"):
            threads = local_threads(on_ray.nodes_asked(address) or 1)
            fleet = stack.enter_context(on_ray.connected(address, threads))
        yield fleet


def local_threads(nodes: int) -> int:
    """Of each node of this machine: as TILEWRIGHT_THREADS says, or half of the cores in all. The
    other half proposes and compiles."""
    return knobs.threads.get() or max(1, usable_cores() // (2 * nodes))


def chosen_target(there: Sequence[Target], usual: Target, wanted: str | None) -> Target:
    """Which of the targets of a fleet's machines to tune for."""
    known = {t.machine_key(): t for t in there}
    if wanted is not None:
        fits = [t for key, t in known.items() if t.name == wanted or key.startswith(wanted)]
    elif usual.machine_key() in known:
        return known[usual.machine_key()]
    else:  # a GPU is asked for by name
        fits = [t for t in known.values() if t.grid is None]
    if len(fits) == 1:
        return fits[0]
    listed = ", ".join(f"{t.name} {key}" for key, t in known.items()) or "none"
    what = f"{wanted!r} names {len(fits) or 'none'} of the fleet's targets"
    if wanted is None:
        what = f"no worker has this machine's target, and {len(fits) or 'none'} of them another"
    raise Invalid(what, hint=f"say --target NAME or the beginning of a key; there are: {listed}")


def show(address: str, out: Shown) -> int:
    """A table of the workers of a fleet."""
    with connected(address, out) as fleet:
        workers = fleet.find(())
        if not workers:
            hint = "start one on each machine with `ray start --address=…`"
            raise Invalid(f"the fleet at {address} has no workers", hint=hint)
        rows = [_row(w) for w in workers]
    names = ("machine", "target", "threads", "state", "races")
    out.table("workers", rows, {name: name for name in names})
    return 0


def _row(w: Any) -> dict[str, Any]:
    if w.facts.problem:
        bad = {"target": "–", "threads": "–", "state": w.facts.problem, "races": "–"}
        return {"machine": w.name, **bad}
    names = ", ".join(f"{t.name} {t.machine_key()}" for t in map(Target.parse, w.facts.targets))
    status = w.status()
    state = "free" if status.racing is None else f"in a race for {status.racing:.0f} s"
    if w.facts.version != code_version():
        state = f"of another version of tilewright ({w.facts.version})"
    threads, races = w.facts.threads, status.races
    return {"machine": w.name, "target": names, "threads": threads, "state": state, "races": races}
