"""Branches and loops.

A branch on a constant is the branch that is taken. Any other becomes an operation with blocks, and
the variables that differ at their ends become its results. A loop carries the variables that its
body assigns and that have a value before it. A return inside a branch duplicates the rest of
the function: what follows the branch is translated inside both branches.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.ir.types import DType
from tilewright.lang.tile.builder import OpenBlock
from tilewright.lang.tile.front.diagnostics import Mistake
from tilewright.lang.tile.front.expressions import Expressions, is_dynamic
from tilewright.lang.tile.front.merge import (
    NO_VALUE,
    Differ,
    around,
    as_variable,
    changed_type,
    joined,
    kind,
    leaves,
    said,
)
from tilewright.lang.tile.front.scan import assigned
from tilewright.lang.tile.front.state import Undefined
from tilewright.lang.tile.ir import TileType, Value
from tilewright.lang.tile.language import core
from tilewright.lang.tile.language.types import dtype_of, unwrap


@dataclass(frozen=True)
class Bind:
    """A statement of our own: the variable of a loop that is written out gets its next value."""

    target: ast.expr
    value: Any


@dataclass(frozen=True)
class Returned:
    value: Any


@dataclass
class _Loop:
    """What a loop carries, while its body is translated."""

    names: list[str]
    start: dict[str, Any]  # values before
    blocks: list[OpenBlock]
    first: int  # parameters of each block before the carried ones
    ends: dict[str, Any] | None = None  # values at the end of the body

    def enter(self, block: OpenBlock, locals: dict[str, Any]) -> None:
        """Carried variables are the block's parameters inside."""
        for name in self.names:
            old = self.start[name]
            given = [block.parameter(t.handle.type, name) for t in leaves(old)]
            locals[name] = around(old, given)


class Control(Expressions):
    # ---- branches

    def _if(self, node: ast.If) -> None:
        c = self.condition(node.test, self.expression(node.test))
        if isinstance(c, bool):
            self.statements(node.body if c else node.orelse)
            return
        before = self.frame.locals
        blocks, ends = [], []
        for body in (node.body, node.orelse):
            self.frame.locals = dict(before)
            with self.builder.inside(self.builder.opened()) as block:
                self.statements(body)
            blocks.append(block)
            ends.append(self.frame.locals)
        self.node = node
        self.frame.locals = before
        self._meet(node, c, blocks, before, ends)

    def _meet(
        self,
        node: ast.If,
        c: Any,
        blocks: list[OpenBlock],
        before: dict[str, Any],
        ends: list[dict[str, Any]],
    ) -> None:
        """Variables after a branch."""
        makes: list[tuple[str, Any]] = []
        then, other = ends
        line = node.lineno - 1 + self.frame.function.line
        for name in sorted(assigned(node)):
            a, b = then.get(name), other.get(name)
            if name not in then and name not in other:
                continue
            if a is b:
                makes.append((name, lambda results, a=a: a))
                continue
            if name not in then or name not in other:
                where = "under the if" if name in then else "under the else"
                before[name] = _missing(name, f"only {where} at line {line}")
                continue
            if isinstance(a, Undefined) or isinstance(b, Undefined):
                before[name] = a if isinstance(a, Undefined) else b
                continue
            try:
                make, left, right = joined(self.builder, a, b, *blocks, numbers=False)
            except Differ as differ:
                old = before.get(name)
                if old is not None and leaves(old):
                    raise Mistake(
                        f"{name} is of type {said(old)} before the if; its branches leave it as "
                        f"{differ.one} and {differ.other}",
                        f"keep one type: convert with .to(…), or use another name than {name}",
                    ) from None
                before[name] = Undefined(
                    f"{name} is {differ.one} or {differ.other}, whichever branch of the if at line "
                    f"{line} is taken",
                    "both branches have to leave a value of one type",
                )
                continue
            blocks[0].yields += left
            blocks[1].yields += right
            makes.append((name, make))
        types = [v.type for v in blocks[0].yields]
        results = iter(self.builder.emit("if", (c.handle,), types, {}, blocks))
        for name, make in makes:
            self.assign(name, make(results))

    def branches(
        self, node: ast.AST, c: Any, one: Callable[[], Any], other: Callable[[], Any]
    ) -> Any:
        """A value that is computed in one of two ways."""
        before = self.frame.locals
        blocks, values = [], []
        for compute in (one, other):
            self.frame.locals = dict(before)
            with self.builder.inside(self.builder.opened()) as block:
                values.append(compute())
            blocks.append(block)
        self.node = node
        self.frame.locals = before
        if any(isinstance(v, Returned) for v in values):
            given = [v.value if isinstance(v, Returned) else NO_VALUE for v in values]
        else:
            given = [NO_VALUE if v is None else v for v in values]
        try:
            make, left, right = joined(self.builder, *given, *blocks, numbers=True)
        except Differ as differ:
            if isinstance(node, ast.IfExp):
                what = "the two sides of `a if c else b`"
            else:
                what = "the values that the function returns"
            raise Mistake(
                f"{what} are {differ.one} and {differ.other}",
                "make them the same type with .to(…); a condition known while compiling "
                "(tl.constexpr) may choose between types",
            ) from None
        blocks[0].yields += left
        blocks[1].yields += right
        types = [v.type for v in left]
        return make(iter(self.builder.emit("if", (c.handle,), types, {}, blocks)))

    def returning(self, node: ast.stmt, rest: Sequence[Any]) -> Any:
        """A statement with a return inside, and all that follows it in the function."""
        if isinstance(node, ast.If):
            c = self.condition(node.test, self.expression(node.test))
            if isinstance(c, bool):
                return self.statements([*(node.body if c else node.orelse), *rest])
            if self.frame.loops:
                raise _return_in_loop(node)
            found = self.branches(
                node,
                c,
                lambda: self.statements([*node.body, *rest]),
                lambda: self.statements([*node.orelse, *rest]),
            )
            return None if found is NO_VALUE else Returned(found)
        if isinstance(node, ast.For):
            items = self._unrolled(node)
            if items is not None:
                written = [x for v in items for x in (Bind(node.target, v), *node.body)]
                return self.statements([*written, *node.orelse, *rest])
        raise _return_in_loop(node)

    # ---- loops

    def _for(self, node: ast.For) -> None:
        items = self._unrolled(node)
        if items is not None:
            for v in items:
                self.unpack(node.target, v)
                self.statements(node.body)
            self.statements(node.orelse)
            return
        if node.orelse:
            raise Mistake("the tile language has no else after for", "put it after the loop", node)
        if not isinstance(node.target, ast.Name):
            raise Mistake("the variable of a loop is one name", "for i in range(…)", node.target)
        bounds, advice = self._bounds(node)
        index = bounds[0].handle.type

        def body(loop: _Loop) -> None:
            assert isinstance(node.target, ast.Name)
            (block,) = loop.blocks
            i = block.parameter(index, node.target.id)
            loop.enter(block, self.frame.locals)
            self.assign(node.target.id, core.wrap(i, bounds[0]))
            with self.builder.inside(block):
                self.statements(node.body)

        name = node.target.id
        loop = self._carry(node, body, blocks=1, first=1, besides=name)
        given = [b.handle for b in bounds]
        self._finish(node, "for", given, loop, advice)
        line = node.lineno - 1 + self.frame.function.line
        self.frame.locals[name] = Undefined(
            f"{name} is the variable of the loop at line {line}, which has ended",
            f"assign {name} to another variable inside the loop",
        )

    def _unrolled(self, node: ast.For) -> list[Any] | None:
        """What a loop that is written out goes over; None: it runs in the kernel."""
        call = node.iter
        if isinstance(call, ast.Call):
            f = unwrap(self.expression(call.func))
            if f is range or f is core.range:
                return None
        return self.static_items(node.iter)

    def _bounds(self, node: ast.For) -> tuple[list[Any], dict[str, Any]]:
        """Start, end and step as scalars of one integer type, and advice for schedules."""
        call = node.iter
        assert isinstance(call, ast.Call)
        f = unwrap(self.expression(call.func))
        args = self._items(call.args)
        keywords = {str(k.arg): self.expression(k.value) for k in call.keywords}
        self.node = call
        # Advice to the compiler may stand in Python's range too. Triton ignores it there.
        known = core.range.ADVICE | {"step"}
        if f is range and not (1 <= len(args) <= 3 and keywords.keys() <= known):
            raise Mistake("range takes one to three bounds", "range(start, end, step)")
        counter = core.range(*args, **keywords)
        bounds = [counter.start, counter.end, counter.step]
        if not is_dynamic(bounds[2]) and unwrap(bounds[2]) == 0:
            raise Mistake("the step of a loop is 0")
        made = []
        for x, what in zip(bounds, ("start", "end", "step"), strict=True):
            t = as_variable(x)
            if not isinstance(t, core.tensor) or not (t.dtype.is_int() and t.handle.type.size == 1):
                raise Mistake(
                    f"the {what} of a loop is an integer, and this is {said(x)}",
                    "convert it with .to(tl.int32)" if is_dynamic(x) else None,
                )
            if t.handle.shape:
                (v,) = self.builder.emit("reshape", (t.handle,), (TileType(t.handle.element),))
                t = core.wrap(v)
            made.append(t)
        wide = made[0].handle.type.dtype
        for t in made[1:]:
            wide = _wider(wide, t.handle.type.dtype)
        advice = {"specialised": True} if unwrap(counter.warp_specialize) else {}
        return [t.to(dtype_of(wide)) for t in made], advice

    def _while(self, node: ast.While) -> None:
        if node.orelse:
            raise Mistake(
                "the tile language has no else after while", "put it after the loop", node
            )
        known: list[Any] = []

        def body(loop: _Loop) -> None:
            test, inner = loop.blocks
            before = self.frame.locals
            self.frame.locals = dict(before)
            loop.enter(test, self.frame.locals)
            with self.builder.inside(test):
                given = self.expression(node.test)
                if isinstance(given, core.condition):
                    given = given.condition
                c = self.condition(node.test, given)
                known[:] = [c] if isinstance(c, bool) else []
                if not isinstance(c, bool):
                    test.yields.append(c.handle)
            self.frame.locals = before
            loop.enter(inner, self.frame.locals)
            with self.builder.inside(inner):
                self.statements(node.body)

        before = dict(self.frame.locals)
        loop = self._carry(node, body, blocks=2, first=0)
        if known:
            if known[0]:
                raise Mistake(
                    "this while loop never ends: its condition is always true",
                    "loop on a condition that depends on a variable of the body",
                    node.test,
                )
            self.frame.locals = before
            return
        self._finish(node, "while", [], loop, {})

    def _carry(
        self,
        node: ast.For | ast.While,
        body: Callable[[_Loop], None],
        blocks: int,
        first: int,
        besides: str = "",
    ) -> _Loop:
        """Translate the body. Constants that become tensors in it have to be tensors before the
        loop: then the body is translated again."""
        before = self.frame.locals
        written = sorted(assigned(node) - {besides})
        promoted: dict[str, Any] = {}
        while True:
            start = {n: promoted.get(n, before[n]) for n in written if n in before}
            names = [n for n, v in start.items() if leaves(v)]
            loop = _Loop(names, start, [self.builder.opened() for _ in range(blocks)], first)
            self.frame.locals = {**before, **promoted}
            self.frame.loops += 1
            body(loop)
            self.frame.loops -= 1
            ends, self.frame.locals = self.frame.locals, before
            self.node = node
            again = False
            for name, old in start.items():
                new = ends.get(name)
                if isinstance(old, Undefined) or kind(old) == kind(new):
                    continue
                as_tensor = as_variable(old)
                if name not in promoted and leaves(as_tensor) and kind(as_tensor) != kind(old):
                    promoted[name] = as_tensor
                    again = True
                    continue
                if isinstance(new, Undefined):
                    raise Mistake(new.what, new.hint)
                raise changed_type(name, old, new)
            if not again:
                loop.ends = ends
                return loop

    def _finish(
        self,
        node: ast.For | ast.While,
        operation: str,
        given: list[Value],
        loop: _Loop,
        attrs: dict[str, Any],
    ) -> None:
        """The operation of a loop, without those variables that its body leaves alone."""
        assert loop.ends is not None
        line = node.lineno - 1 + self.frame.function.line
        locals = self.frame.locals
        for name in assigned(node):
            if name not in locals and name in loop.ends:
                locals[name] = _missing(name, f"only inside the loop at line {line}")
        body = loop.blocks[-1]
        starts = [t.handle for n in loop.names for t in leaves(loop.start[n])]
        ends = [t.handle for n in loop.names for t in leaves(loop.ends[n])]
        carried = body.parameters[loop.first :]
        kept = [k for k, (p, e) in enumerate(zip(carried, ends, strict=True)) if p is not e]
        if len(kept) < len(starts):
            gone = set(range(len(starts))) - set(kept)
            for block in loop.blocks:
                inside = block.parameters[loop.first :]
                new = {inside[k]: starts[k] for k in gone}
                self.builder.substitute(block, new)
                ends = [new.get(e, e) for e in ends]
                block.parameters[loop.first :] = [inside[k] for k in kept]
        body.yields += [ends[k] for k in kept]
        inits = [starts[k] for k in kept]
        results = self.builder.emit(
            operation, [*given, *inits], [v.type for v in inits], attrs, loop.blocks
        )
        after = list(starts)
        for k, r in zip(kept, results, strict=True):
            after[k] = r
        values = iter(after)
        for name in loop.names:
            old = loop.start[name]
            self.assign(name, around(old, [next(values) for _ in leaves(old)]))


def _missing(name: str, where: str) -> Undefined:
    return Undefined(
        f"{name} is assigned {where}: it has no value on the other path to this line",
        f"give {name} a value of the same type before",
    )


def _return_in_loop(node: ast.stmt) -> Mistake:
    inner = next((n for n in ast.walk(node) if isinstance(n, ast.Return)), node)
    return Mistake(
        "return inside a loop of the kernel",
        "set a flag and test it, or loop with tl.static_range, which is written out",
        inner,
    )


def _wider(a: DType, b: DType) -> DType:
    """Of two integers: the wider; of two as wide, the one without a sign."""
    if a.bits != b.bits:
        return a if a.bits > b.bits else b
    return a if a.kind == "u" else b
