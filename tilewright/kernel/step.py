"""A schedule is a replayable tuple of frozen steps, each a checked map from nest to nest.

`print_trace` gives Python that `parse_trace` reads back. A step that would change the result, or
that cannot be done where the nest stands, refuses with a sentence; nothing is half-applied, because
nests are immutable.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache, wraps
from typing import Any, ClassVar

from tilewright.base.errors import Invalid, Refused
from tilewright.base.source import parse_expression
from tilewright.ir import dim as D
from tilewright.ir.reader import is_plain_name
from tilewright.kernel.around import around
from tilewright.kernel.axis import is_below
from tilewright.kernel.dependence import Carried
from tilewright.kernel.group import Buffer
from tilewright.kernel.intrinsic import tensor_faults
from tilewright.kernel.library import library_loops
from tilewright.kernel.nest import (
    BRANCH,
    TENSOR,
    UNROLLED,
    Loop,
    Nest,
    Path,
    find,
    holds,
    loop_names,
    marks,
    seek,
)
from tilewright.kernel.text import line_text

STEPS: dict[str, type[Step]] = {}


def _keeping_instructions(apply: Callable[[Any, Nest], Nest]) -> Callable[[Any, Nest], Nest]:
    """A step that would change what a tensorized loop computes or touches refuses, or the loops of
    a library call, and so does one that moves statements across branches or pointers without
    checking them."""

    @wraps(apply)
    def checked(self: Step, n: Nest) -> Nest:
        if any(b.pointer for b in n.buffers) or holds(n, BRANCH):
            self.check_branches(n)
        out = apply(self, n)
        if holds(n, TENSOR):
            for what, _ in tensor_faults(out, n):
                self.need(False, what, "Tensorize last")
        called = library_loops(n)
        if called:
            self.need(library_loops(out) == called, "a library is called for these loops")
        return out

    return checked


_KINDS = {
    "str": "a name",
    "int": "a whole number",
    "bool": "True or False",
    "tuple[str, ...]": "a tuple of names",
    "tuple[int, ...]": "a tuple of whole numbers",
}


def _is_a(kind: str, value: object) -> bool:
    """Is a value of the kind that a field is declared to be, of those that steps have?"""
    if kind.startswith("tuple[") and kind in _KINDS:
        inner = kind.removeprefix("tuple[").removesuffix(", ...]")
        return isinstance(value, tuple) and all(_is_a(inner, x) for x in value)
    if kind == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    plain: dict[str, type] = {"str": str, "bool": bool}
    return isinstance(value, plain.get(kind, object))


@cache
def _fields(cls: type[Step]) -> tuple[tuple[str, str], ...]:
    """Its fields by name, with what they are declared to be."""
    return tuple((f.name, str(f.type)) for f in fields(cls))


@dataclass(frozen=True)
class Step:
    """Base of all steps; a subclass registers itself by existing."""

    abstract: ClassVar[bool] = True
    stays: ClassVar[bool] = False  # every statement stays in its place: branches do not matter

    def __init_subclass__(cls) -> None:
        STEPS[cls.__name__] = cls
        cls.apply = _keeping_instructions(cls.apply)  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        for name, kind in _fields(type(self)):
            if not _is_a(kind, value := getattr(self, name)):
                what = f"{name} is {value!r}, not {_KINDS.get(kind, kind)}"
                raise Invalid(f"{type(self).__name__}: {what}")

    def apply(self, n: Nest) -> Nest:
        raise Invalid(f"{type(self).__name__} does nothing")

    def __call__(self, n: Nest) -> Nest:
        return self.apply(n)

    def __str__(self) -> str:
        """As `parse_trace` reads it, without fields that have their default."""
        given = [(f.name, getattr(self, f.name), f.default) for f in fields(self)]
        shown = ", ".join(f"{name}={value!r}" for name, value, usual in given if value != usual)
        return f"{type(self).__name__}({shown})"

    def check_branches(self, n: Nest) -> None:
        """Refuses where a nest has pointers or branches: its buffers may be written more than once.
        A step that checks this itself overrides it."""
        if self.stays:
            return
        found = next((s for s, _ in seek(n.body, BRANCH)), None)
        where = f"next to {line_text(found)!r}" if found is not None else "where there are pointers"
        self.need(False, f"it moves what is computed, which is not known to be safe {where}")

    def need(self, condition: object, reason: str, hint: str | None = None) -> None:
        if not condition:
            raise Refused(f"{self}: {reason}", hint=hint)

    def keep(
        self, n: Nest, faults: Sequence[Carried], saying: str = "", hint: str | None = None
    ) -> None:
        """Refuses what would change the result: unlike `need`, which tests whether a step can be
        done at all. The nest is the one in which the faulty uses stand."""
        if not faults:
            return
        bad = next((f for f in faults if f.kind == "order"), faults[0])
        why = saying.replace("{loop}", bad.loop.name if bad.loop else "") + bad.reason
        if bad.kind == "reduction" and n.precision == "strict":
            why += ", in an order which the strict precision keeps"
        uses = (bad.first, bad.second)
        raise Refused(f"{self}: {why}", hint=hint, details=lambda: around(n, uses, bad.loop))

    def internal(self, n: Nest, name: str) -> Buffer:
        """A buffer that belongs to the nest, not to its caller."""
        found = [b for b in n.buffers if b.name == name]
        own = [b.name for b in n.buffers if b.scope not in ("in", "out")]
        hint = f"the internal buffers are {', '.join(own)}" if own else "the nest has none inside"
        self.need(found, f"there is no buffer {name}", hint)
        self.need(found[0].scope not in ("in", "out"), f"{name} is an argument", hint)
        return found[0]

    def fresh(self, n: Nest, name: str) -> None:
        """A name that a step introduces means nothing yet."""
        self.need(is_plain_name(name), f"{name!r} is not a name")
        loops = {x for s in n.body for kind, x in marks(s) if kind == "loop"}
        taken = name in loops or any(b.name == name for b in n.buffers)
        below = any(is_below(x, name) for x in loops)
        self.need(not taken and not below, f"there is something called {name} already")

    def bounded(self, n: Nest) -> Nest:
        """The nest, if its unrolled and lane loops still have a constant bound."""
        for s, _ in seek(n.body, UNROLLED):
            assert isinstance(s, Loop)
            has_bound = D.bounds(s.extent)[1] < D.INF
            what = f"{s.name} is {s.kind} and its extent would have no constant bound"
            self.need(has_bound, what, f"do this before {s.name} becomes {s.kind}")
        return n

    def loops(self, n: Nest, name: str) -> list[tuple[Loop, Path]]:
        found = find(n, name)
        if not found:
            self.need(
                False, f"there is no loop {name}", f"the loops are {', '.join(loop_names(n))}"
            )
        return found


Trace = tuple[Step, ...]


def apply(n: Nest, trace: Sequence[Step]) -> Nest:
    for s in trace:
        n = s.apply(n)
    return n


def print_trace(trace: Sequence[Step]) -> str:
    return "\n".join(map(str, trace)) + ("\n" if trace else "")


def trace_digest(trace: Sequence[Step]) -> str:
    """What identifies a trace, the same in every process."""
    return hashlib.sha256(print_trace(trace).encode()).hexdigest()[:16]


def parse_trace(text: str) -> Trace:
    """One step per line, as printed. Only literals are accepted as arguments."""
    out: list[Step] = []
    for k, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        try:
            call = parse_expression(line)
            if isinstance(call, ast.Tuple) and len(call.elts) == 1:  # a comma at the end
                call = call.elts[0]
            assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
            cls = STEPS[call.func.id]
            args = [ast.literal_eval(a) for a in call.args]
            kwargs = {a.arg: ast.literal_eval(a.value) for a in call.keywords if a.arg}
            out.append(cls(*args, **kwargs))
        except (SyntaxError, AssertionError, KeyError, TypeError, ValueError) as e:
            raise Invalid(
                f"line {k} of the trace is not a step: {line!r} ({e})",
                hint=f"the steps are {', '.join(sorted(STEPS))}",
            ) from None
    return tuple(out)
