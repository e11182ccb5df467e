"""Triton's tutorials on Tilewright, unchanged, from a checkout of theirs: which of them are right.

    python -m tests.suites.tutorials CHECKOUT                      # here, with code for a GPU made
    python -m tests.suites.tutorials CHECKOUT --by cuda triton     # on a GPU, beside Triton
    python -m tests.suites.tutorials CHECKOUT --only 03 06 --by cuda
    python -m tests.suites.tutorials CHECKOUT --by cuda triton --jobs 10    # side by side

Each is a process of its own. Benchmarks are left out; what a tutorial asserts or prints is judged,
and where it judges nothing, what it computes (CHECKS).
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.table import Table

from tilewright.base import knobs

ROOT = Path(__file__).parents[2]
NAMES = ("01", "02", "03", "04", "05", "06", "07", "08", "09")
LINE = "tutorial: "  # before what a process found
WRONG = "❌"


def _near(a: str, b: str, most: float) -> Callable[[dict[str, Any], str], None]:
    def check(g: dict[str, Any], by: str) -> None:
        off = float((g[a].double() - g[b].double()).abs().max())
        assert off <= most, f"{a} and {b} differ by {off:.2e}"

    return check


def _dropout(g: dict[str, Any], by: str) -> None:
    assert g["output"].equal(g["output2"]), "one seed gives two masks"
    x, kept = g["x"].cpu(), g["output"].cpu() != 0
    assert not g["output"].equal(g["output3"]), "two seeds give one mask"
    assert (g["output"].cpu()[kept] - 2 * x[kept]).abs().max() < 1e-6, "kept values are not scaled"


def _attention(g: dict[str, Any], by: str) -> None:
    n = 1024 if by != "cpu" else 128
    for dim in (64, 128):
        g["test_op"](1, 2, n, dim, True, False, "bwd", "triton-fp16")
    if by != "cpu":
        g["test_op"](1, 2, n, 64, True, False, "fwd", "triton-fp8")


def _persistent(g: dict[str, Any], by: str) -> None:
    torch: Any = sys.modules["torch"]
    g["validate"](32, 32, 32, torch.float16)
    size = 512 if by != "cpu" else 256
    g["validate"](size, size, size, torch.float16)


# What is judged after a tutorial has run, by its number.
CHECKS: dict[str, Callable[[dict[str, Any], str], None]] = {
    "01": _near("output_triton", "output_torch", 1e-6),
    "04": _dropout,
    "06": _attention,
    "07": _near("output_triton", "output_torch", 1e-5),
    "09": _persistent,
}


def judge(script: Path, by: str) -> dict[str, Any]:
    """Runs a tutorial in this process."""
    from tests.suites.shadow import Shadow

    number, shadow = script.name[:2], Shadow()
    if by != "triton":
        import tilewright.triton

        if by == "cpu":  # they take the paths that they take on such a GPU
            os.environ.setdefault(knobs.triton_backend.name, "cuda:90")
        tilewright.triton.install(device="cpu" if by == "cpu" else None)
    testing: Any = __import__("triton.testing").testing
    testing.Mark.run = lambda *_, **__: None
    if find_spec("tabulate") is None:  # a table that nothing looks at
        stub: Any = ModuleType("tabulate")
        stub.tabulate = lambda rows, *_, **__: str(rows)
        sys.modules["tabulate"] = stub
    said = StringIO()
    began, why = time.monotonic(), ""
    try:
        with redirect_stdout(said), shadow.installed() if by == "cpu" else nullcontext():
            found = runpy.run_path(str(script), run_name="tutorial")
            CHECKS.get(number, lambda g, by: None)(found, by)
        if WRONG in said.getvalue():
            why = next(x for x in said.getvalue().splitlines() if WRONG in x)
    except Exception as problem:
        why = f"{type(problem).__name__}: {' '.join(str(problem).split())}"
    made = {"made": len(shadow.made), "bulk": shadow.bulk, "refused": shadow.refused}
    return {"why": why[:400], "seconds": time.monotonic() - began, **made}


def run(script: Path, by: str, seconds: float) -> dict[str, Any]:
    """Runs a tutorial in a process of its own."""
    command = [sys.executable, "-m", "tests.suites.tutorials", "--one", str(script), "--by", by]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "MPLBACKEND": "Agg"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=seconds, cwd=ROOT
        )
    except subprocess.TimeoutExpired:
        return {"why": f"more than {seconds:g} s", "seconds": seconds}
    lines = [x for x in done.stdout.splitlines() if x.startswith(LINE)]
    if not lines:
        tail = " / ".join(done.stderr.splitlines()[-3:])
        return {"why": f"its process ended with {done.returncode}: {tail}", "seconds": 0.0}
    return json.loads(lines[-1].removeprefix(LINE))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.suites.tutorials")
    parser.add_argument("checkout", type=Path, nargs="?", help="sources of Triton")
    parser.add_argument("--only", nargs="+", default=list(NAMES), help="numbers of tutorials")
    parser.add_argument("--by", nargs="+", default=["cpu"], choices=["cpu", "cuda", "triton"])
    parser.add_argument("--seconds", type=float, default=300.0, help="of one tutorial, at most")
    parser.add_argument("--jobs", type=int, default=1, help="processes at the same time")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.one is not None:
        print(LINE + json.dumps(judge(given.one, given.by[0])), flush=True)
        return 0
    folder = (given.checkout or Path()).resolve() / "python" / "tutorials"
    scripts = [x for x in sorted(folder.glob("[0-9][0-9]-*.py")) if x.name[:2] in given.only]
    if not scripts:
        parser.error(f"{given.checkout} is no checkout of Triton: it has no {folder}")
    if given.jobs < 1:
        parser.error(f"--jobs {given.jobs}: at least one process is needed")
    table = Table("tutorial", *given.by, "kernels made for a GPU, refused")
    failed = 0
    pool = ThreadPoolExecutor(given.jobs)
    runs = {
        (script, by): pool.submit(run, script, by, given.seconds)
        for script in scripts
        for by in given.by
    }
    for script in scripts:
        cells, beside = [], ""
        for by in given.by:
            found = runs[script, by].result()
            right = f"right, {found['seconds']:.1f} s"
            cells.append(right if not found["why"] else found["why"])
            failed += bool(found["why"]) and by != "triton"
            if by == "cpu" and "made" in found:
                refused = "; ".join(f"{n}: {why}" for n, why in found["refused"].items())
                beside = f"{found['made']} ({found['bulk']} with the copy engine) {refused}"
        table.add_row(script.stem, *cells, beside)
        print(script.stem, *cells, beside, sep=" | ", flush=True)
    Console().print(table)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
