"""Results with eager's strides and sharing: fresh buffers, views of inputs, views of another."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from tilewright.base.errors import Invalid
from tilewright.capture.torch.captured import Argument
from tilewright.capture.torch.dtypes import real_dtype
from tilewright.capture.torch.facts import is_lazy, is_plain, storage_of
from tilewright.capture.torch.layout import contiguous, dense
from tilewright.capture.torch.operands import in_memory, same_memory
from tilewright.capture.torch.segments import Wanted
from tilewright.capture.torch.shapes import Shapes
from tilewright.capture.torch.values import Complex, Opaque, joined, parted
from tilewright.ir.dim import Int
from tilewright.ir.node import Input, Node, topological
from tilewright.ir.slots import Buffer, Number, Restrided, Result, Same, SymbolicInt, Value, View

# Results that are parts of a value with at most this many elements are views of it: to write it
# whole takes less time than to make a tensor with gaps and to copy a part into it.
SMALL = 4096


class Outputs:
    """Collects the results of a graph and the buffers native code has to fill for them."""

    def __init__(
        self,
        shapes: Shapes,
        env: dict[torch.fx.Node, Any],
        arguments: list[Argument],
        argument_of: dict[torch.fx.Node, int],
        mutated: dict[torch.fx.Node, Node | Complex],
        host_results: Mapping[str, torch.Tensor],
        views: Collection[str] = (),
    ) -> None:
        """`host_results`: what torch announced of them, by slot; `views`: those that are views of
        what a host call was given."""
        self.shapes, self.env, self._views = shapes, env, frozenset(views)
        self._host_results = host_results
        self.wanted: list[Wanted] = []
        self._arguments, self._argument_of, self._mutated = arguments, argument_of, mutated
        self._done: dict[torch.fx.Node, Result] = {}
        # Storage of torch's fake tensor -> (slot that holds it, offset of that tensor in it)
        self._homes: dict[int, tuple[str, Any, torch.dtype]] = {}
        for n, k in argument_of.items():
            v = n.meta.get("val")
            a = arguments[k]
            if isinstance(v, torch.Tensor) and n not in mutated and a.dtype is not None:
                if a.stride != shapes.dims(v.stride()):
                    continue  # views of it, as torch announced them, lie elsewhere in it
                self._homes[storage_of(v)] = arguments[k].slot, v.storage_offset(), v.dtype
        # The same of results of host calls, by slot. Of several in one storage, their distance at
        # run time is not known.
        self._host_homes: dict[int, list[str]] = {}
        for slot, v in host_results.items():
            if slot not in self._views and is_plain(v, v.device):
                self._host_homes.setdefault(storage_of(v), []).append(slot)
        self._pending: dict[int, list[torch.fx.Node]] = {}
        self._made: dict[int, torch.fx.Node] | None = None

    def add(self, x: Any) -> Any:
        """One leaf of the fx output. What is returned goes through `resolve` when all leaves are
        known.
        """
        if not isinstance(x, torch.fx.Node):
            return Value(x)
        if x not in self._done:
            found = self._plain(x)
            if found is None:
                self._pending.setdefault(storage_of(x.meta["val"]), []).append(x)
                return x
            self._done[x] = found
        return self._done[x]

    def resolve(self, r: Any) -> Result:
        if not isinstance(r, torch.fx.Node):
            return r
        if r not in self._done:
            self._place(self._pending[storage_of(r.meta["val"])])
        return self._done[r]

    def write_back(self, target: torch.fx.Node, value: Node | Complex) -> tuple[str, str]:
        """A buffer for the new value of an input, in the input's own order of memory where it is
        dense.
        """
        a = self._arguments[self._argument_of[target]]
        assert a.dtype is not None
        how = dense(a.shape, a.stride)
        slot = f"new.{a.slot}"
        if how is None or how.broadcast:
            buffer = Buffer(slot, a.dtype, a.shape, contiguous(a.shape), a.paired)
            self.wanted.append(Wanted(joined(value), buffer))
        else:
            buffer = Buffer(slot, a.dtype, a.shape, a.stride, a.paired)
            self.wanted.append(Wanted(in_memory(value, how), buffer))
        return a.slot, slot

    def _plain(self, x: torch.fx.Node) -> Result | None:
        """Results that need no buffer; None for the rest."""
        value = self.env[x]
        v = x.meta.get("val")
        if x in self._argument_of and x not in self._mutated:
            a = self._arguments[self._argument_of[x]]
            if a.kind == "tensor" or a.kind == "other":
                return Same(a.slot)
        changed = self._changed(x)
        if changed is not None and changed.kind == "tensor" and not changed.moved:
            return Same(changed.slot)
        if isinstance(value, Int):
            return SymbolicInt(value)
        if value is None or isinstance(value, (int, float, bool, str)):
            return Value(value)
        if isinstance(value, Opaque):
            return Same(value.slot)
        if not isinstance(value, (Node, Complex)):
            raise Invalid(f"the graph returns {value!r}, which is not a tensor or a number")
        if not isinstance(v, torch.Tensor):
            assert isinstance(value, Node)
            return self._number(value, bool if isinstance(v, (bool, torch.SymBool)) else float)
        slot = self._host_slot(value, v)
        if slot is not None and slot not in self._views:
            return Same(slot)
        home = self._homes.get(storage_of(v))
        if home is not None and home[2] is v.dtype and not is_lazy(v):
            return self._view(home, v)
        if home is None:
            return self._view_of_host_result(v)
        # A host call may be given an input where eager has a copy of it: a view that it makes is
        # the result only where eager's is one of the input, too.
        return Same(slot) if slot is not None else None

    def _changed(self, x: torch.fx.Node) -> Argument | None:
        """The argument that gets its last new value here, and so is the result."""
        if x.target is not torch.ops.aten.copy_.default:
            return None
        target: Any = x.args[0]
        new = self._mutated.get(target)
        known = new is not None and new is self.env[x]
        return self._arguments[self._argument_of[target]] if known else None

    def _host_slot(self, x: Node | Complex, v: torch.Tensor) -> str | None:
        """The slot of a value that is the result of a host call as it is: neither a copy of it nor
        seen with other strides.
        """
        slot = _slot_of(x)
        announced = None if slot is None else self._host_results.get(slot)
        return slot if announced is not None and same_memory(v, announced) else None

    def _number(self, value: Node, python: type) -> Number:
        """A Python number that native code or a host call computes."""
        if isinstance(value.op, Input):
            return Number(value.op.label, python)
        slot = f"out{len(self.wanted)}"
        self.wanted.append(Wanted(value, Buffer(slot, value.dtype, (), ())))
        return Number(slot, python)

    def _view(self, home: tuple[str, Any, torch.dtype], v: torch.Tensor) -> View:
        slot, start, _ = home
        offset = self.shapes.dim(v.storage_offset() - start)
        return View(slot, self.shapes.dims(v.shape), self.shapes.dims(v.stride()), offset)

    def _view_of_host_result(self, v: torch.Tensor) -> View | None:
        slots = self._host_homes.get(storage_of(v), ())
        if len(slots) != 1 or is_lazy(v):
            return None
        base = self._host_results[slots[0]]
        if base.dtype is not v.dtype:
            return None
        found = self._view((slots[0], base.storage_offset(), base.dtype), v)
        return replace(found, base=self.shapes.dims(base.stride()))

    def _place(self, group: list[torch.fx.Node]) -> None:
        """Buffers for results that share one storage in eager: one for what is the whole of it, a
        result or not, views for the rest.
        """
        todo = [x for x in dict.fromkeys(group) if x not in self._done]
        if not todo:
            return
        base = self._base(todo) or self._inner(todo)
        if base is not None:
            done = self._done.get(base)
            if done is None:
                self._fresh(base)
                done = self._done[base]
            assert isinstance(done, Same)
            v = base.meta["val"]
            for x in todo:
                y = x.meta["val"]
                if x is not base and y.dtype is v.dtype and not is_lazy(y):
                    self._done[x] = self._view(
                        (done.slot, v.storage_offset(), v.dtype), x.meta["val"]
                    )
        for x in todo:
            if x not in self._done:
                self._fresh(x)

    def _base(self, group: list[torch.fx.Node]) -> torch.fx.Node | None:
        """The result whose memory is the whole storage that the others are views of."""
        if len(group) < 2:
            return None
        return next((x for x in group if self._is_whole(x.meta["val"])), None)

    def _is_whole(self, v: torch.Tensor) -> bool:
        """Is it all of its storage, in some order?"""
        how = dense(self.shapes.dims(v.shape), self.shapes.dims(v.stride()))
        if how is None or how.broadcast or self.shapes.dim(v.storage_offset()) != 0 or is_lazy(v):
            return False
        size = v.untyped_storage().nbytes()
        return self.shapes.dim(v.numel() * v.element_size()) == self.shapes.dim(size)

    def _inner(self, group: list[torch.fx.Node]) -> torch.fx.Node | None:
        """The value that results are parts of, as heads of one product are, where that is small or
        at most twice of them: each would be computed into a tensor and copied to one with gaps."""
        parts = [x.meta["val"] for x in group]
        if all(self._has_own_memory(v) for v in parts):
            return None
        x = self._makers(group[0].graph).get(storage_of(parts[0]))
        value = None if x is None else self.env.get(x)
        if x is None or not isinstance(value, (Node, Complex)) or _slot_of(value) is not None:
            return None
        v = x.meta["val"]
        whole, *others = (self.shapes.dim(y.numel()) for y in (v, *parts))
        sizes = [n for n in others if isinstance(n, int)]
        if not isinstance(whole, int) or len(sizes) < len(others) or not self._is_whole(v):
            return None
        return x if whole <= max(SMALL, 2 * sum(sizes)) else None

    def _makers(self, graph: torch.fx.Graph) -> dict[int, torch.fx.Node]:
        """By storage: the operator that made it."""
        if self._made is None:
            self._made = {}
            for n in graph.nodes:
                v = n.meta.get("val")
                if n.op == "call_function" and isinstance(v, torch.Tensor):
                    self._made.setdefault(storage_of(v), n)
        return self._made

    def _has_own_memory(self, v: torch.Tensor) -> bool:
        """Can a buffer be what eager has: elements without gaps, from the beginning?"""
        known = dense(self.shapes.dims(v.shape), self.shapes.dims(v.stride()))
        return known is not None and self.shapes.dim(v.storage_offset()) == 0

    def _fresh(self, x: torch.fx.Node) -> None:
        value, v = self.env[x], x.meta["val"]
        assert isinstance(value, (Node, Complex))
        shape, stride = self.shapes.dims(v.shape), self.shapes.dims(v.stride())
        dtype, slot = real_dtype(v.dtype), f"out{len(self.wanted)}"
        paired = isinstance(value, Complex)
        how = dense(shape, stride)
        # Where sizes are not constant, torch makes a view of a changed input from where this result
        # lies in its storage.
        offset = self.shapes.dim(v.storage_offset())
        if all(isinstance(d, int) for d in (*shape, *stride, offset)):
            offset = 0
        if how is None or offset != 0:
            buffer = Buffer(slot, dtype, shape, contiguous(shape), paired)
            self.wanted.append(Wanted(joined(value), buffer))
            self._done[x] = Restrided(slot, shape, stride, offset)
        else:
            buffer = Buffer(slot, dtype, shape, stride, paired)
            self.wanted.append(Wanted(in_memory(value, how), buffer))
            self._done[x] = Same(slot)


def _slot_of(x: Node | Complex) -> str | None:
    """The slot of a value that a host call computed."""
    if isinstance(x, Complex):
        whole = joined(x)
        sources = {n for n in topological((whole,)) if isinstance(n.op, Input)}
        if len(sources) != 1:
            return None
        (source,) = sources
        if source.shape != (*x.shape, 2) or parted(source) != x:
            return None
        x = source
    if isinstance(x.op, Input) and x.op.label.startswith("host"):
        return x.op.label
    return None
