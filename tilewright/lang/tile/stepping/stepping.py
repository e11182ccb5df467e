"""The Python of a kernel as it runs step by step: the author's lines, with the language's meaning.

Python differs from the language in a few places: there a variable that is given a number holds a
tensor, the variable of `for i in range(…)` is one too, lists are tuples, `and`, `or` and `not` of
tiles are computed, min and max take tensors, and what a loop carries keeps its type. The syntax
tree is changed in these places; files and lines stay, so that breakpoints and tracebacks are those
of the source.
"""

from __future__ import annotations

import ast
import builtins
import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from tilewright.lang.tile.builder import current
from tilewright.lang.tile.front.functions import TileFunction
from tilewright.lang.tile.front.merge import as_variable, changed_type, kind, leaves
from tilewright.lang.tile.front.scan import assigned
from tilewright.lang.tile.front.state import PYTHON
from tilewright.lang.tile.language import core
from tilewright.lang.tile.language.types import unwrap

_codes: WeakKeyDictionary[TileFunction, tuple[str, CodeType]] = WeakKeyDictionary()


class Stepper:
    """The functions of one launch, each made when it is first called."""

    def __init__(self) -> None:
        self._made: dict[TileFunction, Callable[..., Any]] = {}
        self._helpers: dict[str, Any] = {
            "__tile_as_variable__": as_variable,
            "__tile_callee__": self.callee,
            "__tile_all__": _all,
            "__tile_any__": _any,
            "__tile_not__": _not,
            "__tile_decided__": _decided,
            "__tile_tuple__": core.tuple,
            "__tile_rounds__": _Rounds,
        }

    def callee(self, f: Any) -> Any:
        """What is called where the source calls `f`."""
        if isinstance(f, TileFunction):
            return self.function(f)
        if f is builtins.range:
            return core.range
        if f is builtins.min or f is builtins.max:
            return PYTHON[f.__name__]
        return f

    def function(self, f: TileFunction) -> Callable[..., Any]:
        made = self._made.get(f)
        if made is None:
            made = self._made[f] = self._make(f)
        return made

    def _make(self, f: TileFunction) -> Callable[..., Any]:
        if not f.has_source:
            return f.fn
        names = {**f.globals, **self._helpers}
        shadowed = names.get(f.name)
        exec(_code(f), names)
        made = names[f.name]
        assert isinstance(made, FunctionType)
        made.__defaults__, made.__kwdefaults__ = f.fn.__defaults__, f.fn.__kwdefaults__
        if shadowed is not None:
            names[f.name] = shadowed
        return made


def _code(f: TileFunction) -> CodeType:
    source, code = _codes.get(f, ("", None))
    if code is None or source != f.source:
        tree = ast.increment_lineno(copy.deepcopy(f.tree), f.line - 1)
        tree = _Rewriter().function(tree)
        # A line of the file is where it was; the tree was read without the indentation.
        module = ast.fix_missing_locations(ast.Module([tree], []))
        code = compile(module, f.fn.__code__.co_filename, "exec", dont_inherit=True)
        _codes[f] = f.source, code
    return code


class _Rewriter(ast.NodeTransformer):
    loops = 0

    def function(self, tree: ast.FunctionDef) -> ast.FunctionDef:
        tree.decorator_list = []
        tree.returns = None
        a = tree.args
        for p in (*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))):
            p.annotation = None
        # Defaults are taken from the function itself: they were computed when it was defined. A
        # keyword without one stays without.
        a.defaults = []
        a.kw_defaults = [None for _ in a.kwonlyargs]
        body = ast.Module(tree.body, [])
        self.generic_visit(body)  # a statement may become several
        tree.body = body.body
        return tree

    def _call(self, name: str, *args: ast.expr) -> ast.Call:
        at = args[0]
        made = ast.Call(ast.Name(name, ast.Load()), list(args), [])
        return ast.fix_missing_locations(ast.copy_location(made, at))

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        node.value = self._call("__tile_as_variable__", node.value)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        if node.value is not None and "constexpr" not in ast.unparse(node.annotation):
            node.value = self._call("__tile_as_variable__", node.value)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.target, ast.Name):
            return node
        read = ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target)
        value = ast.copy_location(ast.BinOp(read, node.op, node.value), node)
        return ast.copy_location(
            ast.Assign([node.target], self._call("__tile_as_variable__", value)), node
        )

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        node.func = self._call("__tile_callee__", node.func)
        return node

    def visit_Tuple(self, node: ast.Tuple) -> ast.AST:
        return self._literal(node)

    def visit_List(self, node: ast.List) -> ast.AST:
        return self._literal(node)

    def _literal(self, node: ast.Tuple | ast.List) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Store):
            return node
        items = ast.copy_location(ast.List(node.elts, ast.Load()), node)
        return self._call("__tile_tuple__", items)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if not isinstance(node.slice, ast.Tuple):
            return self.generic_visit(node)
        node.value = self.visit(node.value)  # an index such as [:, None] stays Python's
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        if any(isinstance(x, ast.NamedExpr) for x in ast.walk(node)):
            return node  # what a lambda names stays inside it
        name = "__tile_all__" if isinstance(node.op, ast.And) else "__tile_any__"
        nothing = ast.arguments([], [], None, [], [], None, [])
        sides = [ast.copy_location(ast.Lambda(nothing, v), v) for v in node.values]
        return ast.copy_location(self._call(name, *sides), node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not):
            return ast.copy_location(self._call("__tile_not__", node.operand), node)
        return node

    def _decided(self, node: Any) -> Any:
        self.generic_visit(node)
        node.test = self._call("__tile_decided__", node.test)
        return node

    visit_If = visit_IfExp = _decided

    def visit_While(self, node: ast.While) -> list[ast.stmt]:
        names = assigned(node)
        self._decided(node)
        return self._watched(node, names, ast.Constant(None))

    def visit_For(self, node: ast.For) -> list[ast.stmt]:
        besides = {node.target.id} if isinstance(node.target, ast.Name) else set()
        names = assigned(node) - besides
        self.generic_visit(node)
        return self._watched(node, names, node.iter)

    def _watched(
        self, node: ast.For | ast.While, names: Collection[str], over: ast.expr
    ) -> list[ast.stmt]:
        """A loop that checks its variables before it starts and after each iteration."""
        self.loops += 1
        loop = f"__tile_loop{self.loops}__"
        added = ast.parse(
            f"{loop} = __tile_rounds__(None, {tuple(sorted(names))}, locals())\n"
            f"{loop}.check(locals())"
        )
        for x in ast.walk(added):
            if isinstance(x, (ast.stmt, ast.expr)):  # on the line of the loop, not of its body
                ast.copy_location(x, node).end_lineno = node.lineno
        first, last = added.body
        assert isinstance(first, ast.Assign) and isinstance(first.value, ast.Call)
        first.value.args[0] = over
        if isinstance(node, ast.For):
            node.iter = ast.copy_location(ast.Name(loop, ast.Load()), over)
        node.body = [*node.body, last]
        return [first, node]


class _Rounds:
    """What a loop goes over, and the variables that have to keep their types in it: not in one that
    is written out."""

    def __init__(self, over: Any, names: tuple[str, ...], known: Mapping[str, Any]) -> None:
        self.over = over
        carries = over is None or isinstance(over, core.range)
        self.before = {n: known[n] for n in names if n in known} if carries else {}

    def __iter__(self) -> Iterator[Any]:
        return iter(self.over)

    def check(self, known: Mapping[str, Any]) -> None:
        for name, old in self.before.items():
            new = known.get(name)
            if new is not old and kind(old) != kind(new) and kind(as_variable(old)) != kind(new):
                raise changed_type(name, as_variable(old) if leaves(as_variable(old)) else old, new)


def _all(*sides: Callable[[], Any]) -> Any:
    return _joined(True, sides)


def _any(*sides: Callable[[], Any]) -> Any:
    return _joined(False, sides)


def _joined(conjunction: bool, sides: tuple[Callable[[], Any], ...]) -> Any:
    """Constants decide as in Python; of tensors all are computed."""
    dynamic: list[core.tensor] = []
    value: Any = None
    for side in sides:
        value = side()
        if isinstance(value, core.tensor):
            dynamic.append(value)
        elif bool(unwrap(value)) != conjunction:
            return value
    if not dynamic:
        return value
    found = dynamic.pop()
    while dynamic:
        left = dynamic.pop()
        found = left.logical_and(found) if conjunction else left.logical_or(found)
    return found


def _not(x: Any) -> Any:
    return x.__not__() if isinstance(x, core.tensor) else not x


def _decided(x: Any) -> Any:
    """A condition; where values are checked, one that depends on nothing is noticed."""
    if isinstance(x, core.condition):
        x = x.condition
    if isinstance(x, core.tensor) and x.handle.type.size == 1:
        return current().decide(x.handle, "a branch")  # type: ignore[attr-defined]
    return x
