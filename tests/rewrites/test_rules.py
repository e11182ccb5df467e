"""Every rule in the table is proved just by existing."""

import pytest

from tilewright.rewrites import all_rules, rules
from tilewright.rewrites.proofs.prove import prove


@pytest.mark.parametrize("rule", all_rules(), ids=lambda r: r.name)
def test_every_rule_is_proved(rule) -> None:
    proof = prove(rule)
    assert proof.holds, f"{rule!r}: {proof.detail}"


def test_rules_are_chosen_by_what_they_change() -> None:
    exact = {r.name for rs in rules().by_root.values() for r in rs}
    loose = {r.name for rs in rules("sign of zero").by_root.values() for r in rs}
    assert "add-0" in loose - exact and exact < loose
