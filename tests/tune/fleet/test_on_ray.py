"""A real cluster of Ray with several nodes on this machine, one of which is killed."""

from __future__ import annotations

import threading
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.tune.fake_measuring import GROUPS, Fake, slow
from tests.tune.test_lanes import records
from tilewright import targets
from tilewright.base.errors import Invalid
from tilewright.ir.target import Target
from tilewright.tune.fleet.measuring import FleetMeasuring
from tilewright.tune.fleet.on_ray import connected, local_cluster
from tilewright.tune.fleet.pool import Pool
from tilewright.tune.fleet.shop import Shop

pytestmark = pytest.mark.slow
ray = pytest.importorskip("ray", reason="the extra `fleet` is not installed")


def kill_at_work(cluster: Any, pool: Pool, killed: list[str]) -> None:
    """One of the nodes, in the middle of a race."""
    while not killed:
        for node in list(cluster.worker_nodes):
            worker = next((w for n, w in pool._workers.items() if node.node_id[:8] in n), None)
            if worker is not None and worker.status().racing is not None:  # type: ignore
                cluster.remove_node(node, allow_graceful=False)
                killed.append(worker.name)
                return


def test_a_node_is_killed_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    target, said, killed = targets.host(), list[str](), list[str]()
    with local_cluster([1, 1]) as cluster, connected(cluster.address, make=slow) as fleet:
        pool = Pool(target, fleet.find, 1, said.append)
        assert pool.count == 2
        shop = Shop(2)
        by = FleetMeasuring(pool, shop)
        killer = threading.Thread(target=kill_at_work, args=(cluster, pool, killed), daemon=True)
        killer.start()
        try:
            found = records(tmp_path / "fleet", by, 3, proposing=shop)
        finally:
            by.close()
        assert pool.count == 1 and killed and said[0].startswith(f"{killed[0]} was lost")
    assert len(found) == len(set(found)) == 13 * len(GROUPS)
    assert found == records(tmp_path / "here", Fake(target), 3), "as without a fleet"


class Absent:
    """What cannot be read on the other side, as code of a package that is not there."""

    def __reduce__(self) -> tuple[Any, ...]:
        return import_module, ("tests.tune.no_such_module",)

    def __call__(self, target: Target, threads: int) -> Fake:
        raise AssertionError


def test_a_machine_where_the_worker_does_not_start_is_told() -> None:
    with connected("local:1", make=Absent()) as fleet:
        (worker,) = fleet.find(())
        assert "it does not start (ModuleNotFoundError: No module named" in worker.facts.problem
        with pytest.raises(Invalid, match=r"no worker of the fleet .* does not start"):
            Pool(targets.host(), fleet.find)


def test_code_from_here_is_measured_there() -> None:
    with connected("local:1") as fleet:
        pool = Pool(targets.host(), fleet.find)
        by = FleetMeasuring(pool, Shop(1))
        try:
            found = by.measure(GROUPS[0], ["", "Split(loop='y.i', factor=2)", "Split(loop='z')"])
        finally:
            by.close()
        assert [v.fault for v in found] == ["", "", "refused"]
        assert all(v.seconds for v in found[:2])
        (worker,) = fleet.find(())
        assert worker.status().races == 1, "the worker is there for whoever comes next"
