"""Kernels that run on the processor are compiled for a GPU as well: what is refused there is noted.

Code for a GPU is made on any machine: a suite that runs here says how much of it could run there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any
from unittest.mock import patch

from tilewright.base.errors import TilewrightError
from tilewright.base.events import Log
from tilewright.driver.tile import jit
from tilewright.driver.tile.launch import NATIVE, Launchable
from tilewright.driver.tile.request import Request
from tilewright.targets.nvptx import for_capability


@dataclass
class Shadow:
    """An executor: the processor's, with code for a GPU beside it."""

    capability: int = 90
    strict: bool = False  # is what is refused there refused here too?
    made: list[str] = field(default_factory=list)  # names of kernels
    refused: dict[str, str] = field(default_factory=dict)  # and why
    bulk: int = 0  # kernels with copies of the copy engine

    name = "cuda:0"  # options of a launch are given to `prepare`
    wants_given = False

    def prepare(self, wanted: Request, log: Log) -> Launchable:
        compiler: Any = import_module("tilewright.driver.tile.gpu_compile")
        name = wanted.function.name
        try:
            code = compiler.write_gpu_tile(wanted, for_capability(self.capability)).code
            self.made.append(name)
            self.bulk += code.maps is not None
        except TilewrightError as problem:
            self.refused[name] = problem.what
            if self.strict:
                raise
        return NATIVE.prepare(replace(wanted, warps=4, stages=3), log)

    def installed(self) -> Any:
        return patch.object(jit, "executor", lambda: self)
