"""`tilewright records`: schedules that tuning recorded."""

from __future__ import annotations

import argparse
from pathlib import Path

from tilewright import targets
from tilewright.base import knobs
from tilewright.base.errors import Invalid
from tilewright.driver.cli.command import Command
from tilewright.driver.looking.shown import Shown
from tilewright.driver.looking.tune import check_records, list_records, merge_records, rerun


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", choices=("list", "best", "merge", "check", "rerun"),
        help="list all; list what holds for each kernel; write several files into one; replay all "
        "by today's steps; run a schedule again that showed a mistake of the compiler",
    )  # fmt: skip
    parser.add_argument("files", nargs="*", type=Path, help="(default: the one in the cache)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="of merge")


def _records(given: argparse.Namespace, out: Shown) -> int:
    files = given.files or [knobs.records_file()]
    if given.what == "merge":
        if given.out is None:
            raise Invalid("where should the merged records go?", hint="give --out FILE")
        return merge_records(files, given.out, out)
    if len(files) != 1:
        raise Invalid(
            f"`records {given.what}` takes one file", hint="`records merge` takes several"
        )
    if given.what == "rerun":
        if not given.files:
            hint = "`tilewright tune` says where it wrote one"
            raise Invalid("which reproducer should be run again?", hint=hint)
        return rerun(files[0], targets.default(), out)
    if given.what == "check":
        return check_records(files[0], out)
    return list_records(files[0], out, given.what == "best")


COMMAND = Command(
    _arguments,
    _records,
    ("records best", "records merge here.jsonl there.jsonl --out all.jsonl", "records check"),
)
