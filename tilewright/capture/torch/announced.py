"""What torch announces of a node's result, where it left that out."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx
from torch._guards import detect_fake_mode
from torch.fx.node import map_aggregate

_SAVES = "run_and_save_rng_state"
_REPLAYS = "run_with_rng_state"


def announce(n: torch.fx.Node) -> None:
    """Give the node the fake result that torch did not: that of a random operator by running it on
    fakes, that of others by what is taken out of it.
    """
    if n.op != "call_function" or n.meta.get("val") is not None:
        return
    name = n.target.name() if isinstance(n.target, torch._ops.HigherOrderOperator) else ""
    taken = {u.args[1]: u for u in n.users if u.target is operator.getitem}
    if name == _SAVES:
        n.meta["val"] = _state(taken.get(0)), _on_fakes(n.args[0], n.args[1:], n.kwargs)
    elif name == _REPLAYS:
        _state(n.args[0])
        n.meta["val"] = _on_fakes(n.args[1], n.args[2:], n.kwargs)
    elif taken:
        size = 1 + max(k for k in taken if isinstance(k, int))
        n.meta["val"] = tuple(taken[k].meta.get("val") if k in taken else None for k in range(size))


def _on_fakes(op: Any, args: Any, kwargs: Any) -> Any:
    def fake(x: Any) -> Any:
        return x.meta["val"] if isinstance(x, torch.fx.Node) else x

    args, kwargs = map_aggregate(args, fake), map_aggregate(kwargs, fake)
    mode = detect_fake_mode([*args, *kwargs.values()])
    if mode is None:
        return op(*args, **kwargs)
    with mode:
        return op(*args, **kwargs)


def _state(n: Any) -> torch.Tensor:
    """The state of torch's generator, whose length is constant: torch gives it a symbol that has no
    value anywhere.
    """
    state = torch.empty(torch.get_rng_state().shape, dtype=torch.uint8, device="meta")
    if isinstance(n, torch.fx.Node):
        n.meta["val"] = state
    return state
