"""Values where control flow joins: after a branch, around a loop, at the end of a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tilewright.lang.tile.builder import IRBuilder, OpenBlock
from tilewright.lang.tile.front.diagnostics import Mistake
from tilewright.lang.tile.ir import TileType, Value
from tilewright.lang.tile.language import core
from tilewright.lang.tile.language.promote import number
from tilewright.lang.tile.language.types import base_value, constexpr, unwrap

# Makes a value of the language from the results of an operation.
Make = Callable[[Iterator[Value]], Any]


class Differ(Exception):
    """Two values that cannot be one: what each is."""

    def __init__(self, one: str, other: str):
        self.one, self.other = one, other
        super().__init__(f"{one} and {other}")


class _NoValue:
    """The end of a function without a return."""

    def __repr__(self) -> str:
        return "nothing"


NO_VALUE: Any = _NoValue()


def as_variable(x: Any) -> Any:
    """A value as it is assigned to a variable: numbers become tensors, also inside tuples."""
    if type(x) is core.tensor:
        return x
    if isinstance(x, core.tuple):
        return core.tuple([as_variable(v) for v in x.values], x.type if x.fields else None)
    value = unwrap(x)
    if isinstance(value, (tuple, list)):
        return core.tuple([as_variable(v) for v in value])
    if number(value) is not None:
        return core.to_tensor(value)
    return x


def leaves(x: Any) -> list[core.tensor]:
    """The tensors inside a value."""
    if type(x) is core.tensor:
        return [x]
    return x.flatten() if isinstance(x, base_value) else []


def around(x: Any, values: Iterable[Value]) -> Any:
    """The same kind of value with other tensors inside."""
    if type(x) is core.tensor:
        (v,) = values
        return core.wrap(v, x)
    old = leaves(x)
    return x.rebuild([core.wrap(v, t) for v, t in zip(values, old, strict=True)])


def said(x: Any) -> str:
    """A value's type for messages."""
    if isinstance(x, core.tensor):
        return str(x.type)
    if isinstance(x, core.tuple):
        return f"({', '.join(said(v) for v in x.values)})"
    if x is NO_VALUE:
        return "nothing"
    if isinstance(x, base_value) and not isinstance(x, constexpr):
        return type(x).__name__
    return f"the constant {unwrap(x)!r}"


def kind(x: Any) -> Any:
    """What has to stay the same around a loop; comparable."""
    if isinstance(x, core.tensor):
        return (x.handle.type, x.dtype.is_const())
    if isinstance(x, core.tuple):
        return (tuple(x.fields or ()), *(kind(v) for v in x.values))
    inside = leaves(x)
    if inside:
        return (type(x), *(t.handle.type for t in inside))
    return "constant"


def changed_type(name: str, old: Any, new: Any) -> Mistake:
    """What is wrong with a variable that a loop carries."""
    return Mistake(
        f"{name} is {said(old)} before the loop and {said(new)} after a round of it",
        f"a variable of a loop keeps its type: convert it with .to(…), or give {name} the right "
        "type before the loop",
    )


def joined(
    builder: IRBuilder, a: Any, b: Any, block_a: OpenBlock, block_b: OpenBlock, numbers: bool
) -> tuple[Make, list[Value], list[Value]]:
    """One value for two that two blocks end with: how to make it, and what each block yields.
    `numbers`: may two different constants become a tensor?"""
    if a is b:
        return (lambda results: a), [], []
    if a is NO_VALUE or b is NO_VALUE:
        # The value is undefined on that path: any number is right.
        have, block = (b, block_a) if a is NO_VALUE else (a, block_b)
        inside = [t.handle for t in leaves(have)]
        with builder.inside(block):
            fake = [_zero(builder, v.type) for v in inside]
        pair = (fake, inside) if a is NO_VALUE else (inside, fake)
        return (lambda results: around(have, [next(results) for _ in inside])), *pair
    if isinstance(a, core.tensor) and isinstance(b, core.tensor):
        if a.handle is b.handle:
            return (lambda results: a), [], []
        if a.handle.type == b.handle.type and a.dtype.is_const() == b.dtype.is_const():
            return (lambda results: core.wrap(next(results), a)), [a.handle], [b.handle]
        raise Differ(said(a), said(b))
    if isinstance(a, core.tensor) or isinstance(b, core.tensor):
        with builder.inside(block_b if isinstance(a, core.tensor) else block_a):
            if isinstance(a, core.tensor):
                b = _as(b, a)
            else:
                a = _as(a, b)
        if a is None or b is None or a.handle.type != b.handle.type:
            raise Differ(said(a), said(b))
        return (lambda results: core.wrap(next(results), a)), [a.handle], [b.handle]
    if isinstance(a, core.tuple) and isinstance(b, core.tuple):
        if len(a) != len(b) or a.fields != b.fields:
            raise Differ(said(a), said(b))
        parts = [
            joined(builder, x, y, block_a, block_b, numbers)
            for x, y in zip(a.values, b.values, strict=True)
        ]
        fields = a.type if a.fields else None

        def whole(results: Iterator[Value]) -> Any:
            return core.tuple([make(results) for make, _, _ in parts], fields)

        return (
            whole,
            [v for _, left, _ in parts for v in left],
            [v for _, _, right in parts for v in right],
        )
    left, right = leaves(a), leaves(b)
    if left or right:
        if type(a) is not type(b) or [t.handle.type for t in left] != [
            t.handle.type for t in right
        ]:
            raise Differ(said(a), said(b))
        ours, theirs = [t.handle for t in left], [t.handle for t in right]
        return (lambda results: around(a, [next(results) for _ in ours])), ours, theirs
    one, other = unwrap(a), unwrap(b)
    if type(one) is type(other) and _equal(one, other):
        return (lambda results: a), [], []
    if numbers and number(one) is not None and number(other) is not None:
        with builder.inside(block_a):
            x = core.to_tensor(one)
        with builder.inside(block_b):
            y = core.to_tensor(other)
        return joined(builder, x, y, block_a, block_b, numbers)
    raise Differ(said(a), said(b))


def _as(x: Any, like: core.tensor) -> Any:
    """A constant as a tensor of a scalar's type; of any other value, the value itself."""
    value = number(unwrap(x))
    if value is None or like.handle.shape or like.dtype.is_ptr():
        raise Differ(said(x), said(like))
    if isinstance(value, float) and not like.dtype.is_floating():
        raise Differ(said(x), said(like))
    return core.to_tensor(value).to(like.dtype)


def _zero(builder: IRBuilder, t: TileType) -> Value:
    return builder.emit("const", (), (t,), {"value": 0})[0]


def _equal(a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except Exception:  # what has no truth value for == counts as different
        return False
