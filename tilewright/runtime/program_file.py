"""Programs in files: what a call of one needs, with weights inside or in a second file next to
it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.base.errors import Invalid
from tilewright.runtime.container import Container, read_container, write_container
from tilewright.runtime.program_data import ProgramData
from tilewright.runtime.records import Blob, read_record, write_record
from tilewright.runtime.signature import Signature

# Grows whenever older versions could not read, or would misread, what is written.
FORMAT = 1
PROGRAM, WEIGHTS = "program", "weights"


@dataclass(frozen=True)
class SavedProgram:
    """The content of a program's file."""

    name: str
    program: ProgramData
    signature: Signature


def write_program(saved: SavedProgram, path: Path, version: str, beside: str | None = None) -> None:
    """Writes a program's file; `beside` is the name of a file in the same folder for its arrays."""
    made = write_record(SavedProgram, saved)
    head: dict[str, Any] = {"tilewright": version, **made.head}
    blobs = made.blobs
    if beside is not None:
        arrays = [made.blobs[k] for k in made.arrays]
        checksum = write_container(path.with_name(beside), WEIGHTS, FORMAT, {}, arrays)
        head["beside"] = {"file": beside, "checksum": checksum, "blobs": made.arrays}
        blobs = [b"" if k in set(made.arrays) else b for k, b in enumerate(made.blobs)]
    write_container(path, PROGRAM, FORMAT, head, blobs)


def read_program(path: Path) -> SavedProgram:
    """The content of a program's file, checked; no code is loaded."""
    found = read_container(path, PROGRAM, FORMAT)
    blobs = found.blobs
    if "beside" in found.head:
        blobs = _with_weights(path, found)
    try:
        return read_record(SavedProgram, found.head, blobs)
    except Invalid as problem:
        raise Invalid(f"{path} is damaged: {problem.what}", hint="save it again") from None


def _with_weights(path: Path, found: Container) -> Sequence[Blob]:
    beside = found.head["beside"]
    name = str(beside["file"])
    if Path(name).name != name:
        raise Invalid(f"{path} names a file in another folder for its weights: {name}")
    weights = path.with_name(name)
    if not weights.is_file():
        raise Invalid(
            f"{path} needs its weights in {weights}, which is not there",
            hint="copy both files, or save the program with its weights inside",
        )
    held = read_container(weights, WEIGHTS, FORMAT)
    if held.checksum != beside["checksum"]:
        raise Invalid(f"{weights} holds other weights than those that {path} was saved with")
    blobs = list(found.blobs)
    for k, blob in zip(beside["blobs"], held.blobs, strict=True):
        blobs[k] = blob
    return blobs
