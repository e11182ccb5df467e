"""What AOTAutograd's wrapper of a graph does in every call, and where the call needs none of it.

The wrapper takes longer than a small graph: it copies new values into arguments, makes views of
arguments again and switches gradients off. Most graphs need nothing of that, or do it themselves.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch._functorch._aot_autograd.schemas import OutputType
from torch._guards import TracingContext

from tilewright.capture.torch.captured import Captured
from tilewright.ir.slots import Result, Same, View


def metadata() -> Any:
    """What AOTAutograd knows of the graph that it is compiling; None outside of it."""
    context = TracingContext.try_get()
    return context.fw_metadata if context is not None else None


def wrapper_is_trivial(arguments: int) -> bool:
    """Does AOTAutograd's wrapper do nothing: no views to make again, no inputs to update?"""
    meta = metadata()
    return (
        _passes_all_on(meta, arguments)
        and all(o.output_type is OutputType.non_alias for o in meta.output_info)
        and not any(i.mutates_data or i.mutates_metadata for i in meta.input_info)
    )


def wrapper_only_shares(captured: Captured) -> bool:
    """Does it do nothing that a call does not do itself: inputs are changed in the graph, results
    that are inputs or views of them are slots of these?"""
    meta = metadata()
    return (
        _passes_all_on(meta, len(captured.arguments))
        and not meta.mutated_inp_runtime_indices
        # The wrapper switches gradients off where results are made of inputs that have them.
        and not (torch.is_grad_enabled() and any(i.requires_grad for i in meta.input_info))
        and len(meta.output_info) == len(captured.results)
        and all(map(partial(_is_shared, captured), meta.output_info, captured.results))
    )


def _passes_all_on(meta: Any, arguments: int) -> bool:
    """Has a graph the arguments of the call, none of them of a class of its own?"""
    return (
        meta is not None
        and len(meta.input_info) == arguments
        and all(
            type(x) is int or type(x).__name__ == "PlainTensorMeta" for x in meta.subclass_inp_meta
        )
        and not meta.tokens
        and not meta.num_intermediate_bases
        and meta.grad_enabled_mutation is None
    )


def _is_shared(captured: Captured, announced: Any, result: Result) -> bool:
    """Is a result what the wrapper would make of it?"""
    if announced.output_type is OutputType.non_alias:
        return True
    own = captured.arguments[announced.base_idx].slot if announced.base_idx is not None else None
    if announced.output_type is OutputType.is_input:
        return result == Same(own or "")
    seen = announced.output_type is OutputType.alias_of_input and not announced.requires_grad
    return seen and isinstance(result, View) and result.slot == own
