"""`tilewright optimize`: another graph that computes the same, faster."""

from __future__ import annotations

import argparse
from pathlib import Path

from tilewright.driver.cli.command import Command, seconds
from tilewright.driver.cli.models import NOTES, asked, model_arguments
from tilewright.driver.looking import optimize
from tilewright.driver.looking.explain import Explanation
from tilewright.driver.looking.shown import Shown
from tilewright.ir.pipeline import Pipeline

BUDGET = 60  # seconds of a search


def _arguments(parser: argparse.ArgumentParser) -> None:
    model_arguments(parser)
    parser.add_argument(
        "--budget", type=seconds, default=BUDGET, metavar="60s", help="of the search"
    )
    parser.add_argument("--page", type=Path, metavar="FILE.html", help="with pictures")


def _optimize(given: argparse.Namespace, out: Shown) -> int:
    model, how = asked(given)

    def compiled(listed: Pipeline) -> Explanation:
        return model.explained(how, passes=listed, optimize="search")

    listed = optimize.passes(how.passes, given.budget)
    with optimize.progress(out, f"searching {model.name}", given.budget):
        found = optimize.searched(listed, compiled)
    return optimize.show(found, given.page, out)


COMMAND = Command(
    _arguments,
    _optimize,
    (
        "optimize model.py:net --budget 60s --page found.html",
        "optimize model.onnx --input 'x=f32[1,3,64,64]'",
    ),
    NOTES,
)
