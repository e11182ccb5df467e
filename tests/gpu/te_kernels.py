"""Kernels that are scheduled by hand: te programs and one written as a nest."""

from __future__ import annotations

from tilewright import te
from tilewright.kernel.nest import Nest
from tilewright.kernel.text import parse_nest


def vector_add(n: int | None = None) -> tuple[te.Schedule, list[te.Tensor]]:
    """Of a known length, or of any."""
    size = te.var("n") if n is None else n
    a, b = (te.placeholder((size,), name=x) for x in "ab")
    c = te.compute((size,), lambda i: a[i] + b[i], name="c")
    s = te.create_schedule(c.op)
    block, thread = s[c].split(c.op.axis[0], factor=256)
    s[c].bind(block, te.thread_axis("blockIdx.x"))
    s[c].bind(thread, te.thread_axis("threadIdx.x"))
    return s, [a, b, c]


def tiled_matmul(
    m: int, n: int, deep: int, tile: int = 64, step: int = 16, each: int = 4
) -> tuple[te.Schedule, list[te.Tensor]]:
    """Blocks of tile x tile results, each thread each x each of them; operands pass through shared
    memory, `step` columns at a time."""
    a, b = te.placeholder((m, deep), name="a"), te.placeholder((deep, n), name="b")
    k = te.reduce_axis((0, deep), "k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    s = te.create_schedule(c.op)
    own = s.cache_write(c, "local")
    a_shared, b_shared = (s.cache_read(x, "shared", [own]) for x in (a, b))
    threads = tile // each
    bx, by, tx, ty = (
        te.thread_axis(x) for x in ("blockIdx.x", "blockIdx.y", "threadIdx.x", "threadIdx.y")
    )
    i, j = c.op.axis
    io, ii = s[c].split(i, factor=tile)
    jo, ji = s[c].split(j, factor=tile)
    s[c].reorder(io, jo, ii, ji)
    s[own].compute_at(s[c], jo)
    it, ir = s[c].split(ii, factor=each)
    jt, jr = s[c].split(ji, factor=each)
    s[c].reorder(it, jt, ir, jr)
    oi, oj = own.op.axis
    (ok,) = own.op.reduce_axis
    ko, ki = s[own].split(ok, factor=step)
    oit, oir = s[own].split(oi, factor=each)
    ojt, ojr = s[own].split(oj, factor=each)
    s[own].reorder(ko, oit, ojt, ki, oir, ojr)
    for x in (a_shared, b_shared):
        s[x].compute_at(s[own], ko)
        both = s[x].fuse(*x.op.axis)
        _, place = s[x].split(both, factor=threads * threads)
        y, z = s[x].split(place, factor=threads)
        s[x].bind(y, ty)
        s[x].bind(z, tx)
    s[c].bind(io, by)
    s[c].bind(jo, bx)
    s[c].bind(it, ty)
    s[c].bind(jt, tx)
    s[own].bind(oit, ty)
    s[own].bind(ojt, tx)
    for axis in (oir, ojr):
        s[own].unroll(axis)
    s[c].unroll(ir)
    s[c].vectorize(jr)
    return s, [a, b, c]


def row_sums(rows: int, columns: int, threads: int = 256) -> tuple[te.Schedule, list[te.Tensor]]:
    """Partial results of threads by rfactor, combined."""
    a = te.placeholder((rows, columns), name="a")
    k = te.reduce_axis((0, columns), "k")
    c = te.compute((rows,), lambda i: te.sum(a[i, k], axis=k), name="c")
    y = te.compute((rows,), lambda i: c[i] * 2, name="y")
    s = te.create_schedule(y.op)
    s[c].compute_at(s[y], y.op.axis[0])
    _, inner = s[c].split(k, factor=threads)
    part = s.rfactor(c, inner)
    s[y].bind(y.op.axis[0], te.thread_axis("blockIdx.x"))
    for stage, axis in ((part, part.op.axis[0]), (c, inner)):
        s[stage].bind(axis, te.thread_axis("threadIdx.x"))
    return s, [a, y]


def histogram(n: int, bins: int) -> Nest:
    """How often each number occurs, by atomic additions."""
    text = f"""
nest histogram
  in x: i32[{n}]
  out y: i32[{bins}]
  block.x b in {-(-n // 256)}:
    thread.x t in min(256,{n}-256*b):
      h: add relaxed y[${{x[256*b+t]}}] with cast<i32>(1)
"""
    return parse_nest(text.lstrip())


def turned(blocks: int) -> Nest:
    """Each block writes its 32 numbers in reverse, far apart in 80,000 bytes of shared memory."""
    text = f"""
nest turned
  in x: f32[{blocks},32]
  out y: f32[{blocks},32]
  shared t: f32[20000]
  block.x b in {blocks}:
    alloc t
    thread.x i in 32:
      t: t[300*i+5] = x[b,i]
    barrier
    thread.x i in 32:
      y: y[b,i] = t[9305-300*i]
"""
    return parse_nest(text.lstrip())


def transposed(swizzle: str = "") -> Nest:
    """32 x 32 numbers through shared memory: stored by rows, read by columns."""
    return parse_nest(
        f"""
nest turned
  in x: f32[32,32]
  out y: f32[32,32]
  shared t: f32[32,32]{swizzle}
  block.x b in 1:
    alloc t
    thread.y r in 32:
      thread.x s in 8:
        lane e in 4:
          t: t[r,4*s+e] = x[r,4*s+e]
    barrier
    thread.y r in 32:
      thread.x t in 8:
        unroll u in 4:
          y: y[r,8*u+t] = t[8*u+t,r]
""".lstrip()
    )
