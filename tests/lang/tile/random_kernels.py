"""Random kernels in the tile language, as text: `kernel(seed)` gives the same one every time."""

from __future__ import annotations

import importlib
import random
from pathlib import Path

from tests.lang.tile.random_operations import OPERATIONS, write
from tests.lang.tile.random_values import Value
from tests.lang.tile.random_writer import Kernel, Writer

# Whatever lies in the folder is drawn: a file's operations are known once it is imported.
PARTS = tuple(
    importlib.import_module(f"tests.lang.tile.{p.stem}")
    for p in sorted(Path(__file__).parent.glob("random_*.py"))
    if p.stem != "random_kernels"
)


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
    w.values.append(Value("pid", "int32", (), 0, w.programs_count() - 1, index=True))
    w.stored.add("pid")
    OPERATIONS["load"].write(w)
    if rng.random() < 0.4:  # a short kernel around a loop
        OPERATIONS["recurrence"].write(w)
        write(w, statements or rng.choice([0, 1, 2, 4]))
    else:
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
