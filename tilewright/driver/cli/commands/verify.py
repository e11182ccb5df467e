"""`tilewright verify`: a package's files and signature, without running any of it."""

from __future__ import annotations

import argparse
from pathlib import Path

from tilewright.driver.cli.command import Command
from tilewright.driver.looking.shown import Shown
from tilewright.driver.signing import verified


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("package", type=Path, metavar="PACKAGE", help="a folder, or NAME.twp")
    parser.add_argument(
        "--key", type=Path, metavar="PEM", help="the public key; without, checksums are compared"
    )


def _verify(given: argparse.Namespace, out: Shown) -> int:
    names = verified(given.package, given.key)
    out.put(package=given.package, files=names, signed=given.key is not None)
    by = (
        f", and signed with the key of {given.key}" if given.key else "; no signature was asked for"
    )
    out.say(f"{given.package}: {len(names)} files are as its manifest says{by}")
    return 0


COMMAND = Command(_arguments, _verify, ("verify net.twp --key public.pem", "verify net.twp"))
