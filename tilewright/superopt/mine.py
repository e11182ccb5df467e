"""Mining rules: programs enumerated, equalities among them proved, made general and reduced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tilewright.superopt.derive import basis, derivable
from tilewright.superopt.enumerate import Level, enumerated
from tilewright.superopt.generalise import generalised
from tilewright.superopt.records import Record, proved
from tilewright.superopt.terms import Equality, equalities
from tilewright.superopt.vocabulary import Vocabulary

ROUNDS = 3  # of rewriting, within which what was proved must follow from the rules

Progress = Callable[[Iterable[Equality], str], Iterable[Equality]]
"""Shows how far a walk over equalities is."""


@dataclass(frozen=True)
class Mined:
    """How many programs and equalities there were, and the rules that are left."""

    levels: Sequence[Level]
    found: int  # up to names of leaves
    proved: int  # by normal form
    rules: Sequence[Record]
    again: int  # of the proved ones follow from the rules
    refused: Sequence[str]  # what the second prover refused, and why


def mine(
    vocabulary: Vocabulary,
    operators: int,
    seed: int = 0,
    each: Callable[[Level], None] = lambda level: None,
    progress: Progress = lambda found, what: found,
) -> Mined:
    """All rules between programs of a vocabulary of up to so many operators."""
    levels: list[Level] = []

    def level(x: Level) -> None:
        levels.append(x)
        each(x)

    found = list(equalities(enumerated(vocabulary, operators, seed, level)))
    true = [e for e in progress(found, "proofs") if e.is_proved()]
    few = basis(true)
    general = basis(list(dict.fromkeys(map(generalised, progress(few, "generalised")))))
    judged = [(e, proved(e, seed)) for e in progress(general, "second proofs")]
    rules = [e for e, how in judged if isinstance(how, Record)]
    return Mined(
        levels,
        len(found),
        len(true),
        [how for _, how in judged if isinstance(how, Record)],
        sum(derivable(true, rules, ROUNDS)),
        [f"{e}: {how}" for e, how in judged if isinstance(how, str)],
    )
