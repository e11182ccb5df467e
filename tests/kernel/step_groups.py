"""Groups of the examples of steps."""

from __future__ import annotations

# Rows that begin anywhere in memory.
ANYWHERE = """
group rows
  in x: f32[5,47]
  out y: f32[5,47]
  local t: f32[5,47]
  t[t.i0,t.i1] = exp(x[t.i0,t.i1]) for t.i0 in 5, t.i1 in 47
  y[y.i0,y.i1] = t[y.i0,y.i1] + 1.0 for y.i0 in 5, y.i1 in 47
"""
ANYWHERE_SUMS = """
group row_sums
  in x: f32[5,47]
  out s: f32[5]
  s[s.i0] add= x[s.i0,s.r0] for s.i0 in 5, s.r0 in 47 from 0.0
"""
# Two maps, and one that reads the first.
DEFERRED = """
group deferred
  in x: f32[6]
  out b: f32[6]
  out c: f32[4]
  local a: f32[6]
  a[a.i0] = x[a.i0] * 2.0 for a.i0 in 6
  b[b.i0] = exp(a[b.i0]) for b.i0 in 6
  c[c.i0] = x[c.i0] + 1.0 for c.i0 in 4
"""
