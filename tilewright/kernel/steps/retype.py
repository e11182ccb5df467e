from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.ir import dim as D
from tilewright.ir.expr import Fn, Load, Rewriter, Value, cast, load, loads
from tilewright.ir.types import DTYPES, DType, has_all_of
from tilewright.kernel.nest import (
    Alloc,
    If,
    Loop,
    Nest,
    Stmt,
    Store,
    While,
    bodies,
    mentions,
    own_values,
    with_bodies,
)
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class Retype(Step):
    """A buffer inside the nest stored in another dtype, which has every number that is stored. What
    reads it finds the same numbers.

    local t: bf16[16,32]                        local t: f32[16,32]
    t[i,k] = x[i,k]                             t[i,k] = cast<f32>(x[i,k])
    c[i,j] add= cast<f32>(t[i,k]) * b[k,j]      c[i,j] add= t[i,k] * b[k,j]
    """

    stays: ClassVar[bool] = True

    buffer: str
    dtype: str

    def apply(self, n: Nest) -> Nest:
        b = self.internal(n, self.buffer)
        to = DTYPES.get(self.dtype)
        if to is None:
            self.need(False, f"there is no dtype {self.dtype}", f"one of {', '.join(DTYPES)}")
            raise AssertionError
        self.need(b.dtype is not to, f"{self.buffer} is {to} already")

        def stored(v: Value) -> Value:
            found = in_dtype(v, to)
            what = f"{to} has not every number of {v.dtype}, which is stored to {self.buffer}"
            self.need(found is not None, what)
            return found or v

        return retyped(self, n, self.buffer, to, stored)


def in_dtype(v: Value, to: DType) -> Value | None:
    """A value in a dtype that has every number it may be; None where that is not known."""
    if has_all_of(to, v.dtype):
        return cast(v, to)
    if isinstance(v, Fn) and v.name == "cast":  # what was widened is what it was
        source = v.args[0]
        if has_all_of(v.dtype, source.dtype) and has_all_of(to, source.dtype):
            return cast(source, to)
    return None


def retyped(step: Step, n: Nest, buffer: str, to: DType, stored: Callable[[Value], Value]) -> Nest:
    """A nest in which a buffer has another dtype; `stored` says what is stored for a value."""
    old = n.buffer(buffer).dtype
    new = _Reads(buffer, old, to)

    def statement(s: Stmt) -> Stmt:
        if buffer not in mentions(s) or isinstance(s, Alloc):
            return s
        if isinstance(s, (Loop, If, While)):
            decides = any(buffer in v.sources for v in own_values(s))
            step.need(not decides, f"{buffer} decides whether or how often statements run")
            return with_bodies(s, [tuple(map(statement, x)) for x in bodies(s)])
        step.need(isinstance(s, Store), f"{buffer} is used by more than stores")
        assert isinstance(s, Store)
        step.need(not _finds_places(s, buffer), f"{s.stage} reads positions from {buffer}")
        value = new(s.value)
        if s.buffer == buffer:
            step.need(s.combine is None, f"{s.stage} adds to {buffer}, in {old}")
            value = stored(value)
        return replace(s, value=value)

    body = tuple(map(statement, n.body))
    return replace(n, body=body).with_buffer(replace(n.buffer(buffer), dtype=to))


class _Reads(Rewriter):
    """What is read of the buffer is cast to what it was. A further cast is one of the number."""

    def __init__(self, buffer: str, old: DType, to: DType) -> None:
        self.back: set[Value] = set()

        def on_load(x: Load) -> Value:
            if x.source != buffer:
                return x
            found = cast(load(x.source, x.index, to), old)
            self.back.add(found)
            return found

        super().__init__(None, on_load, only=buffer)

    def _one(self, x: Value) -> Value:
        out = super()._one(x)
        if isinstance(out, Fn) and out.name == "cast" and out.args[0] in self.back:
            return cast(out.args[0].args[0], out.dtype)
        return out


def _finds_places(s: Store, buffer: str) -> bool:
    indices = [*s.index, *(i for x in loads(s.value) for i in x.index)]
    return any(buffer in v.sources for i in indices for v in D.data_values(i))
