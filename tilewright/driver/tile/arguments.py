"""What the arguments of a launch are to a kernel.

Each argument has a kind, on which the kernel is specialised, and a value, which the launch gives:
a tensor is a pointer to its dtype (aligned to 16 bytes or not) and an address; an int is an i32, an
i64 or a u64 (a multiple of 16 or not, positive or not; 1 is a constant) and a number. Kinds are
interned, so a tuple of them is a cheap key. Handlers are looked up by class: the usual arguments
take one call each.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from tilewright.base.errors import Invalid, Unsupported
from tilewright.ir.types import DTYPES, DType
from tilewright.lang.tile.front.functions import (
    MISSING,
    Argument,
    ConstexprFunction,
    Parameter,
    TileFunction,
)
from tilewright.lang.tile.ir import Pointer
from tilewright.lang.tile.language.descriptors import TensorDescriptor
from tilewright.lang.tile.language.types import constexpr, dtype, pointer_type
from tilewright.runtime.cuda.device import gpu_at

# What a dtype is called in annotations and signatures, by Triton, torch and numpy: ours.
TYPE_NAMES: dict[str, str] = {
    **{f"uint{n}": f"u{n}" for n in (8, 16, 32, 64)},
    **{f"u{n}": f"u{n}" for n in (8, 16, 32, 64)},
    **{f"int{n}": f"i{n}" for n in (8, 16, 32, 64)},
    **{f"i{n}": f"i{n}" for n in (8, 16, 32, 64)},
    **dict.fromkeys(("bool", "bool_", "int1", "uint1", "i1", "u1"), "bool"),
    **dict.fromkeys(("float16", "half", "fp16"), "f16"),
    **dict.fromkeys(("bfloat16", "bf16"), "bf16"),
    **dict.fromkeys(("float32", "float", "fp32"), "f32"),
    **dict.fromkeys(("float64", "double", "fp64"), "f64"),
    "int": "i32",
    **dict.fromkeys(("float8_e4m3fn", "float8e4nv", "fp8e4nv"), "f8e4m3"),
    **dict.fromkeys(("float8_e5m2", "float8e5", "fp8e5"), "f8e5m2"),
    **dict.fromkeys(("float8e4b15", "fp8e4b15"), "f8e4b15"),
    **dict.fromkeys(("float8_e4m3fnuz", "float8e4b8", "fp8e4b8"), "f8e4b8"),
    **dict.fromkeys(("float8_e5m2fnuz", "float8e5b16", "fp8e5b16"), "f8e5b16"),
}
ALIGNMENT = 16
ANYWHERE = -1  # in place of a GPU's number: what has no address is on no device


class TooWide(Invalid, OverflowError):
    """A number that no integer of a kernel holds."""


class BadArguments(Invalid, TypeError):
    """Arguments that a kernel cannot be launched with."""


class Kind:
    """What a kernel knows of one argument. Compared by identity: make it with the functions below,
    which cache one of each."""

    __slots__ = ("argument", "text", "gpu")

    def __init__(self, argument: Argument, text: str, gpu: int | None = None):
        self.argument = argument
        self.text = text  # as in a signature: *fp32, i32:16, 1
        self.gpu = gpu  # on which a tensor is; None: in the processor's memory

    def __repr__(self) -> str:
        return self.text


# What handlers give: the kind (or a tuple of kinds: a tuple) and the value of the launch.
Bound = tuple[Any, Any]


@cache
def pointer_kind(to: DType, aligned: bool, gpu: int | None = None) -> Kind:
    kind = Argument.pointer(to, ALIGNMENT if aligned else 1)
    where = "" if gpu in (None, ANYWHERE) else f"@cuda:{gpu}"
    return Kind(kind, f"*{to.name}{':16' if aligned else ''}{where}", gpu)


def scalar_kind(element: DType, divisor: int = 1, positive: bool = False) -> Kind:
    return _scalar_kind(element, divisor, positive)


@cache  # the cache would take f(x) and f(x, 1) for two keys
def _scalar_kind(element: DType, divisor: int, positive: bool) -> Kind:
    text = f"{element.name}{'+' if positive else ''}{f':{divisor}' if divisor > 1 else ''}"
    return Kind(Argument.scalar(element, divisor, positive), text)


_constants: dict[Any, Kind] = {}


def constant_kind(value: Any) -> Kind:
    key = (value.__class__, constant_key(value))
    found = _constants.get(key)
    if found is None:
        found = _constants.setdefault(key, Kind(Argument.constant(value), f"={value!r}"))
    return found


# Classes whose equal values are the same constant.
PLAIN = frozenset((int, bool, str, type(None)))


def constant_key(value: Any) -> Any:
    """A hashable key that distinguishes constants of one class: 0.0 and -0.0 are two, (1,) and
    (True,) as well, and a function is its text."""
    if value.__class__ in PLAIN:
        return value
    if isinstance(value, constexpr):
        return constant_key(value.value)
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, (tuple, list)):
        return tuple((v.__class__, constant_key(v)) for v in value)
    if isinstance(value, dict):
        return tuple((k, v.__class__, constant_key(v)) for k, v in value.items())
    if isinstance(value, (TileFunction, ConstexprFunction)):
        return value.hash()
    try:
        hash(value)
    except TypeError:
        raise Invalid(
            f"a {type(value).__name__} is no constant: it has no hash",
            hint="give numbers, strings, tuples, dtypes and functions as constexpr",
        ) from None
    return value


# ---- handlers


_descriptors: dict[Any, Kind] = {}


def descriptor_kind(x: TensorDescriptor, base: Kind) -> Kind:
    rank, block = len(x.shape), tuple(map(int, x.block_shape))
    element = base.argument.element
    assert isinstance(element, Pointer)
    # Rows that are apart by multiples of 16 bytes, and such that are as long.
    unit = max(1, ALIGNMENT // element.to.bytes)
    whole = all(n > 0 and n % unit == 0 for n in x.strides[:-1])
    full = x.shape[-1] % unit == 0
    key = (base, rank, block, x.padding, whole, full)
    found = _descriptors.get(key)
    if found is None:
        sizes = [Argument.scalar(DTYPES["i32"], positive=True)] * (rank - 1)
        sizes.append(Argument.scalar(DTYPES["i32"], unit if full else 1, positive=True))
        steps = Argument.scalar(DTYPES["i64"], unit if whole else 1, positive=whole)
        parts = [base.argument, *sizes, *[steps] * (rank - 1), Argument.constant(1)]
        known = f"{':16' * whole}{':full' * full}"
        text = f"tensordesc<{base.text[1:]}[{','.join(map(str, block))}]{known}>"
        make = _Made(f"{text} {rank} {x.padding}", x.maker())
        found = _descriptors.setdefault(key, Kind(Argument.group(parts, make), text, base.gpu))
    return found


@dataclass(frozen=True)
class _Made:
    """Puts the parts of an argument together; the text says how, to be compared."""

    text: str
    make: Callable[[tuple[Any, ...]], Any]

    def __call__(self, parts: tuple[Any, ...]) -> Any:
        return self.make(parts)


@dataclass
class Handlers(dict[type, Callable[[Any], Bound]]):
    """How arguments of each class are bound, by what a parameter allows: `one` makes 1 a constant,
    `align` looks for multiples of 16, `declared` is the element that an annotation names."""

    one: bool = True
    align: bool = True
    declared: DType | Pointer | None = None
    pointers: dict[Any, tuple[Kind, Kind]] = field(default_factory=dict)

    @property
    def binds_integers(self) -> bool:
        """Is the kind of an integer that of its value?"""
        return not isinstance(self.declared, DType)

    def __missing__(self, kind: type) -> Callable[[Any], Bound]:
        found = self[kind] = self._learn(kind)
        return found

    def __hash__(self) -> int:
        return id(self)

    def _learn(self, kind: type) -> Callable[[Any], Bound]:
        torch = sys.modules.get("torch")
        if torch is not None and issubclass(kind, torch.Tensor):
            return self._tensor
        if issubclass(kind, np.ndarray):
            return self._array
        if issubclass(kind, (bool, np.bool_)):
            return self._boolean
        if issubclass(kind, (int, np.integer)):
            return self._integers() if kind is int else _after(int, self._integers())
        if issubclass(kind, (float, np.floating)):
            return self._float
        if kind is type(None) or issubclass(kind, (TileFunction, ConstexprFunction, dtype)):
            return lambda x: (constant_kind(x), None)
        if issubclass(kind, constexpr):
            return lambda x: (constant_kind(x.value), None)
        if issubclass(kind, tuple):
            return self._tuple
        if issubclass(kind, TensorDescriptor):
            return self._descriptor
        if hasattr(kind, "data_ptr"):
            return self._wrapped
        if hasattr(kind, "__dlpack__"):
            return self._dlpack
        if torch is not None and kind is torch.dtype:
            return lambda x: (constant_kind(element_of(x)), None)
        raise Invalid(
            f"a {kind.__module__}.{kind.__qualname__} cannot be an argument of a kernel",
            hint="give tensors, arrays, numbers or tuples of them; other things as constants, to "
            "parameters annotated with tl.constexpr",
        )

    def _pair(self, kind: Any, gpu: int | None = None) -> tuple[Kind, Kind]:
        """What a pointer to elements of a dtype is, without and with an aligned address."""
        key = kind if gpu is None else (kind, gpu)
        pair = self.pointers.get(key)
        if pair is None:
            declared = self.declared
            to = declared.to if isinstance(declared, Pointer) else element_of(kind)
            pair = pointer_kind(to, False, gpu), pointer_kind(to, self.align, gpu)
            self.pointers[key] = pair
        return pair

    def _tensor(self, x: Any) -> Bound:
        gpu = None if x.is_cpu else _number_of(x)
        try:
            address = x.data_ptr()
        except RuntimeError:
            raise _without_memory(x) from None
        if not address:
            _check_memory(x, address)
        return self._pair(x.dtype, gpu)[not address & 15], address

    def _array(self, x: Any) -> Bound:
        address = x.__array_interface__["data"][0]
        if not x.dtype.isnative:
            raise Invalid(
                f"an array of {x.dtype.str}, which is not this machine's order of bytes",
                hint="x.astype(x.dtype.newbyteorder('='))",
            )
        if x.strides and min(x.strides) < 0:
            raise Invalid(
                "an array that runs backwards: its first element is the last in memory",
                hint="np.ascontiguousarray(x), or give what it is a view of and go backwards in "
                "the kernel",
            )
        return self._pair(x.dtype)[not address & 15], address

    def _wrapped(self, x: Any) -> Bound:
        """Something with a dtype and a data_ptr(): a tensor under another dtype, a stand-in, an
        address with a type."""
        address, base = x.data_ptr(), getattr(x, "base", None)
        if not address and hasattr(base, "is_cpu"):
            _check_memory(base, address)
        return self._pair(x.dtype, gpu_holding(x))[not address & 15], address

    def _dlpack(self, x: Any) -> Bound:
        device, _ = x.__dlpack_device__()
        if device != 1:
            raise _elsewhere(f"DLPack device {int(device)}")
        torch = sys.modules.get("torch")
        try:
            view = np.from_dlpack(x) if torch is None else torch.from_dlpack(x)
        except (BufferError, RuntimeError, TypeError, ValueError) as problem:
            raise Invalid(
                f"a {type(x).__qualname__} whose memory DLPack does not give: {problem}",
                hint="give a copy that can be written, as a tensor or an array",
            ) from None
        return self[type(view)](view)

    def _boolean(self, x: Any) -> Bound:
        if isinstance(self.declared, DType) and self.declared is not DTYPES["bool"]:
            return scalar_kind(self.declared), int(x)
        return scalar_kind(DTYPES["bool"]), bool(x)

    def _float(self, x: Any) -> Bound:
        if isinstance(self.declared, DType):
            if not self.declared.is_float:
                raise Invalid(f"{x!r} for a parameter declared as {self.declared}")
            return scalar_kind(self.declared), float(x)
        return scalar_kind(DTYPES["f32"]), float(x)

    def _integers(self) -> Callable[[Any], Bound]:
        if not self.binds_integers:
            return self._declared_integer
        small, large, unsigned = (DTYPES[n] for n in ("i32", "i64", "u64"))
        one, ones = constant_kind(1), self.one
        divisor = ALIGNMENT if self.align else 1
        plain, multiple = scalar_kind(small), scalar_kind(small, divisor)
        positive, many = scalar_kind(small, 1, ones), scalar_kind(small, divisor, ones)

        def integer(x: int) -> Bound:
            if 0 < x <= 0x7FFFFFFF:
                if x == 1 and ones:
                    return one, None
                return (positive if x & 15 else many), x
            if -0x80000000 <= x <= 0:
                return (plain if x & 15 else multiple), x
            if -(1 << 63) <= x < 1 << 63:
                element = large
            elif 0 <= x < 1 << 64:
                element = unsigned
            else:
                raise TooWide(
                    f"{x} does not fit into 64 bits", hint="give a float, or two numbers of 64 bits"
                )
            return scalar_kind(element, 1 if x & 15 else divisor, ones and x > 0), x

        return integer

    def _declared_integer(self, x: int) -> Bound:
        element = self.declared
        assert isinstance(element, DType)
        if element.is_float:
            return scalar_kind(element), float(x)
        if element.is_bool:
            return scalar_kind(element), bool(x)
        if x == 1 and self.one:
            return constant_kind(1), None
        if not element.lowest <= x <= element.highest:
            raise Invalid(
                f"{x} does not fit into {element}, as which the parameter is declared",
                hint="declare it wider, or leave the annotation away",
            )
        divisor = 1 if x & 15 or not self.align else ALIGNMENT
        return scalar_kind(element, divisor, self.one and x > 0), x

    def _tuple(self, x: tuple[Any, ...]) -> Bound:
        bound = [self[v.__class__](v) for v in x]
        values = tuple(v for _, v in bound)
        kinds = tuple(k for k, _ in bound)
        return (kinds, type(x)) if hasattr(x, "_fields") else (kinds, tuple), values

    def _descriptor(self, x: TensorDescriptor) -> Bound:
        base, address = self[x.base.__class__](x.base)
        return descriptor_kind(x, base), (address, *map(int, x.shape), *map(int, x.strides))


def _after(first: Callable[[Any], Any], then: Callable[[Any], Bound]) -> Callable[[Any], Bound]:
    return lambda x: then(first(x))


def gpu_holding(x: Any) -> int | None:
    """The GPU in whose memory a tensor, or what stands for one, is; None: it is the processor's.
    An object that only gives an address may say anything of its device, or nothing: the driver
    knows whose memory an address is."""
    tensor = x if hasattr(x, "is_cpu") else getattr(x, "base", None)
    if hasattr(tensor, "is_cpu"):
        return None if tensor.is_cpu else _number_of(tensor)
    address = x.data_ptr()
    return gpu_at(address) if address else ANYWHERE


def _number_of(x: Any) -> int:
    """The GPU of a tensor that is not in the processor's memory."""
    if x.device.type != "cuda":
        raise _elsewhere(str(x.device))
    return x.device.index


def _check_memory(x: Any, address: int) -> None:
    if not address and x.numel():
        if type(x).__name__ == "FakeTensor" or x.untyped_storage().nbytes():
            raise _without_memory(x)
        raise Invalid(
            "a tensor whose memory is freed", hint="its storage was resized to nothing or moved"
        )


def _without_memory(x: Any) -> Invalid:
    kind = str(x.layout) if str(x.layout) != "torch.strided" else type(x).__name__
    return Invalid(
        f"a tensor that has no memory of its own ({kind})",
        hint="x.to_dense() or x.clone(); inside torch.vmap, torch.func or a trace there is none "
        "to pass to a kernel: launch outside of it",
    )


def _elsewhere(device: str) -> Invalid:
    return Invalid(
        f"a tensor on {device}, which code for this CPU cannot reach",
        hint="x.cpu() first; for scripts that use device='cuda': "
        "python -m tilewright.triton --device cpu script.py",
    )


@cache
def element_of(kind: Any) -> DType:
    """Our element for a dtype of torch, of numpy, of a kernel, or for the name of one."""
    own = kind.ir if isinstance(kind, dtype) else None
    if isinstance(own, DType):
        return own
    name = kind if isinstance(kind, str) else getattr(kind, "name", None) or str(kind)
    found = DTYPES.get(TYPE_NAMES.get(name.rsplit(".", 1)[-1], ""))
    if found is None:
        raise Unsupported(
            f"elements of {name} are unknown to kernels",
            hint="give floats, integers or bools; complex numbers as two tensors "
            "(torch.view_as_real)",
        )
    return found


# ---- parameters


def declared_element(p: Parameter) -> DType | Pointer | None:
    """The element that an annotation names, such as tl.int64, "*fp32", int; None: it names none."""
    a = p.annotation
    if a is MISSING or p.is_constexpr:
        return None
    if isinstance(a, pointer_type):
        return Pointer(element_of(a.element_ty))
    if isinstance(a, dtype):
        return element_of(a)
    text = p.annotation_text.removeprefix("const ").replace("tl.", "").strip()
    pointer = text.startswith("*") or text.endswith("*")
    text = text.strip("* ").removeprefix("k") if pointer else text
    found = DTYPES.get(TYPE_NAMES.get(text.removesuffix("_t"), ""))
    return Pointer(found) if pointer and found is not None else found


@cache
def handlers(one: bool, align: bool, declared: DType | Pointer | None) -> Handlers:
    return Handlers(one=one, align=align, declared=declared)


def handlers_of(p: Parameter) -> Handlers:
    special = not p.do_not_specialize
    return handlers(special, special and not p.do_not_specialize_on_alignment, declared_element(p))


def argument_of(kind: Any) -> Argument:
    if isinstance(kind, Kind):
        return kind.argument
    kinds, container = kind
    make = None
    if container is not tuple:
        text = f"{container.__module__}.{container.__qualname__}{container._fields}"
        make = _Made(text, lambda parts: container(*parts))
    return Argument.group([argument_of(k) for k in kinds], make)


def gpus_of(kind: Any) -> set[int | None]:
    """The GPUs on which the tensors of an argument are; None of those that are on none."""
    if not isinstance(kind, Kind):
        return set().union(*map(gpus_of, kind[0]))
    element = kind.argument.element
    tensor = isinstance(element, Pointer) or kind.argument.parts is not None
    return {kind.gpu} if tensor and kind.gpu != ANYWHERE else set()


def leaves(argument: Argument, value: Any) -> Iterator[Any]:
    """What a launch gives for one argument, in the order of the kernel's."""
    if argument.parts is not None:
        for part, v in zip(argument.parts, value, strict=True):
            yield from leaves(part, v)
    elif argument.element is not None:
        yield value
