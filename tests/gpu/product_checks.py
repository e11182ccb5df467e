"""Matrix products on a GPU: right, and timed beside cuBLAS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from tests.gpu.random_products import Product
from tests.gpu.timing import medians
from tests.graph.build import arg, build, graph
from tilewright import targets
from tilewright.driver.program.grid_run import GridKernel, GridProgram, target_of
from tilewright.ir.node import Graph
from tilewright.ir.types import DType, bf16, f32
from tilewright.kernel.defaults import grid_group_products, grid_thread_products
from tilewright.kernel.defaults.grid_group_products import BLOCK
from tilewright.kernel.defaults.grid_warp_products import Way
from tilewright.kernel.interpret import run_group
from tilewright.kernel.nest import Loop, walk
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.steps.tensorize import Tensorize
from tilewright.kernel.text import parse_group
from tilewright.runtime.cuda.device import device
from tilewright.targets.nvptx import with_numbers

TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
OLDER = ("cuda:75", "cuda:80")  # whose code newer GPUs run too


def exact_products(products: list[tuple[Product, int, str]]) -> set[str]:
    """Products of numbers whose sums are exact, each for a GPU of so many multiprocessors and for
    an older target than this one, or "" for its own; the instructions that did them."""
    on, used = device(0), set[str]()
    for p, multiprocessors, name in products:
        older = targets.get(name) if name in OLDER else target_of(on)
        target = with_numbers(older, multiprocessors=multiprocessors)
        trace, nest = default_schedule(p.group(), target)
        used |= {str(s.instruction) for s in trace if isinstance(s, Tensorize)}
        given = p.arguments()
        want = run_group(p.group(), given)["y"].astype("d")
        kind = TYPES[p.dtype]
        ins = {x: torch.from_numpy(v.astype("f")).cuda().to(kind) for x, v in given.items()}
        y = torch.full(want.shape, float("nan"), device="cuda", dtype=kind)
        k = GridKernel(nest, target, on)
        for _ in range(3):
            y.fill_(float("nan"))
            k({**ins, "y": y}, {}, torch.cuda.current_stream().cuda_stream)
            got = y.double().cpu().numpy()
            if not np.array_equal(got, want):
                bad = np.argwhere(got != want)
                at = tuple(bad[0])
                raise AssertionError(
                    f"{p}: {len(bad)} of {got.size} are wrong, the first at {at}: {got[at]} "
                    f"instead of {want[at]}"
                )
    return used


ORDERS = ((False, False), (False, True), (True, False), (True, True))


def group_products() -> dict[str, Any]:
    """By groups of warps, operands in every order, tiles of every size."""
    used = exact_products(_every())
    groups = sorted(x for x in used if "wgmma" in x)
    assert len(groups) >= 8, f"few products are done by groups of warps: {groups}"
    return {"facts": ", ".join(sorted(used))}


def _every() -> list[tuple[Product, int, str]]:
    out: list[tuple[Product, int, str]] = []
    for across in ORDERS:
        out.append((Product(256, 512, 448, across=across, epilogue="bias"), 1, ""))
        out.append((Product(128, 128, 128, across=across, dtype="f16", batch=3), 1, ""))
        out.append((Product(128, 256, 64, across=across), 64, ""))
        # Sizes that no tile divides; a long sum in parts.
        out.append((Product(200, 136, 264, across=across, epilogue="bias", batch=2), 4, ""))
        out.append((Product(72, 104, 2056, across=across, epilogue="relu"), 64, ""))
    return out


# Numbers of default schedules: rows and columns of a block by its groups of warps, parts of sums,
# blocks that share copies, blocks of a multiprocessor.
Variant = dict[str, Any]


def _tiles(rows: int, columns: int) -> dict[int, tuple[tuple[int, int, int, int], ...]]:
    """One tile alone."""
    found: dict[int, tuple[tuple[int, int, int, int], ...]] = {1: (), 2: ()}
    found[max(1, rows // 64)] = ((rows, columns, 1, 1),)
    return found


def _by(rows: int, columns: int, parts: int = 1, **more: Any) -> Variant:
    return {"TILES": _tiles(rows, columns), "PARTS": (parts,), **more}


ROLES, PAIRS, FOURS = (Way(True, k) for k in (1, 2, 4))
WALK, WALKING_PAIRS = (Way(True, k, True) for k in (1, 2))
VARIANTS: dict[str, Variant] = {
    "as it is": {},
    "plain": {"WAYS": (Way(),)},
    "roles": {"WAYS": (ROLES,)},
    "clusters of 2": {"WAYS": (PAIRS,)},
    "clusters of 4": {"WAYS": (FOURS,)},
    "walk": {"WAYS": (WALK,)},
    "walk, clusters of 2": {"WAYS": (WALKING_PAIRS,)},
    "walk, 128x128, clusters of 2": _by(128, 128, WAYS=(WALKING_PAIRS,)),
    "128x128, 2 parts, clusters of 2": _by(128, 128, 2, WAYS=(PAIRS,)),
    "64x128, clusters of 4": _by(64, 128, WAYS=(FOURS,)),
    "128x128, 2 blocks": _by(128, 128, BLOCKS=2, WAYS=(Way(),)),
    "128x256": _by(128, 256, WAYS=(Way(),)),
    "128x128": _by(128, 128, WAYS=(Way(),)),
    "128x128, 2 parts": _by(128, 128, 2, WAYS=(Way(),)),
    "64x256": _by(64, 256, WAYS=(Way(),)),
}
# Of few rows, where reading the operands takes longest, and of short sums.
SMALL: dict[str, Variant] = {
    "as it is": {},
    "64x64": _by(64, 64, WAYS=(Way(),)),
    "64x64, 4 stages": _by(64, 64, WAYS=(Way(),), STAGES=(4,)),
    "64x64, roles": _by(64, 64, WAYS=(ROLES,)),
    "64x64, clusters of 4": _by(64, 64, WAYS=(FOURS,)),
    "64x64, 2 parts": _by(64, 64, 2, WAYS=(Way(),)),
    "64x64, 2 parts, 2 blocks": _by(64, 64, 2, WAYS=(Way(),), BLOCKS=2),
    "64x128, roles": _by(64, 128, WAYS=(ROLES,)),
    "64x128, 2 parts": _by(64, 128, 2, WAYS=(Way(),)),
    "64x128": _by(64, 128, WAYS=(Way(),)),
    "64x256": _by(64, 256, WAYS=(Way(),)),
    "128x128": _by(128, 128, WAYS=(Way(),)),
    "128x128, walk": _by(128, 128, WAYS=(WALK,)),
    "128x256": _by(128, 256, WAYS=(Way(),)),
}


@contextmanager
def _with(numbers: Variant, of: ModuleType = grid_group_products) -> Iterator[None]:
    usual = {name: getattr(of, name) for name in numbers}
    try:
        for name, x in numbers.items():
            setattr(of, name, x)
        yield
    finally:
        for name, x in usual.items():
            setattr(of, name, x)


def clusters() -> dict[str, Any]:
    """Blocks that share what the copy engine brings, and two blocks of a multiprocessor."""
    two, four = ({"WAYS": (Way(False, k),)} for k in (2, 4))
    return _by_numbers(two, four, {"BLOCKS": 2})


def roles() -> dict[str, Any]:
    """A warp of its own asks for copies, also for a cluster and for blocks that walk over tiles."""
    ways = ({"WAYS": (x,)} for x in (ROLES, PAIRS, WALK, WALKING_PAIRS))
    return _by_numbers(*ways, products=_every()[::3])


def _by_numbers(
    *given: Variant, products: list[tuple[Product, int, str]] | None = None
) -> dict[str, Any]:
    used: set[str] = set()
    for numbers in given:
        with _with(numbers):
            used |= exact_products(products or _every())
    return {"facts": ", ".join(sorted(used))}


def product_variants(shape: Shape) -> dict[str, Any]:
    """One product by other numbers in its schedule, beside cuBLAS."""
    sets = [shape.inputs() for _ in range(3)]
    want = shape.reference(*sets[0])
    contenders: dict[str, list[Callable[[], object]]] = {}
    refused: list[str] = []
    few = shape.rows <= BLOCK or shape.deep <= BLOCK
    for name, numbers in (SMALL if few else VARIANTS).items():
        with _with(numbers):
            p = GridProgram(shape.graph())
            p.compile()
        loops = [x for k, *_ in p.kernels for x, _ in walk(k.nest.body) if isinstance(x, Loop)]
        if not any("wgmma" in x.instruction for x in loops):
            refused.append(name)
            continue
        (got,) = p(*sets[0])
        error = float((got.double() - want.double()).norm() / want.double().norm())
        assert error < 0.01, f"{name}: the error is {error}"
        contenders[name] = [lambda x=x, p=p: p(*x) for x in sets]
    contenders["eager"] = [lambda x=x: shape.reference(*x) for x in sets]
    t = medians(contenders, 20)
    times = [f"{k} {v * 1e6:.1f} us ({t['eager'] / v:.2f})" for k, v in t.items()]
    return {
        "us": min(t.values()) * 1e6,
        "facts": "; ".join([*times, *(f"no {x}" for x in refused)]),
    }


def thread_variants(shape: Shape) -> dict[str, Any]:
    """A product of float32 by other tiles and parts, beside cuBLAS and the chosen ones."""
    sets = [shape.inputs() for _ in range(3)]
    contenders: dict[str, list[Callable[[], object]]] = {}
    own: list[tuple[str, Variant]] = [("as it is", {})]
    for t in grid_thread_products.TILES[1:4]:
        for parts in (1, 4, 8, 16):
            own.append((f"{t[0]}x{t[1]}, {parts} parts", {"TILES": (t,), "PARTS": (parts,)}))
    for name, numbers in own:
        with _with(numbers, grid_thread_products):
            p = GridProgram(shape.graph())
            p.compile()
        contenders[name] = [lambda x=x, p=p: p(*x) for x in sets]
    contenders["eager"] = [lambda x=x: shape.reference(*x) for x in sets]
    t = medians(contenders, 12)
    times = [f"{k} {v * 1e6:.1f} us ({t['eager'] / v:.2f})" for k, v in t.items()]
    return {"us": t["as it is"] * 1e6, "facts": "; ".join(times)}


NARROW = {
    "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
    "i8": torch.int8,
    "bf16": torch.bfloat16,
}


def _narrow_kernel(dtype: str, size: int) -> GridKernel:
    sums, zero = ("i32", "0:i32") if dtype == "i8" else ("f32", "0.0")
    out = "i32" if dtype == "i8" else "bf16"
    n = size
    group = parse_group(f"""
group product
  in a: {dtype}[{n},{n}]
  in w: {dtype}[{n},{n}]
  out y: {out}[{n},{n}]
  local c: {sums}[{n},{n}]
  c[c.i,c.j] add= cast<{sums}>(a[c.i,c.k]) * cast<{sums}>(w[c.j,c.k]) \
for c.i in {n}, c.j in {n}, c.k in {n} from {zero}
  y[y.i,y.j] = cast<{out}>(c[y.i,y.j]) for y.i in {n}, y.j in {n}
""")
    on = device(0)
    target = target_of(on)
    trace, nest = default_schedule(group, target)
    assert any("wgmma" in str(s) for s in trace), f"{dtype} is not multiplied by groups of warps"
    return GridKernel(nest, target, on)


def _eager_narrow(dtype: str, a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    if dtype == "i8":
        return torch._int_mm(a, w.t())
    if dtype == "bf16":
        return a @ w.t()
    one = torch.ones((), device="cuda")
    return torch._scaled_mm(a, w.t(), one, one, out_dtype=torch.bfloat16)


def narrow_products(size: int = 8192) -> dict[str, Any]:
    """Numbers of one byte: exact, beside bfloat16 of our own and beside cuBLAS. Two factors of
    e5m2 are nothing that cuBLAS multiplies."""
    said: list[str] = []
    contenders: dict[str, list[Callable[[], object]]] = {}
    stream = torch.cuda.current_stream().cuda_stream
    for dtype, kind in NARROW.items():
        a, w = (torch.randint(-3, 4, (size, size), device="cuda").to(kind) for _ in range(2))
        into = torch.int32 if dtype == "i8" else torch.bfloat16
        y = torch.empty(size, size, dtype=into, device="cuda")
        k = _narrow_kernel(dtype, size)
        given = {"a": a, "w": w, "y": y}
        k(given, {}, stream)
        want = a[:256].double() @ w.double().t()
        assert torch.equal(y[:256].double(), want.to(into).double()), f"{dtype} is wrong"
        contenders[dtype] = [lambda k=k, given=given: k(given, {}, stream)]
        if dtype != "f8e5m2":
            f = lambda dtype=dtype, a=a, w=w: _eager_narrow(dtype, a, w)  # noqa: E731
            contenders[f"cuBLAS {dtype}"] = [f]
    t = medians(contenders, 20)
    work = 2 * size**3
    for name, v in t.items():
        said.append(f"{name} {v * 1e6:.1f} us, {work / v * 1e-12:.0f} T/s")
    return {
        "us": t["f8e4m3"] * 1e6,
        "eager": t["cuBLAS f8e4m3"] / t["f8e4m3"],
        "facts": f"{t['bf16'] / t['f8e4m3']:.2f} times bf16; " + "; ".join(said),
    }


@dataclass(frozen=True)
class Shape:
    """A product of a batch; `linear` has the rows of both operands along the sum."""

    rows: int
    columns: int
    deep: int
    batch: int = 1
    linear: bool = False
    gelu: bool = False
    dtype: DType = bf16

    @property
    def title(self) -> str:
        batch = f"{self.batch}x" if self.batch > 1 else ""
        what = "gelu" if self.gelu else "linear" if self.linear else "gemm"
        return f"{what} {self.dtype} {batch}{self.rows}x{self.columns}x{self.deep}"

    def graph(self) -> Graph:
        lead = (self.batch,) if self.batch > 1 else ()
        x = arg("x", *lead, self.rows, self.deep, dtype=self.dtype)
        if not self.linear:
            return graph(
                build.matmul(x, arg("w", *lead, self.deep, self.columns, dtype=self.dtype))
            )
        w = arg("w", *lead, self.columns, self.deep, dtype=self.dtype)
        order = (0, 2, 1) if lead else (1, 0)
        y = build.matmul(x, build.permute(w, order))
        if not self.gelu:
            return graph(y)
        b = arg("b", self.columns, dtype=self.dtype)
        wide = [build.cast(v, v.dtype.accumulator) for v in (y, b)]
        return graph(build.cast(build.gelu(build.add(*wide)), self.dtype))

    def inputs(self) -> list[torch.Tensor]:
        lead = (self.batch,) if self.batch > 1 else ()
        x = torch.randn(*lead, self.rows, self.deep, device="cuda")
        shape = (self.columns, self.deep) if self.linear else (self.deep, self.columns)
        w = torch.randn(*lead, *shape, device="cuda") / self.deep**0.5
        more = [torch.randn(self.columns, device="cuda")] if self.gelu else []
        return [v.to(TYPES[str(self.dtype)]) for v in (x, w, *more)]

    def reference(self, x: torch.Tensor, w: torch.Tensor, *b: torch.Tensor) -> torch.Tensor:
        if not self.linear:
            return x @ w
        return F.gelu(F.linear(x, w, *b)) if self.gelu else x @ w.transpose(-1, -2)


# What cuBLAS is compared with: large, skinny, ragged, batched, long sums.
SHAPES = (
    Shape(4096, 4096, 4096),
    Shape(8192, 8192, 8192),
    Shape(8192, 4096, 16384, linear=True),
    Shape(4096, 11008, 4096, linear=True),
    Shape(256, 4096, 4096),
    Shape(64, 8192, 8192, linear=True),
    Shape(1000, 1000, 1000),
    Shape(4000, 4088, 4104, linear=True),
    Shape(1024, 1024, 1024, batch=16),
    Shape(512, 512, 64, batch=64, linear=True),
    Shape(512, 512, 65536),
    Shape(1024, 1024, 16384, linear=True),
)
# Without tensor cores, and rows of operands or results that are no multiples of 16 bytes.
OTHERS = (
    Shape(4096, 4096, 4096, dtype=f32),
    Shape(128, 768, 3072, linear=True, dtype=f32),
    Shape(128, 3072, 768, linear=True, dtype=f32),
    Shape(1000, 1001, 1003, dtype=f32),
    Shape(128, 50257, 768, linear=True),
    Shape(4001, 4093, 4095),
    Shape(4001, 4093, 4095, linear=True),
)
# Of which other numbers in their schedules are timed.
VARIED = (
    Shape(4096, 4096, 4096),
    Shape(256, 4096, 4096),
    Shape(64, 8192, 8192, linear=True),
    Shape(1000, 1000, 1000),
    Shape(4000, 4088, 4104, linear=True),
    Shape(1024, 1024, 1024, batch=16),
    Shape(512, 512, 64, batch=64, linear=True),
    Shape(128, 3072, 768),
    Shape(4096, 4096, 4096, linear=True, gelu=True),
    Shape(8192, 16384, 4096, linear=True, gelu=True),
    Shape(256, 4096, 4096, linear=True, gelu=True),
)
FUSED = (
    Shape(4096, 4096, 4096, linear=True, gelu=True),
    Shape(8192, 16384, 4096, linear=True, gelu=True),
    Shape(256, 4096, 4096, linear=True, gelu=True),
)


def timed(shape: Shape, check: Callable[..., float]) -> dict[str, Any]:
    """Right by float64, or by float32 where that takes too much memory, then timed."""
    p = GridProgram(shape.graph())
    p.compile()
    sets = [shape.inputs() for _ in range(3)]
    poison = torch.full(
        (shape.dtype.bytes * shape.rows * shape.columns * shape.batch,), 255, dtype=torch.uint8
    )
    poison = poison.cuda()
    del poison  # what is allocated next holds NaN where nothing is written
    (got,) = p(*sets[0])
    eager = shape.reference(*sets[0])
    small = shape.rows * shape.columns * shape.deep * shape.batch <= 2**34
    exact = shape.reference(*(v.double() if small else v.float() for v in sets[0]))
    error = check(got, exact, eager, shape.dtype)
    assert torch.equal(got, p(*sets[0])[0]), "two runs differ"
    del exact, eager
    t = medians(
        {
            "ours": [lambda x=x: p(*x) for x in sets],
            "eager": [lambda x=x: shape.reference(*x) for x in sets],
        },
        20,
    )
    facts = [f for k, *_ in p.kernels for f in k.loaded().facts()]
    work = 2 * shape.batch * shape.rows * shape.columns * shape.deep
    return {
        "us": t["ours"] * 1e6,
        "eager": t["eager"] / t["ours"],
        "tflops": work / t["ours"] * 1e-12,
        "error": error,
        "kernels": len(facts),
        "facts": f"{work / t['ours'] * 1e-12:.0f} TFLOP/s; " + "; ".join(map(str, facts)),
    }
