"""`tilewright export`: a model as a package, which runs without Python."""

from __future__ import annotations

import argparse
from pathlib import Path

from tilewright import targets
from tilewright.driver.cli.command import Command
from tilewright.driver.cli.models import NOTES, asked, model_arguments
from tilewright.driver.cli.models.dims import DIM, parse_dims
from tilewright.driver.export.weights import STORED
from tilewright.driver.looking.shown import Column, Shown
from tilewright.driver.looking.tables import bytes_text


def _arguments(parser: argparse.ArgumentParser) -> None:
    model_arguments(parser)
    parser.add_argument(
        "-o", "--out", type=Path, required=True, metavar="PATH", help="a folder, or NAME.twp"
    )
    parser.add_argument(
        "--target",
        action="append",
        metavar="NAME",
        help="a machine to compile for; several make one package that picks the best when it is "
        f"loaded: {', '.join(n for n in targets.names() if targets.get(n).grid is None)}",
    )
    parser.add_argument("--dim", action="append", metavar="DIM", help=DIM)
    parser.add_argument("--name", help="what the package is called; else as the model")
    parser.add_argument(
        "--no-winograd", action="store_true", help="smaller weights, slower convolutions"
    )
    parser.add_argument(
        "--weights", choices=STORED, default="same", help="weights rounded to 16 bits"
    )


def _export(given: argparse.Namespace, out: Shown) -> int:
    model, how = asked(given)
    wanted = [name for text in given.target or ["host"] for name in text.split(",")]
    with out.step(f"exporting {model.name}"):
        made = model.exported(
            how,
            given.out,
            parse_dims(given.dim or ()),
            target=wanted,
            winograd=not given.no_winograd,
            weights=given.weights,
            name=given.name,
        )
    rows = [
        {"target": x.target.name, "bytes": len(x.code), "link_ms": 1e3 * x.link_seconds}
        for x in made.levels
    ]
    columns: dict[str, Column] = {"code for": "target", "size": lambda r: bytes_text(r["bytes"])}
    out.table("levels", rows, columns)
    out.put(package=made.path, weights_bytes=made.manifest["weights"]["bytes"])
    weights = bytes_text(made.manifest["weights"]["bytes"])
    out.say(f"{made.path}: {weights} of weights; `tilewright info {made.path}` says more")
    return 0


COMMAND = Command(
    _arguments,
    _export,
    (
        "export model.py:net --out net.twp",
        "export model.py:net --out net --dim x.0=batch:1..64 --target x86-64 --target x86-64-v3",
        "export model.onnx --out model.twp --dim batch=1..64 --target arm64 --weights f16",
    ),
    NOTES,
)
