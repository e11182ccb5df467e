"""The second prover: both sides of an equality computed at random points, by references.

An operator's reference is numpy, written apart from the definition that a normal form is made of.
Where operators make whole numbers of whole numbers, the inputs are whole and so small that float64
is exact, and one element that differs refuses the equality. Elsewhere, as with quotients and
exponentials, the sides may differ by what float64 rounds.
"""

from __future__ import annotations

from math import prod

import numpy as np

from tilewright.base.errors import Invalid, Unsupported
from tilewright.ir import dim as D
from tilewright.ir.expr import Const, Fn, Reduce, walk
from tilewright.ir.node import Graph, Input, Node
from tilewright.ir.positions import static
from tilewright.ir.types import f64
from tilewright.ops.control import by_references
from tilewright.rewrites.proofs.element import Elements
from tilewright.rewrites.proofs.modular import degree
from tilewright.rewrites.proofs.prove import difference, inputs_of
from tilewright.superopt.blocks import Sizes
from tilewright.superopt.terms import Equality

# Sizes that are tried, small ones first, since of images without an inside everything is equal; and
# points for each: enough for every sign of a few elements.
SIZES, POINTS = 3, 24
# Of a whole element, and of bits of a product of them: sums of thousands are exact in float64.
LARGEST, BITS = 1 << 9, 40
# Elements of the inputs of a point that is tried before a proof.
SMALL = 1 << 12
# Draws of sizes until operators take them, each of a wider range.
DRAWS = 24

_WHOLE = frozenset("add sub mul neg max min abs select cast lt le gt ge eq ne and or not".split())


def differs(e: Equality, seed: int = 0) -> str | None:
    """Where both sides differ, or None."""
    rng = np.random.default_rng(seed)
    for least in range(1, 1 + SIZES):
        try:
            sizes, sides = sized(e, rng, least)
        except Invalid as why:
            return f"{why.what}: {why.hint}"
        exact = is_exact(sides)
        largest = _largest(sides) if exact else 0
        graph = Graph("sides", inputs_of(*sides), sides)
        for _ in range(POINTS):
            args = [argument(e, n, sizes, largest, rng) for n in graph.inputs]
            with np.errstate(all="ignore"):
                a, b = (np.asarray(x) for x in by_references(graph, args))
            if not np.array_equal(a, b) if exact else difference(a, b, "rounding"):
                where = ", ".join(f"{k} = {v}" for k, v in sizes.items())
                return f"the sides differ at a point with {where} (seed {seed})"
    return None


def refuted(e: Equality) -> bool:
    """Do both sides differ at one point, where both are defined? That takes milliseconds. Large
    tensors, whose sizes are numbers, are not tried."""
    rng = np.random.default_rng(0)
    try:
        sizes, sides = sized(e, rng, least=2)
        graph = Graph("sides", inputs_of(*sides), sides)
        if sum(prod(static(n.shape)) for n in graph.inputs) > SMALL:
            return False
        with np.errstate(all="ignore"):
            a, b = by_references(graph, [argument(e, n, sizes, 0, rng) for n in graph.inputs])
    except (Invalid, Unsupported):
        return False  # nothing is known
    finite = np.isfinite(a).all() and np.isfinite(b).all()
    return bool(finite) and difference(np.asarray(a), np.asarray(b), "rounding") is not None


def sized(
    e: Equality, rng: np.random.Generator, least: int = 1
) -> tuple[dict[str, int], tuple[Node, Node]]:
    """Random sizes, not below the least, and both sides with them."""
    last = ""
    for k in range(DRAWS):
        most = least + 4 + k // 2
        sizes = {name: int(rng.integers(least, most)) for name in e.symbols}
        if k >= DRAWS // 2:  # some operators want equal sizes, whatever they are called
            sizes = dict.fromkeys(sizes, int(rng.integers(least, most)))
        try:
            return sizes, e.nodes(Sizes(sizes), f64)
        except Invalid as why:  # such as a kernel that is larger than the image
            last = why.what
    raise Invalid("no sizes were found that all operators take", hint=last)


def is_exact(sides: tuple[Node, ...]) -> bool:
    """Are results whole numbers where the inputs are?"""
    elements = Elements()
    for n in sides:
        at = [D.var(f"@{k}", d) for k, d in enumerate(n.shape)]
        for v in walk(elements.at(n, at)):
            if isinstance(v, Const) and v.dtype.is_float and np.isfinite(v.value):
                if v.value != int(v.value):
                    return False
            if isinstance(v, Fn) and v.name not in _WHOLE:
                return False
            if isinstance(v, Reduce) and v.combine not in ("add", "max", "min"):
                return False
    return True


def _largest(sides: tuple[Node, ...]) -> int:
    """The largest element of inputs whose results are exact."""
    leaves = dict.fromkeys(inputs_of(*sides))
    try:
        most = max(1, *(degree(n, leaves) for n in sides))
    except Unsupported:
        most = BITS
    return max(1, min(LARGEST, int(2 ** (BITS / most))))


def argument(
    e: Equality, n: Node, sizes: dict[str, int], largest: int, rng: np.random.Generator
) -> np.ndarray:
    """Random values for a leaf: whole numbers up to the largest, or any where that is 0."""
    assert isinstance(n.op, Input)
    name, shape = n.op.label, static(n.shape)
    leaf = next(x for x in e.leaves if x.name == name)
    if leaf.below is not None:
        (most,) = Sizes(sizes).shape((leaf.below,))
        return rng.integers(0, most, shape)
    if not largest:
        found = 2 * rng.standard_normal(shape)
        return np.abs(found) if leaf.positive else found
    low = 0 if leaf.positive else -largest
    return rng.integers(low, largest, shape, endpoint=True).astype(np.float64)
