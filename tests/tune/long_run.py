"""A long tuning run in small: is anything lost or measured twice when it is killed, and does its
memory stay as it was?

    python -m tests.tune.long_run --trials 2000 --kills 5         # real races, some ten minutes
    python -m tests.tune.long_run --trials 2000 --kills 5 --fake  # times are made up: a minute

The trials are those of all kernels together. The process that tunes is killed (SIGKILL) so many
times, spread over the run, and started again with the same command. In the end every trial is in
the records once, every kernel is decided once, and the memory that the processes had after their
first races is compared with what they had in the end.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.tune.fake_measuring import Fake
from tilewright.base.errors import Invalid
from tilewright.targets import default
from tilewright.tune.campaign import Campaign, tasks_of
from tilewright.tune.measuring.measurer import Measurer
from tilewright.tune.measuring.process import Measuring
from tilewright.tune.models.analytic import Analytic
from tilewright.tune.records import Records, parse_record
from tilewright.tune.search import search_named


def product(m: int, k: int, n: int) -> str:
    return f"""group product
  in a: f32[{m},{k}]
  in b: f32[{k},{n}]
  out y: f32[{m},{n}]
  local t: f32[{m},{n}]
  t[t.i,t.j] add= a[t.i,t.k] * b[t.k,t.j] for t.i in {m}, t.j in {n}, t.k in {k} from 0.0
  y[y.i,y.j] = max(t[y.i,y.j], 0.0) for y.i in {m}, y.j in {n}
"""


def softmax(m: int, n: int) -> str:
    return f"""group softmax
  in a: f32[{m},{n}]
  out y: f32[{m},{n}]
  local t: f32[{m}]
  local e: f32[{m},{n}]
  local s: f32[{m}]
  t[t.i] max= a[t.i,t.r] for t.i in {m}, t.r in {n} from -inf
  e[e.i,e.j] = exp(a[e.i,e.j] - t[e.i]) for e.i in {m}, e.j in {n}
  s[s.i] add= e[s.i,s.r] for s.i in {m}, s.r in {n} from 0.0
  y[y.i,y.j] = e[y.i,y.j] / s[y.i] for y.i in {m}, y.j in {n}
"""


# Kernels with spaces large enough for a hundred trials each, however wide the vectors are.
SIZES = (48, 96, 80), (33, 64, 100), (16, 512, 24), (120, 64, 192), (72, 200, 96), (64, 48, 360)
GROUPS = (
    *(product(m, k, n) for m, k, n in SIZES),
    *(product(2 * m, k + 7, n + 16) for m, k, n in SIZES),
    *(product(m + 5, 2 * k, 3 * n) for m, k, n in SIZES),
    softmax(64, 200),
    softmax(120, 384),
)


def resident(pid: int | str = "self") -> int:
    """Bytes of memory that a process has now; 0 where that is not known."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def below(measuring: Measurer) -> int:
    """The same of the process that measures."""
    process = measuring._process if isinstance(measuring, Measuring) else None
    return resident(process.pid) if process is not None else 0


def campaign_of(
    path: Path, groups: Sequence[str], trials: int, fake: bool, most: float = 0.0
) -> Campaign:
    target = default()
    measuring: Measurer = Fake(target, most=most) if fake else Measuring(target, 1, rounds=3)
    kernels = [(text, 1, f"kernel {k}") for k, text in enumerate(groups)]
    tasks = tasks_of(kernels, target, measuring, lambda: search_named("random"), Analytic(), 0)
    return Campaign(tasks, Records.load(path), trials)


def tune(path: Path, groups: Sequence[str], trials: int, fake: bool, most: float = 0.0) -> None:
    """What the process does that is killed: `trials` are of each kernel. Its memory after each race
    is written beside the records."""
    campaign = campaign_of(path, groups, trials, fake, most)
    with open(path.with_suffix(".memory"), "a") as told:
        told.write("start\n")
        campaign.resume()
        for _ in campaign.run():
            told.write(f"{resident()} {below(campaign.tasks[0].measuring)}\n")
            told.flush()
    for _ in campaign.finish():
        pass
    campaign.tasks[0].measuring.close()


@dataclass
class Outcome:
    lines: int = 0  # of trials
    doubled: int = 0  # trials that are there more than once
    decided: Counter[str] = field(default_factory=Counter)  # how often, by kernel
    broken: int = 0  # lines that are no records
    kills: int = 0
    growth: int = 0  # bytes, the most of one process, from its tenth race to its last
    below: int = 0  # the same of a process that measures


def outcome(path: Path, kills: int) -> Outcome:
    out = Outcome(kills=kills)
    seen: Counter[tuple[str, str]] = Counter()
    for line in path.read_text().splitlines():
        try:
            r = parse_record(line)
        except Invalid:
            out.broken += 1
            continue
        if r.kind == "best":
            out.decided[r.group] += 1
        else:
            out.lines += 1
            seen[r.group, r.trace] += 1
    out.doubled = sum(n - 1 for n in seen.values())
    for part in path.with_suffix(".memory").read_text().split("start\n"):
        sizes = [(int(a), int(b)) for a, b in map(str.split, part.splitlines()[9:])]
        if sizes:
            out.growth = max(out.growth, sizes[-1][0] - sizes[0][0])
            out.below = max(out.below, sizes[-1][1] - sizes[0][1])
    return out


def run(
    path: Path, groups: Sequence[str], trials: int, kills: int, fake: bool, most: float = 0.0
) -> Outcome:
    """Tune, with so many kills at equal distances."""
    context = multiprocessing.get_context("fork")
    total, done = trials * len(groups), 0

    def started() -> BaseProcess:
        made = context.Process(target=tune, args=(path, groups, trials, fake, most))
        made.start()
        return made

    process, lines, read = started(), 0, 0
    while process.is_alive():
        if path.exists() and path.stat().st_size > read:  # only what is new
            with open(path, "rb") as file:
                file.seek(read)
                new = file.read()
            lines, read = lines + new.count(b"\n"), read + len(new)
        if done < kills and lines >= total * (done + 1) // (kills + 1):
            process.kill()
            process.join()
            done += 1
            process = started()
        time.sleep(0.002)
    process.join()
    if process.exitcode:
        raise SystemExit(f"the process that tunes ended with {process.exitcode}")
    return outcome(path, done)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--trials", type=int, default=2000, help="of all kernels together")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--fake", action="store_true", help="do not measure anything")
    given = parser.parse_args()
    each = given.trials // len(GROUPS)
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        found = run(Path(folder) / "records.jsonl", GROUPS, each, given.kills, given.fake)
    print(f"{found.lines} trials in {time.monotonic() - began:.0f} s, {found.kills} kills")
    print(f"{found.doubled} measured twice, {found.broken} lines broken")
    print(f"decided: {', '.join(map(str, found.decided.values()))} times")
    tuning, measuring = (x / 2**20 for x in (found.growth, found.below))
    print(f"after its tenth race, a process that tunes grew by {tuning:.1f} MiB", end=", ")
    print(f"one that measures by {measuring:.1f} MiB")
    good = found.lines == each * len(GROUPS) and not found.doubled and found.kills == given.kills
    return 0 if good and set(found.decided.values()) == {1} else 1


if __name__ == "__main__":
    sys.exit(main())
