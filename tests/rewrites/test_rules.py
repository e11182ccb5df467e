"""Every rule in the table is proved just by existing."""

from dataclasses import replace
from typing import Any

import pytest

from tests.seeds import drawn
from tilewright import ops as _ops
from tilewright.base.events import Log
from tilewright.ir.node import Graph, input
from tilewright.ir.pattern import Rule, Var, op
from tilewright.ir.rewrite import rewrite
from tilewright.ir.types import TensorType, f32
from tilewright.rewrites import all_rules, rules
from tilewright.rewrites.proofs.prove import prove, proved_dtypes

ops: Any = _ops


@pytest.mark.parametrize("rule", all_rules(), ids=lambda r: r.name)
def test_every_rule_is_proved(rule) -> None:
    proof = prove(rule)
    assert proof.holds, f"{rule!r}: {proof.detail}"


@pytest.mark.parametrize("seed", drawn(range(100, 500, 100), 0))
def test_every_rule_is_proved_for_other_subjects(seed: int) -> None:
    for rule in all_rules():
        if not rule.tested:
            assert proved_dtypes(rule, 6, seed)[1] == "", rule


def test_few_rules_are_only_tested() -> None:
    """Each with a reason; a rule that could be proved may not say so (see `prove`)."""
    tested = {r.name for r in all_rules() if r.tested}
    assert tested == {
        "pow-1",
        "pow-2",
        "scatter-one-per-row",
        "sum-one-per-row",
        "add-updated-zeros",
        "attention-online",
        "masked-attention-online",
        "attention-in-blocks",
        "softmax-product-in-blocks",
        "rounded-softmax-product-in-blocks",
        "safe-softmax-product-in-blocks",
    }
    assert len(tested) <= len(all_rules()) // 10


def test_a_rule_that_is_only_tested_says_so_where_it_is_shown() -> None:
    x = input("x", TensorType(f32, (3,)))
    log = Log()
    made = rewrite(Graph("g", (x,), (ops.relu(ops.relu(ops.pow(x, 2.0))),)), rules(), log)
    assert made.outputs == (ops.relu(ops.square(x)),)
    said = {e.data["rule"]: e.message for e in log.of("rewrite")}
    assert said["pow-2"].startswith("pow-2 (tested): ")
    assert said["relu-twice"].startswith("relu-twice: ")
    shown = {r.name: repr(r) for r in all_rules()}
    assert shown["pow-2"].startswith("pow-2 (tested): pow(x, 2) -> square(x)")
    assert shown["neg-neg"] == "neg-neg: neg(neg(x)) -> x"


def test_a_rule_that_is_proved_may_not_call_itself_tested() -> None:
    modest = Rule("modest", op.neg(op.neg(Var("x"))), Var("x"), tested="for no reason")
    assert "is proved" in prove(replace(modest, dtypes="f")).detail


def test_rules_are_chosen_by_what_they_change() -> None:
    exact = {r.name for rs in rules().by_root.values() for r in rs}
    loose = {r.name for rs in rules("sign of zero").by_root.values() for r in rs}
    assert "add-0" in loose - exact and exact < loose
