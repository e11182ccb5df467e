"""`tilewright fleet`: the machines that measure for others."""

from __future__ import annotations

import argparse

from tilewright.driver.cli.command import Command
from tilewright.driver.looking.fleet import show
from tilewright.tune.fleet import ADDRESS


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("address", metavar="ADDRESS", help=ADDRESS)


COMMAND = Command(
    _arguments,
    lambda given, out: show(given.address, out),
    ("fleet HOST:6379", "fleet local:2 --json"),
)
