"""`tilewright tune`: measures schedules of a model's kernels, and records the best."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tilewright import targets
from tilewright.base.errors import Invalid
from tilewright.driver.cli.command import Command, positive
from tilewright.driver.cli.models import NOTES, asked, model_arguments
from tilewright.driver.looking.shown import Shown
from tilewright.driver.looking.tune import tune
from tilewright.driver.program.elsewhere import kernels_for
from tilewright.ir.target import Target
from tilewright.runtime.program_data import KernelInfo
from tilewright.tune.fleet import ADDRESS


def _arguments(parser: argparse.ArgumentParser) -> None:
    model_arguments(parser)
    parser.add_argument("--trials", type=positive, default=64, help="of a kernel, at most")
    parser.add_argument("--minutes", type=float, default=10.0, help="in all, at most")
    parser.add_argument(
        "--search", default="evolution", metavar="NAME",
        help="evolution, random, exhaustive, annealing, descent or bayesian",
    )  # fmt: skip
    parser.add_argument(
        "--model", default="auto", metavar="NAME", help="what guesses: learned or analytic"
    )
    parser.add_argument("--seed", type=int, default=0, help="of everything that is drawn")
    parser.add_argument(
        "--records", type=Path, metavar="FILE",
        help="where measurements are kept (as TILEWRIGHT_RECORDS says)",
    )  # fmt: skip
    parser.add_argument("--fleet", metavar="ADDRESS", help=f"measure there: {ADDRESS}")
    parser.add_argument("--target", metavar="NAME", help="of the fleet's machines, or its key")
    parser.add_argument("--page", type=Path, metavar="FILE.html", help="with curves")


def _tune(given: argparse.Namespace, out: Shown) -> int:
    if given.target is not None and given.fleet is None:
        raise Invalid("--target is that of a fleet's machines", hint="give --fleet ADDRESS too")
    model, how = asked(given)
    with out.step(f"compiling {model.name}"):
        made = model.explained(how)
    kernels = [k for p in made.programs for k in p.kernels[p.once :]]
    graphs = [p.graph for p in made.programs if p.graph is not None]
    options = how.options()

    def there(target: Target) -> Sequence[KernelInfo]:
        return [k for g in graphs for k in kernels_for(g, options, target)]

    return tune(
        kernels,
        targets.default(),
        out,
        trials=given.trials,
        minutes=given.minutes,
        search=given.search,
        model=given.model,
        seed=given.seed,
        records=given.records,
        page=given.page,
        fleet=given.fleet,
        wanted=given.target,
        kernels_for=there,
        graphs=graphs,
        options=options,
    )


COMMAND = Command(
    _arguments,
    _tune,
    (
        "tune model.py:net --input 'f32[8,128]' --trials 64 --minutes 10",
        "tune model.onnx --page curves.html",
        "tune model.py:net --fleet HOST:6379",
    ),
    f"{NOTES} All that was measured is on disk at any time: the same command goes on after Ctrl-C "
    "or a kill. Every later compile uses what was decided.",
)
