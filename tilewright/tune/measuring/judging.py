"""Is the result of a schedule right? Sums of floats may be added in another order, which rounds
differently, so the rule is:

A float result is right where its error against float64 is at most twice that of the default
schedule, plus 4 units in the last place of the largest value, plus 4 such units of the dtype in
which sums are carried times the square root of the longest sum's terms (errors of additions are as
often up as down). Other results are equal to those of the default schedule. NaN and infinities are
where the default schedule has them.

Where a run in float64 would take too long, or there is none, results are compared with those of the
default schedule, within what `ir/agreement.py` allows for a dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod, sqrt

import numpy as np

from tilewright.base.errors import TilewrightError
from tilewright.graph.classify import guess
from tilewright.ir.agreement import tolerance
from tilewright.ir.expr import extent
from tilewright.ir.target import Target
from tilewright.ir.types import DType
from tilewright.kernel.doubled import doubled
from tilewright.kernel.group import Group
from tilewright.kernel.nest import start
from tilewright.runtime.device import HOST, DeviceKernel
from tilewright.targets import host
from tilewright.tune.candidates import points
from tilewright.tune.measure import SEED, Arguments

# Times the default schedule's own error, and units in the last place of the largest value.
OWN_ERROR = 2.0
UNITS = 4.0
# Runs with moved inputs: moves that cancel in a result by chance do so in one of them.
MOVED = 2
# Points of a group whose naive nest runs in float64 within a second.
MOST_POINTS = 1 << 26
_FRACTIONS = {"f64": 52, "f32": 23}  # bits; narrower formats say it themselves


@dataclass(frozen=True)
class Difference:
    """How far a result is off, and in words."""

    largest: float
    words: str


@dataclass(frozen=True)
class Exact:
    """Results in float64, and by how much each changes, at most, when inputs move a little."""

    results: Sequence[np.ndarray]
    changes: Sequence[np.ndarray]


@dataclass(frozen=True)
class Judge:
    """The results of the default schedule, and those in float64 where they are known."""

    usual: Sequence[np.ndarray]
    dtypes: Sequence[DType]
    exact: Exact | None = None
    terms: int = 1  # of the longest sum

    def difference(self, found: Sequence[np.ndarray]) -> Difference | None:
        """None where all results are right."""
        for k, (x, usual, d) in enumerate(zip(found, self.usual, self.dtypes, strict=True)):
            e = self.exact
            exact = None if e is None else (e.results[k], e.changes[k])
            off = _difference(x, usual, exact, d, self.terms)
            if off is not None:
                return Difference(off.largest, f"output {k}: {off.words}")
        return None


def _difference(
    x: np.ndarray,
    usual: np.ndarray,
    exact: tuple[np.ndarray, np.ndarray] | None,
    dtype: DType,
    terms: int,
) -> Difference | None:
    if not dtype.is_float:
        wrong = x != usual
        if not wrong.any():
            return None
        largest = float(np.abs(x[wrong].astype(np.float64) - usual[wrong]).max())
        return Difference(largest, f"{int(wrong.sum())} of {x.size} values differ")
    got, known = x.astype(np.float64), usual.astype(np.float64)
    finite = np.isfinite(known)
    odd = np.isfinite(got) != finite
    if odd.any() or not np.array_equal(got[~finite], known[~finite], equal_nan=True):
        return Difference(float("inf"), "NaN or infinity in other places")
    got, known = got[finite], known[finite]
    scale = float(np.abs(known).max(initial=0.0))
    right, allowed = known, np.full(known.shape, tolerance(dtype) * scale)
    if exact is not None and np.isfinite(exact[0][finite]).all():
        right, changes = exact[0][finite], exact[1][finite]
        own = float(np.abs(known - right).max(initial=0.0))
        part = UNITS * (_unit(dtype) + _unit(dtype.accumulator) * sqrt(terms))
        allowed = OWN_ERROR * own + part * scale + UNITS * sqrt(terms) * changes
    errors = np.abs(got - right)
    beyond = errors - allowed
    if not (beyond > 0).any():
        return None
    at = int(beyond.argmax())
    said = f"the error is {errors[at]:.3g} where {allowed[at]:.3g} is allowed"
    return Difference(float(errors.max()), said)


def _unit(dtype: DType) -> float:
    """The last place of numbers near 1."""
    bits = _FRACTIONS[dtype.name] if dtype.format is None else dtype.format.fraction
    return 2.0**-bits


def terms(group: Group) -> int:
    """Of the longest sum."""
    return max(prod(guess(extent(a)) for a in s.raxes) for s in group.stages)


def in_double(group: Group, arguments: Arguments, target: Target) -> Exact | None:
    """The outputs of a group in float64, by its naive nest on this processor; None where that
    would take too long or cannot be done."""
    plain = [(b.name, b.shape) for b in group.buffers if b.scope in ("in", "out")]
    if points(group) > MOST_POINTS or plain != [(b.name, b.shape) for b in arguments.buffers]:
        return None
    try:
        nest = start(doubled(group))
        kernel = HOST.kernel(nest, target if target.grid is None else host())
    except TilewrightError:
        return None
    rng = np.random.default_rng(SEED)
    first = _run(kernel, arguments, None)
    changes = [np.zeros(x.shape) for x in first]
    for _ in range(MOVED):
        for k, x in enumerate(_run(kernel, arguments, rng)):
            change = np.abs(x.astype(np.float64) - first[k].astype(np.float64))
            # No number: what moves so little gives an infinity, and so may anything.
            changes[k] = np.fmax(changes[k], np.where(np.isnan(change), np.inf, change))
    kernel.close()
    return Exact(first, changes)


def _run(
    kernel: DeviceKernel, arguments: Arguments, rng: np.random.Generator | None
) -> list[np.ndarray]:
    """The results of a kernel in float64; given random numbers, of inputs that are moved."""
    room = []
    for k, b in enumerate(kernel.arguments):
        data = arguments.results([k])[0]
        if b.dtype.is_float:
            data = data.astype(b.dtype.memory)
            if rng is not None and b.scope == "in":
                unit = _unit(arguments.buffers[k].dtype.accumulator)
                data *= 1 + unit * rng.choice((-1.0, 1.0), data.size)
        room.append(HOST.allocate(data.nbytes))
        HOST.write(room[-1], data)
    kernel.prepared([m.address for m in room], arguments.sizes)()
    outs = [k for k, b in enumerate(kernel.arguments) if b.scope == "out"]
    return [
        HOST.read(room[k], np.empty(room[k].size, np.uint8)).view(kernel.arguments[k].dtype.memory)
        for k in outs
    ]
