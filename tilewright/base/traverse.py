"""Walking through what a program is made of without recursion: programs are as deep as they like,
Python's stack is not."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def operands_first(
    root: T, operands: Callable[[T], Iterable[T]], known: Container[T]
) -> Iterator[T]:
    """The root and all below it that is not known, each after its operands, in the order in which
    a recursive function would finish with them. The caller makes each of them known before it asks
    for the next one, so that nothing comes twice, however often it is used."""
    stack = [root]
    while stack:
        x = stack[-1]
        if x in known:
            stack.pop()
            continue
        missing = [y for y in operands(x) if y not in known]
        if missing:
            missing.reverse()
            stack += missing
        else:
            stack.pop()
            yield x
