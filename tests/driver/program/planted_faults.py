"""Faults to plant in the compiler, each with a program that it makes wrong and the place where it
has to be found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from tests.graph.build import arg, build, graph, weight
from tilewright import rewrites
from tilewright.base.events import Log
from tilewright.driver.program.default_passes import passes
from tilewright.graph import fold
from tilewright.graph.channels import ChannelsLast
from tilewright.graph.long_concats import LongConcats
from tilewright.graph.pack import PackOperands
from tilewright.ir import dim as D
from tilewright.ir.expr import Value, const, fn
from tilewright.ir.node import Graph, Node, constant, node, rebuild
from tilewright.ir.passes import Pass
from tilewright.ir.pattern import Match, Rule, Var, make, op
from tilewright.ir.rewrite import RuleSet
from tilewright.ir.types import DType, f32, i32
from tilewright.kernel import legal
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import Nest, Stmt, Store, transform
from tilewright.kernel.step import Step
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.rfactor import RFactor
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.vectorize import Vectorize
from tilewright.llvm.addresses import Addresses
from tilewright.llvm.scalars import Arith

x, y = Var("x"), Var("y")


Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Planted:
    """A fault, a program that it makes wrong, and where it has to be found."""

    name: str
    plant: Plant
    graph: Callable[[], Graph]
    stage: str
    place: str  # the beginning of the pass's, step's or rewriting's name
    rule: str = ""
    operator: str = ""
    passes: Callable[[], Any] = lambda: None
    # Seen only at points with infinities and NaN: results at others are right.
    special: bool = False
    trace: str = ""  # the schedule of its kernel, the same on every machine


def rule(new: Rule) -> Plant:
    """A rule besides those that there are."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        known = rewrites.rules

        def rules(changes: str = "nothing", families: tuple[str, ...] = ()) -> RuleSet:
            table = dict(known(changes, families).by_root)
            if not families:
                table[new.root] = (new, *table.get(new.root, ()))
            return RuleSet(table)

        monkeypatch.setattr(rewrites, "rules", rules)

    return plant


def unguarded(name: str) -> Plant:
    """A rule that there is, without its guard."""
    (known,) = (r for r in rewrites.all_rules() if r.name == name)
    return rule(replace(known, name=f"{name}-unguarded", when=None))


def _reversed(m: Match) -> Node:
    """Two permutations put together in the wrong order."""
    outer, inner = m.op(0).perm, m.op(1).perm
    return make("permute", m.x, perm=tuple(outer[k] for k in inner))


def changed_pass(cls: type[Pass], change: Callable[[Node], Node]) -> Plant:
    """A pass that also does something wrong."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        real = cls.apply

        def apply(self: Pass, program: Graph, log: Log) -> Graph:
            return rebuild(real(self, program, log), change)

        monkeypatch.setattr(cls, "apply", apply)

    return plant


@dataclass(frozen=True)
class SwapsOperands(Pass):
    """Takes the wrong operand from the other."""

    def apply(self, program: Graph, log: Log) -> Graph:
        return rebuild(program, _swapped)


def _swapped(n: Node) -> Node:
    return node(n.op, n.inputs[1], n.inputs[0]) if n.op.name in ("sub", "concat") else n


def _scaled(n: Node) -> Node:
    return build.mul(n, 2.0) if n.op.name == "exp" else n


def _turned(n: Node) -> Node:
    """Filters are turned upside down."""
    if n.op.name != "arranged" or len(n.inputs) < 2:
        return n
    return node(n.op, n.inputs[0], build.flip(n.inputs[1], (2,)))


def wrongly_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    real = fold.evaluate
    monkeypatch.setattr(fold, "evaluate", lambda g, a: [v + 1 for v in real(g, a)])


def changed_step(cls: type[Step], change: Callable[[Nest], Nest]) -> Plant:
    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        real = cls.apply
        monkeypatch.setattr(cls, "apply", lambda self, n: change(real(self, n)))

    return plant


def without_tail(n: Nest) -> Nest:
    return replace(n, body=n.body[:-1]) if len(n.body) > 1 else n


def stores(fits: Callable[[Store], bool], new: Callable[[Value], Value]) -> Any:
    """Some stores of a nest get another value."""

    def change(s: Stmt) -> tuple[Stmt, ...]:
        return (replace(s, value=new(s.value)),) if isinstance(s, Store) and fits(s) else (s,)

    return lambda n: replace(n, body=transform(n.body, change))


from_one = stores(lambda s: s.buffer == "t1p" and s.combine is None, lambda v: const(1.0, f32))
doubled = stores(lambda s: s.buffer == "y0", lambda v: fn("add", v, v))
subtracted = stores(lambda s: s.combine == "add" and s.buffer == "t1", lambda v: fn("neg", v))
lost = stores(lambda s: s.combine is None and s.buffer == "y0", lambda v: const(0.0, f32))


def legal_change(name: str, change: Callable[[Nest], Nest]) -> Plant:
    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        real = legal.REWRITINGS[name]
        monkeypatch.setitem(legal.REWRITINGS, name, lambda n, t: change(real(n, t)))

    return plant


def emitted(old: str, new: str) -> Plant:
    """Code has one function for another."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        real = Arith.apply

        def apply(self: Arith, name: str, *rest: Any) -> str:
            return real(self, new if name == old else name, *rest)

        monkeypatch.setattr(Arith, "apply", apply)

    return plant


def other_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Arith.const

    def const(self: Arith, v: float | int | bool, d: DType, lanes: int) -> str:
        return real(self, 2 * v if d.is_float else v, d, lanes)

    monkeypatch.setattr(Arith, "const", const)


def other_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every element that is read is the first one."""
    real = Addresses.linear

    def linear(self: Addresses, b: Buffer, index: tuple[D.Dim, ...]) -> D.Dim:
        return 0 if b.scope == "in" else real(self, b, index)

    monkeypatch.setattr(Addresses, "linear", linear)


def difference() -> Graph:
    return graph(build.sub(arg("x", 33), arg("y", 33)))


def row_sums() -> Graph:
    return graph(build.sum(build.exp(arg("x", 5, 40)), (1,), False))


def product() -> Graph:
    return graph(build.relu(build.matmul(arg("x", 5, 8), weight("w", 8, 6))))


def of(f: Callable[..., Node], *shape: int) -> Callable[[], Graph]:
    count = f.__code__.co_argcount
    return lambda: graph(f(*(arg(k, *shape) for k in "ab"[:count])))


def images() -> Graph:
    return graph(build.conv(arg("x", 1, 3, 5, 5), weight("w", 4, 3, 3, 3), padding=1))


MAP = """
Split(loop='y0.i0', factor=16)
Peel(loop='y0.i0.0')
Vectorize(loop='y0.i0.1')
"""
SUMS = """
ComputeInline(stage='t0')
ComputeAt(stage='t1', at='y0.i0')
Split(loop='t1.r0', factor=16)
RFactor(stage='t1', loops_kept=('t1.r0.1',), into='t1p')
Peel(loop='t1p.r0.0')
Vectorize(loop='t1p.r0.1')
"""


def of_step(
    name: str,
    cls: type[Step],
    change: Callable[[Nest], Nest],
    program: Callable[[], Graph],
    trace: str,
) -> Planted:
    plant = changed_step(cls, change)
    return Planted(name, plant, program, "step", f"{cls.__name__}(", trace=trace)


PLANTED = (
    # rules
    Planted(
        "a - b becomes a + b",
        rule(Rule("sub-wrong", x - y, x + y)),
        of(lambda a, b: build.exp(build.sub(a, b)), 3, 4),
        "pass",
        "Simplify",
        "sub-wrong",
        "sub",
    ),
    Planted(
        "relu becomes nothing",
        rule(Rule("no-relu", op.relu(x), x)),
        product,
        "pass",
        "Simplify",
        "no-relu",
        "relu",
    ),
    Planted(
        "a scale is lost",
        rule(Rule("no-scale", x * 2.0, x)),
        of(lambda a: build.tanh(build.mul(build.sin(a), 2.0)), 6),
        "pass",
        "Simplify",
        "no-scale",
        "mul",
    ),
    Planted(
        "permutations in the wrong order",
        rule(Rule("permutes-wrong", op.permute(op.permute(x)), _reversed)),
        of(lambda a: build.permute(build.permute(a, (1, 2, 0)), (0, 2, 1)), 3, 3, 3),
        "pass",
        "Simplify",
        "permutes-wrong",
        "permute",
    ),
    Planted(
        "only half of a double negation",
        rule(Rule("neg-neg-wrong", op.neg(op.neg(x)), op.neg(x))),
        of(lambda a: build.neg(build.neg(build.exp(a))), 5),
        "pass",
        "Simplify",
        "neg-neg-wrong",
        "neg",
    ),
    Planted(
        "a sum of products as a product of sums",
        rule(Rule("sums-wrong", op.sum(x * y), lambda m: build.mul(*_sums(m)))),
        of(lambda a, b: build.sum(build.mul(a, b), (0,), True), 4, 4),
        "pass",
        "Simplify",
        "sums-wrong",
        "sum",
    ),
    # guards
    Planted(
        "the root of a square, of any sign",
        rule(Rule("sqrt-square", op.sqrt(op.square(x)), x)),
        of(lambda a: build.sqrt(build.square(a)), 9),
        "pass",
        "Simplify",
        "sqrt-square",
        "sqrt",
    ),
    Planted(
        "casts through integers",
        rule(Rule("cast-cast-wrong", op.cast(op.cast(x)), x)),
        of(lambda a: build.cast(build.cast(build.mul(a, 4.0), i32), f32), 9),
        "pass",
        "Simplify",
        "cast-cast-wrong",
        "cast",
    ),
    Planted(
        "x - x is 0, of infinities too",
        unguarded("sub-self-whole"),
        of(lambda a: build.sub(a, a), 16),
        "pass",
        "Simplify",
        "sub-self-whole-unguarded",
        "sub",
        special=True,
    ),
    Planted(
        "0 times infinity is 0",
        unguarded("mul-0-whole"),
        of(lambda a: build.mul(a, 0.0), 16),
        "pass",
        "Simplify",
        "mul-0-whole-unguarded",
        "mul",
        special=True,
    ),
    Planted(
        "a + 0 is a, of -0 too",
        rule(Rule("add-0-wrong", x + 0.0, x)),
        of(lambda a: build.add(a, 0.0), 16),
        "pass",
        "Simplify",
        "add-0-wrong",
        "add",
        special=True,
    ),
    # passes
    Planted(
        "a user's pass",
        lambda monkeypatch: None,
        of(lambda a, b: build.exp(build.sub(a, b)), 3, 4),
        "pass",
        "SwapsOperands",
        operator="sub",
        passes=lambda: passes().before("Decompose", SwapsOperands()),
    ),
    Planted(
        "folded constants",
        wrongly_folded,
        lambda: graph(build.mul(arg("x", 3), build.exp(_ramp()))),
        "pass",
        "FoldConstants",
        operator="exp",
    ),
    Planted(
        "packed operands",
        changed_pass(PackOperands, _scaled),
        lambda: graph(build.matmul(build.exp(arg("x", 5, 8)), weight("w", 8, 6))),
        "pass",
        "PackOperands",
        operator="exp",
    ),
    Planted(
        "parts of a concatenation",
        changed_pass(LongConcats, _swapped),
        of(lambda a, b: build.tanh(build.concat([a, b], 0)), 3, 4),
        "pass",
        "LongConcats",
        operator="concat",
    ),
    Planted(
        "images with channels last",
        changed_pass(ChannelsLast, _turned),
        images,
        "pass",
        "ChannelsLast",
        operator="conv_valid",
    ),
    # steps
    of_step("no tail", Peel, without_tail, difference, MAP),
    of_step("sums from 1", RFactor, from_one, row_sums, SUMS),
    of_step("minus for plus", Vectorize, subtracted, row_sums, SUMS),
    of_step("twice", Split, doubled, difference, MAP),
    of_step("results lost", ComputeAt, lost, row_sums, SUMS),
    # what a target needs
    Planted("legal loops", legal_change("hoist", doubled), difference, "legal", "hoist"),
    # code
    Planted("a sum for a difference", emitted("sub", "add"), difference, "emission", "k_"),
    Planted("a minimum", emitted("max", "min"), of(lambda a: build.relu(a), 7), "emission", "k_"),
    Planted("numbers", other_numbers, of(lambda a: build.mul(a, 3.0), 7), "emission", "k_"),
    Planted("addresses", other_addresses, difference, "emission", "k_"),
)


def _ramp() -> Node:
    return constant(np.array([1.0, 2.0, 3.0]), f32)


def _sums(m: Match) -> tuple[Node, Node]:
    o = m.op(0)
    return node(o, m.x), node(o, m.y)
