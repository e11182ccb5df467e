"""The types that a kernel's author sees: `tl.float32`, pointers, blocks, and constants that are
known while a kernel is compiled.

Names and queries are Triton's. A `dtype` stands for an element of the tile IR (`.ir`), a
`pointer_type` for an address, a `block_type` for a tile of either.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable, Sequence
from enum import Enum
from math import prod
from typing import Any

from tilewright.base.errors import Invalid
from tilewright.ir.types import DTYPES, DType
from tilewright.lang.tile.ir import Element, Pointer, TileType

MAX_NUMEL = 1 << 20  # of one tile, as in Triton


def unwrap(x: Any) -> Any:
    """What is inside a constexpr; also of the items of lists and tuples."""
    if isinstance(x, constexpr):
        return x.value
    if isinstance(x, list):
        return [unwrap(i) for i in x]
    if isinstance(x, builtins.tuple):
        items = [unwrap(i) for i in x]
        return type(x)(*items) if hasattr(x, "_fields") else type(x)(items)
    return x


class base_type:
    """What every type of the language is."""


class constexpr_type(base_type):
    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, constexpr_type) and bool(self.value == other.value)

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return f"constexpr_type[{self.value}]"

    def mangle(self) -> str:
        return f"c{self.value.mangle() if hasattr(self.value, 'mangle') else repr(self.value)}"


class base_value:
    """What a variable of a kernel can hold. A value that has tiles inside gives them with
    `flatten`, and `rebuild` makes the same kind of value around others: this is how loops and
    branches carry tuples, block pointers and descriptors."""

    type: Any

    def flatten(self) -> list[Any]:
        return []

    def rebuild(self, tensors: Sequence[Any]) -> Any:
        return self


def _binary(apply: Callable[[Any, Any], Any], swapped: bool = False) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if isinstance(other, base_value) and not isinstance(other, constexpr):
            return NotImplemented  # tiles know what to do with constants
        a, b = self.value, unwrap(other)
        return constexpr(apply(b, a) if swapped else apply(a, b))

    return method


class constexpr(base_value):
    """A value that is known while the kernel is compiled. Arithmetic on constants is Python's and
    gives constants."""

    def __init__(self, value: Any):
        while isinstance(value, constexpr):
            value = value.value
        self.value = value

    @property
    def type(self) -> constexpr_type:
        return constexpr_type(self.value)

    def __repr__(self) -> str:
        return f"constexpr[{self.value}]"

    def __str__(self) -> str:
        return f"constexpr[{self.value}]"

    def __hash__(self) -> int:
        return hash(self.value)

    def __index__(self) -> int:
        return operator.index(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __float__(self) -> float:
        return float(self.value)

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Any:
        return iter(self.value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.value(*args, **kwargs)

    def __getitem__(self, key: Any) -> Any:
        return self.value[unwrap(key)]

    def __neg__(self) -> constexpr:
        return constexpr(-self.value)

    def __pos__(self) -> constexpr:
        return constexpr(+self.value)

    def __invert__(self) -> constexpr:
        return constexpr(~self.value)

    def __not__(self) -> constexpr:
        return constexpr(not self.value)

    def logical_and(self, other: Any) -> constexpr:
        return constexpr(self.value and unwrap(other))

    def logical_or(self, other: Any) -> constexpr:
        return constexpr(self.value or unwrap(other))

    __add__, __radd__ = _binary(operator.add), _binary(operator.add, True)
    __sub__, __rsub__ = _binary(operator.sub), _binary(operator.sub, True)
    __mul__, __rmul__ = _binary(operator.mul), _binary(operator.mul, True)
    __mod__, __rmod__ = _binary(operator.mod), _binary(operator.mod, True)
    __pow__, __rpow__ = _binary(operator.pow), _binary(operator.pow, True)
    __truediv__, __rtruediv__ = _binary(operator.truediv), _binary(operator.truediv, True)
    __floordiv__, __rfloordiv__ = _binary(operator.floordiv), _binary(operator.floordiv, True)
    __and__, __rand__ = _binary(operator.and_), _binary(operator.and_, True)
    __or__, __ror__ = _binary(operator.or_), _binary(operator.or_, True)
    __xor__, __rxor__ = _binary(operator.xor), _binary(operator.xor, True)
    __lshift__, __rlshift__ = _binary(operator.lshift), _binary(operator.lshift, True)
    __rshift__, __rrshift__ = _binary(operator.rshift), _binary(operator.rshift, True)
    __lt__, __le__ = _binary(operator.lt), _binary(operator.le)
    __gt__, __ge__ = _binary(operator.gt), _binary(operator.ge)
    __eq__, __ne__ = _binary(operator.eq), _binary(operator.ne)  # type: ignore[assignment]


class const:
    """Marks a pointer parameter whose elements are not written: `x: tl.const`."""


# The name of each element: in the language, in the tile IR, and for floats the bits of the mantissa
# and the bias of the exponent.
_SIGNED = {"int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64"}
_UNSIGNED = {"int1": "bool", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64"}
_FLOATS = {
    "fp8e4b15": ("f8e4b15", 3, 15),
    "fp8e4nv": ("f8e4m3", 3, 7),
    "fp8e4b8": ("f8e4b8", 3, 8),
    "fp8e5": ("f8e5m2", 2, 15),
    "fp8e5b16": ("f8e5b16", 2, 16),
    "fp16": ("f16", 10, 15),
    "bf16": ("bf16", 7, 127),
    "fp32": ("f32", 23, 127),
    "fp64": ("f64", 52, 1023),
}


class dtype(base_type):
    SINT_TYPES = (*_SIGNED,)
    UINT_TYPES = (*_UNSIGNED,)
    FP_TYPES = (*_FLOATS,)
    STANDARD_FP_TYPES = ("fp16", "bf16", "fp32", "fp64")
    OTHER_TYPES = ("void",)

    class SIGNEDNESS(Enum):
        SIGNED = 0
        UNSIGNED = 1

    class KIND(Enum):
        BOOLEAN = 0
        INTEGRAL = 1
        FLOATING = 2

    name: str
    _ir: Element | None = None
    primitive_bitwidth: int = 0
    int_bitwidth: int
    int_signedness: dtype.SIGNEDNESS
    fp_mantissa_width: int
    exponent_bias: int

    @property
    def value(self) -> dtype:
        """Itself: where a dtype is a constant of a kernel, `.value` works as for other
        constants."""
        return self

    def __init__(self, name: Any):
        self.name = name = unwrap(name)
        element = ""
        if name in _FLOATS:
            element, self.fp_mantissa_width, self.exponent_bias = _FLOATS[name]
        elif name in _SIGNED or name in _UNSIGNED:
            signed = name in _SIGNED
            element = _SIGNED[name] if signed else _UNSIGNED[name]
            self.int_signedness = self.SIGNEDNESS.SIGNED if signed else self.SIGNEDNESS.UNSIGNED
        elif name != "void":
            known = ", ".join((*_SIGNED, *_UNSIGNED, *_FLOATS))
            raise Invalid(f"there is no element type {name!r}", hint=f"one of {known}")
        if element:
            self._ir = DTYPES[element]
            self.primitive_bitwidth = 1 if name == "int1" else DTYPES[element].bits
            if name not in _FLOATS:
                self.int_bitwidth = self.primitive_bitwidth

    @property
    def ir(self) -> Element:
        """The element of the tile IR that this stands for."""
        if self._ir is None:
            raise Invalid(f"{self.name} is no type of a value")
        return self._ir

    @property
    def itemsize(self) -> int:
        return self.primitive_bitwidth // 8

    @property
    def scalar(self) -> dtype:
        return self

    @property
    def shape(self) -> builtins.tuple[int, ...]:
        return ()

    @property
    def numel(self) -> int:
        return 1

    def is_fp8(self) -> bool:
        return self.name.startswith("fp8")

    def is_fp8e4nv(self) -> bool:
        return self.name == "fp8e4nv"

    def is_fp8e4b8(self) -> bool:
        return self.name == "fp8e4b8"

    def is_fp8e4b15(self) -> bool:
        return self.name == "fp8e4b15"

    def is_fp8e5(self) -> bool:
        return self.name == "fp8e5"

    def is_fp8e5b16(self) -> bool:
        return self.name == "fp8e5b16"

    def is_fp16(self) -> bool:
        return self.name == "fp16"

    def is_bf16(self) -> bool:
        return self.name == "bf16"

    def is_fp32(self) -> bool:
        return self.name == "fp32"

    def is_fp64(self) -> bool:
        return self.name == "fp64"

    def is_int1(self) -> bool:
        return self.name == "int1"

    def is_int8(self) -> bool:
        return self.name == "int8"

    def is_int16(self) -> bool:
        return self.name == "int16"

    def is_int32(self) -> bool:
        return self.name == "int32"

    def is_int64(self) -> bool:
        return self.name == "int64"

    def is_uint8(self) -> bool:
        return self.name == "uint8"

    def is_uint16(self) -> bool:
        return self.name == "uint16"

    def is_uint32(self) -> bool:
        return self.name == "uint32"

    def is_uint64(self) -> bool:
        return self.name == "uint64"

    def is_bool(self) -> bool:
        return self.name == "int1"

    def is_floating(self) -> bool:
        return self.name in _FLOATS

    def is_standard_floating(self) -> bool:
        return self.name in _FLOATS and not self.is_fp8()

    def is_int_signed(self) -> bool:
        return self.name in _SIGNED

    def is_int_unsigned(self) -> bool:
        return self.name in _UNSIGNED

    def is_int(self) -> bool:
        return self.name in _SIGNED or self.name in _UNSIGNED

    def is_void(self) -> bool:
        return self.name == "void"

    def is_block(self) -> bool:
        return False

    def is_ptr(self) -> bool:
        return False

    def is_const(self) -> bool:
        return False

    @staticmethod
    def is_dtype(name: str) -> bool:
        return name in _SIGNED or name in _UNSIGNED or name in _FLOATS or name == "void"

    def kind(self) -> dtype.KIND:
        if self.is_bool():
            return self.KIND.BOOLEAN
        if self.is_int():
            return self.KIND.INTEGRAL
        if self.is_floating():
            return self.KIND.FLOATING
        raise Invalid(f"{self} is no number")

    def get_int_max_value(self) -> int:
        return (1 << (self.int_bitwidth - self.is_int_signed())) - 1

    def get_int_min_value(self) -> int:
        return -(1 << (self.int_bitwidth - 1)) if self.is_int_signed() else 0

    def with_element_ty(self, element: dtype) -> dtype:
        return element

    def codegen_name(self) -> str:
        if self.name.startswith("fp"):
            return "float" + self.name[2:]
        return "bfloat16" if self.name == "bf16" else self.name

    @property
    def cache_key_part(self) -> str:
        return self.name

    def mangle(self) -> str:
        if self.is_int():
            return f"{'i' if self.is_int_signed() else 'u'}{self.int_bitwidth}"
        return "V" if self.is_void() else self.name

    def __eq__(self, other: object) -> bool:
        other = unwrap(other)
        return isinstance(other, dtype) and type(other) is type(self) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"tilewright.language.{self.codegen_name()}"


class pointer_type(dtype):
    def __init__(self, element_ty: Any, address_space: Any = "global", const: Any = False):
        element = unwrap(element_ty)
        if not isinstance(element, dtype):
            raise Invalid(
                f"a pointer to {element!r}, which is no element type", hint="tl.float32 …"
            )
        self.element_ty = element
        self.address_space = unwrap(address_space)
        self.const = bool(unwrap(const))
        self.name = f"{'const_' if self.const else ''}pointer<{element}>"
        self.primitive_bitwidth = 64
        inner = element.ir
        # An address of addresses holds them as integers of 64 bits.
        self._ir = Pointer(DTYPES["i64"] if isinstance(inner, Pointer) else inner)

    def is_ptr(self) -> bool:
        return True

    def is_const(self) -> bool:
        return self.const

    def mangle(self) -> str:
        return f"P{self.element_ty.mangle()}"

    def __repr__(self) -> str:
        return self.name


class block_type(dtype):
    def __init__(self, element_ty: dtype, shape: Any):
        self.element_ty = element_ty
        self._shape = builtins.tuple(unwrap(s) for s in unwrap(shape))
        if not self._shape:
            raise Invalid("a block of no axes", hint="a scalar has the element's type itself")
        check_shape(self._shape)
        self.name = f"<{list(self._shape)}, {element_ty}>"

    @property
    def ir(self) -> Element:
        return self.element_ty.ir

    @property
    def scalar(self) -> dtype:
        return self.element_ty

    @property
    def shape(self) -> builtins.tuple[int, ...]:
        return self._shape

    @property
    def numel(self) -> int:
        return prod(self._shape)

    @property
    def nbytes(self) -> int:
        return self.numel * (self.element_ty.primitive_bitwidth // 8)

    def is_block(self) -> bool:
        return True

    def get_block_shapes(self) -> builtins.tuple[int, ...]:
        return self._shape

    def with_element_ty(self, element: dtype) -> dtype:
        return block_type(element, self._shape)

    def mangle(self) -> str:
        return f"{self.element_ty.mangle()}S{'_'.join(map(str, self._shape))}S"

    def __repr__(self) -> str:
        return self.name


class tuple_type(base_type):
    def __init__(self, types: Sequence[Any], fields: Sequence[str] | None = None):
        self.types = list(types)
        self.fields = list(fields) if fields is not None else None

    @property
    def name(self) -> str:
        named = self.fields or [""] * len(self.types)
        parts = (f"{f}:{t}" if f else str(t) for f, t in zip(named, self.types, strict=True))
        return f"[{','.join(parts)}]"

    def __iter__(self) -> Any:
        return iter(self.types)

    def __len__(self) -> int:
        return len(self.types)

    def __getitem__(self, index: int) -> Any:
        return self.types[index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, tuple_type):
            return False
        return self.types == other.types and self.fields == other.fields

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    def mangle(self) -> str:
        return f"T{'_'.join(t.mangle() for t in self.types)}T"


class slice_type(base_type):
    pass


void = dtype("void")
int1, int8, int16, int32, int64 = map(dtype, ("int1", "int8", "int16", "int32", "int64"))
uint8, uint16, uint32, uint64 = map(dtype, ("uint8", "uint16", "uint32", "uint64"))
float8e5, float8e5b16 = dtype("fp8e5"), dtype("fp8e5b16")
float8e4nv, float8e4b8, float8e4b15 = dtype("fp8e4nv"), dtype("fp8e4b8"), dtype("fp8e4b15")
float16, bfloat16, float32, float64 = map(dtype, ("fp16", "bf16", "fp32", "fp64"))
pi32_t = pointer_type(int32)

_SCALARS: dict[Element, dtype] = {
    t.ir: t
    for t in (
        *(int1, int8, int16, int32, int64, uint8, uint16, uint32, uint64),
        *(float8e5, float8e5b16, float8e4nv, float8e4b8, float8e4b15),
        *(float16, bfloat16, float32, float64),
    )
}
_POINTERS = {Pointer(e): pointer_type(t) for e, t in _SCALARS.items() if isinstance(e, DType)}


def dtype_of(element: Element) -> dtype:
    """The type of the language that an element of the tile IR has."""
    return _POINTERS[element] if isinstance(element, Pointer) else _SCALARS[element]


def type_of(t: TileType) -> dtype:
    """The same for a whole tile: a scalar's type, or a block's."""
    scalar = dtype_of(t.element)
    return block_type(scalar, t.shape) if t.shape else scalar


def get_int_dtype(bitwidth: Any, signed: Any) -> dtype:
    bits, sign = unwrap(bitwidth), unwrap(signed)
    name = "int1" if bits == 1 else f"{'' if sign else 'u'}int{bits}"
    if not dtype.is_dtype(name):
        raise Invalid(f"there is no integer of {bits} bits", hint="1, 8, 16, 32 or 64")
    return dtype(name)


def check_shape(shape: Sequence[Any]) -> builtins.tuple[int, ...]:
    """A shape of powers of two, not too many elements in all."""
    for k, s in enumerate(shape):
        if isinstance(s, bool) or not isinstance(s, int):
            what = f"the size of axis {k} is {s!r}, which is not known while compiling"
            raise Invalid(what, hint="sizes of tiles are tl.constexpr parameters or numbers")
        if s <= 0 or s & (s - 1):
            larger = 1 << max(0, s - 1).bit_length()
            what = f"the size of axis {k} of {list(shape)} is {s}, which is no power of two"
            raise Invalid(what, hint=f"take {larger} and mask what lies outside")
    if prod(shape) > MAX_NUMEL:
        what = f"a tile of {list(shape)} has {prod(shape)} elements, more than {MAX_NUMEL}"
        raise Invalid(what, hint="loop over smaller tiles")
    return builtins.tuple(shape)
