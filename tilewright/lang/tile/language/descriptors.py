"""Blocks of larger arrays in memory: block pointers and tensor descriptors.

Both are a base address, a shape and strides; a block pointer knows where its block begins, a
descriptor gets the offsets at every access. They are plain objects over tensors: an access turns
them into addresses and a mask of what lies inside.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.base.errors import Invalid
from tilewright.lang.tile.builder import maker
from tilewright.lang.tile.ir import Pointer, Value
from tilewright.lang.tile.language import memory, promote
from tilewright.lang.tile.language import types as t
from tilewright.lang.tile.language.promote import described
from tilewright.lang.tile.language.semantic import add, and_, compare, mul
from tilewright.lang.tile.language.shapes import arange
from tilewright.lang.tile.language.tensor import (
    builtin,
    member,
    operand,
    tensor,
    tuple,
    value,
    wrap,
)
from tilewright.lang.tile.language.types import (
    base_type,
    base_value,
    block_type,
    check_shape,
    dtype_of,
    tuple_type,
    unwrap,
)


def _items(what: str, x: Any, rank: int | None = None) -> list[Any]:
    items = [unwrap(i) for i in unwrap(x)]
    if rank is not None and len(items) != rank:
        raise Invalid(f"{what}: {len(items)} values for {rank} axes", hint="one for every axis")
    return items


def _scalar(what: str, x: Any, to: t.dtype) -> tensor:
    """A single integer as one of these types."""
    found = operand(x)
    if not isinstance(found, Value):
        if not isinstance(found, int) or isinstance(found, bool):
            raise Invalid(f"{what}: {x}", hint="integers, or scalars of integers")
        return wrap(promote.constant(found, to))
    if found.type.size != 1 or not dtype_of(found.element).is_int():
        raise Invalid(f"{what}: {described(found)}", hint="integers, or scalars of integers")
    return wrap(promote.cast(promote.reshape(found, ()), to))


def _base(what: str, base: Any) -> tensor:
    v = value(base)
    if not isinstance(v.element, Pointer) or v.shape:
        hint = "it is a single pointer: a parameter of the kernel"
        raise Invalid(f"{what}: the base is {described(v)}", hint=hint)
    return base


def _is_one(v: Value) -> bool:
    return _is_constant(v, 1)


def _is_zero(v: Value) -> bool:
    return _is_constant(v, 0)


def _is_constant(v: Value, n: int) -> bool:
    made = maker(v)
    return made is not None and made.name == "const" and made.attrs["value"] == n


def addresses(
    base: Value,
    shape: Sequence[Value],
    strides: Sequence[Value],
    places: Sequence[Value],
    checked: Sequence[int],
) -> builtins.tuple[Value, Value | None]:
    """The addresses of elements and whether they lie inside, from their places along every axis,
    which broadcast to the block."""
    wanted = promote.common_shape(*(p.shape for p in places))
    at: Value | None = None
    inside: Value | None = None
    for k, (place, stride) in enumerate(zip(places, strides, strict=True)):
        wide = promote.cast(place, t.int64)
        moved = wide if _is_one(stride) else mul(wide, stride)
        at = moved if at is None else add(at, moved)
        if k in checked:
            end = promote.cast(shape[k], dtype_of(place.element))
            within = and_(compare("ge", place, 0), compare("lt", place, end))
            inside = within if inside is None else and_(inside, within)
    assert at is not None
    pointers = add(promote.broadcast_to(base, wanted), promote.broadcast_to(at, wanted))
    return pointers, None if inside is None else promote.broadcast_to(inside, wanted)


def places_of(offsets: Sequence[Value], block: Sequence[int]) -> list[Value]:
    """offset + 0, 1, … along every axis, with axes of one for the others."""
    rank = len(block)
    made = []
    for k, (offset, n) in enumerate(zip(offsets, block, strict=True)):
        spread = [n if j == k else 1 for j in range(rank)]
        steps = promote.cast(promote.reshape(arange(0, n).handle, spread), dtype_of(offset.element))
        made.append(steps if _is_zero(offset) else add(offset, steps))
    return made


def _outside(padding: str, kind: t.dtype) -> Value:
    if padding == "nan":
        if not kind.is_floating():
            raise Invalid(f"nan around a block of {kind}", hint='integers take "zero"')
        return promote.constant(float("nan"), kind)
    return promote.constant(0, kind)


# ---- block pointers


class block_pointer(base_value):
    """A block of an array, made by `make_block_ptr` and moved by `advance`."""

    def __init__(
        self,
        base: tensor,
        shape: list[tensor],
        strides: list[tensor],
        offsets: list[tensor],
        block_shape: Sequence[int],
        order: Sequence[int],
    ):
        self.base, self.sizes, self.strides, self.offsets = base, shape, strides, offsets
        self.block_shape = builtins.tuple(block_shape)
        self.order = builtins.tuple(order)

    @property
    def type(self) -> t.pointer_type:
        return t.pointer_type(block_type(self.base.dtype.element_ty, self.block_shape))

    @property
    def dtype(self) -> Any:
        return self.base.dtype

    @property
    def shape(self) -> tuple:
        return tuple([t.constexpr(s) for s in self.block_shape])

    def flatten(self) -> list[tensor]:
        return [self.base, *self.sizes, *self.strides, *self.offsets]

    def rebuild(self, tensors: Sequence[tensor]) -> block_pointer:
        rank = len(self.block_shape)
        base, *rest = tensors
        shape, strides, offsets = (list(rest[k * rank : (k + 1) * rank]) for k in range(3))
        return block_pointer(base, shape, strides, offsets, self.block_shape, self.order)

    def expand(
        self, boundary_check: Any, padding: Any
    ) -> builtins.tuple[Value, Value | None, Value | None]:
        """Addresses, a mask where axes are checked, and what is outside."""
        given = unwrap(boundary_check)
        axes = [given] if isinstance(given, int) else _items("boundary_check", given or ())
        rank = len(self.block_shape)
        for axis in axes:
            if not 0 <= axis < rank:
                raise Invalid(f"boundary_check: axis {axis}", hint=f"axes are 0 to {rank - 1}")
        padding = unwrap(padding) or ""
        if padding not in ("", "zero", "nan"):
            raise Invalid(f"padding_option={padding!r}", hint='"", "zero" or "nan"')
        places = places_of([o.handle for o in self.offsets], self.block_shape)
        at, inside = addresses(
            self.base.handle,
            [s.handle for s in self.sizes],
            [s.handle for s in self.strides],
            places,
            axes,
        )
        kind = dtype_of(self.base.handle.element.to)  # type: ignore[union-attr]
        return at, inside, _outside(padding, kind) if inside is not None else None

    def advance(self, offsets: Any) -> block_pointer:
        return advance(self, offsets)

    def __str__(self) -> str:
        return f"block_pointer<{self.base.dtype.element_ty}{list(self.block_shape)}>"

    __repr__ = __str__


@builtin
def make_block_ptr(
    base: Any, shape: Any, strides: Any, offsets: Any, block_shape: Any, order: Any
) -> block_pointer:
    """A pointer to a block of an array. `order` lists the axes from the fastest to the slowest; it
    changes nothing on a CPU."""
    what = "make_block_ptr"
    block = check_shape(_items(what, block_shape))
    rank = len(block)
    if sorted(_items(what, order, rank)) != list(range(rank)):
        raise Invalid(f"{what}: order={unwrap(order)}", hint="each axis once, the fastest first")
    return block_pointer(
        _base(what, base),
        [_scalar(what, s, t.int64) for s in _items(what, shape, rank)],
        [_scalar(what, s, t.int64) for s in _items(what, strides, rank)],
        [_scalar(what, o, t.int32) for o in _items(what, offsets, rank)],
        block,
        _items(what, order, rank),
    )


@member
@builtin
def advance(base: Any, offsets: Any) -> block_pointer:
    """The block that lies so many elements further; the pointer itself stays where it is."""
    if not isinstance(base, block_pointer):
        hint = "tl.make_block_ptr makes block pointers; others move with +"
        raise Invalid(f"advance of {base}", hint=hint)
    steps = _items("advance", offsets, len(base.block_shape))
    moved = [
        wrap(add(o.handle, _scalar("advance", s, t.int32).handle))
        for o, s in zip(base.offsets, steps, strict=True)
    ]
    return block_pointer(base.base, base.sizes, base.strides, moved, base.block_shape, base.order)


# ---- tensor descriptors


class tensor_descriptor_type(base_type):
    def __init__(self, block: block_type, shape_type: tuple_type, strides_type: tuple_type):
        self.block_type, self.shape_type, self.strides_type = block, shape_type, strides_type

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tensor_descriptor_type) and self.block_type == other.block_type

    def __hash__(self) -> int:
        return hash(self.block_type)

    def __str__(self) -> str:
        return f"tensor_descriptor<{self.block_type}>"

    def mangle(self) -> str:
        return f"TD{self.block_type.mangle()}"


class tensor_descriptor(base_value):
    """An array in memory, read and written in blocks of one shape. What lies outside is not
    written and is read as zero (or NaN)."""

    def __init__(
        self,
        base: tensor,
        shape: Sequence[tensor],
        strides: Sequence[tensor],
        block_shape: Sequence[int],
        padding: str = "zero",
    ):
        self._base = base  # a kernel reaches nothing but what is described
        self.shape, self.strides = tuple(shape), tuple(strides)
        self.block_type = block_type(base.dtype.element_ty, list(block_shape))
        self.padding = padding

    @property
    def type(self) -> tensor_descriptor_type:
        return tensor_descriptor_type(self.block_type, self.shape.type, self.strides.type)

    @property
    def block_shape(self) -> builtins.tuple[int, ...]:
        return self.block_type.shape

    @property
    def dtype(self) -> t.dtype:
        return self.block_type.element_ty

    def flatten(self) -> list[tensor]:
        return [self._base, *self.shape, *self.strides]

    def up_to(self, shape: Sequence[tensor]) -> tensor_descriptor:
        """The beginning of the array: sizes that are no larger."""
        return tensor_descriptor(
            self._base, shape, list(self.strides), self.block_shape, self.padding
        )

    def rebuild(self, tensors: Sequence[tensor]) -> tensor_descriptor:
        rank = len(self.block_shape)
        shape, strides = tensors[1 : 1 + rank], tensors[1 + rank :]
        return tensor_descriptor(tensors[0], shape, strides, self.block_shape, self.padding)

    def __str__(self) -> str:
        return str(self.type)

    __repr__ = __str__

    def _at(self, places: Sequence[Value]) -> builtins.tuple[Value, Value]:
        rank = len(self.block_shape)
        shape, strides = ([x.handle for x in v] for v in (self.shape, self.strides))
        at, inside = addresses(self._base.handle, shape, strides, places, range(rank))
        assert inside is not None
        return at, inside

    def _block(self, what: str, offsets: Any) -> builtins.tuple[Value, Value]:
        given = _items(what, offsets, len(self.block_shape))
        starts = [_scalar(what, o, t.int32).handle for o in given]
        return self._at(places_of(starts, self.block_shape))

    def _fitting(self, what: str, v: Any, shape: Sequence[int]) -> Value:
        found = value(v)
        if found.shape != builtins.tuple(shape):
            hint = f"the block has the shape {list(shape)}: reshape or broadcast the value"
            raise Invalid(f"{what} of {described(found)}", hint=hint)
        return promote.cast(found, self.dtype)

    @builtin
    def load(self, offsets: Any) -> tensor:
        """The block that begins at these offsets."""
        at, inside = self._block("descriptor.load", offsets)
        hints = {"described": True}
        return wrap(memory.load_values(at, inside, _outside(self.padding, self.dtype), hints))

    @builtin
    def store(self, offsets: Any, value: Any) -> None:
        """Writes the part of a block that lies inside."""
        at, inside = self._block("descriptor.store", offsets)
        v = self._fitting("descriptor.store", value, self.block_shape)
        memory.store_values(at, v, inside, {})

    def _atomic(
        self, kind: str, offsets: Any, v: Any, allowed: builtins.tuple[t.dtype, ...]
    ) -> None:
        what = f"descriptor.atomic_{kind}"
        if self.dtype not in allowed:
            raise Invalid(f"{what} on {self.dtype}", hint=f"one of {', '.join(map(str, allowed))}")
        at, inside = self._block(what, offsets)
        hints = {"order": "relaxed", "scope": "gpu"}
        fitting = self._fitting(what, v, self.block_shape)
        memory.atomic_values(kind, at, fitting, inside, hints, small=True)

    @builtin
    def atomic_add(self, offsets: Any, value: Any) -> None:
        floats = (t.float16, t.bfloat16, t.float32)
        self._atomic("add", offsets, value, (t.uint32, t.int32, t.uint64, *floats))

    @builtin
    def atomic_min(self, offsets: Any, value: Any) -> None:
        self._atomic("min", offsets, value, (*_WHOLE, t.float16, t.bfloat16))

    @builtin
    def atomic_max(self, offsets: Any, value: Any) -> None:
        self._atomic("max", offsets, value, (*_WHOLE, t.float16, t.bfloat16))

    @builtin
    def atomic_and(self, offsets: Any, value: Any) -> None:
        self._atomic("and", offsets, value, _WHOLE)

    @builtin
    def atomic_or(self, offsets: Any, value: Any) -> None:
        self._atomic("or", offsets, value, _WHOLE)

    @builtin
    def atomic_xor(self, offsets: Any, value: Any) -> None:
        self._atomic("xor", offsets, value, _WHOLE)

    def _rows(self, what: str, x_offsets: Any, y_offset: Any) -> list[Value]:
        rows = value(x_offsets)
        if len(self.block_shape) != 2 or self.block_shape[0] != 1:
            raise Invalid(f"{what} with {self}", hint="the block has the shape [1, N]")
        if len(rows.shape) != 1 or not dtype_of(rows.element).is_int():
            raise Invalid(f"{what} of the rows {described(rows)}", hint="a row of integers")
        start = _scalar(what, y_offset, t.int32).handle
        columns = places_of([promote.constant(0, t.int32), start], self.block_shape)[1]
        return [promote.reshape(promote.cast(rows, t.int32), (*rows.shape, 1)), columns]

    @builtin
    def gather(self, x_offsets: Any, y_offset: Any) -> tensor:
        """Rows picked by number, from one column on."""
        at, inside = self._at(self._rows("descriptor.gather", x_offsets, y_offset))
        return wrap(memory.load_values(at, inside, _outside(self.padding, self.dtype), {}))

    @builtin
    def scatter(self, value: Any, x_offsets: Any, y_offset: Any) -> None:
        """Writes rows to where their numbers say, from one column on."""
        at, inside = self._at(self._rows("descriptor.scatter", x_offsets, y_offset))
        memory.store_values(at, self._fitting("descriptor.scatter", value, at.shape), inside, {})


_WHOLE = (t.uint32, t.int32, t.uint64, t.int64)
tensor_descriptor_base = tensor_descriptor


@builtin
def make_tensor_descriptor(
    base: Any, shape: Any, strides: Any, block_shape: Any, padding_option: Any = "zero"
) -> tensor_descriptor:
    """Describes an array in memory whose last axis is contiguous, to be accessed in blocks."""
    what = "make_tensor_descriptor"
    sizes = _items(what, shape)
    rank = len(sizes)
    if not 1 <= rank <= 5:
        raise Invalid(f"{what}: {rank} axes", hint="1 to 5 axes")
    steps = _items(what, strides, rank)
    block = check_shape(_items(what, block_shape, rank))
    pointer = _base(what, base)
    if steps[-1] != 1 if not isinstance(steps[-1], tensor) else not _is_one(steps[-1].handle):
        hint = "the last axis is contiguous: write the constant 1 as its stride"
        raise Invalid(f"{what}: the last stride is {steps[-1]}", hint=hint)
    width = pointer.dtype.element_ty.primitive_bitwidth // 8
    if block[-1] * width < 16:
        hint = f"take at least {16 // width} elements along the last axis"
        given = f"{block[-1]} elements of {width} bytes"
        least = "Descriptor block shape must have at least 16 bytes in the last axis"
        raise Invalid(f"{least}, not {given}", hint=hint)
    padding = unwrap(padding_option)
    if padding not in ("zero", "nan"):
        raise Invalid(f"{what}: padding_option={padding!r}", hint='"zero" or "nan"')
    if padding == "nan" and not pointer.dtype.element_ty.is_floating():
        raise Invalid(f"{what}: nan around integers", hint='padding_option="zero"')
    return tensor_descriptor(
        pointer,
        [_scalar(what, s, t.int32) for s in sizes],
        [_scalar(what, s, t.int64) for s in steps],
        block,
        padding,
    )


@builtin
def load_tensor_descriptor(desc: tensor_descriptor, offsets: Any) -> tensor:
    return desc.load(offsets)


@builtin
def store_tensor_descriptor(desc: tensor_descriptor, offsets: Any, value: Any) -> None:
    desc.store(offsets, value)


# ---- on the host


_MOST_CHECKED = 1024
_checked: set[tuple[Any, ...]] = set()  # shapes, strides and blocks that are right


def _check(shape: Any, strides: Any, block: Any, padding: str) -> None:
    rank = len(shape)
    if not len(strides) == rank == len(block):
        what = f"a descriptor of {rank} axes with other strides or blocks"
        raise Invalid(what, hint="shape, strides and block_shape have one number for every axis")
    if not 1 <= rank <= 5:
        raise Invalid(f"a descriptor of {rank} axes", hint="1 to 5 axes")
    check_shape(builtins.tuple(map(int, block)))
    if strides[-1] != 1:
        raise Invalid("the last axis is not contiguous", hint="call .contiguous()")
    if min(shape) <= 0:
        raise Invalid(f"an empty array {list(shape)}")
    if padding not in ("zero", "nan"):
        raise Invalid(f"padding={padding!r}", hint='"zero" or "nan"')
    if len(_checked) >= _MOST_CHECKED:
        _checked.clear()
    _checked.add((shape, strides, padding, *block))


@dataclass(init=False)
class TensorDescriptor:
    """What a caller gives to a kernel for a `tensor_descriptor` parameter."""

    base: Any
    shape: Any
    strides: Any
    block_shape: Any
    padding: str
    round_f32_to_tf32: bool

    def __init__(
        self,
        base: Any,
        shape: Any,
        strides: Any,
        block_shape: Any,
        padding: str = "zero",
        round_f32_to_tf32: bool = False,
    ) -> None:
        # One is made for each launch, often: what was right once is not looked at again.
        try:
            known = (shape, strides, padding, *block_shape) in _checked
        except TypeError:  # lists have no hash
            shape, strides, known = builtins.tuple(shape), builtins.tuple(strides), False
        if not known:
            _check(shape, strides, block_shape, padding)
        self.base = base  # one by one: quicker than tuples
        self.shape = shape
        self.strides = strides
        self.block_shape = block_shape
        self.padding = padding
        self.round_f32_to_tf32 = round_f32_to_tf32

    @staticmethod
    def from_tensor(
        tensor: Any, block_shape: Any, padding: str = "zero", round_f32_to_tf32: bool = False
    ) -> TensorDescriptor:
        """A descriptor of a whole torch tensor or numpy array."""
        try:
            steps = tensor.stride()
        except AttributeError:
            steps = builtins.tuple(n // tensor.itemsize for n in tensor.strides)
        return TensorDescriptor(
            tensor, tensor.shape, steps, block_shape, padding, round_f32_to_tf32
        )

    def maker(self) -> Callable[[Sequence[tensor]], tensor_descriptor]:
        """Builds what the kernel sees from tensors of the base, the shape and the strides."""
        rank, block, padding = len(self.shape), list(self.block_shape), self.padding

        def make(parts: Sequence[tensor]) -> tensor_descriptor:
            shape = [_scalar("shape", s, t.int32) for s in parts[1 : 1 + rank]]
            strides = [_scalar("strides", s, t.int64) for s in parts[1 + rank :]]
            return tensor_descriptor(parts[0], shape, strides, block, padding)

        return make
