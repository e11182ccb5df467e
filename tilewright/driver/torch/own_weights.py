"""`tw.compile(module, own_weights=True)`: packed weights have no second copy in the module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tilewright.base.errors import Invalid, Unsupported
from tilewright.base.events import Log
from tilewright.driver.torch.call import Reader
from tilewright.driver.weights.given_up import (
    can_be_rebuilt,
    give_up,
    given_up,
    holds_all,
    is_dense,
    take_back,
    watch,
)
from tilewright.runtime.shared import Piece, Weight

# Smaller ones would save nothing, and stay as they are.
_SMALL = 16 << 10


def _worth_it(x: torch.Tensor) -> bool:
    return given_up(x) is None and is_dense(x) and x.numel() * x.element_size() > _SMALL


class Owner:
    """Takes the weights of one module."""

    def __init__(self, module: Any) -> None:
        if not isinstance(module, torch.nn.Module):
            raise Invalid(
                f"own_weights=True needs a torch.nn.Module, not a {type(module).__name__}",
                hint="compile the module whose weights are to be packed",
            )
        self._module = module

    def _named(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self._module.named_parameters()
        yield from self._module.named_buffers()

    def watch(self) -> None:
        """Before Dynamo reads the weights: its guards will expect the same class of tensor
        later."""
        watch(x for _, x in self._named())

    def give_up(self, readers: Sequence[Reader], log: Log) -> None:
        """Give back the memory of weights that are only read in derived form."""
        needed = {id(r.tensors[k]) for r in readers for k in r.kept if k < len(r.tensors)}
        found: dict[int, tuple[Weight, dict[Piece, None]]] = {}
        for r in readers:
            derived = r.program.derived
            if derived is None or not r.tensors:
                continue
            for position, k in enumerate(r.program.weights):
                for piece in derived.pieces:
                    if position in piece.recipe.weights:
                        weight = piece.weights[piece.recipe.weights.index(position)]
                        entry = found.setdefault(id(r.tensors[k]), (weight, {}))
                        entry[1][piece] = None
        freed = count = 0
        for name, x in self._named():
            if id(x) in found and id(x) not in needed and _worth_it(x):
                weight, pieces = found[id(x)]
                if not all(holds_all(p, weight) for p in pieces):
                    continue  # other sizes of inputs may need other parts of it
                give_up(x, name, weight, pieces)
                freed += x.numel() * x.element_size()
                count += 1
        if count:
            log.add(
                "weights",
                f"{count} weights of {freed / 2**20:.1f} MiB are stored packed only",
                bytes=freed,
            )

    def restore(self) -> None:
        """Their elements again, for all or for none."""
        gone = [(name, x, given_up(x)) for name, x in self._named()]
        lost = [name for name, _, g in gone if g is not None and not can_be_rebuilt(g)]
        if lost:
            shown = ", ".join(lost[:3]) + (f" and {len(lost) - 3} more" if len(lost) > 3 else "")
            raise Unsupported(
                f"{shown} cannot be rebuilt: only values computed from them are stored",
                hint="load the module's weights again with load_state_dict(…, assign=True)",
            )
        for _, x, g in gone:
            if g is not None:
                take_back(x)
