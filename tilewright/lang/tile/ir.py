"""Tile IR: values that are whole tiles, effects in the order of the program,
control flow as operations with blocks.

A kernel is a block. An operation has arguments, results, attributes and perhaps blocks; a value is
the result of one operation or the parameter of one block, and is used only below its definition.
Tiles have constant shapes; a scalar is a tile of shape (). Types are fixed when an operation is
made: arguments of one `map` have the same shape, nothing is converted in silence. The front end
(semantic.py) applies the language's rules of promotion and broadcasting and writes them out.

All of it is immutable: builder.py makes kernels, passes give new ones. rules.py has the rules of
each operation, text.py prints and parses.

| operation | arguments → results | attributes, blocks, meaning |
|---|---|---|
| const | → x | value; the same number everywhere |
| program_id, num_programs | → i32 | axis |
| iota | → i32[n] | start; start, start+1, … |
| map | x, y, … → z | fn, a name of ir/scalar.py; element by element, one shape |
| cast | x → y | rounding: "rtne", or "rtz" for narrower floats; floats to integers are cut, \
integers wrap, bools are != 0 |
| bitcast | x → y | the same bits as another element of the same width (pointers count as 64 bits) |
| offset | p, n → q | pointers moved by n elements |
| broadcast | x → y | axes of one stretched; same rank |
| reshape | x → y | the same elements in row-major order |
| permute | x → y | order; y's axis k is x's axis order[k] |
| join | x, y → z | a new last axis of two |
| split | x → y, z | both halves of a last axis of two |
| cat | x, y → z | one after the other along the first axis |
| gather | x, i → y | axis; y[…,k,…] = x[…,i[…,k,…],…] |
| reduce | x, … → y, … | axis; block: combines two partial results (parameters: all of the first, \
all of the second; yields: all of the combined) |
| scan | x, … → y, … | axis, reverse; block as for reduce |
| dot | a, b, c → d | precision: "ieee", "tf32", "tf32x3", "bf16x3", "bf16x6"; a·b + c over the \
last two axes (leading ones are batches), products and sums in c's element |
| histogram | x[, mask] → i32[n] | of integers; those outside 0…n-1 are not counted |
| load | p[, mask[, other]] → x | where the mask does not hold nothing is read and other (or \
anything) is the result; cache, eviction, volatile: hints |
| store | p, x[, mask] | where two elements have one address, either may stay; hints as for load |
| atomic | p, x[, mask] → old | kind: add, and, or, xor, max, min, xchg; order, scope; each \
element on its own; signs and floats by the element |
| cas | p, expected, x → old | order, scope |
| print | x, … | prefix, hex; one line per element |
| assert | c | message; an error with the place where c does not hold |
| for | low, high, step, x, … → y, … | block: parameters i, x, …; yields the next x, …; runs while \
i < high (i > high where step is negative) |
| if | c → y, … | blocks: then, else, which yield y, … |
| while | x, … → y, … | blocks: the condition (parameters x, …; yields one bool) and the body \
(parameters x, …; yields the next) |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan, nan, prod
from types import MappingProxyType
from typing import Any, Union

from tilewright.base.errors import Invalid
from tilewright.ir.types import DType


@dataclass(frozen=True)
class Pointer:
    """The address of elements. A pointer that is no argument itself is one moved or loaded."""

    to: DType

    def __repr__(self) -> str:
        return f"*{self.to}"


Element = Union[DType, Pointer]


@dataclass(frozen=True)
class TileType:
    element: Element
    shape: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def dtype(self) -> DType:
        """The element, which has to be a number."""
        if isinstance(self.element, Pointer):
            raise Invalid(f"{self} where a number is needed")
        return self.element

    def with_shape(self, shape: Sequence[int]) -> TileType:
        return TileType(self.element, tuple(shape))

    def with_element(self, element: Element) -> TileType:
        return TileType(element, self.shape)

    def __repr__(self) -> str:
        return (
            f"{self.element}[{','.join(map(str, self.shape))}]" if self.shape else f"{self.element}"
        )


@dataclass(frozen=True)
class Place:
    """A place in the user's source; `inside` is where the function it is in was called."""

    file: str
    line: int
    column: int
    function: str
    inside: Place | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Value:
    type: TileType
    number: int  # no other value of its kernel has it
    name: str = ""  # of the user's variable, for reading

    def __hash__(self) -> int:
        return self.number

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def element(self) -> Element:
        return self.type.element


@dataclass(frozen=True)
class Block:
    parameters: tuple[Value, ...] = ()
    operations: tuple[Operation, ...] = ()
    yields: tuple[Value, ...] = ()


Attribute = Union[bool, int, float, str, tuple[int, ...]]


_NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Operation:
    """Attributes that are None or "" are not there."""

    name: str
    args: tuple[Value, ...] = ()
    results: tuple[Value, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=lambda: _NONE)
    blocks: tuple[Block, ...] = ()
    place: Place | None = None

    def __post_init__(self) -> None:
        if type(self.attrs) is not MappingProxyType:  # not those of another operation
            known = {k: _attribute(self.name, k, v) for k, v in self.attrs.items() if _says(v)}
            object.__setattr__(self, "attrs", MappingProxyType(known) if known else _NONE)

    def __hash__(self) -> int:
        return hash((self.name, self.args, self.results))

    @property
    def result(self) -> Value:
        (only,) = self.results
        return only


def _says(value: Any) -> bool:
    return value is not None and not (isinstance(value, str) and not value)


def _attribute(operation: str, name: str, value: Any) -> Attribute:
    """A value in the form that text can express. There is one NaN, so that equal kernels are
    equal."""
    if isinstance(value, float):
        return nan if isnan(value) else float(value)
    if isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (list, tuple)) and all(isinstance(x, int) for x in value):
        return tuple(value)
    raise Invalid(
        f"{operation}: {name} is {value!r}",
        hint="attributes are numbers, strings and tuples of integers",
    )


@dataclass(frozen=True)
class Kernel:
    """A kernel whose constants are fixed. `arguments` are what a launch passes, in order."""

    name: str
    arguments: tuple[Value, ...]
    body: Block
    # What the kernel was made for: a divisor of each argument (of an address: in bytes).
    divisors: tuple[int, ...] = ()
    positive: tuple[bool, ...] = ()  # arguments that are known to be greater than 0

    def __post_init__(self) -> None:
        count = len(self.arguments)
        object.__setattr__(self, "divisors", self.divisors or (1,) * count)
        object.__setattr__(self, "positive", self.positive or (False,) * count)


ATOMICS = ("add", "and", "or", "xor", "max", "min", "xchg")


def walk(block: Block) -> Iterator[Operation]:
    """Every operation, those of blocks after the one that has them."""
    for o in block.operations:
        yield o
        for b in o.blocks:
            yield from walk(b)


def makers(k: Kernel) -> dict[Value, Operation]:
    """The operation that makes each value. Those that are not here are parameters."""
    return {r: o for o in walk(k.body) for r in o.results}


def substituted(o: Operation, new: Mapping[Value, Value]) -> Operation:
    """An operation, with what is inside it, that uses other values."""
    blocks = tuple(
        Block(
            b.parameters,
            tuple(substituted(x, new) for x in b.operations),
            tuple(new.get(y, y) for y in b.yields),
        )
        for b in o.blocks
    )
    return replace(o, args=tuple(new.get(a, a) for a in o.args), blocks=blocks)


def renumbered(k: Kernel, names: Mapping[Value, str] | None = None) -> Kernel:
    """The same kernel with its values numbered in the order of their definition, and some named."""
    called = names or {}
    new: dict[Value, Value] = {}

    def defined(values: Sequence[Value]) -> tuple[Value, ...]:
        for v in values:
            new[v] = Value(v.type, len(new), called.get(v, v.name))
        return tuple(new[v] for v in values)

    def block(b: Block) -> Block:
        return Block(
            defined(b.parameters),
            tuple(map(operation, b.operations)),
            tuple(new[y] for y in b.yields),
        )

    def operation(o: Operation) -> Operation:
        args = tuple(new[a] for a in o.args)
        results = defined(o.results)
        return Operation(o.name, args, results, o.attrs, tuple(map(block, o.blocks)), o.place)

    arguments = defined(k.arguments)
    return replace(k, arguments=arguments, body=block(k.body))
