"""A pool of workers: leases, losses, and who is left out; code that is made here for there."""

from __future__ import annotations

import io
import pickle
import socket
import struct
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.test_cuda import gpu
from tests.tune.fake_measuring import GROUPS, Fake, seconds
from tests.tune.test_lanes import records
from tilewright import targets
from tilewright.base.cache import code_version
from tilewright.base.errors import Invalid, MissingExtra
from tilewright.driver.looking import fleet as looking
from tilewright.ir.target import Target
from tilewright.kernel.nest import start
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import apply, parse_trace, print_trace
from tilewright.kernel.text import parse_group
from tilewright.runtime.cuda.gpu import Gpu, nest_ptx
from tilewright.tune.fleet import on_ray, pool, shop
from tilewright.tune.fleet.measuring import FleetMeasuring
from tilewright.tune.fleet.pool import Busy, Facts, Lost, Pool, Worker
from tilewright.tune.fleet.shop import Build, Shop
from tilewright.tune.measuring.built import built
from tilewright.tune.measuring.race import Verdict, race
from tilewright.tune.measuring.worker import Job
from tilewright.tune.models.analytic import Analytic
from tilewright.tune.proposing import HERE
from tilewright.tune.search import exhaustive, search_named
from tilewright.tune.space.space import parse_space
from tilewright.tune.tuner import Tuning

TARGET = targets.get("x86-64-v3")
SPACE = """
rows = ordered(1, 2, 3, 6, default=1)
lanes = ordered(4, 8, 16, default=8)
Split(loop='y.i', factor=rows)
Split(loop='y.j', factor=lanes)
"""
LANES = "Split(loop='y.i', factor=2)"


@dataclass
class FakeWorker:
    """Measures by arithmetic; `does` may fail first."""

    name: str
    facts: Facts = field(default_factory=lambda: facts())
    does: Callable[[Job], None] = lambda job: None
    races: list[str] = field(default_factory=list)
    ended: bool = False
    one: threading.Lock = field(default_factory=threading.Lock)

    def race(self, job: Job) -> list[Verdict]:
        assert self.one.acquire(blocking=False), "two races at a time"
        try:
            self.does(job)
            self.races.append(job.group)
            return [Verdict(seconds(job.group, t)) for t in job.traces]
        finally:
            self.one.release()

    def end(self) -> None:
        self.ended = True


def facts(target: Target = TARGET, threads: int = 2, version: str = "") -> Facts:
    return Facts("somewhere", (target.text(),), threads, version or code_version())


def those(*workers: FakeWorker) -> pool.Find:
    def find(known: Collection[str]) -> Sequence[Worker]:
        return [w for w in workers if w.name not in known]

    return find


def job(group: str = "g", *traces: str) -> Job:
    return Job(group, traces or ("",), TARGET, 1, 3)


def lose(job: Job) -> None:
    raise Lost("its node is gone")


def test_a_lost_worker_loses_only_its_race() -> None:
    said: list[str] = []
    bad, good = FakeWorker("bad", does=lose), FakeWorker("good")
    made = Pool(TARGET, those(bad, good), tell=said.append)
    for group in "abc":
        assert made.race(job(group))[0].seconds == seconds(group, "")
    assert good.races == ["a", "b", "c"] and not bad.races and bad.ended
    assert made.count == 1
    assert said == ["bad was lost: its node is gone; its race is run again"]


def test_a_race_that_ends_its_workers_is_given_up() -> None:
    workers = [FakeWorker(f"w{k}", does=lose) for k in range(3)] + [FakeWorker("w3")]
    found = Pool(TARGET, those(*workers)).race(job("g", "", ""))
    assert [v.fault for v in found] == ["crashed", "crashed"]
    assert found[0].why == "3 workers were lost that measured it"


def test_workers_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "LOOK", 0.01)
    first, later = FakeWorker("first"), FakeWorker("later")
    there = [first]
    made = Pool(TARGET, lambda known: those(*there)(known))
    made.race(job("a"))
    first.does = lose
    there.append(later)
    assert made.race(job("a"))[0].seconds
    assert later.races == ["a"]
    later.does = lose
    made._patience = 0.1
    with pytest.raises(Invalid, match=r"no worker .* first: it was lost .* later: it was lost"):
        made.race(job("a"))


def test_one_that_measures_for_somebody_else_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool, "AGAIN", 0.0)
    answers = [Busy("w"), Busy("w")]

    def busy(job: Job) -> None:
        if answers:
            raise answers.pop()

    worker = FakeWorker("w", does=busy)
    assert Pool(TARGET, those(worker)).race(job())[0].seconds and worker.races == ["g"]


def test_who_is_left_out_is_told() -> None:
    said: list[str] = []
    other = targets.get("arm64-v8" if "arm64-v8" in targets.names() else "x86-64-v4")
    old = FakeWorker("old", facts(version="0123"))
    elsewhere = FakeWorker("elsewhere", facts(other))
    small = FakeWorker("small", facts(threads=1))
    good = FakeWorker("good")
    broken = FakeWorker("broken", Facts("there", (), 0, "", "it does not start"))
    made = Pool(TARGET, those(old, elsewhere, small, good, broken), 2, said.append)
    assert made.count == 1 and made.threads == 2
    assert said[0].startswith("old is left out: it has another version of tilewright (0123, not ")
    assert f"elsewhere is left out: it runs code for {other.name}, not for x86-64-v3" in said[1]
    assert said[2:] == [
        "small is left out: it has 1 threads, not 2",
        "broken is left out: it does not start",
    ]
    with pytest.raises(Invalid, match="no worker of the fleet measures code for x86-64-v3; old:"):
        Pool(TARGET, those(old))


def test_a_group_goes_where_it_was_if_that_is_free() -> None:
    a, b = FakeWorker("a"), FakeWorker("b")
    made = Pool(TARGET, those(a, b))
    for group in ("x", "y", "x", "y", "y"):
        made.race(job(group))
    assert sorted(map(set, (a.races, b.races)), key=str) == [{"x"}, {"y"}]


@dataclass
class NoShop(Shop):
    """Nothing is compiled."""

    def __init__(self) -> None:
        super().__init__(0)

    def built(self, group: str, traces: Sequence[str], target: Target) -> list[bytes | Verdict]:
        return [b"code" for _ in traces]


def test_a_run_gives_the_same_records_where_a_worker_is_lost(tmp_path: Path) -> None:
    """Nothing is lost, nothing is there twice, and nothing else is chosen."""

    def run(name: str, *workers: FakeWorker) -> list[str]:
        by = FleetMeasuring(Pool(TARGET, those(*workers), 1), NoShop())
        return records(tmp_path / name, by, 3)

    lost = FakeWorker("b")

    def after_one(job: Job) -> None:
        if lost.races:
            lose(job)

    lost.does = after_one
    one = run("one", FakeWorker("a"))
    two = run("two", lost, FakeWorker("c"), FakeWorker("a"))
    assert lost.ended and one == two
    assert len(one) == len(set(one)) == 13 * len(GROUPS)
    assert one == records(tmp_path / "here", Fake(TARGET), 3), "as without a fleet"


@dataclass
class SameProcess(Shop):
    """Jobs are sent nowhere."""

    def __init__(self) -> None:
        super().__init__(0)
        self.sent: list[bytes] = []

    def _do(self, group: str, data: bytes) -> list[Any] | tuple[int, Verdict]:
        self.sent.append(data)
        return pickle.loads(pickle.dumps(shop.done(data, io.BytesIO())))


@pytest.mark.parametrize("name", ["evolution", "exhaustive", "annealing", "descent", "random"])
def test_proposals_are_the_same_in_another_process(name: str) -> None:
    def tuning() -> Tuning:
        space = parse_space(SPACE)
        made = (TARGET, Fake(TARGET), search_named(name), Analytic(), 0, space)
        return Tuning(parse_group(GROUPS[0]), *made)

    here, there, other = tuning(), tuning(), SameProcess()
    shop._states.clear()
    for _ in range(3):  # the default point, then twice: the second time it is remembered
        question = other.asked(there, 2)
        a, b = HERE.asked(here, 2)(), question()
        assert (a.given, a.traces, a.rng) == (b.given, b.traces, b.rng) and a.given
        here.absorbed(a, here.measured(a.traces))
        there.absorbed(b, there.measured(b.traces))
    assert len(shop._states) == 1 and len(pickle.loads(other.sent[-1]).measured) == 3


def test_what_a_search_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exhaustive, "MOST", 3)
    made = (TARGET, Fake(TARGET), search_named("exhaustive"), Analytic())
    tuning = Tuning(parse_group(GROUPS[0]), *made)
    with pytest.raises(Invalid, match="an exhaustive search goes through"):
        SameProcess().asked(tuning, 2)()


def test_code_is_made_for_other_machines() -> None:
    """Objects of another architecture, one trace of which no step takes."""
    arm = next(t for t in map(targets.get, targets.names()) if t.arch == "aarch64")
    begins = io.BytesIO()
    found = shop.objects(Build(GROUPS[0], ("", "Split(loop='z', factor=2)", LANES), arm), begins)
    assert isinstance(found[1], Verdict) and found[1].fault == "refused"
    for image in (found[0], found[2]):
        assert isinstance(image, bytes)
        assert image[:4] == b"\x7fELF" and struct.unpack("<H", image[18:20]) == (183,)


def test_code_that_was_made_before_is_what_runs() -> None:
    host = targets.host()
    nests = [apply(start(parse_group(GROUPS[0])), parse_trace(t)) for t in ("", LANES)]
    codes = [built(n, host) for n in nests]
    assert [v.fault for v in race(nests, host, 1, codes=codes)] == ["", ""]
    other = start(parse_group(GROUPS[0].replace("max(", "min(")))
    found = race(nests, host, 1, codes=[codes[0], built(other, host)])
    assert [v.fault for v in found] == ["", "wrong"]


def test_ptx_that_was_made_before_is_what_a_gpu_loads() -> None:
    _, device = gpu()
    target = targets.get("cuda:90")
    nest = default_schedule(parse_group(GROUPS[0]), target)[1]
    code = nest_ptx(nest, target)
    assert b".visible .entry" in code
    kernel = Gpu(device).kernel(nest, target, b"// sent\n" + code)
    assert kernel.loaded().ptx == "// sent\n" + code.decode()


DIES = """
import os
from tilewright.tune.fleet import shop
built = shop.built
def dies(nest, target):
    if len(nest.body) == 1 and 'y.i.0' in repr(nest.body):
        os._exit(3)
    return built(nest, target)
shop.built = dies
shop.main()
"""


def test_a_compiler_that_dies_costs_one_candidate() -> None:
    made = Shop(1, DIES)
    try:
        found = made.built(GROUPS[0], ("", LANES, "Parallel(loop='y.i')"), TARGET)
    finally:
        made.close()
    assert isinstance(found[0], bytes) and isinstance(found[2], bytes)
    assert isinstance(found[1], Verdict) and found[1].fault == "crashed"


def test_candidates_without_code_are_not_raced() -> None:
    @dataclass
    class Some(NoShop):
        def __init__(self, first: bool) -> None:
            super().__init__()
            self.first = first

        def built(self, group: str, traces: Sequence[str], target: Target) -> list[bytes | Verdict]:
            refused = Verdict(fault="refused", why="no")
            return [b"0" if self.first else refused, refused, b"2"]

    worker = FakeWorker("w")
    made = Pool(TARGET, those(worker), 1)
    found = FleetMeasuring(made, Some(True)).measure("g", ["a", "b", "c"])
    assert [v.fault for v in found] == ["", "refused", ""]
    assert found[2].seconds == seconds("g", "c")
    found = FleetMeasuring(made, Some(False)).measure("g", ["a", "b", "c"])
    assert found[0].fault == "refused" and worker.races == ["g"]


# ---- addresses


@pytest.mark.parametrize("address", ["local:", "local:0", "local:two", "somewhere", "somewhere:x"])
def test_what_is_no_address(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_ray, "_ray", lambda: None)
    with pytest.raises(Invalid, match=f"'{address}' names no fleet"), on_ray.connected(address):
        pass


def test_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_ray, "_ray", lambda: None)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        said = f"nothing answers at {address}"
        with pytest.raises(Invalid, match=said), on_ray.connected(address):
            pass


def test_an_answer_of_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_ray, "_ray", lambda: None)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"

        def answer() -> None:
            there, _ = other.accept()
            with there:
                there.recv(100)
                there.sendall(b"HTTP/1.1 400 Bad request")

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(Invalid, match="is no cluster of Ray"), on_ray.connected(address):
            pass


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(on_ray, "import_module", absent)
    with pytest.raises(MissingExtra, match="'fleet' is not"), on_ray.connected("local:2"):
        pass


def test_threads_of_local_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEWRIGHT_THREADS", raising=False)
    monkeypatch.setattr(looking, "usable_cores", lambda: 16)
    assert [looking.local_threads(n) for n in (1, 2, 16)] == [8, 4, 1]
    monkeypatch.setenv("TILEWRIGHT_THREADS", "3")
    assert looking.local_threads(2) == 3


def test_which_target_of_a_fleet() -> None:
    arm, small, large = (targets.get(n) for n in ("arm64", "x86-64-v3", "x86-64-v4"))
    gpu = targets.get("cuda:90")
    chosen = looking.chosen_target
    assert chosen([arm, large], large, None) is large
    assert chosen([arm, gpu, arm], large, None) is arm, "the only processor there is"
    assert chosen([arm, gpu], large, "cuda:90") is gpu
    assert chosen([arm, large], large, arm.machine_key()[:6]) is arm
    with pytest.raises(Invalid, match="no worker has this machine's target, and 2 of them"):
        chosen([arm, large], small, None)
    with pytest.raises(Invalid, match=r"'x' names none of the fleet's targets") as found:
        chosen([arm], small, "x")
    assert f"there are: arm64 {arm.machine_key()}" in str(found.value)


def test_an_actor_takes_one_race_at_a_time() -> None:
    inside, go = threading.Event(), threading.Event()

    class Held(Fake):
        def measure(
            self,
            group: str,
            traces: Sequence[str],
            rounds: int | None = None,
            codes: Sequence[bytes] = (),
        ) -> list[Verdict]:
            inside.set()
            assert go.wait(10)
            return super().measure(group, traces, rounds, codes)

    actor = on_ray.Actor(64, lambda target, threads: Held(target, threads))
    told = actor.facts()
    assert told.version == code_version() and targets.host().machine_key() in told.keys
    assert 1 <= told.threads < 64 or targets.host().cores >= 64
    found: list[list[Verdict] | None] = []
    thread = threading.Thread(target=lambda: found.append(actor.race(job("g", "", LANES))))
    thread.start()
    assert inside.wait(10)
    assert actor.race(job()) is None
    assert actor.status().racing is not None and actor.status().races == 0
    go.set()
    thread.join()
    assert found[0] and found[0][1].seconds == seconds("g", LANES)
    assert actor.status() == on_ray.Status(1, None)


def test_a_trace_prints_as_it_is_sent() -> None:
    """What is proposed elsewhere is replayed here to the same steps."""
    tuning = Tuning(
        parse_group(GROUPS[0]), TARGET, Fake(TARGET), search_named("random"), Analytic()
    )
    found = HERE.asked(tuning, 3)()
    tuning.absorbed(replace(found), tuning.measured(found.traces))
    assert [print_trace(t.trace) for t in tuning.trials] == list(found.traces)
