"""Products of narrow tiles: the right numbers on this machine, the right instructions on others."""
# Numbers of a kernel become tensors, which Python's own types do not show.

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

import tilewright as tw
import tilewright.language as tl
from tests.seeds import crossed, diagonals, drawn, every_run, named
from tests.targets.test_dots import TILES, V2, V3, V4, arm64_with, x86_with
from tilewright.driver.tile.compile import write_tile
from tilewright.ir.types import DTYPES
from tilewright.kernel.interpret import run
from tilewright.kernel.nest import Prefetch, Store, walk
from tilewright.kernel.step import parse_trace
from tilewright.kernel.steps.other_sign import OtherSign
from tilewright.kernel.steps.retype import Retype
from tilewright.lang.tile.front.frontend import translate
from tilewright.lang.tile.front.functions import Argument
from tilewright.lang.tile.ir import Kernel
from tilewright.lang.tile.lowering.lower import lower
from tilewright.llvm.objects import assembly
from tilewright.targets import default, x86


@pytest.fixture(autouse=True)
def permitted(monkeypatch: pytest.MonkeyPatch) -> None:
    default()  # the system gives this process permission before all targets are said to have it
    monkeypatch.setattr(x86, "registers_on_request", lambda: True)


@tw.jit
def product(
    a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACC: tl.constexpr
):
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    sums = tl.zeros((BM, BN), dtype=ACC)
    for first in range(0, K, BK):
        at = first + k
        x = tl.load(a + i[:, None] * K + at[None, :], (i[:, None] < M) & (at[None, :] < K), 0)
        y = tl.load(b + at[:, None] * N + j[None, :], (at[:, None] < K) & (j[None, :] < N), 0)
        sums = tl.dot(x, y, sums)
    inside = (i[:, None] < M) & (j[None, :] < N)
    tl.store(c + i[:, None] * N + j[None, :], sums.to(c.dtype.element_ty), inside)


@tw.jit
def both_orders(a, b, c, N: tl.constexpr):
    n = tl.arange(0, N)
    at = n[:, None] * N + n[None, :]
    x, y = tl.load(a + at) - 1.0, tl.load(b + at)
    tl.store(c + at, tl.dot(tl.trans(x), y, tl.dot(x, y)))


def test_an_operand_in_two_orders_is_computed_once() -> None:
    """As it is and transposed: one tile that two products read, each in its own order."""
    given = dict.fromkeys("abc", Argument.pointer(DTYPES["f32"], 16))
    kernel = translate(both_orders, {**given, "N": Argument.constant(16)})
    products = [x for x, _ in walk(lower(kernel).nest.body) if isinstance(x, Store) and x.combine]
    assert len(products) == 2
    assert len({str(x.value.args[0].source) for x in products}) == 1
    a, b = numbers(torch.float32, 16, 16), numbers(torch.float32, 16, 16, seed=1)
    c = torch.empty(16, 16)
    both_orders[(1,)](a, b, c, N=16)
    agrees(c, torch.cat((a - 1, (a - 1).T), 1), torch.cat((b, b)))


INTEGERS = {torch.int8: (-128, 128), torch.uint8: (0, 256)}
EIGHT = (torch.float8_e4m3fn, torch.float8_e5m2)
FLOATS = (torch.bfloat16, torch.float16, *EIGHT)


def numbers(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    if dtype in INTEGERS:
        x = torch.randint(*INTEGERS[dtype], shape, generator=g).to(dtype)
        x.flatten()[::7] = INTEGERS[dtype][0]
        return x
    return torch.randn(shape, generator=g).to(dtype)


def agrees(got: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """Integers exactly; floats as far as sums in float32 can be from the true ones."""
    x, y = a.double(), b.double()
    want = x @ y
    if got.dtype is torch.int32:
        assert torch.equal(got.double(), want)
        return
    unit = {torch.float16: 2**-11, torch.bfloat16: 2**-8}.get(got.dtype, 0.0)
    error = (got.double() - want).abs()
    bound = x.shape[-1] * 2**-23 * (x.abs() @ y.abs()) + unit * want.abs() + 1e-30
    assert (error <= bound).all(), f"{(error / bound).max()} of the bound"


SIZES = [(64, 64, 64), (45, 50, 70), (96, 160, 256)]


BLOCKS = [(64, 64, 64), (16, 16, 16), (32, 128, 32)]


@every_run(0, 3, 6, 8)
@pytest.mark.parametrize(
    ("dtype", "size", "blocks"), diagonals([*INTEGERS, *FLOATS], SIZES, BLOCKS, step=5)
)
def test_products(dtype: torch.dtype, size: tuple, blocks: tuple) -> None:
    rows, columns, deep = size
    a, b = numbers(dtype, rows, deep), numbers(dtype, deep, columns, seed=1)
    whole = dtype in INTEGERS
    c = torch.empty(rows, columns, dtype=torch.int32 if whole else torch.float32)
    grid = (tw.cdiv(rows, blocks[0]), tw.cdiv(columns, blocks[1]))
    bm, bn, bk = blocks
    acc = tl.int32 if whole else tl.float32
    product[grid](a, b, c, rows, columns, deep, BM=bm, BN=bn, BK=bk, ACC=acc)
    agrees(c, a, b)


# Tiles with a smaller last one, sums in pieces, panels filled in their turn: products of float32
# that no cache holds.
LARGE = [(64, 128, 256), (128, 64, 128), (128, 256, 64), (32, 64, 512)]


@pytest.mark.parametrize("blocks", LARGE, ids=str)
@pytest.mark.parametrize("seed", drawn(range(6), quick=1))
def test_large_products_of_any_size(blocks: tuple[int, int, int], seed: int) -> None:
    rng = random.Random(seed)
    rows, columns, deep = (rng.randint(1, 2 * k + 9) for k in blocks)
    a = numbers(torch.float32, rows, deep, seed=seed)
    b = numbers(torch.float32, deep, columns, seed=seed + 1)
    c = torch.empty(rows, columns)
    grid = (tw.cdiv(rows, blocks[0]), tw.cdiv(columns, blocks[1]))
    bm, bn, bk = blocks
    product[grid](a, b, c, rows, columns, deep, BM=bm, BN=bn, BK=bk, ACC=tl.float32)
    agrees(c, a, b)


def test_large_products_stay_in_the_first_cache() -> None:
    """A panel of the second operand fits it, the next one and the next sums are prefetched."""
    target = x86_with(*V4)
    forms = write_tile(translated("f32", (256, 256, 256)), target)
    panel = next(b for b in forms.form.buffers if b.shape[-1:] == (64,) and b.shape[0] == 1)
    assert isinstance(panel.size, int) and panel.size * 4 <= target.l1 // 2
    asks = [x for x, _ in walk(forms.form.body) if isinstance(x, Prefetch)]
    assert {str(x.load.source)[0]: x.level for x in asks} == {"a": 2, "b": 2, "t": 1}
    assert forms.trace.count("Peel") == 1


def test_sums_in_float16_are_rounded_once() -> None:
    a, b = numbers(torch.float16, 32, 256), numbers(torch.float16, 256, 64, seed=1)
    c = torch.empty(32, 64, dtype=torch.float16)
    product[(1, 1)](a, b, c, 32, 64, 256, BM=32, BN=64, BK=256, ACC=tl.float16)
    agrees(c, a, b)


@tw.jit
def batches(a, b, c, Z: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    z = tl.arange(0, Z)[:, None, None]
    m, n = tl.arange(0, M), tl.arange(0, N)
    k = tl.arange(0, K)
    x = tl.load(a + z * M * K + m[None, :, None] * K + k[None, None, :])
    y = tl.load(b + z * K * N + k[None, :, None] * N + n[None, None, :])
    tl.store(c + z * M * N + m[None, :, None] * N + n[None, None, :], tl.dot(x, y))


@tw.jit
def turned(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Operands as transposed tiles."""
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a + k[:, None] * M + m[None, :])
    y = tl.load(b + n[:, None] * K + k[None, :])
    tl.store(c + m[:, None] * N + n[None, :], tl.dot(tl.trans(x), tl.trans(y)))


@tw.jit
def squared(a, c, N: tl.constexpr):
    """One tile as both operands, and read once more as it is."""
    n = tl.arange(0, N)
    x = tl.load(a + n[:, None] * N + n[None, :])
    both = tl.dot(x, x) + tl.dot(x, tl.trans(x))
    tl.store(c + n[:, None] * N + n[None, :], both + x.to(c.dtype.element_ty))


@tw.jit
def stationary(a, b, c, STEPS, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """One second operand for many first ones."""
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    y = tl.load(b + k[:, None] * N + n[None, :])
    for step in range(STEPS):
        i = step * M + m[:, None]
        tl.store(c + i * N + n[None, :], tl.dot(tl.load(a + i * K + k[None, :]), y))


NARROW = [*INTEGERS, torch.bfloat16, torch.float16]


def sums_for(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int32 if dtype in INTEGERS else torch.float32)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_batches(dtype: torch.dtype) -> None:
    a, b = numbers(dtype, 4, 32, 64), numbers(dtype, 4, 64, 32, seed=1)
    c = sums_for(dtype, 4, 32, 32)
    batches[(1,)](a, b, c, Z=4, M=32, N=32, K=64)
    agrees(c, a, b)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_transposed_operands(dtype: torch.dtype) -> None:
    a, b = numbers(dtype, 64, 32), numbers(dtype, 128, 64, seed=1)
    c = sums_for(dtype, 32, 128)
    turned[(1,)](a, b, c, M=32, N=128, K=64)
    agrees(c, a.T, b.T)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_one_tile_as_both_operands(dtype: torch.dtype) -> None:
    a = (numbers(dtype, 64, 64).double() / 2).round().to(dtype)  # whole, so that sums are exact
    c = sums_for(dtype, 64, 64)
    squared[(1,)](a, c, N=64)
    x = a.double()
    assert torch.equal(c.double(), x @ x + x @ x.T + x)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_an_operand_from_outside_the_loop(dtype: torch.dtype) -> None:
    a, b = numbers(dtype, 96, 64), numbers(dtype, 64, 48, seed=1)
    b = torch.nn.functional.pad(b.double(), (0, 16)).to(dtype)
    c = sums_for(dtype, 96, 64)
    stationary[(1,)](a, b, c, 3, M=32, N=64, K=64)
    agrees(c, a, b)


# ---- other machines


def translated(dtype: str, blocks: tuple[int, int, int]) -> Kernel:
    sums = "i32" if dtype in ("i8", "u8") else "f32"
    acc = tl.int32 if sums == "i32" else tl.float32
    given = {n: Argument.pointer(DTYPES[d], 16) for n, d in zip("abc", (dtype, dtype, sums))}
    given |= {n: Argument.scalar(DTYPES["i32"], 16, True) for n in "MNK"}
    constants = dict(zip(("BM", "BN", "BK", "ACC"), (*blocks, acc)))
    given |= {n: Argument.constant(x) for n, x in constants.items()}
    return translate(product, given)


FMA = "vfmadd132ps|vfmadd213ps|vfmadd231ps"
CASES = [
    (arm64_with, (), "i8", "fmla|mla"),
    (arm64_with, ("asimddp",), "i8", "sdot"),
    (arm64_with, ("asimddp",), "u8", "udot"),
    (arm64_with, ("asimddp",), "bf16", "fmla"),
    (arm64_with, ("asimddp", "bf16"), "bf16", "bfdot"),
    (x86_with, V2, "i8", "pmaddwd"),
    (x86_with, V3, "i8", "vpmaddwd"),
    (x86_with, V3, "u8", "vpmaddwd"),
    (x86_with, V3, "bf16", FMA),
    (x86_with, V3, "f16", FMA),
    (x86_with, (*V3, "+avxvnni"), "i8", "vpdpbusd"),
    (x86_with, (*V3, "+avxvnni"), "u8", "vpdpbusd"),
    (x86_with, (*V3, "+avxvnni", "+avxvnniint8"), "i8", "vpdpbssd"),
    (x86_with, V4, "i8", "vpmaddwd"),
    (x86_with, V4, "bf16", FMA),
    (x86_with, (*V4, "+avx512vnni"), "i8", "vpdpbusd"),
    (x86_with, (*V4, "+avx512vnni"), "u8", "vpdpbusd"),
    (x86_with, (*V4, "+avx512bf16"), "bf16", "vdpbf16ps"),
    (x86_with, (*V4, *TILES), "i8", "tdpbssd"),
    (x86_with, (*V4, *TILES), "u8", "tdpbuud"),
    (x86_with, (*V4, *TILES), "bf16", "tdpbf16ps"),
    (x86_with, (*V4, *TILES, "+amx-fp16"), "f16", "tdpfp16ps"),
    (x86_with, (*V4, *TILES), "f8e4m3", "tdpbf16ps"),
    (x86_with, (*V4, "+avx512bf16"), "f8e5m2", "vdpbf16ps"),
]


@pytest.mark.parametrize(("case", "blocks"), crossed(CASES, [(64, 64, 64), (16, 32, 128)], 2))
def test_instructions(case: tuple[type, tuple[str, ...], str, str], blocks: tuple) -> None:
    make, features, dtype, instruction = case
    target = make(*features)
    forms = write_tile(translated(dtype, blocks), target)
    found = set(assembly(forms.llir, target).split()) & set(instruction.split("|"))
    assert found, f"{target.name} multiplies {dtype} without {instruction}:\n{forms.trace}"


# The sums of tiles too shallow for the instruction with tiles of its own are vectors'.
def test_too_few_steps_for_tiles() -> None:
    target = x86_with(*V4, *TILES, "+avx512vnni", "+avx512bf16")
    for dtype, instruction in (("i8", "vpdpbusd"), ("bf16", "vdpbf16ps")):
        text = assembly(write_tile(translated(dtype, (32, 32, 16)), target).llir, target)
        assert instruction in text and "tdp" not in text


TORCH = {
    "i8": torch.int8,
    "u8": torch.uint8,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
}


def in_memory(x: torch.Tensor) -> np.ndarray:
    if x.dtype is torch.bfloat16:
        x = x.view(torch.uint16)
    return (x.view(torch.uint8) if x.dtype in EIGHT else x).numpy()


@pytest.mark.parametrize(("make", "features", "dtype", "instruction"), CASES, ids=named)
def test_numbers_for_other_machines(
    make: type, features: tuple[str, ...], dtype: str, instruction: str
) -> None:
    """What the loops say that stand for another machine's instructions, run on numpy: bytes of the
    other sign, groups and panels."""
    rows, deep, columns = 32, 128, 32
    nest = write_tile(translated(dtype, (32, 32, 64)), make(*features)).form
    d = TORCH[dtype]
    a, b = numbers(d, rows, deep), numbers(d, deep, columns, seed=1)
    c = sums_for(d, rows, columns)
    pointers = [x for x in nest.buffers if x.pointer]
    arrays = {p.name: in_memory(x) for p, x in zip(pointers, (a, b, c), strict=True)}
    sizes = {"M": rows, "N": columns, "K": deep}
    dims = {x.name: sizes[x.name[0]] // 16 if x.name[0] in sizes else 1 for x in nest.dims}
    run(nest, {k: x.reshape(-1) for k, x in arrays.items()}, dims)
    agrees(c, a, b)


@tw.jit
def added(a, b, c, K, N: tl.constexpr, BK: tl.constexpr):
    n, k = tl.arange(0, N), tl.arange(0, BK)
    total = tl.zeros((N, N), tl.float32)
    for first in range(0, K, BK):
        x = tl.load(a + n[:, None] * K + (first + k)[None, :])
        y = tl.load(b + (first + k)[:, None] * N + n[None, :])
        total += tl.dot(x, y) * 0.5
    tl.store(c + n[:, None] * N + n[None, :], total)


@every_run(0, 2)
@pytest.mark.parametrize(("make", "features"), [(x86_with, V3), (x86_with, V4), (arm64_with, ())])
def test_large_products_fill_panels_in_their_turn(make: type, features: tuple[str, ...]) -> None:
    """And start from zero there: what is multiplied next is in the first cache."""
    size, deep = 128, 64
    given = dict.fromkeys("abc", Argument.pointer(DTYPES["f32"], 16))
    sizes = {"N": Argument.constant(size), "BK": Argument.constant(deep // 2)}
    kernel = translate(added, {**given, "K": Argument.scalar(DTYPES["i32"], 16, True), **sizes})
    nest = write_tile(kernel, make(*features)).form
    (product,) = nest.are("product")
    (store, path), *_ = (
        (x, p) for x, p in walk(nest.body) if isinstance(x, Store) and x.stage == product
    )
    panels = next(p for p in path if p.axis.stage == product)
    inside = [x for x, _ in walk(panels.body) if isinstance(x, Store) and x.stage != product]
    assert {x.buffer for x in inside} == {store.buffer, str(store.value.args[1].source)}
    a, b = numbers(torch.float32, size, deep), numbers(torch.float32, deep, size, seed=1)
    c = torch.zeros(size, size)
    names = [x.name for x in nest.buffers if x.pointer]
    arrays = {n: x.numpy().reshape(-1) for n, x in zip(names, (a, b, c), strict=True)}
    run(nest, arrays, {x.name: deep // 16 if x.name[0] == "K" else 1 for x in nest.dims})
    agrees(c * 2, a, b)


HELD = [
    ("bf16", arm64_with, (), ["f32", "f32"]),
    ("bf16", arm64_with, ("bf16",), []),
    ("bf16", x86_with, V3, ["f32", "f32"]),
    ("bf16", x86_with, (*V4, "+avx512bf16"), []),
    ("f8e5m2", x86_with, (*V4, "+avx512bf16"), ["bf16", "bf16"]),
    ("i8", x86_with, V3, ["i16"]),
    ("i8", x86_with, (*V4, "+avx512vnni"), ["other sign"]),
    ("u8", x86_with, (*V4, "+avx512vnni"), ["other sign"]),
    ("i8", arm64_with, ("asimddp",), []),
]


@pytest.mark.parametrize(("dtype", "make", "features", "wanted"), HELD, ids=named)
def test_how_operands_are_stored_is_in_the_trace(
    dtype: str, make: type, features: tuple[str, ...], wanted: list[str]
) -> None:
    """Lowering knows no target: its nest is the same for all."""
    kernel = translated(dtype, (64, 64, 64))
    forms = write_tile(kernel, make(*features))
    assert forms.lowered.nest == lower(kernel).nest
    steps = parse_trace(forms.trace)
    packed = [
        s.dtype if isinstance(s, Retype) else "other sign"
        for s in steps
        if isinstance(s, (Retype, OtherSign))
    ]
    assert packed == wanted


@pytest.mark.parametrize("dtype", ["i8", "u8"])
def test_a_shift_is_taken_back_by_the_same_instruction(dtype: str) -> None:
    forms = write_tile(translated(dtype, (64, 64, 64)), x86_with(*V4, "+avx512vnni"))
    used = [line for line in forms.trace.splitlines() if line.startswith("Tensorize")]
    assert len(used) == 2 and all("vpdpbusd" in line for line in used)


@pytest.mark.parametrize("dtype", ["i8", "u8"])
@pytest.mark.parametrize("features", [(*V4, "+avx512vnni"), V3, TILES], ids=str)
def test_batches_of_bytes_for_other_machines(dtype: str, features: tuple[str, ...]) -> None:
    given = {n: Argument.pointer(DTYPES[d], 16) for n, d in zip("abc", (dtype, dtype, "i32"))}
    given |= {n: Argument.constant(x) for n, x in zip("ZMNK", (2, 16, 32, 64))}
    nest = write_tile(translate(batches, given), x86_with(*features)).form
    a, b = numbers(TORCH[dtype], 2, 16, 64), numbers(TORCH[dtype], 2, 64, 32, seed=1)
    c = torch.empty(2, 16, 32, dtype=torch.int32)
    pointers = [x for x in nest.buffers if x.pointer]
    arrays = {p.name: in_memory(x).reshape(-1) for p, x in zip(pointers, (a, b, c))}
    run(nest, arrays, {x.name: 1 for x in nest.dims})
    agrees(c, a, b)


@tw.jit
def read_both_ways(q, k, out, T, N: tl.constexpr):
    """A tile that is the first operand of one product and the second of another."""
    r = tl.arange(0, N)
    total = tl.zeros((N, N), tl.float32)
    for first in range(0, T, N):
        x = tl.load(q + (first + r)[:, None] * N + r[None, :])
        y = tl.load(k + (first + r)[:, None] * N + r[None, :])
        total = tl.dot(tl.dot(x, y), x, total)
    tl.store(out + r[:, None] * N + r[None, :], total)


@tw.jit
def read_across(q, k, out, T, N: tl.constexpr):
    """A tile from before the loop, turned round."""
    r = tl.arange(0, N)
    total = tl.zeros((N, N), tl.float32)
    y = tl.load(k + r[:, None] * N + r[None, :])
    for first in range(0, T, N):
        total += tl.dot(tl.load(q + (first + r)[:, None] * N + r[None, :]), tl.trans(y))
    tl.store(out + r[:, None] * N + r[None, :], total)


@pytest.mark.parametrize("kernel", [read_both_ways, read_across])
def test_operands_that_others_read_too_are_multiplied_by_instructions(kernel: tw.JITFunction):
    q, k, out = torch.randn(96, 32), torch.randn(96, 32), torch.empty(32, 32)
    with tw.record() as log:
        compiled = kernel[(1,)](q, k, out, 96, N=32)
    assert not [e for e in log if "no instruction" in str(e)], compiled.asm["nest"]
    x, y = (t.double().view(3, 32, 32) for t in (q, k))
    exact = (x @ y @ x if kernel is read_both_ways else x @ y[0].T).sum(0)
    assert torch.allclose(out.double(), exact, atol=1e-3)


def test_a_product_without_an_instruction_is_reported():
    a, c = torch.ones(16, 16, dtype=torch.float64), torch.empty(16, 16, dtype=torch.float64)
    with tw.record() as log:
        product[(1, 1)](a, a, c, 16, 16, 16, BM=16, BN=16, BK=16, ACC=tl.float64)
    assert any("f64) runs by no instruction" in str(e) for e in log)
    assert (c == 16).all()


@tw.jit
def rest_of_rows(x, y, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, tl.load(x + i, i < n, 0) + tl.load(x + i * 3, i < n, 0), i < n)


@pytest.mark.parametrize(
    "target, masks",
    [(x86_with(*V2), False), (x86_with(*V3), True), (x86_with(*V4), True), (arm64_with(), False)],
    ids=["sse", "avx2", "avx512", "neon"],
)
def test_lanes_one_by_one_are_a_function_where_a_machine_has_no_masks(target, masks: bool):
    pointer = Argument.pointer(DTYPES["f32"])
    size = {"n": Argument.scalar(DTYPES["i32"]), "N": Argument.constant(256)}
    text = write_tile(translate(rest_of_rows, {"x": pointer, "y": pointer, **size}), target).llir
    assert ("define internal" in text and "@tw.masked.load" in text) is not masks
    assert assembly(text, target)
