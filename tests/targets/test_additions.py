"""Additions of warps by the copy engine: right on all executors, assembled, and what is left out or
wrong is found without a GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.gpu import emulate
from tests.gpu.assembler import assemble
from tilewright import targets
from tilewright.base.errors import Refused, Unsupported
from tilewright.ir.check import CheckFailed
from tilewright.kernel import interpret, simt
from tilewright.kernel.check import verify
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import Nest
from tilewright.kernel.steps.barrier import Synchronise
from tilewright.kernel.steps.tensorize import Tensorize
from tilewright.kernel.text import nest_text, parse_nest
from tilewright.llvm.grid import emit_kernels
from tilewright.llvm.launch import Kernels
from tilewright.llvm.objects import assembly

GPU = targets.get("cuda:90")
ADD = "nvptx.add.f32"
# Two blocks of two warps add to the same memory, in three steps.
SUMS = """
nest sums
  in x: f32[2,3,2,2,2,8,4,2]
  in z: f32[3,2,2,8,4,2,2]
  out y: f32[3,2,2,8,4,2,2]
  local p: f32[2,2,2,8,4,2]
  local t: f32[3,2,2,8,4,2,2]
  alloc t
  block.x i in 3:
    thread.x j in 512:
      t: t[i,j//256,j//128%2,j//16%8,j//4%4,j//2%2,j%2] = \
z[i,j//256,j//128%2,j//16%8,j//4%4,j//2%2,j%2]
  block.x n in 2:
    for k in 3:
      alloc p
      unroll b in 2:
        unroll h in 2:
          thread.z w in 2:
            thread.y g in 8:
              thread.x q in 4:
                lane e in 2:
                  p: p[w,b,h,g,q,e] = x[n,k,w,b,h,g,q,e]
      thread.z w in 2:
        for c in 2:
          for h in 2:
            for g in 8:
              for q in 4:
                for e in 2:
                  t: atomic t[k,w,c,g,q,h,e] add= p[w,c,h,g,q,e]
  block.x i in 3:
    thread.x j in 512:
      y: y[i,j//256,j//128%2,j//16%8,j//4%4,j//2%2,j%2] = \
t[i,j//256,j//128%2,j//16%8,j//4%4,j//2%2,j%2]
"""


def sums(text: str = SUMS) -> Nest:
    n = Synchronise()(Tensorize("c", ADD)(parse_nest(text)))
    verify(n)
    return n


def given() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    shapes = {"x": (2, 3, 2, 2, 2, 8, 4, 2), "z": (3, 2, 2, 8, 4, 2, 2)}
    return {name: rng.integers(-9, 10, s).astype(np.float32) for name, s in shapes.items()}


def wanted() -> np.ndarray:
    x = given()
    return x["z"] + np.moveaxis(x["x"].sum(0), 3, 5)


def test_all_executors_add_the_same() -> None:
    n = sums()
    assert parse_nest(nest_text(n)) == n and f"by {ADD}" in nest_text(n)
    for run in (interpret.run, simt.run, lambda n, x: emulate.run(n, x, target=GPU)):
        np.testing.assert_array_equal(run(n, given())["y"], wanted())


def made() -> Kernels:
    return emit_kernels(legalise(sums(), GPU), GPU)


def test_the_code() -> None:
    ptx = assembly(made().text, GPU)
    assert ptx.count("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32") == 1
    assert ptx.count("st.shared.v4.f32") == 2 and ".local" not in ptx
    # Before memory is written again, and before the end.
    assert ptx.count("cp.async.bulk.wait_group.read 0") == 2
    assert [(x.spilled, x.shared) for x in assemble(ptx, GPU.cpu)][1:2] in ([], [(0, 2048)])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("fault", "by", "says"),
    [
        ("fence.proxy.async.shared::cta;", "", "Arrays are not equal"),
        ("cp.async.bulk.wait_group.read 0;", "", "still reads"),
        ("end", "", "ends before"),
        ("i32 1024)", "i32 512)", "Arrays are not equal"),
        ("i32 1024)", "i32 1028)", "no multiple of 16"),
        ("i32 1024)", "i32 131072)", "outside|bytes at"),
        (".add.f32", ".min.f32", "unknown assembler"),
    ],
    ids=["fence", "wait", "end", "short", "odd", "long", "other"],
)
def test_what_is_left_out_or_wrong_is_found(fault: str, by: str, says: str) -> None:
    k = made()
    head, body, rest = _parted(k.text)
    if fault == "end":
        rest = rest.replace("cp.async.bulk.wait_group.read 0;", "")
    else:
        assert fault in body
        body = body.replace(fault, by)
    with pytest.raises(AssertionError, match=says):
        got = emulate.run_kernels(replace(k, text=f"{head}{body}{rest}"), given(), {}, 16)
        np.testing.assert_array_equal(got["y"], wanted())


def _parted(text: str) -> tuple[str, str, str]:
    """What is before, in and behind the instruction's function."""
    first = text.index(f'@"{ADD}')
    end = text.index("\n}", first)
    return text[:first], text[first:end], text[end:]


def test_plain_additions_are_refused() -> None:
    with pytest.raises(Refused, match="adds atomically, t does not"):
        Tensorize("c", ADD)(parse_nest(SUMS.replace("t: atomic", "t:")))


def test_registers_in_another_order_are_refused() -> None:
    other = SUMS.replace("p[w,c,h,g,q,e]", "p[w,h,c,g,q,e]")
    with pytest.raises(Refused, match="the fragment has"):
        Tensorize("c", ADD)(parse_nest(other))


def test_memory_that_others_add_to_is_not_read() -> None:
    reads = SUMS.replace("x[n,k,w,b,h,g,q,e]", "x[n,k,w,b,h,g,q,e] + t[k,w,b,g,q,h,e]")
    with pytest.raises(CheckFailed, match="t is read where blocks add to it"):
        sums(reads)
    writes = SUMS.replace("p: p[w,b,h,g,q,e] = x", "t: t[k,w,b,g,q,h,e] = x")
    with pytest.raises(CheckFailed, match="t is written where blocks add to it"):
        sums(writes)


def test_older_machines_do_not_have_it() -> None:
    older = targets.get("cuda:80")
    with pytest.raises(Unsupported, match="needs tma"):
        emit_kernels(legalise(sums(), older), older)
