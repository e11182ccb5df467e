"""The rules of tile IR: what each operation takes and gives, and where values may be used.

`check` is for one operation, where it is made and the user's line is known for an error. `faults`
is for a whole kernel, which a pass or a person made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tilewright.base.errors import Invalid
from tilewright.ir.scalar import SCALARS
from tilewright.ir.types import DType, b1, i32
from tilewright.lang.tile.ir import (
    ATOMICS,
    Block,
    Element,
    Kernel,
    Operation,
    Pointer,
    TileType,
    Value,
)

MANY = 1 << 30
Kind = str | tuple[str, ...]  # of an attribute: "int", "bool", "number", "str", "ints", or choices


@dataclass(frozen=True)
class Signature:
    """What an operation has, apart from types."""

    args: tuple[int, int]  # at least, at most
    results: tuple[int, int] = (1, 1)
    attrs: Mapping[str, Kind] = field(default_factory=dict)
    optional: Mapping[str, Kind] = field(default_factory=dict)
    blocks: tuple[str, ...] = ()  # what the text calls them
    rule: Callable[[Operation], str] = lambda o: ""  # about types: what is wrong, or nothing

    @cached_property
    def attributes(self) -> Mapping[str, Kind]:
        return {**self.attrs, **self.optional}

    def miscounted(self, o: Operation) -> str:
        """What an operation has too few or too many of, or nothing."""
        for what, count, (low, high) in (
            ("argument", len(o.args), self.args),
            ("result", len(o.results), self.results),
            ("block", len(o.blocks), (len(self.blocks),) * 2),
        ):
            if not low <= count <= high:
                return f"{_counted(count, count, what)}, and it has {_counted(low, high, what)}"
        return ""


def check(o: Operation) -> None:
    """An operation by the table of ir.py; `Invalid` says which rule does not hold."""
    problem = _problem(o)
    if problem:
        what = ", ".join(str(a.type) for a in o.args)
        raise Invalid(f"{o.name} of {what or 'nothing'}: {problem}")


def verify(k: Kernel) -> None:
    """All operations by their rules, every value defined once and above its use."""
    for what, o in faults(k):
        raise Invalid(f"{k.name}: {what}", where=str(o.place) if o and o.place else None)


def faults(k: Kernel) -> Iterator[tuple[str, Operation | None]]:
    """What is wrong with a kernel, and the operation that has it."""
    known: set[Value] = set()
    numbers: set[int] = set()

    def define(values: Sequence[Value], o: Operation | None) -> Iterator[Fault]:
        for v in values:
            if v.number in numbers:
                yield f"two values have the number {v.number}", o
        numbers.update(v.number for v in values)
        known.update(values)

    def block(b: Block, inside: Operation | None) -> Iterator[Fault]:
        added = [*b.parameters]
        yield from define(b.parameters, inside)
        for o in b.operations:
            for a in o.args:
                if a not in known:
                    yield f"{o.name} uses %{a.number}, which is not defined above it", o
            problem = _problem(o)
            if problem:
                yield f"{o.name}: {problem}", o
                continue
            for inner in o.blocks:
                yield from block(inner, o)
            yield from define(o.results, o)
            added += o.results
        for y in b.yields:
            if y not in known:
                yield f"a block yields %{y.number}, which is not defined in it", inside
        known.difference_update(added)

    yield from define(k.arguments, None)
    if not len(k.arguments) == len(k.divisors) == len(k.positive):
        yield "divisors and signs are given for other arguments than there are", None
    if k.body.parameters or k.body.yields:
        yield "the body of a kernel takes and yields nothing", None
    yield from block(k.body, None)


Fault = tuple[str, Operation | None]


def _problem(o: Operation) -> str:
    """What is wrong with an operation, or nothing."""
    s = SIGNATURES.get(o.name)
    if s is None:
        return f"there is no operation {o.name}; there are {', '.join(sorted(SIGNATURES))}"
    problem = s.miscounted(o)
    if problem:
        return problem
    allowed = s.attributes
    for name, value in o.attrs.items():
        if name not in allowed:
            have = f"it has {', '.join(allowed)}" if allowed else "it has none"
            return f"there is no attribute {name}; {have}"
        if not _is_a(allowed[name], value):
            return f"{name} is {value!r}, not {_said(allowed[name])}"
    for name, kind in s.attrs.items():
        if name not in o.attrs:
            return f"the attribute {name} ({_said(kind)}) is missing"
    return s.rule(o)


def _counted(low: int, high: int, what: str) -> str:
    if low == high:
        return f"{low} {what}s" if low != 1 else f"1 {what}"
    return f"{low} {what}s or more" if high == MANY else f"{low} to {high} {what}s"


_WORDS = {
    "int": "an integer",
    "bool": "True or False",
    "number": "a number",
    "str": "a string",
    "ints": "a tuple of integers",
}


def _said(kind: Kind) -> str:
    return _WORDS[kind] if isinstance(kind, str) else f"one of {', '.join(kind)}"


def _is_a(kind: Kind, value: Any) -> bool:
    if isinstance(kind, tuple):
        return value in kind
    if kind in ("bool", "str", "ints"):
        return isinstance(value, {"bool": bool, "str": str, "ints": tuple}[kind])
    if kind == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, (bool, int, float))


# ---- rules of types


def _numbers(*values: Value) -> bool:
    return all(isinstance(v.element, DType) for v in values)


def _same(a: Sequence[Value], b: Sequence[Value]) -> bool:
    return len(a) == len(b) and all(x.type == y.type for x, y in zip(a, b, strict=True))


def _const(o: Operation) -> str:
    if isinstance(o.result.element, Pointer):
        return "" if o.attrs["value"] == 0 else "a pointer constant is 0"
    return ""


def _grid(o: Operation) -> str:
    if o.attrs["axis"] not in (0, 1, 2):
        return f"a grid has the axes 0, 1 and 2, not {o.attrs['axis']}"
    return "" if o.result.type == TileType(i32) else "gives i32"


def _iota(o: Operation) -> str:
    return "" if o.result.element is i32 and len(o.result.shape) == 1 else "gives i32[n]"


def _map(o: Operation) -> str:
    spec = SCALARS.get(str(o.attrs["fn"]))
    if spec is None:
        return f"there is no function {o.attrs['fn']}; there are {', '.join(SCALARS)}"
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
    if not 0 <= axis < len(x.shape):
        return f"there is no axis {axis}"
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
    shape = o.args[0].shape if o.name == "scan" else _without(o.args[0].shape, axis)
    fits = [r.type for r in o.results] == [a.type.with_shape(shape) for a in o.args]
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
    if not (isinstance(low.element, DType) and low.element.is_int):
        return "the bounds are no integers"
    if any(x.type != low.type or x.shape for x in (high, step)):
        return "the bounds are not scalars of one type"
    if [p.type for p in block.parameters] != [low.type, *(c.type for c in carried)]:
        return "the body takes other values than it is given"
    fits = _same(block.yields, carried) and _same(o.results, carried)
    return "" if fits else "a carried value changes its type"


def _if(o: Operation) -> str:
    if o.args[0].type != TileType(b1):
        return "the condition is no single bool"
    if any(b.parameters for b in o.blocks):
        return "a branch takes no values"
    fits = all(_same(b.yields, o.results) for b in o.blocks)
    return "" if fits else "the branches differ in type"


def _while(o: Operation) -> str:
    condition, body = o.blocks
    if [y.type for y in condition.yields] != [TileType(b1)]:
        return "the condition is no single bool"
    fits = all(_same(x, o.args) for x in (condition.parameters, body.parameters, body.yields))
    return "" if fits and _same(o.results, o.args) else "a carried value changes its type"


def _cast(o: Operation) -> str:
    if o.args[0].shape != o.result.shape:
        return "the shapes differ"
    return "" if _numbers(o.args[0], o.result) else "of pointers"


_ORDER = ("acquire", "release", "acq_rel", "relaxed")
_SHARED: Mapping[str, Kind] = {"order": _ORDER, "scope": ("gpu", "cta", "sys")}
_HINTS: Mapping[str, Kind] = {"cache": "str", "eviction": "str"}
_PRECISIONS = ("ieee", "tf32", "tf32x3", "bf16x3", "bf16x6")
_AXIS: Mapping[str, Kind] = {"axis": "int"}
_ANY, _NONE = (0, MANY), (0, 0)

SIGNATURES: Mapping[str, Signature] = {
    "const": Signature(_NONE, attrs={"value": "number"}, rule=_const),
    "program_id": Signature(_NONE, attrs=_AXIS, rule=_grid),
    "num_programs": Signature(_NONE, attrs=_AXIS, rule=_grid),
    "iota": Signature(_NONE, attrs={"start": "int"}, rule=_iota),
    "map": Signature((1, MANY), attrs={"fn": "str"}, optional={"wraps": "bool"}, rule=_map),
    "cast": Signature((1, 1), optional={"rounding": ("rtne", "rtz")}, rule=_cast),
    "bitcast": Signature((1, 1), rule=_bitcast),
    "offset": Signature((2, 2), rule=_offset),
    "broadcast": Signature((1, 1), rule=_broadcast),
    "reshape": Signature((1, 1), rule=_reshape),
    "permute": Signature((1, 1), attrs={"order": "ints"}, rule=_permute),
    "join": Signature((2, 2), rule=_join),
    "split": Signature((1, 1), (2, 2), rule=_split),
    "cat": Signature((2, 2), rule=_cat),
    "gather": Signature((2, 2), attrs=_AXIS, rule=_gather),
    "reduce": Signature((1, MANY), (1, MANY), _AXIS, blocks=("combine",), rule=_combined),
    "scan": Signature(
        (1, MANY), (1, MANY), _AXIS, {"reverse": "bool"}, blocks=("combine",), rule=_combined
    ),
    "dot": Signature((3, 3), optional={"precision": _PRECISIONS}, rule=_dot),
    "histogram": Signature((1, 2), rule=_histogram),
    "load": Signature(
        (1, 3), optional={**_HINTS, "volatile": "bool", "described": "bool"}, rule=_load
    ),
    "store": Signature((2, 3), _NONE, optional=_HINTS, rule=_store),
    "atomic": Signature((2, 3), attrs={"kind": ATOMICS}, optional=_SHARED, rule=_atomic),
    "cas": Signature((3, 3), optional=_SHARED, rule=_cas),
    "print": Signature(_ANY, _NONE, optional={"prefix": "str", "hex": "bool"}),
    "assert": Signature((1, 1), _NONE, optional={"message": "str", "always": "bool"}, rule=_assert),
    "for": Signature((3, MANY), _ANY, {}, {"specialised": "bool"}, ("do",), _for),
    "if": Signature((1, 1), _ANY, blocks=("then", "else"), rule=_if),
    "while": Signature(_ANY, _ANY, blocks=("test", "do"), rule=_while),
}
