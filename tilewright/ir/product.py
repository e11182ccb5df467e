"""Products that a machine adds up in one instruction, and the register tiles of its vectors.

Both are data that a target holds (ir/target.py); ir/register_tile.py says which of them a
contraction takes. Each is a few words of a target's text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.base.errors import Invalid, require
from tilewright.ir.types import DTYPES, DType

# How the elements of rows that a product multiplies reach the vectors: in vectors along the sum, in
# vectors along the rows (which have to be adjacent in memory), or one by one, each spread over one.
LOADS = ("sum", "rows", "each")


@dataclass(frozen=True)
class Product:
    """An instruction for `c[i,j] += a[i,k] * b[k,j]`, of up to `rows` by `columns` sums.

    `columns` come in multiples of `lanes`. `group` neighbouring steps of the sum are added up in
    one lane: for each column they have to be adjacent in `b`. An instruction with registers of its
    own for matrices has a `tile`: rows and columns of the sums that one of them holds, and groups
    of the sum that one use adds up.
    """

    instruction: str
    a: DType
    b: DType
    c: DType
    group: int = 1
    rows: int = 8
    columns: int = 16
    lanes: int = 4
    tile: tuple[int, int, int] | None = None
    loads: str = "sum"

    def __post_init__(self) -> None:
        what = f"the product {self.instruction}"
        words = self.instruction.replace(",", " ").split()
        require(words == [self.instruction], f"{what!r} should be named by one word")
        for name in ("group", "rows", "columns", "lanes"):
            require(getattr(self, name) > 0, f"{name} of {what} must be positive")
        require(self.columns >= self.lanes, f"{what} has fewer columns than lanes")
        require(self.loads in LOADS, f"{what} loads by {self.loads}: one of {', '.join(LOADS)}")
        require(
            self.tile is None or (len(self.tile) == 3 and min(self.tile) > 0),
            f"the tile of {what} is three positive numbers: rows, columns, groups",
        )

    @property
    def dtypes(self) -> tuple[DType, DType, DType]:
        return self.a, self.b, self.c

    @property
    def depth(self) -> int:
        """Steps of a sum come in multiples of this."""
        return self.group * (self.tile[2] if self.tile is not None else 1)

    def takes(self, columns: int, deep: int) -> bool:
        """Do so many columns, and steps of each sum, divide into whole uses?"""
        return columns >= self.lanes and columns % self.lanes == 0 and deep % self.depth == 0

    def text(self) -> str:
        words = [self.instruction, f"{self.a}*{self.b}>{self.c}"]
        if self.group > 1:
            words.append(f"group {self.group}")
        words += [f"rows {self.rows}", f"columns {self.columns}", f"lanes {self.lanes}"]
        if self.tile is not None:
            words.append(f"tile {'x'.join(map(str, self.tile))}")
        words.append(f"loads {self.loads}")
        return " ".join(words)

    @classmethod
    def parse(cls, text: str, where: str = "") -> Product:
        """The inverse of `text`."""
        name, dtypes, *rest = [*text.split(), "", ""][: max(2, len(text.split()))]
        a, _, bc = dtypes.partition("*")
        b, _, c = bc.partition(">")
        unknown = [x for x in (a, b, c) if x not in DTYPES]
        if unknown or len(rest) % 2:
            raise Invalid(
                f"{text!r} should read NAME A*B>C and pairs such as `rows 8`, with known dtypes",
                where=where,
            )
        options: dict[str, Any] = {}
        for key, value in zip(rest[::2], rest[1::2], strict=True):
            known = ("group", "rows", "columns", "lanes", "tile", "loads")
            hint = ", ".join(known)
            require(key in known, f"a product has no {key!r}", where=where, hint=hint)
            if key == "tile":
                options[key] = _numbers(value, where)
            else:
                options[key] = value if key == "loads" else _numbers(value, where)[0]
        return cls(name, DTYPES[a], DTYPES[b], DTYPES[c], **options)


@dataclass(frozen=True)
class TileShape:
    """Sums that stay in vector registers: `rows` times `vectors` of columns. `adjacent` is the
    number of rows where their elements are adjacent in memory, so that vectors load them. Up to
    `most` rows are as good where they divide all rows: then no part of a tile is left over."""

    rows: int
    vectors: int
    adjacent: int
    most: int = 0  # 0: `rows`

    def __post_init__(self) -> None:
        positive = min(self.rows, self.vectors, self.adjacent) > 0
        require(positive, f"a register tile has positive sizes, not {self.text()}")
        require(
            not self.most or self.most > self.rows,
            f"a register tile of {self.rows} rows has at most {self.most}",
        )

    def text(self) -> str:
        text = f"{self.rows}x{self.vectors}:{self.adjacent}"
        return f"{text}:{self.most}" if self.most else text

    @classmethod
    def parse(cls, text: str, where: str = "") -> TileShape:
        shape, _, more = text.partition(":")
        sizes = (*_numbers(shape, where), *(x for y in more.split(":") for x in _numbers(y, where)))
        require(
            len(sizes) in (3, 4),
            f"{text!r} should read ROWSxVECTORS:ADJACENT or ROWSxVECTORS:ADJACENT:MOST",
            where=where,
        )
        return cls(*sizes)


def _numbers(text: str, where: str) -> tuple[int, ...]:
    parts = text.split("x")
    if not all(part.isdigit() for part in parts):
        raise Invalid(f"{text!r} should be whole numbers with x between them", where=where)
    return tuple(map(int, parts))
