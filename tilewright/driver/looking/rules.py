"""`tilewright prove`: every rule with what it says and how that is known; one, with its proof.

Rules are those written by hand and those that were mined, the axioms, or those of a file, which
are judged whatever their records say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from rich.text import Text

from tilewright.base.errors import Invalid
from tilewright.driver.looking.shown import Column, Shown
from tilewright.ir.pattern import Rule
from tilewright.ir.types import f64
from tilewright.rewrites import all_rules
from tilewright.rewrites.proofs.prove import READING, SAYS, Proof, prove, symbolic_sides
from tilewright.rewrites.proofs.words import derivation
from tilewright.superopt import witness
from tilewright.superopt.axioms import axioms
from tilewright.superopt.blocks import Sizes
from tilewright.superopt.records import (
    Record,
    equality,
    header,
    named,
    proved,
    records,
    signed,
    write,
)
from tilewright.superopt.search import mined_rules
from tilewright.superopt.terms import Equality

# How a rule is known to hold.
FAILED, TESTED, PROVED = "fails", "tested", "proved"
_KINDS = {"f": "floats", "i": "integers", "u": "unsigned", "b": "bools"}


@dataclass(frozen=True)
class Asked:
    """What to prove, and what to do with it."""

    names: Sequence[str] = ()  # patterns, or files of rules
    axioms: bool = False  # in the place of the rules
    z3: bool = False  # ask a third witness
    json: Path | None = None  # the results
    write: Path | None = None  # the rules with records of their proofs


def chosen(asked: Asked) -> dict[str, Rule | Equality]:
    """Rules whose names match one of the patterns (`*` stands for anything); all without any. A
    name that ends in .json is a file."""
    files = [Path(p) for p in asked.names if p.endswith(".json")]
    patterns = [p for p in asked.names if not p.endswith(".json")]
    found: dict[str, Rule | Equality] = {}
    for path in files:
        for k, r in enumerate(records(path)):
            found[named(path, k, r)] = equality(path, k, r)
    if files and not patterns:
        return found
    rules: dict[str, Rule | Equality] = dict(axioms())
    if not asked.axioms:
        rules = {**{r.name: r for r in all_rules()}, **mined_rules()}
    for p in patterns:
        if not any(fnmatch(name, p) for name in rules):
            listed = "tilewright prove --axioms" if asked.axioms else "tilewright prove"
            raise Invalid(f"no rule is called {p}", hint=f"`{listed}` lists them all")
    return found | {
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
        "witnesses": ["normal form"] * bool(proof.proved) + ["evaluation"] * bool(proof),
        "seconds": round(proof.seconds, 4),
    }


def witnessed(rule: Equality, z3: bool) -> Record | str:
    """The record of an equality's proof, or why there is none; Z3 is asked of what is proved."""
    record = proved(rule)
    if z3 and isinstance(record, Record) and witness.follows(rule):
        return signed(record, witness=f"follows from axioms by {witness.version()}")
    return record


def mined_entry(name: str, rule: Equality, record: Record | str) -> dict[str, Any]:
    """The same of an equality: one that was found by enumeration, an axiom, or one of a file."""
    found = record if isinstance(record, Record) else Record(str(rule))
    holds = found is record
    return {
        "name": name,
        "rule": str(rule),
        "claim": SAYS["rounding"],
        "status": PROVED if holds else FAILED,
        "why": "",
        "kinds": [_KINDS["f"]],
        "by normal form": [str(f64)] if holds else [],
        "on all values": [],
        "detail": f"equal at {found.points} points" if holds else record,
        "witnesses": ["normal form", "evaluation"] * holds + ["z3"] * bool(found.witness),
        "seconds": found.seconds,
    }


def words(rule: Rule | Equality) -> list[str]:
    """The proof of one rule; why there is none where it is only tested."""
    if isinstance(rule, Equality):
        sides = rule.nodes(Sizes.symbolic(rule.symbols), f64)
        return list(derivation(*sides, "reals", rule.positive))
    if rule.tested:
        return [f"It is evaluated, not proved: {rule.tested}."]
    found = symbolic_sides(rule)
    return [] if found is None else list(derivation(*found, READING[rule.changes]))


def show(asked: Asked, out: Shown) -> int:
    """Prove rules and show them; 1 where one does not hold."""
    rules = chosen(asked)
    entries: list[dict[str, Any]] = []
    kept: list[Record] = []
    with out.progress.status("proving") as line:
        for k, (name, rule) in enumerate(rules.items()):
            line.update(f"proving {name} ({k + 1} of {len(rules)})")
            if isinstance(rule, Rule):
                entries.append(entry(rule, prove(rule)))
                continue
            record = witnessed(rule, asked.z3)
            entries.append(mined_entry(name, rule, record))
            if isinstance(record, Record):
                kept.append(signed(record, name=name))
    if asked.json is not None:
        asked.json.write_text(json.dumps(entries, indent=1) + "\n")
    out.table("rules", entries, _columns(asked.z3))
    if len(rules) == 1:
        for text in words(*rules.values()):
            out.say(text)
    out.say(summary(entries))
    wrong = any(e["status"] == FAILED for e in entries)
    if asked.write is not None:
        if wrong or len(kept) < len(entries):
            raise Invalid(
                f"{asked.write} is not written: {len(entries) - len(kept)} rules are not proved"
                " equalities",
                hint="a file has equalities that hold; name those, or correct the others",
            )
        files = [Path(p) for p in asked.names if p.endswith(".json")]
        write(asked.write, kept, **(header(files[0]) if len(files) == 1 else {}))
    return 1 if wrong else 0


_STYLES = {FAILED: "bold red", TESTED: "yellow", PROVED: "green"}


def _known(e: Mapping[str, Any]) -> Text:
    known = Text(e["status"], _STYLES[e["status"]])
    if e["status"] != PROVED:
        known.append(f": {e['why'] if e['status'] == TESTED else e['detail']}", "default")
    return known


def _columns(witnesses: bool) -> dict[str, Column]:
    by: dict[str, Column] = {"by": lambda e: ", ".join(e["witnesses"])} if witnesses else {}
    return {
        "rule": "name",
        "what": "rule",
        "claim": "claim",
        "of": lambda e: ", ".join(e["kinds"]),
        "known": _known,
        **by,
        "seconds": lambda e: f"{e['seconds']:.3f}",
    }


def summary(entries: Sequence[dict[str, Any]]) -> str:
    count = {s: sum(e["status"] == s for e in entries) for s in (PROVED, TESTED, FAILED)}
    seconds = sum(e["seconds"] for e in entries)
    said = f"{len(entries)} rules: {count[PROVED]} proved, {count[TESTED]} tested"
    if count[FAILED]:
        said += f", {count[FAILED]} do not hold"
    third = sum("z3" in e["witnesses"] for e in entries)
    if third:
        said += f"; {third} follow from axioms by Z3"
    return f"{said}; {seconds:.1f} s"
