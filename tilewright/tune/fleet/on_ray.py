"""Workers as actors of Ray (the extra `fleet`): one on each node of a cluster that has processors,
with a measuring process as on this machine.

The actors have names and outlive who started them, so that several tuning runs share machines: a
worker takes one race at a time, and tells others that it is busy.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from tilewright.base.cache import code_version
from tilewright.base.errors import Invalid, MissingExtra, TilewrightError
from tilewright.base.machine import usable_cores
from tilewright.ir.target import Target
from tilewright.runtime.cuda.device import device
from tilewright.targets import families, host
from tilewright.targets.nvptx import target_of
from tilewright.tune.fleet import ADDRESS
from tilewright.tune.fleet.pool import Busy, Facts, Lost
from tilewright.tune.measuring.process import Measuring
from tilewright.tune.measuring.race import Verdict
from tilewright.tune.measuring.worker import Job

NAMESPACE = "tilewright"
LOCAL = "local:"
# Seconds until an address, or a new worker, has to answer.
ANSWER = 5.0
START = 120.0
# A lease lasts this many seconds after the worker last said that it is there, and how often it is
# asked.
LEASE = 30.0
ASKED = 5.0


class Races(Protocol):
    """What an actor measures with."""

    def measure(
        self, group: str, traces: Sequence[str], rounds: int | None, codes: Sequence[bytes]
    ) -> list[Verdict]: ...

    def close(self) -> None: ...


Make = Callable[[Target, int], Races]


@dataclass(frozen=True)
class Status:
    """What a worker does: races so far, and for how many seconds it has been in one."""

    races: int
    racing: float | None


class Actor:
    """What runs on a machine of the fleet. A race is one call, others may ask for its state
    meanwhile."""

    def __init__(self, threads: int, make: Make) -> None:
        self._threads, self._make = min(threads, usable_cores()), make
        self._one, self._races = threading.Lock(), 0
        self._since: float | None = None  # when the race that is under way began
        self._measuring: tuple[tuple[str, int], Races] | None = None

    def facts(self) -> Facts:
        texts = tuple(t.text() for t in own_targets())
        return Facts(socket.gethostname(), texts, self._threads, code_version())

    def status(self) -> Status:
        since = self._since
        return Status(self._races, None if since is None else time.monotonic() - since)

    def race(self, job: Job) -> list[Verdict] | None:
        """None where there is a race already."""
        if not self._one.acquire(blocking=False):
            return None
        try:
            self._since = time.monotonic()
            measuring = self._for(job.target, job.threads)
            return measuring.measure(job.group, job.traces, job.rounds, job.codes)
        finally:
            self._since = None
            self._races += 1
            self._one.release()

    def _for(self, target: Target, threads: int) -> Races:
        key = target.key(), threads
        if self._measuring is None or self._measuring[0] != key:
            if self._measuring is not None:
                self._measuring[1].close()
            self._measuring = key, self._make(target, threads)
        return self._measuring[1]


def own_targets() -> tuple[Target, ...]:
    """Targets whose code this machine runs: its processor's, and its GPU's where it has one."""
    families()  # declares their instructions
    try:
        return host(), target_of(device())
    except TilewrightError:
        return (host(),)


@dataclass
class RayWorker:
    """This end of an actor."""

    name: str
    facts: Facts
    actor: Any

    def race(self, job: Job) -> list[Verdict]:
        ray = _ray()
        errors = ray.exceptions
        try:
            waiting = self.actor.race.remote(job)
            while not ray.wait([waiting], timeout=ASKED)[0]:
                ray.get(self.actor.status.remote(), timeout=LEASE)  # the lease is renewed
            found = ray.get(waiting)
        except errors.GetTimeoutError:
            raise Lost(f"it has not answered for {LEASE:g} s") from None
        except (errors.RayActorError, errors.NodeDiedError, errors.ObjectLostError) as why:
            raise Lost(_first_line(why)) from None
        if found is None:
            raise Busy(self.name)
        return found

    def status(self) -> Status:
        return _ray().get(self.actor.status.remote(), timeout=LEASE)

    def end(self) -> None:
        return None  # others may be using it; it has a node of its own


class Fleet:
    """A cluster of Ray that this process is connected to."""

    def __init__(self, make: Make = Measuring) -> None:
        self._make = make

    def find(self, known: Collection[str]) -> list[RayWorker]:
        """Workers on nodes that are not among those known."""
        made = []
        for node in _ray().nodes():
            threads = int(node.get("Resources", {}).get("CPU", 0))
            name = f"{node['NodeManagerHostname']}/{node['NodeID'][:8]}"
            if not node["Alive"] or not threads or name in known:
                continue
            worker = self._started(name, node["NodeID"], threads)
            if worker is not None:
                made.append(worker)
        return sorted(made, key=lambda w: w.name)

    def _started(self, name: str, node: str, threads: int) -> RayWorker | None:
        """The actor of a node; None where the node is lost meanwhile. One with other code, from
        before an update, is started again unless it is at work."""
        ray, actor = _ray(), None
        try:
            actor = self._actor(name, node, threads)
            facts = ray.get(actor.facts.remote(), timeout=START)
            if facts.version != code_version():
                if ray.get(actor.status.remote(), timeout=LEASE).racing is None:
                    ray.kill(actor)
                    actor = self._actor(name, node, threads)
                    facts = ray.get(actor.facts.remote(), timeout=START)
        except ray.exceptions.RayError as why:  # such as on a machine without this package
            if not any(n["NodeID"] == node and n["Alive"] for n in ray.nodes()):
                return None
            said = f"it does not start ({_last_line(why)}): is tilewright[fleet] installed there?"
            facts = Facts(name, (), 0, "", said)
        return RayWorker(name, facts, actor)

    def _actor(self, name: str, node: str, threads: int) -> Any:
        ray = _ray()
        scheduling = import_module("ray.util.scheduling_strategies")
        placed = scheduling.NodeAffinitySchedulingStrategy(node, soft=False)
        made = ray.remote(Actor).options(
            name=name,
            get_if_exists=True,
            lifetime="detached",
            num_cpus=0,
            max_concurrency=4,
            scheduling_strategy=placed,
        )
        return made.remote(threads, self._make)


def nodes_asked(address: str) -> int | None:
    """How many nodes `local:N` asks for; None where it is the address of a cluster."""
    if not address.startswith(LOCAL):
        return None
    count = address.removeprefix(LOCAL)
    if not count.isdigit() or not int(count):
        raise Invalid(f"{address!r} names no fleet", hint=f"it is {ADDRESS}")
    return int(count)


@contextmanager
def connected(address: str, threads: int = 1, make: Make = Measuring) -> Iterator[Fleet]:
    """A connection to a fleet; a local one is started, with so many threads for each node, and
    ended afterwards."""
    count = nodes_asked(address)
    ray = _ray()
    if count is not None:
        with (
            local_cluster([threads] * count) as cluster,
            connected(cluster.address, make=make) as f,
        ):
            yield f
        return
    _answers(address)
    quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    try:
        ray.init(address=address, namespace=NAMESPACE, configure_logging=False, **quiet)
    except (RuntimeError, ConnectionError, ValueError) as why:  # such as another version of Ray
        raise Invalid(f"the fleet at {address} does not take us: {_first_line(why)}") from None
    try:
        yield Fleet(make)
    finally:
        ray.shutdown()


@contextmanager
def local_cluster(threads: Sequence[int]) -> Iterator[Any]:
    """Nodes of a cluster on this machine, one for each number of threads."""
    _ray()
    cluster_utils = import_module("ray.cluster_utils")
    quiet = {"include_dashboard": False, "num_cpus": 0}
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=quiet)
    try:
        for n in threads:
            cluster.add_node(num_cpus=n, wait=False)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        cluster.shutdown()


# How a connection by HTTP/2 begins, which Ray uses: a greeting, and a frame without settings. The
# fourth byte of what a server answers says that these are its settings.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def _answers(address: str) -> None:
    """An error in seconds, where Ray would try for minutes."""
    machine, _, port = address.rpartition(":")
    if not machine or not port.isdigit():
        raise Invalid(f"{address!r} names no fleet", hint=f"it is {ADDRESS}")
    hint = "start a cluster there with `ray start --head --port=PORT`"
    try:
        with socket.create_connection((machine, int(port)), ANSWER) as there:
            there.sendall(_GREETING)
            answer = there.recv(9, socket.MSG_WAITALL)
    except OSError as why:
        said = f"nothing answers at {address}: {why.strerror or why}"
        raise Invalid(said, hint=hint) from None
    if answer[3:4] != b"\x04":
        raise Invalid(f"what answers at {address} is no cluster of Ray", hint=hint)


def _ray() -> Any:
    try:
        return import_module("ray")
    except ImportError:
        raise MissingExtra("fleet", "measuring on several machines (Ray)") from None


def _first_line(why: BaseException) -> str:
    return next(iter(str(why).strip().splitlines()), type(why).__name__)


def _last_line(why: BaseException) -> str:
    return next(reversed(str(why).strip().splitlines()), type(why).__name__)
