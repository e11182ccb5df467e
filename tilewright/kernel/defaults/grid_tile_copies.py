"""Which operands of a tile kernel's products the copy engine brings.

It brings what a kernel reads by tensor descriptors, box by box, to operands of groups of warps
which a loop fetches ahead. All else is copied by the threads: `Copies.left` says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from tilewright.ir.target import Target
from tilewright.kernel.box_copies import axes_of_box, by_engine, changed_meanwhile, row_of_box
from tilewright.kernel.distribution import programs_of
from tilewright.kernel.group_products import is_group
from tilewright.kernel.intrinsic import INTRINSICS
from tilewright.kernel.nest import Alloc, Loop, Nest, Store, walk
from tilewright.kernel.pieces import Piece, factors, pieces_in

Refusals = frozenset[tuple[str, str]]  # a stage and an instruction that cannot do it
ALL = False  # is what a kernel reads by plain pointers, but box by box, brought too?
OFF = False  # does the copy engine bring nothing?


@dataclass(frozen=True)
class Copies:
    """The copies of a nest whose operands are laid out, for products by these instructions."""

    nest: Nest
    target: Target
    products: Mapping[str, str]
    refused: Refusals
    near: tuple[str, ...]  # pairs of arguments that may be into the same memory

    @cached_property
    def _judged(self) -> dict[str, tuple[str, str]]:
        """By stage, the instruction that brings it, or nothing and why none does."""
        programs = programs_of(self.nest)
        assert programs is not None
        pieces = list(pieces_in(programs.body, self.nest.are("product")))
        operands = {
            str(x.source)
            for p in pieces
            if p.stage in self.products and is_group(self.products[p.stage])
            for x in factors(p) or ()
        }
        out: dict[str, tuple[str, str]] = {}
        for p in pieces:
            sources = {str(x.source) for x in p.reads()}
            wanted = sources & self.nest.are("described")
            if wanted or (ALL and sources & self._pointers and self._operand(p, operands)):
                out[p.stage] = self._brought(p, sorted(sources)[0], operands)
        return out

    @property
    def chosen(self) -> dict[str, str]:
        """The instruction of each stage that the copy engine brings."""
        return {stage: name for stage, (name, _) in self._judged.items() if name}

    @property
    def left(self) -> dict[str, str]:
        """By stage that was described and is not brought, why."""
        return {stage: why for stage, (name, why) in self._judged.items() if not name}

    @cached_property
    def _pointers(self) -> set[str]:
        return {b.name for b in self.nest.buffers if b.pointer}

    @cached_property
    def _near(self) -> frozenset[tuple[str, str]]:
        pairs = [x.split() for x in self.near]
        return frozenset(p for a, b in pairs for p in ((a, b), (b, a)))

    def _operand(self, p: Piece, operands: set[str]) -> bool:
        s = p.statement
        return isinstance(s, Store) and s.buffer in operands

    def _brought(self, p: Piece, source: str, operands: set[str]) -> tuple[str, str]:
        if OFF or self.target.grid is None or not self.target.grid.copies_tiles:
            return "", f"{self.target.name} has no copy engine"
        if not self._operand(p, operands):
            return "", "it is no operand of a product by groups of warps"
        s = p.statement
        assert isinstance(s, Store)
        if not self._ahead(s.buffer):
            return "", "no loop fetches it ahead"
        wrong = changed_meanwhile(self.nest, source, self._near)
        axes = wrong or axes_of_box(self.nest, p)
        if isinstance(axes, str):
            return "", axes
        b = self.nest.buffer(s.buffer)
        for name, i in INTRINSICS.items():
            same = i.engine == axes and i.group.outputs[0].dtype is b.dtype
            if same and row_of_box(i) == b.shape[-1] and (p.stage, name) not in self.refused:
                return name, ""
        return "", f"there is no copy of rows of {b.shape[-1]} numbers of {b.dtype}"

    def _ahead(self, buffer: str) -> bool:
        """Is there one store to it, in a loop whose iterations have it anew?"""
        loops = [x for x, _ in walk(self.nest.body) if isinstance(x, Loop) and x.kind == "serial"]
        within = [x for x in loops if Alloc(buffer) in x.body]
        stores = [x for x, _ in walk(self.nest.body) if isinstance(x, Store) and x.buffer == buffer]
        return len(within) == len(stores) == 1


def not_ahead(n: Nest) -> set[str]:
    """Stages that the copy engine brings and nothing waits for: they are not fetched ahead."""
    out: set[str] = set()
    for s, path in walk(n.body):
        if isinstance(s, Store) and by_engine(path) and not s.asynchronous:
            out.add(s.stage)
    return out


def only_engine(n: Nest, loop: Loop) -> bool:
    """Does the copy engine bring all that a loop allocates of shared memory?"""
    made = {x.buffer for x in loop.body if isinstance(x, Alloc)}
    shared = {b for b in made if n.buffer(b).scope == "shared"}
    by = {s.buffer for s, p in walk(loop.body) if isinstance(s, Store) and by_engine(p)}
    return bool(shared) and shared <= by
