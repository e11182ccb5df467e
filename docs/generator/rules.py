"""The catalogue of rewrite rules, from their registry."""

from __future__ import annotations

import sys

from docs.generator.pieces import code, first_sentence, table, words
from tilewright.base.discover import import_all
from tilewright.ir.pattern import CHANGES, Pattern, Rule
from tilewright.rewrites import all_rules
from tilewright.rewrites.proofs.prove import SAYS

KINDS = {"f": "floats", "i": "integers", "u": "unsigned integers", "b": "bools"}

INTRODUCTION = """# Rewrite rules

Generated from the `RULES` of the files in `tilewright/rewrites/`. A rule replaces its left side by
its right side wherever its condition holds. On the left, `x` stands for any operand, `?p` for an
attribute and `*xs` for the remaining operands; `…` on the right stands for a function of the match.
The kinds of dtypes in conditions are `f` floats, `i` integers, `u` unsigned integers, `b` bools.

{proved} of {count} rules are *proved*: both sides have one normal form, for symbolic sizes and
every dtype named. The others are *tested*: evaluated only, for the reason given. The tests prove
or evaluate every rule again, as `tilewright prove` does.
[How rules are proved](../proofs.md).

What a rule *may change* of floats:
"""


def proof(rule: Rule) -> str:
    """How the rule is known to hold."""
    return f"tested: {rule.tested}" if rule.tested else "proved"


def row(rule: Rule) -> list[str]:
    right = repr(rule.right) if isinstance(rule.right, Pattern) else "…"
    what = code(f"{rule.left!r} → {right}")
    when = words(repr(rule.when)) if rule.when else "always"
    kinds = ", ".join(KINDS[k] for k in rule.dtypes)
    return [code(rule.name), what, when, kinds, rule.changes, words(proof(rule))]


def page() -> str:
    rules = all_rules()
    proved = sum(not r.tested for r in rules)
    out = [INTRODUCTION.format(proved=proved, count=len(rules))]
    out.append(table(["may change", "meaning"], ([c, f"equal {SAYS[c]}"] for c in CHANGES)))
    titles = ["rule", "left → right", "where", "of", "may change", "known by"]
    for module in import_all("tilewright.rewrites"):
        own = getattr(module, "RULES", ())
        if not own:
            continue
        out.append(f"## `{module.__name__.removeprefix('tilewright.')}`\n")
        out.append(words(first_sentence(sys.modules[module.__name__].__doc__ or "")) + "\n")
        if getattr(module, "ON_REQUEST", False):
            out.append("Applied only by a pass that selects this family by name.\n")
        out.append(table(titles, map(row, own)))
    return "\n".join(out)
