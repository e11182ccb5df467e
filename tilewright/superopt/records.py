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

from tilewright.base.errors import Invalid, Unsupported
from tilewright.ir.types import f64
from tilewright.superopt.blocks import Sizes
from tilewright.superopt.points import POINTS, SIZES, differs, is_exact
from tilewright.superopt.terms import Equality
from tilewright.superopt.text import parse_equality

FOLDER = Path(__file__).parent / "rules"
VERSION = 1  # of what a record says
NORMAL_FORM = "one normal form over the reals, for all sizes"


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
    try:
        if not e.is_proved():
            return "the normal forms of both sides differ"
    except Unsupported as why:
        return f"there is no normal form: {why.what}"
    wrong = differs(e, seed)
    if wrong is not None:
        return f"the normal forms agree, and {wrong}"
    conditions = ", ".join(f"{x} >= 0" for x in sorted(e.positive))
    seconds = round(time.perf_counter() - began, 4)
    method = NORMAL_FORM
    if not is_exact(e.nodes(Sizes.symbolic(e.symbols), f64)):
        method += "; evaluated within rounding"
    made = Record(str(e), conditions, method, SIZES * POINTS, seconds)
    return replace(made, digest=made.signed())


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
