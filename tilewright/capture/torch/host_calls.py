"""Operators that run in eager between native segments, and conditions that are checked there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx
from torch.fx.node import map_aggregate

from tilewright import ops
from tilewright.capture.torch.asserts import NOT_SO, size_check
from tilewright.capture.torch.captured import Argument, Filled, HostCall, Returned, Slot
from tilewright.capture.torch.context import Context
from tilewright.capture.torch.dtypes import FROM_COMPLEX, real_dtype
from tilewright.capture.torch.facts import CPU, is_mutable, is_ordered, is_plain, python_type
from tilewright.capture.torch.lapack import routines
from tilewright.capture.torch.launches import Launch, kernel_name, strides_of
from tilewright.capture.torch.layout import contiguous, read_slot
from tilewright.capture.torch.operands import is_result, operand, view_of_input
from tilewright.capture.torch.places import place_of
from tilewright.capture.torch.registry import target_name
from tilewright.capture.torch.segments import PendingHost, PendingNumber
from tilewright.capture.torch.values import Complex, Opaque
from tilewright.ir.dim import Int
from tilewright.ir.node import Node, Place, input
from tilewright.ir.slots import SymbolicInt, View
from tilewright.ir.types import TensorType


def trimmed(axis: int, count: torch.Tensor, *found: torch.Tensor) -> tuple[Any, ...]:
    """A number that native code computed, and the beginnings of that length."""
    n = int(count)
    return n, *(x.narrow(axis, 0, n).clone(memory_format=torch.contiguous_format) for x in found)


CHECK_ERRORS = torch.ops.aten._linalg_check_errors.default
READ_NUMBER = torch.ops.aten._local_scalar_dense.default


def raise_errors(info: torch.Tensor, name: str, *, is_matrix: bool) -> None:
    """CHECK_ERRORS, which takes longer than a look at the number that says that all is well."""
    if info.numel() != 1 or info.item() != 0:
        CHECK_ERRORS(info, name, is_matrix=is_matrix)


class HostCalls:
    """The host calls of one graph, in its order: `pending` has those found so far."""

    def __init__(
        self,
        context: Context,
        env: dict[torch.fx.Node, Any],
        arguments: list[Argument],
        argument_of: dict[torch.fx.Node, int],
    ) -> None:
        self.context, self.env = context, env
        self.arguments, self.argument_of = arguments, argument_of
        self.pending: list[PendingHost] = []
        self.results: dict[str, torch.Tensor] = {}  # as torch announced them, by slot

    # ---- operators

    def call(self, n: torch.fx.Node, why: str) -> Any:
        operands: list[Node] = []
        label = f"host{len(self.pending)}"

        def argument(x: Any) -> Any:
            if not isinstance(x, torch.fx.Node):
                return x
            v, announced = self.env[x], x.meta.get("val")
            python = python_type(announced)
            if python is not None and isinstance(v, Node):
                operands.append(v)
                return PendingNumber(v, python)
            if x in self.argument_of and self.arguments[self.argument_of[x]].kind != "int":
                return Slot(self.arguments[self.argument_of[x]].slot)
            return host_value(v, announced)

        def host_value(v: Any, announced: Any = None) -> Any:
            if isinstance(v, Opaque):
                return Slot(v.slot)
            if is_result(v, announced, self.results):
                operands.append(v)
                return v
            if isinstance(v, (Node, Complex)):
                view = None if is_mutable(n) else self._view(announced)
                if view is not None:
                    return view
                found = operand(v, None if is_mutable(n) else announced, self.context.shapes)
                operands.append(found.node)
                return found
            if isinstance(v, (tuple, list)):
                return tuple(host_value(e) for e in v)
            return SymbolicInt(v) if isinstance(v, Int) else v

        args = tuple(map_aggregate(n.args, argument))  # type: ignore[arg-type]
        kwargs = dict(map_aggregate(n.kwargs, argument))  # type: ignore[arg-type]
        vals: Any = n.meta.get("val")
        function: Any = n.target
        keys = tuple(vals) if isinstance(vals, dict) else None
        if keys is not None:  # a launch of a kernel: results by name
            vals = tuple(vals.values())
            function = Launch(function, keys)
            kwargs["strides"] = strides_of(n, self.context.shapes)
        binds: set[str] = set()
        returned, values = self._returned(vals, label, binds)
        self.context.shapes.bind(binds)
        call = HostCall(
            function=function,
            operator=target_name(n.target) if keys is None else kernel_name(n),
            args=args,
            kwargs=kwargs,
            returned=returned,
            place=place_of(n),
            why=why,
            trim=n.target is READ_NUMBER,
            library=routines(n.target) if self.context.device == CPU else "",
        )
        pending = PendingHost(call, label, tuple(operands), frozenset(binds), is_ordered(n))
        self.pending.append(pending)
        return values if keys is None else dict(zip(keys, values, strict=True))

    def _view(self, v: Any) -> View | None:
        given = ((self.arguments[k], n.meta.get("val")) for n, k in self.argument_of.items())
        return view_of_input(v, given, self.context.shapes)

    def _returned(self, v: Any, slot: str, binds: set[str]) -> tuple[Returned, Any]:
        """Where a result of a host call goes, and what it is to the graph; `binds` collects the
        symbols whose values it gives.
        """
        if isinstance(v, (tuple, list)):
            parts = [self._returned(x, f"{slot}.{k}", binds) for k, x in enumerate(v)]
            return tuple(r for r, _ in parts), tuple(x for _, x in parts)
        if isinstance(v, torch.Tensor):
            sizes = [d.node.expr for d in v.shape if isinstance(d, torch.SymInt)]
            binds |= {str(s) for e in sizes for s in self.context.shapes.unbound(e)}
            return Filled(slot, self.context.shapes.dims(v.shape)), self._result(slot, v)
        if isinstance(v, torch.SymInt):
            binds |= {str(s) for s in self.context.shapes.unbound(v.node.expr)}
            value = self.context.shapes.dim(v)
            return SymbolicInt(value), value
        if isinstance(v, (torch.SymFloat, torch.SymBool)):
            return Filled(slot), self.context.number_in(slot)
        return (None, None) if v is None else (Filled(slot), Opaque(slot))

    def _result(self, slot: str, v: torch.Tensor) -> Any:
        self.results[slot] = v
        if not is_plain(v, self.context.device):
            return Opaque(slot)
        shape = self.context.shapes.dims(v.shape)
        paired = v.dtype in FROM_COMPLEX
        return read_slot(slot, real_dtype(v.dtype), shape, contiguous(shape), paired)

    # ---- sizes that data decides

    def bounded(
        self, count: Node, sources: Sequence[Node], axis: int, size: Any
    ) -> tuple[Node, ...]:
        """The beginnings of some tensors along an axis, of a length that is the value of `count`
        and that torch calls `size`. The call between two segments reads the number only."""
        shapes, label = self.context.shapes, f"host{len(self.pending)}"
        if not isinstance(size, torch.SymInt):
            return tuple(ops.slice(x, axis, 0, int(size)) for x in sources)
        binds = frozenset(str(s) for s in shapes.unbound(size.node.expr))
        shapes.bind(binds)
        length = shapes.dim(size)
        returned: list[Returned] = [SymbolicInt(length)]
        results = []
        for k, x in enumerate(sources):
            shape = (*x.shape[:axis], length, *x.shape[axis + 1 :])
            returned.append(Filled(f"{label}.{k}", shape))
            results.append(input(f"{label}.{k}", TensorType(x.dtype, shape)))
        call = HostCall(
            function=trimmed,
            operator=target_name(self.context.fx.target),
            args=(axis, count, *sources),
            kwargs={},
            returned=tuple(returned),
            place=place_of(self.context.fx),
            why="a size depends on data",
            trim=True,
        )
        self.pending.append(PendingHost(call, label, (count, *sources), binds, False))
        return tuple(results)

    def undo(self, count: int) -> None:
        """Back to so many host calls: what follows them is not translated after all."""
        for p in self.pending[count:]:
            self.context.shapes.forget(p.binds)
        del self.pending[count:]

    # ---- checks

    def check_errors(self, n: torch.fx.Node) -> Any:
        """torch's own sentence where a factorisation failed; the order token passes through, where
        AOTAutograd gave one."""
        info, name = n.args[-2:]
        assert isinstance(info, torch.fx.Node)
        self.add_check(self.env[info], str(name), bool(n.kwargs["is_matrix"]), place_of(n))
        if n.target is CHECK_ERRORS:
            return None
        token = n.args[0]
        assert isinstance(token, torch.fx.Node)
        # At run time the token is None, whatever torch's fake of it looks like.
        argument = self.argument_of.get(token)
        return (
            self.env[token] if argument is None else Opaque(self.arguments[argument].slot),
            None,
        )

    def assert_tensor(self, n: torch.fx.Node) -> None:
        """A condition on data that the user's program states, or torch for an operator."""
        checks, condition = self.context.checks, n.args[0]
        fine: Any = self.env[condition] if isinstance(condition, torch.fx.Node) else condition
        if not checks.wanted:
            return
        if isinstance(fine, Opaque):
            given = (Slot(fine.slot), *n.args[1:])
            self._check(n.target, target_name(n.target), given, {}, (), place_of(n))
            return
        checks.fx = n
        value = self.context.node(fine)
        words = str(n.args[1]) if len(n.args) > 1 else NOT_SO
        checks.never(ops.eq(value, self.context.number(0, value.dtype)), words)

    def assert_scalar(self, n: torch.fx.Node) -> None:
        """The same of sizes. Those of inputs are guarded; others are known after a host call."""
        found = size_check(n) if self.context.checks.wanted else None
        if found is not None:
            sizes = (self.context.shapes.expression(s, found.environment) for s in found.sizes)
            given = tuple(map(SymbolicInt, sizes))
            self._check(found.check, target_name(n.target), given, {}, (), place_of(n))

    def add_check(self, info: Any, name: str, is_matrix: bool, place: Place | None = None) -> None:
        given = (Slot(info.slot) if isinstance(info, Opaque) else info, name)
        operands = (info,) if isinstance(info, Node) else ()
        known = {"is_matrix": is_matrix}
        self._check(raise_errors, target_name(CHECK_ERRORS), given, known, operands, place)

    def _check(
        self,
        function: Any,
        operator: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        operands: tuple[Node, ...],
        place: Place | None,
    ) -> None:
        call = HostCall(
            function=function,
            operator=operator,
            args=args,
            kwargs=kwargs,
            returned=None,
            place=place,
            why="it checks a result",
            check=True,
        )
        label = f"host{len(self.pending)}"
        self.pending.append(PendingHost(call, label, operands, frozenset(), True))
