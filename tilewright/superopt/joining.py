"""Which of the registered operators join a vocabulary, and why others do not."""

from __future__ import annotations

from itertools import product

from tilewright.base.errors import TilewrightError
from tilewright.ir.operator import OPERATORS
from tilewright.superopt.blocks import Sizes
from tilewright.superopt.enumerate import REFUSALS, Space, enumerated
from tilewright.superopt.vocabulary import Vocabulary, arity, constants, instances

TENSORS = (1, 2)  # of an operator that is enumerated


def joining(vocabulary: Vocabulary) -> dict[str, str]:
    """Every registered operator, and why it does not join; nothing where it does."""
    space = enumerated(vocabulary, 1)
    return {name: _why_not(space, name) for name in sorted(OPERATORS)}


def _why_not(space: Space, name: str) -> str:
    if OPERATORS[name].random:
        return "is random"
    counts = arity(name)
    if name in constants():
        return ""
    if not counts & set(TENSORS):
        return f"takes {' or '.join(map(str, sorted(counts)))} tensors"
    named = Sizes.symbolic(tuple(space.vocabulary.sizes))
    why = "has attributes of which no value is known"
    for n in sorted(counts & set(TENSORS)):
        for kinds in product(space.tensors, repeat=n):
            for x in instances(name, kinds):
                try:
                    x.type(named, kinds)  # says why in names of sizes
                    space.tried(x, kinds)
                    return ""
                except REFUSALS as refused:
                    why = refused.what if isinstance(refused, TilewrightError) else str(refused)
    return why
