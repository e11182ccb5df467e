"""Packages on disk: a folder, or the same files in one stored zip, `name.twp`, in which each file
begins on a page of memory so that it can be mapped."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from tilewright.base.errors import Invalid

SUFFIX = ".twp"
MANIFEST = "manifest.json"
PAGE = 4096
_LOCAL_HEADER = 30
_PADDING = 0xD935  # the field by which other tools align files in a zip


def require_place(path: Path) -> Path:
    """The folder in which a package is to be written; an error if it cannot be."""
    parent = path.absolute().parent
    if not parent.is_dir():
        raise Invalid(f"there is no folder {parent}", hint="make it first")
    if path.is_dir() if path.suffix == SUFFIX else path.exists() and not _is_package(path):
        raise Invalid(f"{path} is there, and no package", hint="give a path of its own")
    return parent


def write_package(path: Path, files: Mapping[str, bytes | Path]) -> None:
    """Writes all files, under another name first: a package is whole or not there. Those that are
    given by a path are moved."""
    parent = require_place(path)
    if path.suffix == SUFFIX:
        handle, made = tempfile.mkstemp(dir=parent, prefix=f".{path.name}.")
        os.close(handle)
        try:
            _write_zip(Path(made), files)
            os.chmod(made, 0o644)
            os.replace(made, path)
        finally:
            Path(made).unlink(missing_ok=True)
        return
    folder = Path(tempfile.mkdtemp(dir=parent, prefix=f".{path.name}."))
    try:
        for name, content in files.items():
            place = folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                shutil.move(content, place)
            else:
                place.write_bytes(content)
        folder.chmod(0o755)
        if path.exists():
            shutil.rmtree(path)
        folder.rename(path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_package(path: Path) -> bool:
    """Is it one that may be replaced, or an empty folder?"""
    if not path.is_dir():
        return False
    try:
        found = json.loads((path / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return not any(path.iterdir())
    return isinstance(found, dict) and {"format", "levels", "weights"} <= found.keys()


def _write_zip(path: Path, files: Mapping[str, bytes | Path]) -> None:
    """The manifest is last in the file's table, as it is written last; nothing has a date."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            size = content.stat().st_size if isinstance(content, Path) else len(content)
            entry.file_size = size  # known before: a file above 4 GiB takes other fields
            assert archive.fp is not None
            at = archive.fp.tell() + _LOCAL_HEADER + len(name.encode())
            wide = 20 if size * 1.05 > zipfile.ZIP64_LIMIT else 0
            room = -(at + wide) % PAGE
            if room:
                room += PAGE if room < 4 else 0
                entry.extra = _PADDING.to_bytes(2, "little") + (room - 4).to_bytes(2, "little")
                entry.extra += bytes(room - 4)
            with archive.open(entry, "w") as member:
                if isinstance(content, Path):
                    with content.open("rb") as source:
                        shutil.copyfileobj(source, member, 1 << 20)
                else:
                    member.write(content)
            entry.extra = b""  # what aligns a file is beside it: the table stays short
