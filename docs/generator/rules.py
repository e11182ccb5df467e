"""The catalogue of rewrite rules, from their registry."""

from __future__ import annotations

import sys

from docs.generator.pieces import code, first_sentence, table, words
from tilewright.base.discover import import_all
from tilewright.ir.pattern import CHANGES, Pattern, Rule

KINDS = {"f": "floats", "i": "integers", "u": "unsigned integers", "b": "bools"}
MEANS = {
    "nothing": "the same bits, NaN and -0.0 included",
    "sign of zero": "a zero may have the other sign",
    "rounding": "another order of rounding; equal over the real numbers",
}

INTRODUCTION = """# Rewrite rules

Generated from the `RULES` of the files in `tilewright/rewrites/`. A rule replaces its left side by
its right side wherever its condition holds. `…` on the right stands for a function of the match.
Capital or small names are operands, `?name` is an attribute, `*name` the remaining operands.

*May change* says how far a result may differ from the original's:
"""


def proof(rule: Rule) -> str:
    """How the rule is known to hold, as the rule itself says."""
    tested = getattr(rule, "tested", None)
    if tested is None:
        return str(getattr(rule, "proof", ""))
    return f"tested: {tested}" if tested else "proved"


def row(rule: Rule) -> list[str]:
    right = repr(rule.right) if isinstance(rule.right, Pattern) else "…"
    what = code(f"{rule.left!r} → {right}")
    when = words(repr(rule.when)) if rule.when else "always"
    kinds = ", ".join(KINDS[k] for k in rule.dtypes)
    return [code(rule.name), what, when, kinds, rule.changes, words(proof(rule))]


def page() -> str:
    out = [INTRODUCTION, table(["may change", "meaning"], ([c, MEANS[c]] for c in CHANGES))]
    out.append(_how_known())
    titles = ["rule", "left → right", "where", "of", "may change", "known by"]
    for module in import_all("tilewright.rewrites"):
        rules = getattr(module, "RULES", ())
        if not rules:
            continue
        out.append(f"## `{module.__name__.removeprefix('tilewright.')}`\n")
        out.append(words(first_sentence(sys.modules[module.__name__].__doc__ or "")) + "\n")
        if getattr(module, "ON_REQUEST", False):
            out.append("Applied only by a pass that asks for this family by name.\n")
        out.append(table(titles, map(row, rules)))
    return "\n".join(out)


def _how_known() -> str:
    if hasattr(Rule, "tested"):
        return (
            "*Proved*: both sides have one normal form, for symbolic sizes and every dtype named.\n"
            "*Tested*: evaluated at points of every dtype only, for the reason given. The tests\n"
            "prove or evaluate every rule again; `tilewright rules` does so on demand.\n"
        )
    return (
        "*Normal form*: both sides have one polynomial normal form for symbolic sizes, and agree\n"
        "in exact evaluation. *Evaluation*: the latter only, at points of every dtype named. The\n"
        "tests check every rule again.\n"
    )
