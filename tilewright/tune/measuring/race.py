"""Schedules of one group race: they take turns on the same memory, and those that are clearly
slower leave early. Each is judged by the results of the first, which is the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from tilewright.base.errors import TilewrightError
from tilewright.ir.target import Target
from tilewright.ir.types import DType
from tilewright.kernel.nest import Nest
from tilewright.runtime.device import Device, DeviceKernel
from tilewright.tune.measure import ROUNDS, SAMPLE_SECONDS, Arguments, Launch, device_for

# After so many rounds a candidate may leave.
FEWEST = 3
# One leaves when its fastest sample is slower than the leader's median by this part.
BEHIND = 0.10
# How far results may lie from the reference's, relative to the largest of them: another order of
# additions rounds differently.
TOLERANCE = {"f64": 1e-10, "f32": 1e-3, "f16": 2e-2, "bf16": 1e-1}


@dataclass(frozen=True)
class Verdict:
    """What became of one schedule: its seconds of a call, or why it has none."""

    seconds: float | None = None
    samples: tuple[float, ...] = ()
    fault: str = ""  # "refused", "wrong", "crashed", "hung"
    why: str = ""


@dataclass
class _Runner:
    number: int
    kernel: DeviceKernel
    launches: list[Launch]
    calls: int = 1
    samples: list[float] = field(default_factory=list)


def race(
    nests: Sequence[Nest],
    target: Target,
    rounds: int = ROUNDS,
    on: Device | None = None,
    begins: Callable[[int], None] = lambda k: None,
) -> list[Verdict]:
    """Verdicts in the order of the nests, the first of which is the reference. `begins` is told
    before each runs for the first time: whoever watches knows which one did not come back."""
    on = on or device_for(target)
    verdicts: list[Verdict] = [Verdict()] * len(nests)
    runners: list[_Runner] = []
    arguments = Arguments(nests[0], target, on)
    outputs = [k for k, b in enumerate(arguments.buffers) if b.scope == "out"]
    want: list[np.ndarray] | None = None
    for k, nest in enumerate(nests):
        begins(k)
        try:
            kernel = on.kernel(nest, target)
        except TilewrightError as why:
            verdicts[k] = Verdict(fault="refused", why=why.what)
            continue
        r = _Runner(k, kernel, arguments.launches(kernel))
        arguments.clear(outputs)
        arguments.seconds(r.launches, len(r.launches))
        found = arguments.results(outputs)
        if want is None:
            want = found
        said = difference(found, want, [arguments.buffers[o].dtype for o in outputs])
        if said:
            verdicts[k] = Verdict(fault="wrong", why=said)
            kernel.close()
            continue
        once = arguments.seconds(r.launches, 1)
        r.calls = max(1, min(1000, int(SAMPLE_SECONDS / max(once, 1e-7))))
        runners.append(r)
    _run(runners, arguments, rounds)
    for r in runners:
        verdicts[r.number] = Verdict(median(r.samples), tuple(r.samples))
        r.launches.clear()
        r.kernel.close()
    return verdicts


def _run(runners: Sequence[_Runner], arguments: Arguments, rounds: int) -> None:
    left = list(runners)
    for k in range(rounds):
        for r in left:
            r.samples.append(arguments.seconds(r.launches, r.calls))
        if k + 1 >= FEWEST and left:
            best = min(median(r.samples) for r in left)
            # The reference stays: times are compared with its own of the same race.
            left = [r for r in left if r.number == 0 or min(r.samples) < (1 + BEHIND) * best]


def difference(
    found: Sequence[np.ndarray], want: Sequence[np.ndarray], dtypes: Sequence[DType]
) -> str:
    """Where results differ by more than another order of additions explains, in words."""
    for k, (x, y, d) in enumerate(zip(found, want, dtypes, strict=True)):
        tolerance = TOLERANCE.get(d.name)
        if tolerance is None:
            bad = x.view(np.uint8) != y.view(np.uint8)
            if bad.any():
                return f"output {k}: {int(bad.sum())} bytes differ"
            continue
        a, b = (v.astype(np.float64) for v in (x, y))
        finite = np.isfinite(b)
        scale = float(np.abs(b[finite]).max()) if finite.any() else 1.0
        if not np.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True):
            with np.errstate(invalid="ignore"):
                worst = float(np.nanmax(np.abs(a - b)))
            return f"output {k}: differs by {worst:.3g} where the largest value is {scale:.3g}"
    return ""
