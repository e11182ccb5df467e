"""torch.compile with ours in Triton's place: of any function, and of those that launch kernels."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tilewright as tw
import tilewright.language as tl
import tilewright.triton as compat

torch = pytest.importorskip("torch")

BACKENDS = ["eager", "aot_eager", "tilewright"]
HAS_COMPILER = shutil.which("g++") is not None or shutil.which("clang++") is not None
needs_compiler = pytest.mark.skipif(not HAS_COMPILER, reason="Inductor needs a C++ compiler")
INDUCTORS = pytest.param("inductor", marks=[pytest.mark.slow, needs_compiler])


@pytest.fixture(autouse=True)
def on_cpu():
    torch._dynamo.reset()
    try:
        yield compat.install(device="cpu")
    finally:
        compat.uninstall()
        torch._dynamo.reset()


@tw.jit
def scaled(x, out, factor, n, stride, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i * stride, i < n) * factor, i < n)


@tw.jit
def count(x, total, n, BLOCK: tl.constexpr):
    for k in range(tl.cdiv(n, BLOCK)):
        i = k * BLOCK + tl.arange(0, BLOCK)
        tl.atomic_add(total, tl.sum(tl.load(x + i, i < n, other=0.0)))


def blocks(meta):
    return (tw.cdiv(meta["n"], meta["BLOCK"]),)


def launched(x):
    y = torch.empty_like(x)
    scaled[blocks](x, y, 2.0, x.numel(), 1, BLOCK=32)
    return y + 1


@pytest.mark.parametrize("backend", [*BACKENDS, INDUCTORS])
def test_any_function(backend):
    def f(x, y):
        made = torch.zeros(3, device=x.device) + torch.ones(3, device="cuda")
        assert x.is_cuda and x.device.type == "cuda" and torch.cuda.is_available()
        return (x @ y).relu() + made.sum().to("cuda")

    x, y = torch.randn(4, 4, device="cuda"), torch.randn(4, 4, device="cuda")
    fast = torch.compile(f, backend=backend, fullgraph=True)
    torch.testing.assert_close(fast(x, y), f(x, y))


@pytest.mark.parametrize("backend", BACKENDS)
def test_kernels_inside_compiled_functions(backend):
    x = torch.randn(100, device="cuda")
    fast = torch.compile(launched, backend=backend, fullgraph=True)
    assert torch.equal(fast(x), x * 2 + 1)
    x = torch.randn(70, device="cuda")  # a size that changes
    assert torch.equal(fast(x), x * 2 + 1)


INDUCTOR = """
import tilewright.triton
tilewright.triton.install(device="cpu")  # before Inductor is imported: it looks for Triton once
import torch, triton, triton.language as tl

@triton.jit
def scaled(x, out, factor, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, i < n) * factor, i < n)

@torch.compile(fullgraph=True)
def f(x):
    y = torch.empty_like(x)
    scaled[(triton.cdiv(x.numel(), 32),)](x, y, 2.0, x.numel(), BLOCK=32)
    return y + 1

x = torch.randn(100, device="cuda")
assert torch.equal(f(x), x * 2 + 1)
print("right")
"""


@pytest.mark.slow
@needs_compiler
def test_kernels_inside_functions_that_inductor_compiles(tmp_path):
    (tmp_path / "script.py").write_text(INDUCTOR)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == "right", done.stderr


def test_inductor_compiles_kernels_in_this_process():
    """Those that it starts would not find Triton, whose place is taken in this one only."""
    from torch._inductor.async_compile import AsyncCompile

    AsyncCompile.wait_pool_ready()
    assert not AsyncCompile.use_process_pool()


def test_strides_that_a_kernel_gets():
    """Native code writes in the order of memory; the kernel gets torch's strides."""

    def f(x):
        t = (x + 1).t()
        y = torch.empty(t.shape[0], device=x.device)
        scaled[(1,)](t, y, 1.0, t.shape[0], t.stride(0), BLOCK=16)
        return y

    x = torch.randn(5, 7, device="cuda")
    assert torch.equal(torch.compile(f, backend="tilewright")(x), (x + 1)[0])


def test_inputs_that_a_kernel_changes():
    def f(x, total):
        count[(1,)](x * 2, total, x.numel(), BLOCK=16)
        return total + 1

    x, total = torch.ones(40, device="cuda"), torch.zeros(1, device="cuda")
    fast = torch.compile(f, backend="tilewright", fullgraph=True)
    assert fast(x, total).item() == 81 and total.item() == 80
    assert fast(x, total).item() == 161 and total.item() == 160


def test_autotuned_kernels_and_heuristics():
    tuned = tw.autotune([tw.Config({"BLOCK": b}) for b in (16, 32)], key=["n"])(scaled)

    def f(x):
        y = torch.empty_like(x)
        tuned[blocks](x, y, 2.0, x.numel(), 1)
        return y + 1

    x = torch.randn(100, device="cuda")
    assert torch.equal(torch.compile(f, backend="tilewright")(x), x * 2 + 1)


def test_strict_names_the_kernel():
    with pytest.raises(Exception, match="the kernel scaled would run in eager"):
        tw.compile(launched, strict=True)(torch.randn(10))


def test_operators_made_of_kernels():
    @torch.library.triton_op("tw_test_triton::doubled", mutates_args={})
    def doubled(x: torch.Tensor) -> torch.Tensor:  # type: ignore
        y = torch.empty_like(x)
        torch.library.wrap_triton(scaled)[blocks](x, y, 2.0, x.numel(), 1, BLOCK=32)
        return y

    x = torch.randn(50, device="cuda")
    assert torch.equal(doubled(x), x * 2)
    fast = torch.compile(lambda x: doubled(x) + 1, backend="tilewright", fullgraph=True)
    assert torch.equal(fast(x), x * 2 + 1)


def test_without_triton_s_name_a_launch_breaks_the_graph():
    compat.uninstall()
    x = torch.randn(40)
    assert torch.equal(torch.compile(launched, backend="tilewright")(x), x * 2 + 1)


def test_before_and_after():
    """Dynamo notes functions of torch by identity, and those change twice."""

    def seen(x):
        assert torch.cuda.is_available() and x.is_cuda
        return x + torch.zeros(3, device=x.device)

    def unseen(x):
        return x + torch.zeros(3) if not torch.cuda.is_available() else x

    for f in (seen, unseen, seen, unseen):
        torch._dynamo.reset()
        if f is seen:
            compat.install(device="cpu")
        else:
            compat.uninstall()
        assert torch.compile(f, backend="eager", fullgraph=True)(torch.ones(3)).sum() == 3
