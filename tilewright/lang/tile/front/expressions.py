"""Expressions: Python computes with constants, tiles become operations."""

from __future__ import annotations

import ast
import functools
import operator
import types
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any

from tilewright.lang.tile.front.diagnostics import Mistake, StaticAssertionError, unsupported
from tilewright.lang.tile.front.functions import ConstexprFunction, TileFunction
from tilewright.lang.tile.front.state import PYTHON, State
from tilewright.lang.tile.language import core
from tilewright.lang.tile.language.types import (
    base_type,
    base_value,
    constexpr,
    int1,
    tuple_type,
    unwrap,
)

_BINARY: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_UNARY: dict[type[ast.AST], tuple[str, Callable[[Any], Any]]] = {
    ast.USub: ("-", operator.neg),
    ast.UAdd: ("+", operator.pos),
    ast.Invert: ("~", operator.invert),
}
_SYMBOLS = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.truediv: "/",
    operator.floordiv: "//",
    operator.mod: "%",
    operator.pow: "**",
    operator.lshift: "<<",
    operator.rshift: ">>",
    operator.and_: "&",
    operator.or_: "|",
    operator.xor: "^",
}

_PYTHON_IDS = frozenset(map(id, PYTHON.values()))
# Functions over items, and what tiles have instead.
_ITEMS: dict[Any, str] = {
    sum: "write tl.sum(x, axis)",
    any: "write tl.max(x.to(tl.int32), axis) != 0",
    all: "write tl.min(x.to(tl.int32), axis) != 0",
    sorted: "write tl.sort(x)",
    reversed: "write tl.flip(x)",
    **dict.fromkeys((list, tuple, enumerate, zip), ""),
}
_TAKE_TENSORS = tuple(PYTHON[name] for name in ("abs", "min", "max", "print"))


def constant(x: Any) -> Any:
    """A result of Python's as a value of the language: numbers and texts are constants, tuples are
    tuples of such; everything else is what it is."""
    if isinstance(x, (bool, int, float, str)) or x is None:
        return constexpr(x)
    if isinstance(x, (tuple, list)):
        return packed([constant(v) for v in x], getattr(x, "_fields", None))
    return x


def packed(values: Iterable[Any], fields: Iterable[str] | None = None) -> Any:
    made = list(values)
    if fields is None:
        return core.tuple(made)
    return core.tuple(made, tuple_type([None] * len(made), list(fields)))


def is_dynamic(x: Any) -> bool:
    """Is it known only when the kernel runs?"""
    return isinstance(x, core.tensor)


class Expressions(State):
    unused: ast.expr | None = None  # the expression that is a statement of its own

    def expression(self, node: ast.expr) -> Any:
        translate = _EXPRESSIONS.get(type(node))
        if translate is None:
            self.node = node
            raise unsupported(node)
        return translate(self, node)

    # ---- atoms

    def _constant(self, node: ast.Constant) -> Any:
        return constexpr(node.value)

    def _name(self, node: ast.Name) -> Any:
        self.node = node
        return self.named(node.id)

    def _tuple(self, node: ast.Tuple | ast.List) -> Any:
        return packed(self._items(node.elts))

    def _items(self, nodes: list[ast.expr]) -> list[Any]:
        found: list[Any] = []
        for n in nodes:
            if isinstance(n, ast.Starred):
                found.extend(self.static_items(n.value))
            else:
                found.append(self.expression(n))
        return found

    def static_items(self, node: ast.expr) -> list[Any]:
        """What a loop that is unrolled, or a star, goes over."""
        given = self.expression(node)
        self.node = node
        if is_dynamic(given):
            raise Mistake(
                "a tensor cannot be unpacked or looped over",
                "loop over tl.range, or split it with tl.split",
            )
        if isinstance(given, core.static_range):
            low, high, step = (unwrap(x) for x in (given.start, given.end, given.step))
            if step == 0:
                raise Mistake("the step of tl.static_range is 0")
            return [constexpr(i) for i in range(low, high, step)]
        try:
            return [constant(v) for v in unwrap(given)]
        except TypeError:
            raise Mistake(
                f"{_said(given)} cannot be looped over", "use range, tl.static_range or a tuple"
            ) from None

    def _joined(self, node: ast.JoinedStr) -> Any:
        parts: list[str] = []
        for v in node.values:
            if isinstance(v, ast.FormattedValue):
                given = self.expression(v.value)
                self.node = v.value
                if is_dynamic(given):
                    raise Mistake(
                        "an f-string can show constants only, and this is a tensor",
                        "print it: tl.device_print(“text”, x)",
                    )
                value: Any = unwrap(given)
                if v.conversion > 0:
                    value = {"s": str, "r": repr, "a": ascii}[chr(v.conversion)](value)
                spec = unwrap(self.expression(v.format_spec)) if v.format_spec else ""
                parts.append(format(value, spec))
            else:
                assert isinstance(v, ast.Constant)
                parts.append(str(v.value))
        return constexpr("".join(parts))

    # ---- operators

    def binary(self, node: ast.AST, op: ast.AST, a: Any, b: Any) -> Any:
        self.node = node
        apply = _BINARY.get(type(op))
        if apply is None:
            raise Mistake("the tile language has no operator @", "tl.dot multiplies matrices")
        if isinstance(a, (tuple, list)):
            a = constant(a)
        if isinstance(b, (tuple, list)):
            b = constant(b)
        if not isinstance(a, base_value) and not isinstance(b, base_value):
            return constant(apply(a, b))
        try:
            found = apply(a, b)
        except TypeError as error:
            if not str(error).startswith(("unsupported operand", "'")):
                raise
            symbol = _SYMBOLS.get(apply, type(op).__name__)
            hint = "write x * x, or tl.extra.libdevice.pow(x, y)" if symbol == "**" else None
            raise Mistake(f"there is no {symbol} of {_said(a)} and {_said(b)}", hint) from None
        return constant(found)

    def _binary(self, node: ast.BinOp) -> Any:
        spine = [node]  # a + b + c + …, as long as it may be
        while isinstance(spine[-1].left, ast.BinOp):
            spine.append(spine[-1].left)
        found = self.expression(spine[-1].left)
        for n in reversed(spine):
            found = self.binary(n, n.op, found, self.expression(n.right))
        return found

    def _unary(self, node: ast.UnaryOp) -> Any:
        x = self.expression(node.operand)
        self.node = node
        if isinstance(node.op, ast.Not):
            return x.__not__() if is_dynamic(x) else constexpr(not unwrap(x))
        symbol, apply = _UNARY[type(node.op)]
        try:
            return constant(apply(x))
        except TypeError:
            raise Mistake(f"there is no {symbol} of {_said(x)}") from None

    def _compare(self, node: ast.Compare) -> Any:
        a = self.expression(node.left)
        found: Any = None
        for op, right in zip(node.ops, node.comparators, strict=True):
            b = self.expression(right)
            one = self._compared(node, op, a, b)
            found = one if found is None else self._both(found, one)
            if not is_dynamic(found) and not unwrap(found):
                return found
            a = b
        return found

    def _compared(self, node: ast.Compare, op: ast.cmpop, a: Any, b: Any) -> Any:
        self.node = node
        if isinstance(op, (ast.Is, ast.IsNot)):
            if is_dynamic(a) != is_dynamic(b) and not any(unwrap(x) is None for x in (a, b)):
                raise Mistake(
                    "`is` tests whether two names are one object, and a tensor is no constant",
                    "compare with == or !=",
                )
            same = unwrap(a) is unwrap(b)
            return constexpr(same == isinstance(op, ast.Is))
        if isinstance(op, (ast.In, ast.NotIn)):
            if is_dynamic(a) or is_dynamic(b):
                raise Mistake(
                    "`in` works on constants only", "compare with each of them: (x == a) | (x == b)"
                )
            among = [unwrap(v) for v in unwrap(b)] if not isinstance(unwrap(b), str) else unwrap(b)
            return constexpr((unwrap(a) in among) == isinstance(op, ast.In))
        return self.binary(node, op, a, b)

    def _both(self, a: Any, b: Any) -> Any:
        if not is_dynamic(a):  # known to hold
            return b
        return a if not is_dynamic(b) and unwrap(b) else a.logical_and(b)

    def _boolean(self, node: ast.BoolOp) -> Any:
        """Constants decide as in Python; of tiles all are computed, and the operation is theirs."""
        conjunction = isinstance(node.op, ast.And)
        open_: list[Any] = []
        value: Any = None
        for n in node.values:
            value = self.expression(n)
            if is_dynamic(value):
                open_.append(value)
            elif bool(unwrap(value)) != conjunction:
                return value
        self.node = node
        if not open_:
            return value
        found = open_.pop()
        while open_:
            left = open_.pop()
            found = left.logical_and(found) if conjunction else left.logical_or(found)
        return found

    def condition(self, node: ast.expr, given: Any) -> Any:
        """A condition: a Python bool, or a scalar tensor of bools."""
        self.node = node
        if not is_dynamic(given):
            value = unwrap(given)
            if value is None or isinstance(value, (bool, int)):
                return bool(value)
            raise Mistake(
                f"a condition is a bool, an int or a scalar tensor, and not {_said(given)}",
                "compare it with something",
            )
        if given.handle.type.size != 1:
            raise Mistake(
                f"a condition is one bool, and this is a tensor of {given.type}",
                "tl.where chooses element by element; tl.max(x.to(tl.int32)) != 0: is any true?",
            )
        given = given.to(int1)
        if given.handle.shape:
            (scalar,) = self.builder.emit(
                "reshape", (given.handle,), (given.handle.type.with_shape(()),)
            )
            given = core.tensor(scalar, int1)
        return given

    def _choice(self, node: ast.IfExp) -> Any:
        c = self.condition(node.test, self.expression(node.test))
        if isinstance(c, bool):
            return self.expression(node.body if c else node.orelse)
        return self.branches(
            node,
            c,
            lambda: self.expression(node.body),
            lambda: self.expression(node.orelse),
        )

    def branches(
        self, node: ast.AST, c: Any, one: Callable[[], Any], other: Callable[[], Any]
    ) -> Any:
        raise NotImplementedError

    def _walrus(self, node: ast.NamedExpr) -> Any:
        self.give(node.target, self.expression(node.value))
        return self.named(node.target.id)

    def give(self, target: ast.expr, value: Any) -> None:
        raise NotImplementedError

    # ---- parts of values

    def _attribute(self, node: ast.Attribute) -> Any:
        left = self.expression(node.value)
        self.node = node
        if isinstance(left, constexpr) and node.attr not in ("value", "type"):
            left = left.value
        try:
            found = getattr(left, node.attr)
        except AttributeError:
            kind = f"module {left.__name__}" if isinstance(left, types.ModuleType) else _said(left)
            said = f"{kind} has no attribute {node.attr}"
            raise Mistake(said, _instead(left, node.attr)) from None
        return constant(found) if isinstance(found, (bool, int, float, str)) else found

    def _subscript(self, node: ast.Subscript) -> Any:
        left = self.expression(node.value)
        key = self._key(node.slice)
        self.node = node
        if isinstance(left, constexpr):
            left = left.value
        if not is_dynamic(left) and is_dynamic(key):
            raise Mistake(
                f"the index of {_said(left)} has to be a constant",
                "unroll the loop: for i in tl.static_range(…)",
            )
        method = getattr(type(left), "__getitem__", None)
        if isinstance(method, TileFunction):
            return self.inline(method, (left, constant(key)), {})
        try:
            return constant(left[key])
        except TypeError as error:
            if "not subscriptable" not in str(error):
                raise
            raise Mistake(f"{_said(left)} has no items") from None
        except IndexError:
            text, count = ast.unparse(node.value), len(left)
            hint = f"its items are 0 to {count - 1}"
            if count == 0:
                hint = "a scalar or a pointer has no axes: pass sizes as arguments"
            raise Mistake(
                f"{text} has {count} items, and {key} is no index of them", hint
            ) from None

    def _key(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Slice):
            given = (node.lower, node.upper, node.step)
            return slice(*(None if n is None else unwrap(self.expression(n)) for n in given))
        if isinstance(node, ast.Tuple):
            return tuple(self._key(n) for n in node.elts)
        return unwrap(self.expression(node))

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp) -> Any:
        if len(node.generators) != 1:
            raise Mistake("a comprehension in kernels has one for", "nest two of them", node)
        (g,) = node.generators
        found: list[Any] = []
        before = dict(self.frame.locals)
        for item in self.static_items(g.iter):
            self.unpack(g.target, item)
            kept = True
            for test in g.ifs:
                c = self.condition(test, self.expression(test))
                if not isinstance(c, bool):
                    raise Mistake("the condition of a comprehension has to be a constant")
                kept = kept and c
            if kept:
                found.append(self.expression(node.elt))
        self.frame.locals = before
        return packed(found)

    def unpack(self, target: ast.expr, value: Any) -> None:
        raise NotImplementedError

    # ---- calls

    def _call(self, node: ast.Call) -> Any:
        f = unwrap(self.expression(node.func))
        if f is core.static_assert:
            return self._static_assert(node)
        args = self._items(node.args)
        kwargs: dict[str, Any] = {}
        for k in node.keywords:
            if k.arg is None:
                self.node = k.value
                raise Mistake(
                    "the tile language has no **keywords", "name the arguments one by one"
                )
            kwargs[k.arg] = self.expression(k.value)
        self.node = node
        if node is self.unused:
            why = "write p = tl.advance(p, …)" if f is core.advance else _needed(f)
            if why:
                raise Mistake(
                    f"the result of {ast.unparse(node.func)} is not used",
                    why if isinstance(why, str) else None,
                )
        return self.apply(f, args, kwargs)

    def apply(self, f: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if isinstance(f, functools.partial):  # a method
            args, kwargs, f = [*f.args, *args], {**f.keywords, **kwargs}, f.func
        if isinstance(f, TileFunction):
            return self.inline(f, args, kwargs)
        if getattr(f, "__tile_builtin__", False) or isinstance(
            getattr(f, "__self__", None), base_value
        ):
            return constant(f(*args, **kwargs))
        if f is core.static_print:
            print(*map(unwrap, args), **{k: unwrap(v) for k, v in kwargs.items()})
            return constexpr(None)
        if isinstance(f, ConstexprFunction):
            return constant(f(*args, **kwargs))
        if f is isinstance:
            return constexpr(_is_instance(*args))
        if isinstance(f, type):
            return self._made(f, args, kwargs)
        if not callable(f):
            raise Mistake(f"{_said(f)} cannot be called")
        if id(f) in _PYTHON_IDS or getattr(f, "__tile_plain__", False):
            return self._python(f, args, kwargs)
        self._refuse_arrays(f, [*args, *kwargs.values()])
        given = [unwrap(a) for a in args]
        return constant(f(*given, **{k: unwrap(v) for k, v in kwargs.items()}))

    def _refuse_arrays(self, f: Any, args: list[Any]) -> None:
        """Functions of these modules compute with arrays or numbers, and not with tiles."""
        of = getattr(f, "__module__", None) or type(f).__module__
        if of.split(".")[0] not in ("math", "numpy", "torch", "builtins"):
            return
        if any(map(is_dynamic, args)):
            assert isinstance(self.node, ast.Call)
            name = getattr(f, "__name__", "")
            known = hasattr(core, name) or hasattr(core.tensor, name)
            hint = f"write tl.{name}" if known else ""
            raise Mistake(
                f"{ast.unparse(self.node.func)} is no function of kernels, and this is a tensor",
                hint or "compute with the functions of tilewright.language, or before the launch",
            )

    def _made(self, kind: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """An object of a class."""
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            made: Any = kind(*args, **kwargs)
            return packed([constant(v) for v in made], made._fields)
        if issubclass(kind, (base_value, base_type)) or getattr(kind, "__tile_aggregate__", False):
            return kind(*args, **kwargs)
        return self._python(kind, args, kwargs)

    def _python(self, f: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if f in (int, float, bool) and args and is_dynamic(args[0]):
            name = {int: "int32", float: "float32", bool: "int1"}[f]
            raise Mistake(
                f"{f.__name__}() is for constants, and this is a tensor of {args[0].type}",
                f"write x.to(tl.{name})",
            )
        if f in (str, repr) and any(map(is_dynamic, args)):
            raise Mistake(
                f"{f.__name__}() shows constants only, and this is a tensor",
                "print it: tl.device_print(“text”, x)",
            )
        if f is len and isinstance(args[0], core.tensor):
            pointer = "a pointer knows no size: pass it as an argument"
            raise Mistake("len() of a tensor", pointer if not args[0].shape else "use x.shape[0]")
        if f in _ITEMS and any(map(is_dynamic, args)):
            (x, *_) = filter(is_dynamic, args)
            raise Mistake(
                f"{f.__name__}() goes over the items of a tuple, and this is {_said(x)}",
                _ITEMS[f] or "tl.split and tl.reshape take a tile apart",
            )
        given = args if f in _TAKE_TENSORS else map(unwrap, args)
        found = f(*given, **{k: unwrap(v) for k, v in kwargs.items()})
        if isinstance(found, (enumerate, zip, reversed, range)):
            found = list(found)
        return constant(found)

    def _static_assert(self, node: ast.Call) -> Any:
        given = self._items(node.args[:1])
        keywords = {k.arg: k.value for k in node.keywords}
        message = node.args[1] if len(node.args) > 1 else keywords.get("msg")
        if not given and "cond" in keywords:
            given = [self.expression(keywords["cond"])]
        self.node = node
        if len(given) != 1 or len(node.args) > 2:
            raise Mistake("tl.static_assert takes a condition and perhaps a message")
        value = unwrap(given[0])
        if is_dynamic(value) or not isinstance(value, (bool, int)):
            raise Mistake(
                "the condition of tl.static_assert is not known while compiling",
                "it may depend on tl.constexpr values only; tl.device_assert is for others",
            )
        if not value:
            said = f": {unwrap(self.expression(message))}" if message is not None else ""
            self.node = node
            raise Mistake(f"static assertion failed{said}", None, node, StaticAssertionError)
        return constexpr(None)


def _needed(f: Any) -> Any:
    """Whether the result of a function must be used, and the reason."""
    return getattr(f, "must_use_result", False)


def _instead(x: Any, name: str) -> str | None:
    """What is written instead of an attribute that something does not have."""
    if isinstance(x, core.tuple) and name in ("append", "extend", "insert"):
        return "lists of kernels are tuples: x = x + (item,)"
    if isinstance(x, core.tensor) and name in _TORCH_CASTS:
        return f"write .to(tl.{_TORCH_CASTS[name]})"
    close = get_close_matches(name, [n for n in dir(x) if not n.startswith("_")], 1)
    return f"did you mean {close[0]}?" if close else None


# Methods of torch's tensors.
_TORCH_CASTS = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "bfloat16": "bfloat16",
    "int": "int32",
    "long": "int64",
    "bool": "int1",
    "type": "float32",
    "astype": "float32",
}


def _is_instance(x: Any, kinds: Any) -> bool:
    wanted = unwrap(kinds)
    wanted = tuple(unwrap(k) for k in wanted) if not isinstance(wanted, type) else (wanted,)
    return isinstance(x, wanted) or isinstance(unwrap(x), wanted)


def _said(x: Any) -> str:
    """A value for messages."""
    if isinstance(x, core.tensor):
        return f"a tensor of {x.type}"
    x = unwrap(x)
    if isinstance(x, (bool, int, float, str)) or x is None:
        return repr(x)
    if isinstance(x, core.tuple):
        return "a tuple"
    return f"{getattr(x, '__name__', None) or 'a ' + type(x).__name__}"


_EXPRESSIONS: dict[type[ast.expr], Callable[[Any, Any], Any]] = {
    ast.Constant: Expressions._constant,
    ast.Name: Expressions._name,
    ast.Tuple: Expressions._tuple,
    ast.List: Expressions._tuple,
    ast.JoinedStr: Expressions._joined,
    ast.BinOp: Expressions._binary,
    ast.UnaryOp: Expressions._unary,
    ast.Compare: Expressions._compare,
    ast.BoolOp: Expressions._boolean,
    ast.IfExp: Expressions._choice,
    ast.NamedExpr: Expressions._walrus,
    ast.Attribute: Expressions._attribute,
    ast.Subscript: Expressions._subscript,
    ast.ListComp: Expressions._comprehension,
    ast.GeneratorExp: Expressions._comprehension,
    ast.Call: Expressions._call,
}
