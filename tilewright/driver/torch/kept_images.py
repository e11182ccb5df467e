"""Images that a forward graph keeps for its gradient alone are stored as kernels want them.

Nobody but the two graphs sees these, so that eager's strides need not be restored: channels stay
last, as convolutions read and write them, and nothing is turned twice on its way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.capture.torch.captured import Captured, Segment
from tilewright.capture.torch.layout import contiguous, is_contiguous
from tilewright.graph.channels import order_of, stored_last
from tilewright.ir.dim import Dim
from tilewright.ir.slots import Buffer, Same, View
from tilewright.ir.target import Target
from tilewright.ops.arranged import reordered
from tilewright.ops.views import permute

Strides = tuple[Dim, ...]


@dataclass(frozen=True)
class Kept:
    """A forward graph, and by torch's names the strides of those results that are others than
    torch announced."""

    captured: Captured
    strides: Mapping[str, Strides] = field(default_factory=dict)


def keep_images(captured: Captured, names: Sequence[str], given: int, target: Target) -> Kept:
    """Of results, the first `given` are the caller's; `names` are torch's of all of them."""
    if len(captured.steps) != 1 or not isinstance(segment := captured.steps[0], Segment):
        return Kept(captured)  # what runs between segments may count on strides
    slots = {r.slot for r in captured.results[:given] if isinstance(r, (Same, View))}
    slots.update(new for _, new in captured.mutated)
    whole = {b.slot: (b.shape, b.stride, 0) for b in segment.buffers}
    for r in captured.results[given:]:
        if isinstance(r, View) and (r.shape, r.stride, r.offset) != whole.get(r.slot):
            slots.add(r.slot)  # a part of it
    free = [b.slot not in slots and _is_plain(b) for b in segment.buffers]
    if not any(free):
        return Kept(captured)
    outputs, buffers = list(segment.graph.outputs), list(segment.buffers)
    last = stored_last(segment.graph, target)
    now: dict[str, Strides] = {}
    for k, b in enumerate(buffers):
        if free[k] and last[k]:
            outputs[k] = permute(outputs[k], order_of(outputs[k].rank))
            now[b.slot] = _last(b.shape)
            buffers[k] = replace(b, stride=now[b.slot])
    graph = segment.graph.with_outputs(outputs, {})
    made = replace(segment, graph=graph, buffers=tuple(buffers))
    results, strides = list(captured.results), {}
    for k, (name, r) in enumerate(zip(names, captured.results, strict=True)):
        if isinstance(r, (Same, View)) and r.slot in now:
            results[k], strides[name] = Same(r.slot), now[r.slot]
    return Kept(replace(captured, steps=(made,), results=tuple(results)), strides)


def _is_plain(b: Buffer) -> bool:
    known = all(isinstance(d, int) and d > 0 for d in b.shape)
    return len(b.shape) >= 4 and known and not b.paired and is_contiguous(b.shape, b.stride)


def _last(shape: tuple[Dim, ...]) -> Strides:
    """Strides of a tensor whose second axis is the innermost in memory."""
    order = order_of(len(shape))
    steps = dict(zip(order, contiguous(reordered(shape, order)), strict=True))
    return tuple(steps[k] for k in range(len(shape)))
