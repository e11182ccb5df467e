"""Values derived from weights: one copy for all programs that need it.

A program's prologue makes packed and folded values. Each has a recipe, and a caller that knows its
weights gives them keys; where recipe and keys are equal, programs share one piece of memory. A
piece lives as long as something refers to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from threading import RLock
from typing import Any, Protocol
from weakref import WeakSet, WeakValueDictionary

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.ir.node import Graph, Input, Node, input, node, topological
from tilewright.ir.types import TensorType
from tilewright.runtime.program_data import Recipe


def recipes_of(prologue: Graph) -> tuple[Recipe, ...]:
    """One per output."""
    position = {n: k for k, n in enumerate(prologue.inputs)}
    known: dict[Node, Recipe] = {}  # layers that are alike derive the same of other weights
    return tuple(_recipe(o, position, known) for o in prologue.outputs)


def _recipe(out: Node, position: dict[Node, int], known: dict[Node, Recipe]) -> Recipe:
    new: dict[Node, Node] = {}
    weights: list[int] = []
    for n in topological((out,)):
        if isinstance(n.op, Input):
            new[n] = input(f"w{len(weights)}", n.op.type, "weight")
            weights.append(position[n])
        else:
            new[n] = node(n.op, *(new[x] for x in n.inputs))
    made = new[out]
    if made not in known:
        known[made] = Recipe.of(made, ())
    return replace(known[made], weights=tuple(weights))


@dataclass(eq=False)
class Weight:
    """A weight as a caller knows it. Weights with equal keys hold the same elements, as long as
    `holds` lives.
    """

    key: Hashable
    holds: object = None
    # Where its own memory was given back: the elements in the order of memory, or an error; …
    rebuild: Callable[[], np.ndarray] | None = None
    # … and how to fill a piece from others that hold the same, if there are any.
    repack: Callable[[Piece], bool] | None = None


class Piece:
    """One derived value in memory."""

    def __init__(
        self, recipe: Recipe, type: TensorType, weights: tuple[Weight, ...], by: Prologue
    ) -> None:
        self.recipe, self.type, self.weights = recipe, type, weights
        self.size = _bytes(type)
        self.place = by.place
        self.memory: Any
        self.address, self.memory = by.allocate(self.size)
        self.users: WeakSet[Derived] = WeakSet()

    @property
    def key(self) -> Hashable:
        return self.place, self.recipe.text, tuple(w.key for w in self.weights)

    @property
    def is_only_copy(self) -> bool:
        return any(w.rebuild is not None for w in self.weights)

    def forget(self) -> None:
        """The weights have changed, whatever their keys say; it is not used again."""
        if self.is_only_copy:
            return  # what is in here can have changed nowhere
        with _lock:
            if _pieces.get(self.key) is self:
                del _pieces[self.key]
            for user in self.users:
                user.current = False


def _bytes(type: TensorType) -> int:
    if not isinstance(type.size, int):
        raise Invalid(f"a folded weight has a symbolic shape {type!r}")
    return type.size * type.dtype.bytes


class Derived:
    """What one program derived from some weights."""

    def __init__(self, identity: Sequence[Hashable], pieces: Sequence[Piece]) -> None:
        self.identity, self.pieces = list(identity), list(pieces)
        self.addresses = [p.address for p in pieces]
        self.current = True
        for p in pieces:
            p.users.add(self)


class Prologue(Protocol):
    """What computes all derived values at once."""

    @property
    def inputs(self) -> tuple[TensorType, ...]: ...

    @property
    def outputs(self) -> tuple[TensorType, ...]: ...

    @property
    def place(self) -> str:
        """The machine in whose memory they are."""
        ...

    def allocate(self, size: int) -> tuple[int, object]:
        """Memory there: its address, and what owns it."""
        ...

    def require_room(self, size: int, what: str) -> None: ...

    def run(self, inputs: Sequence[int], outputs: Sequence[int]) -> object: ...

    def settle(self) -> None:
        """Returns when the values are there."""
        ...

    def trim(self) -> None: ...


_pieces: WeakValueDictionary[Hashable, Piece] = WeakValueDictionary()
_lock = RLock()


def _new_lock() -> None:
    global _lock
    _lock = RLock()


# The thread that held it does not exist in a forked child.
os.register_at_fork(after_in_child=_new_lock)


def held_bytes() -> int:
    """Bytes of all pieces that are shared or could be."""
    with _lock:
        return sum(p.size for p in _pieces.values())


def derive(
    recipes: Sequence[Recipe],
    prologue: Prologue,
    addresses: Sequence[int],
    weights: Sequence[Weight] | None,
) -> Derived:
    """The derived values for weights at these addresses; without `weights` nothing is shared."""
    if weights is None:
        prologue.require_room(sum(map(_bytes, prologue.outputs)), "packed and folded weights")
        own = [
            Piece(r, t, tuple(Weight(addresses[k]) for k in r.weights), prologue)
            for r, t in zip(recipes, prologue.outputs, strict=True)
        ]
        prologue.run(addresses, [p.address for p in own])
        prologue.settle()
        prologue.trim()
        return Derived(addresses, own)
    with _lock:
        identity = [w.key for w in weights]
        used = [tuple(weights[k] for k in r.weights) for r in recipes]
        place = prologue.place
        pairs = zip(recipes, used, strict=True)
        keys = [(place, r.text, tuple(w.key for w in u)) for r, u in pairs]
        known = [_pieces.get(key) for key in keys]
        missing = [t for t, p in zip(prologue.outputs, known, strict=True) if p is None]
        prologue.require_room(sum(map(_bytes, missing)), "packed and folded weights")
        fresh: list[Piece] = []
        pieces: list[Piece] = []
        for r, t, u, p in zip(recipes, prologue.outputs, used, known, strict=True):
            if p is None:
                p = Piece(r, t, u, prologue)
                fresh.append(p)
            pieces.append(p)
        if fresh:
            _make(pieces, fresh, prologue, addresses, weights)
            for piece in fresh:
                _pieces[piece.key] = piece
        return Derived(identity, pieces)


def _make(
    pieces: Sequence[Piece],
    fresh: Sequence[Piece],
    prologue: Prologue,
    addresses: Sequence[int],
    weights: Sequence[Weight],
) -> None:
    """Run the prologue for the fresh pieces. Those that exist are not written again: others read
    them now."""
    fresh = [p for p in fresh if not any(w.repack is not None and w.repack(p) for w in p.weights)]
    if not fresh:
        return
    needed = {k for p in fresh for k in p.recipe.weights}
    scratch: list[object] = []
    sources = list(addresses)
    for k, w in enumerate(weights):
        if w.rebuild is None:
            continue
        t = prologue.inputs[k]
        assert isinstance(t.size, int), "weights are static"
        # What only existing pieces depend on need not be right. Untouched zeros take no memory.
        elements = w.rebuild() if k in needed else np.zeros(t.size * t.dtype.bytes, np.uint8)
        scratch.append(elements)
        sources[k] = elements.ctypes.data
    results = []
    for p in pieces:
        address = p.address
        if p not in fresh:
            address, memory = prologue.allocate(p.size)
            scratch.append(memory)
        results.append(address)
    prologue.run(sources, results)
    prologue.settle()
    prologue.trim()
