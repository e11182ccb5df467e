"""Instructions of whole warps: they match, are assembled, and compute what their loops do when
their code is emulated (tests/gpu/emulate.py). Wrong layouts are refused."""

from __future__ import annotations

import numpy as np
import pytest

from tests.gpu import emulate
from tests.gpu.assembler import assemble
from tilewright import targets
from tilewright.base.errors import Refused, Unsupported
from tilewright.ir.check import CheckFailed
from tilewright.kernel import interpret, simt
from tilewright.kernel.check import verify
from tilewright.kernel.interpret import RunError
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import Nest
from tilewright.kernel.steps.barrier import Synchronise
from tilewright.kernel.steps.swizzle import Swizzle
from tilewright.kernel.steps.tensorize import Tensorize
from tilewright.kernel.text import nest_text, parse_nest
from tilewright.llvm.grid import emit_kernels
from tilewright.llvm.objects import assembly

GPU = targets.get("cuda:90")
OLDER = targets.get("cuda:80")
OLDEST = targets.get("cuda:75")


def product(kind: str, a: str = "{h},{g},{p},{q},{e}", threads: int = 4) -> Nest:
    """c = a @ b.T of one warp; `a` says how its fragment is indexed."""
    pack = 4 if kind == "i8" else 2
    deep, half = 8 * pack, 4 * pack
    sums = "i32" if kind == "i8" else "f32"
    zero = "cast<i32>(0)" if kind == "i8" else "0.0"
    own = {"h": f"k//{half}", "g": "i//8", "p": "i%8", "q": f"k//{pack}%4", "e": f"k%{pack}"}
    left = f"af[{a.format(**own)}]"
    right = f"bf[k//{half},j,k//{pack}%4,k%{pack}]"
    text = f"""
nest product
  in a: {kind}[16,{deep}]
  in b: {kind}[8,{deep}]
  out y: {sums}[16,8]
  local af: {kind}[2,2,8,4,{pack}]
  local bf: {kind}[2,8,4,{pack}]
  local c: {sums}[2,8,4,2]
  block.x z in 1:
    alloc af
    alloc bf
    alloc c
    thread.y p in 8:
      thread.x q in {threads}:
        unroll h in 2:
          unroll g in 2:
            lane e in {pack}:
              af: af[{a.format(h="h", g="g", p="p", q="q", e="e")}] = a[8*g+p,{half}*h+{pack}*q+e]
    thread.y p in 8:
      thread.x q in {threads}:
        unroll h in 2:
          lane e in {pack}:
            bf: bf[h,p,q,e] = b[p,{half}*h+{pack}*q+e]
    thread.y p in 8:
      thread.x q in {threads}:
        unroll g in 2:
          lane e in 2:
            c: c[g,p,q,e] = {zero}
    for i in 16:
      for j in 8:
        for k in {deep}:
          c: c[i//8,i%8,j//2,j%2] add= cast<{sums}>({left}) * cast<{sums}>({right})
    thread.y p in 8:
      thread.x q in {threads}:
        unroll g in 2:
          lane e in 2:
            y: y[8*g+p,2*q+e] = c[g,p,q,e]
"""
    return parse_nest(text.lstrip())


def operands(kind: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    deep, t = (32, np.int8) if kind == "i8" else (16, np.float32 if kind == "bf16" else np.float16)
    return {x: rng.integers(-9, 10, (n, deep)).astype(t) for x, n in (("a", 16), ("b", 8))}


@pytest.mark.parametrize("kind", ["bf16", "f16", "i8"])
def test_products(kind: str) -> None:
    n = Synchronise()(Tensorize("i", f"nvptx.mma.{kind}")(product(kind)))
    verify(n)
    assert parse_nest(nest_text(n)) == n
    given = operands(kind)
    want = given["a"].astype(np.float64) @ given["b"].astype(np.float64).T
    for run in (interpret.run, simt.run, lambda n, x: emulate.run(n, x, target=GPU)):
        np.testing.assert_array_equal(run(n, given)["y"], want)
    for target in (OLDER, GPU):
        ptx = assembly(emit_kernels(legalise(n, target), target).text, target)
        assert ptx.count("mma.sync") == 1 and "local" not in ptx
        assert all(x.spilled == 0 for x in assemble(ptx, target.cpu))


def test_a_wrong_digit_is_refused() -> None:
    """Rows and steps of the sum the other way round: the same shape, another thread's elements."""
    with pytest.raises(Refused, match=r"axis 0 is .*, the fragment has"):
        Tensorize("i", "nvptx.mma.bf16")(product("bf16", "{g},{h},{p},{q},{e}"))


def test_every_thread_has_its_own_elements() -> None:
    """Loaded by other threads than those that own them."""
    text = nest_text(product("bf16")).replace("af[h,g,p,q,e] =", "af[h,g,p,3-q,e] =")
    n = Tensorize("i", "nvptx.mma.bf16")(parse_nest(text))
    with pytest.raises(Refused, match="of the private af, which other threads write"):
        Synchronise()(n)
    with pytest.raises(RunError, match="private af, which thread"):
        simt.run(n, operands("bf16"))
    with pytest.raises(Unsupported, match="used by other threads"):
        emit_kernels(legalise(n, GPU), GPU)


def test_warps_are_whole() -> None:
    n = Tensorize("i", "nvptx.mma.bf16")(product("bf16", threads=3))
    with pytest.raises(CheckFailed, match=r"thread\.x has 3 threads, not 4"):
        verify(n)
    with pytest.raises(RunError, match="is for whole warps"):
        simt.run(n, operands("bf16"))


def test_a_gpu_without_it_is_an_error() -> None:
    n = Tensorize("i", "nvptx.mma.bf16")(product("bf16"))
    with pytest.raises(Unsupported, match=r"needs mma\.bf16, which cuda:75"):
        emit_kernels(legalise(n, OLDEST), OLDEST)


def test_strict_sums_stay_in_order() -> None:
    text = nest_text(product("bf16")).replace("nest product", "nest product strict")
    with pytest.raises(Refused, match="precision is strict"):
        Tensorize("i", "nvptx.mma.bf16")(parse_nest(text))


def register_product(across: bool, a: str = "0,{z},{h},{g},{p},{q},{e}") -> Nest:
    """y = a @ b.T of a group of four warps: a in registers, indexed as `a` says, b in shared
    memory, where its rows run along the sum or across it."""
    index = {x: x for x in "zhgpqe"}
    own = {"z": "i//16%4", "h": "k//8", "g": "i//8%2", "p": "i%8", "q": "k//2%4", "e": "k%2"}
    cell = "0,i//16%4,j//8,i//8%2,i%8,j//2%4,j%2"
    b = "k,j" if across else "j,k"
    loops = "thread.z z in 4: thread.y p in 8: thread.x q in 4: unroll h in 8: unroll g in 2:"
    lines = [
        "nest product",
        "  in a: bf16[64,64]",
        "  in b: bf16[64,64]",
        "  out y: f32[64,64]",
        "  local af: bf16[1,4,8,2,8,4,2]",
        "  shared bs: bf16[64,64]",
        "  local c: f32[1,4,8,2,8,4,2]",
        "  block.x w in 1:",
        "    alloc af",
        "    alloc bs",
        "    alloc c",
    ]
    statements = [
        f"af: af[{a.format(**index)}] = a[16*z+8*g+p,8*h+2*q+e]",
        "c: c[0,z,h,g,p,q,e] = 0.0",
    ]
    for text in statements:
        for depth, loop in enumerate(x.strip() for x in loops.split(":") if x.strip()):
            lines.append(f"{'  ' * (depth + 2)}{loop}:")
        lines += [f"{'  ' * 7}lane e in 2:", f"{'  ' * 8}{text}"]
    for depth, loop in enumerate(["thread.z z in 4", "thread.y p in 8", "thread.x q in 4"]):
        lines.append(f"{'  ' * (depth + 2)}{loop}:")
    lines += [
        f"{'  ' * 5}unroll h in 4:",
        f"{'  ' * 6}lane e in 8:",
        f"{'  ' * 7}bs: bs[16*h+4*z+p//2,32*(p%2)+8*q+e] = b[16*h+4*z+p//2,32*(p%2)+8*q+e]",
    ]
    for depth, loop in enumerate(["for i in 64", "for j in 64", "for k in 64"]):
        lines.append(f"{'  ' * (depth + 2)}{loop}:")
    value = f"cast<f32>(af[{a.format(**own)}]) * cast<f32>(bs[{b}])"
    lines.append(f"{'  ' * 5}c: c[{cell}] add= {value}")
    for depth, loop in enumerate(x.strip() for x in loops.split(":") if x.strip()):
        lines.append(f"{'  ' * (depth + 2)}{loop}:")
    lines += [f"{'  ' * 7}lane e in 2:", f"{'  ' * 8}y: y[16*z+8*g+p,8*h+2*q+e] = c[0,z,h,g,p,q,e]"]
    return parse_nest("\n".join([*lines, ""]))


@pytest.mark.parametrize("across", [False, True])
def test_products_of_registers_and_shared_memory(across: bool) -> None:
    name = f"nvptx.wgmma.1.r{'t' if across else 'n'}.bf16"
    n = Synchronise()(Tensorize("i", name)(Swizzle("bs", 3, 3, 3)(register_product(across))))
    verify(n)
    rng = np.random.default_rng(5)
    given = {x: rng.integers(-9, 10, (64, 64)).astype(np.float32) for x in "ab"}
    want = given["a"] @ (given["b"] if across else given["b"].T)
    for run in (interpret.run, simt.run, lambda n, x: emulate.run(n, x, target=GPU)):
        np.testing.assert_array_equal(run(n, given)["y"], want)
    ptx = assembly(emit_kernels(legalise(n, GPU), GPU).text, GPU)
    assert ptx.count("wgmma.mma_async") == 4 and ".local" not in ptx
    assert all(x.spilled == 0 for x in assemble(ptx, GPU.cpu))


def test_registers_of_a_product_in_another_order_are_refused() -> None:
    n = Swizzle("bs", 3, 3, 3)(register_product(False, "0,{z},{h},{p},{g},{q},{e}"))
    with pytest.raises(Refused, match=r"axis 3 is .*, the fragment has"):
        Tensorize("i", "nvptx.wgmma.1.rn.bf16")(n)
