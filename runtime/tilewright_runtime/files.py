"""The files of a package: of a folder, or stored in one zip, `name.twp`.

zipfile would take longer to import than everything here takes to run.
"""

from __future__ import annotations

import os
import stat
from struct import unpack_from

from tilewright_runtime.sentences import PackageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

SUFFIX = ".twp"
MANIFEST = "manifest.json"
SIGNATURE = "manifest.sig"

_MANIFEST_LIMIT = 64 << 20
_TABLE_LIMIT = 1 << 20
_NO_ZIP = "it is neither a folder nor a whole zip"
_DAMAGED = "the table of its zip is damaged"
_PIECE = 16 << 20  # bytes that are read at once
_WIDE = 0xFFFFFFFF  # in the place of a number that has 64 bits elsewhere


class Part:
    """A file of a package: bytes of an open file. `close` it, or use it in a `with`."""

    __slots__ = ("fd", "offset", "own", "size", "where")

    def __init__(self, where: str, fd: int, offset: int, size: int, own: bool):
        self.where, self.fd, self.offset, self.size, self.own = where, fd, offset, size, own

    def __enter__(self) -> Part:
        return self

    def __exit__(self, *problem: object) -> None:
        if self.own:
            os.close(self.fd)

    def read(self) -> bytes:
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        at, left = self.offset, self.size
        while left:
            try:
                piece = os.pread(self.fd, min(left, _PIECE), at)
            except OSError as problem:
                raise PackageError("FILE", self.where, problem.strerror) from None
            if not piece:
                raise PackageError("FILE", self.where, os.strerror(5))
            yield piece
            at += len(piece)
            left -= len(piece)


def is_package(path: str | os.PathLike[str]) -> bool:
    """Whether this is to be a package: a folder, a zip, or a file with that ending."""
    text = os.fspath(path)
    if os.path.isdir(text) or text.endswith(SUFFIX):
        return True
    try:
        with open(text, "rb") as file:
            return file.read(4) == b"PK\x03\x04"
    except OSError:
        return False


class Files:
    """`path` is shown in errors. `close` it."""

    def __init__(self, path: str | os.PathLike[str]):
        self.path = os.fspath(path)
        self._zip: int | None = None
        try:
            facts = os.stat(self.path)
            if not stat.S_ISDIR(facts.st_mode):
                self._zip = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as problem:
            raise PackageError("FILE", self.path, problem.strerror) from None
        if self._zip is not None:
            self._size = facts.st_size
            try:
                self._table = self._read_table(self._zip)
            except PackageError:
                self.close()
                raise

    def close(self) -> None:
        if self._zip is not None:
            os.close(self._zip)
            self._zip = None

    def manifest(self) -> bytes:
        with self.open(MANIFEST) as part:
            if part.size > _MANIFEST_LIMIT:
                raise PackageError("PACKAGE", self.path, "its manifest is too large")
            return part.read()

    def has(self, name: str) -> bool:
        if self._zip is not None:
            return name.encode() in self._table
        return os.path.lexists(os.path.join(self.path, name))

    def names(self) -> list[str]:
        """All files that are there."""
        if self._zip is not None:
            return [name.decode("utf-8", "replace") for name in self._table]
        found = []
        for folder, _, names in os.walk(self.path):
            found += [os.path.relpath(os.path.join(folder, name), self.path) for name in names]
        return sorted(found)

    def open(self, name: str) -> Part:
        """A file by its path in the package."""
        if not _inside(name):
            raise PackageError("OUTSIDE", self.path, name)
        if self._zip is not None:
            return self._in_zip(self._zip, name)
        path = f"{self.path}/{name}"
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as problem:
            raise PackageError("FILE", path, problem.strerror) from None
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            os.close(fd)
            raise PackageError("FILE", path, "it is no file")
        return Part(self.path, fd, 0, facts.st_size, own=True)

    def _in_zip(self, fd: int, name: str) -> Part:
        entry = self._table.get(name.encode())
        if entry is None:
            raise PackageError("FILE", self.path, "a file is missing in it")
        method, size, offset = entry
        if method:
            raise PackageError(
                "PACKAGE", self.path, "its files are compressed, and have to be stored"
            )
        local = os.pread(fd, 30, offset) if offset <= self._size - 30 else b""
        if len(local) < 30 or local[:4] != b"PK\x03\x04":
            raise PackageError("PACKAGE", self.path, _DAMAGED)
        offset += 30 + sum(unpack_from("<HH", local, 26))
        if offset + size > self._size:
            raise PackageError("PACKAGE", self.path, "its zip is truncated")
        return Part(self.path, fd, offset, size, own=False)

    def _read_table(self, fd: int) -> dict[bytes, tuple[int, int, int]]:
        """Method, size and place of every file, by name."""
        count = min(self._size, 22 + 65535)
        tail = os.pread(fd, count, self._size - count)
        at = tail.rfind(b"PK\x05\x06", 0, max(0, len(tail) - 22 + 4))
        if at < 0:
            raise PackageError("PACKAGE", self.path, _NO_ZIP)
        size, start = unpack_from("<II", tail, at + 12)
        if start == _WIDE and at >= 20 and tail[at - 20 : at - 16] == b"PK\x06\x07":
            wide = os.pread(fd, 56, min(unpack_from("<Q", tail, at - 12)[0], self._size))
            if len(wide) < 56 or wide[:4] != b"PK\x06\x06":
                raise PackageError("PACKAGE", self.path, _NO_ZIP)
            size, start = unpack_from("<QQ", wide, 40)
        if size > _TABLE_LIMIT or start > self._size - size:
            raise PackageError("PACKAGE", self.path, _DAMAGED)
        return _entries(os.pread(fd, size, start))


def _entries(table: bytes) -> dict[bytes, tuple[int, int, int]]:
    found: dict[bytes, tuple[int, int, int]] = {}
    at = 0
    while at + 46 <= len(table) and table[at : at + 4] == b"PK\x01\x02":
        (method,) = unpack_from("<H", table, at + 10)
        packed, size, names, extras, comments = unpack_from("<IIHHH", table, at + 20)
        (offset,) = unpack_from("<I", table, at + 42)
        end = at + 46 + names + extras + comments
        if end > len(table):
            break
        extra = table[at + 46 + names : at + 46 + names + extras]
        size, offset = _wide_numbers(extra, packed, size, offset)
        # Of two files with one name both runtimes take the first.
        found.setdefault(table[at + 46 : at + 46 + names], (method, size, offset))
        at = end
    return found


def _wide_numbers(extra: bytes, packed: int, size: int, offset: int) -> tuple[int, int]:
    """Size and place, which stand in a field of their own where they need 64 bits."""
    while len(extra) >= 4:
        kind, length = unpack_from("<HH", extra)
        field, extra = extra[4 : 4 + length], extra[4 + length :]
        if kind != 1:
            continue
        wide = [unpack_from("<Q", field, k)[0] for k in range(0, len(field) - 7, 8)]
        if size == _WIDE and wide:
            size = wide.pop(0)
        if packed == _WIDE and wide:
            wide.pop(0)
        if offset == _WIDE and wide:
            offset = wide.pop(0)
    return size, offset


def _inside(name: str) -> bool:
    """Whether a path of the manifest stays inside of the package."""
    plain = 0 < len(name.encode()) <= 255 and "\\" not in name and "\0" not in name
    return plain and not any(part in ("", ".", "..") for part in name.split("/"))
