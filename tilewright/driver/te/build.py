"""Scheduled tensor expressions as text and as native functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from time import perf_counter
from typing import Any

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.driver.api import torch_side
from tilewright.ir import dim as D
from tilewright.ir.target import Target
from tilewright.ir.types import bf16
from tilewright.kernel.group import Buffer, Group
from tilewright.kernel.nest import Nest
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import Trace
from tilewright.kernel.steps.barrier import Synchronise
from tilewright.kernel.text import nest_text
from tilewright.kernel.threads import has_threads
from tilewright.lang.te.expression import Tensor
from tilewright.lang.te.schedule import Schedule
from tilewright.lang.te.show import loop_lines, present
from tilewright.runtime.nests import NestKernel
from tilewright.targets import default, get, host


class Lowered:
    """The loops of a schedule; `str` shows them. `trace` has the schedule's steps and those which
    finish it: replayed on `group` they give `nest`."""

    def __init__(
        self,
        s: Schedule,
        args: Sequence[Tensor],
        simple_mode: bool = False,
        target: Target | None = None,
    ) -> None:
        self.group: Group = s.group
        self.trace: Trace
        self.nest: Nest
        self.trace, self.nest = _for_grid(s, target) if target is not None else s.finished()
        self.simple_mode = simple_mode
        self.schedule = s
        # An input may have been given another layout, so the nest's own buffers come first.
        table = {b.name: b for b in (*s.group.buffers, *self.nest.buffers)}
        named = [s.name_of(t) for t in args]
        self.arguments: list[Buffer] = [table[n] for n in named]
        for b in self.arguments:
            if b.scope not in ("in", "out"):
                hint = "give it to te.create_schedule as well"
                raise Invalid(f"{b.name} is computed inside and cannot be an argument", hint=hint)
        missing = [b.name for b in (*s.group.inputs, *s.group.outputs) if b.name not in named]
        if missing or len(set(named)) != len(named):
            what = f"{', '.join(missing)} missing" if missing else "one is given twice"
            raise Invalid(f"the arguments are {', '.join(named)}: {what}")
        plain = {d for b in self.arguments for d in b.shape if D.is_sym(d)}
        lost = [x.name for x in self.nest.dims if D.as_int(x) not in plain]
        if lost:
            raise Invalid(f"no argument has {', '.join(lost)} as an extent: it cannot be known")

    def __str__(self) -> str:
        text = nest_text(self.nest)
        if not self.simple_mode:
            return text
        return "\n".join(loop_lines(self.nest)) + "\n"

    def show(self, html: str | Path | None = None) -> Path | None:
        """As `Schedule.show`, of the finished schedule."""
        return present(self.group, self.trace, html)


def _for_grid(s: Schedule, target: Target) -> tuple[Trace, Nest]:
    """What a GPU runs: the user's schedule, or else the default one, with barriers."""
    if target.grid is None:
        return s.finished()
    if not s.trace:
        return default_schedule(s.group, target)
    trace, nest = s.finished()
    if not has_threads(nest.body) or any(isinstance(x, Synchronise) for x in trace):
        return trace, nest
    last = Synchronise()
    return (*trace, last), last.apply(nest)


def target_of(target: str | Target | None) -> Target:
    target = None if target == "llvm" else target
    chosen = default() if target is None else get(target) if isinstance(target, str) else target
    if not isinstance(chosen, Target):
        raise Invalid(f"{target!r} is no target", hint='give a name such as "host"')
    return chosen


def runs_here(target: Target) -> None:
    """An error where code for a target is for another kind of processor."""
    if target.grid is None and target.arch != host().arch:
        raise Invalid(f"{target.name} is not the architecture of this machine: it cannot run here")


def lower(
    s: Schedule,
    args: Sequence[Tensor],
    simple_mode: bool = False,
    target: str | Target | None = None,
) -> Lowered:
    """What the schedule has become; `simple_mode` shows the loops alone. For a GPU (`cuda:90`) with
    its default schedule, if nothing was scheduled, and with barriers."""
    if not isinstance(s, Schedule):
        raise Invalid(f"{s!r} is no schedule", hint="make one with te.create_schedule(C.op)")
    if isinstance(args, Tensor) or not isinstance(args, Sequence):
        raise Invalid(f"the arguments are {args!r}, not a list", hint="write [A, B, C]")
    return Lowered(s, args, simple_mode, None if target is None else target_of(target))


class Built:
    """A native function on numpy arrays or torch tensors; outputs are arguments, as in TVM."""

    def __init__(self, lowered: Lowered, target: Target) -> None:
        self.lowered, self.target = lowered, target
        self._kernel = NestKernel(lowered.nest, target)

    @property
    def text(self) -> str:
        """The code as LLVM IR text."""
        return self._kernel.text

    @property
    def entry_name(self) -> str:
        """The function's name in the object."""
        return self._kernel.name

    def __call__(self, *arrays: Any) -> None:
        self.prepared(*arrays)()

    def prepared(self, *arrays: Any) -> Callable[[], None]:
        """One call with these arguments, which are checked here and must stay alive."""
        buffers = self.lowered.arguments
        if len(arrays) != len(buffers):
            names = ", ".join(b.name for b in buffers)
            raise Invalid(f"{len(arrays)} arguments were given, {len(buffers)} are needed: {names}")
        sizes: dict[str, int] = {}
        spans = [_span(a, b, sizes) for a, b in zip(arrays, buffers, strict=True)]
        for a, b in zip(arrays, buffers, strict=True):
            want = tuple(int(D.evaluate(d, sizes)) for d in b.shape)
            if tuple(a.shape) != want:
                what = f"{b.name} has shape {tuple(a.shape)}, {want} is needed"
                raise Invalid(what, hint=_layout_hint(b))
        where = {b.name: span for b, span in zip(buffers, spans, strict=True)}
        for b in buffers:
            for other in buffers:
                (p, n), (q, m) = where[b.name], where[other.name]
                if b.scope == "out" and other is not b and n and m and p < q + m and q < p + n:
                    raise Invalid(f"the output {b.name} overlaps {other.name} in memory")
        return self._kernel.prepared([where[b.name][0] for b in self._kernel.arguments], sizes)

    def pack(self, tensor: Tensor, array: np.ndarray) -> np.ndarray:
        """The array as this function takes that input: in the layout which the schedule gave it."""
        name = self.lowered.schedule.name_of(tensor)
        (b,) = [b for b in self.lowered.arguments if b.name == name] or [None]
        if b is None:
            raise Invalid(f"{name} is no argument of this function")
        return array if b.packed_as is None else b.packed_as.map.pack(array)

    def time_evaluator(
        self, name: str | None = None, device: object = None, number: int = 1, repeat: int = 1
    ) -> Callable[..., Times]:
        """`f.time_evaluator(repeat=5)(a, b, c)`: seconds per call, as the mean of `number` calls,
        `repeat` times. Name and device are accepted as TVM has them."""
        if number < 1 or repeat < 1:
            raise Invalid(f"{number} calls, {repeat} times, measure nothing", hint="1 or more")

        def evaluate(*arrays: Any) -> Times:
            run, found = self.prepared(*arrays), []
            run()  # pages are touched and caches are warm, as in the calls that count
            for _ in range(repeat):
                began = perf_counter()
                for _ in range(number):
                    run()
                found.append((perf_counter() - began) / number)
            return Times(tuple(found))

        return evaluate


@dataclass(frozen=True)
class Times:
    """Seconds per call, one per repetition."""

    results: tuple[float, ...]

    @property
    def min(self) -> float:
        return min(self.results)

    @property
    def mean(self) -> float:
        return mean(self.results)

    @property
    def median(self) -> float:
        return median(self.results)


def _layout_hint(b: Buffer) -> str | None:
    return (
        f"it is laid out by {b.packed_as.map}: give f.pack({b.name}, array)"
        if b.packed_as
        else None
    )


def _span(a: Any, b: Buffer, sizes: dict[str, int]) -> tuple[int, int]:
    """Where an argument begins and how many bytes it has, once it is seen to fit."""
    is_torch = hasattr(a, "data_ptr")
    if not is_torch and not issubclass(type(a), np.ndarray):
        raise Invalid(f"{b.name} is a {type(a).__name__}, not a numpy array or torch tensor")
    got = str(a.dtype).removeprefix("torch.")
    need = "bfloat16" if b.dtype is bf16 else str(b.dtype.numpy)
    if got != need:
        raise Invalid(f"{b.name} is of {got}, {need} is needed")
    if is_torch and a.device.type != "cpu":
        raise Invalid(f"{b.name} is on {a.device}, the function runs on the CPU")
    if not (a.is_contiguous() if is_torch else a.flags.c_contiguous):
        raise Invalid(f"{b.name} is not contiguous", hint="pass a contiguous copy")
    if not is_torch and not a.flags.aligned:
        raise Invalid(
            f"{b.name} does not start at a multiple of {a.itemsize} bytes", hint="copy it"
        )
    if not is_torch and b.scope == "out" and not a.flags.writeable:
        raise Invalid(f"the output {b.name} may not be written")
    if len(a.shape) != len(b.shape):
        what = f"{b.name} has {len(a.shape)} axes, {len(b.shape)} are needed"
        raise Invalid(what, hint=_layout_hint(b))
    for d, n in zip(b.shape, a.shape, strict=True):
        if D.is_sym(d) and sizes.setdefault(D.the_sym(d).name, int(n)) != n:
            known = sizes[D.the_sym(d).name]
            raise Invalid(f"{b.name} says {d} = {n}, another argument says {known}")
    return (a.data_ptr(), a.nbytes) if is_torch else (a.ctypes.data, a.nbytes)


def build(s: Schedule, args: Sequence[Tensor], target: str | Target | None = None) -> Any:
    """The schedule as a native function of this machine, which TVM calls "llvm"; for a target such
    as "cuda:90", as a function of CUDA tensors."""
    chosen = target_of(target)
    if chosen.grid is not None:
        lowered = lower(s, args, target=chosen)
        side = torch_side("tilewright.driver.program.grid_run", f"a function for {chosen.name}")
        return side.GridFunction(lowered.nest, lowered.arguments, chosen)
    runs_here(chosen)
    return Built(lower(s, args), chosen)
