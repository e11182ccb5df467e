"""Memory of a kernel's own: on the heap, where it is large."""

from __future__ import annotations

import re

import numpy as np

from tests.llvm.test_statements import nest, same
from tilewright.kernel.legal import legalise
from tilewright.llvm.emit import emit
from tilewright.targets import default

HEAP = """
nest kernel
  in x: f32[200000]
  out y: f32[3]
  local t: f32[100000]
  parallel i in 2 grain 1:
    alloc t
    for j in 100000:
      t: t[j] = x[j] + x[i]
    y: y[i] = t[7]
  for k in 1:
    alloc t
    for j in 100000:
      t: t[j] = x[j] * 2.0
    y: y[k] = t[9]
  alloc t
  for j in 100000:
    t: t[j] = x[j+100000]
  y: y[2] = t[5]
"""


def test_memory_of_one_name_in_blocks_and_around_them() -> None:
    """Each block has its own, and what is around it is meant again behind it."""
    n = nest(HEAP)
    x = np.arange(200000, dtype=np.float32)
    same(HEAP, {"x": x, "y": np.zeros(3, np.float32)})
    for function in emit(legalise(n, default()), default()).split("define ")[1:]:
        taken = re.findall(r"(%\S+) = call ptr @malloc", function)
        assert len(taken) == len(set(taken)) == function.count("call void @free")
        for address in taken:
            _, behind = function.split(f"call void @free(ptr {address})")
            assert not re.search(rf"{re.escape(address)}\b", behind), "used after it was given back"
