"""A program out of a file as a function of arrays: nothing of torch's is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.slots import (
    Number,
    Restrided,
    Result,
    Same,
    SymbolicInt,
    Value,
    View,
    problem_of,
    symbol_from,
)
from tilewright.ir.types import DTYPES, DType
from tilewright.runtime.arrays import Memory, in_layout, part_of, read, result, strided
from tilewright.runtime.numbers import evaluate
from tilewright.runtime.program import Bound, Program
from tilewright.runtime.program_data import ProgramData
from tilewright.runtime.signature import (
    Argument,
    ArrayArgument,
    NumberArgument,
    Signature,
    UnusedArgument,
    built,
    leaves_of,
)

_F64, _I64 = DTYPES["f64"], DTYPES["i64"]


class LoadedProgram:
    """Call it as the function that was saved, with numpy arrays or whatever has `__dlpack__`.

    Results are numpy arrays (of dtypes that numpy lacks: `Array`, which has `__dlpack__`). Calls
    may come from several threads.
    """

    def __init__(self, name: str, data: ProgramData, signature: Signature) -> None:
        self.name, self.data, self.signature = name, data, signature
        self.program = Program(data)
        self.program.watch(signature.watched)
        self._python = signature.python()
        self._binders = _binders(signature)
        self._symbols = {
            s.name: s
            for a in signature.arguments
            for d in _dims_of(a)
            for s in D.symbols(d)
            if s.name in self._binders
        }
        self._held = {h.slot: h.value.array for h in signature.held}
        self._fixed = self._fixed_inputs()

    def _fixed_inputs(self) -> Bound | None:
        """The inputs that every call has, if these come first and weights are among them only."""
        count = 0
        for slot in self.signature.inputs:
            if slot is not None and slot not in self._held:
                break
            count += 1
        if self.data.prologue is not None:
            return None
        first = self.signature.inputs[:count]
        return self.program.bind([self._held[s].ctypes.data if s is not None else 0 for s in first])

    @property
    def inputs(self) -> tuple[str, ...]:
        """The arrays and numbers that a call takes, for messages."""
        return tuple(map(_described, self.signature.arguments))

    def __repr__(self) -> str:
        return f"LoadedProgram({self.name}: {', '.join(self.inputs)})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        s = self.signature
        try:
            given = self._python.bind_partial(*args, **kwargs).arguments
        except TypeError as problem:
            raise Invalid(f"{self.name}: {problem}", hint=f"it takes {self._takes()}") from None
        leaves = leaves_of(s.parameters, given, len(s.arguments))
        env: dict[str, Memory] = {}
        numbers: dict[str, Any] = {}
        for a, x in zip(s.arguments, leaves, strict=True):
            if isinstance(a, ArrayArgument):
                env[a.slot] = _array(a, x)
            elif isinstance(a, NumberArgument):
                numbers[a.slot] = _number(a, x)
        dims = self._dims(env, numbers)
        for a in s.arguments:
            if isinstance(a, ArrayArgument):
                env[a.slot] = _as_read(a, env[a.slot], dims)
            elif isinstance(a, NumberArgument) and a.dim is None:
                env[a.slot] = _scalar(numbers[a.slot], _F64)
        for scalar in s.scalars:
            value = evaluate(scalar.expression, dims, numbers)
            if scalar.symbol is not None:
                dims[scalar.symbol] = int(value)
            elif scalar.slot is not None:
                env[scalar.slot] = _scalar(float(value), _F64)
        if s.seed is not None:
            # Reproducible under numpy.random.seed.
            env[s.seed] = _scalar(int(np.random.randint(0, 2**63 - 1, dtype=np.int64)), _I64)
        return built(s.returned, self._run(env, dims), leaves)

    def _takes(self) -> str:
        return ", ".join(p.name for p in self.signature.parameters) or "nothing"

    def _run(self, env: Mapping[str, Memory], dims: Mapping[str, int]) -> list[Any]:
        """The results, by ordinal."""
        s = self.signature
        buffers = {
            b.slot: strided(_numbers(b.shape, dims), _numbers(b.stride, dims), b.dtype, b.paired)
            for b in s.buffers
        }
        known = {**env, **{slot: x.ctypes.data for slot, x in self._held.items()}}
        addresses = [_address(known[slot]) if slot is not None else 0 for slot in s.inputs]
        outs = [x.ctypes.data for x in buffers.values()]
        values = [dims[name] for name in self.program.dims]
        bound = self._fixed
        if bound is None:
            # Weights are arguments: what was derived in another call does not hold for this one.
            self.program.refresh()
            bound = self.program.bind(addresses)
        found = self.program.run_bound(bound, addresses[bound.count :], outs, values)
        if found is not None:
            raise problem_of(s.checks, found, dims)
        kinds = {b.slot: (b.dtype, b.paired) for b in s.buffers}
        return [_result(r, buffers, kinds, dims) for r in s.results]

    # ---- sizes

    def _dims(self, env: Mapping[str, Memory], numbers: Mapping[str, Any]) -> dict[str, int]:
        """The value of each symbol, from a number or from an axis."""
        dims: dict[str, int] = {}
        for name, (a, axis, factor, constant) in self._binders.items():
            if isinstance(a, NumberArgument):
                value, what = numbers[a.slot], a.name
            else:
                assert isinstance(a, ArrayArgument)
                value = env[a.slot].shape[axis]
                what = f"axis {axis} of {a.name}"
            dims[name] = (value - constant) // factor
            if dims[name] * factor + constant != value:
                raise Invalid(f"{what} is {value}, and {factor}*{name}+{constant} is needed")
        for name, s in self._symbols.items():
            _require_within(name, dims[name], s, dims)
        return dims


def _result(
    r: Result,
    buffers: Mapping[str, np.ndarray],
    kinds: Mapping[str, tuple[DType, bool]],
    dims: Mapping[str, int],
) -> Any:
    if isinstance(r, Value):
        return r.value
    if isinstance(r, SymbolicInt):
        return int(D.evaluate(r.value, dims))
    x = buffers[r.slot]
    if isinstance(r, Number):
        return r.type(x.item())
    if isinstance(r, Same):
        return result(x, *kinds[r.slot])
    shape, stride = _numbers(r.shape, dims), _numbers(r.stride, dims)
    dtype, paired = kinds[r.slot]
    if isinstance(r, View):
        return result(_viewed(x, shape, stride, int(D.evaluate(r.offset, dims))), dtype, paired)
    assert isinstance(r, Restrided)
    made = strided(shape, stride, dtype, paired)
    made[...] = x.reshape(shape)
    return result(made, dtype, paired)


def _viewed(x: np.ndarray, shape: Sequence[int], stride: Sequence[int], offset: int) -> np.ndarray:
    """A view of an array's memory, from an element counted in the order of memory."""
    if 0 in shape:
        return np.empty(shape, x.dtype)
    assert isinstance(x.base, np.ndarray), "buffers are parts of flat arrays"
    return part_of(x.base, shape, stride, offset)


def _require_within(name: str, value: int, s: D.Sym, dims: Mapping[str, int]) -> None:
    low = int(D.evaluate(s.lo, dims))
    high = None if s.hi is None else int(D.evaluate(s.hi, dims))
    if value < low or (high is not None and value > high):
        most = f" and at most {high}" if high is not None else ""
        raise Invalid(f"{name} is {value}, and the program is for sizes of at least {low}{most}")
    if value % s.multiple:
        raise Invalid(f"{name} is {value}, and the program is for multiples of {s.multiple}")


Binder = tuple[Argument, int, int, int]


def _binders(s: Signature) -> dict[str, Binder]:
    """Where each symbol's value is found: (argument, axis, factor, constant), a plain one first."""
    out: dict[str, Binder] = {}
    for a in s.arguments:
        for axis, d in enumerate(_dims_of(a)):
            found = symbol_from(d)
            if found is None:
                continue
            name, factor, constant = found
            if name not in out or (factor, constant) == (1, 0) != out[name][2:]:
                out[name] = a, axis, factor, constant
    return out


def _dims_of(a: Argument) -> tuple[Dim, ...]:
    if isinstance(a, ArrayArgument):
        return a.shape
    return (a.dim,) if isinstance(a, NumberArgument) and a.dim is not None else ()


def _described(a: Argument) -> str:
    if isinstance(a, UnusedArgument):
        return f"{a.name}: anything"
    if isinstance(a, NumberArgument):
        return f"{a.name}: a number"
    return f"{a.name}: {_kind(a.dtype, a.paired)}[{', '.join(map(str, a.shape))}]"


def _kind(dtype: DType, paired: bool) -> str:
    return f"complex {dtype}" if paired else str(dtype)


def _array(a: ArrayArgument, x: Any) -> Memory:
    m = read(x, a.name)
    if m.dtype is not a.dtype or m.paired != a.paired:
        given, needed = _kind(m.dtype, m.paired), _kind(a.dtype, a.paired)
        raise Invalid(f"{a.name} is of {given}, and {needed} is needed")
    if len(m.shape) != len(a.shape):
        raise Invalid(f"{a.name} has {len(m.shape)} axes, and {len(a.shape)} are needed")
    return m


def _as_read(a: ArrayArgument, m: Memory, dims: Mapping[str, int]) -> Memory:
    """The array in the layout that the program reads."""
    shape = _numbers(a.shape, dims)
    if m.shape != shape:
        raise Invalid(f"{a.name} has shape {m.shape}, and {shape} is needed")
    if m.size == 0:
        # Where data decides what is read, kernels read the nearest element that there is.
        room = np.zeros([max(1, n) for n in shape], f"u{max(1, a.dtype.bytes)}")
        room = np.concatenate([room, room]) if a.paired else room
        return Memory(room.ctypes.data, a.dtype, shape, m.strides, a.paired, room)
    return in_layout(m, _numbers(a.stride, dims))


def _number(a: NumberArgument, x: Any) -> Any:
    whole = a.dim is not None
    if isinstance(x, bool) or not isinstance(x, int if whole else (int, float)):
        needed = "an integer" if whole else "a number"
        raise Invalid(f"{a.name} is a {type(x).__name__}, and {needed} is needed")
    return x if whole else float(x)


def _scalar(value: Any, dtype: DType) -> Memory:
    held = np.array(value, dtype.numpy)
    return Memory(held.ctypes.data, dtype, (), (), False, held)


def _address(x: Memory | int) -> int:
    return x if isinstance(x, int) else x.address


def _numbers(dims: Sequence[Dim], values: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(d if isinstance(d, int) else int(D.evaluate(d, values)) for d in dims)
