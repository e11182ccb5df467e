"""`tilewright tune collect`: measured schedules that a model learns from."""

from __future__ import annotations

import argparse
from pathlib import Path

from tilewright.driver.cli.command import Command
from tilewright.driver.looking.learning import collect


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--groups", type=int, default=320, help="in the file, at the end")
    parser.add_argument("--schedules", type=int, default=64, help="of each group, at most")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="at most")
    parser.add_argument("--threads", type=int, help="of a call (default: as programs have)")
    parser.add_argument("--jobs", type=int, help="processes that prepare (default: all processors)")
    parser.add_argument("--seed", type=int, default=0, help="of everything that is drawn")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", required=True, help="of what was measured"
    )


COMMAND = Command(
    _arguments,
    collect,
    (
        "tune collect --out measured.jsonl",
        "tune collect --groups 40 --minutes 30 --out measured.jsonl",
    ),
    "The same command goes on where it stopped.",
)
