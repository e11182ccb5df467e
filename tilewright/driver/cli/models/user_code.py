"""Programs in the user's Python files: `FILE.py:NAME`, or `PACKAGE.MODULE:NAME`.

NAME is a function or module, or a class, which is made without arguments. A function without
parameters makes the program: it returns it, or it and its inputs. Inputs are otherwise the
variable, or what the function returns, NAME_inputs or inputs.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tilewright.base.errors import Invalid
from tilewright.driver.cli.problems import UserError


@dataclass(frozen=True)
class Found:
    program: Any
    inputs: Any = None


def found(stem: str, name: str) -> Found:
    """The object of a file or module, and its inputs where they are known."""
    module = _file(Path(stem)) if stem.endswith(".py") else _module(stem)
    if not hasattr(module, name):
        public = [n for n, x in vars(module).items() if callable(x) and not n.startswith("_")]
        raise Invalid(
            f"{stem} has no {name}", hint=f"it has {', '.join(public)}" if public else None
        )
    program, own = getattr(module, name), f"{name}_inputs"
    if isinstance(program, type):
        program = _called(program, stem)
    if not callable(program):
        raise Invalid(f"{name} of {stem} is a {type(program).__name__}, which cannot be called")
    if not hasattr(module, own) and inspect.isfunction(program) and not _parameters(program):
        made = _called(program, stem)
        if isinstance(made, tuple) and len(made) == 2 and callable(made[0]):
            return Found(*made)
        if not callable(made):  # a program that takes nothing
            return Found(program, ())
        program = made
    inputs = getattr(module, own, getattr(module, "inputs", None))
    return Found(program, _called(inputs, stem) if inspect.isfunction(inputs) else inputs)


def _parameters(function: Callable[..., Any]) -> bool:
    return bool(inspect.signature(function).parameters)


def _file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as problem:
        raise _raised(problem, str(path)) from problem
    return module


def _module(name: str) -> ModuleType:
    """As `python -m` finds modules: from the current folder too."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise Invalid(
            f"{name} is neither a file that ends in .py nor the name of a module",
            hint="such as model.py:net or package.module:net",
        )
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as problem:
        if problem.name is not None and f"{name}.".startswith(f"{problem.name}."):
            raise Invalid(
                f"there is no module {problem.name}", hint="a file is FILE.py:NAME"
            ) from None
        raise _raised(problem, name) from problem
    except (Exception, SystemExit) as problem:
        raise _raised(problem, name) from problem


def _called(function: Callable[[], Any], stem: str) -> Any:
    try:
        return function()
    except (Exception, SystemExit) as problem:
        raise _raised(problem, stem) from problem


def _raised(problem: BaseException, stem: str) -> UserError:
    return UserError(f"{Path(stem).name} raised {type(problem).__name__}: {problem}")
