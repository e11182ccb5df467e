"""`tilewright validate`: every stage of a compile against the one before it."""

from __future__ import annotations

import argparse
from pathlib import Path

from tilewright import targets
from tilewright.driver.cli.command import Command
from tilewright.driver.cli.models import NOTES, asked, model_arguments
from tilewright.driver.looking.shown import Shown
from tilewright.driver.looking.validate import KERNEL, read_kernel, show, validate_kernel


def _arguments(parser: argparse.ArgumentParser) -> None:
    model_arguments(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write a reproducer there")


def _validate(given: argparse.Namespace, out: Shown) -> int:
    path = Path(given.program)
    if path.suffix == KERNEL:
        reports = [validate_kernel(*read_kernel(path), targets.default())]
    else:
        model, how = asked(given)
        with out.step(f"judging {model.name}"):
            reports = model.stages(how, only_if_wrong=False)
    status = show(reports, given.out, given.passes, out)
    if not status:
        judged = sum(len(r.rows) for r in reports)
        out.say(f"right: {judged} stages agree with the ones before them", "green")
    return status


COMMAND = Command(
    _arguments,
    _validate,
    (
        "validate model.py:net --input 'f32[8,128]'",
        "validate model.onnx --json",
        f"validate fault{KERNEL}",
    ),
    f"{NOTES} A FILE{KERNEL}, which a fault leaves behind, has one kernel and its schedule.",
)
