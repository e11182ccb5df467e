"""Statements: assignments, what is done for its effect, and blocks of statements."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.lang.tile.front.control import Bind, Control, Returned
from tilewright.lang.tile.front.diagnostics import Mistake, unsupported
from tilewright.lang.tile.front.expressions import constant
from tilewright.lang.tile.front.merge import as_variable, said
from tilewright.lang.tile.front.scan import returns
from tilewright.lang.tile.language import core
from tilewright.lang.tile.language.types import constexpr, unwrap


class Statements(Control):
    def statements(self, items: Sequence[Any]) -> Returned | None:
        """One after the other; what a return gave, or None where the end was reached."""
        for k, item in enumerate(items):
            if type(item) is Bind:
                self.unpack(item.target, item.value)
                continue
            if type(item) is ast.Return:
                return self._return(item)
            if type(item) in (ast.If, ast.For, ast.While) and returns(item):
                return self.returning(item, items[k + 1 :])
            translate = _STATEMENTS.get(type(item))
            self.node = item
            if translate is None:
                raise unsupported(item)
            translate(self, item)
        return None

    def _return(self, node: ast.Return) -> Returned:
        self.node = node
        if self.frame.loops:
            raise Mistake(
                "return inside a loop of the kernel",
                "set a flag and test it, or loop with tl.static_range, which is written out",
            )
        value = constexpr(None) if node.value is None else self.expression(node.value)
        if self.frame.parent is None and not (isinstance(value, constexpr) and value.value is None):
            raise Mistake(
                f"a kernel returns nothing, and this one returns {said(value)}",
                "store it: tl.store(pointer, value)",
                node,
            )
        return Returned(value)

    # ---- assignments

    def _assign(self, node: ast.Assign) -> None:
        if len(node.targets) != 1:
            value = self.expression(node.value)
            self.node = node
            for target in node.targets:
                self.give(target, value)
            return
        value = self.expression(node.value)
        self.node = node
        self.give(node.targets[0], value)

    def give(self, target: ast.expr, value: Any) -> None:
        """The value of an expression to its targets: numbers become tensors, unless the name was
        declared as `x: tl.constexpr`."""
        if isinstance(target, ast.Name):
            if target.id in self.frame.annotated:
                self.frame.annotated.discard(target.id)
                self.assign(target.id, constant(value))
            else:
                self.assign(target.id, as_variable(value))
            return
        if isinstance(target, (ast.Tuple, ast.List)):
            for t, v in self._pairs(target, value):
                self.give(t, v)
            return
        raise self._no_target(target)

    def unpack(self, target: ast.expr, value: Any) -> None:
        """The same for constants that stay constants: the variables of loops written out."""
        if isinstance(target, ast.Name):
            self.assign(target.id, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for t, v in self._pairs(target, value):
                self.unpack(t, v)
        else:
            raise self._no_target(target)

    def _pairs(self, target: ast.Tuple | ast.List, value: Any) -> list[tuple[ast.expr, Any]]:
        value = constant(unwrap(value))
        if not isinstance(value, core.tuple):
            raise Mistake(
                f"{len(target.elts)} names are given a value that is no tuple",
                "tl.split gives the two halves of a tensor",
                target,
            )
        values: list[Any] = list(value.values)
        starred = [k for k, t in enumerate(target.elts) if isinstance(t, ast.Starred)]
        if starred:
            raise Mistake(
                "the tile language has no starred assignment", "index or slice the tuple", target
            )
        if len(values) != len(target.elts):
            many = "too many" if len(values) > len(target.elts) else "not enough"
            raise Mistake(
                f"{many} values to unpack (expected {len(target.elts)}, got {len(values)})",
                None,
                target,
            )
        return list(zip(target.elts, values, strict=True))

    def _no_target(self, target: ast.expr) -> Mistake:
        if isinstance(target, ast.Subscript):
            return Mistake(
                "tiles and tuples are not changed in place",
                "tl.where chooses new elements, tl.store writes memory",
                target,
            )
        return Mistake("attributes cannot be assigned in a kernel", "use a variable", target)

    def _annotated(self, node: ast.AnnAssign) -> None:
        constant_wanted = self._is_constexpr(node.annotation)
        if not isinstance(node.target, ast.Name):
            raise self._no_target(node.target)
        name = node.target.id
        if node.value is None:
            if constant_wanted:
                self.frame.annotated.add(name)
            return
        value = self.expression(node.value)
        self.node = node
        if not constant_wanted:
            self.give(node.target, value)
            return
        if name in self.frame.locals and not self._same_again(name, value):
            raise Mistake(
                f"{name} is already defined, and a tl.constexpr is not assigned twice",
                "use another name",
            )
        self.assign(name, constant(value))

    def _same_again(self, name: str, value: Any) -> bool:
        """Bodies of loops that are written out say the same thing many times."""
        old = self.frame.locals[name]
        return isinstance(old, constexpr) and isinstance(value, constexpr)

    def _is_constexpr(self, annotation: ast.expr) -> bool:
        if isinstance(annotation, ast.Constant):
            return "constexpr" in str(annotation.value)
        found = self.expression(annotation)
        return found is constexpr

    def _augmented(self, node: ast.AugAssign) -> None:
        target = node.target
        if not isinstance(target, ast.Name):
            raise self._no_target(target)
        self.node = target
        old = self.named(target.id)
        value = self.binary(node, node.op, old, self.expression(node.value))
        self.give(target, value)

    # ---- the others

    def _effect(self, node: ast.Expr) -> None:
        self.unused = node.value
        self.expression(node.value)

    def _nothing(self, node: ast.stmt) -> None:
        pass

    def _assert(self, node: ast.Assert) -> None:
        condition = self.expression(node.test)
        message = self.expression(node.msg) if node.msg is not None else constexpr("")
        self.node = node
        core.device_assert(condition, message)

    def _delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if not isinstance(target, ast.Name):
                raise self._no_target(target)
            if self.frame.locals.pop(target.id, None) is None:
                raise Mistake(f"{target.id} is not defined", None, target)


_STATEMENTS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Assign: Statements._assign,
    ast.AnnAssign: Statements._annotated,
    ast.AugAssign: Statements._augmented,
    ast.Expr: Statements._effect,
    ast.Pass: Statements._nothing,
    ast.Assert: Statements._assert,
    ast.Delete: Statements._delete,
    ast.If: Statements._if,
    ast.For: Statements._for,
    ast.While: Statements._while,
}
