"""Programs and peers of the user's own, from their files."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.fx import GraphModule

from tilewright.base.errors import Invalid
from tilewright.bench.contenders import Call, Entrant
from tilewright.bench.example import Example
from tilewright.bench.operators import Function
from tilewright.driver.cli.models import load
from tilewright.driver.cli.models.model import How
from tilewright.driver.cli.models.torch_models import TorchModel
from tilewright.driver.cli.models.user_code import found


def example(path: str, given: Sequence[str]) -> Example:
    """A model with these inputs, or else with its own."""
    torch.manual_seed(0)
    model = load(path)
    if not isinstance(model, TorchModel):
        raise Invalid(
            f"{path} is no PyTorch program, which other compilers are measured on",
            hint="give FILE.py:NAME or FILE.pt2",
        )
    module = model.program
    if not isinstance(module, torch.nn.Module):
        module = Function(module)
    inputs = model.inputs(How(tuple(given)))
    return Example(module if isinstance(module, GraphModule) else module.eval(), tuple(inputs))


def peer(path: str) -> Callable[[Entrant], Call]:
    """FILE.py:NAME, a function of a module and its inputs that gives a call without arguments."""
    file, _, name = path.rpartition(":")
    made = found(file, name).program
    return lambda entrant: made(entrant.module, entrant.inputs)
