"""`tilewright rules`: every rule with what it says and how that is known."""

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
from tilewright.rewrites import all_rules
from tilewright.rewrites.proofs.prove import SAYS, Proof, prove

# How a rule is known to hold.
FAILED, TESTED, PROVED = "fails", "tested", "proved"
_KINDS = {"f": "floats", "i": "integers", "u": "unsigned", "b": "bools"}


def chosen(patterns: Sequence[str]) -> tuple[Rule, ...]:
    """Rules whose names match one of the patterns (`*` stands for anything); all without any."""
    rules = all_rules()
    for p in patterns:
        if not any(fnmatch(r.name, p) for r in rules):
            raise Invalid(f"no rule is called {p}", hint="`tilewright rules` lists them all")
    return tuple(r for r in rules if not patterns or any(fnmatch(r.name, p) for p in patterns))


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


def show(patterns: Sequence[str], out: Path | None, console: Console) -> int:
    """Prove rules and show them; 1 where one does not hold."""
    rules = chosen(patterns)
    entries: list[dict[str, Any]] = []
    with console.status("proving") as line:
        for k, rule in enumerate(rules):
            line.update(f"proving {rule.name} ({k + 1} of {len(rules)})")
            entries.append(entry(rule, prove(rule)))
    if out is not None:
        out.write_text(json.dumps(entries, indent=1) + "\n")
    print(rendered(_table(entries)))
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
