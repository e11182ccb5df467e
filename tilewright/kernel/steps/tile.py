from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.base.errors import Refused
from tilewright.kernel.nest import Nest
from tilewright.kernel.step import Step
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.split import Split


@dataclass(frozen=True)
class Tile(Step):
    """Two loops, one right inside the other, become four: over tiles, then over places in a tile.

    for i in 64:                    for i.0 in 2:
      for j in 64:                    for j.0 in 4:
        y[i,j] = …                      for i.1 in 32:
                                          for j.1 in 16:
                                            y[32*i.0+i.1,16*j.0+j.1] = …
    """

    stays: ClassVar[bool] = True
    outer: str
    inner: str
    outer_factor: int
    inner_factor: int

    def apply(self, n: Nest) -> Nest:
        self.need(self.outer != self.inner, "a tile has two loops")
        parts = [f"{loop}.{k}" for k in (0, 1) for loop in (self.outer, self.inner)]
        try:
            n = Split(self.outer, self.outer_factor).apply(n)
            n = Split(self.inner, self.inner_factor).apply(n)
            return Reorder(tuple(parts)).apply(n)
        except Refused as why:
            raise why.again(f"{self}: as {why.what}") from None
