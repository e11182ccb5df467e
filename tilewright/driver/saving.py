"""`tw.save`: a compiled function or program to a file that `tw.load` makes callable again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.base.errors import Invalid
from tilewright.driver.api import torch_side
from tilewright.driver.program.saved import saved_program, write
from tilewright.runtime.program import Program

_TORCH_SAVED = "tilewright.driver.torch.saved"


def save(
    compiled: Any,
    path: str | Path,
    *examples: Any,
    weights: str = "inside",
    values: Mapping[str, Any] | None = None,
    **named: Any,
) -> None:
    """Write a compiled function to a file that `tw.load` makes callable again, without torch.

    `compiled` is what `tw.compile` returned; example arguments say which of several compiled
    variants is meant. Or it is a `Program` of `tw.compile_graph`: `values` are arrays for some of
    its inputs, by name, that become part of it. Weights are written as they are now, packed for
    this machine; `weights="beside"` puts them into a file of their own, `path` with `.weights`.
    """
    if isinstance(compiled, Program):
        if examples or named:
            raise Invalid("a Program has no variants", hint="give arrays as values={name: array}")
        found = saved_program(compiled, values)
    elif values is not None:
        raise Invalid("values= are arrays for inputs of a Program", hint="leave it out")
    else:
        found = torch_side(_TORCH_SAVED, "a compiled function").saved(compiled, examples, named)
    write(found, path, weights)
