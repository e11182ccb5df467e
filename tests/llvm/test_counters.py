"""Quotients and remainders of loops' variables by sizes that only the call knows."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernel.native import Native
from tilewright.ir import dim as D
from tilewright.kernel.interpret import run
from tilewright.kernel.legal import legalise
from tilewright.kernel.text import parse_nest
from tilewright.llvm.emit import emit
from tilewright.targets import default

NESTS = {
    "rows": """
nest k where m: 0..100, n: 0..100
  in x: f32[n,m]
  out y: f32[m,n]
  for i in m*n:
    y: y[(i//n),(i%n)] = x[(i%n),(i//n)]
""",
    "quotients of quotients": """
nest k where m: 0..100, n: 0..100
  in x: f32[n,3,m]
  out y: f32[m,3,n]
  for i in 3*m*n:
    y: y[((i//n)//3),((i//n)%3),(i%n)] = x[(i%n),((i//n)%3),((i//n)//3)]
""",
    "constants first": """
nest k where m: 0..100, n: 0..100
  in x: f32[m,n,2]
  out y: f32[m,n,2]
  for i in 2*m*n:
    y: y[((i//2)//n),((i//2)%n),(i%2)] = x[((i//2)//n),((i//2)%n),1-(i%2)]
""",
    "threads": """
nest k where m: 0..100, n: 0..100
  in x: f32[m,n]
  out y: f32[m,n]
  parallel i in m*n grain 7:
    y: y[(i//n),(i%n)] = x[(i//n),(i%n)] * 2.0
""",
    "other loops around and inside": """
nest k where m: 0..100, n: 0..100
  in x: f32[2,m,n,5]
  out y: f32[2,m,n,5]
  for h in 2:
    for i in m*n:
      for j in 5:
        y: y[h,(i//n),(i%n),j] = x[h,(i//n),(i%n),j] + 1.0
""",
    "under a condition": """
nest k where m: 0..100, n: 0..100
  in x: f32[m,n]
  out y: f32[m,n]
  for i in m*n:
    if #(i) >= 5:
      y: y[(i//n),(i%n)] = x[(i//n),(i%n)]
    else:
      y: y[(i//n),(i%n)] = 9.0
""",
}
SIZES = [(0, 3), (3, 0), (1, 1), (1, 7), (7, 1), (2, 3), (16, 15), (5, 33)]


@pytest.mark.parametrize("name", NESTS)
def test_what_is_counted_is_right(name: str) -> None:
    nest = parse_nest(NESTS[name])
    native, rng = Native(nest, default()), np.random.default_rng(3)
    for m, n in SIZES:
        dims = {"m": m, "n": n}
        arrays = {}
        for b in nest.buffers:
            shape = tuple(int(D.evaluate(d, dims)) for d in b.shape)
            arrays[b.name] = rng.standard_normal(shape).astype(np.float32)
        wanted = run(nest, arrays, dims)
        np.testing.assert_array_equal(native(arrays, dims)["y"], wanted["y"], err_msg=f"{dims}")


@pytest.mark.parametrize("name", NESTS)
def test_no_iteration_divides(name: str) -> None:
    text = emit(legalise(parse_nest(NESTS[name]), default()), default())
    loop, found = "", []
    for line in text.splitlines():
        loop = line if line.endswith(":") and not line.endswith((".exit:", ".pre:")) else loop
        loop = "" if line.endswith((".exit:", ".pre:")) or line.startswith("define") else loop
        if loop and ("udiv" in line or "urem" in line):
            found.append(line)
    constants = [x for x in found if x.rstrip().endswith((", 2", ", 3"))]
    assert found == constants
