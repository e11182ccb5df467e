"""What every test may rely on: a cache of its own and a fixed seed; and how a run is divided."""

import atexit
import gc
import os
import sys
import tempfile
from collections.abc import Generator, Iterator

import pytest
from _pytest.runner import runtestprotocol


def leave() -> None:
    """The end of a worker that has told everything. Python would take all modules and objects
    apart one by one, which takes ten seconds after a whole run; the system takes all at once."""
    _cache.cleanup()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if "PYTEST_XDIST_WORKER" in os.environ:
    atexit.register(leave)  # before all others, so that it is called after them

# Before any test module imports tilewright: neither read nor leave anything in the user's cache.
# Each worker process has one of its own.
_cache = tempfile.TemporaryDirectory(prefix="tilewright-tests-")
os.environ["TILEWRIGHT_CACHE_DIR"] = _cache.name
# Dynamo would look for garbage after each trace.
os.environ["TORCH_DYNAMO_RUN_GC_AFTER_COMPILE"] = "0"
# Torch's threads sleep between its operators: one that spins takes the core of another worker.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Some dozens of processes import the source tree: as an installed package, with bytecode files.
os.environ["PYTHONDONTWRITEBYTECODE"] = ""
sys.dont_write_bytecode = False

JOBS = "TILEWRIGHT_COMPILE_JOBS"
# More processes than this would spend their time on importing torch.
MOST_WORKERS = 8
# Tests of ten seconds and more start first, so that no worker is left alone with one at the end.
LONG = ("tests/suites/test_opinfo.py::test_slice",)
# Where programs are compiled as for users, by threads and processes that help.
AS_FOR_USERS = ("tests/driver/program/", "tests/suites/")
# What a default run takes, as pyproject.toml says it.
QUICK = "not suite and not slow"


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Folders of tests are divided among one process per core: few tests wait, and a further
    process would import and collect everything once more. Files and single tests run in this one.
    `-n` says otherwise, as does `-p no:xdist`; without pytest-xdist there is one process."""
    from tilewright.base.machine import usable_cores

    option = config.option
    if not config.pluginmanager.hasplugin("xdist") or hasattr(config, "workerinput"):
        return
    alone = option.usepdb or option.collectonly
    whole = all(os.path.isdir(path) for path in config.args)
    if option.numprocesses is None and option.dist == "no" and whole and not alone:
        os.environ.setdefault("PYTHONHASHSEED", "0")  # sets in names of tests are printed alike
        option.numprocesses = min(usable_cores(), MOST_WORKERS)
        option.dist = "worksteal"


def pytest_configure(config: pytest.Config) -> None:
    from tests import seeds

    # Whoever names a single test is told that it is deselected, not that there is none.
    seeds.slow_too = config.option.markexpr != QUICK or any("::" in arg for arg in config.args)


def pytest_collection() -> None:
    gc.disable()  # what is imported and collected stays: looking through it again and again is vain


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(obj: object) -> Generator[None, object, object]:
    """All cases of a test come together here, whichever of them are asked for."""
    from tests import seeds

    found = yield
    marks = getattr(obj, "pytestmark", ())
    if isinstance(found, list) and any(mark.name == "every_run" for mark in marks):
        seeds.leave_to_slow_runs(found)
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if " at 0x" in item.nodeid:  # processes that share the work would not agree on its name
            raise pytest.UsageError(f"{item.nodeid} has an address in its name: give it other ids")
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


def pytest_collection_finish() -> None:
    # After every trace Dynamo flushes the processor's caches to time its guards, for a log.
    if hasattr(guards := sys.modules.get("torch._dynamo.guards"), "profile_guard_manager"):
        setattr(guards, "profile_guard_manager", lambda *_: 0.0)  # noqa: B010
    # To seed a kind of device that is not there, torch keeps the text of the whole stack for it.
    if (torch := sys.modules.get("torch")) is not None:
        for device in (torch.cuda, torch.xpu, torch.mtia):
            if not device.is_available():
                setattr(device, "manual_seed_all", lambda seed: None)  # noqa: B010
    # What is imported by now lives as long as the process: the collector need not look at it.
    gc.freeze()
    gc.enable()
    # Compilers make many objects that stay: with 20,000 about 5 % of the samples of a profile over
    # some folders were in the collector.
    gc.set_threshold(100_000, *gc.get_threshold()[1:])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """A worker tells of a test once, and of what comes before and after only where that fails or
    takes time. It does not tell that a test starts and ends, which is printed nowhere: five
    messages of each of ten thousand tests take seconds to write and to read."""
    if not hasattr(item.config, "workerinput"):
        return None
    with pytest.MonkeyPatch.context() as patch:
        if not item.nodeid.startswith(AS_FOR_USERS) and JOBS not in os.environ:
            # Each core has a worker: who helps takes its time, and has to be started first. Two
            # files with large programs take 16 % less of the processor so.
            patch.setenv(JOBS, "1")
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for report in reports:
        if report.when == "call" or not report.passed or report.duration > 0.01:
            item.ihook.pytest_runtest_logreport(report=report)
    pytest_runtest_logfinish()
    return True


_full = 0  # collections of all objects that there have been


def pytest_runtest_logfinish() -> None:
    """Between tests, what is left after a collection of everything stays (caches, what is imported
    late): the next one need not look at it again. They would take a twentieth of a run."""
    global _full
    if (count := gc.get_stats()[2]["collections"]) != _full:
        _full = count
        gc.freeze()


@pytest.fixture(autouse=True)
def fixed_seed() -> Iterator[None]:
    """Seed numpy and torch alike, so that a failing test fails again."""
    import numpy as np

    np.random.seed(0)
    try:
        import torch
    except ImportError:
        yield
        return
    # Not torch.manual_seed: for each kind of device that is not in use yet it keeps the text of the
    # whole stack, which takes longer than most tests.
    torch.default_generator.manual_seed(0)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(0)
    yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write golden files instead of comparing"
    )
