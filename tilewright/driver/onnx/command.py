"""`python -m tilewright.onnx`: a program with native code in the place of ONNX Runtime, or what a
model takes and gives."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tilewright.base.errors import TilewrightError
from tilewright.driver.onnx.session import Argument, interface
from tilewright.driver.onnx.stand_in import install


def argument_parser() -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog="python -m tilewright.onnx",
        description="Runs a program that imports onnxruntime with Tilewright in its place, or "
        "prints what a model takes and gives.",
        usage="%(prog)s (program.py | -m module) [args …]\n       %(prog)s model.onnx",
    )


def main(argv: Sequence[str]) -> int | None:
    parser = argument_parser()
    rest = list(argv)
    if not rest or rest[0] in ("-h", "--help"):
        parser.parse_args(rest)
        parser.error("which program or model?")
    if rest[0] == "-m":
        if len(rest) < 2:
            parser.error("-m needs the name of a module")
        install()
        sys.argv = rest[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(rest[1], run_name="__main__", alter_sys=True)
        return None
    path = Path(rest[0])
    if rest[0].startswith("-"):
        parser.error(f"{rest[0]} is no option; options of a program come after its name")
    if not path.is_file():
        parser.error(f"there is no file {path}")
    if path.suffix == ".onnx":
        try:
            show(path)
        except TilewrightError as problem:
            parser.error(str(problem))
        return None
    install()
    sys.argv = rest
    sys.path.insert(0, str(path.resolve().parent))
    runpy.run_path(str(path), run_name="__main__")
    return None


def show(path: Path) -> None:
    """Prints the inputs and outputs of a model; nothing is compiled."""
    found = interface(path)
    console = Console()
    console.print(
        f"{escape(str(path))}: opset {found.opset}, {found.nodes} nodes, {found.weights:,} numbers "
        "in weights",
        highlight=False,
    )
    table = Table()
    for title in ("", "name", "type", "shape"):
        table.add_column(title)
    for kind, arguments in (("in", found.inputs), ("out", found.outputs)):
        for a in arguments:
            table.add_row(kind, escape(a.name), escape(a.type), escape(_shape(a)))
    console.print(table)


def _shape(a: Argument) -> str:
    return "[" + ", ".join("?" if d is None else str(d) for d in a.shape) + "]"
