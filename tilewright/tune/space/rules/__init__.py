"""Rules that open a schedule, one a file: each takes a draft and leaves the schedule a point of it.
A rule joins by being in this table, in the order in which they are applied."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.tune.space.draft import Draft
from tilewright.tune.space.rules.caching import open_caching
from tilewright.tune.space.rules.fusing import open_fusing
from tilewright.tune.space.rules.grains import open_grains
from tilewright.tune.space.rules.inlining import open_inlining
from tilewright.tune.space.rules.instructions import open_instructions
from tilewright.tune.space.rules.orders import open_orders
from tilewright.tune.space.rules.places import open_places
from tilewright.tune.space.rules.prefetches import open_prefetches
from tilewright.tune.space.rules.sizes import open_sizes
from tilewright.tune.space.rules.tails import open_tails
from tilewright.tune.space.rules.unrolling import open_unrolling

RULES: tuple[Callable[[Draft], None], ...] = (
    open_sizes,
    open_tails,
    open_orders,
    open_places,
    open_instructions,
    open_prefetches,
    open_unrolling,
    open_grains,
    open_inlining,
    open_caching,
    open_fusing,
)
