"""`tensor`, the value that kernels compute with, and the other things their variables hold.

A tensor wraps a value of the tile IR and has Triton's operators and methods; the functions of the
language (core.py) and of its library (standard.py) become methods with `member`.
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tilewright.base.errors import Invalid
from tilewright.lang.tile.builder import building
from tilewright.lang.tile.ir import Pointer, Value
from tilewright.lang.tile.language import promote, semantic, types
from tilewright.lang.tile.language.promote import Operand, described
from tilewright.lang.tile.language.types import (
    base_value,
    block_type,
    constexpr,
    constexpr_type,
    dtype,
    dtype_of,
    int32,
    int64,
    pointer_type,
    slice_type,
    tuple_type,
    unwrap,
)

F = TypeVar("F", bound=Callable[..., Any])


# The builder that Triton's own functions pass to each other; ours get it from `builder.py`.
_HANDED = ("_semantic", "_builder", "_generator")


def builtin(function: F) -> F:
    """Marks a function that is called as it is while a kernel is compiled. Libraries pass such
    functions Triton's builder: the argument is accepted and ignored."""
    code = function.__code__
    own = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    dropped = [name for name in _HANDED if name not in own]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            for name in dropped:
                kwargs.pop(name, None)
        return function(*args, **kwargs)

    call.__tile_builtin__ = True  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def member(function: F) -> F:
    """Also makes a function of the language, or of its library, a method of tensors."""
    name = getattr(function, "__name__", None) or function.name  # type: ignore[attr-defined]

    def method(self: tensor, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    method.__name__ = name
    method.__doc__ = function.__doc__
    setattr(tensor, name, builtin(method))
    return function


def operand(x: Any) -> Operand:
    """What the rules compute with: a value of the IR or a Python number."""
    if isinstance(x, tensor):
        return x.handle
    found = promote.number(unwrap(x))
    if found is None:
        what = f"{x!r} where a tensor or a number is needed"
        raise Invalid(what, hint="kernels compute with tensors, numbers and tl.constexpr values")
    return found


def value(x: Any) -> Value:
    """The same, a number as a constant."""
    return promote.value_of(operand(x))


def wrap(v: Value, like: Any = None) -> tensor:
    """A tensor around a value. A pointer to constant elements stays one (`like`)."""
    if isinstance(v.element, Pointer) and isinstance(like, tensor) and like.dtype.is_const():
        return tensor(v, pointer_type(dtype_of(v.element.to), const=True))
    return tensor(v)


class tensor(base_value):
    """A tile of numbers or pointers, or a single one (of shape `()`)."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, handle: Value, type: dtype | None = None):
        self.handle = handle
        self.dtype: Any = dtype_of(handle.element) if type is None else type.scalar

    @property
    def type(self) -> Any:
        shape = self.handle.shape
        return block_type(self.dtype, shape) if shape else self.dtype

    @property
    def shape(self) -> tuple:
        return tuple([constexpr(s) for s in self.handle.shape])

    @property
    def numel(self) -> constexpr:
        return constexpr(self.handle.type.size)

    @property
    def T(self) -> tensor:
        """The transpose of a tile with two axes."""
        shape = self.handle.shape
        if len(shape) != 2:
            raise Invalid(
                f".T of {described(self.handle)}", hint="it is for two axes: tl.trans or tl.permute"
            )
        kind = self.handle.type.with_shape(shape[::-1])
        return wrap(promote.emit("permute", (self.handle,), kind, {"order": (1, 0)}), self)

    def flatten(self) -> list[tensor]:
        return [self]

    def rebuild(self, tensors: Sequence[tensor]) -> tensor:
        return wrap(tensors[0].handle, self)

    def __str__(self) -> str:
        kind = described(self.handle)
        # Step by step the elements are known, and print(x) is there to see them.
        return f"{kind} {self.handle}" if hasattr(self.handle, "array") else kind

    def __repr__(self) -> str:
        kind = described(self.handle)
        return (
            f"tensor({kind}, {self.handle})" if hasattr(self.handle, "array") else f"tensor({kind})"
        )

    # What is inside is known only when the kernel runs step by step.

    def _known(self, what: str) -> Any:
        array, kind = getattr(self.handle, "array", None), described(self.handle)
        if array is None:
            hint = "tl.where chooses element by element; sizes and flags are tl.constexpr"
            raise Invalid(f"{what} of {kind} is not known while the kernel is compiled", hint=hint)
        if array.size != 1:
            raise Invalid(f"{what} of {kind}, which has many elements", hint="reduce it first")
        return array.reshape(-1)[0]

    def __bool__(self) -> bool:
        return bool(self._known("the truth"))

    def __index__(self) -> int:
        return int(self._known("the value"))

    def __int__(self) -> int:
        return int(self._known("the value"))

    def __float__(self) -> float:
        return float(self._known("the value"))

    # arithmetic

    def __add__(self, other: Any) -> tensor:
        return wrap(semantic.add(self.handle, operand(other)), _pointer(self, other))

    def __radd__(self, other: Any) -> tensor:
        return wrap(semantic.add(operand(other), self.handle), _pointer(self, other))

    def __sub__(self, other: Any) -> tensor:
        return wrap(semantic.sub(self.handle, operand(other)), self)

    def __rsub__(self, other: Any) -> tensor:
        return wrap(semantic.sub(operand(other), self.handle))

    def __mul__(self, other: Any) -> tensor:
        return wrap(semantic.mul(self.handle, operand(other)))

    def __rmul__(self, other: Any) -> tensor:
        return wrap(semantic.mul(operand(other), self.handle))

    def __truediv__(self, other: Any) -> tensor:
        return wrap(semantic.truediv(self.handle, operand(other)))

    def __rtruediv__(self, other: Any) -> tensor:
        return wrap(semantic.truediv(operand(other), self.handle))

    def __floordiv__(self, other: Any) -> tensor:
        return wrap(semantic.floordiv(self.handle, operand(other)))

    def __rfloordiv__(self, other: Any) -> tensor:
        return wrap(semantic.floordiv(operand(other), self.handle))

    def __mod__(self, other: Any) -> tensor:
        return wrap(semantic.mod(self.handle, operand(other)))

    def __rmod__(self, other: Any) -> tensor:
        return wrap(semantic.mod(operand(other), self.handle))

    def __neg__(self) -> tensor:
        return wrap(semantic.minus(self.handle))

    def __pos__(self) -> tensor:
        return self

    def __invert__(self) -> tensor:
        return wrap(semantic.invert(self.handle))

    # bits

    def __and__(self, other: Any) -> tensor:
        return wrap(semantic.and_(self.handle, operand(other)))

    def __rand__(self, other: Any) -> tensor:
        return wrap(semantic.and_(operand(other), self.handle))

    def __or__(self, other: Any) -> tensor:
        return wrap(semantic.or_(self.handle, operand(other)))

    def __ror__(self, other: Any) -> tensor:
        return wrap(semantic.or_(operand(other), self.handle))

    def __xor__(self, other: Any) -> tensor:
        return wrap(semantic.xor_(self.handle, operand(other)))

    def __rxor__(self, other: Any) -> tensor:
        return wrap(semantic.xor_(operand(other), self.handle))

    def __lshift__(self, other: Any) -> tensor:
        return wrap(semantic.shl(self.handle, operand(other)))

    def __rlshift__(self, other: Any) -> tensor:
        return wrap(semantic.shl(operand(other), self.handle))

    def __rshift__(self, other: Any) -> tensor:
        return wrap(semantic.shr(self.handle, operand(other), self.dtype.is_int_signed()))

    def __rrshift__(self, other: Any) -> tensor:
        return wrap(semantic.shr(operand(other), self.handle, self.dtype.is_int_signed()))

    # comparisons

    def __lt__(self, other: Any) -> tensor:
        return wrap(semantic.compare("lt", self.handle, operand(other)))

    def __le__(self, other: Any) -> tensor:
        return wrap(semantic.compare("le", self.handle, operand(other)))

    def __gt__(self, other: Any) -> tensor:
        return wrap(semantic.compare("gt", self.handle, operand(other)))

    def __ge__(self, other: Any) -> tensor:
        return wrap(semantic.compare("ge", self.handle, operand(other)))

    def __eq__(self, other: Any) -> tensor:  # type: ignore[override]
        return wrap(semantic.compare("eq", self.handle, operand(other)))

    def __ne__(self, other: Any) -> tensor:  # type: ignore[override]
        return wrap(semantic.compare("ne", self.handle, operand(other)))

    def logical_and(self, other: Any) -> tensor:
        return wrap(semantic.logical_and(self.handle, operand(other)))

    def logical_or(self, other: Any) -> tensor:
        return wrap(semantic.logical_or(self.handle, operand(other)))

    def __not__(self) -> tensor:
        """`not x`, for which Python itself would call `__bool__`."""
        return wrap(semantic.logical_not(self.handle))

    # shapes

    def __getitem__(self, key: Any) -> tensor:
        """`x[:, None]`: an axis of one for every None; nothing else indexes a tile."""
        key = unwrap(key)
        parts = list(key) if isinstance(key, (builtins.tuple, tuple, list)) else [key]
        shape = list(self.handle.shape)
        for at, part in enumerate(map(unwrap, parts)):
            if part is None:
                shape.insert(at, 1)
            elif not (isinstance(part, (builtins.slice, slice)) and _is_everything(part)):
                what = f"unsupported tensor index: {described(self.handle)}[{part}]"
                hint = "only `:` and None; tl.gather or a masked load select"
                if self.dtype.is_ptr():
                    hint = (
                        "a pointer is read and written through: tl.load(p + i), tl.store(p + i, x)"
                    )
                raise Invalid(what, hint=hint)
        return wrap(promote.reshape(self.handle, shape), self)

    def to(self, dtype: Any, fp_downcast_rounding: Any = None, bitcast: Any = False) -> tensor:
        """The same numbers (or with `bitcast` the same bits) as another type."""
        kind, rounding = unwrap(dtype), unwrap(fp_downcast_rounding)
        if unwrap(bitcast):
            return wrap(promote.bitcast(self.handle, _as_dtype(kind)))
        return wrap(promote.cast(self.handle, _as_dtype(kind), rounding))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


def _as_dtype(kind: Any) -> dtype:
    if not isinstance(kind, dtype):
        name = str(kind).removeprefix("torch.")
        known = isinstance(getattr(types, name, None), dtype)
        raise Invalid(
            f"{kind!r} is no element type", hint=f"tl.{name}" if known else "tl.float32, tl.int8, …"
        )
    return kind


def _pointer(a: Any, b: Any) -> Any:
    return a if a.dtype.is_ptr() else b


def _is_everything(part: Any) -> bool:
    return all(unwrap(x) is None for x in (part.start, part.stop, part.step))


def _takes_other(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and code.co_varnames[1:2] == ("other",)


for _name, _function in builtins.tuple(vars(tensor).items()):
    # Libraries call operators by name, with the same extra arguments as functions.
    if _name == "to" or _takes_other(_function):
        setattr(tensor, _name, builtin(_function))


class tuple(base_value):
    """Several values in one variable, with names where it comes from a named tuple."""

    def __init__(self, args: Sequence[Any] | Iterator[Any] = (), type: Any = None):
        self.values = list(args)
        fields = type.fields if isinstance(type, tuple_type) else None
        self.fields: list[str] | None = fields

    @property
    def type(self) -> tuple_type:
        return tuple_type([_type(v) for v in self.values], self.fields)

    def flatten(self) -> list[tensor]:
        return [t for v in self.values if isinstance(v, base_value) for t in v.flatten()]

    def rebuild(self, tensors: Sequence[tensor]) -> Any:
        rest = list(tensors)
        made = []
        for v in self.values:
            n = len(v.flatten()) if isinstance(v, base_value) else 0
            made.append(v.rebuild(rest[:n]) if n else v)
            rest = rest[n:]
        return type(self)(made, self.type)

    def __getitem__(self, key: Any) -> Any:
        key = unwrap(key)
        if isinstance(key, (builtins.slice, slice)):
            return tuple(self.values[unwrap(key.start) : unwrap(key.stop) : unwrap(key.step)])
        if isinstance(key, tensor):
            what = f"a tuple indexed with {key}"
            raise Invalid(what, hint="the index is a constant: loop with tl.static_range")
        return self.values[key]

    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__.get("fields")
        if not fields or name not in fields:
            raise AttributeError(f"the tuple has no field {name}")
        return self.values[fields.index(name)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def __add__(self, other: Any) -> tuple:
        return tuple([*self.values, *unwrap(other)])

    def __radd__(self, other: Any) -> tuple:
        return tuple([*unwrap(other), *self.values])

    def __mul__(self, times: Any) -> tuple:
        return tuple(self.values * unwrap(times))

    def __eq__(self, other: Any) -> constexpr:  # type: ignore[override]
        mine = unwrap(self.values)
        theirs = unwrap(list(other)) if isinstance(other, (tuple, builtins.tuple, list)) else None
        return constexpr(mine == theirs)

    def __ne__(self, other: Any) -> constexpr:  # type: ignore[override]
        return constexpr(not self.__eq__(other).value)

    def __hash__(self) -> int:
        return hash(builtins.tuple(unwrap(self.values)))

    def __repr__(self) -> str:
        return f"({', '.join(map(repr, self.values))})"


def _type(v: Any) -> Any:
    return v.type if isinstance(v, base_value) else constexpr_type(v)


class slice:
    def __init__(self, start: Any, stop: Any, step: Any = None):
        self.start, self.stop, self.step = start, stop, step
        self.type = slice_type()


class _Counter(base_value):
    """What a `for` runs over: start, end and step. While a kernel runs step by step it counts."""

    def __init__(self, arg1: Any, arg2: Any = None, step: Any = None):
        self.start = constexpr(0) if arg2 is None else arg1
        self.end = arg1 if arg2 is None else arg2
        self.step = constexpr(1) if step is None else step

    def _bounds(self) -> builtins.range:
        eager = building()
        if eager is None or not eager.eager:
            what = f"tl.{type(self).__name__} outside a kernel"
            raise Invalid(what, hint="it is for the loops of @tw.jit functions")
        return builtins.range(int(self.start), int(self.end), int(self.step))


class range(_Counter):
    """`range` with hints to the compiler, which are ignored on a CPU."""

    ADVICE = frozenset(
        ("num_stages", "loop_unroll_factor", "disallow_acc_multi_buffer", "flatten")
        + ("warp_specialize", "disable_licm")
    )

    def __init__(
        self,
        arg1: Any,
        arg2: Any = None,
        step: Any = None,
        num_stages: Any = None,
        loop_unroll_factor: Any = None,
        disallow_acc_multi_buffer: Any = False,
        flatten: Any = False,
        warp_specialize: Any = False,
        disable_licm: Any = False,
    ):
        super().__init__(arg1, arg2, step)
        self.num_stages = num_stages
        self.loop_unroll_factor = loop_unroll_factor
        self.disallow_acc_multi_buffer = disallow_acc_multi_buffer
        self.flatten_loops = flatten
        self.warp_specialize = warp_specialize
        self.disable_licm = disable_licm

    def __iter__(self) -> Iterator[tensor]:
        wide = any(
            isinstance(x, tensor) and x.dtype == int64 for x in (self.start, self.end, self.step)
        )
        for i in self._bounds():
            yield wrap(promote.constant(i, int64 if wide else int32))


class static_range(_Counter):
    """A range of constants whose loop is written out."""

    def __init__(self, arg1: Any, arg2: Any = None, step: Any = None):
        super().__init__(arg1, arg2, step)
        for name, x in (("start", self.start), ("end", self.end), ("step", self.step)):
            if not isinstance(unwrap(x), int):
                what = f"the {name} of tl.static_range is {x}, which is not known while compiling"
                raise Invalid(what, hint="take tl.range, or make it a tl.constexpr parameter")

    def __iter__(self) -> Iterator[int]:
        return iter(self._bounds())


class condition(base_value):
    """The condition of a while loop, with advice to the compiler."""

    def __init__(self, arg1: Any, disable_licm: Any = False):
        self.condition = arg1
        self.disable_licm = disable_licm

    def __bool__(self) -> bool:
        return bool(self.condition)
