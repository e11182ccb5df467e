"""Tensors that native code computes for eager's operators, laid out as eager's own would be.

The strides of what an operator of torch returns follow those of its operands, and so may the last
digits of its numbers. So a host call is given memory in the order that torch announced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tilewright.capture.torch.captured import Buffer
from tilewright.capture.torch.layout import Dense, contiguous, packed, to_memory
from tilewright.capture.torch.shapes import Shapes
from tilewright.capture.torch.values import Complex, joined
from tilewright.ir.dim import Dim
from tilewright.ir.node import Input, Node


@dataclass(frozen=True)
class Operand:
    """In the arguments of a pending host call: a node in the order of memory, and how torch sees
    it. `paired`: torch sees pairs as complex numbers."""

    node: Node
    shape: tuple[Dim, ...]
    stride: tuple[Dim, ...]
    paired: bool = False

    def buffer(self, slot: str) -> Buffer:
        return Buffer(slot, self.node.dtype, self.shape, self.stride, self.paired)


def operand(x: Node | Complex, v: Any, shapes: Shapes) -> Operand:
    """`x` as torch's fake tensor `v` lies in memory; row by row where there is none."""
    paired, shape = isinstance(x, Complex), x.shape
    if not isinstance(v, torch.Tensor) or v.layout is not torch.strided or v.dim() != x.rank:
        return Operand(joined(x), shape, contiguous(shape), paired)
    how, stride = packed(shape, shapes.dims(v.stride()))
    return Operand(in_memory(x, how), shape, stride, paired)


def in_memory(x: Node | Complex, how: Dense) -> Node:
    if isinstance(x, Complex):
        return joined(Complex(to_memory(x.re, how), to_memory(x.im, how)))
    return to_memory(x, how)


def is_result(x: Any, v: Any, results: Mapping[str, torch.Tensor]) -> bool:
    """Is this, announced as `v`, a tensor as a host call returned it? Not where torch has a copy
    of it or sees it with other strides. `results`: what torch announced, by slot."""
    if not isinstance(x, Node) or not isinstance(x.op, Input) or x.op.label not in results:
        return False
    return same_memory(v, results[x.op.label])


def same_memory(v: Any, w: torch.Tensor) -> bool:
    """Do two of torch's fake tensors name the same elements of the same memory?"""
    if not isinstance(v, torch.Tensor) or v.layout is not torch.strided:
        return v is w
    shared = v.untyped_storage()._cdata == w.untyped_storage()._cdata
    return shared and v.dtype is w.dtype and _text(v) == _text(w)


def _text(v: torch.Tensor) -> tuple[str, ...]:
    """Sizes, strides and offset without a question to torch that would add a guard."""
    return tuple(map(str, (*v.shape, *v.stride(), v.storage_offset())))
