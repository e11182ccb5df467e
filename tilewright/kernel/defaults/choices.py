"""What a default schedule may decide in more than one way; None leaves a decision to the rules.

`Choices()` is the rules alone. A chooser (tune/) makes schedules with other choices and compares
what they would cost; each of them leads to an ordinary trace.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from tilewright.base.errors import require

OUTER = ("columns", "rows")


@dataclass(frozen=True)
class Choices:
    """Decisions about one kernel. A choice that a group has no use for changes nothing."""

    rows: int | None = None  # of a register tile
    vectors: int | None = None  # of columns in a register tile, where no operand is packed
    side: int | None = None  # adjacent packed blocks of columns in a tile of few rows
    outer: str | None = None  # which loop over tiles is around the other: "columns" or "rows"
    # Rows that stay in the cache while all columns pass by, if they divide the rows; of a chain,
    # rows that pass through all of it.
    block: int | None = None
    chain: int | None = None  # products that are added up before they join other sums
    copy: bool | None = None  # may pixels be copied to be adjacent?
    panels: bool | None = None  # may columns of a right operand in rows be copied by their readers?
    lanes: int | None = None  # of a map's innermost loop
    library: bool | None = None  # is a library called for the sum of products?
    # On a GPU: how many of the best tiles of a product to skip, by the estimate; or ways of a chain
    tile: int | None = None
    # Of products of one row on a GPU: do copies of matrices begin before earlier launches end?
    early: bool | None = None

    def __post_init__(self) -> None:
        require(
            self.outer in (None, *OUTER),
            f"outer is {self.outer!r}, which is none of the loops over tiles",
            hint=f"it is {' or '.join(OUTER)}",
        )
        for name in ("rows", "vectors", "side", "block", "chain", "lanes", "tile"):
            value = getattr(self, name)
            require(value is None or value > 0, f"{name} is {value}, which should be positive")

    def __str__(self) -> str:
        """Such as `rows 8, outer rows`; `rules` where nothing is chosen."""
        chosen = [(f.name, getattr(self, f.name)) for f in fields(self)]
        shown = [name if v is True else f"{name} {v}" for name, v in chosen if v is not None]
        return ", ".join(shown) or "rules"
