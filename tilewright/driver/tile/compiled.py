"""Tile kernels in memory: loaded, and called over a grid.

Code and what a launch has to know (`Binding`) are all that a process needs: both are cached on disk
(driver/tile/tile_cache.py); the intermediate forms are made again when they are to be read.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.ir.types import DTYPES, to_memory
from tilewright.lang.tile.lowering.reports import Reports
from tilewright.lang.tile.lowering.state import Site
from tilewright.runtime import pool
from tilewright.runtime.native import NativeKernel, callback_address

_REPORT = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64))

# What a slot of the entry takes: the address that an argument is, the address of a cell with that
# address as a number, or (any other name) the address of a cell of this dtype.
POINTER, ADDRESS = "*", "address"


@dataclass(frozen=True)
class Binding:
    """How a launch passes its arguments to the code, and what the code reports back."""

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


@dataclass
class CompiledTile:
    """A kernel in memory. `launch` takes addresses and numbers in the order of its arguments, and
    a grid of three sizes."""

    binding: Binding
    image: bytes = field(repr=False)
    forms: Callable[[], Any] = field(repr=False)  # Forms of driver/tile/compile.py
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
            "callback": self._callback,  # a reference: it lives as long as the function
            "at": ctypes.addressof,
            "reports": self.reports,
            "Args": ctypes.c_void_p * max(1, len(b.slots)),
            "Dims": ctypes.c_int64 * len(b.dims),
        }
        lines, args = [], []
        if b.overflows and self.wrapping is not None:
            scope["wrapping"] = self.wrapping
            scope["fits"] = set()
            lines += overflow_lines(b.overflows)
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


SHORT = 200  # characters of a condition that is computed in every launch
REMEMBERED = 4096  # launches whose sizes are known to fit


def overflow_lines(condition: str) -> list[str]:
    """The beginning of a launch: where integers would overflow, another variant of the kernel runs.
    What takes long to compute is remembered, by all numbers that it depends on."""
    other = "return wrapping().launch(values, given, grid)"
    if len(condition) <= SHORT:
        return [f"if {condition}:", f"    {other}"]
    used = sorted(set(re.findall(r"(?:values|grid)\[\d+\]", condition)))
    return [
        f"key = ({', '.join(used)},)",
        "if key not in fits:",
        f"    if {condition}:",
        f"        {other}",
        f"    if len(fits) > {REMEMBERED}:",
        "        fits.clear()",
        "    fits.add(key)",
    ]


def _cell(dtype: str) -> Callable[[Any], Any]:
    """Numbers of a dtype in memory of their own."""
    plain = {"f32": ctypes.c_float, "f64": ctypes.c_double, "bool": ctypes.c_bool}.get(dtype)
    if plain is not None:
        return plain
    d = DTYPES[dtype]

    def made(v: Any) -> Any:
        content = to_memory(np.array([v], d.numpy), d).tobytes()
        return ctypes.create_string_buffer(content, max(8, len(content)))

    return made
