"""Weights without memory of their own: their elements are stored only packed, in compiled programs.

Such a parameter stays the object it was, with its shape and dtype, so that guards and programs
still know it. Reading or writing its elements is an error.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch._C import DisableTorchFunctionSubclass
from torch.utils import _pytree as pytree

from tilewright.base.errors import Invalid, Unsupported
from tilewright.driver.program.options import Options
from tilewright.driver.program.packed_reads import conversion, inverse
from tilewright.driver.program.programs import compile_graph
from tilewright.ir.node import Graph, Input, Node, topological
from tilewright.ops.layout import Relayout
from tilewright.ops.views import Permute, Reshape
from tilewright.runtime.shared import Piece, Weight

_PLAIN = torch._C._disabled_torch_function_impl
_MARK = "_tilewright_given_up"
RESTORE = (
    "call restore_weights() on what tw.compile returned, or load the module's weights again with "
    "load_state_dict(…, assign=True)"
)


@dataclass(frozen=True)
class GivenUp:
    """What remains of a weight's elements: pieces made of it, which live as long as it does."""

    name: str
    weight: Weight
    pieces: tuple[Piece, ...]


def given_up(x: Any) -> GivenUp | None:
    """The record of a tensor whose memory was given back; None where it has its elements."""
    return x.__dict__.get(_MARK) if isinstance(x, _Watched) else None


def require_elements(tree: Any) -> None:
    """An error where the memory of one of these tensors was given back."""
    for x in pytree.tree_leaves(tree):
        gone = given_up(x)
        if gone is not None:
            raise Invalid(
                f"{gone.name} has no elements to read or change: "
                "a program compiled with own_weights=True stores them packed",
                hint=RESTORE,
            )


def _forget(x: torch.Tensor) -> None:
    """It has elements again."""
    gone = given_up(x)
    if gone is not None:
        # No program uses its former content: its version has grown.
        gone.weight.rebuild = gone.weight.repack = None
        setattr(x, _MARK, None)


# What can be read of a tensor without its elements.
_METADATA = {
    getattr(torch.Tensor, name)
    for name in ("size", "stride", "dim", "numel", "nelement", "element_size", "storage_offset")
} | {
    getattr(torch.Tensor, name)
    for name in ("is_contiguous", "is_floating_point", "is_complex", "ndimension", "get_device")
}
_PROPERTIES = (
    "shape dtype device layout ndim requires_grad grad grad_fn is_leaf nbytes itemsize is_sparse "
    "is_quantized is_meta is_cpu is_cuda is_nested _version"
).split()
_METADATA |= {getattr(torch.Tensor, name).__get__ for name in _PROPERTIES}
_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]


def _only_with_elements(
    cls: type, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
) -> Any:
    """`__torch_function__` of watched tensors."""
    kwargs = kwargs or {}
    if func is torch.Tensor.__repr__:
        return _repr(args[0])
    if func == _SET_DATA and isinstance(args[0], _Watched):
        _forget(args[0])
    elif func not in _METADATA:
        require_elements((args, kwargs))
    return _PLAIN(func, types, args, kwargs)


def _repr(x: torch.Tensor) -> str:
    gone = given_up(x)
    with DisableTorchFunctionSubclass():
        if gone is None:
            return torch.Tensor.__repr__(x)
        return f"{gone.name}({tuple(x.shape)}, {x.dtype}, packed inside a compiled program)"


class _Watched(torch.Tensor):
    """Raises where a given-up tensor would be used."""

    __torch_function__ = classmethod(_only_with_elements)  # type: ignore[assignment]


class WatchedParameter(_Watched, torch.nn.Parameter):
    """A parameter that may be given up."""


class WatchedBuffer(_Watched):
    """The same for a buffer."""


class _Tracing:
    """While Dynamo traces, watched tensors look like plain ones: it only looks at shapes."""

    def __init__(self) -> None:
        self._lock, self._depth = Lock(), 0

    def begin(self) -> None:
        with self._lock:
            self._depth += 1
            _Watched.__torch_function__ = _PLAIN  # type: ignore[assignment]

    def end(self) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0:
                _Watched.__torch_function__ = classmethod(_only_with_elements)  # type: ignore[assignment]


_tracing = _Tracing()


@contextmanager
def traceable() -> Iterator[None]:
    """For calls that compile. What runs inside calls `require_elements` itself."""
    _tracing.begin()
    try:
        yield
    finally:
        _tracing.end()


def watch(tensors: Iterable[torch.Tensor]) -> None:
    """From now on these may be given up. They stay the objects that they are."""
    for x in tensors:
        if type(x) is torch.nn.Parameter:
            x.__class__ = WatchedParameter
        elif type(x) is torch.Tensor:
            x.__class__ = WatchedBuffer


def give_up(x: torch.Tensor, name: str, weight: Weight, pieces: Iterable[Piece]) -> None:
    """Give its memory back. What was made of it, such as views, is not changed."""
    weight.holds = x  # and no longer its memory
    with DisableTorchFunctionSubclass(), torch.no_grad():
        stand_in = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
        stand_in.untyped_storage().resize_(0)
        memory = x.untyped_storage()
        x.data = stand_in
        _return_pages(memory)
        # Elements that it is given later never have the key that it has now.
        torch._C._increment_version([x])  # type: ignore[arg-type]
    gone = GivenUp(name, weight, tuple(pieces))
    weight.rebuild = lambda: rebuilt(gone)
    weight.repack = lambda piece: repacked(gone, piece)
    setattr(x, _MARK, gone)


_DONT_NEED = 4  # Linux's advice that pages are not needed


def _return_pages(memory: torch.UntypedStorage) -> None:
    """Allocators reuse what is freed only later; pages that are not shared are returned at once."""
    alone = torch._C._storage_Use_Count(memory._cdata) == 1  # type: ignore[attr-defined]
    # Memory that torch did not allocate, such as numpy's, is not resizable: others may see it.
    if not alone or not memory.resizable() or sys.platform != "linux":
        return
    start = -(-memory.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (memory.data_ptr() + memory.nbytes()) // mmap.PAGESIZE * mmap.PAGESIZE
    if start < end:
        advise = ctypes.CDLL(None).madvise
        advise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _DONT_NEED)


def is_dense(x: torch.Tensor) -> bool:
    """Is its memory just its elements, in some order of axes?"""
    expected = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def take_back(x: torch.Tensor) -> None:
    """Memory with its elements again."""
    gone = given_up(x)
    if gone is None:
        return
    elements = rebuilt(gone)
    with DisableTorchFunctionSubclass(), torch.no_grad():
        fresh = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
        ctypes.memmove(fresh.data_ptr(), elements.ctypes.data, elements.nbytes)
        x.data = fresh
    _forget(x)


def rebuilt(gone: GivenUp) -> np.ndarray:
    """The elements of a weight, in the order of memory, from what was derived from it."""
    for piece in gone.pieces:
        graph = inverse(piece.recipe.value)
        if graph is None:
            continue
        t = graph.outputs[0].ttype
        assert isinstance(t.size, int)
        out = np.empty(t.size * t.dtype.bytes, np.uint8)
        _run(graph, piece.address, out.ctypes.data)
        return out
    raise Unsupported(
        f"the elements of {gone.name} cannot be rebuilt: only values computed from them are stored "
        "since own_weights=True gave them up",
        hint="load the module's weights again with load_state_dict(…, assign=True)",
    )


def repacked(gone: GivenUp, piece: Piece) -> bool:
    """Fill the piece from one that has the same elements in another order."""
    keys = [w.key for w in piece.weights]
    for other in gone.pieces:
        graph = conversion(other.recipe.value, piece.recipe.value)
        if graph is not None and [w.key for w in other.weights] == keys:
            _run(graph, other.address, piece.address)
            return True
    return False


def _run(graph: Graph, source: int, result: int) -> None:
    compile_graph(graph, Options(passes="Simplify, Decompose, EmptyValues")).run([source], [result])


def holds_all(piece: Piece, weight: Weight) -> bool:
    """Does every element of the weight live on in the piece, moved or scaled? Not where some are
    selected or summed up."""
    position = piece.weights.index(weight)
    source = f"w{position}"
    depends: set[Node] = set()
    for n in topological((piece.recipe.value,)):
        if isinstance(n.op, Input):
            if n.op.label == source:
                depends.add(n)
            continue
        if depends.isdisjoint(n.inputs):
            continue
        if not (n.op.elementwise or isinstance(n.op, (Relayout, Permute, Reshape))):
            return False
        depends.add(n)
    return True


def can_be_rebuilt(gone: GivenUp) -> bool:
    return any(inverse(p.recipe.value) is not None for p in gone.pieces)
