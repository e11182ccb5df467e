"""Groups for the steps that make attention one kernel, and the steps before."""

from __future__ import annotations

# Weighted sums of parts, put together by the greatest value so far.
ONLINE = """
group online
  in x: f32[3,4,5]
  in v: f32[3,5,6]
  out y: f32[4,6]
  local m: f32[3,4]
  local e: f32[3,4,5]
  local s: f32[3,4,6]
  local t: (f32,f32)[4,6]
  combine both: max(l0[], r0[]); \
l1[] * exp(l0[] - max(l0[], r0[])) + r1[] * exp(r0[] - max(l0[], r0[])) from -1e+30; 0.0
  m[m.i0,m.i1] max= x[m.i0,m.i1,m.r0] for m.i0 in 3, m.i1 in 4, m.r0 in 5 from -inf
  e[e.i0,e.i1,e.i2] = exp(x[e.i0,e.i1,e.i2] - m[e.i0,e.i1]) for e.i0 in 3, e.i1 in 4, e.i2 in 5
  s[s.i0,s.i1,s.i2] add= e[s.i0,s.i1,s.r0] * v[s.i0,s.r0,s.i2] \
for s.i0 in 3, s.i1 in 4, s.i2 in 6, s.r0 in 5 from 0.0
  t[t.i0,t.i1] both= tuple(m[t.r0,t.i0], s[t.r0,t.i0,t.i1]) for t.i0 in 4, t.i1 in 6, t.r0 in 3 \
from tuple(-1e+30, 0.0)
  y[y.i0,y.i1] = item(t[y.i0,y.i1], 1) for y.i0 in 4, y.i1 in 6
"""
IN_PARTS = """
Reorder(('t.r0', 't.i0', 't.i1'))
ComputeAt('s', 't.r0')
ComputeAt('e', 't.r0')
ComputeAt('m', 't.r0')
Components('t', 1)
"""
CAUSAL = """
group causal
  in x: f32[8,12]
  out y: f32[8]
  local s: f32[8]
  s[s.i0] add= select(#(s.i0) >= #(s.r0), x[s.i0,s.r0], 0.0) for s.i0 in 8, s.r0 in 12 from 0.0
  y[y.i0] = s[y.i0] for y.i0 in 8
"""
# One operand for all steps of a sum, the other one in parts.
COPIES = """
group copies
  in a: f32[8]
  in b: f32[4,8]
  out y: f32[4]
  local u: f32[8]
  local v: f32[4,8]
  local s: f32[4]
  u[u.i0] = a[u.i0] for u.i0 in 8
  v[v.i0,v.i1] = b[v.i0,v.i1] for v.i0 in 4, v.i1 in 8
  s[s.i0] add= u[s.r0] * v[s.i0,s.r0] for s.i0 in 4, s.r0 in 8 from 0.0
  y[y.i0] = s[y.i0] for y.i0 in 4
"""
# Nobody knows of how many results.
MANY_COPIES = """
group copies where n: 0..64
  in a: f32[8]
  in b: f32[n,8]
  out y: f32[n]
  local u: f32[8]
  local v: f32[n,8]
  local s: f32[n]
  u[u.i0] = a[u.i0] for u.i0 in 8
  v[v.i0,v.i1] = b[v.i0,v.i1] for v.i0 in n, v.i1 in 8
  s[s.i0] add= u[s.r0] * v[s.i0,s.r0] for s.i0 in n, s.r0 in 8 from 0.0
  y[y.i0] = s[y.i0] for y.i0 in n
"""
IN_GROUPS = """
ComputeAt('s', 'y.i0')
ComputeAt('v', 'y.i0')
SetScope('u', 'shared')
SetScope('v', 'shared')
Pipeline('y.i0', 'v', asynchronous=True)
"""
# A product by two uses of an asynchronous instruction.
GROUPS = """
group groups
  in a: bf16[64,128]
  in b: bf16[64,128]
  out y: f32[64,64]
  local p: bf16[64,128]
  local q: bf16[64,128]
  local s: f32[64,64]
  p[p.i0,p.i1] = a[p.i0,p.i1] for p.i0 in 64, p.i1 in 128
  q[q.i0,q.i1] = b[q.i0,q.i1] for q.i0 in 64, q.i1 in 128
  s[s.i0,s.i1] add= cast<f32>(p[s.i0,s.r0]) * cast<f32>(q[s.i1,s.r0]) \
for s.i0 in 64, s.i1 in 64, s.r0 in 128 from 0.0
  y[y.i0,y.i1] = s[y.i0,y.i1] for y.i0 in 64, y.i1 in 64
"""


def _bound(i: str, j: str) -> str:
    """A tile of 64 rows by the threads that have its elements."""
    return f"""
Split('{i}', 16)
Split('{i}.1', 8)
Split('{j}', 8)
Split('{j}.1', 2)
Reorder(('{i}.1.0', '{j}.0', '{i}.0', '{i}.1.1', '{j}.1.0', '{j}.1.1'))
Bind('{i}.0', 'thread.z')
Bind('{i}.1.1', 'thread.y')
Bind('{j}.1.0', 'thread.x')
"""


USES = (
    """
SetScope('p', 'shared')
SetScope('q', 'shared')
Relayout('p', 'i, j -> j//64, i, j%64')
Relayout('q', 'i, j -> j//64, i, j%64')
Swizzle('p', 3, 3, 3)
Swizzle('q', 3, 3, 3)
Relayout('s', 'i, j -> i//64, i//16%4, j//8, i//8%2, i%8, j//2%4, j%2')
"""
    + "".join(_bound(f"{x}.i0", f"{x}.i1") for x in ("p", "q", "s.init", "y"))
    + """
Split('s.r0', 64)
Reorder(('s.r0.0', 's.i0', 's.i1', 's.r0.1'))
Tensorize('s.i0', 'nvptx.wgmma.1.nn.bf16')
"""
)


# A product of what another one becomes, both by asynchronous instructions.
def _twice(more: str = "", made: str = "s[p.i0,p.i1,p.i2] * 0.5") -> str:
    return f"""
group later
  in a: bf16[64,64]
  in b: bf16[2,64,64]
  in c: bf16[2,64,64]
  out y: f32[64,64]
  local q: bf16[64,64]
  local k: bf16[2,64,64]
  local v: bf16[2,64,64]
  local s: f32[2,64,64]
  local p: bf16[2,64,64]
  local e: f32[2,64,64]
  local t: f32[2,64,64]
  local o: f32[64,64]
  q[q.i0,q.i1] = a[q.i0,q.i1] for q.i0 in 64, q.i1 in 64
  k[k.i0,k.i1,k.i2] = b[k.i0,k.i1,k.i2] for k.i0 in 2, k.i1 in 64, k.i2 in 64
  v[v.i0,v.i1,v.i2] = c[v.i0,v.i1,v.i2] for v.i0 in 2, v.i1 in 64, v.i2 in 64
  s[s.i0,s.i1,s.i2] add= cast<f32>(q[s.i1,s.r0]) * cast<f32>(k[s.i0,s.i2,s.r0]) \
for s.i0 in 2, s.i1 in 64, s.i2 in 64, s.r0 in 64 from 0.0{more}
  p[p.i0,p.i1,p.i2] = cast<bf16>({made}) for p.i0 in 2, p.i1 in 64, p.i2 in 64
  o[o.i0,o.i1] add= cast<f32>(p[o.r0,o.i0,o.r1]) * cast<f32>(v[o.r0,o.r1,o.i1]) \
for o.i0 in 64, o.i1 in 64, o.r0 in 2, o.r1 in 64 from 0.0
  y[y.i0,y.i1] = o[y.i0,y.i1] for y.i0 in 64, y.i1 in 64
"""


def _without(group: str, *stages: str) -> str:
    return "\n".join(
        x for x in group.split("\n") if not x.startswith(tuple(f"  local {y}:" for y in stages))
    )


def _both(others: tuple[str, ...] = (), products: tuple[str, ...] = ()) -> str:
    tile = "i//64, i//16%4, j//8, i//8%2, i%8, j//2%4, j%2"
    wide = ("s", "p", *others, *products)
    first = "nvptx.wgmma.1.nn.bf16"
    return f"""
Reorder(('o.r0', 'o.i0', 'o.i1', 'o.r1'))
{"".join(f"ComputeAt('{x}', 'o.r0')" + chr(10) for x in ("p", *others, *products, "s"))}
SetScope('q', 'shared')
SetScope('k', 'shared')
SetScope('v', 'shared')
Relayout('v', 'r, i, j -> r, i//64, j//64, i%64, j%64')
Swizzle('q', 3, 3, 3)
Swizzle('k', 3, 3, 3)
Swizzle('v', 3, 3, 3)
{"".join(f"Relayout('{x}', 'r, i, j -> r, {tile}')" + chr(10) for x in wide)}
Relayout('o', 'i, j -> {tile}')
{"".join(_bound(f"{x}.i0", f"{x}.i1") for x in ("q", "o.init", "y"))}
{"".join(_bound(f"{x}.i1", f"{x}.i2") for x in ("k", "v", "s.init", "p", *others))}
{"".join(_bound(f"{x}.init.i1", f"{x}.init.i2") for x in products)}
{"".join(f"Tensorize('{x}.i1', '{first}')" + chr(10) for x in ("s", *products))}
Tensorize('o.i0', 'nvptx.wgmma.1.rt.bf16')
"""


TWICE, BOTH = _without(_twice(), "e", "t"), _both()
# One more product, which does not need the first one.
_MORE = """
  e[e.i0,e.i1,e.i2] = exp(s[e.i0,e.i1,e.i2] * 0.01) for e.i0 in 2, e.i1 in 64, e.i2 in 64
  t[t.i0,t.i1,t.i2] add= cast<f32>(q[t.i1,t.r0]) * cast<f32>(v[t.i0,t.i2,t.r0]) \
for t.i0 in 2, t.i1 in 64, t.i2 in 64, t.r0 in 64 from 0.0"""
THRICE = _twice(_MORE, "e[p.i0,p.i1,p.i2] * t[p.i0,p.i1,p.i2]")
ALL_THREE = _both(("e",), ("t",))
