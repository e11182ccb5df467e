"""What a package holds, read without running or mapping any of it."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tilewright.base.errors import Invalid
from tilewright.driver.export.manifest import FORMAT
from tilewright.driver.export.package import MANIFEST
from tilewright.driver.export.sentences import SENTENCES
from tilewright.link.shared import Shared, read_shared
from tilewright.link.wasm_object import WasmModule, read_wasm_module
from tilewright_runtime.files import SIGNATURE


@dataclass(frozen=True)
class FileInfo:
    """A file of a package. `said`: its bytes by the manifest; `problem`: what is wrong with it."""

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


class Files:
    """The files of a folder or of a stored zip, under the names that a manifest has for them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.zip: zipfile.ZipFile | None = None
        if not path.is_dir():
            try:
                self.zip = zipfile.ZipFile(path)
            except OSError as problem:
                raise Invalid(SENTENCES["FILE"] % (path, problem.strerror)) from None
            except zipfile.BadZipFile:
                why = "it is neither a folder nor a whole zip"
                raise Invalid(SENTENCES["PACKAGE"] % (path, why)) from None

    def sizes(self) -> dict[str, int]:
        if self.zip is not None:
            return {x.filename: x.file_size for x in self.zip.infolist() if not x.is_dir()}
        files = sorted(x for x in self.path.rglob("*") if x.is_file() and not x.is_symlink())
        return {x.relative_to(self.path).as_posix(): x.stat().st_size for x in files}

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        if not inside(name):
            raise Invalid(SENTENCES["OUTSIDE"] % (self.path, name))
        try:
            with (
                self.zip.open(name) if self.zip is not None else (self.path / name).open("rb") as f
            ):
                yield f
        except (KeyError, OSError, zipfile.BadZipFile) as problem:
            why = getattr(problem, "strerror", None) or "a file is missing in it"
            raise Invalid(SENTENCES["FILE"] % (self.path / name, why)) from None

    def read(self, name: str) -> bytes:
        with self.open(name) as file:
            return file.read()

    def checksum(self, name: str) -> str:
        digest = hashlib.blake2b(digest_size=32)
        with self.open(name) as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
        return digest.hexdigest()


def inside(name: Any) -> bool:
    """Does a path of a manifest stay inside of its package?"""
    if not isinstance(name, str) or not name or len(name) > 255 or "\\" in name:
        return False
    return all(part not in ("", ".", "..") for part in name.split("/"))


def read_manifest(files: Files) -> dict[str, Any]:
    if MANIFEST not in files.sizes():
        raise Invalid(SENTENCES["PACKAGE"] % (files.path, "it has no manifest.json"))
    try:
        found = json.loads(files.read(MANIFEST))
    except (ValueError, RecursionError) as problem:
        why = f"its manifest is not JSON: {problem}"
        raise Invalid(SENTENCES["PACKAGE"] % (files.path, why)) from None
    if not isinstance(found, dict) or not isinstance(found.get("format"), int):
        raise Invalid(SENTENCES["PACKAGE"] % (files.path, "its manifest lacks its format"))
    if found["format"] != FORMAT:
        raise Invalid(SENTENCES["FORMAT"] % (files.path, found["format"], FORMAT))
    return found


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
        why = f"its manifest lacks {problem}"
        raise Invalid(SENTENCES["PACKAGE"] % (path, why)) from None


def info(path: str | Path, verify: bool = False) -> Info:
    """Everything that a package says of itself. `verify`: checksums are compared."""
    path = Path(path)
    files = Files(path)
    manifest, sizes = read_manifest(files), files.sizes()
    known = described(manifest, path)
    found, libraries, modules = [], {}, {}
    for name, (purpose, entry) in known.items():
        problem = _problem(files, name, entry, sizes, verify)
        found.append(FileInfo(name, sizes.get(name, 0), purpose, problem))
        if not problem and name.endswith(".so"):
            libraries[name] = read_shared(files.read(name), name)
        elif not problem and name.endswith(".wasm"):
            modules[name] = read_wasm_module(files.read(name), name)
    others = {MANIFEST: "manifest", SIGNATURE: "signature of the manifest"}
    for name, size in sizes.items():
        if name not in known:
            found.append(FileInfo(name, size, others.get(name, "not in the manifest")))
    return Info(path, manifest, tuple(found), libraries, modules, verify)


def _problem(
    files: Files, name: str, entry: Mapping[str, Any], sizes: Mapping[str, int], verify: bool
) -> str:
    if not inside(name):
        return SENTENCES["OUTSIDE"] % (files.path, name)
    if name not in sizes:
        return SENTENCES["FILE"] % (files.path / name, "a file is missing in it")
    if sizes[name] != entry.get("bytes"):
        return SENTENCES["SIZE"] % (files.path, name, sizes[name], entry.get("bytes") or 0)
    if verify and files.checksum(name) != entry.get("blake2b"):
        return SENTENCES["ALTERED"] % (files.path, name)
    return ""
