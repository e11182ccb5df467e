"""Families of rules. Every module's `RULES` is found by itself and proved by existing."""

from __future__ import annotations

from functools import cache

from tilewright.base.discover import import_all
from tilewright.ir.pattern import CHANGES, Rule
from tilewright.ir.rewrite import RuleSet


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule of the folder, in the order of modules and within them."""
    found: dict[str, Rule] = {}
    for module in import_all(__name__, recursive=False):
        for rule in getattr(module, "RULES", ()):
            if rule.name in found:
                raise TypeError(f"two rules are called {rule.name}")
            found[rule.name] = rule
    return tuple(found.values())


@cache
def rules(changes: str = "nothing", families: tuple[str, ...] = ()) -> RuleSet:
    """The rules that change no more than `changes` (see `ir.pattern.CHANGES`), ready to apply.

    `families` names modules of this folder; without it, all but those that a pass selects by name.
    """
    allowed = CHANGES[: CHANGES.index(changes) + 1]
    chosen: list[Rule] = []
    for module in import_all(__name__, recursive=False):
        family = module.__name__.rsplit(".", 1)[-1]
        on_request = getattr(module, "ON_REQUEST", False)
        if (family in families) if families else not on_request:
            chosen += [r for r in getattr(module, "RULES", ()) if r.changes in allowed]
    return RuleSet.of(chosen)
