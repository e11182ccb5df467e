"""`tilewright tune train`: a model of measured schedules."""

from __future__ import annotations

import argparse
from pathlib import Path

from tilewright.driver.cli.command import Command
from tilewright.driver.looking.learning import train
from tilewright.tune.models import PRETRAINED
from tilewright.tune.models.training import TREES


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="that `tune collect` wrote"
    )
    parser.add_argument("--trees", type=int, default=TREES, help="of the model")
    parser.add_argument("--out", type=Path, metavar="MODEL", help=f"(such as {PRETRAINED.name}/…)")
    parser.add_argument("--no-report", action="store_true", help="only train")


COMMAND = Command(
    _arguments,
    train,
    ("tune train measured.jsonl --out model.txt", "tune train a.jsonl b.jsonl --trees 100"),
)
