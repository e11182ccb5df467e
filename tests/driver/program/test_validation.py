"""Translation validation finds planted faults, each in its place, and none where there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.driver.program.planted_faults import (
    PLANTED,
    Planted,
    changed_step,
    difference,
    doubled,
    of,
    product,
    row_sums,
)
from tests.graph.build import arg, build, graph, softmax, weight
from tests.graph.random_graphs import random_graph
from tests.seeds import drawn
from tilewright.base import knobs
from tilewright.base.errors import Unsupported
from tilewright.base.events import Log
from tilewright.driver.looking.validate import (
    bisect_graph,
    parse_kernel,
    validate_graph,
    validate_kernel,
)
from tilewright.driver.program import compile as compiler
from tilewright.driver.program import validated_kernels, validation
from tilewright.driver.program.options import Options
from tilewright.driver.program.programs import compile_graph
from tilewright.driver.program.schedules import Schedules
from tilewright.driver.program.validation import Fault, Wrong
from tilewright.graph import equivalence
from tilewright.graph.cluster import Cluster, Fused
from tilewright.graph.equivalence import BITS, DOUBLE, MODULAR, REALS, Equivalence, Judged
from tilewright.graph.memory import Plan
from tilewright.graph.values import random_point
from tilewright.ir import dim as D
from tilewright.ir.expr import fn
from tilewright.ir.node import Graph, Node, input, item, node
from tilewright.ir.positions import static
from tilewright.ir.text import parse_graph
from tilewright.ir.types import TensorType, f32, f64
from tilewright.kernel.group import Group
from tilewright.kernel.steps.bind import Bind
from tilewright.ops.control import Cond
from tilewright.rewrites.proofs import modular
from tilewright.targets import default, get


@pytest.fixture(autouse=True)
def no_cache() -> Iterator[None]:
    """What a planted fault compiles is not for others, nor is theirs for it."""
    with knobs.cache.override(False):
        yield


@pytest.mark.parametrize("planted", PLANTED, ids=lambda p: p.name)
def test_planted_faults_are_found_in_their_place(
    planted: Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, options = planted.graph(), Options()
    if planted.trace:
        (kernel,) = compile_graph(program).kernels
        options = Options(schedules={kernel.symbol: planted.trace})
    judges = validate_graph if planted.special else bisect_graph
    assert judges(program, options).right, "before anything is planted"
    planted.plant(monkeypatch)
    options = replace(options, passes=planted.passes())
    fault = judges(program, options).fault
    assert fault is not None
    assert fault.stage == planted.stage, fault
    assert fault.name.startswith(planted.place), fault
    assert (fault.rule, fault.operator) == (planted.rule, planted.operator), fault
    assert _again(fault, options) == (fault.stage, fault.name if not fault.kernel else fault.stage)


def _again(fault: Fault, options: Options) -> tuple[str, str]:
    """What the reproducer shows."""
    if fault.kernel:
        found = validate_kernel(*parse_kernel(fault.reproducer), default()).fault
        assert found is not None
        return found.stage, found.stage
    found = validate_graph(parse_graph(fault.reproducer), options).fault
    assert found is not None
    return found.stage, found.name


# ---- between kernels


def test_a_group_that_is_not_its_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Schedules.kernel_of

    def kernel_of(self: Schedules, c: Cluster, p: Plan) -> tuple[Cluster, Group]:
        cluster, group = real(self, c, p)
        *rest, last = group.stages
        return cluster, replace(group, stages=(*rest, replace(last, value=fn("neg", last.value))))

    monkeypatch.setattr(Schedules, "kernel_of", kernel_of)
    fault = bisect_graph(difference(), Options()).fault
    assert fault is not None and (fault.stage, fault.operator) == ("group", "sub")


def test_values_that_overwrite_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are right, and the memory that they are given is not."""
    real = compiler.plan

    def plan(fused: Fused, *given: Any) -> Plan:
        made = real(fused, *given)
        return replace(made, offsets=dict.fromkeys(made.offsets, 0))

    monkeypatch.setattr(compiler, "plan", plan)
    x, w = arg("x", 8, 8), arg("w", 8, 8)
    two = [build.matmul(build.sin(x), w), build.matmul(build.cos(x), w)]
    fault = bisect_graph(graph(build.matmul(*two)), Options()).fault
    assert fault is not None and fault.stage == "program"


# ---- programs that are right


@pytest.mark.parametrize("seed", drawn(range(30), 2))
def test_random_graphs_are_right(seed: int) -> None:
    report = validate_graph(random_graph(seed, 12), Options())
    assert report.right, report.fault
    assert {r.stage for r in report.rows} >= {"pass", "weights", "fusion", "program"}


@pytest.mark.parametrize("target", ["cuda:90", "arm64", "x86-64-v3"])
def test_for_other_machines_all_but_code_is_judged(target: str) -> None:
    report = validate_graph(product(), Options(target=get(target)))
    assert report.right, report.fault
    assert {r.stage for r in report.rows} >= {"pass", "fusion", "kernel"}


def test_a_wrong_step_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one: blocks and threads run on numpy."""
    changed_step(Bind, doubled)(monkeypatch)
    fault = validate_graph(difference(), Options(target=get("cuda:90"))).fault
    assert fault is not None and fault.stage == "step" and fault.name.startswith("Bind(")


def test_symbolic_sizes() -> None:
    n = D.sym("N", 2)
    x, w = arg("x", n, 8), weight("w", 8, 6)
    program = graph(build.sum(softmax(build.matmul(x, w)), (1,), False))
    assert (report := validate_graph(program, Options())).right, report.fault


def test_branches() -> None:
    a = input("a", TensorType(f32, (4,)))
    then, other = Graph("t", (a,), (build.exp(a),)), Graph("o", (a,), (build.neg(a),))
    x = arg("x", 4)
    made = node(Cond(then, other), build.gt(build.sum(x, (0,), False), 0.0), x)
    assert (report := validate_graph(graph(item(made, 0)), Options())).right, report.fault


def test_what_is_too_large_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "MOST_WORK", 10)
    monkeypatch.setattr(validated_kernels, "MOST_POINTS", 10)
    report = validate_graph(row_sums(), Options())
    assert report.right and report.rows
    assert all(r.how.startswith("not ") for r in report.rows)


# ---- methods


def judged(before: Node, after: Node) -> Judged:
    first, second = graph(before), graph(after)
    whole = Graph("both", graph(before, after).inputs, first.outputs)
    points = [random_point(whole, k) for k in range(2)]
    second = Graph("both", whole.inputs, second.outputs)
    return Equivalence(whole, points).judge(whole, second)


def test_each_piece_is_judged_by_the_strongest_method(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = arg("a", 3, 4), arg("b", 3, 4)
    assert judged(build.neg(build.neg(a)), build.mul(a, 1.0)).method == BITS
    found = judged(build.mul(a, build.add(a, b)), build.add(build.mul(a, a), build.mul(a, b)))
    assert found.method == REALS
    fourth = build.square(build.square(build.add(a, build.sin(b))))
    assert judged(fourth, _written_out(a, build.sin(b))).method == REALS
    monkeypatch.setattr(equivalence, "PROVED_SIZE", 0)  # as of a large piece
    found = judged(fourth, _written_out(a, build.sin(b)))
    assert found.method == MODULAR and 0 < found.chance < 1e-12
    sines = build.add(build.square(build.sin(a)), build.square(build.cos(a)))
    found = judged(
        build.add(sines, build.log(build.exp(b))), build.add(build.exp(build.sub(a, a)), b)
    )
    assert found.method == DOUBLE and "1e-09" in found.bound


def _written_out(a: Node, b: Node) -> Node:
    """(a + b)**4"""
    total = build.mul(_power(a, 4), 1.0)
    for k, count in ((3, 4.0), (2, 6.0), (1, 4.0), (0, 1.0)):
        total = build.add(total, build.mul(build.mul(_power(a, k), _power(b, 4 - k)), count))
    return total


def _power(x: Node, k: int) -> Node:
    out = build.add(build.mul(x, 0.0), 1.0)
    for _ in range(k):
        out = build.mul(out, x)
    return out


@pytest.mark.parametrize(
    "wrong",
    [
        lambda a, b: (build.maximum(a, b), a),
        lambda a, b: (build.relu(a), a),
        lambda a, b: (build.mul(a, b), build.add(a, b)),
        lambda a, b: (build.sum(a, (0,), True), build.sum(b, (0,), True)),
        lambda a, b: (build.exp(a), build.mul(build.exp(a), 1.0 + 1e-6)),
        lambda a, b: (build.sub(a, b), build.sub(b, a)),
    ],
    ids=["max", "relu", "mul", "sum", "scale", "sub"],
)
def test_what_differs_is_named(wrong: Callable[[Node, Node], tuple[Node, Node]]) -> None:
    before, after = wrong(arg("a", 3, 4, dtype=f64), arg("b", 3, 4, dtype=f64))
    found = judged(before, after).difference
    assert found is not None and found.before is before


def test_modulo_a_prime() -> None:
    a, b = arg("a", 3, 4), arg("b", 4, 2)
    product = build.matmul(a, b)
    again = build.sum(
        build.mul(build.reshape(a, (3, 4, 1)), build.reshape(b, (1, 4, 2))), (1,), False
    )
    rng = np.random.default_rng(0)
    given = {n: modular.random_residues(static(n.shape), rng) for n in (a, b)}
    x, y, z = modular.values_of((product, again, build.neg(product)), given, {})
    assert np.array_equal(x, y) and not np.array_equal(x, z)
    exact = np.array(
        [[sum(map(int.__mul__, r, c)) for c in given[b].T.tolist()] for r in given[a].tolist()],
        object,
    )
    assert np.array_equal(x, exact % modular.PRIME)
    assert modular.degree(product, given) == 2
    assert modular.degree(build.div(product, build.square(product)), given) == 6
    with pytest.raises(Unsupported, match="repeated"):
        modular.degree(build.cumsum(a, 0), given)


# ---- validate=True


def test_a_wrong_compile_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    program = of(lambda a, b: build.exp(build.sub(a, b)), 3, 4)()
    compile_graph(program, Options(validate=True), log)
    assert any("pass Decompose" in e.message for e in log.of("validate"))
    PLANTED[0].plant(monkeypatch)
    with pytest.raises(Wrong, match="pass Simplify #1, rule sub-wrong, operator sub"):
        compile_graph(program, Options(validate=True))
