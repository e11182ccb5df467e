"""`tilewright run`: one call of a model, its results in numbers, and whether they are right."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
from rich.text import Text

from tilewright.base.errors import Invalid
from tilewright.driver.cli.command import Command
from tilewright.driver.cli.models import NOTES, asked, model_arguments
from tilewright.driver.cli.models.model import Result
from tilewright.driver.looking.shown import Column, Shown


def _arguments(parser: argparse.ArgumentParser) -> None:
    model_arguments(parser)
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write the result there: .npy, or .npz"
    )
    parser.add_argument(
        "--check",
        action=argparse.BooleanOptionalAction,
        help="compare the results with float64 (default: if that takes seconds)",
    )


def _run(given: argparse.Namespace, out: Shown) -> int:
    if given.output is not None and given.output.suffix not in (".npy", ".npz"):
        raise Invalid(f"{given.output} is neither .npy nor .npz", hint="--output result.npy")
    model, how = asked(given)
    results = model.results(how, out.step, given.check)
    out.put(model=model.name)
    out.table("results", [r.facts() for r in results], _COLUMNS)
    if given.output is not None:
        _write(given.output, results)
        out.put(output=given.output)
        out.say(f"written to {given.output}")
    wrong = [r for r in results if r.problem]
    for r in wrong:
        out.say(f"wrong: {r.name}: {r.problem}", "bold red")
    for why in dict.fromkeys(r.unchecked for r in results if r.unchecked):
        out.say(f"not checked: {why}")
    if results and not wrong and results[0].error is not None:
        out.say("right: the errors against float64 are those of rounding", "green")
    return 1 if wrong else 0


def _number(name: str) -> Column:
    return lambda r: "–" if r[name] is None else f"{r[name]:.4g}"


def _verdict(row: Mapping[str, Any]) -> Text:
    if row["right"] is None:
        return Text("not checked")
    return Text("right", "green") if row["right"] else Text("wrong", "bold red")


_COLUMNS: dict[str, Column] = {
    "result": "name",
    "type": lambda r: f"{r['dtype']}[{','.join(map(str, r['shape']))}]",
    "min": _number("min"),
    "mean": _number("mean"),
    "max": _number("max"),
    "not finite": "not_finite",
    "error": _number("error"),
    "allowed": _number("allowed"),
    "": _verdict,
}


def _write(path: Path, results: Sequence[Result]) -> None:
    if path.suffix == ".npy" and len(results) != 1:
        raise Invalid(f"{path} is for one result, and there are {len(results)}", hint="name a .npz")
    try:
        if path.suffix == ".npy":
            np.save(path, results[0].array)
        else:
            with ZipFile(path, "w") as archive:  # numpy.savez would not take every name
                for r in results:
                    with archive.open(f"{r.name}.npy", "w", force_zip64=True) as file:
                        np.lib.format.write_array(file, r.array)
    except OSError as why:
        raise Invalid(f"{path} cannot be written: {why.strerror or why}") from None


COMMAND = Command(
    _arguments,
    _run,
    (
        "run model.py:net --input 'x=f32[1,3,224,224]'",
        "run model.onnx --input x=@image.npy --output scores.npy",
        "run model.pt2 --json",
    ),
    NOTES,
)
