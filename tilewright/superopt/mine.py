"""Mining rules: programs enumerated, equalities among them proved, made general and reduced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.superopt.derive import basis, derivable
from tilewright.superopt.enumerate import Level, enumerated
from tilewright.superopt.generalise import generalised
from tilewright.superopt.records import Record, proved
from tilewright.superopt.shorten import Progress, shortened
from tilewright.superopt.terms import Equality, equalities
from tilewright.superopt.vocabulary import Vocabulary

ROUNDS = 3  # of rewriting, within which what was proved must follow from the rules


@dataclass(frozen=True)
class Mined:
    """How many programs and equalities there were, and the rules that are left."""

    levels: Sequence[Level]
    found: int  # up to names of leaves
    proved: int  # by normal form
    general: int  # from which others follow, for the shapes that were enumerated
    again: int  # of the proved ones follow from those
    rules: Sequence[Record]  # from which they follow, as rules of any shapes
    refused: Sequence[str]  # what the second prover refused, and why


def mine(
    vocabulary: Vocabulary,
    operators: int,
    seed: int = 0,
    known: Sequence[Equality] = (),
    each: Callable[[Level], None] = lambda level: None,
    progress: Progress = lambda found, what: found,
) -> Mined:
    """All rules between programs of a vocabulary of up to so many operators, but for those that
    follow from what is known."""
    levels: list[Level] = []

    def level(x: Level) -> None:
        levels.append(x)
        each(x)

    found = list(equalities(enumerated(vocabulary, operators, seed, level)))
    true = [e for e in progress(found, "proofs") if e.is_proved()]
    few = basis(true)
    general = basis(list(dict.fromkeys(map(generalised, progress(few, "generalised")))))
    judged = {e: proved(e, seed) for e in progress(general, "second proofs")}
    rules = {e: how for e, how in judged.items() if isinstance(how, Record)}
    refused = [f"{e}: {how}" for e, how in judged.items() if e not in rules]
    again = sum(derivable(true, list(rules), ROUNDS))
    short = [rules[e] for e in shortened(list(rules), known, progress)]
    return Mined(levels, len(found), len(true), len(rules), again, short, refused)
