"""Type promotion as torch does it: tensors with axes decide, then 0-d tensors, then Python's
numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tilewright.capture.torch.dtypes import default_float, promoted
from tilewright.ir.node import Node
from tilewright.ir.types import DType, b1, i64

_RANK = {"b": 0, "u": 1, "i": 1, "f": 2}


def result_type(operands: Iterable[Any], wrapped: Iterable[Node] = ()) -> DType:
    """The dtype in which an elementwise operator works. `wrapped` are nodes that stand for Python
    numbers.
    """
    numbers = set(wrapped)
    by_rank: list[DType | None] = [None, None, None]
    for x in operands:
        if isinstance(x, Node):
            level = 2 if x in numbers else 1 if x.rank == 0 else 0
            d = default_float() if level == 2 and x.dtype.is_float else x.dtype
        else:
            level = 2
            d = b1 if isinstance(x, bool) else default_float() if isinstance(x, float) else i64
        old = by_rank[level]
        by_rank[level] = d if old is None else promoted(old, d)
    out: DType | None = None
    for d in by_rank:
        if d is None:
            continue
        if out is None:
            out = d
        elif _RANK[d.kind] > _RANK[out.kind]:
            # A higher category wins; a number brings only its category, so it takes the default
            # dtype.
            out = promoted(out, d)
    assert out is not None
    return out


def as_float(d: DType) -> DType:
    """Integers become the default float."""
    return d if d.is_float else default_float()
