"""`tw.export`: a model to a package, which runs without Python, torch or a compiler."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tilewright import targets
from tilewright.base.errors import Invalid, MissingExtra, Unsupported
from tilewright.driver.api import torch_side
from tilewright.driver.export.levels import Level, compiled, linked, pool_file, pool_library
from tilewright.driver.export.manifest import file_of, manifest_of, text_of
from tilewright.driver.export.model import Model
from tilewright.driver.export.package import MANIFEST, require_place, write_package
from tilewright.driver.export.sentences import header
from tilewright.driver.export.weights import WeightsFile
from tilewright.ir.target import Target
from tilewright.targets.systems import system_of

HEADER = "include/tilewright.h"
_OF_TORCH = "tilewright.driver.export.of_torch"
_OF_ONNX = "tilewright.driver.export.of_onnx"
_SESSION = "tilewright.driver.onnx.session"


@dataclass(frozen=True)
class Exported:
    """What was written, for those who look."""

    path: Path
    manifest: dict[str, Any]
    levels: tuple[Level, ...]


def export(
    model: Any,
    *examples: Any,
    path: str | Path,
    target: str | Target | Sequence[str | Target] = "host",
    dynamic: Any = None,
    values: Mapping[str, Any] | None = None,
    winograd: bool = True,
    weights: str = "same",
    layout: str = "flat",
    name: str | None = None,
) -> Exported:
    """Write a model as a package: native code, weights and a manifest, for C, Python and others.

    `model` is a `torch.nn.Module` or a function with example inputs, what `torch.export` made, the
    path of a `.pt2` or `.onnx` file, or what `tw.onnx.load` gave. `path` is a folder, or a file
    `name.twp` with the same inside. Several targets make one package that runs the best code that
    a machine has features for.

    `dynamic` is torch.export's `dynamic_shapes`: those sizes stay symbolic, within the bounds of
    their `Dim`s. Of an ONNX model it has numbers or bounds of symbolic dims, by name, and `values`
    are inputs that are always the same. `winograd=False` makes weights smaller and convolutions
    slower. `weights="f16"` or `"bf16"` stores them rounded to 16 bits; calls read a copy in 32,
    which is made when the package is opened. `layout="safetensors"` has the file of weights be one
    that the library of that name reads.
    """
    chosen, path = _targets(target), Path(path)
    parent, held = require_place(path), WeightsFile(weights, layout)
    found = model_of(model, examples, dynamic, values, name)
    made = [compiled(found, t, held, winograd) for t in chosen]
    levels = tuple(linked(x, held) for x in made)
    pools: dict[str, tuple[str, bytes]] = {}
    for x in levels:
        if x.machine not in pools and not x.module:
            pools[x.machine] = pool_file(x), pool_library(x.target)
    with tempfile.TemporaryDirectory(dir=parent, prefix=f".{path.name}.") as folder:
        stored = Path(folder) / held.file
        described = held.described(held.write(stored))
        if any(x.module for x in levels):
            with stored.open("rb") as file:
                described["sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
        options = {"winograd": winograd, "weights": weights, "layout": layout}
        manifest = manifest_of(found, levels, pools, described, options)
        content: dict[str, bytes | Path] = {x.file: x.code for x in levels}
        content |= dict(pools.values())
        if pools:
            interface = c_header().encode()
            manifest["header"] = file_of(HEADER, interface)
            content[HEADER] = interface
        content |= {held.file: stored, MANIFEST: text_of(manifest)}
        write_package(path, content)
    return Exported(path, manifest, levels)


def c_header() -> str:
    """The C interface of packages, one file."""
    return header((files("tilewright.driver.export") / "tilewright.h").read_text())


def _targets(given: str | Target | Sequence[str | Target]) -> list[Target]:
    """The best first: what needs most of a machine."""
    several = [given] if isinstance(given, str | Target) else list(given)
    if not several:
        raise Invalid("a package needs a target", hint='target="host", or a list of names')
    found = [x if isinstance(x, Target) else targets.get(x) for x in several]
    names = [x.name for x in found]
    for x in found:
        if names.count(x.name) > 1:
            raise Invalid(f"the target {x.name} is named twice")
        if x.grid is not None:
            raise Unsupported(f"{x.name} is a GPU, and packages are for processors")
        system_of(x).require_linker()
    return sorted(found, key=lambda x: -len(x.features))


def model_of(
    given: Any,
    examples: Sequence[Any],
    dynamic: Any,
    values: Mapping[str, Any] | None,
    name: str | None,
) -> Model:
    """The model of whatever `export` takes."""
    is_file = isinstance(given, str | Path)
    if (is_file and Path(given).suffix == ".onnx") or type(given).__module__ == _SESSION:
        if examples:
            raise Invalid("an ONNX model says what it takes", hint="leave out the examples")
        return _onnx_side().model_of_onnx(given, dynamic, values, name)
    if values is not None:
        raise Invalid("values= are for ONNX models", hint="leave it out")
    if is_file and Path(given).suffix != ".pt2":
        raise Invalid(
            f"{given} is no model that can be exported", hint="give a .pt2 or an .onnx file"
        )
    return torch_side(_OF_TORCH, "tw.export").model_of_torch(given, examples, dynamic, name)


def _onnx_side() -> Any:
    if find_spec("onnx") is None:
        raise MissingExtra("onnx", "exporting ONNX models")
    return import_module(_OF_ONNX)
