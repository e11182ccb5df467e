"""Sums over all pixels of images for each channel and each tap of a window, with channels last:
the gradient of a depthwise convolution's weights.

In a tile of taps by channels, all images pass by a few channels at a time, once for each row of
taps: where no cache holds so much, it comes from memory each time, a few bytes of each pixel. Here
all taps pass by one line of pixels before the next one, and threads share images:

    parallel n.0:                            # a piece of the images, with sums of its own
      for n.1, for line, for c.0:
        for tap:
          for pixel: lane c.1: l[c] += g[line,pixel,c] * x[line+i,pixel+j,c]    # in registers
          lane c.1: p[n.0,tap,c] += l[c]
    for n.0, for tap: lane c: t[tap,c] += p[n.0,tap,c]

Pixels beyond an edge are left out of their loop, so that none is tested.
"""

from __future__ import annotations

from math import prod

from tilewright.base.errors import Refused
from tilewright.ir import dim as D
from tilewright.ir.expr import Load, extent
from tilewright.kernel.axis import moved
from tilewright.kernel.defaults.cascades import CHAIN, cut
from tilewright.kernel.defaults.maps import schedule_alone
from tilewright.kernel.defaults.scheduler import Scheduler, vector_loop
from tilewright.kernel.defaults.tiles import Tile, lanes_of_tile
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.permute import Permute
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.rfactor import RFactor
from tilewright.kernel.steps.set_scope import SetScope
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.trim import Trim

# Vectors of sums of one tap: an addition waits for the one before it.
VECTORS = 4
# Vectors of channels in a tile of all taps, which is faster where a cache holds their pixels.
TILE = 2
# Pieces for each thread, and pixels of one for each tap: its sums are written and read once more.
PIECES, LEAST = 4, 8


def schedule_window_sums(s: Scheduler, t: Tile, ops: tuple[Load, Load]) -> bool:
    """False, and no step, where the sums are not of this kind."""
    st = s.group.stage(t.acc)
    known = all(isinstance(extent(x), int) for x in (*st.axes, *st.raxes))
    if not known or len(st.raxes) < 2 or s.group.precision == "strict" or t.group:
        return False
    channels = int(D.bounds(extent(st.axes[t.col]))[1])
    results, pixels = (prod(int(D.bounds(extent(x))[1]) for x in a) for a in (st.axes, st.raxes))
    if pixels * channels < LEAST * results:  # such as the convolution itself: windows are summed
        return False
    seen = sum(D.bounds(s.nest.buffer(str(x.source)).size)[1] * x.dtype.bytes for x in ops)
    if channels < t.lanes or seen * TILE * t.lanes <= channels * s.target.l2 // 2:
        return False
    before = s.nest, list(s.trace)
    try:
        _lines_of_pixels(s, t, channels)
    except Refused:  # a shape that does not fit
        s.nest, s.trace[:] = before
        return False
    return True


def _lines_of_pixels(s: Scheduler, t: Tile, channels: int) -> None:
    whole, piece, line = t.acc, f"{t.acc}c", f"{t.acc}l"
    column = f"{whole}.{t.axes[t.col]}"
    sizes = [int(D.bounds(p.extent)[1]) for p in s.reduced(whole)]
    terms = prod(int(D.bounds(p.extent)[1]) for p in s.path(whole))
    kept = _pieces(s, whole, sizes, terms // channels // prod(sizes))
    s.do(RFactor(whole, tuple(kept), piece))
    *lines, pixels = [p.name for p in s.reduced(piece)]
    if sizes[-1] > CHAIN:
        s.do(Split(pixels, cut(sizes[-1], -(-sizes[-1] // CHAIN), 1)))
        lines.append(f"{pixels}.0")
    s.do(RFactor(piece, tuple(lines), line))
    # The sums of a piece, a block of channels at a time; inside, those of a line.
    own, outer = moved(column, piece), [moved(x, piece) for x in kept]
    taps = [p.name for p in s.axes(piece)[0] if p.name not in (own, *outer)]
    width = _width(t, channels)
    s.do(Split(own, width))
    s.do(Reorder((*outer, *lines, f"{own}.0", *taps, f"{own}.1")))
    s.do(ComputeAt(line, [f"{own}.0", *taps][-1]))
    if channels % width:
        s.do(Peel(f"{own}.0"))
    s.do(SetScope(line, "register"))
    inner, walk = moved(column, line), s.reduced(line)[-1].name
    s.do(Reorder((walk, inner)))
    s.attempt(Trim(walk))
    for stage in (whole, piece, line):
        last = len(s.nest.buffer(stage).shape) - 1
        s.do(Permute(stage, (*(k for k in range(last + 1) if k != t.col), t.col)))
    for loop in (inner, f"{line}.init.i{t.col}", f"{own}.1"):
        if s.loops(loop):
            lanes_of_tile(s, loop, t.lanes)
    top = outer[0]
    for k, x in enumerate(outer[1:]):
        s.do(Fuse(top, x, into := f"{piece}.o{k}"))
        top = into
    many = int(D.bounds(s.loops(top)[0].extent)[1])
    s.parallel(top, terms // many // 8)  # eight multiply-adds are one simple operation
    _rows(s, whole, [p.name for p in s.path(whole)], column)
    for stage in (whole, piece):
        loops = [f"{stage}.init.i{k}" for k in range(len(s.nest.buffer(stage).shape))]
        _rows(s, stage, loops, loops[t.col])
    schedule_alone(s, t.host)


def _rows(s: Scheduler, stage: str, loops: list[str], column: str) -> None:
    """Lanes along channels, for what goes through all partial results."""
    red = [p.name for p in s.reduced(stage) if p.name in loops]
    rest = [x for x in loops if x != column and x not in red and s.loops(x)]
    s.do(Reorder((*red, *rest, column)))
    vector_loop(s, column, VECTORS * s.target.lanes(32))


def _pieces(s: Scheduler, stage: str, sizes: list[int], taps: int) -> list[str]:
    """Loops over pieces of images: enough for all threads, and for chains that are not too long,
    but no more than are worth sums of their own."""
    pixels = prod(sizes)
    most = pixels // (LEAST * taps)
    wanted = max(PIECES * s.target.cores, pixels // sizes[-1] // CHAIN)
    kept: list[str] = []
    for p, size in zip(s.reduced(stage)[:-1], sizes, strict=False):
        even = [k for k in range(1, size + 1) if size % k == 0 and k <= max(1, most)]
        many = next((k for k in even if k >= min(wanted, most)), even[-1])
        s.do(Split(p.name, size // many))
        kept.append(f"{p.name}.0")
        wanted, most = -(-wanted // many), most // many
        if wanted <= 1:
            break
    return kept


def _width(t: Tile, channels: int) -> int:
    """Channels of a block, which are whole vectors if there are such blocks."""
    most = min(VECTORS, channels // t.lanes) * t.lanes
    found = [k for k in range(t.lanes, most + 1, t.lanes) if channels % k == 0]
    return found[-1] if found and 2 * found[-1] > most else most
