"""Do the arguments of a launch meet in memory?

A kernel is compiled as if each tensor had memory of its own. Where one that is stored to shares
memory with one that is read, another variant of the kernel runs, made for just that: arguments that
begin at the same element are one (x += y in place), others may meet anywhere (views of one buffer).

A kernel may reach all of a tensor's storage through strides, so storages are what is compared. What
has no size that is known meets everything.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.lang.tile.front.functions import Argument, Parameter
from tilewright.lang.tile.ir import Pointer
from tilewright.lang.tile.language.descriptors import TensorDescriptor
from tilewright.lang.tile.lowering.state import Meeting

# How two arguments lie to each other.
DISJOINT, NEAR, SAME = 0, 1, 2
Key = tuple[int, ...]  # of every pair that matters
# (the arguments of a launch, their values): None where no pair meets.
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
    parameters: Sequence[Parameter],
    given: Sequence[Any],
    arguments: Mapping[str, Argument],
    pairs: Sequence[tuple[int, int]],
) -> Relation | None:
    """A function, written for such arguments, that says how those of the pairs lie in memory."""
    if not pairs:
        return None
    places = list(_places(parameters, given, arguments))
    torch = sys.modules.get("torch")
    scope: dict[str, Any] = {"span": span}
    lines: list[str] = []
    for k in sorted({k for pair in pairs for k in pair}):
        shown, address, x, _ = places[k]
        lines.append(f"v{k} = {address}")
        if torch is not None and x.__class__ is torch.Tensor:
            lines.append(f"x = {shown}")
            lines.append(f"b{k} = v{k} - x.storage_offset() * {x.itemsize}")
            lines.append(f"e{k} = b{k} + len(x.untyped_storage())")
        else:
            lines.append(f"b{k}, e{k} = span({shown}, v{k})")
    apart = " and ".join(f"(e{a} <= b{b} or e{b} <= b{a})" for a, b in pairs)
    lines.append(f"if {apart}: return None")
    found: list[str] = []
    for a, b in pairs:
        meets = f"{SAME} if v{a} == v{b} else {NEAR}"
        if places[a][3] is not places[b][3]:
            meets = str(NEAR)
        found.append(f"{DISJOINT} if e{a} <= b{b} or e{b} <= b{a} else {meets},")
    lines.append(f"return ({' '.join(found)})")
    body = "\n    ".join(lines)
    exec(f"def relation(given, values):\n    {body}\n", scope)
    return scope["relation"]


def _places(
    parameters: Sequence[Parameter], given: Sequence[Any], arguments: Mapping[str, Argument]
) -> Iterator[tuple[str, str, Any, Any]]:
    """Each argument of the kernel, in order: how to say it, and its value; the object and, of a
    pointer, the element."""

    def visit(a: Argument, shown: str, value: str, x: Any) -> Iterator[tuple[str, str, Any, Any]]:
        if a.parts is None:
            if a.element is not None:
                to = a.element.to if isinstance(a.element, Pointer) else None
                yield shown, value, x, to
            return
        for k, part in enumerate(a.parts):
            if isinstance(x, TensorDescriptor):  # a base, then numbers
                inside = (f"{shown}.base", x.base) if k == 0 else ("None", None)
            else:
                inside = f"{shown}[{k}]", x[k]
            yield from visit(part, inside[0], f"{value}[{k}]", inside[1])

    runtime = 0
    for k, p in enumerate(parameters):
        if not p.is_constexpr:
            yield from visit(arguments[p.name], f"given[{k}]", f"values[{runtime}]", given[k])
            runtime += 1


def meeting(pairs: Sequence[tuple[int, int]], key: Key) -> Meeting:
    """What a lowering is to be told of arguments that lie so."""
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
    return Meeting(same, tuple(sorted(near)))
