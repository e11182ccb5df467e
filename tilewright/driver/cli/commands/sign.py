"""`tilewright sign`: a signature into a package."""

from __future__ import annotations

import argparse
from pathlib import Path

from tilewright.driver.cli.command import Command
from tilewright.driver.looking.shown import Shown
from tilewright.driver.signing import sign


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("package", type=Path, metavar="PACKAGE", help="a folder, or NAME.twp")
    parser.add_argument("--key", type=Path, required=True, metavar="PEM", help="the private key")


def _sign(given: argparse.Namespace, out: Shown) -> int:
    names = sign(given.package, given.key)
    out.put(package=given.package, files=names)
    out.say(f"{given.package} is signed, with its {len(names)} files")
    return 0


COMMAND = Command(
    _arguments, _sign, ("sign net.twp --key private.pem", "sign net --key keys/private.pem --json")
)
