"""`tilewright passes`: what is done to a graph before its operators are fused."""

from __future__ import annotations

import argparse

from tilewright.driver.cli.command import Command
from tilewright.driver.looking.shown import Shown
from tilewright.driver.program.default_passes import PRECISIONS, described, passes


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", metavar="NAME", help="for another machine than this one")
    parser.add_argument("--precision", choices=PRECISIONS, default=PRECISIONS[0], help="of floats")


def _passes(given: argparse.Namespace, out: Shown) -> int:
    listed = passes(given.target, precision=given.precision)
    out.put(passes=[str(p) for p in listed], list=str(listed))
    out.text(described(listed))
    return 0


COMMAND = Command(
    _arguments, _passes, ("passes", "passes --target arm64", "passes --precision strict --json")
)
