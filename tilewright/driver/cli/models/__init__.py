"""The one way in which commands name a model and its inputs.

A model is FILE.py:NAME or PACKAGE.MODULE:NAME (see `user_code.py`), or a file of one of the KINDS.
Each kind is a subclass of `Model`, in a module that is loaded when such a model is named.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from tilewright.base.errors import Invalid, MissingExtra
from tilewright.driver.api import torch_side
from tilewright.driver.cli.models.inputs import INPUT
from tilewright.driver.cli.models.model import How, Model
from tilewright.runtime.container import is_container
from tilewright.runtime.program_file import PROGRAM

_HERE = "tilewright.driver.cli.models"
_TORCH = f"{_HERE}.torch_models"
_USER_CODE = f"{_HERE}.user_code"


@dataclass(frozen=True)
class Kind:
    """A kind of files or folders: how one is known, the module with its `load(path) -> Model`, and
    the extra that this needs."""

    fits: Callable[[Path], bool]
    module: str
    extra: str | None = None


def _ending(text: str) -> Callable[[Path], bool]:
    return lambda path: path.suffix == text


# Another kind is one more line; the first that fits is taken.
KINDS = (
    Kind(lambda path: is_container(path, PROGRAM), f"{_HERE}.saved_models"),
    Kind(_ending(".pt2"), _TORCH, "torch"),
    Kind(_ending(".onnx"), f"{_HERE}.onnx_models", "onnx"),
    Kind(_ending(".tw"), f"{_HERE}.graph_models"),
)
FORM = (
    "FILE.py:NAME or PACKAGE.MODULE:NAME (a function, a torch.nn.Module, or a function without "
    "parameters that returns one, alone or with its inputs), FILE.pt2 (torch.export), FILE.onnx, "
    "FILE.tw (the text of a graph), or a program that tw.save wrote"
)
NOTES = (
    "Inputs come from --input; without, from the model itself: the variable or function "
    "NAME_inputs or inputs beside it, what the function returns with it, the examples of a .pt2, "
    "or random values of the types that other files declare."
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
    path = Path(text)
    kind = next((k for k in KINDS if k.fits(path)), None)
    if kind is not None:
        if not path.exists():
            raise Invalid(f"there is no file {text}", hint=f"a model is {FORM}")
        if kind.extra is not None and find_spec(kind.extra) is None:
            raise MissingExtra(kind.extra, f"reading {text}")
        found: Model = import_module(kind.module).load(path)
        return found
    stem, colon, name = text.rpartition(":")
    if not colon or not name:
        if path.suffix == ".py" and path.is_file():
            raise Invalid(f"which function or module of {text}?", hint=f"give {text}:NAME")
        there = "" if path.exists() else "there is no such file, and "
        raise Invalid(f"{text} names no model: {there}it has no :NAME", hint=f"a model is {FORM}")
    if stem.endswith(".py") and not Path(stem).is_file():
        raise Invalid(f"there is no file {stem}", hint=f"a model is {FORM}")
    torch_side("torch", "a program in Python").manual_seed(0)  # weights may be random
    users = import_module(_USER_CODE).found(stem, name)
    return import_module(_TORCH).TorchModel(name, users.program, users.inputs)
