"""Groups whose tiles the copy engine of a GPU brings, for examples of steps."""

from __future__ import annotations

BOXES = """
group boxes
  in x: bf16[32,64]
  out y: bf16[32,64]
  local t: bf16[32,64]
  t[t.i0,t.i1] = x[t.i0,t.i1] for t.i0 in 32, t.i1 in 64
  y[y.i0,y.i1] = t[y.i0,y.i1] for y.i0 in 32, y.i1 in 64
"""
BOXED = """
Split('y.i0', 8)
ComputeAt('t', 'y.i0.0')
SetScope('t', 'shared')
Swizzle('t', 3, 3, 3)
Tensorize('t.i0', 'nvptx.bulk.2.bf16')
"""
# One tile is needed by all blocks.
ONE_FOR_ALL = """
group one
  in x: bf16[32,64]
  in z: bf16[8,64]
  out y: bf16[32,64]
  local t: bf16[32,64]
  local u: bf16[8,64]
  t[t.i0,t.i1] = x[t.i0,t.i1] for t.i0 in 32, t.i1 in 64
  u[u.i0,u.i1] = z[u.i0,u.i1] for u.i0 in 8, u.i1 in 64
  y[y.i0,y.i1] = t[y.i0,y.i1] + u[y.i0%8,y.i1] for y.i0 in 32, y.i1 in 64
"""
ALL_BOXED = f"""{BOXED}
SetScope('u', 'shared')
Swizzle('u', 3, 3, 3)
Tensorize('u.i0', 'nvptx.bulk.2.bf16')
"""
