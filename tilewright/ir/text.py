"""Graphs as text and back, exactly: parsing what was printed gives the same (interned) nodes.

graph main(x: f32[s0,768], w: weight f32[768,768]) where s0: 1..4096 %8 {
  %0: f32[s0,768] = matmul(x, w)
  %1: f32[s0,1] = sum{axes=(1,), keepdims=True}(%0)  # model.py:12
  return %0, %1
}
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.dim import Int, Sym
from tilewright.ir.maps import Map
from tilewright.ir.node import Constant, Graph, Input, Item, Literal, Node, Op, Place, node
from tilewright.ir.operator import OPERATORS
from tilewright.ir.reader import Reader, Token, name_text, quoted
from tilewright.ir.types import DTYPES, DType, TensorType, TupleType, Type
from tilewright.ir.value_print import number_text
from tilewright.ir.value_text import (
    Scope,
    declare,
    dim_text,
    parse_dim,
    parse_value,
    read_dim,
    read_sym,
    sym_text,
    value_text,
)

__all__ = [
    "Scope",
    "attribute_text",
    "dim_text",
    "graph_around",
    "parse_dim",
    "parse_graph",
    "parse_value",
    "print_graph",
    "read_attribute",
    "read_graph",
    "type_text",
    "value_text",
]

# Literals up to this many elements are shown as numbers, larger ones as their bytes.
SHOWN_ELEMENTS = 16
ROLES = ("weight", "scalar")
_BUILT_IN: dict[str, type[Op]] = {"input": Input, "constant": Constant, "item": Item}
_PLACE = re.compile(r"(?P<file>.*?):(?P<line>\d+)(?:: (?P<text>.*))?\Z")
_BETWEEN_PLACES = " ;; "


# ---- printing


def print_graph(graph: Graph, places: bool = True) -> str:
    """The graph as text that `parse_graph` reads; `places` adds the user's lines as comments."""
    return _GraphPrinter(graph, places).text()


def graph_around(graph: Graph, fault: Any, context: int = 3) -> str:
    """The lines of the graph's text around a node, which is marked."""
    try:
        lines = list(_GraphPrinter(graph, places=True).lines())
    except Invalid:
        return ""  # a graph too broken to print; only the message is shown
    at = next((k for k, (n, _) in enumerate(lines) if n is fault), 0)
    first, last = max(0, at - context), at + context + 1
    marked = (
        ("> " if k == at else "  ") + lines[k][1] for k in range(first, min(last, len(lines)))
    )
    return "\n".join(marked)


def type_text(t: Type) -> str:
    if isinstance(t, TupleType):
        comma = "," if len(t.items) == 1 else ""
        return f"({', '.join(map(type_text, t.items))}{comma})"
    return f"{t.dtype}[{','.join(map(dim_text, t.shape))}]"


def attribute_text(x: Any) -> str:
    """An attribute of an operator as Python-like text."""
    if x is None or isinstance(x, bool):
        return str(x)
    if isinstance(x, (int, Int)):
        return dim_text(x)
    if isinstance(x, float):
        return repr(x)
    if isinstance(x, str):
        return quoted(x)
    if isinstance(x, tuple):
        return f"({', '.join(map(attribute_text, x))}{',' if len(x) == 1 else ''})"
    if isinstance(x, DType):
        return x.name
    if isinstance(x, (TensorType, TupleType)):
        return type_text(x)
    if isinstance(x, Literal):
        return literal_text(x)
    if isinstance(x, Map):
        return f"map({quoted(str(x))})"
    if isinstance(x, Graph):
        return print_graph(x, places=False)
    if isinstance(x, Op):
        return f"op {operator_text(x)}"
    raise Invalid(
        f"an attribute of type {type(x).__name__} has no text form: {x!r}",
        hint="attributes are numbers, strings, dims, dtypes, types, literals, maps, graphs, "
        "operators and tuples of them",
    )


def operator_text(op: Op) -> str:
    """An operator with its attributes."""
    attrs = ", ".join(f"{k}={attribute_text(x)}" for k, x in attributes(op))
    return f"{op.name}{{{attrs}}}" if attrs else op.name


def literal_text(x: Literal) -> str:
    head = type_text(TensorType(x.dtype, x.array.shape))
    if x.array.size > SHOWN_ELEMENTS or not _reads_back(x):
        return f"literal({head}, {quoted(x.array.tobytes().hex())})"

    def nested(a: np.ndarray) -> str:
        if a.ndim == 0:
            return number_text(a.item(), x.dtype)
        return f"[{', '.join(map(nested, a))}]"

    return f"literal({head}, {nested(x.array)})"


def _reads_back(x: Literal) -> bool:
    """A NaN may carry bits that its name does not."""
    if not x.dtype.is_float or not np.isnan(x.array).any():
        return True
    plain = np.array(np.nan, x.array.dtype).tobytes()
    return all(v.tobytes() == plain for v in x.array[np.isnan(x.array)])


def symbols_of(x: Any) -> Iterator[Sym]:
    """Every symbol that a type or attribute mentions; nested graphs declare their own."""
    if isinstance(x, Int):
        yield from D.symbols(x)
    elif isinstance(x, TensorType):
        for d in x.shape:
            yield from D.symbols(d)
    elif isinstance(x, TupleType):
        for t in x.items:
            yield from symbols_of(t)
    elif isinstance(x, tuple):
        for y in x:
            yield from symbols_of(y)
    elif isinstance(x, Op):
        for _, y in attributes(x):
            yield from symbols_of(y)


def attributes(op: Op) -> Iterator[tuple[str, Any]]:
    return ((f.name, getattr(op, f.name)) for f in dataclasses.fields(op))


class _GraphPrinter:
    def __init__(self, graph: Graph, places: bool) -> None:
        self.graph, self.places = graph, places
        self.names: dict[Node, str] = {}
        self.nodes = graph.nodes()
        seen: set[str] = set()
        for n in graph.inputs:
            if not isinstance(n.op, Input):
                raise Invalid(f"graph {graph.name}: {n!r} is not an input node")
            if n in self.names or n.op.label in seen:
                raise Invalid(f"graph {graph.name} has two inputs called {n.op.label}")
            seen.add(n.op.label)
            self.names[n] = name_text(n.op.label)

    def text(self) -> str:
        return "\n".join(text for _, text in self.lines())

    def lines(self) -> Iterator[tuple[Node | None, str]]:
        """The lines of text, each with the node it defines."""
        syms: set[Sym] = set()
        for n in self.nodes:
            syms.update(symbols_of(n.type))
            for _, x in attributes(n.op):
                syms.update(symbols_of(x))
        inputs = ", ".join(self._input(n) for n in self.graph.inputs)
        where = f" where {', '.join(map(sym_text, declare(syms)))}" if syms else ""
        yield None, f"graph {name_text(self.graph.name)}({inputs}){where} {{"
        for n in self.nodes:
            if n not in self.names:
                yield n, "  " + self._line(n).replace("\n", "\n  ")
        outputs = ", ".join(self.names[o] for o in self.graph.outputs)
        yield None, f"  return {outputs}".rstrip()
        yield None, "}"

    def _input(self, n: Node) -> str:
        assert isinstance(n.op, Input)
        role = "" if n.op.role == "arg" else f"{name_text(n.op.role)} "
        return f"{self.names[n]}: {role}{type_text(n.type)}"

    def _line(self, n: Node) -> str:
        name = self.names[n] = f"%{len(self.names) - len(self.graph.inputs)}"
        return f"{name}: {type_text(n.type)} = {self._right(n)}{self._comment(n)}"

    def _right(self, n: Node) -> str:
        if isinstance(n.op, Item) and self.names[n.inputs[0]].startswith("%"):
            return f"{self.names[n.inputs[0]]}.{n.op.k}"
        if isinstance(n.op, Constant):
            return ("passed " if n.op.passed else "") + literal_text(n.op.literal)
        return f"{operator_text(n.op)}({', '.join(self.names[x] for x in n.inputs)})"

    def _comment(self, n: Node) -> str:
        found = self.graph.places.get(n) if self.places else None
        if not found:
            return ""
        shown = []
        for p in sorted(found, key=lambda p: (p.file, p.line, p.text)):
            text = " ".join(p.text.split("\n"))
            shown.append(f"{p}: {text}" if text else str(p))
        return f"  # {_BETWEEN_PLACES.join(shown)}"


# ---- parsing


def parse_graph(text: str) -> Graph:
    """The graph that `text` describes. Operators have to be imported (`import tilewright.ops`)."""
    r = Reader(text, "graph text")
    graph = read_graph(r, Scope())
    r.end()
    return graph


def read_attribute(r: Reader, scope: Scope | None = None) -> Any:
    """An attribute at the cursor of a reader."""
    return _GraphReader(r, scope or Scope()).attribute()


def read_graph(r: Reader, outer: Scope) -> Graph:
    """A graph at the cursor of a reader; nested graphs may use the symbols around them."""
    r.expect("graph")
    name = r.name("the graph's name")
    if not r.sees("("):
        r.fail("'('")
    start = r.at
    r.skip_group()
    scope = outer
    if r.take("where"):
        own = Scope()
        while True:
            own = own.binding(read_sym(r, own))
            if not r.take(","):
                break
        scope = Scope(symbols={**outer.symbols, **own.symbols})
    body = r.at
    r.at = start + 1  # the inputs' types use the symbols declared after them
    parser = _GraphReader(r, scope)
    inputs = tuple(r.several(parser.input, ")"))
    r.at = body
    r.expect("{")
    while not r.sees("return", "}"):
        parser.line()
    r.expect("return")
    outputs = tuple(r.several(parser.operand, "}"))
    return Graph(name, inputs, outputs, parser.places)


class _GraphReader:
    def __init__(self, r: Reader, scope: Scope) -> None:
        self.r, self.scope = r, scope
        self.names: dict[str, Node] = {}
        self.places: dict[Node, frozenset[Place]] = {}

    def input(self) -> Node:
        t = self.r.token
        label = self.r.name("an input's name")
        if label in self.names:
            self.r.problem(f"there are two inputs called {label}", t)
        self.r.expect(":")
        role = "arg"
        if self._next().text != "[":
            role = self.r.name(f"a type or a role ({', '.join(ROLES)})")
        found = self.names[label] = node(Input(label, self.tensor_type(), role))
        return found

    def _next(self) -> Token:
        return self.r.tokens[self.r.at + 1]

    def line(self) -> None:
        r = self.r
        start = r.token
        r.expect("%")
        name = f"%{r.integer('the number of a value')}"
        if name in self.names:
            r.problem(f"{name} is defined twice", start)
        declared = self.type() if r.take(":") else None
        r.expect("=")
        right = r.token
        n = self.right()
        if declared is not None and n.type != declared:
            r.problem(
                f"{name} is declared as {type_text(declared)}, but is {type_text(n.type)}", right
            )
        self.names[name] = n
        comment = r.comments.get(r.line(r.tokens[r.at - 1].start))
        found = places_of(comment) if comment else frozenset()
        if found:
            self.places[n] = self.places.get(n, frozenset()) | found

    def right(self) -> Node:
        r = self.r
        if r.sees("%"):
            return self.operand()
        if r.sees("literal"):
            return node(Constant(self.literal()))
        if r.take("passed"):
            return node(Constant(self.literal(), passed=True))
        t = r.token
        make = self.operator()
        r.expect("(")
        args = r.several(self.operand, ")")
        try:
            return node(make(), *args)
        except (Invalid, TypeError, ValueError) as why:
            r.problem(f"{t.text}: {why}", t)

    def operator(self) -> Callable[[], Op]:
        """A name with attributes; made when its operands have been read, so that faults have an
        order."""
        r = self.r
        t = r.token
        op_name = r.name("an operator")
        cls = _BUILT_IN.get(op_name) or OPERATORS.get(op_name)
        if cls is None:
            near = difflib.get_close_matches(op_name, OPERATORS, 1)
            more = f"; did you mean {near[0]}?" if near else ""
            r.problem(f"there is no operator {op_name}{more}", t)
        attrs: dict[str, Any] = {}
        if r.take("{"):
            r.several(lambda: attrs.update((self.pair(),)), "}")
        known = {f.name for f in dataclasses.fields(cls)}
        if wrong := attrs.keys() - known:
            names = ", ".join(sorted(known)) or "none"
            r.problem(f"{op_name} has no attribute {min(wrong)}; it has {names}", t)
        return lambda: cls(**attrs)

    def pair(self) -> tuple[str, Any]:
        name = self.r.name("an attribute's name")
        self.r.expect("=")
        return name, self.attribute()

    def operand(self) -> Node:
        r = self.r
        t = r.token
        component: int | None = None
        if r.take("%"):
            if not r.sees_kind("number"):
                r.fail("the number of a value")
            number, _, part = r.next().text.partition(".")
            name = f"%{number}"
            component = int(part) if part else None
        else:
            name = r.name("a value such as %0 or an input's name")
        found = self.names.get(name)
        if found is None:
            r.problem(f"{name} is not defined above", t)
        if component is None:
            return found
        try:
            return node(Item(component), found)
        except Invalid as why:
            r.problem(str(why), t)

    def type(self) -> Type:
        if not self.r.take("("):
            return self.tensor_type()
        return TupleType(tuple(self.r.several(self.tensor_type, ")")))

    def tensor_type(self) -> TensorType:
        t = self.r.token
        name = self.r.name("a dtype")
        if name not in DTYPES:
            self.r.problem(f"{name} is not a dtype; known are {', '.join(DTYPES)}", t)
        self.r.expect("[")
        shape = self.r.several(lambda: read_dim(self.r, self.scope), "]")
        return TensorType(DTYPES[name], tuple(shape))

    def attribute(self) -> Any:
        r = self.r
        t = r.token
        if t.kind == "string":
            return r.string()
        if t.kind == "name":
            words: Mapping[str, Any] = {"None": None, "True": True, "False": False}
            if t.text in words:
                r.next()
                return words[t.text]
            if t.text in ("inf", "nan"):
                return float(r.next().text)
            if t.text in DTYPES:
                if self._next().text == "[":
                    return self.tensor_type()
                return DTYPES[r.next().text]
            if t.text == "literal":
                return self.literal()
            if t.text == "map":
                return self.map()
            if t.text == "graph":
                return read_graph(r, self.scope)
            if t.text == "op":
                r.next()
                return self.operator()()
        if t.text == "-" and self._is_float(self._next()):
            r.next()
            return -float(r.next().text)
        if self._is_float(t):
            return float(r.next().text)
        if t.text == "(" and r.has_comma_inside():
            r.next()
            items = r.several(self.attribute, ")")
            if items and all(isinstance(x, TensorType) for x in items):
                return TupleType(tuple(items))
            return tuple(items)
        return read_dim(r, self.scope)

    @staticmethod
    def _is_float(t: Token) -> bool:
        return (t.kind == "number" and not t.text.isdigit()) or t.text in ("inf", "nan")

    def map(self) -> Map:
        self.r.next()
        self.r.expect("(")
        t = self.r.token
        text = self.r.string()
        self.r.expect(")")
        try:
            return Map.parse(text)
        except Invalid as why:
            self.r.problem(why.what, t)

    def literal(self) -> Literal:
        r = self.r
        r.expect("literal")
        r.expect("(")
        t = r.token
        kind = self.tensor_type()
        r.expect(",")
        if not kind.is_static:
            r.problem("a literal has whole numbers as dims", t)
        shape = tuple(int(d) for d in kind.shape if isinstance(d, int))
        at = r.token
        try:
            if r.sees_kind("string"):
                found = Literal.from_hex(kind.dtype.name, shape, r.string())
            else:
                values = np.array(self.numbers(), dtype=kind.dtype.numpy)
                found = Literal(values.reshape(shape), kind.dtype)
        except (ValueError, OverflowError) as why:
            r.problem(f"these are not the elements of {type_text(kind)}: {why}", at)
        r.expect(")")
        return found

    def numbers(self) -> list[float | int | bool]:
        """The numbers of nested lists, in order."""
        r = self.r
        if r.take("["):
            return [x for part in r.several(self.numbers, "]") for x in part]
        if r.sees("true", "false"):
            return [r.next().text == "true"]
        sign = -1 if r.take("-") else 1
        if r.sees("inf", "nan") or self._is_float(r.token):
            return [sign * float(r.next().text)]
        return [sign * r.integer("a number")]


def places_of(comment: str) -> frozenset[Place]:
    """The places that a comment names; other comments name none."""
    out = []
    for part in comment.split(_BETWEEN_PLACES):
        m = _PLACE.match(part)
        if m is None:
            return frozenset()
        out.append(Place(m["file"], int(m["line"]), m["text"] or ""))
    return frozenset(out)
