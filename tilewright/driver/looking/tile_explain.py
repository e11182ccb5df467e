"""`tw.explain` of tile kernels: what one was compiled to, and what may make it slow.

`print(tw.explain(kernel))` takes what `@tw.jit` made (every specialisation that was launched), or
what a launch gave back (that one). A page has the kernel's stages, each with the author's line: a
stage is a loop nest that fills one tile or writes memory.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.text import Text

from tilewright.base.errors import Invalid, Refused
from tilewright.driver.looking.gpu_tile_explain import GpuTileReport, explain_gpu_tile
from tilewright.driver.looking.tables import bytes_text, count, new_table, rendered, short_place
from tilewright.driver.tile.compile import Forms
from tilewright.driver.tile.jit import JITFunction, KernelInterface
from tilewright.driver.tile.launch import CompiledKernel
from tilewright.driver.tile.request import Request
from tilewright.driver.tile.tile_cache import cached_at
from tilewright.ir.expr import loads
from tilewright.ir.register_tile import products_of
from tilewright.ir.target import Target
from tilewright.ir.types import DType
from tilewright.kernel.nest import Alloc, Atomic, Loop, Nest, Store, own_loops, walk
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.vectorize import Vectorize
from tilewright.lang.tile import ir
from tilewright.llvm.objects import LLVM_VERSION, compile_object


@dataclass(frozen=True)
class StageReport:
    """One statement of a kernel with its loops."""

    name: str
    what: str  # "t3[16,32] from a, b"
    sizes: tuple[str, ...]
    inside: tuple[str, ...]  # loops in which it is done again and again
    by: str  # "16 lanes", "arm64.fma, 8x8 at a time", "one element at a time"
    why: str  # there are no lanes, or no instruction for a product
    is_product: bool
    where: str


@dataclass(frozen=True)
class TileReport:
    """One specialisation of a kernel."""

    kernel: CompiledKernel
    target: Target
    operations: Mapping[str, int]  # of the tile IR, by name
    stages: tuple[StageReport, ...]
    tiles: int  # bytes that the tiles of a program take
    grain: int  # programs that a thread claims at a time; 0: one thread runs all
    trace: str  # the steps of its schedule
    code: int  # bytes
    instructions: int
    phases: Mapping[str, float]  # seconds, made again for this page
    cached: str

    @property
    def products(self) -> tuple[StageReport, ...]:
        return tuple(s for s in self.stages if s.is_product)

    @property
    def seconds(self) -> float:
        return sum(self.phases.values())

    def remarks(self) -> Iterator[str]:
        """What may cost time, and what to do about it."""
        t = self.target
        plain = [s for s in self.products if s.why]
        if plain:
            yield f"{count(len(plain), 'product')} by plain loops: see below why"
        single = [s for s in self.stages if s.why and not s.is_product]
        if single:
            yield f"{count(len(single), 'stage')} one element at a time: see below why"
        if self.tiles > t.l2:
            yield (
                f"the tiles of a program ({bytes_text(self.tiles)}) do not fit the second cache "
                f"({bytes_text(t.l2)}): smaller blocks"
            )
        unknown = [n for n, a in _given(self.kernel).items() if a.divisor == 1]
        if unknown:
            yield f"not known to be multiples of 16 (pointers: of 16 bytes): {', '.join(unknown)}"
        if self.kernel.variants:
            yield (
                f"{count(len(self.kernel.variants), 'variant')} for arguments that overlap in "
                "memory: loops over them are not reordered"
            )


@dataclass(frozen=True)
class TileExplanation:
    """What a kernel was compiled to. Prints as a page for each specialisation."""

    kernels: tuple[TileReport | GpuTileReport, ...]

    def __str__(self) -> str:
        return rendered(self)

    def __repr__(self) -> str:
        return f"<TileExplanation of {count(len(self.kernels), 'kernel')}>"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for k, report in enumerate(self.kernels):
            if k:
                yield Text("")
            yield from report.page() if isinstance(report, GpuTileReport) else _page(report)


def explain_tiles(x: Any) -> TileExplanation:
    """What a kernel, or all its specialisations, was compiled to."""
    found = _kernels(x)
    on_gpu = [hasattr(k.launchable, "make_forms") for k in found]
    pairs = zip(found, on_gpu, strict=True)
    return TileExplanation(tuple(explain_gpu_tile(k) if gpu else _report(k) for k, gpu in pairs))


def is_tile_kernel(x: Any) -> bool:
    return isinstance(x, (KernelInterface, CompiledKernel))


def _kernels(x: Any) -> list[CompiledKernel]:
    if isinstance(x, CompiledKernel):
        found = [x]
    else:
        while not isinstance(x, JITFunction):  # autotuned, or with heuristics
            x = x.fn
        found = list(x.kernels.values())
    name = x.name
    native = [k for k in found if not k.wants_given]
    if not found:
        raise Invalid(
            f"{name} was not launched yet: there is nothing to explain",
            hint=f"launch it, or {name}.warmup(…, grid=(1,)) makes it for such arguments",
        )
    if not native:
        raise Invalid(
            f"{name} runs step by step in Python: there is no code to explain",
            hint="launch it without TILEWRIGHT_INTERPRET and TILEWRIGHT_CHECK_TILES",
        )
    return native


def _report(kernel: CompiledKernel) -> TileReport:
    launchable: Any = kernel.launchable
    wanted: Request = launchable.wanted
    start = perf_counter()
    wanted.kernel()
    translated = perf_counter() - start
    forms: Forms = launchable.compiled.forms()
    start = perf_counter()
    compile_object(forms.llir, forms.target)
    compiled = perf_counter() - start
    n = forms.form
    allocated = {s.buffer for s, _ in walk(n.body) if isinstance(s, Alloc)}
    local = (b for b in n.buffers if b.name in allocated)
    return TileReport(
        kernel,
        forms.target,
        Counter(o.name for o in ir.walk(forms.kernel.body)),
        tuple(_stages(forms)),
        sum(b.dtype.bytes * prod(d for d in b.shape if isinstance(d, int)) for b in local),
        next((s.grain for s in n.body if isinstance(s, Loop) and s.kind == "parallel"), 0),
        forms.trace,
        len(launchable.compiled.image),
        sum(bool(_INSTRUCTION.match(line)) for line in forms.asm.splitlines()),
        {"tile IR": translated, **forms.phases, "machine code": compiled},
        cached_at(wanted, forms.target),
    )


_FEW = 8  # lanes to try
MOST_STEPS = 40  # of a trace that are shown
_LANGUAGE = Path(ir.__file__).parent
_LOWERED = re.compile(r"([a-z]+\d+).*")  # a stage of lowering, in the names of those made of it
_INSTRUCTION = re.compile(r"\t[a-z]")  # directives begin with a dot, labels in the first column


# ---- stages


def _stages(forms: Forms) -> Iterator[StageReport]:
    n = forms.form
    products, scans = n.are("product"), n.are("scan")
    plain = ((x, p) for x, p in walk(forms.lowered.nest.body) if isinstance(x, Store))
    whole = {x.stage: own_loops(p, x.stage) for x, p in plain}
    shown: set[str] = set()
    for x, path in walk(n.body):
        if not isinstance(x, (Store, Atomic)):
            continue
        own = own_loops(path, x.stage)
        if isinstance(x, Store) and x.combine is None and _starts_a_sum(x, own):
            continue
        product = isinstance(x, Store) and x.combine == "add" and x.stage in products
        if product and x.stage in shown:
            continue  # the last register tile, which is smaller than the others
        shown.add(x.stage)
        by, why = _runs(forms, x, own, product)
        if not own and any(str(p.axis.whole) in scans for p in path):
            why = "a scan takes one element after the other"
        sizes = _sizes(whole.get(x.stage, own) if product else own)
        place = forms.lowered.places.get(_LOWERED.sub(r"\1", x.stage))
        inside = tuple(p.name for p in path if p not in own and p.kind == "serial")
        yield StageReport(x.stage, _what(n, x), sizes, inside, by, why, product, _line(place))


def _starts_a_sum(x: Store, own: Sequence[Loop]) -> bool:
    """The neutral element that a sum begins with is no stage of its own."""
    return x.stage == x.buffer and all(p.axis.first for p in own)


def _what(n: Nest, x: Store | Atomic) -> str:
    b = n.buffer(x.buffer)
    name = re.sub(r"_\d+$", "", x.buffer) if b.pointer else x.buffer
    shape = "" if b.pointer else f"[{','.join(map(str, b.shape))}]"
    read = dict.fromkeys(
        re.sub(r"_\d+$", "", str(v.source)) for v in loads(x.value) if str(v.source) != x.buffer
    )
    verb = f"atomic {x.kind}" if isinstance(x, Atomic) else str(x.combine or "")
    text = f"{verb + ' into ' if verb else ''}{name}{shape} {b.dtype}"
    return f"{text} from {', '.join(read)}" if read else text


def _sizes(own: Sequence[Loop]) -> tuple[str, ...]:
    """Extents of the axes of a tile: the loops that one was split into are one again."""
    found: dict[str, Any] = {}
    for p in own:
        axis = str(p.axis.whole)
        found[axis] = found.get(axis, 1) * p.extent
    return tuple(str(found[a]) for a in sorted(found))


def _runs(forms: Forms, x: Store | Atomic, own: list[Loop], product: bool) -> tuple[str, str]:
    """By what a stage runs, and why not by more."""
    tensor = [p for p in own if p.kind == "tensor"]
    if tensor:
        name = next(p.instruction for p in tensor if p.instruction)
        return f"{name}, {'x'.join(str(p.extent) for p in tensor)} at a time", ""
    lanes = next((p.extent for p in own if p.kind == "lane"), None)
    by = "one element at a time" if lanes is None else f"{lanes} lanes"
    if product:
        assert isinstance(x, Store)
        return f"{by}, plain loops", _no_instruction(forms, x)
    if lanes is not None:
        return by, ""
    if not own:
        return "one number", ""
    if isinstance(x, Atomic):
        return by, "atomics are one after the other"
    return by, _no_lanes(forms.form, own)


def _no_lanes(n: Nest, own: Sequence[Loop]) -> str:
    last = own[-1]
    try:
        if isinstance(last.extent, int) and last.extent > _FEW:
            Vectorize(f"{last.name}.1").apply(Split(last.name, _FEW).apply(n))
        else:
            Vectorize(last.name).apply(n)
    except Refused as refused:
        return refused.what.partition("): ")[2] or refused.what
    return "lanes are possible, and its schedule takes none"


def _no_instruction(forms: Forms, x: Store) -> str:
    """Why a product of tiles is not one of an instruction."""
    operands = [v.dtype for v in loads(x.value)]
    made = forms.form.buffer(x.buffer)
    sums = made.dtype
    if len(operands) != 2:
        return "its operands are computed where they are read, not loaded from tiles"
    a, b = operands
    limits = list(_limits(forms.target, (a, b, sums)))
    shown = f"{a} by {b} into {sums}"
    if not limits:
        return f"this CPU has no instruction that multiplies {shown}"
    if len(made.shape) < 2:
        return "its result has one axis, and instructions multiply matrices"
    least, columns = min(low for low, _ in limits), made.shape[-1]
    if isinstance(columns, int) and columns < least:
        return f"{columns} columns are fewer than the {least} of {limits[0][1]}"
    names = ", ".join(name for _, name in limits)
    return f"{names} takes {shown}, but not in this form: a tile is too small, or read elsewhere"


def _limits(target: Target, dtypes: tuple[DType, DType, DType]) -> Iterator[tuple[int, str]]:
    """Instructions for these dtypes, each with the columns that it has at least."""
    return ((p.lanes, p.instruction) for p in products_of(target, dtypes))


def _line(place: ir.Place | None) -> str:
    """The author's line: where functions of the language's library were called."""
    while place is not None and place.inside is not None and _is_library(place.file):
        place = place.inside
    return "" if place is None else str(place)


def _is_library(file: str) -> bool:
    return Path(file).is_relative_to(_LANGUAGE)


# ---- printing


def _given(kernel: CompiledKernel) -> dict[str, Any]:
    """Arguments of a launch that are no constants, of one part."""
    launchable: Any = kernel.launchable
    arguments = launchable.wanted.arguments
    return {n: a for n, a in arguments.items() if a.parts is None and _counts(a.element)}


def _counts(element: Any) -> bool:
    return isinstance(element, ir.Pointer) or (isinstance(element, DType) and element.is_int)


def _page(r: TileReport) -> Iterator[Any]:
    k, t = r.kernel, r.target
    shown = (
        f"{n}={k.constants[n]!r}" if kind == "constexpr" else f"{n}: {kind}"
        for n, kind in k.signature.items()
    )
    f = k.function
    ops = ", ".join(f"{n} {name}" for name, n in sorted(r.operations.items(), key=_often)[:6])
    phases = ", ".join(f"{name} {seconds:.3f}" for name, seconds in r.phases.items())
    divided = [n for n, a in _given(k).items() if a.divisor > 1]
    known = f"{', '.join(divided)} are multiples of 16 (pointers: of 16 bytes)"
    facts = [
        f"tile IR: {sum(r.operations.values())} operations ({ops})",
        *([f"specialised: {known}"] if divided else []),
        f"tiles of a program: {bytes_text(r.tiles)} (caches {bytes_text(t.l1)}, "
        f"{bytes_text(t.l2)}); {_shared(r)}",
        f"code: {bytes_text(r.code)} for {t.cpu or t.name} by LLVM {LLVM_VERSION}, "
        f"{count(r.instructions, 'instruction')}",
        f"compiling takes {r.seconds:.2f} s ({phases})",
        r.cached,
    ]
    yield Text.assemble(
        (f"{k.name}({', '.join(shown)})", "bold"), f"  {short_place(f'{f.file}:{f.line}')}"
    )
    # Paths are for copying: they are not broken.
    yield Text("\n".join(f"  {x}" for x in facts), no_wrap=True, overflow="ignore")
    for remark in r.remarks():
        yield Text(f"  note: {remark}", style="yellow", no_wrap=True, overflow="ignore")
    yield Text("")
    stages = new_table("stage", "computes", "over", "runs by", "where")
    for s in r.stages:
        where = short_place(s.where) if s.where else ""
        over = " x ".join(s.sizes) + (f" in {', '.join(s.inside)}" if s.inside else "")
        stages.add_row(s.name, s.what, over.strip(), s.by, where)
    yield stages
    slow = new_table("stage", "not faster because")
    for s in r.stages:
        if s.why:
            slow.add_row(s.name, s.why)
    if slow.row_count:
        yield Group(Text(""), slow)
    steps = r.trace.splitlines()
    lines = [f"  {x}" for x in steps[:MOST_STEPS]]
    if len(steps) > MOST_STEPS:
        lines.append(f"  … {count(len(steps) - MOST_STEPS, 'more step')}: kernel.asm['trace']")
    yield Text("\n".join(["", "schedule", *lines]), no_wrap=True, overflow="ignore")


def _shared(r: TileReport) -> str:
    if not r.grain:
        return "one thread runs all programs"
    return f"a thread claims {count(r.grain, 'program')} at a time"


def _often(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]
