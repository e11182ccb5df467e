"""Tile kernels launched on CUDA tensors: on torch's current stream, with code out of the cache.

The code is that of the tensors' GPU, by its capability and numbers. Launches are not
synchronised, but for those of kernels that print or assert: their reports are in memory, which is
read after them.
"""

from __future__ import annotations

import ctypes
import json
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from importlib import import_module
from math import prod
from typing import Any

import numpy as np

from tilewright.base import knobs
from tilewright.base.cache import Cache
from tilewright.base.events import Log
from tilewright.driver.tile.compiled import ADDRESS, POINTER, Binding, overflow_lines
from tilewright.driver.tile.request import Request
from tilewright.driver.tile.tile_cache import Opaque, binding_text, key_of, read_binding
from tilewright.ir.target import Target
from tilewright.ir.types import DTYPES, DType, to_memory
from tilewright.kernel.distribution import REPORT_WORDS
from tilewright.lang.tile.lowering.reports import Reports
from tilewright.runtime.cuda.device import Device, device
from tilewright.runtime.cuda.module import Function, Launcher, Module
from tilewright.runtime.cuda.quick import HEAD
from tilewright.targets import nvptx

KIND = "gpu tile"  # of cache entries
_COMPILER = "tilewright.driver.tile.gpu_compile"
_MAPS = "tilewright.driver.tile.gpu_maps"
MOST_SQUEEZED = 48  # registers of a thread; of more, many would be spilled
FEW_SPILLED = 0  # bytes: 16 cost a softmax of float32 7 % (measured on an H200)
_MOST = 256  # addresses of one launch whose tensor maps are remembered
SHARED = 64 << 10  # bytes that the blocks of a multiprocessor may have together, on any GPU
_TEXTS = ("ttir", "nest", "trace", "llir", "ptx", "asm")
Grid = tuple[int, int, int]
# How `struct` writes a number of a dtype to a word, the lowest bytes of which are read.
_FORMS = {"f32": "f4x", "f64": "d", "u64": "Q"}
_FORMS |= dict.fromkeys(("bool", "i8", "i16", "i32", "i64", "u8", "u16", "u32"), "q")


@cache
def target_of(number: int) -> Target:
    """A GPU at hand as a target."""
    d = device(number)
    return nvptx.with_numbers(nvptx.for_capability(d.capability), **d.numbers())


def described(number: int) -> list[str]:
    """What times on a GPU depend on."""
    return [device(number).name, str(target_of(number))]


@dataclass
class GpuTile:
    """A kernel on a GPU. `launch` takes addresses and numbers in the order of its arguments, and a
    grid of three sizes."""

    code: Any  # GpuCode of driver/tile/gpu_compile.py
    on: Device
    make_forms: Callable[[], Any] = field(repr=False)
    wrapping: Callable[[], GpuTile] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        b: Binding = self.code.binding
        self._words: Callable[[Any, Grid], bytes] | None = None
        self._maps: Callable[[Any, Grid], Sequence[Any]] | None = None
        self.pairs, self.stored = b.pairs, b.stored
        self.reports = Reports(b.name, b.sites)
        if not self.code.symbol:
            self.launch = _nothing
            return
        function = self._loaded()
        count = len(b.slots) + len(b.dims) + (self.code.reports >= 0)
        self.launcher = Launcher(function, self.code.threads, count)
        self.launch = self._launch()

    def _loaded(self) -> Function:
        """The kernel. Where a few registers less let a multiprocessor have all its threads, the
        driver's compiler gets that limit, which is used if hardly more is spilled."""
        ptx, name = self.code.ptx, self.code.symbol
        found = Module(ptx, self.on).function(name, self.code.shared)
        threads = prod(self.code.threads)
        full = dict(self.on.facts).get("threads", 0) // threads
        facts = found.facts(threads)
        if facts.registers > MOST_SQUEEZED or facts.blocks >= full or facts.shared * full > SHARED:
            return found
        denser = re.sub(r"^(\.reqntid [^\n]*)$", rf"\1\n.minnctapersm {full}", ptx, flags=re.M)
        squeezed = Module(denser, self.on).function(name, self.code.shared)
        spilled = squeezed.facts(threads).local - facts.local
        return squeezed if spilled <= FEW_SPILLED else found

    def forms(self) -> Mapping[str, Callable[[], str]]:
        def form(name: str) -> str:
            return getattr(self.make_forms(), name)

        return {n: partial(form, n) for n in _TEXTS}

    def _launch(self) -> Callable[..., None]:
        """The function of a launch, written out for the arguments there are."""
        import torch

        b: Binding = self.code.binding
        scope: dict[str, Any] = {
            "failed": self.launcher.failed,
            "stream": torch._C._cuda_getCurrentRawStream,
            "report": self._report,
            "room": self._room,
        }
        lines: list[str] = []
        if b.overflows and self.wrapping is not None:
            scope["wrapping"] = self.wrapping
            scope["fits"] = set()
            lines += overflow_lines(b.overflows)
        given: list[str] = []
        forms: list[str] = []  # of the words, as `struct` has them
        for k, (which, what) in enumerate(b.slots):
            form = "q" if what in (POINTER, ADDRESS) else _FORMS.get(what)
            given.append(f"values[{which}]")
            if form is None:
                scope[f"bits{k}"] = partial(bits_of, DTYPES[what])
                given[-1] = f"bits{k}(values[{which}])"
            forms.append(form or "q")
        if self.code.reports >= 0:
            lines.append("records = room()")
            given.insert(self.code.reports, "records.data_ptr()")
            forms.insert(self.code.reports, "q")
        sizes: list[str] = []
        for kind, which, unit in b.dims:
            one = f"values[{which}]{f' // {unit}' if unit > 1 else ''}"
            sizes.append(f"grid[{which}]" if kind == "grid" else one)
        maps = [] if self.code.maps is None else self.code.maps.known(self.on)
        self.go = scope["go"] = self.launcher.packed(len(maps))
        boxes: list[str] = []
        for k, (slot, known) in enumerate(maps):
            scope[f"maps{k}"] = known
            key = ", ".join((f"values[{b.slots[slot][0]}]", *(sizes[j] for j in known.used)))
            boxes.append(f"maps{k}[({key},)]")
        given += sizes
        forms += ["q"] * len(sizes)
        scope["pack"] = struct.Struct(f"<4q{''.join(forms)}").pack
        scope["ends"] = struct.Struct(f"<{len(maps)}q").pack
        own = ", ".join(f"{x}.address" for x in boxes)
        words = ", ".join((f"stream({self.on.number})", "*grid", *given))
        ends = f" + ends({own})" if boxes else ""
        lines += [f"code = go(pack({words}){ends})", "if code:", "    failed(code, grid)"]
        if self.code.reports >= 0:
            lines.append("report(records)")
        body = "\n    ".join(lines)
        exec(f"def launch(values, given, grid):\n    {body}\n", scope)
        if self.code.reports < 0 and all(what != ADDRESS for _, what in b.slots):
            all_words = f"pack(0, *grid, {', '.join(given)})"
            exec(f"def words(values, grid):\n    return {all_words}\n", scope)
            exec(f"def maps(values, grid):\n    return ({', '.join((*boxes, ''))})\n", scope)
            self._words, self._maps = scope["words"], scope["maps"] if boxes else None
        return scope["launch"]

    def frozen(
        self,
        pick: Callable[[Any], Any],
        values: Sequence[Any],
        tensors: Sequence[tuple[int, bool]],
        grid: Grid,
    ) -> tuple[Any, ...] | None:
        """A launch of which only the addresses of tensors will be others: a function that packs the
        words up to these, the words that follow, and what takes all. None where addresses are not
        the first words, in this order. `tensors` are places among the values, and whether a value
        is that of a descriptor, which begins with the address."""
        slots = self.code.binding.slots
        own = [which for which, what in slots if what == POINTER]
        first = [what == POINTER for _, what in slots[: len(tensors)]]
        nested = {k for k, x in enumerate(values) if isinstance(x, tuple)}
        if self._words is None or len(own) != len(tensors) or not all(first):
            return None
        if nested != {k for k, described in tensors if described}:
            return None
        places = [
            tuple((k, j) for j in range(len(values[k]))) if k in nested else (k, 0)
            for k in range(len(values))
        ]
        if [pick(tuple(places))[which] for which in own] != [(k, 0) for k, _ in tensors]:
            return None
        given, overflows = list(pick(values)), self.code.binding.overflows
        if overflows and eval(overflows, {"values": given, "grid": grid}):
            return None
        begin = HEAD + len(tensors)
        rest = self._words(given, grid)[8 * begin :]
        pack = struct.Struct(f"<{begin}q").pack
        return (
            pack,
            rest if self._maps is None else _Rest(rest, self._maps, given, own, grid),
            self.go,
        )

    def _room(self) -> Any:
        """Memory for the reports of a launch."""
        import torch

        return torch.zeros(REPORT_WORDS, dtype=torch.int64, device=f"cuda:{self.on.number}")

    def _report(self, records: Any) -> None:
        """Reads the reports of a launch: records of a report's number, how many values, the
        values."""
        words = records.cpu().numpy()
        used, at = min(int(words[0]), REPORT_WORDS - 1), 1
        while at + 1 < used + 1:
            site, count = int(words[at]), int(words[at + 1])
            if at + 2 + count > REPORT_WORDS:
                break  # there was no room for this one and those after it
            values = np.ascontiguousarray(words[at + 2 : at + 2 + count])
            self.reports.take(site, count, values.ctypes.data_as(ctypes.POINTER(ctypes.c_int64)))
            at += 2 + count
        if self.reports.broken:
            self.reports.finish()


class _Rest(dict[tuple[int, ...], bytes]):
    """The words of a launch behind the addresses of its tensors, by these: the last ones are where
    tensor maps are, which live as long."""

    def __init__(self, fixed: bytes, maps: Any, values: list[Any], own: list[int], grid: Grid):
        super().__init__()
        self.fixed, self.maps, self.values, self.own, self.grid = fixed, maps, values, own, grid
        self.held: list[Any] = []

    def __missing__(self, addresses: tuple[int, ...]) -> bytes:
        if len(self) >= _MOST:
            self.clear()
            self.held = []
        values = list(self.values)
        for which, address in zip(self.own, addresses, strict=True):
            values[which] = address
        made = self.maps(values, self.grid)
        self.held.append(made)
        self[addresses] = found = self.fixed + struct.pack(
            f"<{len(made)}q", *(x.address for x in made)
        )
        return found


def _nothing(values: Any, given: Any, grid: Grid) -> None:
    """The launch of a kernel that does nothing."""


def bits_of(d: DType, v: Any) -> int:
    """A number as eight bytes, the first of which are its own."""
    content = to_memory(np.array([v], d.numpy), d).tobytes()
    return int.from_bytes(content.ljust(8, b"\0"), "little", signed=True)


class GpuExecutor:
    wants_given = False

    def __init__(self, number: int) -> None:
        self.number = number
        self.name = f"cuda:{number}"

    def prepare(self, wanted: Request, log: Log) -> GpuTile:
        return cached_gpu_tile(wanted, self.number, log)


@cache
def gpu_executor(number: int) -> GpuExecutor:
    return GpuExecutor(number)


def cached_gpu_tile(wanted: Request, number: int, log: Log) -> GpuTile:
    """The kernel on a GPU, out of the cache where it was made before."""
    target, on = target_of(number), device(number)
    wrapping = None
    if not wanted.wraps:
        again = replace(wanted, wraps=True)
        wrapping = lru_cache(1)(partial(cached_gpu_tile, again, number, log))
    compiler = import_module(_COMPILER)
    forms = lru_cache(1)(partial(compiler.write_gpu_tile, wanted, target))
    cached: Cache | None = None
    key = ""
    if knobs.dump.get() is None and knobs.resume.get() is None:
        try:
            key, cached = key_of(wanted, target), Cache.from_knobs(log)
        except Opaque as unknown:
            log.add("cache", f"{wanted.function.name} is not cached: {unknown}", detail=True)
    found = cached.get(KIND, key) if cached is not None else None
    if found is not None:
        return GpuTile(read_code(found.decode()), on, forms, wrapping)
    code, made = compiler.compile_gpu_tile(wanted, target, log)
    if cached is not None:
        cached.put(KIND, key, code_text(code).encode())
    return GpuTile(code, on, lambda: made, wrapping)


def code_text(code: Any) -> str:
    """Two lines of JSON, then the PTX."""
    maps = code.maps.text if code.maps is not None else ""
    row = [code.symbol, code.threads, code.shared, code.reports, maps]
    return f"{binding_text(code.binding)}\n{json.dumps(row)}\n{code.ptx}"


def read_code(text: str) -> Any:
    head, row, ptx = text.split("\n", 2)
    symbol, threads, shared, reports, packed = json.loads(row)
    maps = import_module(_MAPS).read_maps(packed) if packed else None
    compiler = import_module(_COMPILER)
    return compiler.GpuCode(read_binding(head), ptx, symbol, tuple(threads), shared, reports, maps)


def warps_of(options: Mapping[str, Any]) -> tuple[int, int]:
    """num_warps and num_stages of a launch."""
    warps, stages = options.get("num_warps"), options.get("num_stages")
    return (4 if warps is None else int(warps)), (3 if stages is None else int(stages))
