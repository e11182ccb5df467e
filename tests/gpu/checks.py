"""What is checked on a GPU: the driver, kernels by hand, and graphs with their speed.

A check is a function that raises where something is wrong and returns what it found, as numbers by
name. Those of one process run one after the other (tests/gpu/worker.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import tilewright as tw
from tests.gpu import te_kernels
from tests.gpu.attention_checks import attention_checks
from tests.gpu.attention_gradient_checks import attention_gradient_checks
from tests.gpu.conv_checks import conv_checks
from tests.gpu.decode_checks import decode_checks
from tests.gpu.function_checks import function_errors
from tests.gpu.library_checks import library_checks
from tests.gpu.model_checks import model_checks
from tests.gpu.product_checks import (
    FUSED,
    OTHERS,
    SHAPES,
    VARIED,
    clusters,
    exact_products,
    group_products,
    narrow_products,
    product_variants,
    roles,
    thread_variants,
    timed,
)
from tests.gpu.programs import PROGRAMS
from tests.gpu.random_products import drawn as drawn_product
from tests.gpu.row_checks import LARGE, RAGGED, row_checks
from tests.gpu.tile_checks import CHECKS
from tests.gpu.timing import host_seconds, medians
from tests.gpu.warp_checks import warp_checks
from tilewright.base.errors import Invalid, TilewrightError
from tilewright.driver.program.grid_run import GridKernel, GridProgram, target_of
from tilewright.ir import dim as D
from tilewright.ir.types import DType, bf16, f32
from tilewright.runtime.cuda.device import device
from tilewright.runtime.cuda.driver import CudaError
from tilewright.runtime.cuda.memory import Memory, TensorMap
from tilewright.runtime.cuda.module import Launcher, Module
from tilewright.runtime.cuda.stream import Event, Graph, Stream

Found = dict[str, Any]
SHORT_ROWS = ((262144, 128), (65536, 768))
TORCH = {f32: torch.float32, bf16: torch.bfloat16}


@dataclass(frozen=True)
class Check:
    name: str
    run: Callable[[], Found]
    last: bool = False  # it loses the context: nothing comes after it in its process
    seconds: float = 60.0  # after which it counts as hanging


def check(got: torch.Tensor, want: torch.Tensor, eager: torch.Tensor | None, d: DType) -> float:
    """The error against float64, relative to the norm; an error if it is more than twice eager's
    and a few units in the last place, anywhere."""
    x, y = got.double(), want.double()
    if not torch.isfinite(x).all():
        bad = int((~torch.isfinite(x)).sum())
        raise AssertionError(f"{bad} of {x.numel()} results are not finite")
    difference = (x - y).abs()
    ulp = 2.0 ** (-7 if d is bf16 else -22)
    scale = float(y.abs().max())
    theirs = 0.0 if eager is None else float((eager.double() - y).abs().max())
    most, allowed = float(difference.max()), 2 * theirs + 4 * ulp * scale
    relative = float(difference.norm() / y.norm())
    if most > allowed:
        at = int(difference.reshape(-1).argmax())
        raise AssertionError(
            f"off by {most:.3g} at {at} (allowed {allowed:.3g}; {x.reshape(-1)[at]:.6g} instead of "
            f"{y.reshape(-1)[at]:.6g}), {relative:.2e} of the norm"
        )
    return relative


# ---- the driver


def the_device() -> Found:
    d = device(0)
    target = target_of(d)
    known = {**dict(d.facts), "target": target.name, "driver": d.driver.version}
    return {"device": d.name, "memory": d.memory, **known}


SCALE = """
.version 7.0
.target sm_75
.address_size 64
.visible .entry scale(.param .u64 x, .param .u64 n)
{
  .reg .b64 %a, %o, %n;
  .reg .b32 %t, %b, %d, %i;
  .reg .f32 %f;
  .reg .pred %p;
  ld.param.u64 %a, [x];
  ld.param.u64 %n, [n];
  mov.u32 %t, %tid.x;
  mov.u32 %b, %ctaid.x;
  mov.u32 %d, %ntid.x;
  mad.lo.u32 %i, %b, %d, %t;
  cvt.u64.u32 %o, %i;
  setp.ge.u64 %p, %o, %n;
  @%p ret;
  shl.b64 %o, %o, 2;
  add.u64 %a, %a, %o;
  ld.global.f32 %f, [%a];
  add.f32 %f, %f, %f;
  st.global.f32 [%a], %f;
  ret;
}
"""


def launches_and_graphs() -> Found:
    """A module, launches on a stream, events, a graph, without torch."""
    d = device(0)
    x = np.arange(1000, dtype=np.float32)
    memory = Memory.of(d, x)
    module = Module(SCALE, d)
    function = module.function("scale")
    launch = Launcher(function, (128, 1, 1), 2)
    stream, start, end = Stream(d), Event(d), Event(d)
    start.record(stream.handle)
    launch([memory.address, 1000], (8, 1, 1), stream.handle)
    end.record(stream.handle)
    took = end.since(start)
    np.testing.assert_array_equal(memory.read(x), 2 * x)

    def twice(on: int) -> None:
        for _ in range(2):
            launch([memory.address, 1000], (8, 1, 1), on)

    graph = Graph(d, twice)
    np.testing.assert_array_equal(memory.read(x), 2 * x)  # captured, not done
    graph.launch(stream.handle)
    stream.synchronise()
    np.testing.assert_array_equal(memory.read(x), 8 * x)
    launch([memory.address, 1000], (0, 1, 1), stream.handle)  # no blocks
    facts = function.facts(128)
    return {"us": took * 1e6, "facts": str(facts)}


def tensor_maps() -> Found:
    d = device(0)
    memory = Memory(d, 256 * 512 * 2)
    made = TensorMap(d, "bf16", 2, memory.address, (256, 512), (1024,), (64, 64), 128)
    assert any(made.bytes), "the driver wrote nothing"
    for wrong, says in (
        ({"strides": (1022,)}, "multiples of 16"),
        ({"box": (64, 512)}, "1 to 256"),
        ({"swizzle": 48}, "swizzled"),
    ):
        given: dict[str, Any] = {"strides": (1024,), "box": (64, 64), "swizzle": 0, **wrong}
        try:
            TensorMap(d, "bf16", 2, memory.address, (256, 512), **given)
        except Invalid as e:
            assert says in str(e), e
        else:
            raise AssertionError(f"{wrong} was accepted")
    return {}


def _says(text: str, f: Callable[[], object]) -> str:
    try:
        f()
    except TilewrightError as e:
        assert text in str(e), f"{text!r} is not in {e}"
        return str(e).splitlines()[0]
    raise AssertionError(f"nothing was said of {text!r}")


def bad_input() -> Found:
    """Errors in words after which all goes on."""
    d = device(0)
    _says("could not compile", lambda: Module(SCALE.replace("mad.lo.u32", "mad.xx.u32"), d))
    _says("out of memory", lambda: Memory(d, 1 << 50))
    _says("no GPU 77", lambda: device(77))
    module = Module(SCALE, d)
    _says("does not exist", lambda: module.function("other"))
    launch = Launcher(module.function("scale"), (128, 1, 1), 2)
    _says("blocks along y", lambda: launch([0, 0], (1, 70000, 1)))
    _says("takes 2 values", lambda: launch([0], (1, 1, 1)))
    s, args = te_kernels.vector_add(100)
    f = tw.build(s, args, target="cuda:90" if d.capability == 90 else target_of(d))
    a = torch.ones(100, device="cuda")
    _says("is on cpu", lambda: f(a, a.cpu(), torch.empty_like(a)))
    _says("float64", lambda: f(a, a.double(), torch.empty_like(a)))
    _says("overlaps", lambda: f(a, a.clone(), a))
    _says("not contiguous", lambda: f(a, torch.ones(200, device="cuda")[::2], torch.empty_like(a)))
    out = torch.empty_like(a)
    f(a, a, out)
    assert bool((out == 2).all()), "after errors the function still runs"
    return {}


def illegal_address() -> Found:
    """The context is lost, and the error says so."""
    d = device(0)
    launch = Launcher(Module(SCALE, d).function("scale"), (128, 1, 1), 2)
    launch([0x10, 1000], (8, 1, 1))
    try:
        d.synchronise()
    except CudaError as e:
        assert e.lost and "context is lost" in str(e) and "new process" in str(e), e
        return {"says": str(e).splitlines()[0]}
    raise AssertionError("an access to nowhere went unnoticed")


# ---- kernels by hand


def _build(s: Any, args: Any) -> Any:
    return tw.build(s, args, target=target_of(device(0)))


def vector_add() -> Found:
    s, args = te_kernels.vector_add()
    f = _build(s, args)
    for n in (1, 255, 1000, 1 << 20, (1 << 22) + 3):
        a, b = torch.randn(n, device="cuda"), torch.randn(n, device="cuda")
        c = torch.full_like(a, float("nan"))
        f(a, b, c)
        assert torch.equal(c, a + b), f"wrong for n = {n}"
    return {"host_us": host_seconds(lambda: f(a, b, c)) * 1e6}


def unaligned() -> Found:
    """Tensors that do not start at a multiple of 16 bytes."""
    p = GridProgram(PROGRAMS["add"](f32, 64, 256))
    room = [torch.randn(64 * 256 + 1, device="cuda") for _ in range(2)]
    a, b = (x[1:].view(64, 256) for x in room)
    (c,) = p(a, b)
    assert torch.equal(c, a + b)
    return {}


def matmul() -> Found:
    n = 2048
    s, args = te_kernels.tiled_matmul(n, n, n)
    f = _build(s, args)
    a, b = (torch.randn(n, n, device="cuda") for _ in range(2))
    c = torch.full_like(a, float("nan"))
    f(a, b, c)
    torch.backends.cuda.matmul.allow_tf32 = False
    error = check(c, a.double() @ b.double(), a @ b, f32)
    t = medians({"ours": [lambda: f(a, b, c)], "eager": [lambda: torch.mm(a, b, out=c)]}, 10)
    rate = 2 * n**3 / t["ours"] * 1e-12
    facts = f.kernel.loaded().facts()[0]
    return {
        "us": t["ours"] * 1e6,
        "eager": t["eager"] / t["ours"],
        "tflops": rate,
        "error": error,
        "facts": f"{rate:.1f} TFLOP/s, {facts}",
    }


def rfactor() -> Found:
    s, args = te_kernels.row_sums(4096, 5000)
    f = _build(s, args)
    a = torch.randn(4096, 5000, device="cuda")
    y = torch.full((4096,), float("nan"), device="cuda")
    f(a, y)
    error = check(y, 2 * a.double().sum(1), 2 * a.sum(1), f32)
    t = medians({"ours": [lambda: f(a, y)], "eager": [lambda: a.sum(1)]}, 10)
    us = {"us": t["ours"] * 1e6, "eager": t["eager"] / t["ours"]}
    return {**us, "gbs": a.nbytes / t["ours"] * 1e-9, "error": error}


def atomics() -> Found:
    nest = te_kernels.histogram(1_000_003, 64)
    on = device(0)
    k = GridKernel(nest, target_of(on), on)
    x = torch.randint(0, 64, (1_000_003,), dtype=torch.int32, device="cuda")
    y = torch.zeros(64, dtype=torch.int32, device="cuda")
    k({"x": x, "y": y}, {}, torch.cuda.current_stream().cuda_stream)
    assert torch.equal(y.long(), torch.bincount(x, minlength=64)), "counts are wrong"
    return {}


def dynamic_shared() -> Found:
    on = device(0)
    k = GridKernel(te_kernels.turned(1000), target_of(on), on)
    x = torch.randn(1000, 32, device="cuda")
    y = torch.full_like(x, float("nan"))
    k({"x": x, "y": y}, {}, torch.cuda.current_stream().cuda_stream)
    assert torch.equal(y, x.flip(1))
    return {"facts": str(k.loaded().facts()[0])}


def swizzled() -> Found:
    """Shared memory whose elements lie elsewhere."""
    on = device(0)
    x = torch.randn(32, 32, device="cuda")
    for how in ("", " swizzled 3,2,3", " swizzled 2,2,5"):
        y = torch.full_like(x, float("nan"))
        k = GridKernel(te_kernels.transposed(how), target_of(on), on)
        k({"x": x, "y": y}, {}, torch.cuda.current_stream().cuda_stream)
        assert torch.equal(y, x.T), how
    return {}


def warp_products() -> Found:
    """Small products by warps, of numbers whose sums are exact."""
    used = exact_products([drawn_product(seed) for seed in range(40)])
    assert used, "no product is done by warps"
    return {"facts": ", ".join(sorted(used))}


def symbolic() -> Found:
    """One compilation for all sizes."""
    rows, columns = D.sym("R", 1), D.sym("C", 1)
    for name in ("add", "biased", "softmax", "rms_norm", "layer_norm", "column_sums"):
        p = GridProgram(PROGRAMS[name](f32, rows, columns))
        for size in ((1, 1), (7, 130), (513, 4099), (64, 70_000)):
            ins = _inputs(name, f32, size)
            got = p(*ins)[0]
            want = REFERENCES[name](*(x.double() if x.is_floating_point() else x for x in ins))
            try:
                check(got, want, REFERENCES[name](*ins), f32)
            except AssertionError as e:
                raise AssertionError(f"{name} of {size}: {e}") from None
    return {}


def streams() -> Found:
    """Launches are on torch's current stream, also while a CUDA graph of torch's is captured."""
    p = GridProgram(PROGRAMS["softmax"](f32, 64, 1024))
    x = torch.randn(64, 1024, device="cuda")
    p(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (y,) = p(x)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    check(y, torch.softmax(x.double(), 1), torch.softmax(x, 1), f32)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        (z,) = p(x)
    side.synchronize()
    assert torch.equal(y, z)
    return {}


# ---- graphs and their speed


def _chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x * y + x) * torch.sigmoid(y)


def _layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], w, b, 1e-5)


def _rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], w, 1e-6)


def _cross_entropy(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x if x.dtype == torch.float64 else x.float(), at, reduction="none")


REFERENCES: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add,
    "chain": _chain,
    "biased": lambda x, b: torch.relu(x + b),
    "softmax": lambda x: torch.softmax(x, 1),
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "cross_entropy": _cross_entropy,
    "loss": lambda x, at: _cross_entropy(x, at).mean(),
    "column_sums": lambda x: x.sum(0),
    "total": lambda x: x.sum(),
    "product": lambda x, w: x @ w,
    "matmul": torch.matmul,
    "linear": lambda x, w, b: F.gelu(F.linear(x, w, b)),
    "matvec": lambda x, v: x.float() @ v.float() if x.dtype != torch.float64 else x @ v,
}
TIMED = ("add", "chain", "softmax", "layer_norm", "rms_norm", "cross_entropy", "loss")


def _inputs(name: str, d: DType, size: tuple[int, int]) -> list[torch.Tensor]:
    rows, columns = size
    t = TORCH[d]
    x = torch.randn(rows, columns, device="cuda").to(t)
    if name in ("add", "chain"):
        return [x, torch.randn(rows, columns, device="cuda").to(t)]
    if name in ("layer_norm", "rms_norm", "biased"):
        count = 2 if name == "layer_norm" else 1
        return [x, *(torch.randn(columns, device="cuda").to(t) for _ in range(count))]
    if name in ("matmul", "linear"):
        w = (torch.randn(columns, columns, device="cuda") / columns**0.5).to(t)
        return [x, w] if name == "matmul" else [x, w, torch.randn(columns, device="cuda").to(t)]
    if name == "product":
        return [x, torch.randn(columns, 24, device="cuda").to(t)]
    if name == "matvec":
        return [x, torch.randn(columns, device="cuda").to(t)]
    if name in ("cross_entropy", "loss"):
        return [x, torch.randint(0, columns, (rows,), device="cuda")]
    return [x]


def program(name: str, d: DType, size: tuple[int, int], inductor: bool) -> Found:
    """Compared with float64, then timed against eager, a copy of as many bytes, and Inductor."""
    p = GridProgram(PROGRAMS[name](d, *size))
    p.compile()
    reference = REFERENCES[name]
    sets = [_inputs(name, d, size) for _ in range(4)]
    ins = sets[0]
    poison = torch.full((sum(x.nbytes for x in ins),), 255, dtype=torch.uint8, device="cuda")
    del poison  # what is allocated next holds NaN where nothing is written
    (got,) = p(*ins)
    exact = reference(*(x.double() if x.is_floating_point() else x for x in ins))
    eager = reference(*ins)
    error = check(got, exact, eager, d if got.dtype != torch.float32 else f32)
    again = p(*ins)[0]
    assert torch.equal(got, again), "two runs differ"
    del exact
    moved = sum(x.nbytes for x in ins) + got.nbytes
    half = -(-moved // 1024) * 512  # read and written, at multiples of what copies are fast at
    source = torch.randint(0, 255, (4, half), dtype=torch.uint8, device="cuda")
    into = torch.empty_like(source[0])
    contenders: dict[str, list[Callable[[], object]]] = {
        "ours": [lambda x=x: p(*x) for x in sets],
        "eager": [lambda x=x: reference(*x) for x in sets],
        "copy": [lambda k=k: into.copy_(source[k]) for k in range(4)],
    }
    if inductor:
        fast = torch.compile(reference, dynamic=False)
        check(fast(*ins), reference(*(_wide(x) for x in ins)), eager, bf16)
        contenders["inductor"] = [lambda x=x: fast(*x) for x in sets]
    t = medians(contenders)
    facts = [f for k, *_ in p.kernels for f in k.loaded().facts()]
    found: Found = {
        "us": t["ours"] * 1e6,
        "gbs": moved / t["ours"] * 1e-9,
        "of_copy": t["copy"] / t["ours"],
        "eager": t["eager"] / t["ours"],
        "error": error,
        "kernels": len(facts),
        "facts": "; ".join(map(str, facts)),
        "host_us": host_seconds(lambda: p(*ins)) * 1e6,
    }
    if inductor:
        found["inductor"] = t["inductor"] / t["ours"]
    return found


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.double() if x.is_floating_point() else x


def checks(inductor: bool) -> Iterator[Check]:
    """All of them, in the order in which they run."""
    plain: tuple[Callable[[], Found], ...] = (
        the_device,
        launches_and_graphs,
        tensor_maps,
        bad_input,
        vector_add,
        unaligned,
        matmul,
        rfactor,
        atomics,
        dynamic_shared,
        swizzled,
        warp_products,
        group_products,
        function_errors,
        symbolic,
        streams,
    )
    for f in plain:
        yield Check(f.__name__, f)
    for name in ("biased", "column_sums", "total", "product", "matvec"):
        for d in (f32, bf16):
            yield _program(name, d, (1024, 1000), False)
    for size in ((200704, 256), (50176, 512), (3136, 2048), (8192, 4096)):
        yield _program("column_sums", bf16, size, False)
        yield _program("total", bf16, size, False)
    yield Check("clusters", clusters, seconds=120.0)
    yield Check("roles", roles, seconds=120.0)
    yield Check("products of bytes", narrow_products, seconds=120.0)
    for shape in VARIED:
        title = f"variants of {shape.title}"
        yield Check(title, lambda shape=shape: product_variants(shape), seconds=120.0)
    for shape in (x for x in OTHERS if "f32" in x.title):
        title = f"variants of {shape.title}"
        yield Check(title, lambda shape=shape: thread_variants(shape), seconds=120.0)
    for shape in (*SHAPES, *FUSED, *OTHERS):
        yield Check(shape.title, lambda shape=shape: timed(shape, check))
    for size in SHORT_ROWS:
        for name in ("softmax", "layer_norm"):
            yield _program(name, bf16, size, inductor)
    for size in (LARGE, RAGGED):
        for name in TIMED:
            for d in (bf16, f32):
                yield _program(name, d, size, inductor)
    for name, f in conv_checks(check):
        yield Check(name, f, seconds=120.0)
    for name, f in row_checks(PROGRAMS, REFERENCES, _inputs):
        yield Check(name, f, seconds=90.0)
    for name, f in (*warp_checks(), *CHECKS.items()):
        yield Check(name, f, seconds=120.0)
    for name, f in (*attention_checks(), *attention_gradient_checks()):
        yield Check(name, f, seconds=90.0)
    for name, f in (*library_checks(inductor), *model_checks(inductor)):
        yield Check(name, f, seconds=150.0)
    for name, f in decode_checks():
        yield Check(name, f, seconds=150.0)
    yield Check("illegal_address", illegal_address, last=True)


def _program(name: str, d: DType, size: tuple[int, int], inductor: bool) -> Check:
    title = f"{name} {d} {size[0]}x{size[1]}"
    return Check(title, lambda: program(name, d, size, inductor), seconds=90.0)
