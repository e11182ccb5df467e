"""The bench models as packages beside ONNX Runtime: size, start, memory, load, first result.

    python -m tests.export.beside_ort [--models resnet50,bert] [--rounds 5] [--tiny] [--json FILE]

Each number is the median of `--rounds` processes of their own, taken in turns after one that warms
the files up. A package runs from C (the header) and from Python with numpy, ONNX Runtime from
Python with numpy (ORT): no process has torch in it. Columns:

    files     the package; the .onnx file with its data
    runtime   what has to be installed to run it: the C program itself, the Python package, or
              onnxruntime's library (numpy and Python are not counted)
    start     from the start of the process to its first result
    import    of the Python package, after numpy
    load      of the model, until it can be called
    first     the first call over a steady one
    peak      the most memory that the process had

Needs transformers, onnxscript and onnxruntime, a C compiler, and an idle machine.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tests.export.harness import caller, written
from tests.suites.onnx_models import BENCH, exported
from tilewright.bench.models import build
from tilewright.driver.export.api import export

RUNTIME = Path(__file__).resolve().parents[2] / "runtime"
SCRIPT = Path(__file__).with_name("started.py")
KINDS = {"C": "c", "Python": "package", "ORT": "onnx"}
COLUMNS = {
    "files": ("files, MB", 1e-6),
    "runtime": ("runtime, MB", 1e-6),
    "start": ("start, ms", 1.0),
    "import": ("import, ms", 1.0),
    "load": ("load, ms", 1.0),
    "first": ("first", 1.0),
    "steady": ("steady, ms", 1.0),
    "peak": ("peak, MB", 1e-6),
}


def runtime_bytes(kind: str) -> int:
    """What a machine needs beside the model's files, and beside Python and numpy."""
    if kind == "c":
        return caller().stat().st_size
    if kind == "package":
        return sum(x.stat().st_size for x in (RUNTIME / "tilewright_runtime").glob("*.py"))
    spec = importlib.util.find_spec("onnxruntime")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent / "capi"
    return sum(x.stat().st_size for x in folder.iterdir() if ".so" in x.suffixes)


def once(command: Sequence[str]) -> dict[str, Any]:
    """What a process says of itself, and how long it took until its first result."""
    paths = {**os.environ, "PYTHONPATH": str(RUNTIME)}
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, env=paths, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    found = json.loads(done.stdout.splitlines()[-1])
    found["start"] = 1e3 * (found["at"] - start)
    if "begun" in found:
        found["python"] = 1e3 * (found["begun"] - start)
    return found


def rows(name: str, tiny: bool, threads: int, rounds: int, folder: Path) -> list[dict[str, Any]]:
    """A row for each way to run a model."""
    example = build(name, tiny)
    package, out = folder / "net.twp", folder / "out"
    (folder / "onnx").mkdir()
    export(example.module, *example.inputs, path=package, name=name)
    model = exported(example, folder / "onnx" / "model.onnx", False)
    arrays = [x.numpy() for x in example.inputs]
    np.savez(folder / "inputs.npz", *arrays)
    python = [sys.executable, str(SCRIPT)]
    rest = [str(threads), str(folder / "inputs.npz")]
    commands = {
        "c": [str(caller()), "start", str(package), str(out), str(threads)]
        + written(arrays, folder),
        "package": [*python, "package", str(package), *rest],
        "onnx": [*python, "onnx", str(model), *rest],
    }
    files = {k: package.stat().st_size for k in ("c", "package")}
    files["onnx"] = sum(x.stat().st_size for x in model.parent.iterdir())
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in commands}
    for k in range(rounds + 1):
        for kind, command in commands.items():
            said = once(command)
            if k:  # the first process brings files into memory
                found[kind].append(said)
    ours, theirs = (found[kind][0]["sum"] for kind in ("package", "onnx"))
    if abs(ours - theirs) > 1e-2 * abs(theirs):
        raise SystemExit(f"{name}: results differ: their sizes add up to {ours} and {theirs}")
    made = []
    for shown, kind in KINDS.items():
        keys = {key for said in found[kind] for key in said} - {"at", "begun", "sum"}
        row = {key: median(said[key] for said in found[kind]) for key in sorted(keys)}
        row["first"] = median(said["first"] / said["steady"] for said in found[kind])
        facts = {"files": files[kind], "runtime": runtime_bytes(kind)}
        made.append({"model": name, "by": shown, **facts, **row})
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.export.beside_ort")
    parser.add_argument("--models", default=",".join(BENCH))
    parser.add_argument("--rounds", type=int, default=5, help="processes of each kind")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--tiny", action="store_true", help="small sizes of the models")
    parser.add_argument("--json", type=Path, help="write the rows there")
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    found: list[dict[str, Any]] = []
    for name in given.models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            found += rows(name, given.tiny, given.threads, given.rounds, Path(folder))
        print(f"{name}: done", file=sys.stderr, flush=True)
        if given.json:
            given.json.write_text(json.dumps(found, indent=1))
    print(f"{'model':16} {'by':8}" + "".join(f"{title:>12}" for title, _ in COLUMNS.values()))
    for row in found:
        numbers = [f"{row[k] * unit:.2f}" if k in row else "–" for k, (_, unit) in COLUMNS.items()]
        print(f"{row['model']:16} {row['by']:8}" + "".join(f"{x:>12}" for x in numbers))
    own = [row for row in found if row["by"] == "Python"]
    ready = max(row["import"] + row["load"] for row in own)
    before = median(row["python"] + row["numpy"] for row in own)
    print(
        f"From Python, a package is ready within {ready:.1f} ms (import and load, the slowest "
        f"model); before that Python and numpy take {before:.0f} ms to start."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
