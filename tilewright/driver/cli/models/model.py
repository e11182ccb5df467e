"""What commands do with a model, of whatever kind it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.driver.cli.models.dims import OpenDim
from tilewright.driver.cli.models.inputs import Inputs, parse_inputs
from tilewright.driver.export.api import Exported
from tilewright.driver.looking.explain import Explanation
from tilewright.driver.program.options import Options
from tilewright.driver.program.validation import Report
from tilewright.ir.types import LONG_NAMES

Step = Callable[[str], AbstractContextManager[Any]]


@dataclass(frozen=True)
class How:
    """Inputs as they were given, and how the model is compiled."""

    input: tuple[str, ...] = ()
    strict: bool = False
    passes: str | None = None

    @cached_property
    def inputs(self) -> Inputs:
        return parse_inputs(self.input)

    def options(self, **more: Any) -> Options:
        """Options of a compilation: these, and others by name."""
        return replace(Options(passes=self.passes), **more)


@dataclass(frozen=True)
class Result:
    """One result of a run. `error` is the largest against float64, None where nothing was
    checked."""

    name: str
    dtype: str
    array: np.ndarray
    error: float | None = None
    allowed: float | None = None
    problem: str | None = None  # why it is wrong
    unchecked: str | None = None  # why it was not checked, though nobody said so

    def facts(self) -> dict[str, Any]:
        """What there is to say of it in numbers."""
        values = self.array.astype(np.float64) if self.array.dtype != bool else self.array * 1.0
        finite = values[np.isfinite(values)]
        least, mean, most = (
            (float(f(finite)) for f in (np.min, np.mean, np.max)) if finite.size else (None,) * 3
        )
        return {
            "name": self.name,
            "dtype": LONG_NAMES.get(self.dtype, self.dtype),
            "shape": list(self.array.shape),
            "min": least,
            "mean": mean,
            "max": most,
            "not_finite": values.size - finite.size,
            "error": self.error,
            "allowed": self.allowed,
            "right": None if self.error is None else self.problem is None,
            "unchecked": self.unchecked,
        }


class Model(ABC):
    """A program and the inputs that it brings along. What was compiled before can only be run."""

    name: str

    @abstractmethod
    def results(self, how: How, step: Step, check: bool | None = None) -> list[Result]:
        """Of one call; compared with float64 where `check` says so, None: if that is quick."""

    def explained(self, how: How, **options: Any) -> Explanation:
        """Compiled; `options` are further ones of a compilation."""
        raise self._compiled_before()

    def tried(self, how: How) -> Explanation:
        """Compiled and called again: what then changes is told too."""
        return self.explained(how)

    def stages(self, how: How, only_if_wrong: bool) -> list[Report]:
        """A compile judged stage by stage; `only_if_wrong`: nothing where results are right."""
        raise self._compiled_before()

    def exported(self, how: How, path: Path, dims: Sequence[OpenDim], **options: Any) -> Exported:
        """Written as a package, with these sizes open; `options` are those of `tw.export`."""
        raise Invalid(
            f"{self.name} is of a kind that cannot be exported",
            hint="name a program in Python, a .pt2 or an .onnx file",
        )

    def _compiled_before(self) -> Invalid:
        return Invalid(
            f"{self.name} was compiled before, and can only be run",
            hint="name the model that it was made of",
        )

    def needs_inputs(self, hint: str) -> Invalid:
        return Invalid(f"{self.name} needs inputs", hint=f"give --input 'f32[8,16]' for each{hint}")
