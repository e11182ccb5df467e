"""Every check on a GPU, and a table of what was found.

    python -m tests.gpu                       # all, with Inductor as long as time allows
    python -m tests.gpu --no-inductor         # quicker
    python -m tests.gpu --only "matmul,softmax bf16 8192x4096"
    python -m tests.gpu --part 1/4            # one of four groups of checks
    python -m tests.gpu --json results.json   # all that was measured

Checks run in a process of their own. One that crashes, hangs or loses the context costs itself
alone: the others go on in a new process.
"""

from __future__ import annotations

import argparse
import json
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from tilewright.runtime.cuda.driver import available

ROOT = Path(__file__).resolve().parents[2]
START = 90.0  # seconds until a process has imported torch and begun its first check


class Worker:
    """A process that runs checks; its lines arrive in a queue, None when it has ended."""

    def __init__(self, names: list[str], inductor: bool, until: float) -> None:
        command = [sys.executable, "-m", "tests.gpu.worker", f"--inductor-until={until}"]
        command += ["--inductor"] if inductor else []
        command += ["--only", *names]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.errors: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._read_errors, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                self.lines.put(json.loads(line))
            except ValueError:
                print(line, end="", flush=True)
        self.lines.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors = [*self.errors[-40:], line]

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def run(names: list[str], inductor: bool, until: float, deadline: float) -> list[dict[str, Any]]:
    """What was found of each check; those after the deadline are left out, by name."""
    done: list[dict[str, Any]] = []
    left = list(names)
    while left:
        worker = Worker(left, inductor, until)
        begun, limit = "", START
        try:
            while True:
                try:
                    line = worker.lines.get(timeout=min(limit, max(1.0, deadline - time.time())))
                except queue.Empty:
                    said = "it hangs" if time.time() < deadline else "the time is over"
                    done.append(_failed(begun or left[0], f"{said} after {limit:.0f} s", worker))
                    break
                if line is None:
                    if begun:
                        code = worker.process.wait()
                        done.append(_failed(begun, f"the process ended with {code}", worker))
                    break
                if "begin" in line:
                    begun, limit = line["begin"], line["seconds"]
                    continue
                done.append(line)
                print(_line(line), flush=True)
                begun, limit = "", 30.0
        finally:
            worker.end()
        finished = {x["name"] for x in done}
        remaining = [x for x in left if x not in finished]
        if len(remaining) == len(left):
            done += [_failed(x, "its process ended before it began", worker) for x in left]
            break
        left = remaining
        if time.time() > deadline:
            done += [{"name": x, "ok": False, "says": "not run: the time is over"} for x in left]
            break
    return done


def _failed(name: str, why: str, worker: Worker) -> dict[str, Any]:
    found = {"name": name, "ok": False, "says": why, "trace": "".join(worker.errors)}
    print(_line(found), flush=True)
    return found


def _line(x: dict[str, Any]) -> str:
    said = "" if x["ok"] else f": {x.get('says', '')}"
    return f"{'ok  ' if x['ok'] else 'FAIL'} {x['name']} ({x.get('took', 0):.1f} s){said}"


def _table(found: list[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE)
    for title in ("check", "", "us", "GB/s", "copy", "eager", "Inductor", "error", "host us"):
        table.add_column(title, justify="left" if title in ("check", "") else "right")

    def number(x: dict[str, Any], key: str, form: str) -> str:
        return format(x[key], form) if isinstance(x.get(key), (int, float)) else ""

    for x in found:
        own = (("us", ".1f"), ("gbs", ".0f"), ("of_copy", ".2f"), ("eager", ".2f"))
        more = (("inductor", ".2f"), ("error", ".1e"), ("host_us", ".1f"))
        cells = [number(x, *pair) for pair in (*own, *more)]
        table.add_row(x["name"], "ok" if x["ok"] else "FAIL", *cells)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu")
    parser.add_argument("--only", default="", help="parts of names, separated by commas")
    parser.add_argument("--without", default="", help="parts of names that are left out")
    parser.add_argument("--part", default="1/1", help="K/N: the K-th of every N checks")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--no-inductor", action="store_true")
    parser.add_argument("--seconds", type=float, default=270.0, help="in all")
    given = parser.parse_args()
    if not available():
        print("there is no GPU: nothing was checked")
        sys.exit(2)
    began = time.time()
    listed = subprocess.run(
        [sys.executable, "-m", "tests.gpu.names"], cwd=ROOT, capture_output=True, text=True
    )
    names = listed.stdout.splitlines()
    if listed.returncode or not names:
        print(listed.stderr)
        sys.exit(1)
    if given.only:
        names = [x for x in names if any(part in x for part in given.only.split(","))]
    if given.without:
        names = [x for x in names if not any(part in x for part in given.without.split(","))]
    part, parts = (int(x) for x in given.part.split("/"))
    names = names[part - 1 :: parts]
    deadline = began + given.seconds
    found = run(names, not given.no_inductor, began + 0.7 * given.seconds, deadline)
    order = {name: k for k, name in enumerate(names)}
    found.sort(key=lambda x: order.get(x["name"], len(order)))
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1))
    bad = [x for x in found if not x["ok"]]
    for x in bad:
        last = "\n".join(x.get("trace", "").splitlines()[-16:])
        print(f"\n--- {x['name']}: {x.get('says', '')}\n{last}")
    for x in found:
        if "facts" in x and x["ok"]:
            print(f"{x['name']}: {x['facts']}")
    Console(width=140).print(_table(found))
    right = len(found) - len(bad)
    print(f"{right} of {len(found)} checks passed in {time.time() - began:.0f} s")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
