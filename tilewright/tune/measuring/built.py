"""The code of a schedule, made where there is a compiler and sent to where it runs."""

from __future__ import annotations

from tilewright.ir.target import Target
from tilewright.kernel.nest import Nest
from tilewright.runtime.cuda.gpu import nest_ptx
from tilewright.runtime.nests import nest_object


def built(nest: Nest, target: Target) -> bytes:
    """An object file, or the PTX of a GPU. Any machine makes it for any target."""
    return nest_object(nest, target) if target.grid is None else nest_ptx(nest, target)
