from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.kernel.nest import Nest
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class StorageAlign(Step):
    """Rows of a buffer start `offset` elements after multiples of `factor`: the axis behind `axis`
    is allocated wider than it is used.

    alloc t: f32[16,32]  StorageAlign('t', 0, 32, 1)  alloc t: f32[16,33]

    Aligned rows load as whole vectors; rows shifted by one spread a column over the memory banks.
    It is for the buffer as it stands: place first (ComputeAt refuses one whose rows were widened).
    """

    buffer: str
    axis: int
    factor: int
    offset: int = 0

    def apply(self, n: Nest) -> Nest:
        b = self.internal(n, self.buffer)
        whole = isinstance(self.factor, int) and isinstance(self.offset, int)
        self.need(whole and self.factor >= 1, f"{self.factor} is not a positive factor")
        self.need(0 <= self.offset < self.factor, f"{self.offset} is not below {self.factor}")
        inner = range(len(b.shape) - 1)
        hint = f"{self.buffer} has axes 0 to {len(b.shape) - 2} with something behind them"
        self.need(self.axis in inner, f"there is nothing behind axis {self.axis}", hint)
        behind = b.shape[self.axis + 1]
        stride = b.strides()[self.axis + 1]
        self.need(
            isinstance(behind, int) and isinstance(stride, int),
            f"the rows of {self.buffer} have no constant length",
        )
        assert isinstance(behind, int) and isinstance(stride, int)
        fits = [p for p in range(self.factor) if (behind + p) * stride % self.factor == self.offset]
        never = f"rows of {stride} elements each never end {self.offset} after {self.factor}"
        self.need(fits, never, f"an offset that {stride} divides")
        shape = tuple(d + fits[0] if k == self.axis + 1 else d for k, d in enumerate(b.shape))
        return n.with_buffer(replace(b, shape=shape))
