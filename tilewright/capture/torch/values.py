"""What an fx node may stand for besides a node of our graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright import ops
from tilewright.ir.dim import Dim
from tilewright.ir.node import Node
from tilewright.ir.types import DType


@dataclass(frozen=True)
class Opaque:
    """A tensor that only torch can represent (sparse, quantized): host calls pass it on."""

    slot: str


@dataclass(frozen=True)
class Complex:
    """A complex tensor: two real ones. In memory its elements are pairs: one more axis, of 2."""

    re: Node
    im: Node

    @property
    def dtype(self) -> DType:
        return self.re.dtype

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.re.shape

    @property
    def rank(self) -> int:
        return self.re.rank


def joined(x: Node | Complex) -> Node:
    """The elements as they are in memory."""
    return ops.stack([x.re, x.im], x.rank) if isinstance(x, Complex) else x


def parted(x: Node) -> Complex:
    """The complex tensor whose pairs lie along the last axis."""
    axis = x.rank - 1

    def part(k: int) -> Node:
        return ops.reshape(ops.slice(x, axis, k, k + 1, 1), x.shape[:axis])

    return Complex(part(0), part(1))


def is_complex(tree: Any) -> bool:
    """Is there a complex tensor or number in an argument?"""
    if isinstance(tree, (tuple, list)):
        return any(is_complex(x) for x in tree)
    if isinstance(tree, dict):
        return any(is_complex(x) for x in tree.values())
    return isinstance(tree, (Complex, complex))


def is_opaque(tree: Any) -> bool:
    if isinstance(tree, (tuple, list)):
        return any(is_opaque(x) for x in tree)
    return isinstance(tree, Opaque)
