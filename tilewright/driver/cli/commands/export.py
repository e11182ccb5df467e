"""`tilewright export`: a model as a package, which runs without Python, or as a page of the web."""

from __future__ import annotations

import argparse
from pathlib import Path

from tilewright import targets
from tilewright.base.errors import Invalid
from tilewright.driver.cli.command import Command
from tilewright.driver.cli.models import NOTES, asked, model_arguments
from tilewright.driver.cli.models.dims import DIM, parse_dims
from tilewright.driver.export.api import Exported
from tilewright.driver.export.web import FITS, TARGETS, Page, Picture, write_page
from tilewright.driver.export.weights import LAYOUTS, STORED
from tilewright.driver.looking.shown import Column, Shown
from tilewright.driver.looking.tables import bytes_text
from tilewright.targets.systems import OTHERS


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
        f"loaded: {', '.join(n for n in targets.names() if targets.get(n).grid is None)}; "
        f"{' and '.join(f'NAME-{s.name}' for s in OTHERS)} for another system than Linux",
    )
    parser.add_argument("--dim", action="append", metavar="DIM", help=DIM)
    parser.add_argument("--name", help="what the package is called; else as the model")
    parser.add_argument(
        "--no-winograd", action="store_true", help="smaller weights, slower convolutions"
    )
    parser.add_argument(
        "--weights", choices=STORED, default="same", help="weights rounded to 16 bits"
    )
    parser.add_argument(
        "--layout",
        choices=LAYOUTS,
        default="flat",
        help="the file of weights: plain, or safetensors",
    )
    page = parser.add_argument_group("a page that runs the model in a browser")
    page.add_argument("--web", action="store_true", help="PATH is a folder of static files")
    page.add_argument("--title", help="of the page; else the model's name")
    page.add_argument(
        "--labels", type=Path, metavar="FILE", help="names of classes: lines, or a list in JSON"
    )
    page.add_argument(
        "--vocabulary",
        type=Path,
        metavar="FILE",
        help="word pieces for texts: vocab.txt, or a tokenizer.json with such",
    )
    numbers = "a number, or one for each channel: 0.485,0.456,0.406"
    page.add_argument("--mean", type=_numbers, help=f"taken from pixels of 0 to 1; {numbers}")
    page.add_argument("--std", type=_numbers, help="what they are divided by then")
    page.add_argument(
        "--crop", type=float, help="the part of an image that is taken, such as 0.875"
    )
    page.add_argument("--fit", choices=FITS, help="how an image gets the input's proportions")


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(x) for x in text.split(","))


_OF_PAGES = ("title", "labels", "vocabulary")
_OF_PICTURES = ("mean", "std", "crop", "fit")


def _page(given: argparse.Namespace) -> Page | None:
    """The page that is wanted, if one is."""
    said = {k: getattr(given, k) for k in (*_OF_PAGES, *_OF_PICTURES)}
    said = {k: v for k, v in said.items() if v is not None}
    if given.web:
        picture = Picture(**{k: v for k, v in said.items() if k in _OF_PICTURES})
        return Page(picture=picture, **{k: v for k, v in said.items() if k in _OF_PAGES})
    if said:
        raise Invalid(f"--{next(iter(said))} is for pages", hint="add --web, or leave it out")
    return None


def _export(given: argparse.Namespace, out: Shown) -> int:
    model, how = asked(given)
    page, dims = _page(given), parse_dims(given.dim or ())
    usual = ("host",) if page is None else TARGETS
    options = {
        "target": [name for text in given.target or usual for name in text.split(",")],
        "winograd": not given.no_winograd,
        "weights": given.weights,
        "layout": given.layout,
        "name": given.name,
    }

    def make(path: Path) -> Exported:
        return model.exported(how, path, dims, **options)

    with out.step(f"exporting {model.name}"):
        made = make(given.out) if page is None else write_page(given.out, page, make)
    rows = [
        {"target": x.target.name, "bytes": len(x.code), "link_ms": 1e3 * x.link_seconds}
        for x in made.levels
    ]
    columns: dict[str, Column] = {"code for": "target", "size": lambda r: bytes_text(r["bytes"])}
    out.table("levels", rows, columns)
    out.put(package=made.path, weights_bytes=made.manifest["weights"]["bytes"])
    weights = bytes_text(made.manifest["weights"]["bytes"])
    if page is None:
        out.say(f"{made.path}: {weights} of weights; `tilewright info {made.path}` says more")
    else:
        out.say(
            f"{made.path}: a page with {weights} of weights, for any web server: "
            f"`python -m http.server -d {made.path}` shows it on http://localhost:8000"
        )
    return 0


COMMAND = Command(
    _arguments,
    _export,
    (
        "export model.py:net --out net.twp",
        "export model.py:net --out net --dim x.0=batch:1..64 --target x86-64 --target x86-64-v3",
        "export model.onnx --out model.twp --dim batch=1..64 --target arm64 --weights f16",
        "export --web model.py:net --out site --labels names.txt --mean 0.5 --std 0.5",
    ),
    NOTES,
)
