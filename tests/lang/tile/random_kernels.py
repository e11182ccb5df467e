"""Random kernels in the tile language, as text: `kernel(seed)` gives the same one every time."""

from __future__ import annotations

import random

from tests.lang.tile import random_flow, random_tiles
from tests.lang.tile.random_operations import OPERATIONS, write
from tests.lang.tile.random_values import Value
from tests.lang.tile.random_writer import Kernel, Writer

PARTS = (random_tiles, random_flow)  # whose operations are known once they are imported


def kernel(seed: int, statements: int | None = None) -> Kernel:
    """The kernel of a seed."""
    rng = random.Random(seed)
    w = Writer(rng)
    w.grid = rng.choice([(1,), (1,), (2,), (3,), (5,), (2, 2), (3, 2), (1, 3), (2, 1, 2)])
    if rng.random() < 0.5:
        w.at_once = 256
    flat = "tl.program_id(0)"
    if len(w.grid) > 1:
        flat = f"{flat} + tl.num_programs(0) * tl.program_id(1)"
    if len(w.grid) > 2:
        flat = f"{flat} + tl.num_programs(0) * tl.num_programs(1) * tl.program_id(2)"
    w.say(f"pid = {flat}")
    n = 1
    for g in w.grid:
        n *= g
    w.values.append(Value("pid", "int32", (), 0, n - 1, index=True))
    w.stored.add("pid")
    OPERATIONS["load"].write(w)
    write(w, statements or rng.choice([4, 6, 8, 10, 12, 16]))
    w.stores()
    return Kernel(
        seed,
        w.grid,
        list(w.helpers.values()),
        w.body,
        _ordered(w.parameters),
        w.arrays,
        w.numbers,
        w.errors,
    )


def _ordered(parameters: dict[str, str]) -> dict[str, str]:
    """Constants last, as authors write them."""
    return dict(sorted(parameters.items(), key=lambda p: bool(p[1])))
