"""Files that Tilewright writes: a line that says what it is, a checksum, JSON, and blobs of bytes.

    tilewright program 1\\n
    sha256 of all that follows, in hexadecimal\\n
    {"size": bytes of the file, "blobs": [[offset, size], …], …}\\n
    blobs, each at a multiple of 64 bytes from the beginning of the file

`docs/program-files.md` describes the format. What is read is checked before any of it is used.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.base.errors import Invalid
from tilewright.runtime.memory import ALIGN
from tilewright.runtime.records import Blob

_MAGIC = b"tilewright "
_DIGITS = 64  # of a checksum


@dataclass(frozen=True)
class Container:
    """The content of a file. `blobs` are views of its bytes."""

    head: dict[str, Any]
    blobs: Sequence[Blob]
    checksum: str


def is_container(path: Path, kind: str) -> bool:
    """Does a file begin as one of this kind does?"""
    begin = _MAGIC + f"{kind} ".encode()
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(begin)) == begin


def packed(head: dict[str, Any], blobs: Sequence[Blob], before: int = 0) -> list[Blob]:
    """JSON and blobs as pieces to be written one after the other, after so many bytes."""
    places: list[tuple[int, int]] = []
    room = 0
    # The offsets stand in the JSON, whose length they change: they are counted from where the
    # first blob can be at the earliest, and that place is found last.
    for b in blobs:
        places.append((room, len(b)))
        room += -(-len(b) // ALIGN) * ALIGN
    start = 0
    while True:
        table = [[start + at, size] for at, size in places]
        end = max([start, *(at + size for at, size in table)])
        line = json.dumps({"size": end, "blobs": table, **head}).encode() + b"\n"
        least = -(-(before + len(line)) // ALIGN) * ALIGN
        if least <= start:
            break
        start = least
    out: list[Blob] = [line]
    at = before + len(line)
    for (first, size), b in zip(table, blobs, strict=True):
        out += [bytes(first - at), b]
        at = first + size
    out.append(bytes(end - at))
    return out


def unpacked(data: bytes | mmap.mmap, before: int = 0) -> tuple[dict[str, Any], list[Blob]]:
    """The inverse of `packed`, of bytes whose first `before` are skipped."""
    view = memoryview(data)
    end = data.find(b"\n", before)
    if end < 0:
        raise ValueError("no line of JSON")
    head = json.loads(data[before:end])
    table = head.pop("blobs")
    if head.pop("size") != len(view) or any(at < 0 or at + n > len(view) for at, n in table):
        raise ValueError("blobs lie outside")
    return head, [view[at : at + n] for at, n in table]


def write_container(
    path: Path, kind: str, format: int, head: dict[str, Any], blobs: Sequence[Blob]
) -> str:
    """Writes the file at once or not at all; gives its checksum."""
    first = _first_line(kind, format)
    pieces = packed(head, blobs, len(first) + _DIGITS + 1)
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    checksum = digest.hexdigest()
    temporary = path.with_name(f".writing-{os.getpid()}-{threading.get_ident()}-{path.name}")
    try:
        try:
            with open(temporary, "xb") as f:
                f.writelines([first, checksum.encode() + b"\n", *pieces])
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as problem:
        raise Invalid(f"{path} cannot be written: {problem.strerror}") from None
    return checksum


def _first_line(kind: str, format: int) -> bytes:
    return _MAGIC + f"{kind} {format}\n".encode()


def read_container(path: Path, kind: str, format: int) -> Container:
    """The file's content, mapped into memory; a sentence where it is not as it was written."""
    try:
        with open(path, "rb") as f:
            size = os.fstat(f.fileno()).st_size
            data = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    except OSError as problem:
        raise Invalid(f"{path} cannot be read: {problem.strerror}") from None
    view = memoryview(data)
    line = bytes(view[:64]).partition(b"\n")[0]
    words = line.split()
    if not line.startswith(_MAGIC) or len(words) != 3 or not words[2].isdigit():
        raise Invalid(f"{path} is no {kind} of Tilewright's", hint="write one with tw.save")
    found, version = words[1].decode(errors="replace"), int(words[2])
    if found != kind:
        raise Invalid(f"{path} holds a {found}, not a {kind}")
    if version != format:
        raise Invalid(
            f"{path} has format {version}, and this version of Tilewright reads format {format}",
            hint="save it again with this version, or load it with the one that wrote it",
        )
    start = len(line) + 1
    head_at = start + _DIGITS + 1
    said = bytes(view[start : head_at - 1]).decode(errors="replace")
    if hashlib.sha256(view[head_at:]).hexdigest() != said:
        raise _altered(path, data, head_at)
    try:
        head, blobs = unpacked(data, head_at)
    except (ValueError, KeyError, TypeError) as problem:
        raise Invalid(f"{path} is damaged: {problem}", hint="save it again") from None
    return Container(head, blobs, said)


def _altered(path: Path, data: bytes | mmap.mmap, head_at: int) -> Invalid:
    """Is it cut off, or changed?"""
    try:
        line = data[head_at : max(0, data.find(b"\n", head_at))]
        missing = int(json.loads(line)["size"]) - len(data)
    except (ValueError, KeyError, TypeError):
        missing = 0
    what = f"is cut off: {missing:,} bytes are missing" if missing > 0 else "was changed"
    return Invalid(
        f"{path} {what} (its checksum is not that of its content)",
        hint="copy it again, or save it again",
    )
