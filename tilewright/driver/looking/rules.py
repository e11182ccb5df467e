"""`tilewright prove`: every rule with what it says and how that is known; one, with its proof."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tilewright.base.errors import Invalid
from tilewright.driver.looking.tables import new_table, rendered
from tilewright.ir.pattern import Rule
from tilewright.ir.types import f32
from tilewright.rewrites import all_rules
from tilewright.rewrites.proofs.prove import READING, SAYS, Proof, prove, symbolic_sides
from tilewright.rewrites.proofs.words import derivation
from tilewright.superopt.blocks import Sizes
from tilewright.superopt.records import Record, proved
from tilewright.superopt.search import mined_rules
from tilewright.superopt.terms import Equality

# How a rule is known to hold.
FAILED, TESTED, PROVED = "fails", "tested", "proved"
_KINDS = {"f": "floats", "i": "integers", "u": "unsigned", "b": "bools"}


def chosen(patterns: Sequence[str]) -> dict[str, Rule | Equality]:
    """Rules whose names match one of the patterns (`*` stands for anything); all without any."""
    rules: dict[str, Rule | Equality] = {r.name: r for r in all_rules()} | mined_rules()
    for p in patterns:
        if not any(fnmatch(name, p) for name in rules):
            raise Invalid(f"no rule is called {p}", hint="`tilewright prove` lists them all")
    return {
        name: r
        for name, r in rules.items()
        if not patterns or any(fnmatch(name, p) for p in patterns)
    }


def status(rule: Rule, proof: Proof) -> str:
    if not proof:
        return FAILED
    return TESTED if rule.tested else PROVED


def entry(rule: Rule, proof: Proof) -> dict[str, Any]:
    """What there is to say of a rule."""
    text = repr(rule).removeprefix(f"{rule.label}: ")
    return {
        "name": rule.name,
        "rule": text,
        "claim": SAYS[rule.changes] if "f" in rule.dtypes else "as integers wrap",
        "status": status(rule, proof),
        "why": rule.tested,
        "kinds": [_KINDS[k] for k in rule.dtypes],
        "by normal form": [str(d) for d in proof.proved],
        "on all values": [str(d) for d in proof.complete],
        "detail": proof.detail,
        "seconds": round(proof.seconds, 4),
    }


def mined_entry(name: str, rule: Equality) -> dict[str, Any]:
    """The same of a rule that was found by enumeration."""
    record = proved(rule)
    holds = isinstance(record, Record)
    return {
        "name": name,
        "rule": str(rule),
        "claim": SAYS["rounding"],
        "status": PROVED if holds else FAILED,
        "why": "",
        "kinds": [_KINDS["f"]],
        "by normal form": [str(f32)] if holds else [],
        "on all values": [],
        "detail": f"equal at {record.points} points" if isinstance(record, Record) else record,
        "seconds": record.seconds if isinstance(record, Record) else 0.0,
    }


def words(rule: Rule | Equality) -> list[str]:
    """The proof of one rule; nothing where it has no normal form."""
    if isinstance(rule, Equality):
        sides = rule.nodes(Sizes.symbolic(rule.symbols))
        return list(derivation(*sides, "reals", rule.positive))
    found = None if rule.tested else symbolic_sides(rule)
    return [] if found is None else list(derivation(*found, READING[rule.changes]))


def show(patterns: Sequence[str], out: Path | None, console: Console) -> int:
    """Prove rules and show them; 1 where one does not hold."""
    rules = chosen(patterns)
    entries: list[dict[str, Any]] = []
    with console.status("proving") as line:
        for k, (name, rule) in enumerate(rules.items()):
            line.update(f"proving {name} ({k + 1} of {len(rules)})")
            mined = isinstance(rule, Equality)
            entries.append(mined_entry(name, rule) if mined else entry(rule, prove(rule)))
    if out is not None:
        out.write_text(json.dumps(entries, indent=1) + "\n")
    print(rendered(_table(entries)))
    if len(rules) == 1:
        for text in words(*rules.values()):
            console.print(text, markup=False, highlight=False, soft_wrap=True)
    console.print(summary(entries), highlight=False)
    return 1 if any(e["status"] == FAILED for e in entries) else 0


def _table(entries: Iterable[dict[str, Any]]) -> Table:
    table = new_table("rule", "what", "claim", "of", "known", "seconds")
    styles = {FAILED: "bold red", TESTED: "yellow", PROVED: "green"}
    for e in entries:
        known = f"[{styles[e['status']]}]{e['status']}[/]"
        if e["status"] != PROVED:
            known += f": {e['why'] if e['status'] == TESTED else e['detail']}"
        what = e["rule"].replace("[", r"\[")
        table.add_row(
            e["name"], what, e["claim"], ", ".join(e["kinds"]), known, f"{e['seconds']:.3f}"
        )
    return table


def summary(entries: Sequence[dict[str, Any]]) -> str:
    count = {s: sum(e["status"] == s for e in entries) for s in (PROVED, TESTED, FAILED)}
    seconds = sum(e["seconds"] for e in entries)
    said = f"{len(entries)} rules: {count[PROVED]} proved, {count[TESTED]} tested"
    if count[FAILED]:
        said += f", {count[FAILED]} do not hold"
    return f"{said}; {seconds:.1f} s"
