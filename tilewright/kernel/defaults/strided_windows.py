"""Windows over an image with zeros between its pixels: the gradient of a strided depthwise
convolution.

Which taps of a window meet a pixel and which a zero depends on where the result is, modulo the
stride. Tested for each tap, that takes several times as long as the products. Here as many results
as the stride follow each other in code of their own, with all taps written out, so that their
tests along the line are known:

    parallel lines: for i.0: for c.0:
      i.1 = 0: lane c.1: y[2*i.0,c] = sum of the even taps
      i.1 = 1: lane c.1: y[2*i.0+1,c] = sum of the odd ones
"""

from __future__ import annotations

from math import prod

from tilewright.base.errors import Refused
from tilewright.ir import dim as D
from tilewright.ir.atom import Quo, Sym
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Fn, Index, Load, Value, extent, loads, walk
from tilewright.kernel.defaults.choices import Choices
from tilewright.kernel.defaults.scheduler import Scheduler, store_reads
from tilewright.kernel.defaults.tiles import columns_across, lanes_of_tile
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.group import Stage
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.compute_with import ComputeWith
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.set_scope import SetScope
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.unroll import Unroll

# Taps of all results that are written out, and vectors of channels in each.
WRITTEN, VECTORS = 64, 3


def schedule_strided_window(s: Scheduler, inner: list[Stage], outs: list[Stage]) -> bool:
    """False, and no step, where the sums are not of this kind."""
    if len(inner) != 1 or inner[0].combine != "add" or not inner[0].raxes or s.choices != Choices():
        return False
    st, host = inner[0], outs[0].name
    value, path = s.store(st.name).value, s.path(host)
    if not _multiplies(value):  # a mean of pixels that tiles make is no such sum
        return False
    reads = [r for r in store_reads(s.store(host)) if r.source == st.name]
    if len(reads) != 1 or tuple(p.var for p in path) != tuple(map(_symbol, reads[0].index)):
        return False
    known = all(isinstance(extent(x), int) for x in (*st.axes, *st.raxes))
    if not known or len(path) < 3 or len(st.axes) != len(path):
        return False
    *_, line, channel = st.axes
    stride, lanes = _stride(value, line), s.target.lanes(s.nest.buffer(st.name).dtype.bits)
    pixels, channels = (int(D.bounds(extent(x))[1]) for x in (line, channel))
    taps = prod(int(D.bounds(extent(x))[1]) for x in st.raxes)
    if stride is None or channels < lanes or pixels < 2 * stride or taps * stride > WRITTEN:
        return False
    if any(_step(s, x, channel) != 1 for x in loads(value)):
        return False
    before = s.nest, list(s.trace)
    try:
        for other in outs[1:]:
            s.do(ComputeWith(other.name, path[-1].name))
        _written_out(s, st.name, [p.name for p in path], stride, lanes)
        top = _fused(s, host, [p.name for p in path[:-2]])
        s.parallel(top, pixels * channels * taps // 8)  # eight are one simple operation
    except Refused:  # a shape that does not fit
        s.nest, s.trace[:] = before
        return False
    return True


def _multiplies(value: Value) -> bool:
    """Is it a product of two numbers that are read, perhaps under conditions?"""
    while isinstance(value, Fn) and value.name in ("cast", "select"):
        value = value.args[0 if value.name == "cast" else 1]
    product = isinstance(value, Fn) and value.name == "mul"
    return product and all(any(True for _ in loads(x)) for x in value.args)


def _symbol(i: Dim) -> Sym | None:
    return D.the_sym(i) if D.is_sym(i) else None


def _step(s: Scheduler, x: Load, along: Sym) -> Dim | None:
    return D.coefficient(linear_index(s.nest.buffer(str(x.source)), x.index), along)


def _stride(value: Value, along: Sym) -> int | None:
    """What positions along an axis are tested modulo."""
    for v in walk(value):
        for m, _ in v.dim.terms if isinstance(v, Index) and isinstance(v.dim, D.Int) else ():
            for a in m:
                if not (isinstance(a, Quo) and a.op == "mod" and isinstance(a.b, int)):
                    continue
                if D.coefficient(a.a, along) == 1:
                    return a.b
    return None


def _written_out(s: Scheduler, a: str, names: list[str], stride: int, lanes: int) -> None:
    *outer, line, column = names
    own, first = (f"{a}{part}.i{len(names) - 1}" for part in ("", ".init"))
    wide = s.loops(column)[0].extent
    assert isinstance(wide, int)
    s.do(Split(line, stride))
    s.do(Split(column, columns_across(wide, lanes, VECTORS)))
    pixel, block = f"{line}.1", f"{column}.0"
    s.do(Reorder((*outer, f"{line}.0", block, pixel, f"{column}.1")))
    s.do(ComputeAt(a, pixel))
    for x in (f"{line}.0", block):  # pixels and channels that are left over
        s.attempt(Peel(x))
    s.do(SetScope(a, "register"))
    taps = [q.name for q in s.reduced(a)]
    s.do(Reorder((*taps, own)))
    for x in (pixel, *taps):
        if s.loops(x):
            s.do(Unroll(x))
    for x in (own, first, f"{column}.1"):
        lanes_of_tile(s, x, lanes)


def _fused(s: Scheduler, host: str, names: list[str]) -> str:
    """Loops around each other as one."""
    top = names[0]
    for k, x in enumerate(names[1:]):
        s.do(Fuse(top, x, into := f"{host}.o{k}"))
        top = into
    return top
