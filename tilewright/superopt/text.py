"""Equalities as text, in Python's own grammar:

    matmul(x1, concat(w1, w2, axis=1)) == concat(matmul(x1, w1), matmul(x1, w2), axis=1)
        where x1: [m, k], w1: [k, n], w2: [k, o], p: [] >= 0, i: [r] < m

A kind is a list of sizes: numbers, names, or two parts of an axis in parentheses. What is `>= 0`
has no negative elements, what is `<` a size are indices below it. Bounds of a slice are `first`,
`middle`, where the two parts meet, and `last`; other attributes that depend on sizes are formulas
of their names, such as `shape=(2 * m, n)`, or say what changes: `shape=joined(0)`, `parted(0)`,
`widened(0)` or `narrowed(0)` (`vocabulary.Reshaped`). Dtypes are called by name.
"""

from __future__ import annotations

import ast
from typing import Any

from tilewright.base.errors import Invalid, require
from tilewright.ir.operator import OPERATORS
from tilewright.ir.types import TENSOR_DTYPES, f64
from tilewright.superopt.blocks import Block, Formula, Sizes, Times
from tilewright.superopt.terms import Equality, Leaf, Term, Tree
from tilewright.superopt.vocabulary import Bound, Instance, Reshaped

# The middle by what ends there, and what begins.
_BOUNDS = {("start", "first"): "first", ("start", "middle"): "right"}
_BOUNDS |= {("stop", "middle"): "left", ("stop", "last"): "last"}


def parse_equality(text: str) -> Equality:
    """Reads what `str` of an equality writes; both sides must be of one kind."""
    try:
        return _equality(text)
    except (
        SyntaxError,
        ArithmeticError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as why:
        raise Invalid(f"this is no equality: {text}", hint=str(why)) from None


def _equality(text: str) -> Equality:
    sides, _, declared = text.partition(" where ")
    table = ast.parse(f"{{{declared.strip()}}}", mode="eval").body
    compared = ast.parse(sides.strip(), mode="eval").body
    require(isinstance(table, ast.Dict), "what follows `where` is no list of kinds")
    assert isinstance(table, ast.Dict)
    leaves = dict(map(_leaf, table.keys, table.values))
    match compared:
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            found = Equality(_tree(left, leaves), _tree(right, leaves))
        case _:
            raise Invalid("there is no == between two sides")
    left, right = (n.type for n in found.nodes(Sizes.symbolic(found.symbols), f64))
    require(left == right, f"the sides are of types {left!r} and {right!r}")
    return found


def _leaf(name: ast.expr | None, kind: ast.expr) -> tuple[str, Leaf]:
    require(isinstance(name, ast.Name), "a kind belongs to no name")
    assert isinstance(name, ast.Name)
    positive, below = False, None
    match kind:
        case ast.Compare(left=ast.List(elts=elts), ops=[ast.GtE()], comparators=[ast.Constant(0)]):
            positive = True
        case ast.Compare(left=ast.List(elts=elts), ops=[ast.Lt()], comparators=[size]):
            below = _block(size)
        case ast.List(elts=elts):
            pass
        case _:
            raise Invalid(f"{name.id} has no list of sizes")
    return name.id, Leaf(name.id, tuple(map(_block, elts)), positive, below)


def _block(x: ast.expr) -> Block:
    match x:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            return name
        case ast.Tuple(elts=[first, second]):
            return _block(first), _block(second)
        case ast.BinOp(left=first, op=ast.Mult(), right=second):
            return Times.of(_block(first), _block(second))
    raise Invalid(f"{ast.unparse(x)} is no size")


def _tree(x: ast.expr, leaves: dict[str, Leaf]) -> Tree:
    match x:
        case ast.Name(id=name):
            require(name in leaves, f"{name} has no kind")
            return leaves[name]
        case ast.Call(func=ast.Name(id=name), args=operands, keywords=keywords):
            require(name in OPERATORS, f"there is no operator {name}")
            given = {str(k.arg): k.value for k in keywords}
            attributes = tuple((k, _attribute(k, v, given)) for k, v in given.items())
            return Term(Instance(name, attributes), tuple(_tree(y, leaves) for y in operands))
    raise Invalid(f"{ast.unparse(x)} is neither a name nor an operator on something")


def _attribute(name: str, x: ast.expr, given: dict[str, ast.expr]) -> Any:
    if name == "dtype":
        require(isinstance(x, ast.Name) and x.id in TENSOR_DTYPES, f"{ast.unparse(x)} is no dtype")
        assert isinstance(x, ast.Name)
        return TENSOR_DTYPES[x.id]
    if isinstance(x, ast.Name) and (name, x.id) in _BOUNDS:
        require("axis" in given, f"{x.id} is a bound of a slice along no axis")
        return Bound(ast.literal_eval(given["axis"]), _BOUNDS[name, x.id])
    match x:
        case ast.Call(func=ast.Name(id=change), args=[ast.Constant(value=int(axis))]):
            require(name == "shape", f"{ast.unparse(x)} is the {name} of nothing")
            return Reshaped(change, axis)
    if any(isinstance(y, ast.Name) for y in ast.walk(x)):
        return Formula(ast.unparse(x))
    return ast.literal_eval(x)
