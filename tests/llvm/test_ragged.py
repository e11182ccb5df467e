"""Lanes of which the last ones may not exist: results, and memory that is not to be touched."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from tests.kernel.native import Native
from tilewright.ir import dim as D
from tilewright.ir.target import Target
from tilewright.kernel.interpret import run
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import Nest
from tilewright.kernel.text import nest_text, parse_nest
from tilewright.llvm.emit import emit
from tilewright.llvm.objects import assembly
from tilewright.targets import default, get

# Arrays are exactly as long as the lanes that exist reach.
NESTS = {
    "map": """
nest k where n: 0..1000
  in x: f32[n]
  out y: f32[n]
  for i in (n//16):
    lane j in 16:
      y: y[16*i+j] = exp(x[16*i+j]) + 1.0
  lane j in (n%16):
    y: y[16*(n//16)+j] = exp(x[16*(n//16)+j]) + 1.0
""",
    "vectors side by side": """
nest k where n: 1..1000
  in x: f32[n]
  out y: f32[n]
  for i in ((n+63)//64):
    lane j in min(64,n-64*i):
      y: y[64*i+j] = x[64*i+j] * x[0]
""",
    "columns that are added up": """
nest k where n: 1..15
  in x: f32[7,n]
  out y: f32[n]
  for r in 7:
    lane j in n:
      y: y[j] add= x[r,j]
""",
    "in registers": """
nest k where n: 0..1000
  in x: f32[n]
  out y: f32[1]
  local t: f32[16]
  alloc t
  lane j in 16:
    t: t[j] = -inf
  for i in (n//16):
    lane j in 16:
      t: t[j] max= x[16*i+j]
  lane j in (n%16):
    t: t[j] max= x[16*(n//16)+j]
  y: y[0] = -inf
  lane j in 16:
    y: y[0] max= t[j]
""",
    "one sum of all lanes": """
nest k where n: 1..15
  in x: f32[n]
  out y: f32[1]
  y: y[0] = 0.0
  lane j in n:
    y: y[0] add= x[j]
""",
    "strides": """
nest k where n: 1..15
  in x: f32[3*n-2]
  in z: f32[n]
  out y: f32[2*n-1]
  lane j in n:
    y: y[2*j] = x[3*j] - z[n-j-1]
""",
    "several lanes read one element": """
nest k where n: 1..15
  in x: f32[((n+1)//2)]
  out y: f32[n]
  lane j in n:
    y: y[j] = x[(j//2)] * 3.0
""",
    "strides downwards": """
nest k where n: 1..15
  in x: f32[3*n-2]
  out y: f32[n]
  lane j in n:
    y: y[j] = x[3*n-3*j-3] - 1.0
""",
    "strides beyond edges": """
nest k where n: 1..15
  in x: f32[2*n-1]
  out y: f32[n]
  lane j in n:
    y: y[j] = select(#(2*j) >= 1, x[2*j-1], 5.0) + select(#(2*j+1) < #(2*n-1), x[2*j+1], 7.0)
""",
    "conditions": """
nest k where n: 1..15
  in x: f32[n]
  out y: f32[n]
  lane j in n:
    y: y[j] = select(#(j) >= 1, x[j-1], 5.0) + select(#(j+1) < #(n), x[j+1], 0.0)
""",
    "indices that are data": """
nest k where n: 1..15
  in p: i64[n]
  in x: f32[n]
  out y: f32[n]
  lane j in n:
    y: y[j] = x[${p[j]}]
""",
    "numbers computed of indices that are data": """
nest k where n: 1..15
  in p: i64[n]
  in x: f32[n]
  out y: f32[n]
  out z: i64[n]
  lane j in n:
    y: y[j] = x[(${p[j]}//3)]
    z: z[j] = #(${p[j]}*${p[j]}+j) + #((${p[j]}*7)%5)
""",
    "narrow": """
nest k where n: 1..31
  in x: i8[n]
  in h: bf16[n]
  out y: i8[n]
  out z: bf16[n]
  lane j in n:
    y: y[j] = x[j] + x[0]
    z: z[j] = h[j] * h[j]
""",
    "two conditions": """
nest k where n: 1..15
  in x: f32[n]
  out y: f32[n]
  lane j in n:
    if x[j] > 0.0:
      y: y[j] = x[j] * 3.0
    else:
      y: y[j] = 0.0 - x[j]
""",
}


def _arrays(nest: Nest, n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    out: dict[str, np.ndarray] = {}
    for b in nest.buffers:
        shape = tuple(int(D.evaluate(d, {"n": n})) for d in b.shape) if b.scope == "in" else ()
        if b.scope == "in" and b.dtype.is_float:
            out[b.name] = rng.standard_normal(shape).astype(b.dtype.numpy)
        elif b.scope == "in":
            out[b.name] = rng.integers(0, min(n, 60) or 1, shape).astype(b.dtype.numpy)
        elif b.scope == "out":
            shape = tuple(int(D.evaluate(d, {"n": n})) for d in b.shape)
            out[b.name] = np.full(shape, 2).astype(b.dtype.numpy)
    return out


def _targets() -> list[Target]:
    """With masks of any element, of four bytes and more, and without any."""
    own = default()
    four = replace(own, masked_bytes=4)
    return [own, four, replace(own, has_masks=False)]


@pytest.mark.parametrize("name", NESTS)
def test_lanes_that_exist_are_right_and_others_touch_nothing(name: str) -> None:
    nest = parse_nest(NESTS[name])
    draw, rng = random.Random(name), np.random.default_rng(7)
    low, high = D.bounds(D.as_int(nest.dims[0]))
    high = min(high, 150)
    sizes = {low, high, *(draw.randint(low, high) for _ in range(12))}
    for target in _targets():
        native = Native(nest, target)
        assert "ragged" in nest_text(legalise(nest, target))
        for n in sorted(sizes):
            arrays = _arrays(nest, n, rng)
            wanted = run(nest, arrays, {"n": n})
            got = native(arrays, {"n": n})
            for key, value in wanted.items():
                np.testing.assert_allclose(got[key], value, rtol=1e-5, atol=1e-6, err_msg=f"{n}")
        for n in sorted(sizes)[:: max(1, len(sizes) // 3)]:
            assert native.strays(_arrays(nest, n, rng), {"n": n}) is None


@pytest.mark.parametrize("name", ["several lanes read one element", "strides"])
def test_lanes_apart_read_whole_vectors(name: str) -> None:
    target = get("x86-64-v4")
    text = emit(legalise(parse_nest(NESTS[name]), target), target)
    assert "load float" not in text and "@llvm.masked.load" in text


def test_all_lanes_that_share_elements_read_a_vector() -> None:
    nest = parse_nest(
        """
nest k where n: 1..1000
  in x: f32[8*n]
  out y: f32[16*n]
  for i in n:
    lane j in 16:
      y: y[16*i+j] = x[8*i+(j//2)]
"""
    )
    text = emit(legalise(nest, default()), default())
    assert "load <8 x float>" in text and "load float" not in text
    arrays = {"x": np.arange(24, dtype=np.float32), "y": np.zeros(48, np.float32)}
    assert (Native(nest, default())(arrays, {"n": 3})["y"] == np.arange(48) // 2).all()


def test_a_rest_is_one_masked_vector() -> None:
    """No branch and no element for each lane, in vectors of 16 lanes or 8."""
    for name in ("x86-64-v4", "x86-64-v3"):
        target = get(name)
        rest = NESTS["columns that are added up"].replace("15", str(target.lanes(32) - 1))
        text = assembly(emit(legalise(parse_nest(rest), target), target), target)
        assert "vinsert" not in text and text.count("vaddps") == 1, name
