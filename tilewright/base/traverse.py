"""Traversing expression graphs without recursion: a program may be nested deeper than Python's
stack allows."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def operands_first(
    root: T, operands: Callable[[T], Iterable[T]], known: Container[T]
) -> Iterator[T]:
    """The root and everything below it that is not known yet, in post-order: operands before their
    users. The caller must make each one known before it takes the next, so that a shared operand
    is visited once."""
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
