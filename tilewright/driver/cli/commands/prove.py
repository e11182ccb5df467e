"""`tilewright prove`: the rewrite rules, and how each is known to hold."""

from __future__ import annotations

import argparse
from pathlib import Path

from tilewright.driver.cli.command import Command
from tilewright.driver.looking.rules import Asked, show
from tilewright.driver.looking.shown import Shown


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", nargs="*", help="of rules, such as add-0 or 'slice-*' (all), or a FILE.json of them"
    )
    parser.add_argument("--axioms", action="store_true", help="those in the place of the rules")
    parser.add_argument(
        "--z3", action="store_true", help="ask Z3 too, whether they follow from axioms"
    )
    parser.add_argument(
        "--json", type=Path, nargs="?", const=True, metavar="FILE",
        help="results as one JSON object; with a FILE, written there beside the table",
    )  # fmt: skip
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="write a file of the rules with their proofs"
    )


def _prove(given: argparse.Namespace, out: Shown) -> int:
    file = given.json if isinstance(given.json, Path) else None
    return show(Asked(given.name, given.axioms, given.z3, file, given.write), out)


COMMAND = Command(
    _arguments,
    _prove,
    ("prove", "prove div-into-matmul", "prove my-rules.json --z3 --write my-rules.json"),
    json=False,
)
