"""Maps that compute something else for each index of a short axis, such as a transform's points.

Those axes are unrolled inside the lanes: each case is then straight-line code, and cases share what
they have in common.
"""

from __future__ import annotations

from math import prod

from tilewright.ir import dim as D
from tilewright.ir.expr import Const, Fn, Index, walk
from tilewright.kernel.defaults.scheduler import Scheduler, lanes_for, work_per_point
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.steps.vectorize import Vectorize

MOST = 8  # cases per axis


def schedule_cases(s: Scheduler, host: str) -> bool:
    """False where the stage has no such axis."""
    path = s.path(host)
    found = case_axes(s, host)
    last = path[-1]
    if not found or last.name in found or len(path) < 2:
        return False
    outer: list[str] = []
    inner: list[str] = []
    ragged: list[str] = []
    cases = 1
    for p in path[:-1]:
        period = found.get(p.name)
        if period is None:
            outer.append(p.name)
            continue
        cases *= period
        if p.extent == period:
            inner.append(p.name)
            continue
        s.do(Split(p.name, period))
        outer.append(f"{p.name}.0")
        inner.append(f"{p.name}.1")
        if not (isinstance(p.extent, int) and p.extent % period == 0):
            ragged.append(f"{p.name}.0")
    # One register per value: a tile of them is alive at once.
    lanes = max(1, lanes_for(s, host, s.target.lanes(32)))
    work = work_per_point(s, host)
    s.do(Split(last.name, lanes))
    vectors, part = f"{last.name}.0", ""
    if ragged and (each := _vectors_of_a_thread(s, outer, ragged[0], vectors)) is not None:
        s.do(Split(vectors, each))
        part, vectors = f"{vectors}.0", f"{vectors}.1"
    s.do(Reorder((*filter(None, [part]), *outer, vectors, f"{last.name}.1", *inner)))
    if not (isinstance(last.extent, int) and last.extent % lanes == 0):
        ragged.append(vectors)
    for x in ragged:
        s.attempt(Peel(x))
    for x in inner:
        s.attempt(Unroll(x))
    s.attempt(Vectorize(f"{last.name}.1"))
    if part:
        points = D.bounds(prod(p.extent for p in path))[1]
        return s.parallel(part, work * points // s.target.cores)
    top = outer[0] if outer else f"{last.name}.0"
    for k, x in enumerate(outer[1:]):
        if not s.attempt(Fuse(top, x, f"{host}.o{k}")):
            break
        top = f"{host}.o{k}"
    size = last.extent if isinstance(last.extent, int) else 256
    s.parallel(top, work * size // 4)
    return True


def _vectors_of_a_thread(s: Scheduler, outer: list[str], ragged: str, vectors: str) -> int | None:
    """Where threads share the vectors: loops from the first with a rest on are taken apart, and do
    not become one. None where those outside are enough for all threads."""
    outside = [s.loops(x)[0].extent for x in outer[: outer.index(ragged)]]
    (many,) = (x.extent for x in s.loops(vectors))
    threads = s.target.cores
    if not isinstance(many, int) or D.bounds(prod(outside))[1] >= threads:
        return None
    return -(-many // threads) if many > 1 else None


def case_axes(s: Scheduler, stage: str) -> dict[str, int]:
    """Loops whose index, or its remainder, conditions compare with constants: with their period."""
    names = {p.var: p for p in s.path(stage)}
    out: dict[str, int] = {}
    for v in walk(s.store(stage).value):
        if not (isinstance(v, Fn) and v.name == "eq" and isinstance(v.args[0], Index)):
            continue
        at = v.args[0].dim
        if not isinstance(v.args[1], (Const, Index)):
            continue
        if D.is_sym(at) and D.the_sym(at) in names:
            p, period = names[D.the_sym(at)], names[D.the_sym(at)].extent
        else:
            rest = next(D.atoms(at), None)
            if not isinstance(rest, D.Quo) or rest.op != "mod" or at != D.mod(rest.a, rest.b):
                continue
            if not D.is_sym(rest.a) or D.the_sym(rest.a) not in names:
                continue
            p, period = names[D.the_sym(rest.a)], rest.b
        if isinstance(period, int) and 1 < period <= MOST:
            out[p.name] = period
    return out
