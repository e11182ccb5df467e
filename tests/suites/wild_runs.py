"""Runs a library's cases in a process of its own, which may die or hang without ending the run.

The process writes what it does to a file (wild/wild_plugin.py). If it dies in a case, or hangs in
one for longer than a case may take, that case is noted and another process goes on with the rest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.suites.wild_libraries import DRIVERS, Library

ROOT = Path(__file__).parents[2]
SPARES = 8  # cases of a test that are looked at for each that is wanted
GRACE = 20.0  # seconds of the processor that a case over its time has to notice it
PATIENCE = 10  # a case that waits is ended after so many times its limit by the clock
PYTEST_RAN = (0, 1, 5)  # all passed, some failed, nothing selected
START = 600.0  # seconds that importing a library may take


@dataclass
class Case:
    """What became of one case."""

    name: str
    result: str  # right, wrong, refused, crashed, slow, skipped, not run
    why: str = ""
    seconds: float = 0.0
    kernels: list[tuple[str, str]] = field(default_factory=list)  # (file, name), in order
    place: str = ""


@dataclass
class Ran:
    """All that one library's processes said."""

    began: float
    cases: list[Case] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)  # files that cannot be imported, and why
    stood_in: set[str] = field(default_factory=set)
    seconds: float = 0.0
    output: str = ""
    left: int = 0  # cases that there was no time for


@dataclass(frozen=True)
class Options:
    cases: int = 1
    limit: float = 60.0
    memory: int = 6
    configs: int = 1  # of an autotuned kernel; 0: all
    skip: int = 0  # so many of the smallest are left out first
    words: str | None = None
    seconds: float | None = None  # after so long a library is stopped
    drivers: bool = False  # only our own files, not the library's tests
    gpu: bool = False  # on a GPU that is there
    lowered: bool = False  # on the processor, and compiled for a GPU as well
    emulated: bool = False  # on the processor, as the code of a GPU


Progress = Callable[[int, int, str], None]  # done, of, the case that runs


def run(library: Library, checkout: Path, options: Options, progress: Progress) -> Ran:
    found = Ran(began=time.monotonic())
    files = [] if options.drivers else library.files(checkout)
    if files:
        # Some skip themselves: others of the same test are tried in their place.
        more = [f"--smallest={SPARES * options.cases}"] if options.cases else []
        _run_files(library, checkout, files, more, options, found, progress)
    if library.driver:
        drivers = sorted(map(str, DRIVERS.glob(library.driver)))
        _run_files(library, checkout, drivers, [], options, found, progress)
    found.seconds = time.monotonic() - found.began
    return found


def _run_files(
    library: Library,
    checkout: Path,
    files: Sequence[str],
    more: Sequence[str],
    options: Options,
    found: Ran,
    progress: Progress,
) -> None:
    own = files[0].startswith(str(checkout))
    top = checkout if own else DRIVERS
    arguments = ["-q", "-W", "ignore", "--tb=no", "-p", "no:cacheprovider", f"--rootdir={top}"]
    arguments += ["--confcutdir", str(top), "-o", "addopts=", "-o", "log_cli=false"]
    arguments += ["--continue-on-collection-errors"]
    arguments += ["-k", options.words] if options.words else []
    arguments += [*(library.arguments if own else ()), *more, *files]
    triton = checkout / "python" / "triton"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = {
            "record": str(folder / "record"),
            "done": str(folder / "done"),
            "limit": options.limit,
            "most": options.cases if own else 0,
            "memory": options.memory,
            "configs": options.configs,
            "skip": options.skip,
            "roots": [str(checkout / s) for s in library.sources] + [str(checkout)],
            "sources": [str((checkout / s).resolve()) for s in library.sources],
            "device": None if options.gpu else library.device,
            "lowered": options.lowered,
            "emulated": options.emulated,
            # Triton's own libraries ask for helpers of its tests.
            "triton": str(triton) if (triton / "_internal_testing.py").is_file() else None,
            "bare": library.bare,
            "absent": library.absent,
            "before": library.before,
            "versions": library.versions,
            "environment": {
                "PYTHONDONTWRITEBYTECODE": "1",
                "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
                **library.environment,
            },
            "arguments": arguments,
        }
        (folder / "settings").write_text(json.dumps(settings))
        done: list[str] = []
        while True:
            (folder / "done").write_text(json.dumps(done))
            (folder / "record").write_text("")
            again = _one_process(folder, options, found, done, progress)
            if not again:
                return


def _one_process(
    folder: Path, options: Options, found: Ran, done: list[str], progress: Progress
) -> bool:
    """Whether there is something left for another process."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, str(DRIVERS / "worker.py"), str(folder / "settings")]
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            state = _follow(process, folder / "record", options, found, done, progress)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    found.output = (folder / "output").read_text(errors="replace")
    if state.running is not None:
        if state.killed:
            why, result = f"more than {options.limit:g} s, and it had to be killed", "slow"
        else:
            code = process.returncode
            why, result = f"the process ended with status {code}", "crashed"
        seconds = time.monotonic() - state.began
        found.cases.append(Case(state.running, result, why, seconds, state.kernels))
        done.append(state.running)
        return True
    if not state.finished or state.status not in PYTEST_RAN:
        said = [line for line in found.output.splitlines() if line.strip()]
        found.broken["the whole library"] = " / ".join(said[-8:]) or "nothing was said"
    return False


@dataclass
class _State:
    running: str | None = None
    since: float = 0.0  # when something was last heard
    began: float = 0.0  # when the case that runs began
    used: float = 0.0  # seconds of the processor that the process had used by then
    kernels: list[tuple[str, str]] = field(default_factory=list)  # that it launched
    total: int = 0
    finished: bool = False
    status: int | None = None
    killed: bool = False


def _follow(
    process: subprocess.Popen,
    record: Path,
    options: Options,
    found: Ran,
    done: list[str],
    progress: Progress,
) -> _State:
    state, at, rest, running = _State(since=time.monotonic()), 0, "", None
    while True:
        ended = process.poll() is not None
        with record.open() as file:
            file.seek(at)
            text = file.read()
            at = file.tell()
        *lines, rest = (rest + text).split("\n")
        for line in lines:
            _take(json.loads(line), state, found, done)
            progress(len(done), state.total, state.running or "")
        if ended:
            return state
        if options.seconds is not None and time.monotonic() - found.began > options.seconds:
            process.kill()
            process.wait()
            found.left += max(state.total - len(done), 0)
            return _State(finished=True, status=0)
        used = _used(process.pid)
        if state.running != running:
            running, state.used = state.running, used
        if not state.finished and _late(state, used, options):
            process.kill()
            process.wait()
            state.killed = True
            return state
        time.sleep(0.1)


def _late(state: _State, used: float, options: Options) -> bool:
    if not state.running:
        return time.monotonic() - state.since > START
    waited = time.monotonic() - state.began > PATIENCE * options.limit
    return waited or used - state.used > options.limit + GRACE


def _used(pid: int) -> float:
    """Seconds of the processor that a process has used; 0 once it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _take(event: dict[str, Any], state: _State, found: Ran, done: list[str]) -> None:
    state.since = time.monotonic()
    match event["event"]:
        case "collected":
            state.total = len(done) + len(event["cases"])
        case "begin":
            state.running, state.began, state.kernels = event["case"], state.since, []
        case "launch":
            state.kernels.append((event["kernel"][0], event["kernel"][1]))
        case "end":
            state.running = None
            done.append(event["case"])
            kernels = [(file, name) for file, name in event["kernels"]]
            found.cases.append(
                Case(
                    event["case"],
                    event["result"],
                    event.get("why", ""),
                    event["seconds"],
                    kernels,
                    event.get("place", ""),
                )
            )
        case "spare":
            done.append(event["case"])
        case "broken":
            found.broken[event["file"]] = event["why"]
        case "finished":
            state.finished = True
            state.status = event["status"]
            found.stood_in.update(event["stood_in"])
