"""Programs that `tw.save` wrote: they are run, and have been compiled before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.base.errors import Invalid, Unsupported
from tilewright.driver.cli.models.inputs import Value
from tilewright.driver.cli.models.model import How, Model, Result, Step
from tilewright.driver.program.arrays import random_array
from tilewright.driver.program.saved import load as load_program
from tilewright.ir.types import TensorType, as_dtype, to_memory
from tilewright.runtime.arrays import Array
from tilewright.runtime.loaded import LoadedProgram
from tilewright.runtime.signature import ArrayArgument, Leaf, Parameter


def load(path: Path) -> SavedModel:
    return SavedModel(path.stem, load_program(path))


class SavedModel(Model):
    def __init__(self, name: str, program: LoadedProgram) -> None:
        self.name, self.program = name, program

    def results(self, how: How, step: Step, check: bool | None = None) -> list[Result]:
        if how.passes is not None or check:
            raise self._compiled_before()
        parameters = self.program.signature.parameters
        rng, named = np.random.default_rng(0), [p for p in parameters if p.how == "KEYWORD_ONLY"]
        given = how.inputs.placed([p.name for p in parameters], self.name)
        found = {p.name: self._argument(p, given.get(p.name), rng) for p in parameters}
        by_name = {p.name: found.pop(p.name) for p in named}
        with step(f"running {self.name}"):
            returned = self.program(*found.values(), **by_name)
        return [_result(*x) for x in _leaves(returned, "")]

    def _argument(self, p: Parameter, given: Value | None, rng: np.random.Generator) -> Any:
        place = p.tree.ordinal if isinstance(p.tree, Leaf) else None
        wanted = self.program.signature.arguments[place] if place is not None else None
        if not isinstance(wanted, ArrayArgument):
            raise Unsupported(
                f"{p.name} of {self.name} is no array, which is what --input gives",
                hint="call the program in Python: tw.load",
            )
        if given is None:
            t = TensorType(wanted.dtype, wanted.shape)
            if not t.is_static:
                raise Invalid(
                    f"the input {p.name!r} of {self.name} has symbolic dims: {t!r}",
                    hint=f"say its sizes: --input '{p.name}=f32[8,16]'",
                )
            given = Value(random_array(t, rng), wanted.dtype.name)
        if given.dtype != "bf16":
            return given.array
        return Array(wanted.dtype, to_memory(as_dtype(given.array, wanted.dtype), wanted.dtype))


def _result(name: str, value: Any) -> Result:
    why = "a saved program has nothing left that it could be compared with"
    return Result(name or "result", str(value.dtype), np.asarray(value), unchecked=why)


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The arrays of a nested result, by where they are."""
    before = f"{name}_" if name else ""
    if isinstance(value, dict):
        for k, x in value.items():
            yield from _leaves(x, f"{before}{k}")
    elif isinstance(value, list | tuple):
        for k, x in enumerate(value):
            yield from _leaves(x, f"{before}{k}")
    elif isinstance(value, np.ndarray | Array):
        yield name, value
