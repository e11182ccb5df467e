"""`tilewright demo`: what compiling brings, on a real model."""

from __future__ import annotations

import argparse

from tilewright.driver.cli.command import Command, positive
from tilewright.driver.looking import demo
from tilewright.driver.looking.shown import Shown


def _arguments(parser: argparse.ArgumentParser) -> None:
    known = ", ".join(f"{name} ({m.about})" for name, m in demo.MODELS.items())
    said = f"one of {known}; the default is {demo.DEFAULT}"
    parser.add_argument("model", nargs="?", default=demo.DEFAULT, help=said)
    parser.add_argument("--rounds", type=positive, default=demo.ROUNDS, help="of timing")


def _demo(given: argparse.Namespace, out: Shown) -> int:
    return 0 if demo.demo(given.model, given.rounds, out) else 1


COMMAND = Command(_arguments, _demo, ("demo", "demo bert --rounds 21", "demo tiny --json"))
