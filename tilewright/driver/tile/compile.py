"""Tile kernels to native code: lowered, scheduled, emitted. Each form on the way can be written to
a file, edited and put back: driver/tile/tile_stages.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from threading import Lock
from time import perf_counter

from tilewright.base.collector import garbage_waits
from tilewright.base.events import Log
from tilewright.base.fresh_stack import on_fresh_stack
from tilewright.driver.program.stages import Stages
from tilewright.driver.tile.compiled import ADDRESS, POINTER, Binding, CompiledTile
from tilewright.driver.tile.tile_stages import TileStages, tile_stages
from tilewright.ir import dim as D
from tilewright.ir.atom import Quo
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import loads
from tilewright.ir.target import Target
from tilewright.kernel.defaults.tile_kernels import plain_products
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import WAITS, Atomic, Nest, Store, holds, own_values, walk
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import print_trace
from tilewright.kernel.text import nest_text
from tilewright.lang.tile.ir import Kernel
from tilewright.lang.tile.lowering.lower import lower
from tilewright.lang.tile.lowering.positions import LIMIT, Bound
from tilewright.lang.tile.lowering.state import APART, GRID, Aliasing, Lowered
from tilewright.lang.tile.text import kernel_text
from tilewright.llvm.emit import emit
from tilewright.llvm.objects import assembly, cached_object

# One thread at a time makes interned values: the interpreter's lock allows no more anyway. LLVM
# runs outside of this lock.
WRITING = Lock()


@dataclass(frozen=True)
class Forms:
    """A kernel on its way to code."""

    kernel: Kernel
    lowered: Lowered
    form: Nest
    target: Target
    trace: str
    llir: str
    phases: Mapping[str, float] = field(default_factory=dict)  # seconds

    @property
    def ttir(self) -> str:
        return kernel_text(self.kernel)

    @property
    def nest(self) -> str:
        return nest_text(self.form)

    @cached_property
    def asm(self) -> str:
        return assembly(self.llir, self.target)

    @cached_property
    def binding(self) -> Binding:
        args = [b for b in self.form.buffers if b.scope in ("in", "out")]
        return binding_of(self.lowered, self.form, args)


def binding_of(low: Lowered, n: Nest, args: Sequence[Buffer]) -> Binding:
    """How a launch gives its arguments to code of a nest that takes these buffers."""
    at: dict[str, int] = {}
    for k, g in enumerate(low.given):
        at.setdefault(g.name, k)
    slots: list[tuple[int, str]] = []
    for b in args:
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
        " or ".join(
            [
                *(_exceeded(b, low, at) for b in low.bounds),
                *(f"{_source(x, low, at)} < 1" for x in low.least),
                *(f"{_source(x, low, at)} > {LIMIT}" for x in low.most),
            ]
        ),
    )


def _exceeded(b: Bound, low: Lowered, at: dict[str, int]) -> str:
    """The condition under which a launch exceeds a bound, as Python source."""
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


def _source(x: Dim, low: Lowered, at: dict[str, int]) -> str:
    """A function of a launch's symbols as Python source."""
    if isinstance(x, int):
        return str(x)
    terms: list[str] = []
    for atoms, c in x.terms:
        parts = [] if c == 1 and atoms else [str(c)]
        for a in atoms:
            if isinstance(a, Sym) and a.name in GRID:
                parts.append(f"grid[{GRID.index(a.name)}]")
            elif isinstance(a, Sym):
                unit = low.given[at[a.name]].unit
                parts.append(f"(values[{at[a.name]}] // {unit})")
            else:
                assert isinstance(a, Quo)
                first, second = (_source(y, low, at) for y in (a.a, a.b))
                sign = {"floordiv": "//", "mod": "%"}.get(a.op)
                plain = f"{a.op}({first}, {second})"
                parts.append(plain if sign is None else f"(({first}) {sign} ({second}))")
        terms.append(" * ".join(parts))
    return " + ".join(terms)


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


@on_fresh_stack
def write_tile(
    kernel: Kernel,
    target: Target,
    aliasing: Aliasing = APART,
    wraps: bool = False,
    stages: TileStages | None = None,
) -> Forms:
    """A kernel as LLVM text, for arguments that overlap in memory as described; `wraps`: for
    launches in which numbers of 32 bits may overflow."""
    through = stages or TileStages(Stages(), kernel.name, kernel.name)
    with WRITING, garbage_waits():
        times = [perf_counter()]
        kernel = through.tiles(kernel)
        lowered = through.lowered(lower(kernel, aliasing, wraps))
        times.append(perf_counter())
        choose = partial(default_schedule, lowered.nest, target)
        trace, nest = through.scheduled(lowered, choose)
        times.append(perf_counter())
        text = emit(through.legalised(lowered, nest, target), target)
        text = through.emitted(text, target)
        times.append(perf_counter())
    through.stages.close()
    names = ("lowering", "schedule", "LLVM text")
    phases = {str(n): b - a for n, (a, b) in zip(names, pairwise(times), strict=True)}
    return Forms(kernel, lowered, nest, target, print_trace(trace), text, phases)


def compile_tile(
    kernel: Kernel,
    target: Target,
    log: Log,
    aliasing: Aliasing = APART,
    wraps: bool = False,
    wrapping: Callable[[], CompiledTile] | None = None,
) -> CompiledTile:
    """Native code of a kernel, out of the cache where the same text was compiled before."""
    stages = tile_stages(kernel, aliasing, wraps, log)
    forms = write_tile(kernel, target, aliasing, wraps, stages)
    log.add("tile", f"{kernel.name} is lowered to LLVM text", detail=True)
    for product in plain_products(forms.form):
        log.add("tile", f"{kernel.name}: {product}")
    with stages.errors("ll"):
        image = cached_object(forms.llir, target, log)
    return CompiledTile(forms.binding, image, lambda: forms, wrapping)
