"""Atoms: the indivisible factors of index functions (ir/dim.py)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.base.interned import Interned

if TYPE_CHECKING:  # what atoms are made of is made of atoms
    from tilewright.ir.polynomial import Dim


class Atom:
    """An indivisible factor of a polynomial. `key` orders atoms and is unique among equal ones."""

    __slots__ = ("key", "_bounds", "__weakref__")
    key: str
    _bounds: tuple[int, int] | None

    def __repr__(self) -> str:
        return self.key

    def __lt__(self, other: Atom) -> bool:
        if self.key != other.key:
            return self.key < other.key
        return self.rank() < other.rank()

    def rank(self) -> tuple[str, ...]:
        """What orders atoms, also symbols of one name with different bounds."""
        return (self.key,)


class Sym(Atom):
    """A named integer with inclusive bounds: a dimension or a loop variable. It is known to be a
    multiple of `multiple`."""

    __slots__ = ("name", "lo", "hi", "multiple")

    def __init__(self, name: str, lo: Dim, hi: Dim | None, multiple: int) -> None:
        self.name, self.lo, self.hi, self.multiple = name, lo, hi, multiple

    def rank(self) -> tuple[str, ...]:
        return self.key, str(self.lo), str(self.hi), str(self.multiple)


class Quo(Atom):
    """`floordiv`, `mod`, `min` or `max` of two Ints, which could not be simplified."""

    __slots__ = ("op", "a", "b")

    def __init__(self, op: str, a: Dim, b: Dim) -> None:
        self.op, self.a, self.b = op, a, b


class Data(Atom):
    """An integer computed from memory (a gathered index); `value` is an ir.expr.Value."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


_LONG_KEY = 400  # characters of a key: a longer one is its digest


def short_key(op: str, text: str) -> str:
    """The key of a quotient, hashed where long: shared parts would make its text grow without
    bound."""
    if len(text) <= _LONG_KEY:
        return text
    return f"{op}(~{hashlib.blake2b(text.encode(), digest_size=12).hexdigest()})"


_atoms: Interned[Atom] = Interned()


def interned(key: Any, build: Callable[[], Atom], text: str) -> Atom:
    """The unique atom with this key."""
    found = _atoms.get(key)
    if found is None:
        found = build()
        found.key = text
        found._bounds = None
        found = _atoms.add(key, found)
    return found


Monomial = tuple[Atom, ...]
Terms = tuple[tuple[Monomial, int], ...]


def terms_text(terms: Terms, atom_text: Callable[[Atom], str] = lambda a: a.key) -> str:
    """A sum of products of atoms."""
    parts: list[str] = []
    for mono, c in sorted(terms, key=lambda t: (not t[0], t[0])):  # the constant comes last
        text = "*".join(map(atom_text, mono))
        if not mono:
            text = str(c)
        elif c == -1:
            text = "-" + text
        elif c != 1:
            text = f"{c}*{text}"
        parts.append(text if not parts or text.startswith("-") else "+" + text)
    return "".join(parts)


def has_mod(terms: Iterable[Monomial]) -> bool:
    """Is there a remainder among the factors?"""
    for mono in terms:
        for a in mono:
            if type(a) is Quo and a.op == "mod":
                return True
    return False


def of_two(op: str, x: Any, y: Any) -> Any:
    """What a quotient is for given numbers, or arrays of them."""
    if op == "floordiv":
        return x // y
    if op == "mod":
        return x % y
    if isinstance(x, int) and isinstance(y, int):
        return min(x, y) if op == "min" else max(x, y)
    return np.minimum(x, y) if op == "min" else np.maximum(x, y)
