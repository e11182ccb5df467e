"""Tuning here and by TVM's MetaSchedule: seconds of tuning, and of a call of what was found.

    python -m tests.tune.beside_tvm --tvm tvm/bin/python                 # all workloads
    python -m tests.tune.beside_tvm conv --trials 640 --ours 64 --json b.json
    python -m tests.tune.beside_tvm tiny --trials 8 --ours 8             # does it run at all?

TVM has a Python of its own, since it has its own versions of what both need:

    python -m venv tvm && tvm/bin/pip install 'apache-tvm[meta-schedule]' psutil cloudpickle tornado

Its process lives beside this one, and calls of both take turns. What is tuned is kept under
`--folder`: the same command goes on with the next workload. Operands that a network would have as
constants are arguments on both sides, unless `--constant` says that they are weights here; TVM has
no such thing below a whole model. Trials here are of all kernels of a workload together.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch._dynamo
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import tilewright as tw
from tests.tune.gain_kernels import Case
from tests.tune.gains import TOLERANCE, compiled, named, tuned
from tests.tune.tvm_workloads import TINY, WORKLOADS, Workload
from tilewright import targets
from tilewright.bench.measure import busy, repeats_of, seconds, take_turns
from tilewright.runtime import pool

ROOT = Path(__file__).resolve().parents[2]
MISSING = (
    "there is no TVM in {python}: `python -m venv tvm && tvm/bin/pip install "
    "'apache-tvm[meta-schedule]' psutil cloudpickle tornado`, then give --tvm tvm/bin/python"
)


def function_of(w: Workload) -> Callable[..., Tensor]:
    given = {"stride": w.stride, "padding": w.padding}
    return {
        "matmul": torch.matmul,
        "bmm": torch.bmm,
        "conv": lambda x, k: F.conv2d(x, k, **given),
        "biased": lambda x, k, b: F.relu(F.conv2d(x, k, b, **given)),
        "depthwise": lambda x, k: F.conv2d(x, k, groups=w.shapes[0][1], **given),
        "transposed": lambda x, k: F.conv_transpose2d(x, k, **given),
        "softmax": lambda x: F.softmax(x, -1),
        "layer_norm": lambda x, a, b: F.layer_norm(x, (w.shapes[0][-1],), a, b),
    }[w.kind]


class Weighted(nn.Module):
    """A function whose last operands are weights."""

    def __init__(self, function: Callable[..., Tensor], weights: Sequence[Tensor]) -> None:
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList(nn.Parameter(w, requires_grad=False) for w in weights)

    def forward(self, *x: Tensor) -> Tensor:
        return self.function(*x, *self.weights)


def case_of(w: Workload, operands: Sequence[Tensor], constant: bool) -> Case:
    if not constant or w.weights >= len(operands):
        return Case(function_of(w), tuple(operands))
    return Case(
        Weighted(function_of(w), operands[w.weights :]).eval(), tuple(operands[: w.weights])
    )


class Tvm:
    """The process of TVM; one request at a time."""

    def __init__(self, python: str, threads: int) -> None:
        probe = subprocess.run([python, "-c", "import tvm"], capture_output=True, check=False)
        if probe.returncode:
            raise SystemExit(MISSING.format(python=python))
        env = os.environ | {"PYTHONPATH": str(ROOT), "TVM_NUM_THREADS": str(threads)}
        if len(os.sched_getaffinity(0)) < (os.cpu_count() or 1):
            env["TVM_BIND_THREADS"] = "0"  # it would take the machine's first cores, not ours
        env["PATH"] = os.pathsep.join([str(Path(python).absolute().parent), env.get("PATH", "")])
        self.process = subprocess.Popen(
            [python, "-m", "tests.tune.tvm_peer"],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(
                f"TVM's process ended with status {self.process.wait()} during {request}: "
                "another version of apache-tvm may work"
            )
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer


@dataclass(frozen=True)
class Beside:
    """Seconds of a call, the medians of all rounds; of tuning, by the clock."""

    name: str
    ours: float
    default: float
    tvm: float
    speed: float  # TVM's seconds over ours
    tuning: float
    tvm_tuning: float
    kernels: int
    trials: int
    tvm_trials: int
    error: float  # relative to the largest result
    version: str


def measured(name: str, tvm: Tvm, options: argparse.Namespace) -> Beside:
    w, folder = WORKLOADS[name], options.folder.absolute()
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s, np.float32) for s in w.shapes]
    # In memory of torch's, as TVM has them in its own: numpy's begins in the middle of a line.
    case = case_of(w, [torch.from_numpy(a).clone() for a in arrays], options.constant)
    records = folder / f"{name}.jsonl"
    with torch.no_grad():
        first = compiled(case, folder / "nothing.jsonl")
        began = time.monotonic()
        count = sum(len(p.kernels) - p.once for p in tw.explain(first).programs)
        each = max(1, options.ours // max(1, count))
        _, trials = tuned(case, first, records, each, options.seed)
        ours = compiled(case, records)
        took = time.monotonic() - began
        result = ours(*case.inputs).numpy()
        cpu = targets.default().cpu if options.cpu is None else options.cpu
        told = tvm.ask(
            tune=name, trials=options.trials, threads=options.threads, folder=str(folder), cpu=cpu
        )
        given, out = folder / f"{name}.in.npz", folder / f"{name}.out.npy"
        np.savez(given, np.array(result.shape), *arrays)
        tvm.ask(run=name, arrays=str(given), out=str(out))
        other = np.load(out).astype(np.float64)
        error = float(np.abs(other - result).max() / (np.abs(other).max() or 1.0))
        calls = {"ours": lambda: ours(*case.inputs), "default": lambda: first(*case.inputs)}
        repeats = {k: repeats_of(f) for k, f in calls.items()}
        once = tvm.ask(time=name, calls=2)["seconds"]
        many = max(1, math.ceil(0.05 / max(once, 1e-7)))
        turns: dict[str, Callable[[], float]] = {
            k: (lambda f=f, n=repeats[k]: seconds(f, n)) for k, f in calls.items()
        }
        turns["tvm"] = lambda: tvm.ask(time=name, calls=many)["seconds"]
        times = {k: median(v) for k, v in take_turns(turns, options.rounds).items()}
    return Beside(
        name, times["ours"], times["default"], times["tvm"], times["tvm"] / times["ours"],
        took, told["seconds"], count, trials * count, told["trials"], error, told["version"],
    )  # fmt: skip


def table(found: Sequence[Beside]) -> Table:
    out = Table(title="beside TVM", title_justify="left")
    columns = ("workload", "default, ms", "ours, ms", "TVM, ms", "speed", "tuning, s", "TVM's, s")
    for column in (*columns, "trials", "TVM's", "error"):
        out.add_column(column, justify="left" if column == "workload" else "right")
    for b in found:
        times = (f"{x * 1e3:.3f}" for x in (b.default, b.ours, b.tvm))
        clock = (f"{x:.0f}" for x in (b.tuning, b.tvm_tuning))
        rest = str(b.trials), str(b.tvm_trials), f"{b.error:.1e}"
        out.add_row(b.name, *times, f"{b.speed:.2f}", *clock, *rest)
    return out


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("workloads", nargs="*", help="parts of names; all where none is given")
    parser.add_argument("--tvm", default="python3", help="the Python that has TVM")
    parser.add_argument("--trials", type=int, default=640, help="of TVM")
    parser.add_argument("--ours", type=int, default=64, help="trials here")
    parser.add_argument("--constant", action="store_true", help="weights are constants here")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cpu", help="what TVM is told the processor is; as here where left out")
    parser.add_argument("--folder", type=Path, default=Path("beside_tvm"), help="of what is kept")
    parser.add_argument("--json", type=Path, help="write every number to this file")
    options = parser.parse_args(arguments)
    names = [n for n in WORKLOADS if not options.workloads and n not in TINY]
    names += named(options.workloads, WORKLOADS)
    if not names:
        parser.error(f"no workload has such a name; there are {', '.join(WORKLOADS)}")
    pool.set_threads(options.threads)
    torch.set_num_threads(options.threads)
    options.folder.mkdir(parents=True, exist_ok=True)
    console, found, failed = Console(), list[Beside](), list[str]()
    if (why := busy()) is not None:
        console.print(why)
    tvm = Tvm(options.tvm, options.threads)
    for name in names:
        try:
            found.append(measured(name, tvm, options))
        except RuntimeError as why:
            failed.append(name)
            console.print(f"{name}: TVM has no result: {why}", markup=False)
            continue
        b = found[-1]
        console.print(f"{name}: {b.speed:.2f} in {b.tuning:.0f} s, TVM's {b.tvm_tuning:.0f} s")
        if options.json:
            options.json.write_text(json.dumps([asdict(x) for x in found], indent=1))
    if found:
        console.print(table(found))
        mean = math.exp(sum(math.log(b.speed) for b in found) / len(found))
        console.print(f"geometric mean of speeds {mean:.2f}")
    wrong = [b.name for b in found if not b.error <= TOLERANCE]
    if wrong:
        console.print(f"results differ: {', '.join(wrong)}")
    return 1 if wrong or failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
