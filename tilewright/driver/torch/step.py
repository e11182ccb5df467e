"""A forward program and that of its gradient as one function of torch's autograd.

AOTAutograd's wrapper does the same for every kind of graph, and looks at each argument, each result
and each tensor that is kept several times, from Python. Here a call passes the arguments on, keeps
inputs as they are and all else in few allocations, and gives autograd the gradients. Graphs that
need more (views of inputs as results, subclasses of tensors, …) stay with AOTAutograd.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo import compiled_autograd
from torch._dynamo import config as dynamo_config
from torch._functorch._aot_autograd.schemas import MutationType, OutputType

from tilewright.base.errors import Invalid, Unsupported
from tilewright.driver.torch.batched_gradients import batches, one_by_one
from tilewright.driver.torch.call import Unit
from tilewright.ir.slots import Same, View

_transforms = torch._C._functorch.peek_interpreter_stack
_TWICE = (
    b"torch.compile does not currently support double backward: the gradient was computed by a "
    b"compiled graph, which has no gradient itself. Run the function in eager for create_graph=True"
)


def is_plain_step(meta: Any, arguments: int) -> bool:
    """Given what AOTAutograd knows of a graph: is there nothing to do to arguments and results?"""
    return (
        len(meta.input_info) == arguments
        and _are_plain([*meta.subclass_inp_meta, *meta.subclass_fw_graph_out_meta])
        and _are_plain(meta.subclass_tangent_meta)
        and all(i.mutation_type is not MutationType.MUTATED_OUT_GRAPH for i in meta.input_info)
        and all(
            o.output_type in (OutputType.non_alias, OutputType.unsafe_view_alias)
            and issubclass(o.raw_type, torch.Tensor)
            and not o.dynamic_dims
            for o in meta.output_info
        )
        and meta.num_forward == len(meta.output_info)
        and not meta.num_symints_saved_for_bw
        and not meta.tokens
        and not meta.num_backward_tokens
        and not meta.num_graphsafe_rng_states
        and meta.grad_enabled_mutation is None
    )


def _are_plain(metas: Sequence[Any]) -> bool:
    return all(type(x) is int or type(x).__name__ == "PlainTensorMeta" for x in metas)


class Step:
    """A forward unit, and that of its gradient as soon as there is one."""

    def __init__(self, forward: Unit, meta: Any) -> None:
        """`meta`: what AOTAutograd knows of the graph."""
        self._forward, self._meta = forward, meta
        self._apply: Callable[..., Any] | None = None

    def add(self, backward: Unit) -> None:
        """Later calls go past AOTAutograd, where they can."""
        self._apply = _applied(self._forward, backward, self._meta)

    def call(self, otherwise: Callable[..., Any]) -> Callable[..., Any]:
        """A function of the arguments of the graph. `otherwise` is AOTAutograd's: for calls before
        the first gradient, under transforms of functions, where torch compiles gradients."""
        grad_enabled = torch.is_grad_enabled

        def call(*args: Any) -> Any:
            apply = self._apply
            if apply is None or _transforms() or compiled_autograd.compiled_autograd_enabled:
                return otherwise(*args)
            if grad_enabled():
                return apply(*args)
            with torch.enable_grad():
                return apply(*args)

        return call


def _applied(forward: Unit, backward: Unit, meta: Any) -> Callable[..., Any] | None:
    """None where only AOTAutograd will do."""
    given, count = len(meta.output_info), len(forward.captured.arguments)
    ask = [k for k, o in enumerate(meta.output_info) if o.requires_grad]
    results, gradients = forward.captured.results, backward.captured.results
    first, last = forward.writer, backward.writer
    if (
        first is None
        or last is None
        or dynamo_config.compiled_autograd
        or any(p.spent for p in backward.programs)  # what is kept would have to be counted
        or not is_plain_step(meta, count)
        or not all(isinstance(r, Same) and r.slot in first.slots for r in results[:given])
        or len(gradients) != count
        or len(backward.captured.arguments) != len(results) - given + len(ask)
        # AOTAutograd hides inputs from autograd that never get a gradient.
        or any(
            i.requires_grad and not isinstance(r, (Same, View))
            for i, r in zip(meta.input_info, gradients, strict=True)
        )
    ):
        return None
    made = first.keeping(given)
    if made is None:
        return None
    run, kept = made
    bases = first.parts.groups if first.parts is not None else ()
    back = last.from_kept(kept, bases, backward.restore_layouts)
    if back is None:
        return None
    constant = [k for k in range(given) if k not in ask]
    return _function(run, back, ask, constant, bool(meta.deterministic)).apply


def _function(
    run: Callable[..., Any],
    back: Callable[..., tuple[Any, ...]],
    ask: Sequence[int],
    constant: Sequence[int],
    deterministic: bool,
) -> type[torch.autograd.Function]:
    """`ask`: results whose gradients `back` takes; `constant`: those that have none."""

    def computed(saved: Any, given: list[Any]) -> tuple[Any, ...]:
        if level := batches():
            return tuple(one_by_one(lambda one: list(back(saved, one)), given, level))
        return back(saved, given)

    class Step(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> tuple[Any, ...]:
            results, tensors, memory = run(list(args))
            # A view would keep what it was computed from alive; its version is its base's.
            ctx.save_for_backward(*[x.detach() if x._is_view() else x for x in tensors], *memory)
            if constant:
                ctx.mark_non_differentiable(*[results[k] for k in constant])
            ctx._materialize_non_diff_grads = False
            return results

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            given = [gradients[k] for k in ask]
            _require_usual(deterministic)
            if not torch.is_grad_enabled():
                return computed(ctx.saved_tensors, given)
            with torch.no_grad():
                found = computed(ctx.saved_tensors, given)
            refused: Any = torch._C._functions.DelayedError(_TWICE, len(found))
            return refused(*map(_asking, found))

    return Step


def _require_usual(deterministic: bool) -> None:
    """An error where a gradient is asked for in a way that it was not compiled for."""
    if _transforms() is not None:
        raise Unsupported(
            "a compiled gradient was called within vmap, grad or vjp",
            hint="use the transform inside of torch.compile, or run the function in eager",
        )
    if not deterministic and torch.are_deterministic_algorithms_enabled():
        raise Invalid(
            "this gradient was compiled before torch.use_deterministic_algorithms(True)",
            hint="call that before the forward pass",
        )


def _asking(x: torch.Tensor | None) -> torch.Tensor | None:
    return None if x is None else x.detach().requires_grad_()
