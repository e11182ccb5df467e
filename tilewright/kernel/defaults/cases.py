"""Maps that compute something else for each index of a short axis, such as a transform's points.

Those axes are unrolled inside the lanes: each case is then straight-line code, and cases share what
they have in common.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.ir import dim as D
from tilewright.ir.expr import Const, Fn, Index, walk
from tilewright.kernel.defaults.scheduler import (
    USUAL,
    Scheduler,
    cost,
    lanes_for,
    store_reads,
    work_per_point,
)
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.nest import Loop
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.steps.vectorize import Vectorize

MOST = 16  # cases per axis
FEW = 4  # elements of rows that are cases
ROW_BITS = 128  # a row that is a vector on most machines stays one, unless it is costly


def schedule_cases(s: Scheduler, host: str) -> bool:
    """False where the stage has no such axis."""
    _split_blocks(s, host)
    return _schedule(s, host, case_axes(s, host))


def schedule_short_rows(s: Scheduler, host: str) -> bool:
    """Elements of rows that are much shorter than a vector are cases too; False where the stage
    writes no such rows."""
    return _schedule(s, host, _short_rows(s, host))


def _schedule(s: Scheduler, host: str, axes: dict[str, int]) -> bool:
    path = s.path(host)
    found = _Cases.among(s, host, path, axes)
    if found is None:
        return False
    last = found.last
    points = D.bounds(prod(p.extent for p in path))[1]
    work = work_per_point(s, host)
    ragged, outer = found.ragged, found.outer
    vectors, part = found.split(s), ""
    if ragged and (each := _vectors_of_a_thread(s, outer, ragged[0], vectors)) is not None:
        s.do(Split(vectors, each))
        part, vectors = f"{vectors}.0", f"{vectors}.1"
    found.unroll(s, [*filter(None, [part])], vectors)
    if part:
        inside = points if points != D.INF else USUAL**2
        for k, x in enumerate(outer[: outer.index(ragged[0])]):
            if not s.attempt(Fuse(part, x, f"{host}.b{k}")):
                break
            part = f"{host}.b{k}"
        return s.parallel(part, work * inside // s.target.cores)
    top = outer[0] if outer else f"{last.name}.0"
    for k, x in enumerate(outer[1:]):
        if not s.attempt(Fuse(top, x, f"{host}.o{k}")):
            break
        top = f"{host}.o{k}"
    size = last.extent if isinstance(last.extent, int) else 256
    s.parallel(top, work * size // 4)
    return True


def cases_in_row(s: Scheduler, stage: str) -> bool:
    """The same for the loops of a stage inside a row's; False where it has no such axis."""
    row = s.path(stage)[0]  # other stages are in it too: it stays as it is
    _split_blocks(s, stage, row.name)
    own = [p for p in s.own(stage) if p.name != row.name]
    found = _Cases.among(s, stage, own, case_axes(s, stage))
    if found is None:
        return False
    found.unroll(s, [], found.split(s))
    return True


def cases_in_block(s: Scheduler, stage: str, block: str) -> bool:
    """The same for the loops of a stage inside one that several stages share."""
    own = [p for p in s.own(stage) if p.name != block]
    found = _Cases.among(s, stage, own, case_axes(s, stage))
    if found is None:
        return False
    found.unroll(s, [], found.split(s))
    return True


def _split_blocks(s: Scheduler, stage: str, but: str = "") -> None:
    for loop, factor in block_axes(s, stage).items():
        if loop != but:
            s.do(Split(loop, factor))  # its blocks are the cases


@dataclass
class _Cases:
    """The loops of a stage: over cases, over what lanes run along, and others."""

    last: Loop  # lanes run along it
    lanes: int
    outer: list[str]
    inner: list[str]  # cases
    ragged: list[str]  # loops with a rest that is taken apart

    @staticmethod
    def among(s: Scheduler, stage: str, path: list[Loop], found: dict[str, int]) -> _Cases | None:
        along = [p for p in path if p.name not in found and p.extent != 1]
        if not any(p.name in found for p in path) or not along:
            return None
        # Cases after the lanes are written between them: all of a vector's cases are stored at
        # once. One register per value: a tile of them is alive at once.
        lanes = max(1, lanes_for(s, stage, s.target.lanes(32)))
        out = _Cases(along[-1], lanes, [], [], [])
        for p in path:
            if p is out.last:
                continue
            period = found.get(p.name)
            if period is None:
                out.outer.append(p.name)
            elif p.extent == period:
                out.inner.append(p.name)
            else:
                s.do(Split(p.name, period))
                out.outer.append(f"{p.name}.0")
                out.inner.append(f"{p.name}.1")
                if not (isinstance(p.extent, int) and p.extent % period == 0):
                    out.ragged.append(f"{p.name}.0")
        return out

    def split(self, s: Scheduler) -> str:
        """Splits off lanes; the loop over vectors."""
        s.do(Split(self.last.name, self.lanes))
        return f"{self.last.name}.0"

    def unroll(self, s: Scheduler, first: list[str], vectors: str) -> None:
        """Lanes around the cases, inside the loop over vectors."""
        lanes, size = f"{self.last.name}.1", self.last.extent
        s.do(Reorder((*first, *self.outer, vectors, lanes, *self.inner)))
        whole = isinstance(size, int) and size % self.lanes == 0
        for x in [*self.ragged, *([] if whole else [vectors])]:
            s.attempt(Peel(x))
        for x in self.inner:
            s.attempt(Unroll(x))
        s.attempt(Vectorize(lanes))


def _vectors_of_a_thread(s: Scheduler, outer: list[str], ragged: str, vectors: str) -> int | None:
    """Where threads share the vectors: loops from the first with a rest on are taken apart, and do
    not become one. None where those outside are known to be enough for all threads: images of any
    number may be one."""
    outside = [s.loops(x)[0].extent for x in outer[: outer.index(ragged)]]
    (many,) = (x.extent for x in s.loops(vectors))
    threads = s.target.cores
    if not isinstance(many, int) or D.bounds(prod(outside))[0] >= threads:
        return None
    return -(-many // threads) if many > 1 else None


def _short_rows(s: Scheduler, stage: str) -> dict[str, int]:
    """The last loop, where it is much shorter than a vector and the one before it is not: lanes run
    along that one, and the elements of all rows are stored at once."""
    path, b = s.path(stage), s.nest.buffer(stage)
    if len(path) < 2 or b.dtype.bits > 64:
        return {}
    along, few = path[-2], path[-1].extent
    lanes = lanes_for(s, stage, s.target.lanes(32))
    if not isinstance(few, int) or not 1 < few <= FEW or 2 * few > lanes:
        return {}
    if D.bounds(along.extent)[1] < lanes:
        return {}
    if few * b.dtype.bits >= ROW_BITS and not cost(s.store(stage).value):
        return {}
    for x in store_reads(s.store(stage)):  # rows that data choose are read as rows
        at = linear_index(s.nest.buffer(x.source), x.index) if isinstance(x.source, str) else None
        if at is None or any(D.coefficient(at, p.var) is None for p in (along, path[-1])):
            return {}
    return {path[-1].name: few}


def block_axes(s: Scheduler, stage: str) -> dict[str, int]:
    """Loops along a few blocks of equal length, of which each is another case: a case axis and the
    next one, seen as one. With the length of the blocks."""
    names = {p.var: p for p in s.path(stage)}
    out: dict[str, int] = {}
    for v in walk(s.store(stage).value):
        if not (isinstance(v, Fn) and v.name == "eq" and isinstance(v.args[0], Index)):
            continue
        block = next(D.atoms(v.args[0].dim), None)
        if not isinstance(block, D.Quo) or v.args[0].dim != D.floordiv(block.a, block.b):
            continue
        p = names.get(D.the_sym(block.a)) if D.is_sym(block.a) else None
        if p is None or not isinstance(p.extent, int) or not isinstance(block.b, int):
            continue
        if p.extent % block.b == 0 and 1 < p.extent // block.b <= MOST:
            out[p.name] = block.b
    return out


def case_axes(s: Scheduler, stage: str) -> dict[str, int]:
    """Loops whose index, or its remainder, conditions compare with constants: with their period.
    Of tensors that are joined element by element, the condition says where the first one ends."""
    path = s.path(stage)
    names = {p.var: p for p in path}
    out: dict[str, int] = {}
    for v in walk(s.store(stage).value):
        if not (isinstance(v, Fn) and v.name in ("eq", "lt") and isinstance(v.args[0], Index)):
            continue
        at = v.args[0].dim
        if not isinstance(v.args[1], (Const, Index)):
            continue
        if D.is_sym(at) and D.the_sym(at) in names:
            p, period = names[D.the_sym(at)], names[D.the_sym(at)].extent
            if v.name == "lt" and p is not path[-1]:
                continue
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
