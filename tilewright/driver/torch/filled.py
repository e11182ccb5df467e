"""Memory that results may be written to besides fresh one: tensors of the caller (`out=`), and
arguments whose new values they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tilewright.base.errors import Invalid
from tilewright.capture.torch.captured import Captured
from tilewright.capture.torch.dtypes import torch_dtype
from tilewright.driver.torch.tensors import label
from tilewright.driver.weights.watch import address
from tilewright.ir.slots import Buffer, Same, View


def updates_of(captured: Captured) -> tuple[tuple[int, int], ...]:
    """Results of the one segment that are new values of its inputs and nothing else, of the same
    form. None where something is found out about the data: inputs are then as they were."""
    segment = captured.segments[0]
    if segment.checks:
        return ()
    read = {label(n): k for k, n in enumerate(segment.graph.inputs)}
    given = {a.slot: a for a in captured.arguments}
    written = {b.slot: k for k, b in enumerate(segment.buffers)}
    taken = {r.slot for r in captured.results if isinstance(r, (Same, View))}
    return tuple(
        (written[new], read[old])
        for old, new in captured.mutated
        if old in read and new in written and new not in taken and not given[old].weight
        if segment.buffers[written[new]].stride == given[old].stride
    )


def require_like(k: int, b: Buffer, x: Any, device: torch.device) -> None:
    dtype = torch_dtype(b.dtype, b.paired)
    where = "the CPU" if device.type == "cpu" else str(device)
    wanted = f"{tuple(b.shape)} with strides {tuple(b.stride)}, {dtype}, on {where}"
    hint = f"pass a tensor of {wanted}"
    if not isinstance(x, torch.Tensor):
        raise Invalid(f"out= for result {k} is a {type(x).__name__}", hint=hint)
    found = {
        "on": (str(x.device), str(device)),
        "of dtype": (x.dtype, dtype),
        "of shape": (tuple(x.shape), tuple(b.shape)),
        "with strides": (x.stride(), tuple(b.stride)),
    }
    for what, (given, right) in found.items():
        if given != right:
            raise Invalid(f"out= for result {k} is {what} {given}, not {right}", hint=hint)
    if x.requires_grad:
        raise Invalid(
            f"out= for result {k} requires a gradient, and filling it is not differentiable",
            hint="pass out.detach()",
        )
    if x.is_neg() or x.is_conj():
        raise Invalid(f"out= for result {k} is a view that negates or conjugates", hint=hint)
    if x.numel() and address(x) == 0:
        raise Invalid(f"out= for result {k} has no memory: its storage was freed", hint=hint)


def require_apart(args: Sequence[Any], given: Sequence[torch.Tensor]) -> None:
    """A result that lies in an operand's memory would change what is still to be read."""
    tensors = [(f"input {k}", x) for k, x in enumerate(args) if isinstance(x, torch.Tensor)]
    others = [(what, _span(x)) for what, x in tensors]
    for k, x in enumerate(given):
        start, end = _span(x)
        for what, (first, last) in others:
            if start < last and first < end:
                raise Invalid(
                    f"out= for result {k} shares memory with {what}",
                    hint="pass a tensor with memory of its own, or leave out= out",
                )
        others.append((f"out= for result {k}", (start, end)))


def _span(x: torch.Tensor) -> tuple[int, int]:
    """The address of the first byte of a tensor and of that behind its last."""
    start = address(x)
    if x.numel() == 0:
        return start, start
    last = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    return start, start + (last + 1) * x.element_size()
