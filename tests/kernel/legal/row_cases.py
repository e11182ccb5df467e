"""Rows that data place, before and after they are kept in registers."""

from __future__ import annotations

MEETING = """
nest k
  in a: i64[40]
  in x: f32[40,16]
  out y: f32[5,20]
  for i in 5:
    lane l in 20:
      y: y[i,l] = 0.0
  for i in 40 pragma runs 1:
    unroll u in 2:
      lane l in 16:
        y: y[${max(min(a[i], 4), 0)},l+4*u] add= x[i,l]
"""

ROWS = {
    "rows": (
        """
nest k
  in a: i64[40]
  in x: f32[40,32]
  out y: f32[5,32]
  for i in 5:
    lane l in 32:
      y: y[i,l] = 0.0
  for i in 40 pragma runs 1:
    unroll u in 2:
      lane l in 16:
        y: y[${max(min(a[i], 4), 0)},l+16*u] add= x[i,l+16*u]
""",
        """
nest k
  in a: i64[40]
  in x: f32[40,32]
  out y: f32[5,32]
  stack r0: i64[1]
  stack r1: f32[2,16]
  for i in 5:
    lane l in 32:
      y: y[i,l] = 0.0
  alloc r0
  alloc r1
  y: r0[0] = max(min(a[0], 4), 0)
  unroll u in 2:
    lane l in 16:
      y: r1[u,l] = y[${r0[0]},l+16*u]
  for i in 40 pragma runs 1:
    if max(min(a[i], 4), 0) != r0[0]:
      unroll u in 2:
        lane l in 16:
          y: y[${r0[0]},l+16*u] = r1[u,l]
      y: r0[0] = max(min(a[i], 4), 0)
      unroll u in 2:
        lane l in 16:
          y: r1[u,l] = y[${r0[0]},l+16*u]
    unroll u in 2:
      lane l in 16:
        y: r1[u,l] add= x[i,l+16*u]
  unroll u in 2:
    lane l in 16:
      y: y[${r0[0]},l+16*u] = r1[u,l]
""",
    ),
    "rows of columns that meet": (MEETING, MEETING),  # which stay in memory
}
