"""A candidate that crashes, hangs, runs out of memory or is wrong: each is told, none ends the
run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.graph.build import arg, build, graph, weight
from tests.tune.measuring.planted import (
    BUG,
    GROUP,
    HANG,
    KILLED,
    LATER,
    MEMORY,
    PROGRAM,
    SEGFAULT,
    WRONG,
    split,
)
from tilewright.base.events import Log
from tilewright.graph.dots import DotProducts
from tilewright.graph.fuse import fuse
from tilewright.graph.pack import PackOperands
from tilewright.ir.types import bf16
from tilewright.kernel.group import build_group
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import print_trace
from tilewright.kernel.text import group_text
from tilewright.targets import default
from tilewright.tune.measuring.process import Measuring


@pytest.fixture(scope="module")
def planted() -> Iterator[Measuring]:
    made = Measuring(default(), 1, rounds=3, program=PROGRAM)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("factor", "fault", "why"),
    [
        (SEGFAULT, "crashed", "by SIGSEGV"),
        (LATER, "crashed", "by SIGSEGV"),
        (MEMORY, "memory", "Unable to allocate"),
        (KILLED, "memory", "perhaps for want of memory"),
        (WRONG, "wrong", "the error is 0.25"),
        (BUG, "refused", "KeyError: 'a mistake of the emitter'"),
    ],
    ids=["segfault", "in a later turn", "memory", "killed", "wrong", "bug"],
)
def test_harm_is_told_of_who_did_it(planted: Measuring, factor: int, fault: str, why: str) -> None:
    first, good, bad, other = planted.measure(GROUP, ["", split(12), split(factor), split(24)])
    assert (bad.fault, bad.seconds) == (fault, None) and why in bad.why
    assert all(v.seconds and not v.fault for v in (first, good, other))
    assert (bad.difference == 0.25) == (fault == "wrong")


def test_one_that_hangs() -> None:
    planted = Measuring(default(), 1, rounds=3, program=PROGRAM)
    planted.measure(GROUP, [""])  # the process has started
    planted.patience = 1.0
    first, bad, other = planted.measure(GROUP, ["", split(HANG), split(12)])
    planted.close()
    assert (bad.fault, bad.seconds) == ("hung", None) and "1 s" in bad.why
    assert first.seconds and other.seconds


def test_a_reference_that_fails_ends_only_its_race(planted: Measuring) -> None:
    first, other = planted.measure(GROUP, [split(SEGFAULT), split(12)])
    assert first.fault == "crashed" and other.seconds is None and not other.fault
    assert planted.measure(GROUP, [""])[0].seconds


def test_steps_that_are_refused_and_unknown(planted: Measuring) -> None:
    traces = ["", split(12), "Split(loop='z', factor=2)\n", "NoSuchStep()\n"]
    first, good, refused, unknown = planted.measure(GROUP, traces)
    assert first.seconds and good.seconds
    assert refused.fault == "refused" and "there is no loop z" in refused.why
    assert unknown.fault == "refused" and "not a step" in unknown.why


def test_instructions_of_this_machine_run_there(planted: Measuring) -> None:
    """A process that only measures has not looked at its machine: registers that the system saves
    on request, such as those of tiles, are requested by whatever loads code."""
    g = graph(build.matmul(arg("x", 16, 64, dtype=bf16), weight("w", 64, 32, dtype=bf16)))
    g = PackOperands.of(default()).apply(DotProducts.of(default()).apply(g, Log()), Log())
    (c,) = [c for c in fuse(g, default(), Log()).clusters if c.kind == "contract"]
    group = build_group("product", c.nodes, c.inputs, c.outputs)
    trace, _ = default_schedule(group, default())
    first, usual = planted.measure(group_text(group), ["", print_trace(trace)])
    assert first.seconds and usual.seconds, usual.why


def test_a_process_that_cannot_start_says_why() -> None:
    made = Measuring(default(), 1, program="raise SystemExit('no room here')")
    (found,) = made.measure(GROUP, [""])
    assert found.fault == "crashed" and "no room here" in found.why


def test_the_process_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    """Killed, with a candidate that never comes back."""
    told = tmp_path / "worker"
    code = (
        "import sys, tests.tune.measuring.planted as p\n"
        "from tilewright.tune.measuring.process import Measuring\n"
        "from tilewright.targets import default\n"
        "m = Measuring(default(), 1, program=p.PROGRAM)\n"
        "m.measure(p.GROUP, [''])\n"
        "open(sys.argv[1], 'w').write(str(m._process.pid) + '\\n')\n"
        "m.measure(p.GROUP, ['', p.split(p.HANG)])\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(told)]) as p:
        until = time.monotonic() + 60
        while not (told.exists() and told.read_text().endswith("\n")):
            assert time.monotonic() < until
            time.sleep(0.05)
        p.send_signal(signal.SIGKILL)
    worker = int(told.read_text())
    while time.monotonic() < until and _runs(worker):
        time.sleep(0.05)
    assert not _runs(worker)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"
