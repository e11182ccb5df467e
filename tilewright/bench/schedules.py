"""A matrix product of 1024 cubed by schedule steps alone, against the measured peak and torch.

One thread. Every kernel is a group and a trace in their text forms, nothing else; `--show` prints
them. Times are medians of rounds in which all contenders take turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import tilewright.kernel.steps  # noqa: F401  (the steps that traces name)
from tilewright.base.errors import Unsupported
from tilewright.bench.machine import Peak
from tilewright.bench.measure import busy, interleaved
from tilewright.ir.register_tile import products_of
from tilewright.ir.target import Target
from tilewright.ir.types import bf16, f32
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import Nest, start
from tilewright.kernel.step import apply, parse_trace, print_trace
from tilewright.kernel.text import parse_group
from tilewright.llvm.emit import emit
from tilewright.llvm.objects import compile_object
from tilewright.runtime.native import NativeKernel
from tilewright.targets import default

SIZE = 1024
LOOPS = f"C.i0 in {SIZE}, C.i1 in {SIZE}, C.r0 in {SIZE}"


@dataclass(frozen=True)
class Tile:
    """Rows and columns in registers, values of k and rows that stay in caches."""

    instruction: str
    rows: int
    columns: int
    depth: int
    block: int


TILES = (
    Tile("x86.avx512.fma", 14, 32, 512, 126),
    Tile("x86.avx2.fma", 4, 16, 512, 64),
    Tile("arm64.fma", 4, 16, 512, 64),
)


def tile_for(t: Target) -> Tile:
    """The tile that was found best by hand for the instruction that a target multiplies with."""
    found = next((tile for tile in TILES if tile.instruction in t.instructions), None)
    if found is None:
        known = ", ".join(tile.instruction for tile in TILES)
        raise Unsupported(f"target {t.name} has none of the instructions {known}")
    return found


def naive() -> tuple[str, str]:
    return (
        f"""
group naive
  in A: f32[{SIZE},{SIZE}]
  in B: f32[{SIZE},{SIZE}]
  out C: f32[{SIZE},{SIZE}]
  C[C.i0,C.i1] add= A[C.i0,C.r0] * B[C.r0,C.i1] for {LOOPS} from 0.0
""",
        "",
    )


def blocked(lanes: int) -> tuple[str, str]:
    """The classic: tiles of 32, k split by 4, the inner axis as vectors."""
    steps = f"""
Split('C.i0', 32)
Split('C.i1', 32)
Split('C.r0', 4)
Reorder(('C.i0.0', 'C.i1.0', 'C.r0.0', 'C.i0.1', 'C.r0.1', 'C.i1.1'))
Split('C.i1.1', {lanes})
Vectorize('C.i1.1.1')
Unroll('C.i1.1.0')
Unroll('C.r0.1')
"""
    return naive()[0].replace("group naive", "group blocked"), steps


def tuned(t: Tile, lanes: int, inside: bool) -> tuple[str, str]:
    """Panels of B, blocks of k and of rows of A, sums in a register tile; B packed in the call or
    before. Rows of the block of A are padded, or they would fall into the same sets of a cache."""
    n, c, panels = SIZE, t.columns, SIZE // t.columns
    copy = f"P[P.i0,P.i1,P.i2] = B[P.i1,{c}*P.i0+P.i2]"
    pack = f"  {copy} for P.i0 in {panels}, P.i1 in {n}, P.i2 in {c}\n"
    product = f"C[C.i0,C.i1] add= A[C.i0,C.r0] * P[C.i1//{c},C.r0,C.i1%{c}]"
    group = f"""
group tuned{"_inside" if inside else ""}
  in A: f32[{n},{n}]
  in {f"B: f32[{n},{n}]" if inside else f"P: f32[{panels},{n},{c}]"}
  out C: f32[{n},{n}]
{f"  local P: f32[{panels},{n},{c}]" if inside else ""}
{pack if inside else ""}  {product} for {LOOPS} from 0.0
"""
    # Rows that no tile fills have tiles of their own, each a product of that size.
    ragged = SIZE % t.block or t.block % t.rows
    steps = f"""
{"Vectorize('P.i2')" if inside else ""}
CacheRead('A', 'C', 'Ap')
Split('C.r0', {t.depth})
RFactor('C', ('C.r0.0',), 'T')
Split('C.i0', {t.block})
Split('C.i0.1', {t.rows})
Split('C.i1', {c})
Reorder(('C.r0.0', 'C.i0.0', 'C.i1.0', 'C.i0.1.0', 'C.i0.1.1', 'C.i1.1'))
ComputeAt('T', 'C.i0.1.0')
ComputeAt('Ap', 'C.i0.0')
StorageAlign('Ap', 0, {t.depth}, 16)
Split('Ap.i1', {4 * lanes})
Vectorize('Ap.i1.1')
SetScope('T', 'register')
{"Peel('C.i0.0')" if ragged else ""}
{"Peel('C.i0.1.0')" if ragged else ""}
Tensorize('T.i0', '{t.instruction}')
Unroll('T.init.i0')
Split('T.init.i1', {lanes})
Unroll('T.init.i1.0')
Vectorize('T.init.i1.1')
Unroll('C.i0.1.1')
Split('C.i1.1', {lanes})
Unroll('C.i1.1.0')
Vectorize('C.i1.1.1')
Split('C.init.i1', {lanes})
Vectorize('C.init.i1.1')
"""
    return group, steps


def amx(block: int) -> tuple[str, str]:
    """bfloat16 on tile registers: B in panels of pairs, a block of rows of A packed, too."""
    n, half = SIZE, SIZE // 2
    product = "cast<f32>(A[C.i0,2*C.r0+C.r1]) * cast<f32>(P[C.i1//32,C.r0,C.i1%32,C.r1])"
    loops = f"C.i0 in {n}, C.i1 in {n}, C.r0 in {half}, C.r1 in 2"
    group = f"""
group amx
  in A: bf16[{n},{n}]
  in P: bf16[{n // 32},{half},32,2]
  out C: f32[{n},{n}]
  C[C.i0,C.i1] add= {product} for {loops} from 0.0
"""
    steps = f"""
CacheRead('A', 'C', 'Ap')
Split('C.i0', {block})
Split('C.i0.1', 32)
Split('C.i1', 32)
Reorder(('C.i0.0', 'C.i1.0', 'C.i0.1.0', 'C.i0.1.1', 'C.i1.1', 'C.r0', 'C.r1'))
ComputeAt('Ap', 'C.i0.0')
Split('Ap.i1', 32)
Vectorize('Ap.i1.1')
Tensorize('C.i0.1.1', 'x86.amx.bf16')
Split('C.init.i1', 16)
Vectorize('C.init.i1.1')
"""
    return group, steps


@dataclass
class Kernel:
    """A trace applied and compiled, and what Python spent on it."""

    nest: Nest
    apply_ms: float
    emit_ms: float
    text_ms: float
    text: str
    function: Callable[..., None]


def build(source: tuple[str, str], target: Target) -> Kernel:
    group, trace = parse_group(source[0]), parse_trace(source[1])
    printed = print_trace(trace)
    nest = apply(start(group), trace)
    code = emit(legalise(nest, target), target)
    work: tuple[Callable[[], object], ...] = (
        lambda: apply(start(group), trace),
        lambda: emit(legalise(nest, target), target),
        lambda: parse_trace(print_trace(trace)),
    )
    assert parse_trace(printed) == trace
    kernel = NativeKernel([compile_object(code, target)], nest.name)

    def call(*arrays: torch.Tensor) -> None:
        kernel([a.data_ptr() for a in arrays])

    ms = [1e3 * median(_seconds(f) for _ in range(5)) for f in work]
    return Kernel(nest, ms[0], ms[1], ms[2], printed, call)


def _seconds(f: Callable[[], object]) -> float:
    begin = time.perf_counter()
    f()
    return time.perf_counter() - begin


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--show", action="store_true", help="print the traces")


def main(given: argparse.Namespace) -> int:
    console, target = Console(), default()
    console.width = max(console.width, 100)
    warning = busy()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    lanes, tile = target.lanes(32), tile_for(target)
    sources = {
        "naive loops": naive(),
        "blocked": blocked(lanes),
        "packed inside": tuned(tile, lanes, True),
        "packed before": tuned(tile, lanes, False),
    }
    kernels = {name: build(source, target) for name, source in sources.items()}
    a, b = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
    panels = b.reshape(SIZE, -1, tile.columns).permute(1, 0, 2).contiguous()
    out, want = torch.empty(SIZE, SIZE), a.double() @ b.double()
    right = {name: panels if name == "packed before" else b for name in kernels}
    calls: dict[str, Callable[[], object]] = {}
    for name, k in kernels.items():
        k.function(a, right[name], out)
        wrong = float((out - want).abs().max())
        assert wrong < 1e-2, f"{name} is wrong by {wrong}"
        calls[name] = lambda k=k, name=name: k.function(a, right[name], out)
    calls["torch float32"] = lambda: torch.mm(a, b, out=out)
    if any(p.tile is not None for p in products_of(target, (bf16, bf16, f32))):
        kernels["amx bfloat16"] = _add_amx(calls, a, b, target)
    peak, found = Peak(target), list[float]()
    times = interleaved(calls, given.rounds, lambda: found.append(peak()))
    _report(console, kernels, times, median(found))
    if warning:
        console.print(f"[yellow]{warning}[/]")
    if given.show:
        for name, k in kernels.items():
            console.print(f"\n[bold]{name}[/]\n{k.text}")
    return 0


def _add_amx(
    calls: dict[str, Callable[[], object]], a: torch.Tensor, b: torch.Tensor, target: Target
) -> Kernel:
    k = build(amx(128), target)
    x, y = a.bfloat16(), b.bfloat16()
    pairs = y.reshape(SIZE // 2, 2, -1, 32).permute(2, 0, 3, 1).contiguous()
    out, half = torch.empty(SIZE, SIZE), torch.empty(SIZE, SIZE, dtype=torch.bfloat16)
    k.function(x, pairs, out)
    wrong = float((out - x.double() @ y.double()).abs().max())
    assert wrong < 1e-1, f"amx is wrong by {wrong}"
    calls["amx bfloat16"] = lambda: k.function(x, pairs, out)
    calls["torch bfloat16"] = lambda: torch.mm(x, y, out=half)
    return k


def _report(
    console: Console, kernels: dict[str, Kernel], times: dict[str, list[float]], peak: float
) -> None:
    table = Table(
        title=f"matmul {SIZE}³, one thread; the measured peak is {peak / 1e9:.1f} GFLOP/s",
        caption="× naive, × torch: how many times faster; apply, emit, text: ms of Python",
        box=SIMPLE,
    )
    headings = ("", "ms", "GFLOP/s", "peak", "× naive", "× torch", "apply", "emit", "text")
    for heading in headings:
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    middle = {name: median(found) for name, found in times.items()}
    for name, seconds in middle.items():
        rate = 2 * SIZE**3 / seconds
        other = "torch bfloat16" if "bfloat16" in name else "torch float32"
        k = kernels.get(name)
        python = [f"{x:.2f}" for x in (k.apply_ms, k.emit_ms, k.text_ms)] if k else ["", "", ""]
        table.add_row(
            name,
            f"{seconds * 1e3:.2f}",
            f"{rate / 1e9:.1f}",
            f"{rate / peak:.1%}",
            f"{middle['naive loops'] / seconds:.1f}",
            f"{middle[other] / seconds:.2f}",
            *python,
        )
    console.print(table)
