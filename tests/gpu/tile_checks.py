"""Tile kernels on a GPU: those of the tests, and some beside Triton with the same source."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import tilewright as tw
from tests.gpu import random_tiles
from tests.gpu.tile_kernels import load
from tests.gpu.timing import host_seconds, medians
from tests.lang.tile.kernels import CASES, Case
from tilewright.kernel.defaults import grid_tile_copies, grid_tile_layouts, grid_tiles

Found = dict[str, Any]


def run_case(c: Case) -> Found:
    """A kernel of the tests on CUDA tensors, against what it has to compute."""
    values = c.values(np.random.default_rng(0))
    want = c.expected({n: x.copy() if isinstance(x, np.ndarray) else x for n, x in values.items()})
    f = tw.jit(c.function.fn)
    given = {n: _there(x) for n, x in values.items()}
    f[c.grid](**given)
    torch.cuda.synchronize()
    for name, w in want.items():
        np.testing.assert_allclose(given[name].cpu().numpy(), w, rtol=c.rtol, atol=c.atol)
    return {}


def _there(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return torch.from_numpy(x.copy()).cuda()
    return tuple(map(_there, x)) if isinstance(x, tuple) else x


def kernels_of_tests() -> Found:
    wrong: list[str] = []
    for name, c in CASES.items():
        try:
            run_case(c)
        except Exception as problem:
            wrong.append(f"{name}: {type(problem).__name__} {str(problem)[:300]}")
    if wrong:
        raise AssertionError(f"{len(wrong)} of {len(CASES)}: " + "; ".join(wrong))
    return {"kernels": len(CASES)}


def random_kernels(first: int, count: int, seconds: float) -> Found:
    """Random kernels do on the GPU what they do on the processor and step by step."""
    found = random_tiles.run(first, count, seconds)
    if found.wrong:
        shown = "; ".join(f"{seed}: {said[:200]}" for seed, said in found.wrong.items())
        raise AssertionError(f"{found.summary()}: {shown}")
    return {"kernels": len(found.done)}


# ---- beside Triton


def beside(
    launch: Callable[[Any], Callable[[], Any]],
    out: torch.Tensor,
    want: torch.Tensor,
    tolerance: float,
    others: dict[str, Callable[[], Any]] | None = None,
) -> Found:
    """Times of a kernel of tile_kernels.py by both compilers, once its result is right."""
    ours = launch(load(False))
    out.fill_(float("nan"))
    ours()
    torch.cuda.synchronize()
    error = float((out.double() - want.double()).norm() / want.double().norm())
    assert error < tolerance, f"off by {error:.2e} of the norm, {tolerance:.0e} is allowed"
    timed: dict[str, Callable[[], Any]] = {"ours": ours, **(others or {})}
    if find_spec("triton") is not None:
        other = launch(load(True))
        try:
            other()
            timed["triton"] = other
        except Exception as problem:  # not all that descriptors may do, it does on every GPU
            print(f"not by Triton: {' '.join(str(problem).split())[:200]}")
    found = medians({name: [call] for name, call in timed.items()})
    took = {f"{name}_us": 1e6 * t for name, t in found.items() if name != "ours"}
    ratios = {f"of_{name}": t / found["ours"] for name, t in found.items() if name != "ours"}
    host = 1e6 * host_seconds(ours)
    facts = ", ".join(f"{name} of {other}" for other, name in _shown(ratios).items())
    all_found = {"us": 1e6 * found["ours"], "error": error, "host_us": host, **took, **ratios}
    return {**all_found, "facts": facts}


def _shown(ratios: dict[str, float]) -> dict[str, str]:
    return {name.removeprefix("of_"): f"{x:.2f}" for name, x in ratios.items()}


def add(n: int = 1 << 26) -> Found:
    x, y = torch.randn(n, device="cuda"), torch.randn(n, device="cuda")
    out = torch.empty_like(x)
    grid = (tw.cdiv(n, 1024),)
    return beside(
        lambda m: lambda: m.add_kernel[grid](x, y, out, n, BLOCK=1024),
        out, x + y, 1e-7, {"eager": lambda: torch.add(x, y, out=out)},
    )  # fmt: skip


def softmax(rows: int, columns: int, dtype: torch.dtype = torch.float32, warps: int = 8) -> Found:
    x = torch.randn(rows, columns, device="cuda", dtype=dtype)
    out = torch.empty_like(x)
    block = tw.next_power_of_2(columns)

    def launch(m: Any) -> Callable[[], Any]:
        return lambda: m.softmax_kernel[(rows,)](
            x, out, x.stride(0), out.stride(0), columns, BLOCK=block, num_warps=warps
        )

    near = 1e-6 if dtype is torch.float32 else 4e-3
    others = {"eager": lambda: torch.softmax(x, -1, out=out)}
    return beside(launch, out, torch.softmax(x.double(), -1), near, others)


def layernorm(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> Found:
    x = torch.randn(rows, columns, device="cuda", dtype=dtype)
    w, b = (torch.randn(columns, device="cuda", dtype=dtype) for _ in range(2))
    out = torch.empty_like(x)
    block = tw.next_power_of_2(columns)

    def launch(m: Any) -> Callable[[], Any]:
        return lambda: m.layernorm_kernel[(rows,)](
            x, out, w, b, x.stride(0), columns, 1e-5, BLOCK=block, num_warps=8
        )

    near = 1e-6 if dtype is torch.float32 else 4e-3
    want = torch.nn.functional.layer_norm(x.double(), (columns,), w.double(), b.double(), 1e-5)
    eager = lambda: torch.nn.functional.layer_norm(x, (columns,), w, b, 1e-5)  # noqa: E731
    return beside(launch, out, want, near, {"eager": eager})


def matmul(
    m: int,
    n: int,
    k: int,
    block: tuple[int, int, int],
    dtype: torch.dtype,
    warps: int,
    stages: int,
    turned: bool = False,
    precision: str | None = None,
) -> Found:
    """Tutorial 3's; `turned`: the second operand's columns are adjacent in memory."""
    a = torch.randn(m, k, device="cuda", dtype=dtype)
    b = torch.randn(*((n, k) if turned else (k, n)), device="cuda", dtype=dtype)
    b = b.T if turned else b
    c = torch.empty(m, n, device="cuda", dtype=dtype)
    grid = (tw.cdiv(m, block[0]) * tw.cdiv(n, block[1]),)

    def launch(of: Any) -> Callable[[], Any]:
        return lambda: of.matmul_kernel[grid](
            a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride(),
            *block, 8, precision, num_warps=warps, num_stages=stages,
        )  # fmt: skip

    others = {"eager": lambda: torch.mm(a, b, out=c)}
    return beside(launch, c, a.double() @ b.double(), 5e-3, others)


def matmul_variants(
    size: int,
    block: tuple[int, int, int],
    warps: int,
    stages: int,
    dtype: torch.dtype | None = None,
) -> Found:
    """How many versions of operands there are, whether a product goes on while the next iteration
    begins, and whether copies have whole rows of 128 bytes: as chosen by default, with one version
    more, without the product going on, with copies of 64 bytes of a row, with copies at the
    beginning of an iteration, with results stored in pairs, and with as many versions as a launch
    asks for where three leave room for a second block."""
    kind = dtype or bf16
    a, b = (torch.randn(size, size, device="cuda", dtype=kind) for _ in range(2))
    c, grid = torch.empty_like(a), (tw.cdiv(size, block[0]) * tw.cdiv(size, block[1]),)
    calls: dict[str, list[Callable[[], Any]]] = {}
    for name, slack, denser, late, parts in (
        ("chosen", 1, True, True, True),
        ("more", 1, False, True, True),
        ("waiting", 0, True, True, True),
        ("half rows", 1, True, True, False),
        ("early", 1, True, False, True),
        ("pairs", 1, True, True, True),
        ("not crowded", 1, True, True, True),
    ):
        gather, crowded = name != "pairs", name != "not crowded"
        chosen = patch.multiple(grid_tiles, SLACK=slack, DENSER=denser, LATE=late, GATHER=gather)
        crowd = patch.object(grid_tiles, "CROWDED", crowded)
        with chosen, crowd, patch.object(grid_tile_layouts, "PARTS", parts), uncached():
            f = tw.jit(load(False).matmul_kernel.fn)
            call = partial(
                f[grid], a, b, c, size, size, size, size, 1, size, 1, size, 1, *block, 8,
                num_warps=warps, num_stages=stages,
            )  # fmt: skip
            call()
        error = float((c.double() - a.double() @ b.double()).norm() / c.double().norm())
        assert error < 5e-3, f"{name} is off by {error:.2e} of the norm"
        calls[name] = [call]
    took = {name: 1e6 * t for name, t in medians(calls).items()}
    facts = ", ".join(f"{name} {t:.1f} us" for name, t in took.items())
    return {"facts": facts, **{f"{name}_us": t for name, t in took.items()}}


Size = tuple[int, int, int]


def fresh(m: Any) -> Any:
    """The kernels of a module with nothing compiled yet."""
    made = {n: tw.jit(f.fn) if isinstance(f, tw.JITFunction) else f for n, f in vars(m).items()}
    return SimpleNamespace(**made)


def described(
    sizes: Size,
    block: Size,
    warps: int,
    stages: int,
    turned: bool = True,
    specialise: bool = False,
    walks: int = 0,
) -> Found:
    """A product by tensor descriptors: made by the kernel, or by the host where so many blocks walk
    over all tiles."""
    a, b, c, launch = _described(sizes, block, turned, specialise, walks)
    options = {"num_warps": warps, "num_stages": stages}
    others = {"eager": lambda: torch.mm(a, b.T if turned else b, out=c)}
    want = a.double() @ (b.T if turned else b).double()
    return beside(lambda of: partial(launch, of, **options), c, want, 5e-3, others)


def _described(
    sizes: Size, block: Size, turned: bool, specialise: bool, walks: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Callable[..., Any]]:
    """Operands, results, and a function that launches a product of them by a module's kernel."""
    m, n, k = sizes
    a = torch.randn(m, k, device="cuda", dtype=bf16)
    b = torch.randn(*((n, k) if turned else (k, n)), device="cuda", dtype=bf16)
    c = torch.empty(m, n, device="cuda", dtype=bf16)
    i, j, deep = block
    assert turned or not walks

    def launch(of: Any, **options: Any) -> Any:
        if not walks:
            tiles = tw.cdiv(m, i) * tw.cdiv(n, j)
            steps = (k, b.stride(0), n)
            return of.described_kernel[(tiles,)](
                a, b, c, m, n, k, *steps, *block, turned, specialise, **options
            )
        boxes = ((a, (i, deep)), (b, (j, deep)), (c, (i, j)))
        arrays = [of.TensorDescriptor.from_tensor(x, list(box)) for x, box in boxes]
        return of.described_by_host_kernel[(walks,)](
            *arrays, m, n, k, *block, 8, specialise, **options
        )

    return a, b, c, launch


def described_variants(size: int, block: Size, warps: int, stages: int, walks: int = 0) -> Found:
    """The same product with copies of the copy engine, with copies of threads, with a warp that
    issues copies, with copies at the beginning of an iteration, without a product that goes on
    while the next iteration begins, and with results that are not gathered where operands are
    brought again."""
    calls: dict[str, list[Callable[[], Any]]] = {}
    gathered = [
        ("not gathered", False, False, True, 1),
        ("not gathered roles", False, True, True, 1),
    ]
    for name, off, specialise, late, slack in (
        ("engine", False, False, True, 1),
        ("threads", True, False, True, 1),
        ("roles", False, True, True, 1),
        ("early", False, False, False, 1),
        ("waiting", False, False, True, 0),
        *(gathered if walks else ()),
    ):
        sizes = (size, size, size)
        a, b, c, launch = _described(sizes, block, True, specialise, walks)
        beside_ = not name.startswith("not gathered")
        chosen = patch.multiple(grid_tiles, LATE=late, SLACK=slack, GATHER_BESIDE=beside_)
        with chosen, patch.object(grid_tile_copies, "OFF", off), uncached():
            call = partial(launch, fresh(load(False)), num_warps=warps, num_stages=stages)
            call()
        error = float((c.double() - a.double() @ b.double().T).norm() / c.double().norm())
        assert error < 5e-3, f"{name} is off by {error:.2e} of the norm"
        calls[name] = [call]
    took = {name: 1e6 * t for name, t in medians(calls).items()}
    facts = ", ".join(f"{name} {t:.1f} us" for name, t in took.items())
    return {"facts": facts, **{f"{name}_us": t for name, t in took.items()}}


def described_attention(
    heads: int, n: int, dim: int, block: tuple[int, int], warps: int, specialise: bool = False
) -> Found:
    q, k, v = (torch.randn(1, heads, n, dim, device="cuda", dtype=bf16) for _ in range(3))
    out = torch.empty_like(q)

    def launch(of: Any) -> Callable[[], Any]:
        rows = [(q, block[0]), (k, block[1]), (v, block[1]), (out, block[0])]
        arrays = [
            of.TensorDescriptor.from_tensor(x.view(heads * n, dim), [size, dim]) for x, size in rows
        ]
        return lambda: of.described_attention_kernel[(n // block[0], heads)](
            *arrays, n, dim**-0.5, *block, dim, specialise, num_warps=warps, num_stages=3
        )

    eager = lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)  # noqa: E731
    return beside(launch, out, eager(), 2e-2, {"eager": eager})


@contextmanager
def uncached() -> Iterator[None]:
    """What is compiled here is not in the disk cache, and does not get there."""
    with TemporaryDirectory() as folder, patch.dict(os.environ, TILEWRIGHT_CACHE_DIR=folder):
        yield


def attention(
    heads: int,
    n: int,
    dim: int,
    causal: bool,
    block: tuple[int, int] = (64, 64),
    warps: int = 4,
    stages: int = 3,
) -> Found:
    q, k, v = (torch.randn(1, heads, n, dim, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    out = torch.empty_like(q)
    scale = dim**-0.5

    def launch(of: Any) -> Callable[[], Any]:
        return lambda: of.attention_kernel[(n // block[0], heads)](
            q, k, v, out, n, scale, *block, dim, causal, num_warps=warps, num_stages=stages
        )

    first, second, third = (x[:, :2].double() for x in (q, k, v))
    attend = torch.nn.functional.scaled_dot_product_attention
    want = attend(first, second, third, is_causal=causal)
    found = launch(load(False))
    found()
    error = float((out[:, :2].double() - want).norm() / want.norm())
    assert error < 1e-2, f"off by {error:.2e} of the norm"
    eager = lambda: attend(q, k, v, is_causal=causal)  # noqa: E731
    return beside(launch, out, eager(), 2e-2, {"eager": eager})


bf16 = torch.bfloat16
CHECKS: dict[str, Callable[[], Found]] = {
    "tile kernels of the tests": kernels_of_tests,
    "random tile kernels": lambda: random_kernels(0, 2000, 60.0),
    "tile add 2^26": add,
    "tile softmax f32 8192x4096": lambda: softmax(8192, 4096),
    "tile softmax bf16 8192x4096": lambda: softmax(8192, 4096, bf16),
    "tile softmax f32 8191x4099": lambda: softmax(8191, 4099),
    "tile softmax f32 4096x781": lambda: softmax(4096, 781, warps=4),
    "tile layernorm f32 8192x4096": lambda: layernorm(8192, 4096),
    "tile layernorm bf16 8192x4096": lambda: layernorm(8192, 4096, bf16),
    # Where a kernel does not say, Triton rounds to tf32, and this language does not.
    "tile matmul f32 1024": lambda: matmul(
        1024, 1024, 1024, (64, 64, 32), torch.float32, 4, 3, precision="ieee"
    ),
    "tile matmul tf32 2048": lambda: matmul(
        2048, 2048, 2048, (128, 128, 32), torch.float32, 8, 3, precision="tf32"
    ),
    "tile matmul tf32x3 2048": lambda: matmul(
        2048, 2048, 2048, (64, 64, 32), torch.float32, 4, 3, precision="tf32x3"
    ),
    "tile matmul bf16 4096": lambda: matmul(4096, 4096, 4096, (128, 128, 64), bf16, 8, 3),
    "tile matmul bf16 4096 by 256": lambda: matmul(4096, 4096, 4096, (128, 256, 64), bf16, 8, 3),
    "tile matmul bf16 8192 by 256": lambda: matmul(8192, 8192, 8192, (128, 256, 64), bf16, 8, 3),
    "tile matmul bf16 4096 turned": lambda: matmul(
        4096, 4096, 4096, (128, 256, 64), bf16, 8, 3, True
    ),
    "tile matmul f16 2048 by 4 warps": lambda: matmul(
        2048, 2048, 2048, (128, 128, 64), torch.float16, 4, 4
    ),
    "tile matmul bf16 4096 by 32": lambda: matmul(4096, 4096, 4096, (128, 128, 32), bf16, 4, 4),
    "tile matmul bf16 4000x4088x4104": lambda: matmul(4000, 4088, 4104, (128, 128, 64), bf16, 8, 3),
    "tile matmul variants 128x128": lambda: matmul_variants(4096, (128, 128, 64), 8, 3),
    "tile matmul variants 128x256": lambda: matmul_variants(4096, (128, 256, 64), 8, 3),
    "tile matmul variants 64x128": lambda: matmul_variants(4096, (64, 128, 64), 4, 4),
    "tile matmul variants f16 2048 by 4 warps": lambda: matmul_variants(
        2048, (128, 128, 64), 4, 4, torch.float16
    ),
    "tile matmul variants by 32": lambda: matmul_variants(4096, (128, 128, 32), 4, 4),
    "tile described matmul bf16 4096": lambda: described((4096, 4096, 4096), (128, 256, 64), 8, 3),
    "tile described matmul bf16 4096 not turned": lambda: described(
        (4096, 4096, 4096), (128, 256, 64), 8, 3, turned=False
    ),
    "tile described matmul bf16 4000x4088x4104": lambda: described(
        (4000, 4088, 4104), (128, 128, 64), 8, 3
    ),
    "tile described matmul bf16 4096 by 32": lambda: described(
        (4096, 4096, 4096), (128, 128, 32), 4, 4
    ),
    "tile specialised matmul bf16 4096": lambda: described(
        (4096, 4096, 4096), (128, 256, 64), 8, 3, specialise=True
    ),
    "tile walking matmul bf16 4096": lambda: described(
        (4096, 4096, 4096), (128, 256, 64), 8, 3, walks=132
    ),
    "tile walking specialised matmul bf16 4096": lambda: described(
        (4096, 4096, 4096), (128, 256, 64), 8, 3, specialise=True, walks=132
    ),
    "tile walking specialised matmul bf16 8192": lambda: described(
        (8192, 8192, 8192), (128, 256, 64), 8, 3, specialise=True, walks=132
    ),
    "tile described variants 128x256": lambda: described_variants(4096, (128, 256, 64), 8, 3),
    "tile described variants 128x128": lambda: described_variants(4096, (128, 128, 64), 8, 3),
    "tile walking variants 128x256": lambda: described_variants(4096, (128, 256, 64), 8, 3, 132),
    "tile described attention bf16 128x2048x64": lambda: described_attention(
        128, 2048, 64, (128, 64), 8
    ),
    "tile described attention bf16 64x4096x128": lambda: described_attention(
        64, 4096, 128, (128, 64), 8
    ),
    "tile specialised attention bf16 64x4096x128": lambda: described_attention(
        64, 4096, 128, (128, 64), 8, specialise=True
    ),
    "tile attention bf16 16x2048x64": lambda: attention(16, 2048, 64, False),
    "tile causal attention bf16 16x2048x64": lambda: attention(16, 2048, 64, True),
    "tile attention bf16 128x2048x64": lambda: attention(128, 2048, 64, False, (128, 64), 8),
    "tile attention bf16 64x4096x128": lambda: attention(64, 4096, 128, False, (128, 64), 8),
    "tile attention bf16 64x4096x128 by 128": lambda: attention(
        64, 4096, 128, False, (128, 128), 8, 2
    ),
    "tile causal attention bf16 64x4096x128": lambda: attention(64, 4096, 128, True, (128, 64), 8),
}
