"""Pieces of a tile kernel: loops over the elements of a tile around one statement.

A naive nest of the tile language is made of pieces, of allocations, and of branches and loops
around them. The iterations of a piece are the elements of a tile: the language orders the pieces,
not the elements of one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Fn, Load, Value, loads
from tilewright.kernel.nest import Atomic, If, Loop, Report, Stmt, Store, bodies, own_values, walk

Cell = tuple[str, tuple[Dim, ...]]  # of a buffer
ROUNDED = "tf32"  # what a product may do to its factors first, besides casts


@dataclass(frozen=True)
class Piece:
    loops: tuple[Loop, ...]
    leaf: Stmt
    product: bool = False  # of tiles, as the kernel's author said (`Nest.roles`)

    @property
    def statement(self) -> Stmt:
        """What is done to each element, where its conditions hold."""
        s = self.leaf
        while isinstance(s, If):
            s = s.then[0]
        return s

    @property
    def stage(self) -> str:
        s = self.statement
        if isinstance(s, (Store, Atomic)):
            return s.stage
        return self.loops[0].axis.stage if self.loops else "report"

    def over(self) -> tuple[Loop, ...]:
        """The loops that a sum is over."""
        s = self.statement
        if not isinstance(s, Store) or s.combine is None or scattered(s):
            return ()
        along = set().union(*(D.symbols(i) for i in s.index)) if s.index else set()
        return tuple(x for x in self.loops if x.var not in along)

    def writes(self) -> list[Cell]:
        s = self.statement
        if isinstance(s, Store):
            return [(s.buffer, s.index)]
        if isinstance(s, Atomic):
            return [(s.buffer, s.index), *([s.result] if s.result is not None else [])]
        return []

    def values(self) -> list[Value]:
        return [v for s, _ in walk((self.leaf,)) for v in own_values(s)]

    def reads(self) -> list[Load]:
        return [x for v in self.values() for x in loads(v)]


def scattered(s: Store) -> bool:
    """An update of cells that data selects: two elements may be at one."""
    return s.combine is not None and any(True for i in s.index for _ in D.data_values(i))


def piece_of(s: Stmt, products: Collection[str] = ()) -> Piece | None:
    """The piece that a statement is. A choice that no loop is around is one of the program.
    `products` are the stages that multiply tiles."""
    loops: list[Loop] = []
    while isinstance(s, Loop) and s.kind == "serial" and s.axis.stage:
        if len(s.body) != 1 or not isinstance(s.extent, int):
            return None
        loops.append(s)
        s = s.body[0]
    leaf = s
    while loops and isinstance(s, If):
        if len(s.then) != 1 or s.other:
            return None
        s = s.then[0]
    product = isinstance(s, Store) and s.stage in products
    return Piece(tuple(loops), leaf, product) if isinstance(s, (Store, Atomic, Report)) else None


def pieces_in(body: tuple[Stmt, ...], products: Collection[str] = ()) -> Iterator[Piece]:
    for s in body:
        found = piece_of(s, products)
        if found is not None:
            yield found
        else:
            for inside in bodies(s):
                yield from pieces_in(inside, products)


def choices_in(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """Branches and loops around pieces: what they read, every thread reads."""
    for s in body:
        if piece_of(s) is None:
            yield s
            for inside in bodies(s):
                yield from choices_in(inside)


def factors(p: Piece) -> tuple[Load, Load] | None:
    """The operands of a product of two tiles that is added to a third."""
    s = p.statement
    if not isinstance(s, Store) or s.combine != "add" or len(p.over()) != 1 or len(p.loops) < 3:
        return None
    v = s.value
    if s is not p.leaf or not isinstance(v, Fn) or v.name != "mul" or not p.product:
        return None
    a, b = (x.args[0] if isinstance(x, Fn) and x.name in ("cast", ROUNDED) else x for x in v.args)
    return (a, b) if isinstance(a, Load) and isinstance(b, Load) else None


def is_rounded(v: Value) -> bool:
    """Are the factors of a product rounded before they are multiplied?"""
    found = v.args if isinstance(v, Fn) and v.name == "mul" else ()
    return bool(found) and all(isinstance(x, Fn) and x.name == ROUNDED for x in found)
