"""What a tile kernel says: values that are whole tiles, effects in the order of the program,
control flow as operations with blocks.

A kernel is a block. An operation has arguments, results, attributes and perhaps blocks; a value is
the result of one operation or the parameter of one block, and is used only below its definition.
Tiles have constant shapes; a scalar is a tile of shape (). Types are settled when an operation is
made: arguments of one `map` have the same shape, nothing is converted in silence. The front end
(semantic.py) applies the language's rules of promotion and broadcasting and writes them out.

| operation | arguments → results | attributes, blocks, meaning |
|---|---|---|
| const | → x | value; the same number everywhere |
| argument | → x | index, name; what the caller gives: a scalar or a pointer |
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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Union

from tilewright.base.errors import Invalid
from tilewright.ir.scalar import SCALARS
from tilewright.ir.types import DType, b1, i32


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


@dataclass(eq=False)
class Value:
    type: TileType
    made_by: Operation | None = None  # None: the parameter of a block
    number: int = 0  # which of its maker's results, or of its block's parameters
    name: str = ""  # of the user's variable, for reading

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def element(self) -> Element:
        return self.type.element


@dataclass(eq=False)
class Block:
    parameters: list[Value] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    yields: list[Value] = field(default_factory=list)

    def parameter(self, type: TileType, name: str = "") -> Value:
        self.parameters.append(Value(type, None, len(self.parameters), name))
        return self.parameters[-1]


@dataclass(eq=False)
class Operation:
    name: str
    args: tuple[Value, ...]
    results: tuple[Value, ...] = ()
    attrs: dict[str, Any] = field(default_factory=dict)
    blocks: tuple[Block, ...] = ()
    place: Place | None = None

    @property
    def result(self) -> Value:
        (only,) = self.results
        return only


@dataclass(eq=False)
class Kernel:
    """A kernel with its constants settled. `arguments` are what a launch gives, in order."""

    name: str
    arguments: tuple[Value, ...]
    body: Block
    # What the kernel was made for: a divisor of each argument (of an address: in bytes).
    divisors: tuple[int, ...] = ()
    positive: tuple[bool, ...] = ()  # arguments that are known to be greater than 0


EFFECTS = frozenset(("load", "store", "atomic", "cas", "print", "assert"))
CONTROL = frozenset(("for", "if", "while"))
ATOMICS = ("add", "and", "or", "xor", "max", "min", "xchg")


def operation(
    name: str,
    args: Sequence[Value],
    types: Sequence[TileType],
    attrs: dict[str, Any] | None = None,
    blocks: Sequence[Block] = (),
    place: Place | None = None,
) -> Operation:
    """An operation with fresh results of these types. Its rules are checked where it is made, so
    that an error has the place at hand."""
    made = Operation(name, tuple(args), (), attrs or {}, tuple(blocks), place)
    made.results = tuple(Value(t, made, k) for k, t in enumerate(types))
    check(made)
    return made


def walk(block: Block) -> Iterator[Operation]:
    """Every operation, those of blocks after the one that has them."""
    for o in block.operations:
        yield o
        for b in o.blocks:
            yield from walk(b)


# ---- rules


def check(o: Operation) -> None:
    """An operation by the table above; `Invalid` says which rule does not hold."""
    rule = _RULES.get(o.name)
    if rule is None:
        raise Invalid(f"there is no operation {o.name}")
    problem = rule(o)
    if problem:
        what = ", ".join(str(a.type) for a in o.args)
        raise Invalid(f"{o.name} of {what or 'nothing'}: {problem}")


def verify(k: Kernel) -> None:
    """All operations by their rules, and every value defined above its use."""
    known: set[Value] = set(k.arguments)

    def block(b: Block) -> None:
        added = [*b.parameters]
        known.update(b.parameters)
        for o in b.operations:
            for a in o.args:
                if a not in known:
                    raise Invalid(f"{k.name}: {o.name} uses a value that is not defined above it")
            check(o)
            for inner in o.blocks:
                block(inner)
            known.update(o.results)
            added += o.results
        for y in b.yields:
            if y not in known:
                raise Invalid(f"{k.name}: a block yields a value that is not defined in it")
        known.difference_update(added)

    block(k.body)


def _numbers(*values: Value) -> bool:
    return all(isinstance(v.element, DType) for v in values)


def _same(a: Sequence[Value], b: Sequence[Value]) -> bool:
    return len(a) == len(b) and all(x.type == y.type for x, y in zip(a, b, strict=True))


def _const(o: Operation) -> str:
    if isinstance(o.result.element, Pointer):
        return "" if o.attrs["value"] == 0 else "a pointer constant is 0"
    return "" if isinstance(o.attrs["value"], (bool, int, float)) else "the value is no number"


def _iota(o: Operation) -> str:
    return "" if o.result.element is i32 and len(o.result.shape) == 1 else "gives i32[n]"


def _map(o: Operation) -> str:
    spec = SCALARS.get(o.attrs["fn"])
    if spec is None:
        return f"there is no function {o.attrs['fn']}"
    if len(o.args) != spec.arity:
        return f"{spec.name} takes {spec.arity} arguments"
    if any(a.shape != o.result.shape for a in o.args):
        return "the shapes differ"
    if not _numbers(*o.args):
        return f"{spec.name} of pointers"
    rest = o.args[1:] if spec.name == "select" else o.args
    if any(a.element is not rest[0].element for a in rest):
        return "the elements differ"
    if spec.name == "select" and o.args[0].element is not b1:
        return "the condition is no bool"
    if rest[0].type.dtype.kind not in spec.only:
        return f"{spec.name} is not defined on {rest[0].element}"
    wanted = spec.type(tuple(a.type.dtype for a in o.args))
    return "" if o.result.element is wanted else f"gives {wanted}"


def _bits(e: Element) -> int:
    return 64 if isinstance(e, Pointer) else 1 if e.is_bool else e.bits


def _bitcast(o: Operation) -> str:
    if o.args[0].shape != o.result.shape:
        return "the shapes differ"
    a, b = _bits(o.args[0].element), _bits(o.result.element)
    return "" if a == b else f"{a} bits are not {b}"


def _broadcast(o: Operation) -> str:
    a, b = o.args[0].shape, o.result.shape
    fits = len(a) == len(b) and all(x in (1, y) for x, y in zip(a, b, strict=True))
    return (
        "" if fits and o.args[0].element == o.result.element else f"does not become {o.result.type}"
    )


def _reshape(o: Operation) -> str:
    fits = o.args[0].type.size == o.result.type.size and o.args[0].element == o.result.element
    return "" if fits else f"does not become {o.result.type}"


def _permute(o: Operation) -> str:
    order, shape = o.attrs["order"], o.args[0].shape
    if sorted(order) != list(range(len(shape))):
        return f"{order} is no order of its axes"
    fits = tuple(shape[k] for k in order) == o.result.shape
    return "" if fits and o.args[0].element == o.result.element else "gives another type"


def _join(o: Operation) -> str:
    a, b = o.args
    fits = a.type == b.type and o.result.type == a.type.with_shape((*a.shape, 2))
    return "" if fits else "gives another type"


def _split(o: Operation) -> str:
    (a,) = o.args
    fits = a.shape[-1:] == (2,) and all(
        r.type == a.type.with_shape(a.shape[:-1]) for r in o.results
    )
    return "" if fits and len(o.results) == 2 else "the last axis is not two"


def _cat(o: Operation) -> str:
    a, b = o.args
    fits = a.shape and a.shape[1:] == b.shape[1:] and a.element == b.element
    total = (a.shape[0] + b.shape[0], *a.shape[1:]) if fits else ()
    return "" if fits and o.result.type == a.type.with_shape(total) else "the shapes do not fit"


def _gather(o: Operation) -> str:
    x, i = o.args
    axis = o.attrs["axis"]
    fits = len(x.shape) == len(i.shape) and all(
        k == axis or x.shape[k] == i.shape[k] for k in range(len(x.shape))
    )
    whole = isinstance(i.element, DType) and i.element.is_int
    return "" if fits and whole and o.result.type == x.type.with_shape(i.shape) else "does not fit"


def _combined(o: Operation) -> str:
    axis, n = o.attrs["axis"], len(o.args)
    if not n or any(a.shape != o.args[0].shape for a in o.args):
        return "the shapes differ"
    if not 0 <= axis < len(o.args[0].shape):
        return f"there is no axis {axis}"
    (block,) = o.blocks
    wanted = [TileType(a.element) for a in o.args]
    if [p.type for p in block.parameters] != wanted * 2:
        return "the combining block takes other elements"
    if [y.type for y in block.yields] != wanted:
        return "the combining block yields other elements"
    kept = o.args[0].shape if o.name == "scan" else _without(o.args[0].shape, axis)
    fits = all(r.type == a.type.with_shape(kept) for a, r in zip(o.args, o.results, strict=True))
    return "" if fits else "gives another type"


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


def _dot(o: Operation) -> str:
    a, b, c = o.args
    rank = len(a.shape)
    if rank < 2 or len(b.shape) != rank or a.shape[-1] != b.shape[-2]:
        return "the inner sizes differ"
    wanted = (*a.shape[:-1], b.shape[-1])
    if a.shape[:-2] != b.shape[:-2] or c.shape != wanted or o.result.type != c.type:
        return f"the sum is no {wanted}"
    return "" if _numbers(a, b, c) else "of pointers"


def _histogram(o: Operation) -> str:
    x = o.args[0]
    if not (isinstance(x.element, DType) and x.element.is_int and len(x.shape) == 1):
        return "of something else than a row of integers"
    return _mask(o, 1) or _iota(o)


def _mask(o: Operation, at: int) -> str:
    if len(o.args) > at and o.args[at].type != TileType(b1, o.args[0].shape):
        return f"the mask is no bool{list(o.args[0].shape)}"
    return ""


def _target(o: Operation) -> Element | None:
    p = o.args[0].element
    return p.to if isinstance(p, Pointer) else None


def _offset(o: Operation) -> str:
    p, n = o.args
    whole = isinstance(n.element, DType) and n.element.is_int
    fits = p.shape == n.shape and o.result.type == p.type and isinstance(p.element, Pointer)
    return "" if whole and fits else "is no pointer and integers of one shape"


def _load(o: Operation) -> str:
    to = _target(o)
    if to is None:
        return "the address is no pointer"
    if o.result.type != TileType(to, o.args[0].shape):
        return f"gives {to}"
    if len(o.args) > 2 and o.args[2].type != o.result.type:
        return f"other is no {o.result.type}"
    return _mask(o, 1)


def _store(o: Operation) -> str:
    to = _target(o)
    if to is None:
        return "the address is no pointer"
    if o.args[1].type != TileType(to, o.args[0].shape):
        return f"the value is no {TileType(to, o.args[0].shape)}"
    return _mask(o, 2)


def _atomic(o: Operation) -> str:
    if o.attrs["kind"] not in ATOMICS:
        return f"{o.attrs['kind']} is none of {', '.join(ATOMICS)}"
    return _store(o) or ("" if o.result.type == o.args[1].type else "gives another type")


def _cas(o: Operation) -> str:
    to, shape = _target(o), o.args[0].shape
    same = all(v.type == TileType(to, shape) for v in (*o.args[1:], o.result)) if to else False
    return "" if same else "the values are not what the address points to"


def _assert(o: Operation) -> str:
    return "" if o.args[0].element is b1 else "the condition is no bool"


def _for(o: Operation) -> str:
    (block,) = o.blocks
    low, high, step, *carried = o.args
    if any(x.type != low.type or x.shape for x in (high, step)):
        return "the bounds are not scalars of one type"
    if [p.type for p in block.parameters] != [low.type, *(c.type for c in carried)]:
        return "the body takes other values than it is given"
    fits = _same(block.yields, carried) and _same(o.results, carried)
    return "" if fits else "a carried value changes its type"


def _if(o: Operation) -> str:
    if o.args[0].type != TileType(b1):
        return "the condition is no single bool"
    fits = all(_same(b.yields, o.results) for b in o.blocks) and len(o.blocks) == 2
    return "" if fits else "the branches differ in type"


def _while(o: Operation) -> str:
    condition, body = o.blocks
    if [y.type for y in condition.yields] != [TileType(b1)]:
        return "the condition is no single bool"
    fits = all(_same(x, o.args) for x in (condition.parameters, body.parameters, body.yields))
    return "" if fits and _same(o.results, o.args) else "a carried value changes its type"


def _anything(o: Operation) -> str:
    return ""


_RULES = {
    "const": _const,
    "argument": _anything,
    "program_id": _anything,
    "num_programs": _anything,
    "iota": _iota,
    "map": _map,
    "cast": lambda o: "" if _numbers(o.args[0], o.result) else "of pointers",
    "bitcast": _bitcast,
    "offset": _offset,
    "broadcast": _broadcast,
    "reshape": _reshape,
    "permute": _permute,
    "join": _join,
    "split": _split,
    "cat": _cat,
    "gather": _gather,
    "reduce": _combined,
    "scan": _combined,
    "dot": _dot,
    "histogram": _histogram,
    "load": _load,
    "store": _store,
    "atomic": _atomic,
    "cas": _cas,
    "print": _anything,
    "assert": _assert,
    "for": _for,
    "if": _if,
    "while": _while,
}


# ---- text


def kernel_text(k: Kernel, places: bool = False) -> str:
    """The kernel for reading, values numbered in the order of their definition."""
    names: dict[Value, str] = {}
    lines: list[str] = []

    def name(v: Value) -> str:
        if v not in names:
            names[v] = f"%{len(names)}{'.' + v.name if v.name else ''}"
        return names[v]

    def block(b: Block, depth: int) -> None:
        pad = "  " * depth
        for o in b.operations:
            left = ", ".join(f"{name(r)}: {r.type}" for r in o.results)
            attrs = "".join(f" {k}={v!r}" for k, v in o.attrs.items() if v not in (None, ""))
            args = ", ".join(map(name, o.args))
            where = f"  # {o.place}" if places and o.place else ""
            head = f"{left} = {o.name}" if left else o.name
            lines.append(f"{pad}{head}{attrs}{' ' + args if args else ''}{where}")
            for inner in o.blocks:
                params = ", ".join(f"{name(p)}: {p.type}" for p in inner.parameters)
                lines.append(f"{pad}  ({params}):")
                block(inner, depth + 2)
                if inner.yields:
                    lines.append(f"{pad}    yield {', '.join(map(name, inner.yields))}")

    given = ", ".join(f"{name(a)}: {a.type}" for a in k.arguments)
    lines.append(f"kernel {k.name}({given})")
    block(k.body, 1)
    return "\n".join(lines) + "\n"
