"""An example of every step: a group or a nest, the steps before, the step."""

from __future__ import annotations

from tests.kernel.attention_examples import (
    ALL_THREE,
    BOTH,
    CAUSAL,
    COPIES,
    GROUPS,
    IN_GROUPS,
    IN_PARTS,
    ONLINE,
    THRICE,
    TWICE,
    USES,
)
from tests.kernel.box_groups import ALL_BOXED, BOXED, BOXES, ONE_FOR_ALL
from tests.kernel.step_groups import ANYWHERE, ANYWHERE_SUMS, DEFERRED

MAP = """
group map
  in x: f32[100]
  out y: f32[100]
  y[y.i0] = exp(x[y.i0]) for y.i0 in 100
"""
GRID = """
group grid
  in x: f32[8,6]
  out y: f32[8,6]
  y[y.i0,y.i1] = exp(x[y.i0,y.i1]) for y.i0 in 8, y.i1 in 6
"""
SCATTERED = """
group scattered
  in x: f32[24]
  in at: i64[24]
  in z: f32[5]
  out y: f32[5]
  y[${max(min(at[y.i0], 4:i64), 0:i64)}] add= x[y.i0] for y.i0 in 24 in order from z[y.init.i0]
"""
SYMBOLIC = """
group symbolic where n: 1..
  in x: f32[n]
  out y: f32[n]
  y[y.i0] = x[y.i0] + 1.0 for y.i0 in n
"""
TWO = """
group two
  in x: f32[8,6]
  out y: f32[8,6]
  local t: f32[8,6]
  t[t.i0,t.i1] = exp(x[t.i0,t.i1]) for t.i0 in 8, t.i1 in 6
  y[y.i0,y.i1] = t[y.i0,y.i1] + 1.0 for y.i0 in 8, y.i1 in 6
"""
OUTPUTS = """
group outputs
  in x: f32[20]
  out a: f32[20]
  out b: f32[20]
  a[a.i0] = x[a.i0] + 1.0 for a.i0 in 20
  b[b.i0] = x[b.i0] * 2.0 for b.i0 in 20
"""
SCALED = """
group scaled
  in w: f32[4,12]
  in x: f32[4]
  out y: f32[4,12]
  local r: f32[4]
  r[r.i0] = exp(x[r.i0]) for r.i0 in 4
  y[y.i0,y.i1] = w[y.i0,y.i1] * r[y.i0] for y.i0 in 4, y.i1 in 12
"""
STREAMED = """
Split('y.i1', 4)
CacheRead('w', 'y', 't')
ComputeAt('t', 'y.i1.0')
ComputeAt('r', 'y.i0')
SetScope('t', 'shared')
Bind('y.i0', 'block.x')
Bind('y.i1.1', 'thread.x')
Bind('t.i1', 'thread.x')
"""
PIPED = f"{STREAMED}Pipeline('y.i1.0', 't', asynchronous=True)"
SUM = """
group sum
  in x: f32[5,64]
  out y: f32[5]
  local s: f32[5]
  s[s.i0] add= x[s.i0,s.r0] for s.i0 in 5, s.r0 in 64 from 0.0
  y[y.i0] = s[y.i0] for y.i0 in 5
"""
COLUMNS = """
group columns
  in x: f32[9,8]
  out y: f32[8]
  local s: f32[8]
  s[s.i0] add= x[s.r0,s.i0] for s.i0 in 8, s.r0 in 9 from 0.0
  y[y.i0] = s[y.i0] for y.i0 in 8
"""
WINDOW = """
group window
  in x: f32[20]
  out y: f32[20]
  local t: f32[20]
  t[t.i0] = x[t.i0] * 2.0 for t.i0 in 20
  y[y.i0] = select(#(y.i0-1) >= 0, t[y.i0-1], 0.0) + t[y.i0] for y.i0 in 20
"""
BEFORE = "select(#(s.i1) == 0, 0.0, s[s.i0,max(0,s.i1-1)])"
SCAN = f"""
group scan
  in x: f32[4,9]
  out y: f32[4,9]
  local s: f32[4,9]
  s[s.i0,s.i1] = {BEFORE} + x[s.i0,s.i1] for s.i0 in 4, s.i1 in 9 in order
  y[y.i0,y.i1] = s[y.i0,y.i1] for y.i0 in 4, y.i1 in 9
"""
# What is above and to the right comes first only while whole rows do.
DIAGONAL = """
group diagonal
  in x: f32[4,9]
  out s: f32[4,9]
  s[s.i0,s.i1] = s[max(0,s.i0-1),min(8,s.i1+1)] + x[s.i0,s.i1] for s.i0 in 4, s.i1 in 9 in order
"""
AHEAD = WINDOW.replace("y.i0-1", "y.i0+1").replace(">= 0", "< 20")
SCATTER = """
group scatter
  in x: f32[9]
  in k: i64[9]
  out y: f32[5]
  y[${max(min(k[y.i0], 4), 0)}] = x[y.i0] for y.i0 in 9 in order from 0.0
"""
PACKED = """
group packed
  in w: f32[6,12]
  out y: f32[64]
  local t: f32[64]
  t[t.i0] = w[(t.i0//12),(t.i0%12)] for t.i0 in 64
  y[y.i0] = t[y.i0] for y.i0 in 64
"""
CHAIN = """
group chain
  in x: f32[8]
  out y: f32[8]
  out z: f32[8]
  local t: f32[8]
  y[y.i0] = x[y.i0] + 1.0 for y.i0 in 8
  t[t.i0] = x[-t.i0+7] * 2.0 for t.i0 in 8
  z[z.i0] = t[z.i0] for z.i0 in 8
"""

# A maximum so far for each row, to which sums are rescaled.
RUNNING = """
group running
  in m: f32[5,4]
  in w: f32[5,4,6]
  out y: f32[4,6]
  local t: (f32,f32)[4,6]
  combine both: max(l0[], r0[]); \
l1[] * exp(l0[] - max(l0[], r0[])) + r1[] * exp(r0[] - max(l0[], r0[])) from -1e+30; 0.0
  t[t.i0,t.i1] both= tuple(m[t.r0,t.i0], w[t.r0,t.i0,t.i1]) for t.i0 in 4, t.i1 in 6, t.r0 in 5 \
from tuple(-1e+30, 0.0)
  y[y.i0,y.i1] = item(t[y.i0,y.i1], 1) + item(t[y.i0,y.i1], 0) for y.i0 in 4, y.i1 in 6
"""

EMPTY = """
group empty where n: 0..
  in x: f32[8,n]
  out y: f32[8,n]
  y[y.i0,y.i1] = exp(x[y.i0,y.i1]) for y.i0 in 8, y.i1 in n
"""
UNREAD = """
group unread
  in x: f32[5,64]
  out y: f32[5]
  local s: f32[5]
  s[s.i0] add= x[s.i0,s.r0] for s.i0 in 5, s.r0 in 64 from 0.0
  y[y.i0] = x[y.i0,0] for y.i0 in 5
"""
# What y adds up is copied first: rows of x, or those that k names.
COPIED = """
group copied
  in x: f32[4,6,40]
  out y: f32[4,6]
  local t: f32[4,6,40]
  t[t.i0,t.i1,t.i2] = x[t.i0,t.i1,t.i2] * 2.0 for t.i0 in 4, t.i1 in 6, t.i2 in 40
  y[y.i0,y.i1] add= t[y.i0,y.i1,y.r0] for y.i0 in 4, y.i1 in 6, y.r0 in 40 from 0.0
"""
NAMED = COPIED.replace("out y", "in k: i64[6]\n  out y").replace(
    "x[t.i0,t.i1,t.i2]", "x[t.i0,${max(min(k[t.i1], 5), 0)},t.i2]"
)
LATER = NAMED.replace("k[t.i1]", "k[t.i0]")
SUMS_AHEAD = "Prefetch('s', 's.i0', 1, 's.i0')"
COPY = "ComputeAt('t', 'y.i0')\nSplit('t.i2', 8)\nVectorize('t.i2.1')"
BROADCAST = """
group broadcast
  in x: f32[8]
  in z: f32[6]
  out y: f32[8,6]
  y[y.i0,y.i1] = exp(x[y.i0]) * z[y.i1] for y.i0 in 8, y.i1 in 6
"""
DOT = """
group dot
  in a: i8[4]
  in b: i8[8,4]
  out c: i32[8]
  c[c.i0] add= cast<i32>(a[c.r0]) * cast<i32>(b[c.i0,c.r0]) for c.i0 in 8, c.r0 in 4 from 0:i32
"""

ROWS = """
group rows
  in x: f32[7,6]
  out y: f32[7]
  local t: f32[7,6]
  t[t.i0,t.i1] = exp(x[t.i0,t.i1]) for t.i0 in 7, t.i1 in 6
  y[y.i0] add= t[y.i0,y.r0] for y.i0 in 7, y.r0 in 6 from 0.0
"""
TURNED = """
group turned
  in x: f32[8]
  out y: f32[8]
  local t: f32[8]
  t[t.i0] = exp(x[t.i0]) for t.i0 in 8
  y[y.i0] = t[-y.i0+7] + 1.0 for y.i0 in 8
"""
LATE = """
group late
  in x: f32[8]
  out y: f32[8]
  local t: f32[8]
  local u: f32[8]
  t[t.i0] = exp(x[t.i0]) for t.i0 in 8
  u[u.i0] = x[u.i0] * 2.0 for u.i0 in 8
  y[y.i0] = t[y.i0] + u[y.i0] for y.i0 in 8
"""
FROM = """
group from
  in x: f32[8]
  out y: f32[8]
  local t: f32[8]
  t[t.i0] = exp(x[t.i0]) for t.i0 in 8
  y[y.i0] add= t[y.i0] for y.i0 in 8 in order from t[-y.init.i0+7]
"""
SCANNED = """
group scanned
  in x: f32[4,9]
  out y: f32[4,9]
  local t: f32[4,9]
  t[t.i0,t.i1] = exp(x[t.i0,t.i1]) for t.i0 in 4, t.i1 in 9
  y[y.i0,y.i1] = select(#(y.i1) == 0, 0.0, y[y.i0,max(0,y.i1-1)]) + t[y.i0,y.i1] \
for y.i0 in 4, y.i1 in 9 in order
"""
PART = """
group part
  in x: f32[5]
  out y: f32[9]
  y[y.i0] add= x[y.i0] for y.i0 in 5 in order from 1.0
"""
GATHER = """
group gather
  in x: f32[9]
  in k: i64[9]
  out y: f32[9]
  y[y.i0] = x[${max(min(k[y.i0], 8), 0)}] for y.i0 in 9
"""
STEPPED = """
group stepped where n: 1..
  in x: f32[n]
  out y: f32[n]
  local t: f32[n]
  t[t.i0] = x[t.i0] for t.i0 in n
  y[y.i0] = t[y.i0] + 1.0 for y.i0 in n
"""
PLACED = "Split('y.i0', 4)\nComputeAt('t', 'y.i0.0')"

# Sums of what lies on or before the diagonal; a band around it, in products with rows that are
# made first; cells of which some are never read.
TRIANGLE = """
group triangle
  in x: f32[20,20]
  out y: f32[20]
  local s: f32[20]
  s[s.i0] add= select(#(s.r0) <= #(s.i0), x[s.i0,s.r0], 0.0) for s.i0 in 20, s.r0 in 20 from 0.0
  y[y.i0] = s[y.i0] for y.i0 in 20
"""
BAND = """
group band
  in x: f32[20,20]
  in v: f32[20,3]
  out y: f32[20,3]
  local t: f32[20,20]
  local s: f32[20,3]
  t[t.i0,t.i1] = select((#(t.i1) <= #(t.i0)) & (#(t.i0 - t.i1) < 5), exp(x[t.i0,t.i1]), 0.0) \
for t.i0 in 20, t.i1 in 20
  s[s.i0,s.i1] add= t[s.i0,s.r0] * v[s.r0,s.i1] for s.i0 in 20, s.i1 in 3, s.r0 in 20 from 0.0
  y[y.i0,y.i1] = s[y.i0,y.i1] for y.i0 in 20, y.i1 in 3
"""
PARTLY = """
group partly
  in x: f32[20]
  out y: f32[8]
  local t: f32[20]
  t[t.i0] = exp(x[t.i0]) for t.i0 in 20
  y[y.i0] = t[y.i0 + 3] for y.i0 in 8
"""

# Weights of a softmax, of keys up to a query's own, or before it.
WEIGHTS = """
group weights
  in x: f32[20,20]
  out y: f32[20]
  local t: f32[20]
  local s: f32[20]
  t[t.i0] max= select(#(t.r0) <= #(t.i0), x[t.i0,t.r0], -inf) for t.i0 in 20, t.r0 in 20 from -inf
  s[s.i0] add= exp(select(#(s.r0) <= #(s.i0), x[s.i0,s.r0], -inf) - t[s.i0]) \
for s.i0 in 20, s.r0 in 20 from 0.0
  y[y.i0] = s[y.i0] for y.i0 in 20
"""
BEFORE = WEIGHTS.replace(" <= ", " < ")
LOWEST = WEIGHTS.replace(", -inf)", ", -3.4e+38)")  # for -inf, as long as each row sees a key
LOWEST_BEFORE = LOWEST.replace(" <= ", " < ")
# Two conditions, one inside the other: keys of a block that there are, and that a row sees.
BLOCK = """
group block
  in x: f32[3,20,8]
  out y: f32[3,20]
  local t: f32[3,20]
  t[t.i0,t.i1] max= select(#(8*t.i0+t.r0) < 20, \
select(#(8*t.i0+t.r0) <= #(t.i1), x[t.i0,t.i1,t.r0], -inf), -inf) \
for t.i0 in 3, t.i1 in 20, t.r0 in 8 from -inf
  y[y.i0,y.i1] = t[y.i0,y.i1] for y.i0 in 3, y.i1 in 20
"""
# Maxima and sums of the blocks of a row put together: a block that it does not see is left out.
PARTS = """
group parts
  in x: f32[3,20,8]
  out y: f32[20]
  local t: f32[3,20]
  local s: f32[3,20]
  local p: (f32,f32)[20]
  combine both: max(l0[], r0[]); l1[] + r1[] from -inf; 0.0
  t[t.i0,t.i1] max= select(#(8*t.i0+t.r0) <= #(t.i1), x[t.i0,t.i1,t.r0], -inf) \
for t.i0 in 3, t.i1 in 20, t.r0 in 8 from -inf
  s[s.i0,s.i1] add= select(#(8*s.i0+s.r0) <= #(s.i1), exp(x[s.i0,s.i1,s.r0]), 0.0) \
for s.i0 in 3, s.i1 in 20, s.r0 in 8 from 0.0
  p[p.i0] both= tuple(t[p.r0,p.i0], s[p.r0,p.i0]) for p.i0 in 20, p.r0 in 3 from tuple(-inf, 0.0)
  y[y.i0] = item(p[y.i0], 0) + item(p[y.i0], 1) for y.i0 in 20
"""
SOME_PARTS = PARTS.replace("exp(x[s.i0,s.i1,s.r0]), 0.0)", "exp(x[s.i0,s.i1,s.r0]), 1.0)")

# Products of narrow numbers, as tile kernels have them: a product adds to what is there already.
PRODUCT = """
nest product
  in x: {dtype}[4,8]
  in y: {dtype}[8,6]
  out c: {sums}[4,6]
  local a: {dtype}[4,8]
  alloc a
  for s.i0 in 4:
    for s.i1 in 8:
      s: a[s.i0,s.i1] = x[s.i0,s.i1]
  for z.i0 in 4:
    for z.i1 in 6:
      z: c[z.i0,z.i1] = cast<{sums}>(#(6*z.i0+z.i1))
  for d.i0 in 4:
    for d.i1 in 6:
      for d.r0 in 8:
        d: c[d.i0,d.i1] add= cast<{sums}>(a[d.i0,d.r0]) * cast<{sums}>(y[d.r0,d.i1])
"""
NARROW = PRODUCT.format(dtype="bf16", sums="f32")
BYTES = PRODUCT.format(dtype="i8", sums="i32")

# Programs of a tile kernel: a tile is turned round.
PROGRAMS = """
nest turned
  in x: i32[3,64]
  out y: i32[3,64]
  local t: i32[64]
  independent program in 3:
    alloc t
    for s.i0 in 64:
      s: t[s.i0] = x[program,s.i0] + 1:i32
    for u.i0 in 64:
      u: t[u.i0] = t[u.i0] * 2:i32
    for z.i0 in 64:
      z: y[program,z.i0] = t[-1*z.i0+63]
"""
PRODUCTS = """
group products
  in a: f32[4,10]
  in b: f32[10]
  out y: f32[4]
  local u: f32[4,10]
  local v: f32[10]
  local s: f32[4]
  u[u.i0,u.i1] = a[u.i0,u.i1] for u.i0 in 4, u.i1 in 10
  v[v.i0] = b[v.i0] for v.i0 in 10
  s[s.i0] add= u[s.i0,s.r0] * v[s.r0] for s.i0 in 4, s.r0 in 10 from 0.0
  y[y.i0] = s[y.i0] for y.i0 in 4
"""
MATRICES = """
group matrices
  in a: f32[4,10]
  in b: f32[10,6]
  out y: f32[4,6]
  local s: f32[4,6]
  s[s.i0,s.i1] add= a[s.i0,s.r0] * b[s.r0,s.i1] for s.i0 in 4, s.i1 in 6, s.r0 in 10 from 0.0
  y[y.i0,y.i1] = exp(s[y.i0,y.i1]) for y.i0 in 4, y.i1 in 6
"""
SUMS_SO_FAR = """
group running
  in x: f32[3,22]
  out y: f32[3,22]
  local s: f32[3,22]
  s[s.i0,s.i1] = select(#(s.i1) > 0, s[s.i0,s.i1-1] + x[s.i0,s.i1], x[s.i0,s.i1]) \
for s.i0 in 3, s.i1 in 22 in order
  y[y.i0,y.i1] = s[y.i0,y.i1] * 2.0 for y.i0 in 3, y.i1 in 22
"""
POOLED = """
group pooled
  in x: f32[7,9]
  out y: f32[3,4]
  local t: f32[3,4]
  t[t.i0,t.i1] max= x[2*t.i0+t.r0,2*t.i1+t.r1] \
for t.i0 in 3, t.i1 in 4, t.r0 in 3, t.r1 in 3 from -inf
  y[y.i0,y.i1] = exp(t[y.i0,y.i1]) for y.i0 in 3, y.i1 in 4
"""
DOWN = "RFactor('t', ('t.r1',), 'w')"
ZEROS = "Pad('u', 1, 4, zeros=True)\nPad('v', 0, 4, zeros=True)"

# name of the golden file: (group or nest, steps before, the step)
EXAMPLES = {
    "split": (MAP, "", "Split('y.i0', 16)"),
    "split-symbolic": (SYMBOLIC, "", "Split('y.i0', 4)"),
    "reorder": (GRID, "", "Reorder(('y.i1', 'y.i0'))"),
    "fuse": (GRID, "", "Fuse('y.i0', 'y.i1', 'y.f')"),
    "library": (MATRICES, "", "Library(('s',))"),
    "fuse-axes": (TWO, "", "FuseAxes('t', 0)"),
    "slide": (POOLED, DOWN, "Slide('w', 1, 2)"),
    "parallel": (GRID, "", "Parallel('y.i0', 2)"),
    "vectorize": (GRID, "", "Vectorize('y.i1')"),
    "vectorize-masked": (SYMBOLIC, "Split('y.i0', 4)", "Vectorize('y.i0.1', masked=True)"),
    "vectorize-around": (COLUMNS, "InitAt('s', 's.i0')", "Vectorize('s.i0')"),
    "vectorize-reduction": (SUM, "Split('s.r0', 8)", "Vectorize('s.r0.1')"),
    "scan-lanes": (SUMS_SO_FAR, "Split('s.i1', 4)\nPeel('s.i1.0')", "ScanLanes('s.i1.1')"),
    "scan-lanes-from": (SCAN, "Split('s.i1', 4)\nPeel('s.i1.0')", "ScanLanes('s.i1.1')"),
    "unroll": (GRID, "", "Unroll('y.i1')"),
    "unroll-guarded": (SYMBOLIC, "Split('y.i0', 4)", "Unroll('y.i0.1', guarded=True)"),
    "peel": (MAP, "Split('y.i0', 16)", "Peel('y.i0.0')"),
    "peel-symbolic": (SYMBOLIC, "Split('y.i0', 4)", "Peel('y.i0.0')"),
    "peel-cases": (SYMBOLIC, "Split('y.i0', 4)", "Peel('y.i0.0', cases=True)"),
    "compute-at": (TWO, "", "ComputeAt('t', 'y.i0')"),
    "compute-at-reduction": (SUM, "", "ComputeAt('s', 'y.i0')"),
    "compute-at-window": (WINDOW, "Split('y.i0', 8)", "ComputeAt('t', 'y.i0.0')"),
    "compute-at-scan": (SCAN, "", "ComputeAt('s', 'y.i0')"),
    "compute-with": (OUTPUTS, "", "ComputeWith('b', 'a.i0')"),
    "compute-with-guest": (CHAIN, "ComputeAt('t', 'z.i0')", "ComputeWith('z', 'y.i0')"),
    "join": (OUTPUTS, "", "Join('a.i0', 'b.i0')"),
    "compute-inline": (TWO, "", "ComputeInline('t')"),
    "compute-inline-unread": (UNREAD, "", "ComputeInline('s')"),
    "cache-read": (MAP, "", "CacheRead('x', 'y', 'xc')"),
    "cache-read-several": (OUTPUTS, "", "CacheRead('x', ('a', 'b'), 'xc')"),
    "rfactor": (SUM, "Split('s.r0', 4)", "RFactor('s', ('s.r0.1',), 'p')"),
    "set-scope": (TWO, "ComputeAt('t', 'y.i0')", "SetScope('t', 'register')"),
    "set-scope-shared": (TWO, "ComputeAt('t', 'y.i0')", "SetScope('t', 'shared')"),
    "rebase": (ONLINE, IN_PARTS, "Rebase('e', 't_f1')"),
    "add-into": (ONLINE, IN_PARTS + "Rebase('e', 't_f1')", "AddInto('s')"),
    "unmask": (CAUSAL, "", "Unmask('s.r0')"),
    "reverse": (MAP, "Split('y.i0', 16)\nBind('y.i0.0', 'block.x')", "Reverse('y.i0.0')"),
    "join-copies": (COPIES, IN_GROUPS, "JoinCopies('u')"),
    "wait-once": (GROUPS, USES, "WaitOnce('s.r0.0')"),
    "delay": (TWICE, BOTH, "Delay('o.r0', 'o')"),
    "hasten": (THRICE, ALL_THREE, "Hasten('o.r0')"),
    "defer": (DEFERRED, "", "Defer('b')"),
    "components": (RUNNING, "Reorder(('t.r0', 't.i0', 't.i1'))", "Components('t', 1)"),
    "swizzle": (TWO, "SetScope('t', 'shared')", "Swizzle('t', 1, 1, 1)"),
    "bind": (MAP, "Split('y.i0', 16)\nBind('y.i0.0', 'block.x')", "Bind('y.i0.1', 'thread.x')"),
    "synchronise": (
        WINDOW,
        "Bind('t.i0', 'thread.x')\nBind('y.i0', 'thread.x')",
        "Synchronise()",
    ),
    "distribute": (
        PROGRAMS,
        "",
        "Distribute(threads=(4, 8, 1), layouts=('s.i0 = y8 x4 v2', 'u.i0 = y8 x4 v2', "
        "'z.i0 = 2 y8 x4'))",
    ),
    "gather-store": (PROGRAMS, "", "GatherStore('z')"),
    "pad": (PACKED, "", "Pad('t', 0, 12)"),
    "pad-zeros": (TWO, "", "Pad('t', 1, 4, zeros=True)"),
    "pad-sum": (PRODUCTS, ZEROS, "PadSum('s.r0', 4)"),
    "complete": (MAP, "Split('y.i0', 16)", "Complete('y.i0.1')"),
    "align": (ANYWHERE, "ComputeAt('t', 'y.i0')", "Align(('t.i1', 'y.i1'), 'y.i0', 4, 8)"),
    "align-rfactor": (
        ANYWHERE_SUMS,
        "InitAt('s', 's.i0')\nAlign(('s.r0',), 's.i0', 4, 8)",
        "RFactor('s', ('s.r0.0.1',), 'p')",
    ),
    "permute": (TWO, "", "Permute('t', (1, 0))"),
    "cache-write": (SUM, "", "CacheWrite('s', 'c')"),
    "split-parts": (MAP, "", "Split('y.i0', parts=4)"),
    "split-even": (SYMBOLIC, "", "Split('y.i0', 16, 4)"),
    "split-parallel": (SYMBOLIC, "Parallel('y.i0')", "Split('y.i0', 16)"),
    "storage-align": (TWO, "", "StorageAlign('t', 0, 16)"),
    "init-at": (SUM, "Split('s.i0', 2)", "InitAt('s', 's.i0.0')"),
    "reverse-compute-at": (TWO, "Split('t.i1', 4)", "ReverseComputeAt('y', 't.i1.0')"),
    "reverse-compute-at-reduction": (SUM, "InitAt('s', 's.i0')", "ReverseComputeAt('y', 's.i0')"),
    "reverse-compute-at-scan": (SCANNED, "", "ReverseComputeAt('y', 't.i0')"),
    "double-buffer": (TWO, "ComputeAt('t', 'y.i0')", "DoubleBuffer('t')"),
    "pipeline": (TWO, "ComputeAt('t', 'y.i0')", "Pipeline('y.i0', 't')"),
    "pipeline-symbolic": (STEPPED, PLACED, "Pipeline('y.i0.0', 't', 2)"),
    "pipeline-asynchronous": (
        STEPPED,
        f"{PLACED}\nSetScope('t', 'shared')",
        "Pipeline('y.i0.0', 't', asynchronous=True)",
    ),
    "begin-early": (SCALED, PIPED, "BeginEarly('y.i1.0')"),
    "roles": (BOXES, BOXED, "Roles('y.i0.0', 2)"),
    "bring-once": (ONE_FOR_ALL, f"{ALL_BOXED}Roles('y.i0.0', 2)", "BringOnce(('u',))"),
    "mirror": (MAP, "Split('y.i0', 10)\nBind('y.i0.0', 'block.x')", "Mirror('y.i0.0', 10)"),
    "backwards": (TRIANGLE, "Trim('s.r0')", "Backwards('s.r0')"),
    "walk": (MAP, "Split('y.i0', 10)\nBind('y.i0.0', 'block.x')", "Walk('y.i0.0', 4)"),
    "finish-last": (
        TWO,
        "Bind('t.i0', 'block.x')\nBind('t.i1', 'thread.x')",
        "FinishLast('t.i0', 'c')",
    ),
    "finish-last-columns": (
        COLUMNS,
        "Split('s.r0', 3)\nRFactor('s', ('s.r0.0',), 'p')\nReorder(('p.r0.0', 'p.i0'))\n"
        "ComputeWith('y', 's.i0')\nBind('p.r0.0', 'block.y')\nBind('p.i0', 'block.x')\n"
        "Bind('s.i0', 'block.x')",
        "FinishLast('p.r0.0', 'c')",
    ),
    "add-atomically": (SCATTERED, "", "AddAtomically('y')"),
    "prefetch": (SUM, "", "Prefetch('x', 's.i0', 2)"),
    "prefetch-sums": (SUM, "Split('s.r0', 8)\nReorder(('s.r0.0', 's.i0', 's.r0.1'))", SUMS_AHEAD),
    "prefetch-over": (SUM, "Split('s.r0', 32)", "Prefetch('x', 's.i0', 1, 's.r0.0')"),
    "prefetch-copy": (COPIED, COPY, "Prefetch('x', 'y.i0', 1, 'y.i1')"),
    "prefetch-copy-rows": (
        COPIED,
        f"{COPY}\nSplit('y.i1', 4)",
        "Prefetch('x', 'y.i0', 1, 'y.i1.0')",
    ),
    "prefetch-copy-parts": (
        COPIED,
        f"{COPY}\nSplit('y.r0', 10)",
        "Prefetch('x', 'y.i0', 1, 'y.r0.0')",
    ),
    "prefetch-copy-around": (
        COPIED,
        "ComputeAt('t', 'y.i1')\nSplit('t.i2', 8)\nVectorize('t.i2.1')\nSplit('y.r0', 10)",
        "Prefetch('x', 'y.i1', 1, 'y.r0.0', 2)",
    ),
    "prefetch-rows": (
        SUM,
        "Split('s.r0', 16)\nReorder(('s.r0.0', 's.i0', 's.r0.1'))",
        "Prefetch('x', 's.r0.0', 1, 's.r0.0')",
    ),
    "prefetch-results": (
        COPIED,
        "Split('t.i2', 8)\nVectorize('t.i2.1')",
        "Prefetch('t', 't.i1', 1, 't.i1')",
    ),
    "prefetch-copy-named": (NAMED, COPY, "Prefetch('x', 'y.i0', 1, 'y.i1')"),
    "pragma": (MAP, "", "Pragma('y.i0', 'unroll', 4)"),
    "pragma-nontemporal": (GRID, "", "Pragma('y.i0', 'nontemporal')"),
    "relayout": (TWO, "", "Relayout('t', 'i, j -> j//4, i, j%4')"),
    "relayout-input": (TWO, "", "Relayout('x', 'i, j -> j//4, i, j%4')"),
    "materialise": (BROADCAST, "", "Materialise('y', 'exp(x[y.i0])', 'e')"),
    "tile": (GRID, "", "Tile('y.i0', 'y.i1', 4, 2)"),
    "trim": (TRIANGLE, "", "Trim('s.r0')"),
    "trim-split": (TRIANGLE, "Split('s.r0', 4)", "Trim('s.r0.0')"),
    "trim-band": (BAND, "Reorder(('s.r0', 's.i1'))", "Trim('s.r0')"),
    "trim-weights": (WEIGHTS, "", "Trim('s.r0')"),
    "trim-lowest": (LOWEST, "", "Trim('s.r0')"),
    "trim-nested": (BLOCK, "", "Trim('t.r0')"),
    "trim-parts": (PARTS, "", "Trim('p.r0')"),
    "trim-unread": (PARTLY, "", "Trim('t.i0')"),
    "retype": (NARROW, "", "Retype('a', 'f32')"),
    "copy-operand": (NARROW, "", "CopyOperand('a', 'd', 'u')"),
    "other-sign": (BYTES, "", "OtherSign('d')"),
    "tensorize": (DOT, "", "Tensorize('c.i0', 'arm64.sdot')"),
}
