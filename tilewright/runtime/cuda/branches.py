"""Which launches of a program run after which: those that use memory after each other.

In a CUDA graph with these edges a small kernel, such as the sum of a bias's gradient, runs beside
others that leave multiprocessors idle.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.kernel.tasks import ARENA, Use
from tilewright.runtime.cuda.plan import Planned, PlannedCall


def waits_of(launches: Sequence[Planned | PlannedCall], arena: int) -> list[tuple[int, ...]]:
    """Of each launch: the numbers of earlier ones that it waits for, without those that others
    imply. `arena` is the number of the arena's address.

    Arguments other than the arena do not overlap, where one of them is written: results are memory
    of their own. A launch whose memory is not known waits for all, and all later ones for it.
    Libraries share working memory, so that their calls run one after the other.
    """
    found: list[tuple[int, ...]] = []
    before: list[int] = []  # bit sets: what a launch runs after
    uses = [_uses(p, arena) for p in launches]
    called: int | None = None
    for k, own in enumerate(uses):
        chosen: list[int] = []
        reached = 0
        library = isinstance(launches[k], PlannedCall)
        for j in range(k - 1, -1, -1):
            if reached >> j & 1:
                continue
            if _conflict(own, uses[j]) or (library and j == called):
                chosen.append(j)
                reached |= before[j] | 1 << j
        found.append(tuple(chosen))
        before.append(reached)
        called = k if library else called
    return found


def _conflict(a: Sequence[Use] | None, b: Sequence[Use] | None) -> bool:
    if a is None or b is None:
        return True
    return any(x.conflicts(y) for x in a for y in b)


def _uses(p: Planned | PlannedCall, arena: int) -> tuple[Use, ...] | None:
    if isinstance(p, Planned):
        return p.uses
    made = []
    for k, (m, base, source) in enumerate(zip(p.call.operands, p.base, p.source, strict=True)):
        last = sum((n - 1) * s for n, s in zip(m.shape, m.strides, strict=True))
        size, writes = (last + 1) * m.dtype.bytes, k == len(p.source) - 1
        space = ARENA if source == arena else f"address{source}"
        made.append(Use(space, base if source == arena else 0, size, writes))
    return tuple(made)
