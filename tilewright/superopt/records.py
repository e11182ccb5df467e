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
    conditions: str = ""
    method: str = ""
    points: int = 0  # at which both sides were computed
    seconds: float = 0.0
    digest: str = ""
    name: str = ""
    witness: str = ""  # who else says so

    def signed(self) -> str:
        """A digest of all that matters: a rule whose record does not fit is not trusted."""
        said: list[object] = [VERSION, self.rule, self.conditions, self.method, self.points]
        if self.witness:
            said.append(self.witness)
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]

    @property
    def witnesses(self) -> list[str]:
        """Who agrees that it holds."""
        found = [self.method, f"equal at {self.points} points"] if self.method else []
        return found + ([self.witness] if self.witness else [])


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
    return signed(Record(str(e), conditions, method, SIZES * POINTS, seconds))


def signed(r: Record, **new: Any) -> Record:
    """The record with something else in it, and the digest that fits."""
    changed = replace(r, **new)
    return replace(changed, digest=changed.signed())


def write(path: Path, records: Sequence[Record], **how: Any) -> None:
    """A file of rules, and how they were found."""
    kept = [{k: v for k, v in asdict(r).items() if v != ""} for r in records]
    text = json.dumps({**how, "rules": kept}, indent=1)
    path.write_text(text + "\n")


def header(path: Path) -> dict[str, Any]:
    """What a file says of its rules as a whole."""
    return {k: v for k, v in json.loads(path.read_text()).items() if k != "rules"}


def records(path: Path) -> list[Record]:
    """The records of a file, whatever they say."""
    try:
        found = [Record(**x) for x in json.loads(path.read_text())["rules"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as why:
        raise Invalid(f"{path} is no file of rules: {why}") from None
    for k, r in enumerate(found):
        if not isinstance(r.rule, str):
            raise Invalid(f"{path} is no file of rules: number {k} is no text: {r.rule!r}")
    return found


def equality(path: Path, k: int, r: Record) -> Equality:
    """The rule of a record, which is number k of its file."""
    try:
        return parse_equality(r.rule)
    except Invalid as why:
        raise Invalid(f"rule {k} of {path}: {why.what}", hint=why.hint) from None


def named(path: Path, k: int, r: Record) -> str:
    """What a rule is called: by its file and its place there where it has no name."""
    return r.name or f"{path.stem}-{k}"


def read(path: Path) -> list[Equality]:
    """The rules of a file. One whose record does not fit was edited: it is proved again, and the
    file is refused where that fails."""
    out: list[Equality] = []
    for k, r in enumerate(records(path)):
        e = equality(path, k, r)
        if r.digest != r.signed():
            again = proved(e)
            if isinstance(again, str):
                raise Invalid(
                    f"rule {k} of {path} was edited and is not proved: {again}: {r.rule}",
                    hint="correct it or delete it; `tilewright prove FILE` judges each rule of one",
                )
        out.append(e)
    return out
