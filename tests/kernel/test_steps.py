"""Every step: the loops before and after as golden text, the same result, and its refusals."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.kernel.fuzz import Judge
from tilewright.base.errors import Refused
from tilewright.kernel.check import verify
from tilewright.kernel.nest import start
from tilewright.kernel.step import STEPS, apply, parse_trace
from tilewright.kernel.text import nest_text, parse_group
from tilewright.targets import families

families()  # declares the instructions that steps may name

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

# name of the golden file: (group, steps before, the step)
EXAMPLES = {
    "split": (MAP, "", "Split('y.i0', 16)"),
    "split-symbolic": (SYMBOLIC, "", "Split('y.i0', 4)"),
    "reorder": (GRID, "", "Reorder(('y.i1', 'y.i0'))"),
    "fuse": (GRID, "", "Fuse('y.i0', 'y.i1', 'y.f')"),
    "fuse-axes": (TWO, "", "FuseAxes('t', 0)"),
    "parallel": (GRID, "", "Parallel('y.i0', 2)"),
    "vectorize": (GRID, "", "Vectorize('y.i1')"),
    "vectorize-masked": (SYMBOLIC, "Split('y.i0', 4)", "Vectorize('y.i0.1', masked=True)"),
    "vectorize-around": (COLUMNS, "InitAt('s', 's.i0')", "Vectorize('s.i0')"),
    "vectorize-reduction": (SUM, "Split('s.r0', 8)", "Vectorize('s.r0.1')"),
    "unroll": (GRID, "", "Unroll('y.i1')"),
    "unroll-guarded": (SYMBOLIC, "Split('y.i0', 4)", "Unroll('y.i0.1', guarded=True)"),
    "peel": (MAP, "Split('y.i0', 16)", "Peel('y.i0.0')"),
    "peel-symbolic": (SYMBOLIC, "Split('y.i0', 4)", "Peel('y.i0.0')"),
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
    "swizzle": (TWO, "SetScope('t', 'shared')", "Swizzle('t', 1, 1, 1)"),
    "bind": (MAP, "Split('y.i0', 16)\nBind('y.i0.0', 'block.x')", "Bind('y.i0.1', 'thread.x')"),
    "synchronise": (
        WINDOW,
        "Bind('t.i0', 'thread.x')\nBind('y.i0', 'thread.x')",
        "Synchronise()",
    ),
    "pad": (PACKED, "", "Pad('t', 0, 12)"),
    "permute": (TWO, "", "Permute('t', (1, 0))"),
    "cache-write": (SUM, "", "CacheWrite('s', 'c')"),
    "split-parts": (MAP, "", "Split('y.i0', parts=4)"),
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
    "prefetch": (SUM, "", "Prefetch('x', 's.i0', 2)"),
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
    "prefetch-copy-named": (NAMED, COPY, "Prefetch('x', 'y.i0', 1, 'y.i1')"),
    "pragma": (MAP, "", "Pragma('y.i0', 'unroll', 4)"),
    "pragma-nontemporal": (GRID, "", "Pragma('y.i0', 'nontemporal')"),
    "relayout": (TWO, "", "Relayout('t', 'i, j -> j//4, i, j%4')"),
    "relayout-asked": (TWO, "", "Relayout('x', 'i, j -> j//4, i, j%4')"),
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
    "tensorize": (DOT, "", "Tensorize('c.i0', 'arm64.sdot')"),
}
# What not every CPU has; test_simt.py and tests/targets run these.
NOT_NATIVE = ("bind", "synchronise", "set-scope-shared", "tensorize", "pipeline-asynchronous")
NOT_NATIVE += ("swizzle",)


@pytest.mark.parametrize("name", EXAMPLES)
def test_before_and_after(name: str, golden: Callable[[str, str], None]) -> None:
    text, before, step = EXAMPLES[name]
    g = parse_group(text)
    n = apply(start(g), parse_trace(before))
    (s,) = parse_trace(step)
    after = s.apply(n)
    golden(name, f"{nest_text(n)}\n{s}\n\n{nest_text(after)}")
    sizes = [{"n": k} for k in (1, 4, 7)] if g.dims() else [{}]
    judge = Judge(g, sizes)
    judge.exact = False
    for k in range(len(sizes)):
        judge.nest(after, k)
    if name not in NOT_NATIVE:
        judge.native(after)
    assert nest_text(after) != nest_text(n)


def test_every_step_has_an_example() -> None:
    shown = {type(parse_trace(step)[0]).__name__ for _, _, step in EXAMPLES.values()}
    assert shown == set(STEPS)


# (group, steps before, the step, what its refusal says)
REFUSALS = [
    (MAP, "", "Split('y.i7', 4)", "there is no loop y.i7"),
    (MAP, "", "Split('y.i0', 0)", "0 is not a positive factor"),
    (MAP, "", "Split('y.i0', -2)", "-2 is not a positive factor"),
    (GRID, "Vectorize('y.i1')", "Split('y.i1', 2)", "y.i1 is already lane"),
    (GRID, "", "Reorder(('y.i0',))", "two or more"),
    (GRID, "", "Reorder(('y.i0', 'y.i0'))", "two or more different"),
    (TWO, "", "Reorder(('y.i0', 't.i1'))", "not perfectly nested"),
    (GRID, "Parallel('y.i0')", "Reorder(('y.i1', 'y.i0'))", "y.i0 is already parallel"),
    (GRID, "Vectorize('y.i1')", "Reorder(('y.i1', 'y.i0'))", "y.i1 is already lane"),
    (MAP, "Split('y.i0', 16)", "Reorder(('y.i0.1', 'y.i0.0'))", "depends on y.i0.0"),
    (DIAGONAL, "", "Reorder(('s.i1', 's.i0'))", "s.i0 carries an order: an iteration .* reads"),
    (GRID, "", "Fuse('y.i1', 'y.i0', 'f')", "y.i0 is not the only thing inside y.i1"),
    (GRID, "", "Fuse('y.i0', 'y.i1', 'y.i0')", "something called y.i0 already"),
    (GRID, "", "Fuse('y.i0', 'y.i1', 'two words')", "'two words' is not a name"),
    (GRID, "Parallel('y.i0')", "Fuse('y.i0', 'y.i1', 'f')", "both loops must be serial"),
    (MAP, "Split('y.i0', 16)", "Fuse('y.i0.0', 'y.i0.1', 'f')", "depends on y.i0.0"),
    (GRID, "", "FuseAxes('y', 0)", "y is an argument"),
    (TWO, "", "FuseAxes('t', 1)", "t has no axes 1 and 2"),
    (GRID, "", "Parallel('y.i0', 0)", "0 is not a positive grain"),
    (GRID, "", "Parallel('y.i1')", "y.i1 is inside y.i0"),
    (SUM, "Reorder(('s.r0', 's.i0'))", "Parallel('s.r0')", "accumulates into s"),
    (SCAN, "Split('s.i1', 9)", "Parallel('s.i1.0')", "s.i1.0 is inside s.i0"),
    (SCATTER, "", "Parallel('y.i0')", "different iterations of y.i0 write y"),
    (SCATTER, "Split('y.i0', 3)", "Vectorize('y.i0.1')", "different iterations"),
    (SCAN, "", "Vectorize('s.i1')", "which another one writes"),
    (MAP, "", "Vectorize('y.i0')", "100 lanes are too many"),
    (SYMBOLIC, "", "Vectorize('y.i0')", "not a constant"),
    (GRID, "Vectorize('y.i1')", "Vectorize('y.i0')", "lane y.i1 is inside y.i0"),
    (DIAGONAL, "", "Vectorize('s.i0')", "s.i0 carries a dependence: an iteration of s.i0 reads s"),
    (TRIANGLE, "Trim('s.r0')", "Vectorize('s.i0')", "the extent of s.r0 differs per lane"),
    (TWO, "ComputeAt('t', 'y.i0')", "Vectorize('y.i0')", "t is allocated per lane"),
    (SYMBOLIC, "", "Unroll('y.i0')", "not a constant"),
    (MAP, "", "Unroll('y.i0')", "100 copies are too many"),
    (GRID, "", "Peel('y.i0')", "y.i0 has no ragged tail"),
    (SUM, "", "Trim('s.r0')", "every iteration of s.r0 may matter"),
    (TRIANGLE, "", "Trim('y.i0')", "every iteration of y.i0 may matter"),
    (TRIANGLE, "Unroll('s.r0')", "Trim('s.r0')", "s.r0 is already unroll"),
    (BEFORE, "", "Trim('s.r0')", "every iteration of s.r0 may matter"),
    (LOWEST_BEFORE, "", "Trim('s.r0')", "every iteration of s.r0 may matter"),
    (LOWEST_BEFORE, "", "Trim('t.r0')", "every iteration of t.r0 may matter"),
    (SOME_PARTS, "", "Trim('p.r0')", "every iteration of p.r0 may matter"),
    (MAP, "Split('y.i0', 16); Parallel('y.i0.0')", "Peel('y.i0.0')", "already parallel"),
    (TWO, "", "ComputeAt('x', 'y.i0')", "x is an argument"),
    (TWO, "", "ComputeAt('q', 'y.i0')", "there is no buffer q"),
    (TWO, "", "ComputeAt('t', 'y.i9')", "there is no loop y.i9"),
    (TWO, "", "ComputeAt('t', 't.i0')", "there is no loop t.i0|nothing inside"),
    (TWO, "ComputeAt('t', 'y.i1')", "ComputeAt('t', 'y.i0')", "moves inwards only"),
    (TWO, "ComputeAt('t', 'y.i0')", "ComputeAt('t', 'y.i0')", "computed at y.i0 already"),
    (TWO, "Vectorize('y.i1')", "ComputeAt('t', 'y.i1')", "nothing can be allocated there"),
    (TWO, "Split('t.i1', 2)", "ComputeAt('t', 'y.i0')", "no longer one whole loop"),
    (
        MAP,
        "Split('y.i0', 16); Peel('y.i0.0'); CacheRead('x', 'y', 'c')",
        "ComputeAt('c', 'y.i0.1')",
        "2 copies that read c",
    ),
    (SCAN, "", "ComputeAt('s', 'y.i1')", "s reads itself"),
    (WINDOW, "ComputeAt('t', 'y.i0')", "ComputeInline('t')", "split or placed|placed inside"),
    (CHAIN, "", "ComputeWith('z', 'y.i0')", "t is used between z and y.i0"),
    (TWO, "", "ComputeWith('y', 'y.i0')", "y.i0 is a loop of y"),
    (OUTPUTS, "", "Join('b.i0', 'a.i0')", "a.i0 comes before b.i0"),
    (SUM, "", "Join('s.i0', 's.r0')", "do not run equally often|one body"),
    (AHEAD, "", "Join('t.i0', 'y.i0')", "which another one|before"),
    (MAP, "", "Join('y.i0', 'nothing')", "no loop"),
    (SUM, "", "ComputeWith('y', 's.r0')", "has no loop of extent 64"),
    (AHEAD, "", "ComputeWith('y', 't.i0')", "which another one writes as t"),
    (SUM, "", "ComputeInline('s')", "only a stage with one plain store"),
    (TWO, "", "ComputeInline('y')", "y is an output"),
    (TWO, "", "ComputeInline('nothing')", "there is no stage nothing"),
    (SCAN, "", "ComputeInline('s')", "s reads itself"),
    (
        TWO,
        "CacheRead('x', 't', 'c'); ComputeAt('c', 't.i0')",
        "ComputeInline('t')",
        "c is placed inside",
    ),
    (MAP, "", "CacheRead('x', 'y', 'x')", "something called x already"),
    (MAP, "", "CacheRead('y', 'y', 'c')", "y does not read y"),
    (MAP, "", "CacheRead('q', 'y', 'c')", "there is no buffer q"),
    (SCAN, "", "CacheRead('s', 's', 'c')", "s is written while s runs"),
    (SUM, "", "RFactor('s', ('s.i0',), 'p')", "s.i0 is not a reduction loop"),
    (SUM, "", "RFactor('s', ('s.r0',), 's')", "something called s already"),
    (SUM, "", "RFactor('s', (), 'p')", "name the loops"),
    (SUM, "", "RFactor('y', ('s.r0',), 'p')", "not loops of the reduction y"),
    (SUM, "Split('s.i0', 2)", "RFactor('s', ('s.r0',), 'p')", "split or placed"),
    (TWO, "", "SetScope('t', 'cache')", "cache is not a scope"),
    (TWO, "", "SetScope('y', 'register')", "y is an argument"),
    (SUM, "", "InitAt('y', 'y.i0')", "y is not a reduction"),
    (SUM, "", "InitAt('s', 's.r0')", "s.r0 accumulates into the same cells of s again"),
    (SUM, "Reorder(('s.r0', 's.i0'))", "InitAt('s', 's.i0')", "s.r0 accumulates into the same"),
    (SUM, "", "InitAt('s', 'y.i0')", "y.i0 is not a loop of the update alone"),
    (SUM, "ComputeAt('s', 'y.i0')", "InitAt('s', 'y.i0')", "not a loop of the update alone"),
    (SUM, "Split('s.init.i0', 2)", "InitAt('s', 's.i0')", "no longer one whole loop"),
    (SUM, "Split('s.i0', 2); Peel('s.i0.0')", "InitAt('s', 's.i0.0')", "1 and 2 statements"),
    (SUM, "ReverseComputeAt('y', 's.i0')", "InitAt('s', 's.i0')", "y reads s on the way"),
    (SCATTER, "", "InitAt('y', 'y.i0')", "y is not a reduction"),
    (PART, "", "InitAt('y', 'y.i0')", "do not reach all cells of y"),
    (SUM, "", "ReverseComputeAt('y', 's.r0')", "s is not complete in one iteration of s.r0"),
    (SUM, "", "ReverseComputeAt('s', 'y.i0')", "nothing inside y.i0 computes what s reads"),
    (ROWS, "", "ReverseComputeAt('y', 't.i1')", "t.i1 would compute the same cells of y piece"),
    (WINDOW, "", "ReverseComputeAt('y', 't.i0')", "y reads t at different places"),
    (TURNED, "", "ReverseComputeAt('y', 't.i0')", "does not read t along a loop of its own"),
    (CHAIN, "", "ReverseComputeAt('z', 'y.i0')", "nothing inside y.i0 computes what z reads"),
    (LATE, "", "ReverseComputeAt('y', 't.i0')", "y also reads u, which is computed there or later"),
    (SCANNED, "", "ReverseComputeAt('y', 't.i1')", "y reads itself at y.*, in another iteration"),
    (FROM, "", "ReverseComputeAt('y', 't.i0')", "y starts from values of t"),
    (TWO, "Vectorize('t.i1')", "ReverseComputeAt('y', 't.i1')", "t.i1 is lane"),
    (TWO, "Split('y.i0', 2)", "ReverseComputeAt('y', 't.i0')", "along a loop of its own"),
    (TWO, "", "DoubleBuffer('x')", "x is an argument"),
    (TWO, "", "DoubleBuffer('t')", "t is not allocated inside a loop"),
    (TWO, "", "Prefetch('q', 'y.i0')", "there is no buffer q"),
    (TWO, "", "Prefetch('x', 'y.i0')", "nothing in y.i0 reads x"),
    (TWO, "", "Prefetch('x', 't.i0', 0)", "0 is not a positive distance"),
    (TWO, "ComputeAt('t', 'y.i0')", "Prefetch('t', 'y.i0')", "t is made anew in every iteration"),
    (GATHER, "", "Prefetch('x', 'y.i0')", "where x is read is itself read from memory"),
    (LATER, COPY, "Prefetch('x', 'y.i0', 1, 'y.i1')", "where x is read is itself read from memory"),
    (
        COPIED,
        "ComputeAt('t', 'y.i0')\nReorder(('t.i2', 't.i1'))",
        "Prefetch('x', 'y.i0', 1, 'y.i1')",
        "t.i1 does not read neighbours in x",
    ),
    (SUM, "", "Prefetch('x', 's.i0', 1, 'y.i0')", "y.i0 is no loop inside s.i0"),
    (MAP, "", "Pragma('y.i0', 'fast', 1)", "fast is no pragma.*\n.*unroll, nontemporal"),
    (MAP, "", "Pragma('y.i0', 'unroll', 1000)", "1000 is not a value of unroll"),
    (GRID, "Unroll('y.i1')", "Pragma('y.i1', 'unroll', 2)", "y.i1 is already unroll"),
    (PACKED, "", "Pad('t', 0, 0)", "0 is not a positive factor"),
    (PACKED, "", "Pad('t', 1, 4)", "t has no axis 1"),
    (PACKED, "", "Pad('t', 0, 50)", "would touch w"),
    (TWO, "", "Permute('t', (0, 0))", "is not an order of 2 axes"),
    (TWO, "", "Permute('y', (1, 0))", "y is an argument"),
    (TWO, "", "Relayout('y', 'i, j -> j, i')", "y is an output"),
    (EMPTY, "", "Fuse('y.i0', 'y.i1', 'y.f')", "y.i1 may have no iterations: its extent is n"),
    (GRID, "", "Tile('y.i0', 'y.i0', 2, 2)", "a tile has two loops"),
    (BROADCAST, "", "Materialise('y', 'exp(z[y.i1])', 'e')", "y does not compute exp"),
    (BROADCAST, "", "Materialise('q', 'exp(x[y.i0])', 'e')", "there is no stage q"),
    (BROADCAST, "", "Materialise('y', 'exp(x[y.i0])', 'z')", "something called z already"),
    (WINDOW, "", "Materialise('y', 't[y.i0-1]', 'e')", "not surely inside t"),
    (WINDOW, "", "Materialise('y', '0.0', 'e')", "a number already"),
    (TWO, "ComputeAt('t', 'y.i0')", "Materialise('y', 't[0,y.i1]', 'e')", "written when y begins"),
    (
        MAP,
        "Split('y.i0', 16)",
        "Materialise('y', 'exp(x[16*y.i0.0+y.i0.1])', 'e')",
        "the extent of y.i0.1 varies",
    ),
    (GRID, "", "Tile('y.i0', 'y.i1', 2, 0)", "0 is not a positive factor"),
    (SUM, "", "Tile('y.i0', 's.i0', 2, 2)", "not perfectly nested"),
    (TWO, "", "Relayout('q', 'i, j -> j, i')", "there is no buffer q"),
    (TWO, "", "Relayout('t', 'i, j -> j//4, i')", "cannot be read back from its blocks"),
    (TWO, "", "Relayout('t', 'i -> i')", "takes 1 axes"),
    (TWO, "", "Relayout('t', 'i, j')", "has no '->'"),
    (
        TWO,
        "Relayout('x', 'i, j -> j, i')",
        "Relayout('x', 'i, j -> j, i')",
        "laid out by i, j -> j, i already",
    ),
]


@pytest.mark.parametrize(("text", "before", "step", "says"), REFUSALS, ids=lambda x: str(x)[:40])
def test_refusals(text: str, before: str, step: str, says: str) -> None:
    n = apply(start(parse_group(text)), parse_trace(before.replace("; ", "\n")))
    (s,) = parse_trace(step)
    with pytest.raises(Refused, match=says) as refusal:
        s.apply(n)
    assert str(refusal.value).startswith(type(s).__name__), "a refusal names its step"
    verify(n)


def test_a_hint_says_what_there_is() -> None:
    n = start(parse_group(TWO))
    with pytest.raises(Refused) as refusal:
        parse_trace("Split('t.i5', 2)")[0].apply(n)
    assert refusal.value.hint == "the loops are t.i0, t.i1, y.i0, y.i1"


def test_steps_do_not_change_the_nest_they_are_given() -> None:
    n = start(parse_group(MAP))
    text = nest_text(n)
    apply(n, parse_trace("Split('y.i0', 16)\nPeel('y.i0.0')\nVectorize('y.i0.1')"))
    assert nest_text(n) == text
