"""Tile kernels to native code: lowered, scheduled, emitted, loaded, and called over a grid.

Code and what a launch has to know (`Binding`) are all that a process needs: both are kept on disk
(driver/tile/tile_cache.py), the forms on the way are made again for whoever wants to read them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from threading import Lock
from time import perf_counter
from typing import Any

import numpy as np

from tilewright.base.collector import garbage_waits
from tilewright.base.events import Log
from tilewright.base.fresh_stack import on_fresh_stack
from tilewright.ir import dim as D
from tilewright.ir.expr import loads
from tilewright.ir.target import Target
from tilewright.ir.types import DTYPES, to_memory
from tilewright.kernel.defaults.tile_kernels import plain_products, schedule_tiles
from tilewright.kernel.nest import WAITS, Atomic, Nest, Store, holds, own_values, walk
from tilewright.kernel.step import print_trace
from tilewright.kernel.text import nest_text
from tilewright.lang.tile.ir import Kernel
from tilewright.lang.tile.lowering.lower import lower
from tilewright.lang.tile.lowering.positions import Bound
from tilewright.lang.tile.lowering.reports import Reports
from tilewright.lang.tile.lowering.state import APART, GRID, Aliasing, Lowered, Site
from tilewright.llvm.emit import emit
from tilewright.llvm.objects import assembly, cached_object
from tilewright.runtime import pool
from tilewright.runtime.native import NativeKernel, callback_address

_REPORT = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64))

# One thread at a time makes interned values, as Python would let it anyway; LLVM is outside.
_WRITING = Lock()

# What a slot of the entry takes: the address that an argument is, the address of a cell with that
# address as a number, or (any other name) the address of a cell of this dtype.
POINTER, ADDRESS = "*", "address"


@dataclass(frozen=True)
class Binding:
    """How a launch hands its arguments to the code, and what it is told back."""

    name: str  # of the kernel
    entry: str
    slots: tuple[tuple[int, str], ...]  # (argument, what of it)
    dims: tuple[tuple[str, int, int], ...]  # ("grid", axis, 1) or ("argument", which, its unit)
    # Arguments (stored to, read) that lowering took for different memory.
    pairs: tuple[tuple[int, int], ...]
    stored: tuple[int, ...]
    sites: tuple[Site, ...] = ()
    waits: bool = False  # do programs wait for each other?
    # Of (values, grid), in Python: may integers overflow that the code takes for small ones?
    overflows: str = ""


@dataclass(frozen=True)
class Forms:
    """A kernel on its way to code."""

    lowered: Lowered
    form: Nest
    target: Target
    trace: str
    llir: str
    phases: Mapping[str, float] = field(default_factory=dict)  # seconds

    @property
    def nest(self) -> str:
        return nest_text(self.form)

    @cached_property
    def asm(self) -> str:
        return assembly(self.llir, self.target)

    @cached_property
    def binding(self) -> Binding:
        n, low = self.form, self.lowered
        at: dict[str, int] = {}
        for k, g in enumerate(low.given):
            at.setdefault(g.name, k)
        slots: list[tuple[int, str]] = []
        for b in n.buffers:
            if b.scope in ("in", "out"):
                known = b.name in low.addresses
                which = low.addresses[b.name] if known else at[b.name]
                slots.append((which, ADDRESS if known else POINTER if b.pointer else b.dtype.name))
        # A dim is one of the grid's, or an argument divided by what it is a multiple of.
        dims = tuple(
            ("grid", GRID.index(d.name), 1)
            if d.name in GRID
            else ("argument", at[d.name], low.given[at[d.name]].unit)
            for d in n.dims
        )
        stored, read = _touched(low, at)
        pairs = tuple((a, b) for a in stored for b in read if a != b)
        waits = holds(n, WAITS)
        return Binding(
            low.nest.name,
            n.name,
            tuple(slots),
            dims,
            pairs,
            stored,
            low.sites,
            waits,
            " or ".join(_exceeded(b, low, at) for b in low.bounds),
        )


def _exceeded(b: Bound, low: Lowered, at: dict[str, int]) -> str:
    """The condition that a launch does not keep within a bound, in Python."""
    positive = {d.name for d in low.nest.dims if D.known_le(0, d.lo)}
    most, terms = b.most, []
    for factor, names in b.terms:
        if not names:
            most -= factor
            continue
        parts = []
        for name in names:
            if name in GRID:
                parts.append(f"grid[{GRID.index(name)}]")
                continue
            size, unit = f"values[{at[name]}]", low.given[at[name]].unit
            size = size if name in positive else f"abs({size})"
            if factor % unit:
                size = f"({size} // {unit})"
            else:
                factor //= unit
            parts.append(size)
        terms.append(" * ".join([str(factor)] * (factor != 1) + parts))
    return f"{' + '.join(terms)} > {most}"


def _touched(low: Lowered, at: dict[str, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The arguments that are stored to, and those that are read."""
    known = {b.name for b in low.nest.buffers if b.pointer and b.scope != "memory"}
    stored: set[str] = set()
    read: set[str] = set()
    for s, _ in walk(low.nest.body):
        if isinstance(s, (Store, Atomic)):
            stored.add(s.buffer)
        read.update(str(x.source) for v in own_values(s) for x in loads(v))
    first, second = (tuple(sorted(at[b] for b in x & known)) for x in (stored, read))
    return first, second


@dataclass
class CompiledTile:
    """A kernel in memory. `launch` takes addresses and numbers in the order of its arguments, and
    a grid of three sizes."""

    binding: Binding
    image: bytes = field(repr=False)
    forms: Callable[[], Forms] = field(repr=False)
    # The same kernel with numbers of 32 bits that wrap around, for launches that need it.
    wrapping: Callable[[], CompiledTile] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        b = self.binding
        self.reports = Reports(b.name, b.sites)
        symbols = pool.concurrent_symbols() if b.waits else {}
        self._callback = _REPORT(self.reports.take) if b.sites else None
        if self._callback is not None:
            symbols = {**symbols, "tw_report": callback_address(self._callback)}
        self._kernel = NativeKernel([self.image], b.entry, symbols)
        self.launch = self._launcher()

    def _launcher(self) -> Callable[..., None]:
        """The function of a launch, written out for the arguments there are."""
        b = self.binding
        scope: dict[str, Any] = {
            "entry": self._kernel.function,
            "held": self._callback,  # as long as the function is
            "at": ctypes.addressof,
            "reports": self.reports,
            "Args": ctypes.c_void_p * max(1, len(b.slots)),
            "Dims": ctypes.c_int64 * len(b.dims),
        }
        lines, args = [], []
        if b.overflows and self.wrapping is not None:
            scope["wrapping"] = self.wrapping
            lines.append(f"if {b.overflows}:")
            lines.append("    return wrapping().launch(values, given, grid)")
        for k, (which, what) in enumerate(b.slots):
            if what == POINTER:
                args.append(f"values[{which}]")
                continue
            scope[f"Cell{k}"] = ctypes.c_int64 if what == ADDRESS else _cell(what)
            lines.append(f"cell{k} = Cell{k}(values[{which}])")
            args.append(f"at(cell{k})")
        dims = (
            f"grid[{which}]"
            if kind == "grid"
            else f"values[{which}]{f' // {unit}' if unit > 1 else ''}"
            for kind, which, unit in b.dims
        )
        lines.append(f"entry(Args({', '.join(args)}), Dims({', '.join(dims)}))")
        if b.sites:
            lines += ["if reports.broken:", "    reports.finish()"]
        body = "\n    ".join(lines)
        exec(f"def launch(values, given, grid):\n    {body}\n", scope)
        return scope["launch"]


def _cell(dtype: str) -> Callable[[Any], Any]:
    """Numbers of a dtype in memory of their own."""
    plain = {"f32": ctypes.c_float, "f64": ctypes.c_double, "bool": ctypes.c_bool}.get(dtype)
    if plain is not None:
        return plain
    d = DTYPES[dtype]

    def made(v: Any) -> Any:
        held = to_memory(np.array([v], d.numpy), d).tobytes()
        return ctypes.create_string_buffer(held, max(8, len(held)))

    return made


@on_fresh_stack
def write_tile(
    kernel: Kernel, target: Target, aliasing: Aliasing = APART, wraps: bool = False
) -> Forms:
    """A kernel as LLVM text, for arguments that meet in memory as it is said; `wraps`: for launches
    in which numbers of 32 bits may overflow."""
    with _WRITING, garbage_waits():
        times = [perf_counter()]
        lowered = lower(kernel, aliasing, target, wraps)
        times.append(perf_counter())
        trace, nest = schedule_tiles(lowered.nest, target)
        times.append(perf_counter())
        text = emit(nest, target)
        times.append(perf_counter())
    names = ("lowering", "schedule", "LLVM text")
    phases = {str(n): b - a for n, (a, b) in zip(names, pairwise(times), strict=True)}
    return Forms(lowered, nest, target, print_trace(trace), text, phases)


def compile_tile(
    kernel: Kernel,
    target: Target,
    log: Log,
    aliasing: Aliasing = APART,
    wraps: bool = False,
    wrapping: Callable[[], CompiledTile] | None = None,
) -> CompiledTile:
    """Native code of a kernel, out of the cache where the same text was compiled before."""
    forms = write_tile(kernel, target, aliasing, wraps)
    log.add("tile", f"{kernel.name} is lowered to LLVM text", detail=True)
    for product in plain_products(forms.form):
        log.add("tile", f"{kernel.name}: {product}")
    image = cached_object(forms.llir, target, log)
    return CompiledTile(forms.binding, image, lambda: forms, wrapping)
