"""Nests before and after a rewriting, by its name and what is special."""

from __future__ import annotations

from tests.kernel.legal.row_cases import ROWS

CASES = {
    **ROWS,
    "memory": (
        """
nest k where n: 1..100
  in x: f32[n]
  out y: f32[n]
  local t: f32[8]
  local u: f32[4*n]
  register r: f32[2]
  alloc t
  alloc u
  alloc r
  for i in n:
    t: t[0] = x[i]
    u: u[i] = t[0]
    r: r[1] = u[i]
    y: y[i] = r[1]
""",
        """
nest k where n: 1..100
  in x: f32[n]
  out y: f32[n]
  stack t: f32[8]
  heap u: f32[4*n]
  register r: f32[2]
  alloc t
  alloc u
  alloc r
  for i in n:
    t: t[0] = x[i]
    u: u[i] = t[0]
    r: r[1] = u[i]
    y: y[i] = r[1]
""",
    ),
    "carries": (
        """
nest k
  in x: f32[2,19]
  out y: f32[2,19]
  for i in 2:
    for v in 2:
      for l in 8 pragma scan 1:
        y: y[i,l+8*v] = select(#(l+8*v) > 0, max(y[i,l+8*v-1], x[i,l+8*v]), x[i,l+8*v])
    for l in 3 pragma scan 1:
      y: y[i,l+16] = max(y[i,l+15], x[i,l+16])
""",
        """
nest k
  in x: f32[2,19]
  out y: f32[2,19]
  stack c0: f32[1]
  for i in 2:
    alloc c0
    y: c0[0] = -inf
    for v in 2:
      for l in 8 pragma scan 1:
        y: c0[0] max= x[i,l+8*v]
        y: y[i,l+8*v] = c0[0]
    for l in 3 pragma scan 1:
      y: y[i,l+16] = max(y[i,l+15], x[i,l+16])
""",
    ),
    # Vectors whose first element does not follow the last one of the vector before.
    "carries elsewhere": (
        """
nest k
  in x: f32[2,24]
  out y: f32[2,24]
  for i in 2:
    for v in 2:
      for l in 8 pragma scan 1:
        y: y[i,l+9*v] = select(#(l+9*v) > 0, max(y[i,l+9*v-1], x[i,l+9*v]), x[i,l+9*v])
""",
        """
nest k
  in x: f32[2,24]
  out y: f32[2,24]
  for i in 2:
    for v in 2:
      for l in 8 pragma scan 1:
        y: y[i,l+9*v] = select(#(l+9*v) > 0, max(y[i,l+9*v-1], x[i,l+9*v]), x[i,l+9*v])
""",
    ),
    "lanes": (
        """
nest k
  in x: f32[13]
  out y: f32[13]
  lane j in 13:
    y: y[j] = x[j] * 2.0
""",
        """
nest k
  in x: f32[13]
  out y: f32[13]
  lane j in 8:
    y: y[j] = x[j] * 2.0
  lane j in 4:
    y: y[j+8] = x[j+8] * 2.0
  lane j in 1:
    y: y[j+12] = x[j+12] * 2.0
""",
    ),
    "lanes ragged": (
        """
nest k
  in x: f32[30]
  out y: f32[30]
  for i in 8:
    lane j in min(-4*i+30,4):
      y: y[4*i+j] = x[4*i+j] * 2.0
""",
        """
nest k
  in x: f32[30]
  out y: f32[30]
  for i in 8:
    if #(min(-4*i+30,4)) >= 4:
      lane j in min(-4*i+30,4) pragma lanes 4:
        y: y[4*i+j] = x[4*i+j] * 2.0
    else:
      lane j in min(-4*i+30,4) pragma lanes 4, ragged 1, masked 1:
        y: y[4*i+j] = x[4*i+j] * 2.0
""",
    ),
    "lanes of a rest": (
        """
nest k where n: 1..100
  in x: f32[n]
  out y: f32[n]
  lane j in (n%4):
    y: y[4*(n//4)+j] = x[4*(n//4)+j] * 2.0
""",
        """
nest k where n: 1..100
  in x: f32[n]
  out y: f32[n]
  if #((n%4)) >= 1:
    lane j in (n%4) pragma lanes 4, ragged 1, masked 1:
      y: y[4*(n//4)+j] = x[4*(n//4)+j] * 2.0
""",
    ),
    "lanes wider than a vector": (
        """
nest k where n: 1..100
  in x: f32[n]
  out y: f32[n]
  lane j in min(8,n):
    y: y[j] = x[j] * 2.0
""",
        """
nest k where n: 1..100
  in x: f32[n]
  out y: f32[n]
  if #(min(8,n)) >= 8:
    lane j in min(8,n) pragma lanes 8:
      y: y[j] = x[j] * 2.0
  else:
    for j.v in ((min(8,n)+3)//4):
      if #(min(-4*j.v+min(8,n),4)) >= 4:
        lane j in min(-4*j.v+min(8,n),4) pragma lanes 4:
          y: y[j+4*j.v] = x[j+4*j.v] * 2.0
      else:
        lane j in min(-4*j.v+min(8,n),4) pragma lanes 4, ragged 1, masked 1:
          y: y[j+4*j.v] = x[j+4*j.v] * 2.0
""",
    ),
    "interleave": (
        """
nest k
  in x: f32[2,8]
  out y: f32[8,2]
  out z: f32[8,3]
  lane i in 8:
    unroll k in 2:
      y: y[i,k] = x[k,i]
    unroll c in 2:
      z: z[i,c] = x[c,i]
  lane i in 8:
    unroll k in 2:
      y: y[i,k] = y[i,k] + 1.0
    z: z[i,2] = 0.0
""",
        """
nest k
  in x: f32[2,8]
  out y: f32[8,2]
  out z: f32[8,3]
  lane i in 8:
    unroll k in 2 pragma interleave 1:
      y: y[i,k] = x[k,i]
    unroll c in 2:
      z: z[i,c] = x[c,i]
  lane i in 8:
    unroll k in 2:
      y: y[i,k] = y[i,k] + 1.0
    z: z[i,2] = 0.0
""",
    ),
    "hoist": (
        """
nest k
  in x: f32[100]
  in w: f32[8,2]
  out y: f32[8]
  for i in 8:
    for r in 100:
      unroll u in 2:
        y: y[i] add= x[r] * exp(w[i,u])
""",
        """
nest k
  in x: f32[100]
  in w: f32[8,2]
  out y: f32[8]
  let h0: f32[2]
  for i in 8:
    alloc h0
    unroll u in 2:
      h0: h0[u] = exp(w[i,u])
    for r in 100:
      unroll u in 2:
        y: y[i] add= x[r] * h0[u]
""",
    ),
    # Under a condition, or in a loop that may not run, only what is surely there is read before.
    "hoist conditions": (
        """
nest k where n: 0..
  in x: f32[4]
  in z: f32[n+3]
  out y: f32[n]
  for i in n:
    if #(i) < 5:
      y: y[i] = x[3] + z[n+2] + z[i]
    else:
      y: y[i] = x[1]
""",
        """
nest k where n: 0..
  in x: f32[4]
  in z: f32[n+3]
  out y: f32[n]
  let h0: f32[]
  let h1: f32[]
  alloc h0
  h0: h0[] = x[3] + z[n+2]
  alloc h1
  h1: h1[] = x[1]
  for i in n:
    if #(i) < 5:
      y: y[i] = h0[] + z[i]
    else:
      y: y[i] = h1[]
""",
    ),
    # A choice reads one of two: neither is read before the loop unless it is surely there.
    "hoist choices": (
        """
nest k where n: 1..
  in x: f32[n]
  in z: f32[n]
  out y: f32[n]
  out q: f32[n]
  for i in n:
    y: y[i] = select(#(i) > 2, x[2], z[0])
    q: q[i] = select(#(n) > 2, x[2], z[0])
""",
        """
nest k where n: 1..
  in x: f32[n]
  in z: f32[n]
  out y: f32[n]
  out q: f32[n]
  let h0: f32[]
  let h1: f32[]
  alloc h0
  h0: h0[] = z[0]
  alloc h1
  h1: h1[] = select(#(n) > 2, x[2], z[0])
  for i in n:
    y: y[i] = select(#(i) > 2, x[2], h0[])
    q: q[i] = h1[]
""",
    ),
    # What a loop writes or allocates is read in it, and so is what a ragged loop may not have.
    "hoist stays": (
        """
nest k
  in x: f32[30]
  out y: f32[30]
  out s: f32[2]
  local t: f32[2]
  for i in 8:
    for r in 5:
      alloc t
      t: t[0] = 1.0
      s: s[1] = s[0] + t[0]
      unroll j in min(-4*i+30,4):
        y: y[4*i+j] = x[4*i+j]
""",
        """
nest k
  in x: f32[30]
  out y: f32[30]
  out s: f32[2]
  local t: f32[2]
  for i in 8:
    for r in 5:
      alloc t
      t: t[0] = 1.0
      s: s[1] = s[0] + t[0]
      unroll j in min(-4*i+30,4):
        y: y[4*i+j] = x[4*i+j]
""",
    ),
    # Numbers that are read to know where to read or write are reads as well.
    "hoist places": (
        """
nest k
  in x: f32[8]
  in p: i64[3]
  out y: f32[8]
  out z: f32[8,3]
  for i in 3:
    lane j in 4:
      z: z[j,i] = x[${p[2]}+j] * x[${p[1]}]
    y: y[i+${p[0]}] = x[i]
""",
        """
nest k
  in x: f32[8]
  in p: i64[3]
  out y: f32[8]
  out z: f32[8,3]
  let h0: f32[4]
  let h1: i64[]
  alloc h0
  lane j in 4:
    h0: h0[j] = x[${p[2]}+j] * x[${p[1]}]
  alloc h1
  h1: h1[] = p[0]
  for i in 3:
    lane j in 4:
      z: z[j,i] = h0[j]
    y: y[${h1[]}+i] = x[i]
""",
    ),
    # Behind a pointer only what is chosen is read: whole vectors, none, or with a mask.
    "masks": (
        """
nest k where n: 0..
  in p: *f32
  out y: f32[8]
  lane j in 8:
    y: y[j] = select(#(j) < #(n), p[j], 0.0) * 2.0
""",
        """
nest k where n: 0..
  in p: *f32
  out y: f32[8]
  register m0: f32[8]
  alloc m0
  if 0 < #(n) & 7 < #(n):
    lane j in 8:
      m0: m0[j] = p[j]
  else:
    if 0 >= #(n) & 7 >= #(n):
      lane j in 8:
        m0: m0[j] = 0.0
    else:
      lane j in 8 pragma masked 1:
        m0: m0[j] = select(#(j) < #(n), p[j], 0.0)
  lane j in 8:
    y: y[j] = m0[j] * 2.0
""",
    ),
    # A condition that may change more than once is evaluated for every lane, once for all of them.
    "masks every": (
        """
nest k
  in p: *f32
  in c: bool[8]
  out y: f32[8]
  out q: *f32
  lane j in 8:
    y: y[j] = 1.0
    if c[j]:
      q: q[j] = 2.0
    else:
      y: y[j] = p[j]
""",
        """
nest k
  in p: *f32
  in c: bool[8]
  out y: f32[8]
  out q: *f32
  register m0: bool[]
  lane j in 8:
    y: y[j] = 1.0
  alloc m0
  m0: m0[] = true
  lane j in 8:
    m0: m0[] and= c[j]
  if m0[]:
    lane j in 8:
      q: q[j] = 2.0
  else:
    lane j in 8 pragma masked 1:
      if c[j]:
        q: q[j] = 2.0
      else:
        y: y[j] = p[j]
""",
    ),
    # Stores that are one have all that they read before them.
    "masks interleaved": (
        """
nest k where n: 0..
  in p: *f32
  out y: f32[4,2]
  lane i in 4:
    unroll k in 2 pragma interleave 1:
      y: y[i,k] = select(#(i+4*k) < #(n), p[4*k+i], 0.0)
""",
        """
nest k where n: 0..
  in p: *f32
  out y: f32[4,2]
  register m0: f32[2,4]
  alloc m0
  unroll k in 2:
    if #(4*k) < #(n) & #(4*k+3) < #(n):
      lane i in 4:
        m0: m0[k,i] = p[i+4*k]
    else:
      if #(4*k) >= #(n) & #(4*k+3) >= #(n):
        lane i in 4:
          m0: m0[k,i] = 0.0
      else:
        lane i in 4 pragma masked 1:
          m0: m0[k,i] = select(#(i+4*k) < #(n), p[i+4*k], 0.0)
  lane i in 4:
    unroll k in 2 pragma interleave 1:
      y: y[i,k] = m0[k,i]
""",
    ),
    "accesses": (
        """
nest k
  in x: f32[6]
  out y: f32[8]
  lane j in 8:
    y: y[j] = select(#(j) < 6, x[j], 1.0)
""",
        """
nest k
  in x: f32[6]
  out y: f32[8]
  lane j in 8 pragma edges 1:
    y: y[j] = select(#(j) < 6, x[j], 1.0)
""",
    ),
    # One condition for all lanes, and zeros where it does not hold; plain reads say nothing.
    "accesses zeros": (
        """
nest k
  in x: f32[3,8]
  out y: f32[4,8]
  for i in 4:
    lane j in 8:
      y: y[i,j] = select(#(i) < 3, x[i,j], 0.0)
  lane j in 8:
    y: y[0,j] = x[0,j] + 1.0
""",
        """
nest k
  in x: f32[3,8]
  out y: f32[4,8]
  for i in 4:
    lane j in 8 pragma edges 1, zeros 1:
      y: y[i,j] = select(#(i) < 3, x[i,j], 0.0)
  lane j in 8:
    y: y[0,j] = x[0,j] + 1.0
""",
    ),
    "accesses adjacent": (
        """
nest k where n: 1..8
  in p: *f32
  in t: i32[4]
  out q: *f32
  out y: f32[4]
  lane j in 4:
    y: y[j] = p[${t[j]}]
  lane j in 4:
    y: y[j] = p[j] + p[2*j]
  lane j in 2:
    q: q[j*n] = 1.0
""",
        """
nest k where n: 1..8
  in p: *f32
  in t: i32[4]
  out q: *f32
  out y: f32[4]
  lane j in 4 pragma adjacent 1:
    y: y[j] = p[${t[j]}]
  lane j in 4:
    y: y[j] = p[j] + p[2*j]
  lane j in 2 pragma adjacent 1:
    q: q[j*n] = 1.0
""",
    ),
    # The target has no masked accesses.
    "accesses cold": (
        """
nest k
  in p: *f32
  in c: bool[8]
  out y: f32[8]
  lane j in 8 pragma masked 1:
    if c[j]:
      y: y[j] = 2.0
  lane j in 8:
    y: y[j] = select(c[j], p[j], 1.0)
""",
        """
nest k
  in p: *f32
  in c: bool[8]
  out y: f32[8]
  lane j in 8 pragma masked 1, edges 1, cold 1:
    if c[j]:
      y: y[j] = 2.0
  lane j in 8 pragma cold 1:
    y: y[j] = select(c[j], p[j], 1.0)
""",
    ),
}
