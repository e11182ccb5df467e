"""Operators that programs are enumerated of, and with which attributes.

An operator without attributes joins a vocabulary by its name. Attributes are tried by what they are
called: an axis is each axis, a permutation swaps the last two axes, windows keep the size. What
depends on sizes, such as where a slice begins, is made anew for each meaning of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from itertools import product
from typing import Any

from tilewright.base.errors import Invalid, require
from tilewright.ir.node import Op
from tilewright.ir.operator import OPERATORS
from tilewright.ir.types import DType, TensorType, TupleType, f64
from tilewright.superopt.blocks import Kind, Marks, Sized, Sizes, Times

Attributes = tuple[tuple[str, Any], ...]
# Values of an attribute that are taken from samples.
SAMPLED = 3


@dataclass(frozen=True)
class Instance:
    """An operator with its attributes, some of which follow from its operands' kinds."""

    name: str
    attributes: Attributes = ()

    def op(self, sizes: Sizes, kinds: Sequence[Kind]) -> Op:
        made = {k: v.of(sizes, kinds) if isinstance(v, Sized) else v for k, v in self.attributes}
        return OPERATORS[self.name](**made)

    def of_dtype(self, dtype: DType) -> Instance:
        """With another dtype in the place of a constant's that is a float."""
        if ("dtype", f64) not in self.attributes or self.name not in constants():
            return self
        return Instance(
            self.name, tuple((k, dtype if k == "dtype" else v) for k, v in self.attributes)
        )

    def kind(self, marks: Marks, kinds: Sequence[Kind]) -> Kind:
        """That of the first result on operands of these kinds. It raises where they do not fit."""
        return marks.kind(self, kinds)

    def type(self, sizes: Sizes, kinds: Sequence[Kind]) -> TensorType:
        """That of the first result."""
        found = self.op(sizes, kinds).infer(*(sizes.type(k, f64) for k in kinds))
        first = found.items[0] if isinstance(found, TupleType) else found
        if not isinstance(first, TensorType) or first.dtype is not f64:
            raise Invalid(f"{self.name} makes {first!r} of float64")
        return first

    @property
    def commutative(self) -> bool:
        return OPERATORS[self.name].commutative

    @property
    def elementwise(self) -> bool:
        return OPERATORS[self.name].elementwise


@dataclass(frozen=True)
class Bound(Sized):
    """Where a part of an operand's axis of two blocks begins or ends."""

    axis: int
    end: str

    def of(self, sizes: Sizes, kinds: Sequence[Kind]) -> Any:
        block = kinds[0][self.axis] if kinds and self.axis < len(kinds[0]) else None
        if not isinstance(block, tuple):
            raise Invalid(f"axis {self.axis} has no parts that are known")
        whole, (left, right) = sizes.of(block), map(sizes.of, block)
        # The middle by what is on either side of it: marks do not add up.
        return {"first": 0, "left": left, "right": whole - right, "last": whole}[self.end]

    def __str__(self) -> str:
        return self.end if self.end in ("first", "last") else "middle"


@dataclass(frozen=True)
class Reshaped(Sized):
    """The shape of an operand with one change: an axis and the next one are one (`joined`), an axis
    that is two is `parted`, an axis of one element is there (`widened`) or not (`narrowed`)."""

    change: str
    axis: int

    def of(self, sizes: Sizes, kinds: Sequence[Kind]) -> Any:
        require(len(kinds) > 0, "an operand has no kind")
        return tuple(map(sizes.of, self.kind(kinds[0])))

    def kind(self, kind: Kind) -> Kind:
        """It raises where this cannot be done with an operand of this kind."""
        before, at, after = kind[: self.axis], kind[self.axis :][:1], kind[self.axis + 1 :]
        match self.change, *at, *after[:1]:
            case "joined", first, second:
                return (*before, Times.of(first, second), *after[1:])
            case "parted", Times(first, second), *_:
                return (*before, first, second, *after)
            case "widened", *_ if self.axis <= len(kind):
                return (*before, 1, *at, *after)
            case "narrowed", 1, *_:
                return (*before, *after)
        raise Invalid(f"axis {self.axis} cannot be {self.change}")

    def __str__(self) -> str:
        return f"{self.change}({self.axis})"


@dataclass(frozen=True)
class Vocabulary:
    """Operators by name, the leaves of programs, and the sizes that they are evaluated with."""

    name: str
    operators: Sequence[str]  # none: all that are registered
    leaves: tuple[tuple[str, Kind], ...]
    sizes: dict[str, int]
    positive: Sequence[str] = ()  # leaves that are never negative
    largest: int = 12  # elements of an axis
    elements: int = 144  # of a tensor
    arithmetic: str = "whole"  # in which programs are compared, of `residues.ARITHMETICS`
    points: int = 3  # random values for every leaf

    def __post_init__(self) -> None:
        unknown = [x for x in self.operators if x not in OPERATORS]
        if unknown:
            raise Invalid(
                f"vocabulary {self.name}: there is no operator {', '.join(unknown)}",
                hint="`tilewright ops` lists them",
            )

    @property
    def tried(self) -> Sequence[str]:
        return self.operators or sorted(OPERATORS)


@cache
def arity(name: str) -> frozenset[int]:
    """How many operands an operator takes, by its samples."""
    cls: Any = OPERATORS[name]
    return frozenset(len(x.args) for x in cls.samples())


def instances(name: str, kinds: tuple[Kind, ...]) -> Iterator[Instance]:
    """The operator with every choice of attributes for operands of these kinds."""
    special = _SPECIAL.get(name)
    if special is not None:
        yield from (Instance(name, attributes) for attributes in special(kinds))
        return
    own = fields(OPERATORS[name])
    chosen: list[list[tuple[str, Any]]] = []
    for f in own:
        values = _CHOICES.get(f.name)
        if values is not None:
            chosen.append([(f.name, v) for v in values(kinds)])
        elif f.name not in _WINDOWS and f.default is MISSING and f.default_factory is MISSING:
            chosen.append([(f.name, v) for v in _sampled(name, f.name)])
    windows = {f.name for f in own} & set(_WINDOWS)
    for settings in _windows(kinds) if windows else ({},):
        for attributes in product(*chosen):
            named = {**settings, **dict(attributes)}
            said = (f.name for f in own if f.name in named and named[f.name] != f.default)
            yield Instance(name, tuple((x, named[x]) for x in said))


def constants() -> frozenset[str]:
    """Operators without operands of which values are known that are worth trying."""
    return frozenset(x for x in _SPECIAL if 0 in arity(x))


@cache
def _sampled(name: str, attribute: str) -> tuple[Any, ...]:
    """What samples of the operator have, of an attribute of which nothing else is known."""
    cls: Any = OPERATORS[name]
    found = dict.fromkeys(getattr(x.op, attribute) for x in cls.samples())
    return tuple(found)[:SAMPLED]


def _slices(kinds: tuple[Kind, ...]) -> Iterator[Attributes]:
    """Both parts of each axis of two blocks."""
    for k, block in enumerate(kinds[0]):
        if isinstance(block, tuple):
            for ends in (("first", "left"), ("right", "last")):
                start, stop = (Bound(k, e) for e in ends)
                yield ("axis", k), ("start", start), ("stop", stop)


def _reshapes(kinds: tuple[Kind, ...]) -> Iterator[Attributes]:
    """Neighbours as one axis and back; an axis of one element more or less, but for those that
    broadcasting adds anyway."""
    (kind,) = kinds
    for k, block in enumerate(kind):
        if k + 1 < len(kind) and not isinstance(block, int) and not isinstance(kind[k + 1], int):
            yield (("shape", Reshaped("joined", k)),)
        if isinstance(block, Times):
            yield (("shape", Reshaped("parted", k)),)
        if block == 1:
            yield (("shape", Reshaped("narrowed", k)),)
        elif 1 not in kind:
            yield (("shape", Reshaped("widened", k + 1)),)


def _filled(kinds: tuple[Kind, ...]) -> Iterator[Attributes]:
    """Numbers without which some laws cannot be written."""
    for value in (0.0, 1.0):
        yield ("shape", ()), ("value", value), ("dtype", f64)


def _concats(kinds: tuple[Kind, ...]) -> Iterator[Attributes]:
    """Along axes whose sizes are named: windows of a convolution stay as they are."""
    for k in range(min(map(len, kinds))):
        if not any(isinstance(x[k], int) for x in kinds):
            yield (("axis", k),)


def _enlarged(kinds: tuple[Kind, ...]) -> Iterator[Attributes]:
    """Kernels with zeros around them, up to 3."""
    kernel = kinds[0][2:]
    if len(kinds[0]) == 4 and kernel != (3, 3) and all(k in (1, 3) for k in kernel):
        around = (0, 0, *((3 - k) // 2 for k in kernel if isinstance(k, int)))
        yield ("lo", around), ("hi", around)


def _axes(kinds: tuple[Kind, ...]) -> Iterator[int]:
    yield from range(len(kinds[0]))


def _permutations(kinds: tuple[Kind, ...]) -> Iterator[tuple[int, ...]]:
    rank = len(kinds[0])
    if rank >= 2:
        yield (*range(rank - 2), rank - 1, rank - 2)


_WINDOWS = ("kernel", "stride", "padding", "dilation")


def _windows(kinds: tuple[Kind, ...]) -> Iterator[dict[str, Any]]:
    """Windows over the last axes: those of a convolution are its kernel's, others have 3 elements.
    The size is kept, or halved by a stride, or only windows inside count."""
    space = len(kinds[0]) - 2
    if space < 1 or (len(kinds) == 1 and any(isinstance(b, int) for b in kinds[0][2:])):
        return
    kernel = kinds[1][2:] if len(kinds) > 1 else (3,) * space
    odd = tuple(k for k in kernel if isinstance(k, int) and k % 2)
    if len(odd) != len(kernel) or len(odd) != space:
        return
    around, one = tuple(k // 2 for k in odd), (1,) * space
    inside = (0,) * space
    for stride, padding in dict.fromkeys(((one, around), ((2,) * space, around), (one, inside))):
        yield {"kernel": odd, "stride": stride, "padding": padding, "dilation": one}


def _groups(kinds: tuple[Kind, ...]) -> Iterator[int]:
    """Of channels: all are one, and two of one size are two."""
    yield 1
    channels = kinds[0][1] if len(kinds[0]) > 1 else None
    if isinstance(channels, tuple) and channels[0] == channels[1]:
        yield 2


_CHOICES: dict[str, Callable[[tuple[Kind, ...]], Iterator[Any]]] = {
    "axis": _axes,
    "axes": lambda kinds: ((k,) for k in _axes(kinds)),
    "keepdims": lambda kinds: iter((True,)),
    "perm": _permutations,
    "groups": _groups,
    "divisor": lambda kinds: iter((1,)),  # of a mean: sums are whole numbers
}
_SPECIAL: dict[str, Callable[[tuple[Kind, ...]], Iterator[Attributes]]] = {
    "slice": _slices,
    "reshape": _reshapes,
    "full": _filled,
    "concat": _concats,
    "pad": _enlarged,
}


_X, _W, _K3 = ("m", "k"), ("k", "k"), ("c", "c", 3, 3)
_IMAGE = ("n", "c", "h", "w")

MATRICES = Vocabulary(
    "matrices",
    ("matmul", "add", "mul", "relu", "permute", "concat", "slice"),
    (
        *((f"x{k}", _X) for k in (1, 2, 3)),
        *((f"w{k}", _W) for k in (1, 2, 3)),
        ("b", ("k",)),
        ("s", ()),
        ("p", ()),
    ),
    {"m": 2, "k": 3},
    positive=("p",),
)
IMAGES = Vocabulary(
    "images",
    "conv add mul relu avg_pool max_pool pad concat slice".split(),
    (
        ("i1", _IMAGE),
        ("i2", _IMAGE),
        ("k1", _K3),
        ("k2", _K3),
        ("k3", ("c", "c", 1, 3)),
        ("k4", ("c", "c", 3, 1)),
        ("k5", ("c", "c", 1, 1)),
        ("s", ()),
        ("p", ()),
    ),
    {"n": 1, "c": 2, "h": 4, "w": 4},
    positive=("p",),
    largest=8,
    points=2,
)
_HALVES = ("g", "g")
GROUPS = Vocabulary(
    "groups",
    "conv add mul relu concat slice".split(),
    (
        ("i1", ("n", _HALVES, "h", "w")),
        ("i2", ("n", _HALVES, "h", "w")),
        ("k1", (_HALVES, "g", 3, 3)),
        ("k2", (_HALVES, "g", 1, 1)),
        ("k3", ("g", "g", 1, 1)),
        ("s", ()),
    ),
    {"n": 1, "g": 2, "h": 4, "w": 4},
    largest=8,
    points=2,
)
QUOTIENTS = Vocabulary(
    "quotients",
    "exp div mul add sub neg sum mean reciprocal sqrt rsqrt square matmul".split(),
    (
        *((f"x{k}", _X) for k in (1, 2, 3)),
        ("w1", _W),
        ("c", ("m", 1)),
        ("s", ()),
        ("p", ()),
    ),
    {"m": 2, "k": 3},
    positive=("p",),
    points=1,
    arithmetic="remainders",
)
RESHAPES = Vocabulary(
    "reshapes",
    ("reshape", "matmul", "mul"),
    (
        ("x1", ("l", "m", "k")),
        ("x2", ("l", "m", "k")),
        ("y", (Times("l", "m"), "k")),
        ("w", _W),
        ("b", ("k",)),
    ),
    {"l": 2, "m": 2, "k": 3},
)
CONSTANTS = Vocabulary(
    "constants",
    "full add sub mul div neg square reciprocal maximum minimum relu abs".split(),
    (("x1", _X), ("x2", _X), ("s", ())),
    {"m": 2, "k": 3},
    arithmetic="remainders",
    points=1,
)
EXPONENTIALS = Vocabulary(
    "exponentials",
    "exp div mul add sub sum".split(),
    (*((f"x{k}", _X) for k in (1, 2, 3)), ("c", ("m", 1))),
    {"m": 2, "k": 3},
    points=1,
    arithmetic="remainders",
)
ALL = Vocabulary(
    "all",
    (),
    (*((f"x{k}", _X) for k in (1, 2)), ("s", ())),
    {"m": 2, "k": 3},
    points=1,
    arithmetic="remainders",
)
VOCABULARIES = {
    v.name: v for v in (MATRICES, IMAGES, GROUPS, QUOTIENTS, EXPONENTIALS, RESHAPES, CONSTANTS, ALL)
}
