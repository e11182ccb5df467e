"""Masks of attention as torch's kernels take them.

Torch takes attention apart, and computes it in float32, where none of its kernels for GPUs takes
the mask: they want elements next to each other, and a mask that is the same for all keys has a
stride of 0. Ours take any, but see only what torch made of the call. A copy is one in torch's eyes
alone: here it is computed where it is read.
"""

from __future__ import annotations

import torch
import torch.fx
from torch.nn import functional as F

_ATTENTION = (F.scaled_dot_product_attention, torch.ops.aten.scaled_dot_product_attention.default)
_POSITION = 3


def masks_in_order(gm: torch.fx.GraphModule) -> None:
    """Masks of what Dynamo captured get neighbouring elements, where they have not."""
    for target in _ATTENTION:
        for n in gm.graph.find_nodes(op="call_function", target=target):
            mask = n.kwargs.get("attn_mask", n.args[_POSITION] if len(n.args) > _POSITION else None)
            if not isinstance(mask, torch.fx.Node):
                continue
            value = mask.meta.get("example_value")
            if not isinstance(value, torch.Tensor) or not value.dim() or value.stride(-1) == 1:
                continue
            with gm.graph.inserting_before(n):
                copy = gm.graph.call_method("contiguous", (mask,))
            copy.meta = {**mask.meta, "example_value": value.contiguous()}
            n.replace_input_with(mask, copy)
    gm.recompile()
