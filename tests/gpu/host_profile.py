"""Where the host's time of a call goes, and the GPU's, launch by launch:
`python -m tests.gpu.host_profile bert …` (models of tilewright.bench in bfloat16). With
TILEWRIGHT_PLAIN_CAPTURE=0 graphs go through AOTAutograd: what the first call gains without."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.utils import compilation_time_metrics

import tilewright as tw
from tests.gpu.model_checks import _build
from tilewright.runtime.cuda.plan import Planned
from tilewright.runtime.cuda.program import CudaProgram
from tilewright.runtime.cuda.stream import Event


def host_us(call: Callable[[], object], times: int = 100) -> float:
    torch.cuda.synchronize()
    torch.cuda._sleep(50_000_000)
    began = time.perf_counter()
    for _ in range(times):
        call()
    took = time.perf_counter() - began
    torch.cuda.synchronize()
    return took / times * 1e6


def launches(p: CudaProgram) -> list[tuple[float, str]]:
    """Microseconds of each launch, repeated alone."""
    (room,) = p._rooms.values()
    (shape,) = room.shapes.values()
    stream = p.machine.stream()
    start, end = Event(p.machine.device), Event(p.machine.device)
    out = []
    for a in shape.plan.actions:
        if not isinstance(a, Planned):  # a library's
            continue
        values = a.values(shape.graphs[0].addresses)
        a.launcher.again(values, a.blocks, stream)
        start.record(stream)
        for _ in range(5):
            a.launcher.again(values, a.blocks, stream)
        end.record(stream)
        out.append((end.since(start) / 5 * 1e6, a.launcher.function.name))
    return out


def profile(name: str) -> None:
    ex = _build(name, False, torch.bfloat16)
    fast = tw.compile(ex.module)
    began = time.perf_counter()
    fast(*ex.inputs)
    torch.cuda.synchronize()
    took = time.perf_counter() - began
    seen: dict[str, Any] = {"function": ex.module, "args": ex.inputs, "kwargs": {}}
    for _ in range(5):
        known = list(fast._known.values())
        out = fast(*ex.inputs)
        said = [x.difference(seen) for x in known]
        if said != ["nothing"] * len(said):
            print(f"{name}: not as it was: {said}", flush=True)
    for event in fast.log.of("guards"):
        print(f"{name}: {event}", flush=True)
    entries = sum(len(f.named) for x in fast._known.values() for f in x._found)
    (check, run), quick = fast._entries[0], list(fast._quick.values())
    (p,) = fast.units[0].programs
    assert isinstance(p, CudaProgram)
    phases = p.details.phases
    print(
        f"{name}: first call {took:.1f} s: {took - sum(phases.values()):.1f} torch's, "
        + ", ".join(f"{what} {s:.2f}" for what, s in phases.items())
        + f"; kernels {sum(k.seconds for k in p.kernels):.1f} s one after the other",
        flush=True,
    )
    parts = compilation_time_metrics.items()
    said = (f"{what} {sum(times):.2f}" for what, times in parts if sum(times) > 0.1)
    print(f"  by torch's clock, one inside the other: {', '.join(said)}", flush=True)
    (room,) = p._rooms.values()
    (shape,) = room.shapes.values()
    replay, stream = shape.graphs[0].replay, p.machine.stream()
    bound = fast.units[0]._bound
    tensors = bound.tensors if bound is not None else ()
    print(
        f"{name}: call {host_us(lambda: fast(*ex.inputs)):.1f} us,"
        f" guards {host_us(lambda: check(seen)):.1f},"
        f" of a module as it was {host_us(lambda: [f(seen) for f, _ in quick]):.1f}"
        f" ({len(quick)} known, {entries} entries)"
        f" and then {host_us(lambda: [f(ex.inputs, {}) for _, f in quick]):.1f},"
        f" Dynamo's code {host_us(lambda: run(ex.module, ex.inputs, {})):.1f},"
        f" weights {host_us(lambda: bound(tensors)) if bound is not None else 0:.1f},"
        f" a result {host_us(lambda: torch.empty_like(out[0])):.1f},"
        f" graph {host_us(lambda: replay(stream)):.1f} of {len(shape.plan.actions)} launches,"
        f" {len(shape.graphs)} graphs",
        flush=True,
    )
    times: dict[str, list[float]] = {}
    for us, symbol in launches(p):
        times.setdefault(symbol, []).append(us)
    total = sum(map(sum, times.values()))
    print(f"  {total:.0f} us in all launches, each repeated alone")
    names = {k.symbol: k.name for k in p.kernels}
    for symbol, us in sorted(times.items(), key=lambda kv: -sum(kv[1]))[:12]:
        kernel = next((n for s, n in names.items() if symbol.startswith(s)), "")
        print(f"  {sum(us):8.1f} us {len(us):4d} x {us[0]:7.2f}  {symbol}  {kernel}", flush=True)


def main() -> None:
    torch.set_grad_enabled(False)
    for name in sys.argv[1:]:
        profile(name)


if __name__ == "__main__":
    main()
