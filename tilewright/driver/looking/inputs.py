"""What the command line is given: a program in a file, and inputs to try it on."""

from __future__ import annotations

import importlib.util
import re
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tilewright import ops  # noqa: F401  graph texts name operators
from tilewright.base.errors import Invalid
from tilewright.ir.node import Graph
from tilewright.ir.text import parse_graph
from tilewright.ir.types import TENSOR_DTYPES, TensorType

FORM = "FILE.py:NAME (a function or torch.nn.Module) or FILE.tw (the text of a graph)"


class UserError(Invalid):
    """The user's file raised something while it was loaded or run."""


@dataclass(frozen=True)
class Loaded:
    """A torch program or a graph, and the inputs its file names."""

    name: str
    program: Any
    inputs: Any = None

    @property
    def graph(self) -> Graph | None:
        return self.program if isinstance(self.program, Graph) else None


def load(text: str) -> Loaded:
    """The program that `FILE.py:NAME` or `FILE.tw` names."""
    file, colon, name = text.rpartition(":")
    if not colon or name.endswith((".py", ".tw")):
        file, name = text, ""
    path = Path(file)
    if not path.is_file():
        raise Invalid(f"there is no file {file}", hint=f"give {FORM}")
    if path.suffix == ".tw":
        try:
            graph = parse_graph(path.read_text())
        except Invalid as problem:
            problem.where = f"{path}" + (f", {problem.where}" if problem.where else "")
            raise
        return Loaded(graph.name, graph)
    if not name:
        raise Invalid(f"which function or module of {file}?", hint=f"give {FORM}")
    module = _imported(path)
    if not hasattr(module, name):
        public = [n for n, x in vars(module).items() if callable(x) and not n.startswith("_")]
        raise Invalid(
            f"{file} has no {name}", hint=f"it has {', '.join(public)}" if public else None
        )
    program = getattr(module, name)
    if isinstance(program, type):
        program = _called(program, path)
    if not callable(program):
        raise Invalid(f"{name} of {file} is a {type(program).__name__}, which cannot be called")
    inputs = getattr(module, f"{name}_inputs", getattr(module, "inputs", None))
    return Loaded(name, program, _called(inputs, path) if callable(inputs) else inputs)


def _imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as problem:
        raise _user_error(problem, path) from problem
    return module


def _called(function: Any, path: Path) -> Any:
    try:
        return function()
    except Exception as problem:
        raise _user_error(problem, path) from problem


def _user_error(problem: Exception, path: Path) -> UserError:
    frames = traceback.extract_tb(problem.__traceback__)
    at = [f for f in frames if Path(f.filename).resolve() == path.resolve()]
    where = f"{path}:{at[-1].lineno}" if at else str(path)
    return UserError(f"{path.name} raised {type(problem).__name__}: {problem}", where=where)


_TENSOR = re.compile(r"(\w+)\[([\d,\s]*)\]\Z")


def parse_type(text: str) -> TensorType:
    """`f32[8,16]` on the command line."""
    found = _TENSOR.match(text.strip())
    if found is None or found.group(1) not in TENSOR_DTYPES:
        raise Invalid(
            f"{text!r} does not say an input",
            hint=f"write it as f32[8,16]; dtypes are {', '.join(TENSOR_DTYPES)}",
        )
    shape = tuple(int(d) for d in found.group(2).split(",") if d.strip())
    return TensorType(TENSOR_DTYPES[found.group(1)], shape)
