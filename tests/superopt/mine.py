"""How many programs a vocabulary has, how long it takes to find them, and which rules they make.

python -m tests.superopt.mine matrices --operators 4             # programs and equalities only
python -m tests.superopt.mine matrices --operators 2 --rules     # proved, general, a basis
"""

from __future__ import annotations

import argparse
import resource
import time

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tilewright.superopt.derive import basis, derivable
from tilewright.superopt.enumerate import Space, enumerated
from tilewright.superopt.generalise import generalised
from tilewright.superopt.terms import Equality, equalities
from tilewright.superopt.vocabulary import VOCABULARIES


def mined(space: Space, console: Console) -> list[Equality]:
    """A few general rules from which all that is proved follows."""
    found = list(equalities(space))
    true = [e for e in track(found, "proofs", console=console) if e.is_proved()]
    rules = basis(list(dict.fromkeys(map(generalised, basis(true)))))
    again = sum(derivable(true, rules, 3))
    console.print(
        f"{len(found)} equalities up to names, {len(true)} proved, {len(rules)} rules, ", end=""
    )
    console.print(f"from which {again} of the proved ones follow")
    return rules


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.superopt.mine", description=__doc__)
    parser.add_argument("vocabulary", choices=sorted(VOCABULARIES))
    parser.add_argument("--operators", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rules", action="store_true", help="prove, generalise and reduce them")
    options = parser.parse_args(given)
    console, began = Console(), time.perf_counter()
    table = Table("operators", "candidates", "new values", "equalities", "seconds so far")

    space = enumerated(
        VOCABULARIES[options.vocabulary],
        options.operators,
        options.seed,
        lambda x: table.add_row(
            *(f"{n:,}" for n in (x.operators, x.candidates, x.new, x.equalities)),
            f"{time.perf_counter() - began:.1f}",
        ),
    )
    console.print(table)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    console.print(f"seed {options.seed}, at most {most:.2f} GiB")
    for e in mined(space, console) if options.rules else ():
        console.print(f"  {e}", markup=False, highlight=False)


if __name__ == "__main__":
    main()
