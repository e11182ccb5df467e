"""Tile IR as text, and back: `parse_kernel(kernel_text(k)) == k`.

    kernel sums(%x.0: *f32 divisor 16, %n.1: i32 divisor 16 positive) {
      %2: i32 = const(value=0) @0
      %3: i32 = const(value=1) @0
      %total.4: f32 = const(value=0.0) @0
      %total.5: f32 = for(%2, %n.1, %3, %total.4) @1
        do(%i.6: i32, %total.7: f32) {
          %8: *f32 = offset(%x.0, %i.6) @2
          %9: f32 = load(%8) @2
          %total.10: f32 = map(%total.7, %9, fn="add") @2
          yield(%total.10)
        }
      store(%x.0, %total.5) @3
    }
    place 0 = "sums.py" 4:8 in "sums"
    place 1 = …

A value is its number, with the user's name in front of it. `@2` is the user's line, by its number
in the list at the end; a place says `from 0` where its function was called at place 0.
"""

from __future__ import annotations

from math import isinf, isnan, nan
from typing import Any

from tilewright.ir.reader import Reader, Token, is_plain_name, name_text, quoted
from tilewright.ir.types import DTYPES
from tilewright.lang.tile.ir import (
    Block,
    Element,
    Kernel,
    Operation,
    Place,
    Pointer,
    TileType,
    Value,
)
from tilewright.lang.tile.rules import SIGNATURES, faults


def kernel_text(k: Kernel, places: bool = True) -> str:
    """The kernel as text; without `places` it says nothing of the user's files."""
    return _Writer(places).kernel(k)


class _Writer:
    def __init__(self, places: bool) -> None:
        self.lines: list[str] = []
        self.places: dict[Place, int] | None = {} if places else None

    def kernel(self, k: Kernel) -> str:
        arguments = zip(k.arguments, k.divisors, k.positive, strict=True)
        given = ", ".join(
            _typed(a) + f" divisor {d}" * (d != 1) + " positive" * p for a, d, p in arguments
        )
        self.lines.append(f"kernel {name_text(k.name)}({given}) {{")
        self.block(k.body, "  ")
        self.lines.append("}")
        for place, number in (self.places or {}).items():
            self.lines.append(f"place {number} = {self._place_text(place)}")
        return "\n".join(self.lines) + "\n"

    def block(self, b: Block, pad: str) -> None:
        for o in b.operations:
            self.operation(o, pad)
        if b.yields:
            self.lines.append(f"{pad}yield({', '.join(map(_value, b.yields))})")

    def operation(self, o: Operation, pad: str) -> None:
        left = ", ".join(map(_typed, o.results)) + " = " * bool(o.results)
        inside = [*map(_value, o.args), *(f"{k}={_literal(v)}" for k, v in o.attrs.items())]
        where = f" @{self._place(o.place)}" if o.place and self.places is not None else ""
        self.lines.append(f"{pad}{left}{o.name}({', '.join(inside)}){where}")
        for name, b in zip(SIGNATURES[o.name].blocks, o.blocks, strict=True):
            self.lines.append(f"{pad}  {name}({', '.join(map(_typed, b.parameters))}) {{")
            self.block(b, pad + "    ")
            self.lines.append(f"{pad}  }}")

    def _place(self, p: Place) -> int:
        assert self.places is not None
        if p not in self.places:
            if p.inside is not None:
                self._place(p.inside)
            self.places[p] = len(self.places)
        return self.places[p]

    def _place_text(self, p: Place) -> str:
        assert self.places is not None
        text = f"{quoted(p.file)} {p.line}:{p.column} in {quoted(p.function)}"
        return text if p.inside is None else f"{text} from {self.places[p.inside]}"


def _value(v: Value) -> str:
    if not v.name:
        return f"%{v.number}"
    plain = is_plain_name(v.name) and "." not in v.name
    return f"%{v.name if plain else quoted(v.name)}.{v.number}"


def _typed(v: Value) -> str:
    return f"{_value(v)}: {v.type}"


def _literal(x: Any) -> str:
    if isinstance(x, str):
        return quoted(x)
    if isinstance(x, float) and isinf(x):
        return "inf" if x > 0 else "-inf"
    if isinstance(x, float) and isnan(x):
        return "nan"
    return repr(x)


# ---- reading


def parse_kernel(text: str) -> Kernel:
    """The kernel that prints so. Errors name the line, the column, and what is allowed."""
    return _Reader(text).kernel()


class _Reader(Reader):
    def __init__(self, text: str) -> None:
        super().__init__(text, "tile IR")
        self.values: dict[int, Value] = {}
        self.visible: set[Value] = set()
        self.starts: dict[int, Token] = {}  # of operations, by their identity
        self.places = self._places()

    def kernel(self) -> Kernel:
        first = self.token
        self.expect("kernel")
        name = self.name("the name of the kernel")
        self.expect("(")
        given = self.several(self._argument, ")")
        arguments = tuple(v for v, _, _ in given)
        body = self._block(arguments, ())
        if not self.sees_kind("end"):
            self.fail("the end, or a place")
        k = Kernel(
            name, arguments, body, tuple(d for _, d, _ in given), tuple(p for _, _, p in given)
        )
        for what, o in faults(k):
            self.problem(what, first if o is None else self.starts[id(o)])
        return k

    # ---- places stand at the end, and are read first

    def _places(self) -> dict[int, Place]:
        found: dict[int, Place] = {}
        while not self.sees_kind("end") and not self._is_place():
            self.next()
        end = self.at
        while not self.sees_kind("end"):
            self.expect("place")
            at = self.token
            number = self.integer("the number of a place")
            if number in found:
                self.problem(f"there are two places {number}", at)
            self.expect("=")
            file = self.string()
            line = self.integer("a line")
            self.expect(":")
            column = self.integer("a column")
            self.expect("in")
            function, inside = self.string(), None
            if self.take("from"):
                inside = self._known_place(found)
            found[number] = Place(file, line, column, function, inside)
        self.tokens[end:-1] = []
        self.at = 0
        return found

    def _is_place(self) -> bool:
        """`place 3 =`: no operation begins so."""
        following = [t.text for t in self.tokens[self.at + 1 : self.at + 3]]
        return self.sees("place") and following[:1] != ["("] and following[1:] == ["="]

    def _known_place(self, found: dict[int, Place]) -> Place:
        at = self.token
        number = self.integer("the number of a place")
        if number not in found:
            known = f"the last one is {max(found)}" if found else "there are none"
            self.problem(f"there is no place {number}; {known}", at)
        return found[number]

    # ---- values

    def _reference(self) -> tuple[int, str]:
        self.expect("%")
        if self.sees_kind("number"):
            return self.integer("the number of a value"), ""
        if self.sees_kind("string"):
            name = self.string()
            self.expect(".")
            return self.integer("the number of a value"), name
        at = self.token
        name, dot, number = self.name("the number of a value").rpartition(".")
        if not dot or not number.isdigit():
            self.problem("a value ends with its number: %3, or %x.3", at)
        return int(number), name

    def _used(self) -> Value:
        at = self.token
        number, name = self._reference()
        v = self.values.get(number)
        if v is None or v not in self.visible:
            self.problem(f"%{number} is not defined above, or in another block", at)
        if v.name != name:
            self.problem(f"this is {_value(v)}", at)
        return v

    def _defined(self) -> Value:
        at = self.token
        number, name = self._reference()
        if number in self.values:
            self.problem(f"there is a value with the number {number} above", at)
        self.expect(":")
        v = Value(self._type(), number, name)
        self.values[number] = v
        return v

    def _type(self) -> TileType:
        pointer = self.take("*")
        at = self.token
        name = self.name("the type of an element")
        if name not in DTYPES:
            self.problem(f"there is no type {name}; there are {', '.join(DTYPES)}", at)
        element: Element = Pointer(DTYPES[name]) if pointer else DTYPES[name]
        shape: list[int] = []
        if self.take("["):
            shape = self.several(self._size, "]")
        return TileType(element, tuple(shape))

    def _size(self) -> int:
        at = self.token
        n = self.integer("a size")
        if n < 1:
            self.problem("sizes are 1 or more", at)
        return n

    def _argument(self) -> tuple[Value, int, bool]:
        v, divisor = self._defined(), 1
        if self.take("divisor"):
            divisor = self._size()
        return v, divisor, self.take("positive")

    # ---- operations

    def _block(self, given: tuple[Value, ...], parameters: tuple[Value, ...]) -> Block:
        start = self.expect("{")
        outside = set(self.visible)
        self.visible.update(given, parameters)
        operations: list[Operation] = []
        yields: list[Value] = []
        while not self.take("}"):
            if self.sees_kind("end"):
                self.problem("this block is never closed", start)
            if self.take("yield"):
                self.expect("(")
                yields = self.several(self._used, ")")
                if not self.sees("}"):
                    self.fail("'}' after yield")
                continue
            operations.append(self._operation())
        self.visible = outside
        return Block(parameters, tuple(operations), tuple(yields))

    def _operation(self) -> Operation:
        start, results = self.token, []
        if self.sees("%"):
            results.append(self._defined())
            while self.take(","):
                results.append(self._defined())
            self.expect("=")
        at = self.token
        name = self.name("an operation")
        signature = SIGNATURES.get(name)
        if signature is None:
            known = ", ".join(sorted(SIGNATURES))
            self.problem(f"there is no operation {name}; there are {known}", at)
        self.expect("(")
        args: list[Value] = []
        attrs: dict[str, Any] = {}
        self.several(lambda: self._operand(args, attrs), ")")
        place = self._known_place(self.places) if self.take("@") else None
        blocks: list[Block] = []
        for title in signature.blocks:
            self.expect(title)
            self.expect("(")
            blocks.append(self._block((), tuple(self.several(self._defined, ")"))))
        made = Operation(name, tuple(args), tuple(results), attrs, tuple(blocks), place)
        self.starts[id(made)] = start
        self.visible.update(results)
        return made

    def _operand(self, args: list[Value], attrs: dict[str, Any]) -> None:
        at = self.token
        if self.sees("%"):
            if attrs:
                self.problem("values come before attributes", at)
            args.append(self._used())
            return
        name = self.name("a value or an attribute")
        if name in attrs:
            self.problem(f"{name} is given twice", at)
        self.expect("=")
        attrs[name] = self._constant()

    def _constant(self) -> Any:
        if self.sees_kind("string"):
            return self.string()
        if self.take("("):
            return tuple(self.several(lambda: self.integer(), ")"))
        sign = -1 if self.take("-") else 1
        if sign == 1 and self.sees("True", "False"):
            return self.next().text == "True"
        if self.take("inf"):
            return sign * float("inf")
        if self.take("nan"):
            return nan
        if not self.sees_kind("number"):
            self.fail("a number, a string, True, False or a tuple of integers")
        text = self.next().text
        return sign * (int(text) if text.isdigit() else float(text))
