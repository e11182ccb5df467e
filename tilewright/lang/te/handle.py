"""`s[C]`: one stage of a schedule, with TVM's methods. Each makes kernel steps, applied at once.

The drawings show the loops of a stage before a call and after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.base.errors import Invalid, Refused
from tilewright.ir import dim as D
from tilewright.ir import expr as E
from tilewright.ir.maps import Map
from tilewright.kernel.nest import find
from tilewright.kernel.step import Step
from tilewright.kernel.steps.bind import Bind
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.compute_inline import ComputeInline
from tilewright.kernel.steps.compute_with import ComputeWith
from tilewright.kernel.steps.double_buffer import DoubleBuffer
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.init_at import InitAt
from tilewright.kernel.steps.parallel import Parallel
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.pipeline import Pipeline
from tilewright.kernel.steps.pragma import Pragma
from tilewright.kernel.steps.prefetch import Prefetch
from tilewright.kernel.steps.relayout import Relayout
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.reverse_compute_at import ReverseComputeAt
from tilewright.kernel.steps.set_scope import SetScope
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.storage_align import StorageAlign
from tilewright.kernel.steps.tensorize import Tensorize
from tilewright.kernel.steps.tile import Tile
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.steps.vectorize import Vectorize

from .expression import Operation, Tensor, axis_names
from .scalars import Expr, IterVar, as_index

if TYPE_CHECKING:
    from .schedule import Schedule

_GRID = {"blockIdx": "block", "threadIdx": "thread"}
_PLACING = (ComputeAt, ComputeInline, ComputeWith, ReverseComputeAt)
_PARTS = ((0, "outer"), (1, "inner"))
# TVM's names of memory spaces, of which this machine has only one.
_SCOPES = {"global": "local"}


def scope_named(scope: str) -> str:
    """The kernel level's name of a scope."""
    return _SCOPES.get(scope, scope)


@dataclass(frozen=True)
class ThreadAxis:
    """One axis of a grid: `kind` is what a loop bound to it becomes."""

    kind: str


def thread_axis(dom: object = None, tag: str = "", name: str = "") -> ThreadAxis:
    """`thread_axis("blockIdx.x")` or `thread_axis((0, 32), "threadIdx.y")`: what `bind` binds to.
    The extent is that of the loop, whatever `dom` says."""
    tag = dom if isinstance(dom, str) else tag
    what, _, axis = tag.partition(".") if isinstance(tag, str) else ("", "", "")
    if what not in _GRID or axis not in ("x", "y", "z"):
        raise Invalid(f"there is no thread axis {tag!r}", hint="blockIdx or threadIdx, .x .y or .z")
    return ThreadAxis(f"{_GRID[what]}.{axis}")


class StageHandle:
    """One stage of a schedule; its methods are TVM's."""

    def __init__(self, schedule: Schedule, name: str) -> None:
        self.schedule, self.name = schedule, name

    @property
    def op(self) -> Operation:
        """What the stage computes; `.axis` and `.reduce_axis` are its loops as written."""
        return self.schedule.known(self.name).op

    @property
    def leaf_iter_vars(self) -> tuple[IterVar, ...]:
        """The axes that are loops now, outermost first."""
        named = {loop: axis for axis, loop in self.schedule.known(self.name).loops.items()}
        order = self.schedule.loop_order()
        return tuple(named[x] for x in order if x in named)

    def __repr__(self) -> str:
        return f"stage {self.name}: {', '.join(a.name for a in self.leaf_iter_vars) or 'no loops'}"

    # ---- loops

    def split(
        self, parent: IterVar, factor: int | None = None, nparts: int | None = None
    ) -> tuple[IterVar, IterVar]:
        """The axis as two: `factor` iterations inside, or `nparts` outside. A tail is shorter.

        for i in 100:            for i.outer in 7:
          C[i] = …                 for i.inner in min(16, 100-16*i.outer):
                                     C[16*i.outer + i.inner] = …
        """
        loop = self._loop(parent)
        if (factor is None) == (nparts is None):
            raise Refused(f"split of {loop}: say factor= or nparts=, one of them")
        self.schedule.apply(Split(loop, factor or 0, nparts or 0))
        outer, inner = self._halves(parent, loop)
        return outer, inner

    def tile(
        self, x: IterVar, y: IterVar, x_factor: int, y_factor: int
    ) -> tuple[IterVar, IterVar, IterVar, IterVar]:
        """Two axes as four: the tiles, then the places in a tile.

        for x in 64:             for x.outer in 8: for y.outer in 8:
          for y in 64:             for x.inner in 8: for y.inner in 8:
            C[x,y] = …               C[8*x.outer + x.inner, 8*y.outer + y.inner] = …
        """
        a, b = self._loop(x), self._loop(y)
        if a == b:
            raise Refused(f"tile of {a} by itself", hint="give two axes")
        self.schedule.apply(Tile(a, b, x_factor, y_factor))
        (xo, xi), (yo, yi) = self._halves(x, a), self._halves(y, b)
        return xo, yo, xi, yi

    def fuse(self, *axes: IterVar) -> IterVar:
        """Axes, each right inside the one before, as one.

        for i in 8:              for i.j.fused in 48:
          for j in 6:              C[i.j.fused // 6, i.j.fused % 6] = …
            C[i,j] = …
        """
        if not axes:
            raise Refused(f"fuse of {self.name}: there is no axis", hint="give two or more")
        loops = [self._loop(a) for a in axes]
        if len(axes) == 1:
            return axes[0]
        first, steps, into = len(self.schedule.known(self.name).gone), [], loops[0]
        for k, inner in enumerate(loops[1:]):
            outer, into = into, f"{self.name}.f{first + k}"
            steps.append(Fuse(outer, inner, into))
        self.schedule.apply(*steps)
        made = self._axis(into, f"{'.'.join(a.name for a in axes)}.fused", axes[0].kind)
        self.schedule.replaced(self.name, list(axes), {made: into})
        return made

    def reorder(self, *axes: IterVar) -> None:
        """The axes in this order, outermost first; others stay where they are.

        for i: for j: for k: …   reorder(k, i)   for k: for j: for i: …
        """
        names = [self._loop(a) for a in axes]
        if len(set(names)) != len(names):
            raise Refused(f"reorder of {', '.join(names)}: an axis is named twice")
        present = [x for x in names if not self._single(x)]
        if len(present) > 1:
            self.schedule.apply(Reorder(tuple(present)))

    def vectorize(self, axis: IterVar) -> None:
        """The iterations are the lanes of a vector; a ragged one is masked. Loops inside stay
        loops: the lanes go into them.

        for l in 4: C[4*i + l] = A[4*i + l] + 1     C[4*i : 4*i+4] = A[4*i : 4*i+4] + 1
        for l in 4: for k: C[l] += B[k, l]          for k: C[0 : 4] += B[k, 0 : 4]
        """
        loop = self._loop(axis)
        if not self._single(loop):
            self.schedule.apply(Vectorize(loop, self._ragged(loop)))

    def unroll(self, axis: IterVar) -> None:
        """The iterations are written out.

        for u in 3: C[u] = 0     C[0] = 0; C[1] = 0; C[2] = 0
        """
        loop = self._loop(axis)
        if not self._single(loop):
            self.schedule.apply(Unroll(loop, self._ragged(loop)))

    def parallel(self, axis: IterVar) -> None:
        """The iterations of an outermost loop may run on several threads.

        for i: …                 parallel i: …
        """
        self.schedule.apply(Parallel(self._loop(axis)))

    def bind(self, axis: IterVar, thread: ThreadAxis) -> None:
        """The iterations are the blocks of a grid or the threads of a block.

        for i.outer: for i.inner: …      block.x i.outer: thread.x i.inner: …
        """
        if not isinstance(thread, ThreadAxis):
            raise Invalid(f"{thread!r} is no thread axis", hint='te.thread_axis("threadIdx.x")')
        self.schedule.apply(Bind(self._loop(axis), thread.kind))

    def peel(self, axis: IterVar) -> None:
        """The ragged last iteration of a split axis becomes a copy, so that the others are full.

        for i.outer in 7:                              for i.outer in 6:
          for i.inner in min(16, 100-16*i.outer): …      for i.inner in 16: …
                                                       for i.inner in 4: …
        """
        self.schedule.apply(Peel(self._loop(axis)))

    def tensorize(self, axis: IterVar, instruction: str) -> None:
        """The axis and all inside it are one use of a declared instruction, which is proved.

        for j in 4: for p in 4:            tensor j in 4 by arm64.sdot: tensor p in 4:
          C[j] += A[p] * B[j,p]              C[j] += A[p] * B[j,p]
        """
        self.schedule.apply(Tensorize(self._loop(axis), instruction))

    def pragma(self, axis: IterVar, pragma_type: str, pragma_value: int | None = None) -> None:
        """A hint for what comes after the schedule: "unroll" (by LLVM, so many iterations) or
        "nontemporal" (results go past the caches).

        for i in 100: …          for i in 100 pragma unroll 4: …
        """
        value = 1 if pragma_value is None else pragma_value
        self.schedule.apply(Pragma(self._loop(axis), pragma_type, value))

    def prefetch(self, tensor: Tensor | Operation, axis: IterVar, offset: int = 1) -> None:
        """Each iteration prefetches the first cache line of a tensor that the one `offset` later
        reads.

        for i: for k: C[i] += A[i,k]     for i:
                                           prefetch A[i+1,0]
                                           for k: C[i] += A[i,k]
        """
        buffer = self.schedule.name_of(tensor)
        self.schedule.apply(Prefetch(buffer, self._loop(axis), offset))

    # ---- places

    def compute_at(self, parent: StageHandle, axis: IterVar) -> None:
        """The stage is computed inside an axis of the one which reads it, only what is read there.

        for i: for j: B[i,j] = …         for i:
        for i: for j: C[i,j] = B[i,j]      for j: B[j] = …
                                           for j: C[i,j] = B[j]
        """
        self.schedule.apply(ComputeAt(self.name, self._loop_of(parent, axis)))

    def reverse_compute_at(self, parent: StageHandle, axis: IterVar) -> None:
        """The stage is computed inside an axis of what it reads, as soon as that is complete.

        for i: for j: B[i,j] = …         for i:
        for i: for j: C[i,j] = B[i,j]      for j: B[j] = …
                                           for j: C[i,j] = B[j]
        """
        loop = self._loop_of(parent, axis)
        # Where the other one is a reduction, its first values are set there too.
        if not self.schedule.attempt(InitAt(parent.name, loop), ReverseComputeAt(self.name, loop)):
            self.schedule.apply(ReverseComputeAt(self.name, loop))

    def compute_with(self, parent: StageHandle, axis: IterVar) -> None:
        """The stage shares the loops of another one, from the outermost down to the axis.

        for i: B[i] = …          for i:
        for i: C[i] = …            B[i] = …
                                   C[i] = …
        """
        self.schedule.apply(ComputeWith(self.name, self._loop_of(parent, axis)))

    def compute_inline(self) -> None:
        """The stage disappears into what reads it.

        for i: B[i] = exp(A[i])          for i: C[i] = exp(A[i]) + 1
        for i: C[i] = B[i] + 1
        """
        self.schedule.apply(ComputeInline(self.name))

    def compute_root(self) -> None:
        """The stage has loops of its own again: takes back compute_at, compute_inline and the like.

        for i:                           for i: for j: B[i,j] = …
          for j: B[j] = …                for i: for j: C[i,j] = B[i,j]
          for j: C[i,j] = B[j]
        """

        def placed(s: Step) -> bool:
            return isinstance(s, _PLACING) and s.stage == self.name

        kept = tuple(s for s in self.schedule.trace if not placed(s))
        if len(kept) != len(self.schedule.trace):
            self.schedule.replay(kept)

    # ---- memory

    def set_scope(self, scope: str) -> None:
        """Where the stage's buffer lives: "global", "shared" (by a block's threads), "local",
        "register".

        local B: f32[8]          register B: f32[8]
        """
        self.schedule.apply(SetScope(self.name, scope_named(scope)))

    def storage_align(self, axis: IterVar, factor: int, offset: int = 0) -> None:
        """Rows of the stage's buffer start `offset` elements after multiples of `factor`.

        local B: f32[16,32]      local B: f32[16,33]        # storage_align(axis 0, 32, 1)
        """
        places = [k for k, a in enumerate(self.op.axis) if a is axis]
        if not places:
            names = ", ".join(a.name for a in self.op.axis) or "none"
            what = f"{axis!r} is no axis of {self.name} as it was written"
            raise Refused(what, hint=f"its axes are {names}")
        self.schedule.apply(StorageAlign(self.name, places[0], factor, offset))

    def transform_layout(self, mapping: Callable[..., Sequence[Any]]) -> None:
        """The tensor lies in memory by a map of its indices: `lambda k, j: (j // 16, k, j % 16)`.
        An input is then taken in that layout; `f.pack(B, array)` of the built function gives it.

        in B: f32[64,48]                 in B: f32[3,64,16]
        … B[k,j]                         … B[j//16, k, j%16]
        """
        shape = self.op.tensor.shape
        names = axis_names(mapping, len(shape), f"the layout of {self.name}")
        found = mapping(*(Expr(E.index(D.sym(a))) for a in names))
        several = found if isinstance(found, (tuple, list)) else (found,)
        what = f"the layout of {self.name}"
        by = Map(tuple(names), tuple(as_index(x, what) for x in several))
        self.schedule.apply(Relayout(self.name, str(by)))

    def double_buffer(self) -> None:
        """The stage's buffer has two versions, used in turn by the loop it is computed in.

        for k:                           for k:
          B[…] = …                         B[k%2, …] = …
          C[…] += B[…]                     C[…] += B[k%2, …]
        """
        self.schedule.apply(DoubleBuffer(self.name))

    def pipeline(
        self, parent: StageHandle, axis: IterVar, ahead: int = 1, asynchronous: bool = False
    ) -> None:
        """The stage, computed at an axis of another one, runs `ahead` iterations early there;
        asynchronously, where it is a copy to shared memory.

        for k in n:                      B[0] = …(0)
          B = …(k)                       for k in n:
          C += B                           if k+1 < n: B[(k+1)%2] = …(k+1)
                                           C += B[k%2]
        """
        loop = self._loop_of(parent, axis)
        self.schedule.apply(Pipeline(loop, self.name, ahead, asynchronous))

    # ---- what an axis is now

    def _loop(self, axis: object) -> str:
        return self.schedule.loop(self.name, axis)

    def _loop_of(self, parent: object, axis: IterVar) -> str:
        if not isinstance(parent, StageHandle) or parent.schedule is not self.schedule:
            raise Invalid(f"{parent!r} is no stage of this schedule", hint="give s[C]")
        return self.schedule.loop(parent.name, axis)

    def _axis(self, loop: str, name: str, kind: str) -> IterVar:
        found = find(self.schedule.nest, loop)
        return IterVar(name, found[0][0].extent if found else 1, kind)

    def _halves(self, parent: IterVar, loop: str) -> Sequence[IterVar]:
        """The two axes that a split one has become."""
        pair = [self._axis(f"{loop}.{k}", f"{parent.name}.{w}", parent.kind) for k, w in _PARTS]
        names = {p: f"{loop}.{k}" for p, (k, _) in zip(pair, _PARTS, strict=True)}
        self.schedule.replaced(self.name, [parent], names)
        return pair

    def _ragged(self, loop: str) -> bool:
        return all(not isinstance(x.extent, int) for x, _ in find(self.schedule.nest, loop))

    def _single(self, loop: str) -> bool:
        """Was the loop removed, as a loop of a single iteration is when its stage is placed?"""
        return not find(self.schedule.nest, loop)
