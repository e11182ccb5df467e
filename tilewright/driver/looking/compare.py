"""A torch program compared with its compiled form: is it right, how fast, how much memory.

Right means: error against a float64 run at most twice eager's own plus four units in the last place
of the largest value. Times are medians of rounds in which both take turns, so that a machine that
slows down for a while slows both.
"""

from __future__ import annotations

import copy
import math
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tilewright.driver.looking.explain import Explanation, explain
from tilewright.driver.torch.api import compile

EAGER_FACTOR = 2.0
ULPS = 4
# A round shorter than this would time the clock and the scheduler.
ROUND_SECONDS = 0.05

Step = Callable[[str], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Error:
    """Largest errors against float64 over all results, and what is allowed at the worst one."""

    ours: float
    eager: float
    allowed: float
    problem: str | None = None

    @property
    def right(self) -> bool:
        return self.problem is None


@dataclass(frozen=True)
class Comparison:
    compile_seconds: float  # from the first call's beginning to its end
    explanation: Explanation
    error: Error
    ours: float = math.nan  # seconds per call
    eager: float = math.nan
    eager_peak: int = 0  # bytes of intermediate and final results alive at once in eager
    result_bytes: int = 0
    results: Any = None  # of the compiled program
    errors: tuple[Error, ...] = ()  # of each tensor among them, as far as they were compared

    @property
    def speedup(self) -> float:
        return self.eager / self.ours

    @property
    def own_seconds(self) -> float:
        """Without what torch took to capture, and the first run."""
        return sum(p.seconds for p in self.explanation.programs)


def compare(
    program: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    strict: bool = False,
    rounds: int = 0,
    step: Step = lambda text: nullcontext(),
    passes: str | None = None,
) -> Comparison:
    """Compile, check, and time in `rounds` (0: not at all). `step` shows what is going on."""
    with torch.no_grad():
        with step("running eager"):
            expected = program(*inputs)
        with step("compiling"):
            began = time.perf_counter()
            fast = compile(program, *inputs, strict=strict, passes=passes)
            seconds = time.perf_counter() - began
        with step("checking against float64"):
            got, exact = fast(*inputs), in_double(program, inputs)
            errors = tuple(tensor_errors(got, expected, exact))
            error = check(got, expected, exact)
        made = explain(fast)
        if not rounds:
            return Comparison(seconds, made, error, results=got, errors=errors)
        with step("timing"):
            ours, eager = take_turns(lambda: fast(*inputs), lambda: program(*inputs), rounds)
        with step("measuring eager's memory"):
            peak = peak_of_results(lambda: program(*inputs))
    results = sum(x.nbytes for x in pytree.tree_leaves(expected) if _is_tensor(x))
    return Comparison(seconds, made, error, ours, eager, peak, results, got, errors)


# ---- right


def in_double(program: Callable[..., Any], inputs: Sequence[Any]) -> Any:
    """The same program with everything that floats at double precision."""
    double = program
    if isinstance(program, torch.nn.Module):
        double = copy.deepcopy(program).double()
    return double(*pytree.tree_map(_wide, list(inputs)))


def _wide(x: Any) -> Any:
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def check(
    ours: Any, eager: Any, reference: Any, factor: float = EAGER_FACTOR, ulps: int = ULPS
) -> Error:
    """The worst of all results."""
    found = [pytree.tree_leaves(x) for x in (ours, eager, reference)]
    if len({len(x) for x in found}) != 1:
        return Error(math.inf, 0, 0, f"{len(found[0])} results where eager gives {len(found[1])}")
    worst = Error(0.0, 0.0, 0.0)
    for x, y, z in zip(*found, strict=True):
        if isinstance(y, torch.Tensor):
            e = _tensor_error(x, y, z, factor, ulps)
            if not e.right:
                return e
            worst = max(worst, e, key=lambda e: e.ours)
        elif x != y:
            return Error(math.inf, 0, 0, f"{x!r} where eager gives {y!r}")
    return worst


def tensor_errors(ours: Any, eager: Any, reference: Any) -> Iterator[Error]:
    """Of each tensor among the results."""
    found = [[t for t in pytree.tree_leaves(x) if _is_tensor(t)] for x in (ours, eager, reference)]
    for x, y, z in zip(*found):
        yield _tensor_error(x, y, z, EAGER_FACTOR, ULPS)


def _tensor_error(
    ours: Any, eager: torch.Tensor, reference: torch.Tensor, factor: float, ulps: int
) -> Error:
    same = isinstance(ours, torch.Tensor) and (ours.shape, ours.dtype) == (eager.shape, eager.dtype)
    if not same:
        return Error(math.inf, 0, 0, f"{_kind(ours)} where eager gives {_kind(eager)}")
    if not eager.is_floating_point():
        wrong = int((ours != eager).sum())
        problem = f"{wrong} of {eager.numel()} values differ" if wrong else None
        return Error(float(wrong), 0.0, 0.0, problem)
    x, y, z = (t.detach().double() for t in (ours, eager, reference))
    if not bool((x.isfinite() == y.isfinite()).all()):
        return Error(math.inf, 0, 0, "NaN or infinity in other places than in eager")
    x, y, z = (torch.where(y.isfinite() & z.isfinite(), t, 0) for t in (x, y, z))
    if z.numel() == 0:
        return Error(0.0, 0.0, 0.0)
    error, own = float((x - z).abs().max()), float((y - z).abs().max())
    allowed = factor * own + ulps * _ulp(float(z.abs().max()), eager.dtype)
    problem = None if error <= allowed else f"error {error:.3g} where {allowed:.3g} is allowed"
    return Error(error, own, allowed, problem)


def _kind(x: Any) -> str:
    if isinstance(x, torch.Tensor):
        return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
    return type(x).__name__


def _ulp(value: float, dtype: torch.dtype) -> float:
    info = torch.finfo(dtype)
    if value < info.smallest_normal:
        return info.smallest_normal * info.eps
    return info.eps * 2.0 ** math.floor(math.log2(value))


# ---- fast, small


def take_turns(
    ours: Callable[[], object], eager: Callable[[], object], rounds: int
) -> tuple[float, float]:
    """Median seconds per call of both."""
    calls = (ours, eager)
    repeats = []
    for call in calls:
        call()
        repeats.append(max(1, math.ceil(ROUND_SECONDS / max(_seconds(call, 1), 1e-7))))
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        for k in (0, 1) if number % 2 == 0 else (1, 0):
            times[k].append(_seconds(calls[k], repeats[k]))
    return median(times[0]), median(times[1])


def _seconds(call: Callable[[], object], repeats: int) -> float:
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - began) / repeats


def peak_of_results(call: Callable[[], object]) -> int:
    """Bytes of intermediate and final results alive at once while a call runs in eager."""
    live = _LiveResults()
    with live:
        call()
    return live.peak


class _LiveResults(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = {_storage(x) for x in pytree.tree_leaves((args, kwargs)) if _is_tensor(x)}
        out = func(*args, **(kwargs or {}))
        for x in pytree.tree_leaves(out):
            if _is_tensor(x) and _storage(x) not in given and _storage(x) not in self.known:
                self._follow(x)
        return out

    def _follow(self, x: torch.Tensor) -> None:
        storage = x.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        self.known.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.live -= size


def _is_tensor(x: Any) -> bool:
    return isinstance(x, torch.Tensor)


def _storage(x: torch.Tensor) -> int:
    return x.untyped_storage()._cdata
