"""Programs and peers of the user's own, from their files."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from tilewright.base.errors import Invalid
from tilewright.bench.contenders import Call, Entrant
from tilewright.bench.example import Example
from tilewright.bench.operators import Function
from tilewright.driver.looking.inputs import load, parse_type
from tilewright.driver.program.arrays import random_array


def example(path: str, types: Sequence[str]) -> Example:
    """FILE.py:NAME with inputs of these types, or else with those that the file names."""
    torch.manual_seed(0)
    loaded = load(path)
    module = loaded.program
    if not isinstance(module, torch.nn.Module):
        module = Function(module)
    if types:
        rng, parsed = np.random.default_rng(0), [parse_type(x) for x in types]
        tensors = [torch.from_numpy(random_array(t, rng)) for t in parsed]
        inputs = [x.bfloat16() if t.dtype.name == "bf16" else x for x, t in zip(tensors, parsed)]
    elif isinstance(loaded.inputs, torch.Tensor):
        inputs = [loaded.inputs]
    elif loaded.inputs is not None:
        inputs = list(loaded.inputs)
    else:
        raise Invalid(
            f"{loaded.name} needs inputs to be measured on",
            hint=f"give --input 'f32[8,16]' for each, or define {loaded.name}_inputs in the file",
        )
    return Example(module.eval(), tuple(inputs))


def peer(path: str) -> Callable[[Entrant], Call]:
    """FILE.py:NAME, a function of a module and its inputs that gives a call without arguments."""
    made = load(path).program
    return lambda entrant: made(entrant.module, entrant.inputs)
