"""Values whose elements are known: what kernels that run step by step compute with."""

from __future__ import annotations

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.lang.tile.ir import Pointer, TileType, Value


class EagerValue(Value):
    """A value whose elements are known. No kernel has it: it is itself only, and may change."""

    __setattr__ = object.__setattr__
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __init__(
        self,
        type: TileType,
        array: np.ndarray,
        origin: np.ndarray | None = None,
        undefined: np.ndarray | None = None,
    ):
        super().__init__(type, -1)
        self.array = array
        # Of addresses: the number of the argument that each was computed from.
        self.origin = origin
        # Set in the checking mode only: which elements have no meaning, by the number of the
        # reason (0: they have one).
        self.undefined = undefined

    def __repr__(self) -> str:
        return f"{self.type} {shown(self)}"

    def __str__(self) -> str:
        return shown(self)


def shown(value: Value) -> str:
    """The elements for reading: `[1. 2. …]`; addresses in hex."""
    array = known(value).array
    if isinstance(value.element, Pointer):
        return np.array2string(array, formatter={"int": hex}, threshold=64)
    return np.array2string(array, threshold=64) if array.ndim else str(array[()])


def known(value: Value) -> EagerValue:
    if not isinstance(value, EagerValue):
        raise Invalid(
            "a value of a kernel that is being compiled is used in one that runs step by step",
            hint="do not store values of kernels in global variables",
        )
    return value
