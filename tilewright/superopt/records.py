"""Rules in files: each with the record of its proof, which is made again where a rule was edited.

An equality is a rule where two provers agree: both sides have one normal form for all sizes, and
both are equal in exact arithmetic at random points, computed by each operator's reference and not
by the definition that the normal form is made of.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, Input
from tilewright.ir.positions import static
from tilewright.ir.types import f64
from tilewright.rewrites.proofs.prove import inputs_of
from tilewright.superopt.blocks import Sizes
from tilewright.superopt.terms import Equality
from tilewright.superopt.text import parse_equality

FOLDER = Path(__file__).parent / "rules"
VERSION = 1  # of what a record says
NORMAL_FORM = "one normal form over the reals, for all sizes"
# Sizes that are tried, and points for each: enough for every sign of a few elements.
SIZES, POINTS = 3, 24
LARGEST = 1 << 9  # of an element: products of five and sums of them are exact in float64


@dataclass(frozen=True)
class Record:
    """What was proved of an equality, how, and in how many seconds."""

    rule: str
    conditions: str
    method: str
    points: int  # at which both sides were computed
    seconds: float
    digest: str = ""

    def signed(self) -> str:
        """A digest of all that matters: a rule whose record does not fit is not trusted."""
        said = (VERSION, self.rule, self.conditions, self.method, self.points)
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]


def proved(e: Equality, seed: int = 0) -> Record | str:
    """The record of its proof, or why there is none."""
    began = time.perf_counter()
    if not e.is_proved():
        return "the normal forms of both sides differ, or one has none"
    wrong = differs(e, seed)
    if wrong is not None:
        return f"the normal forms agree, and {wrong}"
    conditions = ", ".join(f"{x} >= 0" for x in sorted(e.positive))
    seconds = round(time.perf_counter() - began, 4)
    made = Record(str(e), conditions, NORMAL_FORM, SIZES * POINTS, seconds)
    return replace(made, digest=made.signed())


def differs(e: Equality, seed: int = 0) -> str | None:
    """Where both sides differ in whole numbers, or None."""
    rng = np.random.default_rng(seed)
    for _ in range(SIZES):
        sizes = {name: int(rng.integers(1, 5)) for name in e.symbols}
        sides = e.nodes(Sizes(sizes), f64)
        ins = inputs_of(*sides)
        signs = {x.name: 0 if x.positive else -1 for x in e.leaves}
        for _ in range(POINTS):
            args = []
            for n in ins:
                assert isinstance(n.op, Input)
                low = signs[n.op.label] * LARGEST
                args.append(
                    rng.integers(low, LARGEST, static(n.shape), endpoint=True).astype(np.float64)
                )
            a, b = evaluate(Graph("sides", ins, sides), args)
            if not np.array_equal(a, b):
                where = ", ".join(f"{k} = {v}" for k, v in sizes.items())
                return f"the sides differ at a point with {where} (seed {seed})"
    return None


def write(path: Path, records: Sequence[Record], **how: Any) -> None:
    """A file of rules, and how they were found."""
    text = json.dumps({**how, "rules": [asdict(r) for r in records]}, indent=1)
    path.write_text(text + "\n")


def read(path: Path) -> list[Equality]:
    """The rules of a file. One whose record does not fit was edited: it is proved again, and the
    file is refused where that fails."""
    try:
        found = [Record(**x) for x in json.loads(path.read_text())["rules"]]
    except (OSError, ValueError, KeyError, TypeError) as why:
        raise Invalid(f"{path} is no file of rules: {why}") from None
    out: list[Equality] = []
    for r in found:
        e = parse_equality(r.rule)
        if r.digest != r.signed():
            again = proved(e)
            if isinstance(again, str):
                raise Invalid(
                    f"a rule of {path} was edited and is not proved: {again}: {r.rule}",
                    hint="correct it or delete it; `tilewright mine` writes files of rules",
                )
        out.append(e)
    return out
