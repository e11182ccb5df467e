"""Do the arguments of a launch overlap in memory?

A kernel is compiled as if each tensor had memory of its own. Where one that is stored to shares
memory with one that is read, another variant of the kernel runs, made for just that: arguments that
begin at the same element are one (x += y in place), others may overlap anywhere (views of one
buffer).

A kernel may reach all of a tensor's storage through strides, so storages are what is compared. What
has no known size overlaps everything.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.driver.tile.arguments import declared_element
from tilewright.lang.tile.front.functions import Argument, Parameter, TileFunction
from tilewright.lang.tile.ir import Pointer
from tilewright.lang.tile.language.descriptors import TensorDescriptor
from tilewright.lang.tile.lowering.state import Aliasing

# How two arguments lie to each other.
DISJOINT, NEAR, SAME = 0, 1, 2
Key = tuple[int, ...]  # of every pair that matters
# (the arguments of a launch, their values): None where no pair overlaps.
Relation = Callable[[Sequence[Any], Sequence[Any]], Key | None]

_ALL = (0, 1 << 64)


def span(x: Any, address: int) -> tuple[int, int]:
    """The addresses [from, to) that a kernel may reach through an argument."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        begin = address - x.storage_offset() * x.itemsize
        return begin, begin + len(x.untyped_storage())
    if isinstance(x, np.ndarray):
        root = x
        while isinstance(root.base, np.ndarray):
            root = root.base
        return _bounds(root)
    base = getattr(x, "base", None)
    if base is not None:  # seen as another dtype
        return span(base, address)
    if torch is not None and hasattr(x, "untyped_storage"):  # as libraries wrap tensors
        storage = x.untyped_storage()
        if isinstance(storage, torch.UntypedStorage):
            begin, end = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
            return (begin, end) if begin <= address < end else _ALL
    if hasattr(x, "__dlpack__"):
        view = np.from_dlpack(x) if torch is None else torch.from_dlpack(x)
        return span(view, address)
    return _ALL


def _bounds(x: np.ndarray) -> tuple[int, int]:
    low = high = x.__array_interface__["data"][0]
    if not x.size:
        return low, low
    for n, step in zip(x.shape, x.strides, strict=True):
        if step < 0:
            low += (n - 1) * step
        else:
            high += (n - 1) * step
    return low, high + x.itemsize


def relation(
    function: TileFunction, given: Sequence[Any], arguments: Mapping[str, Argument], kernel: Touches
) -> Relation | None:
    """A function, written for such arguments, that says how those of the pairs lie in memory.
    It refuses to store into an array that is read-only."""
    places = list(_places(function.parameters, given, arguments))
    torch = sys.modules.get("torch")
    scope: dict[str, Any] = {"span": span, "refuse": _refuse_read_only, "function": function}
    tensor: Any = _NoTensor if torch is None else torch.Tensor
    scope["Tensor"] = tensor
    lines: list[str] = []
    for k in kernel.stored:
        at = places[k]
        # A kernel that was made for a tensor of torch itself, with memory, gets nothing else.
        if not (at.own and at.x.__class__ is tensor and at.x.data_ptr()):
            lines.append(f"refuse(function, {at.parameter.name!r}, {at.shown})")
    for k in sorted({k for pair in kernel.pairs for k in pair}):
        at = places[k]
        declared = declared_element(at.parameter) is not None
        size = "x.itemsize" if declared else at.element.bytes
        lines.append(f"v{k} = {at.value}; x = {at.shown}")
        lines.append("if x.__class__ is Tensor:")  # read in place: without a call
        lines.append(f"    b{k} = v{k} - x.storage_offset() * {size}")
        lines.append(f"    e{k} = b{k} + len(x.untyped_storage())")
        lines.append(f"else: b{k}, e{k} = span(x, v{k})")
    if not lines:
        return None
    apart = " and ".join(f"(e{a} <= b{b} or e{b} <= b{a})" for a, b in kernel.pairs)
    lines.append(f"if {apart or True}: return None")
    found: list[str] = []
    for a, b in kernel.pairs:
        one = places[a].element is places[b].element
        meets = f"{SAME} if v{a} == v{b} else {NEAR}" if one else str(NEAR)
        found.append(f"{DISJOINT} if e{a} <= b{b} or e{b} <= b{a} else {meets},")
    lines.append(f"return ({' '.join(found)})")
    body = "\n    ".join(lines)
    exec(f"def relation(given, values):\n    {body}\n", scope)
    return scope["relation"]


def _refuse_read_only(function: TileFunction, parameter: str, x: Any) -> None:
    if isinstance(x, np.ndarray) and not x.flags.writeable:
        raise Invalid(
            f"argument {parameter} of {function.name}: a read-only array, and the kernel stores "
            "to it",
            where=f"{function.file}:{function.line}",
            hint="give a copy: x.copy()",
        )


class _NoTensor:
    """Stands for torch's class where torch is not there."""


class Touches(Protocol):
    """What is known of a kernel's stores: see `Launchable`."""

    @property
    def pairs(self) -> Sequence[tuple[int, int]]: ...

    @property
    def stored(self) -> Sequence[int]: ...


@dataclass(frozen=True)
class _Place:
    """An argument of a kernel: how to say it and its value, the parameter, and what it is now."""

    shown: str
    value: str
    parameter: Parameter
    own: bool  # is it all of the parameter?
    x: Any
    element: Any = None  # that a pointer is to


def _places(
    parameters: Sequence[Parameter], given: Sequence[Any], arguments: Mapping[str, Argument]
) -> Iterator[_Place]:
    """Each argument of the kernel, in order."""

    def visit(a: Argument, at: _Place) -> Iterator[_Place]:
        if a.parts is None:
            if a.element is not None:
                to = a.element.to if isinstance(a.element, Pointer) else None
                yield replace(at, element=to)
            return
        for k, part in enumerate(a.parts):
            value = f"{at.value}[{k}]"
            if isinstance(at.x, TensorDescriptor):  # a base, then numbers
                shown, x = (f"{at.shown}.base", at.x.base) if k == 0 else ("None", None)
            else:
                shown, x = f"{at.shown}[{k}]", at.x[k]
            yield from visit(part, _Place(shown, value, at.parameter, False, x))

    runtime = 0
    for k, p in enumerate(parameters):
        if not p.is_constexpr:
            at = _Place(f"given[{k}]", f"values[{runtime}]", p, True, given[k])
            yield from visit(arguments[p.name], at)
            runtime += 1


def aliasing(pairs: Sequence[tuple[int, int]], key: Key) -> Aliasing:
    """The description for lowering of arguments that lie so."""
    first: dict[int, int] = {}

    def one(k: int) -> int:
        while k in first:
            k = first[k]
        return k

    for (a, b), how in zip(pairs, key, strict=True):
        low, high = sorted((one(a), one(b)))
        if how == SAME and low != high:
            first[high] = low
    same = tuple((one(k), k) for k in sorted(first))
    near = {
        (min(one(a), one(b)), max(one(a), one(b)))
        for (a, b), how in zip(pairs, key, strict=True)
        if how == NEAR and one(a) != one(b)
    }
    return Aliasing(same, tuple(sorted(near)))
