"""Legal nests: what a target needs is explicit in the nest, so that an emitter has nothing to
decide.

`legalise` is the last thing that happens to a nest before it becomes code, after every step of its
trace. It is a list of small rewritings from nest to nest, each for one need, that take what they
have to know from the target's fields. A legal nest is an ordinary one: it prints, parses, runs on
the interpreters, and is legal for the same target when it is legalised again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tilewright.base.errors import Invalid
from tilewright.ir.target import Target
from tilewright.kernel.legal.accesses import mark_accesses
from tilewright.kernel.legal.carries import carry_in_registers
from tilewright.kernel.legal.hoist import hoist_reads, unset
from tilewright.kernel.legal.interleave import interleave_stores, scattered
from tilewright.kernel.legal.lanes import ragged, whole_vectors
from tilewright.kernel.legal.masks import version_masks
from tilewright.kernel.legal.memory import misplaced, place_buffers, without_tuples
from tilewright.kernel.legal.rows import keep_rows
from tilewright.kernel.legal.told import tell_what_is_found
from tilewright.kernel.nest import Nest

Rewriting = Callable[[Nest, Target], Nest]
Judge = Callable[[Nest, Target], Iterator[str]]

REWRITINGS: dict[str, Rewriting] = {
    "tuples": without_tuples,
    "memory": place_buffers,
    "lanes": whole_vectors,
    "carries": carry_in_registers,
    "rows": keep_rows,
    "interleave": interleave_stores,
    "hoist": hoist_reads,
    "masks": version_masks,
    "accesses": mark_accesses,
    "told": tell_what_is_found,
}
# What an emitter relies on; nests edited by hand are checked against it.
JUDGES: tuple[Judge, ...] = (misplaced, ragged, scattered, unset)


def legalise(n: Nest, target: Target) -> Nest:
    """The nest as an emitter for the target takes it."""
    for rewriting in REWRITINGS.values():
        n = rewriting(n, target)
    return n


def check_legal(n: Nest, target: Target) -> None:
    """Refuses a nest that an emitter for the target cannot take."""
    for judge in JUDGES:
        for what in judge(n, target):
            hint = "the nest before this stage is made legal by the compiler: edit that one"
            raise Invalid(f"nest {n.name} is not legal for {target.name}: {what}", hint=hint)
