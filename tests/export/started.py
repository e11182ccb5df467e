"""One process that loads a model and runs it, and says when: a script without torch.

    python started.py package|onnx PATH THREADS INPUTS.npz

It prints JSON: milliseconds, and `at`, the moment of the first result on the system's steady clock,
which other processes read too. What is before `begun` is Python's own start.
"""

from __future__ import annotations

import json
import sys
from time import monotonic

BEGUN = monotonic()
STEADY_CALLS, STEADY_SECONDS = 30, 1.0


def peak_bytes() -> int:
    """The most memory that this process had. getrusage would count the parent's, too."""
    with open("/proc/self/status") as file:
        return next(1024 * int(x.split()[1]) for x in file if x.startswith("VmHWM"))


def main(kind: str, path: str, threads: int, inputs: str) -> None:
    import numpy as np

    numpy = monotonic()
    held = np.load(inputs)
    arrays = [held[name] for name in held.files]
    start = monotonic()
    if kind == "package":
        import tilewright_runtime

        imported = monotonic()
        net = tilewright_runtime.load(path, threads=threads)
        feeds = {t.name: x for t, x in zip(net.inputs, arrays)}
    else:
        import onnxruntime

        imported = monotonic()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        net = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        feeds = {t.name: x for t, x in zip(net.get_inputs(), arrays)}
    loaded = monotonic()
    results = net.run(None, feeds)
    first = monotonic()
    times: list[float] = []
    while len(times) < STEADY_CALLS and monotonic() - first < STEADY_SECONDS:
        before = monotonic()
        net.run(None, feeds)
        times.append(monotonic() - before)
    found = {
        "begun": BEGUN,
        "numpy": 1e3 * (numpy - BEGUN),
        "import": 1e3 * (imported - start),
        "load": 1e3 * (loaded - imported),
        "first": 1e3 * (first - loaded),
        "steady": 1e3 * sorted(times)[len(times) // 2],
        "at": first,
        "peak": peak_bytes(),
        "sum": sum(float(np.abs(np.asarray(y, np.float64)).sum()) for y in results),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
