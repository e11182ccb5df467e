"""Sliding windows as ONNX describes them: kernels, strides, dilations, pads and rules for pads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.capture.onnx.context import Context, static
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim


@dataclass(frozen=True)
class Windows:
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]  # pads
    after: tuple[int, ...]

    def sizes(self, space: Sequence[Dim], ceil: bool = False) -> tuple[Dim, ...]:
        """How many windows there are along each axis; with `ceil` also those that begin inside and
        end outside."""
        out: list[Dim] = []
        for k, n in enumerate(space):
            reach = (self.kernel[k] - 1) * self.dilation[k] + 1
            room = n + self.before[k] + self.after[k] - reach
            s = self.stride[k]
            count = (D.ceildiv(room, s) if ceil else D.floordiv(room, s)) + 1
            if ceil:  # a window that would begin in the pads behind is none
                count = D.minimum(count, D.floordiv(n + self.before[k] - 1, s) + 1)
            out.append(count)
        return tuple(out)


def windows_of(c: Context, kernel: Sequence[int], space: Sequence[Dim]) -> Windows:
    """The windows of a node over axes of these sizes."""
    n = len(kernel)
    stride = tuple(c.get("strides", [1] * n))
    dilation = tuple(c.get("dilations", [1] * n))
    rule = c.get("auto_pad", "NOTSET")
    pads = c.get("pads", [0] * 2 * n)
    before, after = list(pads[:n]), list(pads[n:])
    if rule == "VALID":
        before, after = [0] * n, [0] * n
    elif rule in ("SAME_UPPER", "SAME_LOWER"):
        before, after = [], []
        for k, size in enumerate(static(space, f"auto_pad={rule}")):
            reach = (kernel[k] - 1) * dilation[k] + 1
            total = max(0, (-(-size // stride[k]) - 1) * stride[k] + reach - size)
            small, large = total // 2, total - total // 2
            before.append(small if rule == "SAME_UPPER" else large)
            after.append(large if rule == "SAME_UPPER" else small)
    elif rule not in ("NOTSET", ""):
        c.refuse(f"auto_pad={rule!r} is not known")
    return Windows(tuple(kernel), stride, dilation, tuple(before), tuple(after))
