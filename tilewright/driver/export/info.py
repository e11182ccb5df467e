"""What a package holds, read without running or mapping any of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.base.errors import Invalid
from tilewright.link.shared import Shared
from tilewright.link.wasm_object import WasmModule, read_wasm_module
from tilewright.targets.systems import LINUX, OTHERS
from tilewright_runtime import PackageError
from tilewright_runtime.files import MANIFEST, SIGNATURE, Files
from tilewright_runtime.manifest import parsed
from tilewright_runtime.verify import compare


@dataclass(frozen=True)
class FileInfo:
    """A file of a package. `problem`: what is wrong with it."""

    name: str
    bytes: int
    purpose: str
    problem: str = ""


@dataclass(frozen=True)
class Info:
    path: Path
    manifest: Mapping[str, Any]
    files: tuple[FileInfo, ...]
    libraries: Mapping[str, Shared]  # by file
    modules: Mapping[str, WasmModule]
    verified: bool

    @property
    def problems(self) -> list[str]:
        return [f.problem for f in self.files if f.problem]


def described(manifest: Mapping[str, Any], path: Path) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """The files that a manifest describes: what each is for, and its entry."""
    try:
        found = [(f"code for {x['target']}", x) for x in manifest["levels"]]
        found += [(f"threads on {arch}", x) for arch, x in manifest["pool"].items()]
        found.append(("weights", manifest["weights"]))
        if "header" in manifest:  # modules of WebAssembly need none
            found.append(("C interface", manifest["header"]))
        return {x["file"]: (purpose, x) for purpose, x in found}
    except (KeyError, TypeError, AttributeError) as problem:
        raise PackageError("PACKAGE", path, f"its manifest lacks {problem}") from None


def info(path: str | Path, verify: bool = False) -> Info:
    """Everything that a package says of itself. `verify`: checksums are compared."""
    path = Path(path)
    try:
        files = Files(path)
        try:
            return _info(path, files, verify)
        finally:
            files.close()
    except PackageError as problem:
        raise Invalid(str(problem)) from None


def _info(path: Path, files: Files, verify: bool) -> Info:
    manifest = parsed(files.path, files.manifest())
    known = described(manifest, path)
    found, libraries, modules = [], {}, {}
    for name, (purpose, entry) in known.items():
        size, problem = _looked_at(files, name, entry, verify)
        found.append(FileInfo(name, size, purpose, problem))
        system = next((s for s in (LINUX, *OTHERS) if name.endswith(f".{s.suffix}")), None)
        if not problem and system is not None:
            libraries[name] = system.read(_content(files, name), name)
        elif not problem and name.endswith(".wasm"):
            modules[name] = read_wasm_module(_content(files, name), name)
    others = {MANIFEST: "manifest", SIGNATURE: "signature of the manifest"}
    for name in files.names():
        if name not in known:
            size, problem = _looked_at(files, name, None, verify)
            purpose = others.get(name, "not in the manifest")
            found.append(FileInfo(name, size, purpose, problem))
    return Info(path, manifest, tuple(found), libraries, modules, verify)


def _looked_at(
    files: Files, name: str, entry: Mapping[str, Any] | None, verify: bool
) -> tuple[int, str]:
    """The bytes of a file, and what is wrong with it by its entry in the manifest."""
    size = 0
    try:
        with files.open(name) as part:
            size = part.size
        if entry is not None:
            compare(files, name, entry, sums=verify)
    except PackageError as problem:
        return size, str(problem)
    return size, ""


def _content(files: Files, name: str) -> bytes:
    with files.open(name) as part:
        return part.read()
