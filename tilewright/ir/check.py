"""The specification as code: a table of named checks per level of the compiler.

    @check("graph", "types-agree")
    def _types(g: Graph) -> Iterator[Fault]: ...

`verify(program)` runs every check of the program's level and raises with the text around the first
fault. Other levels join with `level(...)` and the same decorator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from tilewright.base.errors import Invalid, TilewrightError
from tilewright.ir import dim as D
from tilewright.ir.dim import Sym
from tilewright.ir.node import Constant, Graph, Input, Item, Node
from tilewright.ir.operator import OPERATORS
from tilewright.ir.text import attributes, graph_around, print_graph, symbols_of, type_text
from tilewright.ir.types import TensorType, TupleType

F = TypeVar("F", bound=Callable[..., Iterable["Fault"]])


@dataclass(frozen=True)
class Fault:
    """What is wrong, and which part of the program to show."""

    message: str
    subject: Any = None


class CheckFailed(TilewrightError):
    """A program that breaks a named rule of its level: the compiler's mistake, not the user's."""


@dataclass(frozen=True)
class Level:
    """A form of program: its class, its text, and the text around (and the place of) one part."""

    name: str
    kind: type[Any]
    text: Callable[[Any], str]
    around: Callable[[Any, Any], str]
    place: Callable[[Any, Any], str | None]


LEVELS: dict[str, Level] = {}
CHECKS: dict[str, dict[str, Callable[[Any], Iterable[Fault]]]] = {}


def level(
    name: str,
    kind: type[Any],
    text: Callable[[Any], str],
    around: Callable[[Any, Any], str] | None = None,
    place: Callable[[Any, Any], str | None] | None = None,
) -> None:
    """Add a level; without `around` a fault shows the whole program."""
    LEVELS[name] = Level(
        name, kind, text, around or (lambda p, _: text(p)), place or (lambda p, s: None)
    )
    CHECKS.setdefault(name, {})


def level_of(program: Any) -> Level:
    for found in LEVELS.values():
        if isinstance(program, found.kind):
            return found
    raise Invalid(f"{type(program).__name__} is no level of the compiler")


def check(level: str, name: str) -> Callable[[F], F]:
    """Register a check: a function from a program to its faults."""

    def register(fn: F) -> F:
        table = CHECKS.setdefault(level, {})
        if name in table:
            raise TypeError(f"the check {name} of {level} is registered twice")
        table[name] = fn
        return fn

    return register


def verify(program: Any, only: Iterable[str] | None = None, after: str = "") -> None:
    """Run the checks of the program's level, or `only` some; `after` says which pass ran last."""
    found = level_of(program)
    table = CHECKS[found.name]
    for name in table if only is None else only:
        if name not in table:
            raise Invalid(f"there is no check {name} of {found.name}; it has {', '.join(table)}")
        for fault in table[name](program):
            since = f" after {after}" if after else ""
            shown = found.around(program, fault.subject)
            raise CheckFailed(
                f"{found.name} check {name} failed{since}: {fault.message}"
                + (f"\n{shown}" if shown else ""),
                where=found.place(program, fault.subject),
            )


# ---- the graph level


def _place(g: Graph, n: Any) -> str | None:
    return g.place(n) if isinstance(n, Node) else None


level("graph", Graph, print_graph, graph_around, _place)


@check("graph", "inputs-declared")
def _inputs_declared(g: Graph) -> Iterator[Fault]:
    """Inputs are input nodes of distinct names, and the graph uses no others."""
    names: set[str] = set()
    for n in g.inputs:
        if not isinstance(n.op, Input):
            yield Fault(f"{n!r} is listed as an input but is computed", n)
        elif n.op.label in names:
            yield Fault(f"two inputs are called {n.op.label}", n)
        else:
            names.add(n.op.label)
    known = set(g.inputs)
    for n in g.nodes():
        if isinstance(n.op, Input) and n not in known:
            yield Fault(f"{n.op.label} is used but is not an input of the graph", n)


@check("graph", "operators-known")
def _operators_known(g: Graph) -> Iterator[Fault]:
    """Operators are registered under their name and their attributes are hashable."""
    for n in g.nodes():
        if not isinstance(n.op, Input | Constant | Item) and OPERATORS.get(n.op.name) is not type(
            n.op
        ):
            yield Fault(f"{n.op.name} is not a registered operator", n)
        for f in fields(n.op):
            try:
                hash(getattr(n.op, f.name))
            except TypeError:
                yield Fault(f"attribute {f.name} of {n.op.name} is not hashable", n)


@check("graph", "operands-first")
def _operands_first(g: Graph) -> Iterator[Fault]:
    """Every operand stands above its use, and multi-output values are used through items only."""
    seen: set[Node] = set()
    for n in g.nodes():
        for x in n.inputs:
            if x not in seen:
                yield Fault(f"{n.op.name} uses a value that is computed later", n)
            if isinstance(x.type, TupleType) and not isinstance(n.op, Item):
                yield Fault(f"{n.op.name} uses a multi-output value; take an item of it", n)
        seen.add(n)
    for o in g.outputs:
        if not isinstance(o.type, TensorType):
            yield Fault(f"the graph returns {o.op.name}, which has several outputs", o)


@check("graph", "items-in-range")
def _items_in_range(g: Graph) -> Iterator[Fault]:
    for n in g.nodes():
        if not isinstance(n.op, Item):
            continue
        source = n.inputs[0].type
        if not isinstance(source, TupleType) or not 0 <= n.op.k < len(source.items):
            yield Fault(f"item {n.op.k} of {type_text(source)} does not exist", n)


@check("graph", "types-agree")
def _types_agree(g: Graph) -> Iterator[Fault]:
    """The type that each node has is the one its operator infers."""
    for n in g.nodes():
        try:
            want = n.op.infer(*(x.type for x in n.inputs))
        except Invalid as why:
            yield Fault(f"{n.op.name} does not accept its operands: {why.what}", n)
            continue
        if want != n.type:
            yield Fault(f"{n.op.name} infers {type_text(want)}, not {type_text(n.type)}", n)


@check("graph", "symbols-agree")
def _symbols_agree(g: Graph) -> Iterator[Fault]:
    """One name is one symbol, and sizes do not depend on data. Where the value of a symbol comes
    from is up to the caller: it is an argument of the entry function, whatever shapes carry it."""
    known: dict[str, Sym] = {}
    for n in g.nodes():
        mentioned = [*symbols_of(n.type), *(s for _, x in attributes(n.op) for s in symbols_of(x))]
        for s in mentioned:
            if known.setdefault(s.name, s) is not s:
                yield Fault(f"two symbols with different bounds are called {s.name}", n)
        types = n.type.items if isinstance(n.type, TupleType) else (n.type,)
        if any(True for t in types for d in t.shape for _ in D.data_values(d)):
            yield Fault(f"the shape {type_text(n.type)} depends on data", n)


@check("graph", "branches-sound")
def _branches_sound(g: Graph) -> Iterator[Fault]:
    """Graphs inside attributes pass the checks of graphs."""
    for n in g.nodes():
        for name, x in attributes(n.op):
            if isinstance(x, Graph):
                try:
                    verify(x)
                except CheckFailed as why:
                    yield Fault(f"in {name} of {n.op.name}: {why.what}", n)
