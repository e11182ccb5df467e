"""What tile kernels read by tensor descriptors: brought by the copy engine on sm_90a, with and
without a warp that issues the copies; by plain loads elsewhere, which is said."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import tilewright as tw
import tilewright.language as tl
from tests.gpu.assembler import assemble, needs_ptxas
from tests.gpu.fake_tiles import there, tile_gpu
from tests.gpu.tile_checks import fresh
from tests.gpu.tile_kernels import load
from tests.kernel.test_distribute import described, numbers
from tests.kernel.test_group_tiles import near, run_broken, without
from tests.lang.tile.threads_running import run_emulated, run_threads, scheduled
from tests.seeds import drawn, every_run
from tilewright.base.errors import Refused
from tilewright.driver.looking.gpu_tile_explain import notes
from tilewright.ir.types import bf16, from_memory
from tilewright.kernel.check import verify
from tilewright.kernel.defaults.grid_tiles import schedule_tile_grid
from tilewright.kernel.interpret import RunError
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import Acquire, Barrier, Commit, Release, Stmt, Wait
from tilewright.kernel.step import apply, parse_trace, print_trace
from tilewright.kernel.steps.barrier import Synchronise
from tilewright.kernel.steps.distribute import Distribute
from tilewright.kernel.steps.pipeline import Pipeline
from tilewright.kernel.steps.roles import Roles
from tilewright.kernel.text import nest_text, parse_nest
from tilewright.lang.tile.front.frontend import translate
from tilewright.lang.tile.ir import Kernel
from tilewright.lang.tile.lowering.lower import lower
from tilewright.llvm.grid import emit_kernels
from tilewright.llvm.objects import cached_ptx
from tilewright.targets.nvptx import for_capability

TARGET = for_capability(90)


def product(
    sizes: tuple[int, int, int],
    block: tuple[int, int, int],
    turned: bool = True,
    specialise: bool = False,
    wider: int = 0,
) -> tuple[Kernel, list[Any], np.ndarray]:
    """A product by descriptors that the kernel makes, rows of all arrays so much longer."""
    m, n, k = sizes
    shapes = {"a": (m, k), "b": (n, k) if turned else (k, n), "c": (m, n)}
    made = {x: numbers(rows, columns + wider) for x, (rows, columns) in shapes.items()}
    steps = {f"{x}{'mnm'[j]}": y.shape[1] for j, (x, y) in enumerate(made.items())}
    given = {**made, "M": m, "N": n, "K": k, **steps}
    blocks = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), block, strict=True))
    about = {**blocks, "TURNED": turned, "SPECIALISE": specialise}
    kernel = translate(load(False).described_kernel, described(**given, **about))
    values = [x.reshape(-1) if isinstance(x, np.ndarray) else x for x in given.values()]
    a, b = (from_memory(made[x], bf16)[:, : shapes[x][1]].astype(np.float64) for x in ("a", "b"))
    return kernel, values, a @ (b.T if turned else b)


def judged(values: list[Any], want: np.ndarray, wider: int = 0) -> None:
    m, n = want.shape
    near(np.ascontiguousarray(values[2].reshape(m, n + wider)[:, :n]), want)


# ---- right


class Case(NamedTuple):
    sizes: tuple[int, int, int]
    block: tuple[int, int, int]
    turned: bool
    specialise: bool
    wider: int

    @property
    def programs(self) -> int:
        return -(-self.sizes[0] // self.block[0]) * -(-self.sizes[1] // self.block[1])


cases = pytest.mark.parametrize(
    "case",
    [
        Case((72, 64, 96), (64, 64, 64), True, False, 0),  # ends inside a tile: zeros are brought
        Case((64, 64, 96), (64, 64, 32), False, True, 16),  # short rows, longer ones in memory
        pytest.param(Case((64, 72, 96), (64, 64, 32), False, False, 16), marks=pytest.mark.slow),
        pytest.param(Case((64, 64, 320), (64, 64, 64), True, True, 0), marks=pytest.mark.slow),
    ],
)


@cases
def test_products_are_right(case: Case) -> None:
    kernel, values, want = product(*case)
    text = nest_text(scheduled(kernel)[1])
    assert text.count("by nvptx.bulk.2.bf16") >= 2 and ("acquire" in text) is case.specialise
    run_threads(kernel, (case.programs,), values)
    judged(values, want, case.wider)


@cases
def test_code_of_products_is_right(case: Case) -> None:
    kernel, values, want = product(*case)
    run_emulated(kernel, (case.programs,), values)
    judged(values, want, case.wider)


@pytest.mark.parametrize("seed", drawn(range(40), 1))
def test_products_of_drawn_sizes(seed: int) -> None:
    r = random.Random(seed)
    print(f"seed {seed}")
    m, n, k = (16 * r.randint(1, 10) for _ in range(3))
    block = (64, 64, r.choice([32, 64]))
    turned, specialise = r.random() < 0.5, r.random() < 0.5
    wider = r.choice([0, 16, 48])
    kernel, values, want = product((m, n, k), block, turned, specialise, wider)
    assert "by nvptx.bulk.2.bf16" in nest_text(scheduled(kernel)[1])
    run_emulated(kernel, (-(-m // block[0]) * -(-n // block[1]),), values)
    judged(values, want, wider)


def torch_numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).bfloat16()


@every_run(1)
@pytest.mark.parametrize("specialise", [False, True])
def test_descriptors_of_the_host(monkeypatch: pytest.MonkeyPatch, specialise: bool) -> None:
    """Launched as on a GPU, with tensor maps; two blocks walk over four tiles. Maps are made once
    for an address."""
    m, n, k = 72, 80, 96
    a, b, c = torch_numbers(m, k), torch_numbers(n, k), torch.zeros(m, n).bfloat16()
    f = fresh(load(False)).described_by_host_kernel
    with tile_gpu(monkeypatch) as library:
        given = [tw.TensorDescriptor.from_tensor(there(x), [64, 64]) for x in (a, b, c)]
        for _ in range(2):
            made = f[(2,)](*given, m, n, k, 64, 64, 64, 2, specialise)
        assert library.calls.count("cuTensorMapEncodeTiled") == 2
    assert "by nvptx.bulk.2.bf16" in made.asm["nest"]
    assert ("Roles(" in made.asm["trace"]) is specialise
    torch.testing.assert_close(c.double(), a.double() @ b.double().T, rtol=2e-2, atol=2e-1)


@pytest.mark.slow
def test_attention_by_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    n, dim = 128, 64
    q, k, v, out = (torch_numbers(n, dim) for _ in range(4))
    f = fresh(load(False)).described_attention_kernel
    with tile_gpu(monkeypatch):
        given = [tw.TensorDescriptor.from_tensor(there(x), [64, 64]) for x in (q, k, v, out)]
        made = f[(2, 1)](*given, n, 0.125, 64, 64, dim, True)
    assert made.asm["nest"].count("by nvptx.bulk.2.bf16") == 2
    weights = torch.softmax(q.double() @ k.double().T * 0.125, 1)
    torch.testing.assert_close(out.double(), weights @ v.double(), rtol=2e-2, atol=3e-2)


# ---- what is said, and what is refused


def test_the_trace_says_it_all() -> None:
    kernel, _, _ = product((128, 128, 256), (64, 64, 64), specialise=True)
    n = lower(kernel, threads=True).nest
    assert "described a_0, described b_1" in nest_text(n) and "specialised for0" in nest_text(n)
    trace, nest = schedule_tile_grid(n, TARGET, 4)
    assert nest_text(apply(n, parse_trace(print_trace(trace)))) == nest_text(nest)
    assert parse_nest(nest_text(nest)) == nest
    verify(nest)


@tw.jit
def stored_kernel(a, b, c, K, SIZE: tl.constexpr):
    """Writes to what it reads by a descriptor."""
    A = tl.make_tensor_descriptor(a, [SIZE, K], [K, 1], [SIZE, SIZE])
    i = tl.arange(0, SIZE)
    tl.store(a + i, i.to(tl.bfloat16))
    sums = tl.zeros((SIZE, SIZE), dtype=tl.float32)
    for k in range(0, K, SIZE):
        y = tl.load(b + (k + i)[:, None] * SIZE + i[None, :])
        sums = tl.dot(A.load([0, k]), y, sums)
    tl.store(c + i[:, None] * SIZE + i[None, :], sums.to(tl.bfloat16))


def said(kernel: Kernel, capability: int = 90, near_: tuple[str, ...] = ()) -> list[str]:
    target = for_capability(capability)
    n = lower(kernel, threads=True).nest
    trace, nest = schedule_tile_grid(n, target, 4, near=near_)
    assert "nvptx.bulk" not in nest_text(nest)
    return list(notes(n, trace, target))


def test_plain_loads_are_said() -> None:
    kernel, _, _ = product((64, 64, 128), (64, 64, 64), specialise=True)
    older = said(kernel, 80)
    assert any("no copy engine" in x for x in older)
    assert any("no warp of its own" in x for x in older)
    near_ = said(kernel, near_=("a_0 c_2", "b_1 c_2"))
    assert any("c_2 is written, which may be the memory" in x for x in near_)
    few, _, _ = product((64, 64, 128), (32, 64, 64))
    assert any("no operand of a product by groups" in x for x in said(few))
    odd, _, _ = product((64, 60, 60), (64, 64, 64))
    assert any("multiples of 16 bytes" in x for x in said(odd))
    given = {"a": numbers(64, 64), "b": numbers(64, 64), "c": numbers(64, 64), "K": 64}
    own = translate(stored_kernel, described(**given, SIZE=64))
    assert any("a_0 is written" in x for x in said(own))


def test_misuse_is_refused() -> None:
    kernel, _, _ = product((64, 64, 256), (64, 64, 64))
    n = lower(kernel, threads=True).nest
    trace, nest = schedule_tile_grid(n, TARGET, 4)
    with pytest.raises(Refused, match="the copy engine reads a_0"):
        Synchronise(near=("a_0 c_2",), tiles=True).apply(nest)
    at = next(k for k, x in enumerate(trace) if isinstance(x, Distribute))
    before, share = apply(n, trace[:at]), trace[at]
    assert isinstance(share, Distribute)
    products = tuple(x.replace("bulk.2", "bulk.3") for x in share.products)
    with pytest.raises(Refused, match="it has 2 axes, not 3"):
        replace(share, products=products).apply(before)


@tw.jit
def counted_kernel(a, b, c, counts, K, SIZE: tl.constexpr):
    A = tl.make_tensor_descriptor(a, [SIZE, K], [K, 1], [SIZE, SIZE])
    B = tl.make_tensor_descriptor(b, [SIZE, K], [K, 1], [SIZE, SIZE])
    i = tl.arange(0, SIZE)
    sums = tl.zeros((SIZE, SIZE), dtype=tl.float32)
    for k in range(0, tl.load(counts).to(tl.int32), SIZE):
        sums = tl.dot(A.load([0, k]), B.load([0, k]).T, sums)
    tl.store(c + i[:, None] * SIZE + i[None, :], sums.to(tl.bfloat16))


def test_a_producer_computes_nothing() -> None:
    """How often it copies has to be known without it."""
    given = {x: numbers(64, 64) for x in ("a", "b", "c", "counts")}
    kernel = translate(counted_kernel, described(**given, K=64, SIZE=64))
    n = lower(kernel, threads=True).nest
    trace, _ = schedule_tile_grid(n, TARGET, 4)
    at = next(k for k, x in enumerate(trace) if isinstance(x, Distribute))
    loop = next(x.loop for x in trace if isinstance(x, Pipeline))
    with pytest.raises(Refused, match="a producer computes nothing"):
        Roles(loop, 3).apply(apply(n, trace[: at + 1]))


@pytest.mark.parametrize(
    ("specialise", "kind", "says"),
    [
        (True, Wait, "still reads it"),
        (True, Acquire, "no barrier between"),
        (True, Release, "nothing goes on"),
        (False, Barrier, "no barrier between"),
        (False, Commit, "is in flight"),
    ],
)
def test_planted_faults_are_found(specialise: bool, kind: type[Stmt], says: str) -> None:
    kernel, values, _ = product((64, 64, 320), (64, 64, 64), specialise=specialise)
    nest = scheduled(kernel)[1]
    with pytest.raises(RunError, match=says):
        run_broken(without(nest, kind, 0), kernel, values)


# ---- code


@every_run(1)
@needs_ptxas
@pytest.mark.parametrize("specialise", [False, True])
def test_large_tiles_fit(specialise: bool) -> None:
    """Sums of 128x256 in the registers of 256 threads, and nothing spilled."""
    kernel, _, _ = product((256, 256, 256), (128, 256, 64), specialise=specialise)
    made = emit_kernels(legalise(scheduled(kernel, 8)[1], TARGET), TARGET)
    (found,) = assemble(cached_ptx(made.text, TARGET), TARGET.cpu)
    assert found.spilled == 0 and made.text.count("cp.async.bulk.tensor.2d") >= 2
