"""TVM's side of `tests.tune.beside_tvm`, run by the Python in which TVM is installed.

Requests are lines of JSON on its input, answers are lines on its output:

    {"tune": "matmul_512", "trials": 640, "threads": 2, "folder": "…"}  ->  {"seconds": 812.4, …}
    {"run": "matmul_512", "arrays": "in.npz", "out": "out.npy"}         ->  {"version": …}
    {"time": "matmul_512", "calls": 20}                                 ->  {"seconds": 0.0011}

What was tuned is a library in the folder: another run loads it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from tests.tune.tvm_workloads import WORKLOADS, Workload

PATIENCE = 60.0  # seconds for one candidate to be built, and to run
GPUS = ("cuda", "rocm", "metal", "hexagon")


def without_gpus() -> None:
    """Load TVM's instructions for tensors, except those of processors that are not used here: it
    reads them by its own parser, half a minute long, in every worker process."""
    for name in GPUS:
        sys.modules[f"tvm.s_tir.tensor_intrin.{name}"] = ModuleType(name)
    import_module("tvm.s_tir.tensor_intrin")


def expression(w: Workload) -> Any:
    """A function of TVM's own operators."""
    te, topi = import_module("tvm.te"), import_module("tvm.topi")
    x, *rest = (te.placeholder(s, name=f"x{k}") for k, s in enumerate(w.shapes))
    conv = (w.stride, w.padding, 1)
    if w.kind in ("matmul", "bmm"):  # topi's own would leave the layout of an argument open
        *batch, m, k = w.shapes[0]
        along = te.reduce_axis((0, k), name="k")
        shape = (*batch, m, w.shapes[1][-1])
        out = te.compute(
            shape,
            lambda *at: te.sum(x[(*at[:-1], along)] * rest[0][(*at[:-2], along, at[-1])], along),
        )
    elif w.kind == "conv":
        out = topi.nn.conv2d_nchw(x, rest[0], *conv)
    elif w.kind == "biased":
        sums, zero = topi.nn.conv2d_nchw(x, rest[0], *conv), te.const(0.0, "float32")
        out = te.compute(sums.shape, lambda n, c, y, z: te.max(sums[n, c, y, z] + rest[1][c], zero))
    elif w.kind == "depthwise":
        out = topi.nn.depthwise_conv2d_nchw(x, rest[0], *conv)
    elif w.kind == "transposed":
        both = (w.stride, w.stride), (w.padding, w.padding)
        out = topi.nn.conv2d_transpose_nchw(x, rest[0], *both, "float32", (0, 0))
    elif w.kind == "softmax":
        out = topi.nn.softmax(x, axis=-1)
    else:
        out = topi.nn.layer_norm(x, rest[0], rest[1], [len(w.shapes[0]) - 1])
    return te.create_prim_func([x, *rest, out])


class Peer:
    def __init__(self) -> None:
        self.tvm = import_module("tvm")
        without_gpus()
        self.loaded: dict[str, tuple[Any, list[Any]]] = {}
        self.libraries: dict[str, Path] = {}

    def tune(self, name: str, trials: int, threads: int, folder: str, cpu: str) -> dict[str, Any]:
        known = Path(folder) / f"{name}.json"
        library = known.with_suffix(".so")
        self.libraries[name] = library
        if known.is_file() and library.is_file():
            return json.loads(known.read_text())
        schedules = import_module("tvm.s_tir.meta_schedule")
        kind: dict[str, Any] = {"kind": "llvm", "num-cores": threads}
        target = self.tvm.target.Target(kind | ({"mcpu": cpu} if cpu else {}))
        function = expression(WORKLOADS[name])
        build = schedules.builder.LocalBuilder(
            max_workers=threads, timeout_sec=PATIENCE, initializer=without_gpus
        )
        run = schedules.runner.LocalRunner(timeout_sec=PATIENCE, initializer=without_gpus)
        began = time.monotonic()
        found = schedules.tune_tir(
            mod=function,
            target=target,
            work_dir=str(Path(folder) / name),
            max_trials_global=trials,
            num_trials_per_iter=min(64, trials),
            num_tuning_cores=threads,
            builder=build,
            runner=run,
        )
        best = schedules.tir_integration.compile_tir(found, function, target)
        took = time.monotonic() - began
        if best is None:
            return {"error": f"no schedule in {trials} trials"}
        self.tvm.compile(best.mod, target=target).export_library(str(library))
        answer = {"seconds": took, "trials": trials, "version": self.tvm.__version__}
        known.write_text(json.dumps(answer))
        return answer

    def run(self, name: str, arrays: str, out: str) -> dict[str, Any]:
        """The result of one call, to be compared, on operands that `time` uses again."""
        tensor, library = self.tvm.runtime.tensor, self.libraries[name]
        function = self.tvm.runtime.load_module(str(library))["main"]
        given = np.load(arrays)
        inputs = [given[f"arr_{k + 1}"] for k in range(len(WORKLOADS[name].shapes))]
        memory = [*map(tensor, inputs), tensor(np.zeros(tuple(given["arr_0"]), np.float32))]
        function(*memory)
        self.loaded[name] = function, memory
        np.save(out, memory[-1].numpy())
        return {"version": self.tvm.__version__}

    def time(self, name: str, calls: int) -> dict[str, Any]:
        function, memory = self.loaded[name]
        began = time.perf_counter()
        for _ in range(calls):
            function(*memory)
        return {"seconds": (time.perf_counter() - began) / calls}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what TVM prints is no answer
    peer = Peer()
    for line in sys.stdin:
        asked = json.loads(line)
        kind = next(k for k in ("tune", "run", "time") if k in asked)
        name = asked.pop(kind)
        try:
            answer = getattr(peer, kind)(name, **asked)
        except Exception as why:  # told, and the next workload goes on
            answer = {"error": f"{type(why).__name__}: {why}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
