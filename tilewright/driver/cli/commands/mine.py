"""`tilewright mine`: rewrite rules by enumeration."""

from __future__ import annotations

import argparse
from pathlib import Path

from tilewright.driver.cli.command import Command, positive, seconds
from tilewright.driver.looking.mine import Asked, show, show_joining
from tilewright.driver.looking.shown import Shown


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("vocabulary", help="operators and leaves, such as matrices")
    parser.add_argument("--operators", type=positive, default=3, help="of a program, at most")
    parser.add_argument("--seed", type=int, default=0, help="of the values that are compared")
    parser.add_argument("--count", action="store_true", help="candidates only: nothing is proved")
    parser.add_argument("--joining", action="store_true", help="which operators join, and why not")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the rules there")
    parser.add_argument("--budget", type=seconds, metavar="600s", help="end after so long")


def _mine(given: argparse.Namespace, out: Shown) -> int:
    if given.joining:
        return show_joining(given.vocabulary, out)
    how = given.operators, given.seed, given.out, given.budget
    return show(Asked(given.vocabulary, *how), given.count, out)


COMMAND = Command(
    _arguments,
    _mine,
    (
        "mine matrices --operators 3 --out rules.json",
        "mine images --count",
        "mine matrices --joining",
    ),
)
