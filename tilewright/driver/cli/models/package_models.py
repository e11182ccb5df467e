"""Packages that `tw.export` wrote: they are run, and have been compiled before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.driver.cli.models.inputs import Value
from tilewright.driver.cli.models.model import How, Model, Result, Step
from tilewright.driver.program.arrays import random_array
from tilewright.ir.types import DTYPES, TensorType, as_dtype, to_memory
from tilewright_runtime import Package, PackageError, Tensor
from tilewright_runtime import load as load_package


def load(path: Path) -> PackageModel:
    with _in_words():
        return PackageModel(load_package(path))


@contextmanager
def _in_words() -> Iterator[None]:
    """What the runtime refuses is the user's to correct."""
    try:
        yield
    except PackageError as problem:
        raise Invalid(str(problem)) from None


class PackageModel(Model):
    def __init__(self, package: Package) -> None:
        self.name, self.package = package.name, package

    def results(self, how: How, step: Step, check: bool = True) -> list[Result]:
        """Nothing is left that they could be compared with."""
        tensors, rng = self.package.inputs, np.random.default_rng(0)
        given = how.inputs.placed([t.name for t in tensors], self.name)
        feed = {t.name: self._argument(t, given.get(t.name), rng) for t in tensors}
        with step(f"running {self.name}"), _in_words():
            found = self.package.run(None, feed)
        return [_result(t, x) for t, x in zip(self.package.outputs, found, strict=True)]

    def _argument(self, t: Tensor, given: Value | None, rng: np.random.Generator) -> Any:
        dtype = DTYPES[t.dtype]
        if given is not None:
            if given.dtype != t.dtype or dtype.memory == dtype.numpy:
                return given.array  # another dtype is refused by the package, in its words
            return to_memory(as_dtype(given.array, dtype), dtype)
        sizes = tuple(n for n in t.shape if isinstance(n, int))
        if len(sizes) != len(t.shape):
            raise Invalid(
                f"the input {t.name!r} of {self.name} has symbolic dims: {t!r}",
                hint=f"say its sizes: --input '{t.name}={t.dtype}[8,16]'",
            )
        return random_array(TensorType(dtype, sizes), rng)


def _result(t: Tensor, found: Any) -> Result:
    dtype, array = DTYPES[t.dtype], np.asarray(found)
    if dtype.format is not None and array.dtype != dtype.numpy:
        array = dtype.format.decode(array)
    return Result(t.name, t.dtype, array)
