"""Equalities made general: leaves that need not be one tensor, sizes that need not be equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations

from tilewright.base.errors import Invalid, Unsupported
from tilewright.superopt.blocks import Block, Kind, Made, Times, names
from tilewright.superopt.blocks import renamed as renamed_block
from tilewright.superopt.points import refuted
from tilewright.superopt.terms import Equality, Leaf, Term, Tree, kind_of, leaves, ordered, renamed

# Orders of the occurrences of one leaf that are tried.
MOST_OCCURRENCES = 4


def has_proof(e: Equality) -> bool:
    """Is it proved? Not where a side is too large for a normal form, or has none, or where it has
    no meaning: sizes that are equal in a space need not be equal always. Most that is wrong is so
    at any point, which is tried first: no normal form takes as long as those that differ."""
    try:
        return not refuted(e) and e.is_proved()
    except (Invalid, Unsupported):
        return False


def generalised(e: Equality) -> Equality:
    """The most general equality of this form that is proved."""
    return with_free_sizes(with_free_leaves(with_any_signs(e))).canonical()


def with_any_signs(e: Equality) -> Equality:
    """Leaves may have negative elements, but for those without which there is no proof."""
    for leaf in e.leaves:
        if leaf.positive:
            table: dict[Leaf, Tree] = {leaf: replace(leaf, positive=False)}
            other = Equality(renamed(e.left, table), renamed(e.right, table))
            e = other if has_proof(other) else e
    return e


def with_free_leaves(e: Equality) -> Equality:
    """Every occurrence of a leaf is a leaf of its own, but for those that both sides need."""
    changed = True
    while changed:
        changed = False
        for leaf in dict.fromkeys(leaves(e.left)):
            for other in _apart(e, leaf):
                if has_proof(other):
                    e, changed = other, True
                    break
            if changed:
                break
    return e


def _apart(e: Equality, leaf: Leaf) -> Iterator[Equality]:
    """The occurrences of a leaf as leaves of their own: each of the side with fewer of them is one
    of the other side's."""
    counts = [Counter(leaves(side))[leaf] for side in (e.left, e.right)]
    if min(counts) < 1 or not 2 <= max(counts) <= MOST_OCCURRENCES:
        return
    taken = {x.name for side in (e.left, e.right) for x in leaves(side)}
    letter = leaf.name.rstrip("0123456789")
    free = (f"{letter}{k}" for k in range(1, 100) if f"{letter}{k}" not in taken)
    new = [leaf, *(replace(leaf, name=next(free)) for _ in range(max(counts) - 1))]
    many, few = (e.left, e.right) if counts[0] >= counts[1] else (e.right, e.left)
    apart = _each(many, leaf, iter(new))
    for order in permutations(new, min(counts)):
        other = _each(few, leaf, iter(order))
        if ordered(apart) != ordered(other):  # or there is nothing left to prove
            yield Equality(apart, other) if many is e.left else Equality(other, apart)


def _each(t: Tree, leaf: Leaf, new: Iterator[Leaf]) -> Tree:
    """Occurrences of a leaf, each as the next new one."""
    if isinstance(t, Leaf):
        return next(new) if t == leaf else t
    return Term(t.instance, tuple(_each(x, leaf, new) for x in t.operands))


def with_free_sizes(e: Equality) -> Equality:
    """Every named axis of a leaf has a size of its own, but for what operators require."""
    free: dict[Leaf, Tree] = {}
    count = 0
    for x in e.leaves:
        kind: list[Block] = []
        for block in x.kind:
            parts = names(block) if isinstance(block, (str, Times)) else ()
            kind.append(
                renamed_block(block, {n: f"n{count + k}" for k, n in enumerate(sorted(parts))})
            )
            count += len(parts)
        free[x] = replace(x, kind=tuple(kind))
    start = Equality(renamed(e.left, free), renamed(e.right, free))
    for found in _fitting(start):
        if has_proof(found):
            return found
    return e


def _fitting(e: Equality) -> Iterator[Equality]:
    """The equality with sizes made equal until every operator takes its operands."""
    misfit = _misfit(e.left) or _misfit(e.right)
    if misfit is None:
        left, right = kind_of(e.left), kind_of(e.right)
        if left == right:
            yield e
        elif left is not None and right is not None and len(left) == len(right):
            new = _joined(e, list(zip(left, right, strict=True)))
            if new is not None:
                yield from _fitting(Equality(renamed(e.left, new), renamed(e.right, new)))
        return
    kinds = [k for x in misfit.operands if (k := kind_of(x)) is not None]
    for pairs in _alignments(*kinds) if len(kinds) == 2 else ():
        new = _joined(e, pairs)
        if new is not None and kind_of(renamed(misfit, new)) is not None:
            yield from _fitting(Equality(renamed(e.left, new), renamed(e.right, new)))


def _alignments(a: Kind, b: Kind) -> Iterator[list[tuple[Block, Block]]]:
    """Axes of two operands that an operator may need to be equal: all of them, all but one, or the
    last of one and the one before it of the other."""
    if len(a) >= 2 and len(b) >= 2:
        yield [(a[-1], b[-2])]
    if len(a) == len(b):
        if len(a) >= 2:
            yield [(a[1], b[1])]
        for k in range(len(a)):
            yield [p for j, p in enumerate(zip(a, b, strict=True)) if j != k]
    short = min(len(a), len(b))
    if short:
        yield list(zip(a[len(a) - short :], b[len(b) - short :], strict=True))


def _joined(e: Equality, pairs: list[tuple[Block, Block]]) -> dict[Leaf, Tree] | None:
    """The leaves with the blocks of every pair made equal; None where nothing changes."""
    table = _united(pairs)
    if not table:
        return None
    return {
        x: replace(x, kind=tuple(renamed_block(b, table) for b in x.kind))
        for side in (e.left, e.right)
        for x in leaves(side)
    }


def _united(pairs: list[tuple[Block, Block]]) -> dict[str, Block] | None:
    """Names to replace so that the blocks of every pair are equal; None where they cannot be."""
    table: dict[str, Block] = {}
    stack = list(pairs)
    while stack:
        a, b = (renamed_block(x, table) for x in stack.pop())
        if a == b:
            continue
        if isinstance(a, tuple) and isinstance(b, tuple):
            stack += [(a[0], b[0]), (a[1], b[1])]
        elif isinstance(a, Times) and isinstance(b, Times):
            stack += [(a.first, b.first), (a.second, b.second)]
        elif isinstance(a, Made) and isinstance(b, Made) and len(names(a)) == len(names(b)) == 1:
            stack += [(x, y) for x in names(a) for y in names(b)]
        elif isinstance(a, str) and isinstance(b, str):
            table = {k: renamed_block(v, {b: a}) for k, v in table.items()} | {b: a}
        else:
            return None
    return table


def _misfit(t: Tree) -> Term | None:
    """The first operator whose operands do not fit."""
    if isinstance(t, Leaf):
        return None
    for x in t.operands:
        found = _misfit(x)
        if found is not None:
            return found
    return t if kind_of(t) is None else None
