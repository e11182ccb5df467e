"""`tilewright keygen`: keys to sign packages with."""

from __future__ import annotations

import argparse
from pathlib import Path

from tilewright.driver.cli.command import Command
from tilewright.driver.looking.shown import Shown
from tilewright.driver.signing import keygen


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="FOLDER", help="(default: this one)"
    )


def _keygen(given: argparse.Namespace, out: Shown) -> int:
    private, public = keygen(given.out)
    out.put(private=private, public=public)
    out.say(f"{private}: sign packages with it, and let nobody else read it")
    out.say(f"{public}: give it to those who load your packages")
    return 0


COMMAND = Command(_arguments, _keygen, ("keygen", "keygen --out keys"))
