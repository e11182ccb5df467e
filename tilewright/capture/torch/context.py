"""What translation functions use: the current node, constants, casts, promotion, random
streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from typing import cast as cast_to

import numpy as np
import torch
import torch.fx

from tilewright import ops
from tilewright.capture.torch.checks import Checks
from tilewright.capture.torch.dtypes import FROM_TORCH, has_native_form, real_dtype
from tilewright.capture.torch.facts import CPU
from tilewright.capture.torch.promote import as_float, result_type
from tilewright.capture.torch.registry import Untranslated, rule_for, target_name
from tilewright.capture.torch.shapes import Shapes
from tilewright.capture.torch.values import Complex
from tilewright.ir.dim import Int
from tilewright.ir.node import Graph, Node, constant, input
from tilewright.ir.operator import outputs_of
from tilewright.ir.slots import Check
from tilewright.ir.types import DType, TensorType, bf16, f8e5m2, f16, f32, f64, i64

Operand = Node | int | float | bool | Int


class Context:
    """One per translated graph; `fx` is the node being translated."""

    def __init__(
        self,
        shapes: Shapes,
        random: str = "own",
        checks: bool = True,
        device: torch.device = CPU,
    ) -> None:
        self.shapes, self.device = shapes, device
        self.random = random
        self.checks = Checks(checks)
        self.fx: torch.fx.Node
        self.numbers: set[Node] = set()  # nodes that stand for Python numbers
        self.subgraph: Callable[..., tuple[Graph, dict[Node, Check]]] = _no_subgraph
        # Have torch raise its own error at the call where a factorisation's `info` is not 0.
        self.check_errors: Callable[[Node, str, bool], None] = _no_check
        # The beginnings of tensors along an axis, of a length that is the value of a node and that
        # torch calls by a symbol: (length, tensors, axis, torch's size).
        self.bounded: Callable[[Node, Sequence[Node], int, Any], tuple[Node, ...]] = _no_bounds
        self.seed_used = False
        self._drawn = 0
        # Where random numbers come from instead of this call's seed: (seed, number of the stream).
        self._elsewhere: tuple[Node, Node] | None = None

    # ---- the result that torch announced

    @property
    def val(self) -> Any:
        return self.fx.meta.get("val")

    def out(self, k: int | None = None) -> TensorType:
        """The type torch gives the (k-th) result; of a complex one, that of its two parts."""
        v = self.val
        v = v[k] if isinstance(v, (tuple, list)) and k is not None else v
        if not isinstance(v, torch.Tensor):
            raise Untranslated("its result is not a tensor")
        if not has_native_form(v.dtype):
            raise Untranslated(f"{v.dtype} has no native form")
        return TensorType(real_dtype(v.dtype), self.shapes.dims(v.shape))

    def dtype(self, d: torch.dtype | None, default: DType) -> DType:
        if d is None:
            return default
        if d not in FROM_TORCH:
            raise Untranslated(f"{d} has no native form")
        return FROM_TORCH[d]

    # ---- operands

    def number(self, x: int | float | bool | Int, dtype: DType) -> Node:
        """A 0-d tensor of one number; a symbolic integer becomes an index."""
        if isinstance(x, Int):
            return ops.cast(ops.reshape(ops.iota(1, x, 1, i64), ()), dtype)
        if isinstance(x, complex):
            raise Untranslated("complex numbers have no native form")
        if not dtype.is_float and isinstance(x, float):
            x = bool(x) if dtype.is_bool else int(x)
        if dtype.is_int:  # as torch converts: wrapping around at the ends of the range
            span = 1 << dtype.bits
            x = (int(x) - int(dtype.lowest)) % span + int(dtype.lowest)
        return ops.full((), single(x, dtype), dtype)

    def number_in(self, slot: str) -> Node:
        """A Python number that is known at the call only."""
        x = input(slot, TensorType(f64, ()), "scalar")
        self.numbers.add(x)
        return x

    def node(self, x: Operand, dtype: DType | None = None) -> Node:
        """An operand as a node, cast to `dtype`."""
        if isinstance(x, Node):
            return x if dtype is None else cast(x, dtype)
        if dtype is None:
            dtype = result_type((x,))
        return self.number(x, dtype)

    def promote(self, *xs: Operand, to_float: bool = False) -> tuple[list[Node], DType]:
        """Operands in the dtype torch would compute in, and that dtype."""
        d = result_type(xs, self.numbers)
        d = as_float(d) if to_float else d
        return [self.node(x, d) for x in xs], d

    def compute(
        self, fn: Callable[..., Node], *xs: Operand, to_float: bool = False, wide: bool = False
    ) -> Node:
        """`fn` of promoted operands.

        `wide`: eager does not round a number first that is combined with 16-bit floats: they are
        combined in float32.
        """
        d = result_type(xs, self.numbers)
        d = as_float(d) if to_float else d
        if wide and d in (f16, bf16) and any(self._wide(x, d) for x in xs):
            return cast(fn(*(self.node(x, f32) for x in xs)), d)
        return fn(*(self.node(x, d) for x in xs))

    def _wide(self, x: Operand, d: DType) -> bool:
        return not isinstance(x, Node) or (x.rank == 0 and x.dtype is not d)

    def literal(self, array: Any, dtype: DType) -> Node:
        return constant(array, dtype)

    # ---- random streams

    def stream(self) -> tuple[Node, Node]:
        """(seed, offset): the call's seed and a stretch of its counter that no other operator uses.

        An operator's counters run over the low 32 bits: its own elements.
        """
        seed, number = self.next_stream()
        if self._elsewhere is not None:
            self._elsewhere = seed, ops.add(number, ops.full((), 1, i64))
            return seed, ops.shl(number, ops.full((), 32, i64))
        self._drawn += 1
        # Read from memory: layers differ in it, and their kernels are the same otherwise.
        return seed, constant(self._drawn << 32, i64, passed=True)

    def next_stream(self) -> tuple[Node, Node]:
        """The seed and the number of the stream that is drawn from next."""
        if self._elsewhere is not None:
            return self._elsewhere
        self.seed_used = True
        seed = input(SEED, TensorType(i64, ()), "scalar")
        return seed, ops.full((), self._drawn + 1, i64)

    @contextmanager
    def from_stream(self, seed: Node, number: Node) -> Iterator[None]:
        """Random operators inside draw from this stream and those after it."""
        before, self._elsewhere = self._elsewhere, (seed, number)
        try:
            yield
        finally:
            self._elsewhere = before

    def apply(self, op: Any, args: Any, kwargs: Any, val: Any) -> Any:
        """The translation of another operator with these operands, whose result torch announces
        as `val`.
        """
        numbers = (*args, *kwargs.values())
        if any(isinstance(x, Complex) for x in numbers):
            raise Untranslated("it has no native form on complex numbers")
        rule = rule_for(op)
        if rule is None:
            raise Untranslated(f"{target_name(op)} has no native form")
        outer = self.fx
        self.fx = cast_to(torch.fx.Node, _Applied(op, {**outer.meta, "val": val}))
        try:
            return rule(self, *args, **kwargs)
        finally:
            self.fx = outer


@dataclass(frozen=True)
class _Applied:
    """The part of an fx node that translations read, for an operator inside another."""

    target: Any
    meta: dict[str, Any]
    args: tuple[Any, ...] = ()
    users: tuple[Any, ...] = ()


SEED = "seed"
RANDOM_IN_EAGER = "the options say that random operators run in eager"


def cast(x: Node, dtype: DType) -> Node:
    if dtype is f8e5m2 and x.dtype is not f8e5m2:
        raise Untranslated("numbers beyond the largest become infinite in torch's float8_e5m2")
    if x.dtype is f64 and dtype is bf16:
        x = ops.cast(x, f32)  # as torch does
    return x if x.dtype is dtype else ops.cast(x, dtype)


def single(x: float | int | bool, dtype: DType) -> float | int | bool:
    """A number that is to be of a dtype: torch rounds it to float32 before bfloat16."""
    return float(np.float32(x)) if dtype is bf16 else x


def parts(out: Node | tuple[Node, ...]) -> tuple[Node, ...]:
    """The components of a multi-output operator."""
    return out if isinstance(out, tuple) else outputs_of(out)


def axis_of(axis: int, rank: int) -> int:
    return axis % max(rank, 1)


def axes_of(axes: Sequence[int] | int | None, rank: int) -> tuple[int, ...]:
    """Non-negative axes; none given means all."""
    if axes is None or (isinstance(axes, (list, tuple)) and not axes):
        return tuple(range(rank))
    given = (axes,) if isinstance(axes, int) else axes
    return tuple(sorted({a % max(rank, 1) for a in given})) if rank else ()


def _no_check(*_: Any) -> None:
    raise Untranslated("a result cannot be checked here")


def _no_bounds(*_: Any) -> tuple[Node, ...]:
    raise Untranslated("the size of a result depends on data")


def _no_subgraph(*_: Any) -> tuple[Graph, dict[Node, Check]]:
    raise Untranslated("a graph inside a graph cannot be translated here")
