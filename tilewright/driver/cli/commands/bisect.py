"""`tilewright bisect`: the stage of a compile that makes results wrong."""

from __future__ import annotations

import argparse
from pathlib import Path

from tilewright.driver.cli.command import Command
from tilewright.driver.cli.models import NOTES, asked, model_arguments
from tilewright.driver.looking.shown import Shown
from tilewright.driver.looking.validate import show


def _arguments(parser: argparse.ArgumentParser) -> None:
    model_arguments(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write a reproducer there")


def _bisect(given: argparse.Namespace, out: Shown) -> int:
    model, how = asked(given)
    with out.step(f"judging {model.name}"):
        reports = model.stages(how, only_if_wrong=True)
    if not any(r.rows for r in reports):
        out.put(stages=[], right=True)
        out.say("right: the results agree with float64, there is nothing to find", "green")
        return 0
    return show(reports, given.out, given.passes, out)


COMMAND = Command(
    _arguments,
    _bisect,
    ("bisect model.py:net --input 'f32[8,128]'", "bisect model.onnx --out fault.tw"),
    NOTES,
)
