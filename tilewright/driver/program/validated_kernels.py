"""Kernels judged: the loops after each step of a schedule against what the group says, the loops
that a target needs against those, and the code against the loops, on the same random inputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from tilewright.base.errors import Invalid, TilewrightError
from tilewright.ir import dim as D
from tilewright.ir.agreement import disagreement, drawn, small_sizes, tolerance
from tilewright.ir.expr import extent
from tilewright.ir.target import Target
from tilewright.ir.types import TensorType, from_memory, to_memory
from tilewright.kernel import simt
from tilewright.kernel.group import Buffer, Group
from tilewright.kernel.interpret import run, run_group
from tilewright.kernel.legal import REWRITINGS
from tilewright.kernel.nest import Nest, start
from tilewright.kernel.step import Trace, apply, print_trace
from tilewright.kernel.steps.barrier import Synchronise
from tilewright.kernel.text import group_text
from tilewright.runtime.native import NativeKernel

# Points of a kernel's loops that the interpreter runs at all: a thousand take a millisecond, or a
# hundred where loops cannot be run at once.
MOST_POINTS = 1 << 20
# After so many seconds only the last form of the loops is run; others where that is wrong.
SECONDS = 10.0
SEEDS = 2  # the first of small whole numbers, whose sums are exact in any order
_INTEGERS = (10, 2, 1)  # integers are drawn below these in turn, so that they can be indices

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class KernelFault:
    """Where a kernel goes wrong: "step" (with the step), "legal" (with the rewriting of
    kernel/legal/) or "emission"."""

    stage: str
    name: str
    said: str
    trace: Trace = ()  # up to the fault


@dataclass(frozen=True)
class KernelJudged:
    """What was compared, and what is wrong."""

    how: str
    bound: str
    seconds: float
    fault: KernelFault | None = None


@dataclass(frozen=True)
class Trial:
    """Inputs of a group, and what it computes of them."""

    arrays: Arrays
    sizes: dict[str, int]
    want: Arrays


def trials(group: Group) -> list[Trial]:
    """Random inputs of a group, with what its stages make of them."""
    sizes = small_sizes(list(group.dim_symbols()))
    found: list[Trial] = []
    for seed in range(SEEDS):
        problem: Exception | None = None
        for most in _INTEGERS:
            arrays = _arrays(group, sizes, seed, most)
            try:
                found.append(Trial(arrays, sizes, run_group(group, arrays, sizes)))
                break
            except (IndexError, TilewrightError) as why:
                problem = why
        else:
            raise Invalid(f"{group.name} cannot be run on random inputs: {problem}")
    return found


def _arrays(group: Group, sizes: dict[str, int], seed: int, most: int) -> Arrays:
    rng = np.random.default_rng(seed)
    # What an output holds is read where it is updated in place.
    return {
        b.name: drawn(TensorType(b.dtype, b.shape), sizes, rng, seed == 0, most)
        for b in (*group.inputs, *group.outputs)
    }


def points(group: Group) -> int:
    """Points of all loops, about."""
    sizes = small_sizes(list(group.dim_symbols()))
    every = ((*s.axes, *s.raxes) for s in group.stages)
    return sum(prod(_extent(extent(a), sizes) for a in axes) for axes in every)


def _extent(x: D.Dim, sizes: Mapping[str, int]) -> int:
    try:
        return max(1, int(D.evaluate(x, sizes)))
    except (KeyError, TilewrightError):
        return max(1, min(64, D.bounds(x)[1]))  # it depends on outer loops or on data


def judged_kernel(
    group: Group, trace: Trace, target: Target, image: bytes | None = None
) -> KernelJudged:
    """A kernel from what it computes to its code, `image` where that can run here."""
    began = time.perf_counter()
    size = points(group)
    if size > MOST_POINTS:
        how = f"not run: its loops have {size:.1e} points"
        return KernelJudged(how, "", time.perf_counter() - began)
    try:
        tried = trials(group)
    except Invalid as why:
        return KernelJudged(f"not run: {why.what}", "", time.perf_counter() - began)
    judging = _Judging(group, trace, target, tried, began + SECONDS)
    fault = judging.fault(image)
    how = f"{judging.judged} forms of its loops interpreted on {SEEDS} inputs"
    how += ", and the code run" if image is not None else ""
    return KernelJudged(how, _bound(group), time.perf_counter() - began, fault)


def _bound(group: Group) -> str:
    """What a comparison of results leaves open."""
    most = max(tolerance(b.dtype) for b in group.outputs)
    if not most or group.precision == "strict":
        return "equal values"
    return f"error below {most:.0e} of the largest value"


@dataclass(frozen=True)
class _Form:
    """The loops of a kernel after a step, or after a rewriting of kernel/legal/."""

    stage: str
    name: str
    nest: Nest
    steps: int


class _Judging:
    """The forms of one kernel, each run on the same inputs."""

    def __init__(
        self, group: Group, trace: Trace, target: Target, tried: list[Trial], until: float
    ) -> None:
        self.group, self.trace, self.target, self.tried = group, trace, target, tried
        self.until = until  # then only the last form is judged
        self.judged = 0

    def fault(self, image: bytes | None = None) -> KernelFault | None:
        """The first form that is wrong."""
        forms: list[_Form] = []
        right = -1
        for form in self._forms():
            forms.append(form)
            if time.perf_counter() > self.until:
                continue
            self.judged += 1
            if self.wrong(form) is not None:
                return self._fault(form)
            right = len(forms) - 1
        if forms and right < len(forms) - 1:
            self.judged += 1
            if self.wrong(forms[-1]) is not None:
                return self._fault(self._first_wrong(forms, right))
        if image is None:
            return None
        nest = forms[-1].nest if forms else start(self.group)
        said = _wrong_code(image, nest, self.group, self.tried)
        return None if said is None else KernelFault("emission", nest.name, said, self.trace)

    def _forms(self) -> Iterator[_Form]:
        nest = start(self.group)
        for k, step in enumerate(self.trace, 1):
            nest = step.apply(nest)
            yield _Form("step", str(step), nest, k)
        for name, rewriting in REWRITINGS.items():
            after = rewriting(nest, self.target)
            if after != nest:
                yield _Form("legal", name, after, len(self.trace))
            nest = after

    def _fault(self, form: _Form) -> KernelFault:
        said = self.wrong(form) or ""
        return KernelFault(form.stage, form.name, said, self.trace[: form.steps])

    def _first_wrong(self, forms: list[_Form], right: int) -> _Form:
        """The first that is wrong, by halves, of which the last one is."""
        wrong = len(forms) - 1
        while wrong - right > 1:
            middle = (right + wrong) // 2
            if self.wrong(forms[middle]) is None:
                right = middle
            else:
                wrong = middle
        return forms[wrong]

    def wrong(self, form: _Form) -> str | None:
        """How the loops differ from what the group computes, or None."""
        threads = any(isinstance(s, Synchronise) for s in self.trace[: form.steps])
        execute = simt.run if threads else run
        found = lambda t: execute(form.nest, t.arrays, t.sizes, seed=1)  # noqa: E731
        return _compared(self.group, self.tried, found)


def _wrong_code(image: bytes, nest: Nest, group: Group, tried: list[Trial]) -> str | None:
    """How the code differs from its loops, or None."""
    kernel = NativeKernel([image], group.name)
    arguments = [b for b in nest.buffers if b.scope in ("in", "out")]
    order = [s.name for s in nest.dims]
    try:
        return _compared(group, tried, lambda t: _called(kernel, arguments, t, order))
    finally:
        kernel.close()


def _called(kernel: NativeKernel, arguments: list[Buffer], t: Trial, order: list[str]) -> Arrays:
    memory: dict[str, np.ndarray] = {}
    for b in arguments:
        a = t.arrays[b.name]
        a = a if b.packed_as is None else b.packed_as.map.pack(a)
        memory[b.name] = _aligned(to_memory(a, b.dtype))
    kernel([memory[b.name].ctypes.data for b in arguments], [t.sizes[n] for n in order])
    outs = (b for b in arguments if b.scope == "out")
    return {b.name: from_memory(memory[b.name], b.dtype) for b in outs}


def _aligned(a: np.ndarray, to: int = 64) -> np.ndarray:
    """A copy at an address such as programs give."""
    raw = np.empty(a.nbytes + to, np.uint8)
    first = -raw.ctypes.data % to
    out = raw[first : first + a.nbytes].view(a.dtype).reshape(a.shape)
    out[...] = a
    return out


def _compared(group: Group, tried: list[Trial], got: Callable[[Trial], Arrays]) -> str | None:
    strict = group.precision == "strict"
    for t in tried:
        try:
            found = got(t)
        except TilewrightError as why:  # an access outside its buffer, a race
            return why.what
        except Exception as why:  # loops that make no sense
            return f"it cannot be run: {type(why).__name__}: {why}"
        for b in group.outputs:
            said = disagreement(found[b.name], t.want[b.name], b.dtype, exact=strict)
            if said is not None:
                return f"{b.name}: {said}"
    return None


# ---- reproducers


def reduced(group: Group, fault: KernelFault, target: Target) -> Trace:
    """Fewer steps after which the same goes wrong: those that it does not need are left out."""
    if fault.stage != "step":
        return fault.trace
    best, tried, until = fault.trace, trials(group), time.perf_counter() + SECONDS
    for k in reversed(range(len(best) - 1)):
        if time.perf_counter() > until:
            break
        fewer = best[:k] + best[k + 1 :]
        judging = _Judging(group, fewer, target, tried, until)
        try:
            before = apply(start(group), fewer[:-1])
            after = fewer[-1].apply(before)
        except TilewrightError:
            continue  # a later step needs this one
        forms = [_Form("step", "", n, len(fewer) - 1 + k) for k, n in enumerate((before, after))]
        if judging.wrong(forms[0]) is None and judging.wrong(forms[1]) is not None:
            best = fewer
    return best


def kernel_text(group: Group, trace: Trace) -> str:
    """A group and its steps, as `tilewright validate FILE.kernel` reads them."""
    return f"{group_text(replace(group, name='kernel'))}{print_trace(trace)}"
