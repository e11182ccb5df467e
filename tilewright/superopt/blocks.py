"""Sizes of axes as blocks, so that only axes of one meaning are equal.

A block is a number, a name that stands for any size, two blocks one after the other, as `concat`
makes them, a block for each element of another, as `reshape` makes of two axes, or what another
operator makes of blocks. An axis of blocks ("m", "k") can be cut where
they meet, and is another axis than one of ("k", "m"), although both have m + k elements.
"""

from __future__ import annotations

import ast
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Union

from tilewright.base.errors import Invalid, require
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.positions import static
from tilewright.ir.types import DType, TensorType

Block = Union[int, str, tuple[Any, Any], "Times", "Made"]
Kind = tuple[Block, ...]  # of a tensor: a block for each axis
# What strides divide, of which marks leave 1.
STRIDES = 840
# As wide as any window.
WIDE = 64


class Typed(Protocol):
    """An operator with its attributes (`vocabulary.Instance`)."""

    def type(self, sizes: Sizes, kinds: Sequence[Kind]) -> TensorType: ...


@dataclass(frozen=True)
class Times:
    """Two axes as one: as often as the first says, the second. Of three, the first is apart."""

    first: Block
    second: Block

    @staticmethod
    def of(first: Block, second: Block) -> Times:
        if isinstance(first, Times):
            return Times(first.first, Times.of(first.second, second))
        return Times(first, second)

    def __str__(self) -> str:
        return f"{self.first} * {self.second}"


@dataclass(frozen=True)
class Made:
    """A size that an operator makes of its operands', as a strided convolution does: that of an
    axis of its result."""

    by: Typed
    kinds: tuple[Kind, ...]
    axis: int


class Sizes:
    """What named blocks are: numbers to compute with, or symbols to prove with."""

    def __init__(self, named: Mapping[str, Dim]) -> None:
        self.named = named
        self._made: dict[Made, Dim] = {}

    def of(self, block: Block) -> Dim:
        if isinstance(block, int):
            return block
        if isinstance(block, Made):
            if block not in self._made:
                self._made[block] = block.by.type(self, block.kinds).shape[block.axis]
            return self._made[block]
        if isinstance(block, str):
            require(block in self.named, f"nothing says how large {block} is")
            return self.named[block]
        if isinstance(block, Times):
            return self.of(block.first) * self.of(block.second)
        return self.of(block[0]) + self.of(block[1])

    def type(self, kind: Kind, dtype: DType) -> TensorType:
        return TensorType(dtype, tuple(map(self.of, kind)))

    def shape(self, kind: Kind) -> tuple[int, ...]:
        """Of a kind whose blocks are all numbers."""
        return static([self.of(b) for b in kind])

    @staticmethod
    def symbolic(names: Sequence[str]) -> Sizes:
        return Sizes({name: D.sym(name, 1) for name in names})


class Marks(Sizes):
    """A large random number for every block, from which a type rule's results are read back."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__({})
        self.rng = random.Random(seed)
        self.marks: dict[Block, int] = {}
        self.blocks: dict[int, Block] = {}

    def of(self, block: Block) -> Dim:
        if isinstance(block, int):
            return block
        if isinstance(block, Times):
            product = super().of(block)
            assert isinstance(product, int)
            self.blocks[product] = block  # from now on, in this order
            return product
        found = self.marks.get(block)
        halves: tuple[Any, ...] = block if isinstance(block, tuple) else ()
        if found is None and halves and halves[0] == halves[1]:
            half = self.of(halves[0])  # so that groups of channels of one size are a whole
            assert isinstance(half, int)
            found = self.marks[block] = 2 * half
            self.blocks[found] = block
        if found is None and isinstance(block, Made):
            made = super().of(block)
            assert isinstance(made, int)
            found = self.marks[block] = made
            self.blocks.setdefault(made, block)
        if found is None:
            # Larger than those of its parts, so that a part ends before the whole does. No stride
            # divides it: half of a size, taken twice, is not the size where that is odd.
            bits = 32 + 4 * _depth(block)
            found = 1 + STRIDES * self.rng.randrange(1 << bits, 2 << bits)
            self.marks[block], self.blocks[found] = found, block
        return found

    def kind(self, by: Typed, kinds: Sequence[Kind]) -> Kind:
        """The blocks of an operator's result. A size that is none of those known is a new one; one
        that is the sum of those of two operands' axes is both, one after the other."""
        out: list[Block] = []
        t = by.type(self, kinds)
        pairs = zip(*kinds, strict=False) if len(kinds) == 2 else ()
        sums: dict[Dim, Block] = {self.of(a) + self.of(b): (a, b) for a, b in pairs}
        for axis, d in enumerate(t.shape):
            if not isinstance(d, int):
                raise Invalid(f"{t!r} is not a type of marked blocks")
            if d >= 1 << 16 and d not in sums and d not in self.blocks:
                self.blocks[d] = Made(by, self._needed(by, tuple(kinds), axis, d), axis)
            out.append(sums.get(d) or self.blocks.get(d, d))
        return tuple(out)

    def _needed(self, by: Typed, kinds: tuple[Kind, ...], axis: int, d: int) -> tuple[Kind, ...]:
        """The kinds with a number for names that the size does not depend on: it is that of other
        operands too, which may have others. Some operators want more than one element."""
        for name in sorted({n for k in kinds for b in k for n in names(b)}):
            for number in (1, WIDE):
                tried = tuple(tuple(renamed(b, {name: number}) for b in k) for k in kinds)
                try:
                    if by.type(self, tried).shape[axis] == d:
                        kinds = tried
                        break
                except (Invalid, ValueError):
                    continue
        return kinds


def _depth(block: Block) -> int:
    if isinstance(block, Made):
        return max(_depth(b) for k in block.kinds for b in k)
    if isinstance(block, Times):
        return 1 + max(_depth(block.first), _depth(block.second))
    return 1 + max(map(_depth, block)) if isinstance(block, tuple) else 0


def names(block: Block) -> set[str]:
    """The names in a block."""
    if isinstance(block, tuple):
        return names(block[0]) | names(block[1])
    if isinstance(block, Times):
        return names(block.first) | names(block.second)
    if isinstance(block, Made):
        return {n for k in block.kinds for b in k for n in names(b)}
    return {block} if isinstance(block, str) else set()


def renamed(block: Block, table: Mapping[str, Block]) -> Block:
    """The block with others in the places of names."""
    if isinstance(block, tuple):
        return renamed(block[0], table), renamed(block[1], table)
    if isinstance(block, Times):
        return Times.of(renamed(block.first, table), renamed(block.second, table))
    if isinstance(block, Made):
        kinds = tuple(tuple(renamed(b, table) for b in k) for k in block.kinds)
        return Made(block.by, kinds, block.axis)
    return table.get(block, block) if isinstance(block, str) else block


class Sized(ABC):
    """An attribute of an operator that is made anew for each meaning of sizes."""

    @abstractmethod
    def of(self, sizes: Sizes, kinds: Sequence[Kind]) -> Any:
        """The attribute, for operands of these kinds."""


@dataclass(frozen=True)
class Formula(Sized):
    """Sizes by sums, products and quotients of names, or several of them: (2 * m, n)."""

    text: str

    def __post_init__(self) -> None:
        """As Python writes it, so that equal formulas are one."""
        object.__setattr__(self, "text", ast.unparse(ast.parse(self.text, mode="eval")))

    def of(self, sizes: Sizes, kinds: Sequence[Kind]) -> Any:
        return self._of(ast.parse(self.text, mode="eval").body, sizes)

    def _of(self, x: ast.expr, sizes: Sizes) -> Any:
        match x:
            case ast.Constant(value=int(number)):
                return number
            case ast.Name(id=name):
                return sizes.of(name)
            case ast.UnaryOp(op=ast.USub(), operand=y):
                return -self._of(y, sizes)
            case ast.Tuple(elts=parts):
                return tuple(self._of(p, sizes) for p in parts)
            case ast.BinOp(left=a, op=op, right=b) if type(op) in _ARITHMETIC:
                return _ARITHMETIC[type(op)](self._of(a, sizes), self._of(b, sizes))
        raise Invalid(
            f"{ast.unparse(x)} is no size", hint="numbers, names, + - * // and tuples are"
        )

    @property
    def names(self) -> set[str]:
        return {x.id for x in ast.walk(ast.parse(self.text)) if isinstance(x, ast.Name)}

    def __str__(self) -> str:
        return self.text


_ARITHMETIC: dict[type, Callable[[Dim, Dim], Dim]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: D.floordiv,
}
