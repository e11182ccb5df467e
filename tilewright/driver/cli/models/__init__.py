"""The one way in which commands name a model and its inputs.

A model is FILE.py:NAME or PACKAGE.MODULE:NAME (see `user_code.py`), or a file of one of the kinds
below. Each kind is a subclass of `Model`, in a module that is loaded when such a model is named.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from tilewright.base.errors import Invalid, MissingExtra
from tilewright.driver.api import torch_side
from tilewright.driver.cli.models.inputs import INPUT
from tilewright.driver.cli.models.model import How, Model

_HERE = "tilewright.driver.cli.models"
_TORCH = f"{_HERE}.torch_models"
_USER_CODE = f"{_HERE}.user_code"
# The module with `load(path) -> Model` for files of an ending, and the extra that it needs.
# Another kind of file, or of folder, is one more line.
FILES: dict[str, tuple[str, str | None]] = {
    ".pt2": (_TORCH, "torch"),
    ".onnx": (f"{_HERE}.onnx_models", "onnx"),
    ".tw": (f"{_HERE}.graph_models", None),
}
FORM = (
    "FILE.py:NAME or PACKAGE.MODULE:NAME (a function, a torch.nn.Module, or a function without "
    "parameters that returns one, alone or with its inputs), FILE.pt2 (torch.export), FILE.onnx, "
    "or FILE.tw (the text of a graph)"
)
NOTES = (
    "Inputs come from --input; without, from the model itself: the variable or function "
    "NAME_inputs or inputs beside it, what the function returns with it, the examples of a .pt2, "
    "or random values of the types that a .onnx or .tw declares."
)


def model_arguments(parser: argparse.ArgumentParser) -> None:
    """How a command is told its model."""
    parser.add_argument("program", metavar="MODEL", help=FORM)
    parser.add_argument("-i", "--input", action="append", metavar="[NAME=]TYPE", help=INPUT)
    parser.add_argument("--strict", action="store_true", help="a fallback to eager is an error")
    parser.add_argument("--passes", metavar="LIST", help="such as `tilewright passes` shows")


def asked(given: argparse.Namespace) -> tuple[Model, How]:
    """The model of a command with `model_arguments`, and how it is to be compiled."""
    return load(given.program), How(tuple(given.input or ()), given.strict, given.passes)


def load(text: str) -> Model:
    """The model that a text names."""
    ending = Path(text).suffix
    if ending in FILES:
        module, extra = FILES[ending]
        if not Path(text).is_file():
            raise Invalid(f"there is no file {text}", hint=f"a model is {FORM}")
        if extra is not None and find_spec(extra) is None:
            raise MissingExtra(extra, f"reading {text}")
        found: Model = import_module(module).load(Path(text))
        return found
    stem, colon, name = text.rpartition(":")
    if not colon or not name:
        if ending == ".py" and Path(text).is_file():
            raise Invalid(f"which function or module of {text}?", hint=f"give {text}:NAME")
        there = "" if Path(text).exists() else "there is no such file, and "
        raise Invalid(f"{text} names no model: {there}it has no :NAME", hint=f"a model is {FORM}")
    if stem.endswith(".py") and not Path(stem).is_file():
        raise Invalid(f"there is no file {stem}", hint=f"a model is {FORM}")
    torch_side("torch", "a program in Python").manual_seed(0)  # weights may be random
    found = import_module(_USER_CODE).found(stem, name)
    return import_module(_TORCH).TorchModel(name, found.program, found.inputs)
