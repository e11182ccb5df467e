"""`tilewright calibrate`: numbers of this machine, measured."""

from __future__ import annotations

import argparse

from tilewright.driver.cli.command import Command
from tilewright.driver.looking import calibrate
from tilewright.driver.looking.shown import Shown


def _arguments(parser: argparse.ArgumentParser) -> None:
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--show", action="store_true", help="what was measured, beside the guesses")
    one.add_argument("--forget", action="store_true", help="remove what was measured")
    one.add_argument("--anyway", action="store_true", help="keep it though the machine is busy")


def _calibrate(given: argparse.Namespace, out: Shown) -> int:
    if given.show:
        return calibrate.show(out)
    return calibrate.forget(out) if given.forget else calibrate.run(out, given.anyway)


COMMAND = Command(
    _arguments, _calibrate, ("calibrate", "calibrate --show --json", "calibrate --forget")
)
