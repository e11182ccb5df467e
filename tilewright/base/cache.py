"""A content-addressed disk cache: what was compiled once is read back.

An entry is one file, `<kind>/<hash[:2]>/<hash>.<version>`: a header line with a checksum, then the
payload. Names come from content only, so the directory can be moved or shared. Writes go to a
temporary file that is renamed into place: of two writers one wins and both are right. Nothing that
goes wrong with the cache is an error; every miss has a reason.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import threading
import time
from collections.abc import Iterable
from functools import cache as memoize
from pathlib import Path

from . import knobs
from .errors import CorruptCache
from .events import Log

_MAGIC = b"tilewright-cache"
_TEMPORARY = ".writing-"
_ABANDONED_AFTER_S = 3600
# Evicting below the limit keeps the next writes from scanning the directory again.
_SAMPLED = 16  # folders of a kind
_EVICT_TO = 0.9
# Bytes in the directories that this process writes to.
_sizes: dict[Path, int] = {}
_sizes_lock = threading.Lock()


@memoize
def code_version() -> str:
    """A fingerprint of this package: an entry made by other code or rules is another version."""
    # Plain strings: a Path for each of hundreds of files would take longer than reading them.
    root = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    files = {
        os.path.relpath(folder, root): sorted(
            name for name in names if name.endswith((".py", ".json"))
        )
        for folder, _, names in os.walk(root)
    }
    digest = hashlib.sha256()
    for folder, names in sorted(files.items()):
        for name in names:
            digest.update(f"{folder}/{name}\0".encode())
            with open(os.path.join(root, folder, name), "rb") as file:
                digest.update(file.read() + b"\0")
    return digest.hexdigest()[:16]


class Cache:
    """One cache directory. `last_miss` says why the last `get` of this object found nothing."""

    def __init__(
        self,
        directory: Path,
        *,
        version: str | None = None,
        limit_bytes: int = 2 << 30,
        enabled: bool = True,
        log: Log | None = None,
    ):
        self.directory = directory
        self.version = code_version() if version is None else version
        self.limit_bytes = limit_bytes
        self.enabled = enabled
        self.last_miss: str | None = None
        self._log = Log() if log is None else log
        self._lock = threading.Lock()
        self._warned = False

    @classmethod
    def from_knobs(cls, log: Log | None = None) -> Cache:
        """The cache that TILEWRIGHT_CACHE, _CACHE_DIR and _CACHE_LIMIT_MB describe."""
        return cls(
            knobs.cache_dir.get(),
            limit_bytes=knobs.cache_limit_mb.get() << 20,
            enabled=knobs.cache.get(),
            log=log,
        )

    def get(self, kind: str, key: str | bytes) -> bytes | None:
        """The payload stored under this key, or None."""
        if not self.enabled:
            return self._miss(kind, "the cache is disabled")
        path = self._path(kind, key)
        try:
            payload = _unpack(path.read_bytes(), path)
        except FileNotFoundError:
            return self._miss(kind, self._why_absent(path))
        except OSError as problem:
            return self._miss(kind, f"unreadable: {problem.strerror}")
        except CorruptCache as problem:
            with contextlib.suppress(OSError):
                path.unlink()
            return self._miss(kind, f"corrupt: {problem.what}")
        with contextlib.suppress(OSError):
            os.utime(path)  # Eviction removes what was used longest ago.
        self._log.add("cache", f"hit: {kind}", detail=True, entry=path.name)
        return payload

    def put(self, kind: str, key: str | bytes, payload: bytes) -> bool:
        """Store a payload; False when the directory cannot be written (reported once, as an
        event)."""
        if not self.enabled:
            return False
        path = self._path(kind, key)
        data = _pack(payload)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, data)
        except OSError as problem:
            self._warn(problem)
            return False
        self._grow(len(data))
        return True

    def where(self, kind: str, key: str | bytes) -> Path | None:
        """The file of an entry, if there is one."""
        path = self._path(kind, key)
        return path if self.enabled and path.is_file() else None

    def size(self) -> int:
        """Bytes of all entries."""
        return sum(size for _, size, _ in self._entries())

    def kinds(self) -> dict[str, tuple[int, int]]:
        """Of each kind of entries, how many there are and their bytes."""
        found: dict[str, tuple[int, int]] = {}
        for _, size, path in sorted(self._entries(), key=lambda e: e[2]):
            kind = path.relative_to(self.directory).parts[0]
            count, total = found.get(kind, (0, 0))
            found[kind] = count + 1, total + size
        return found

    def clear(self) -> None:
        """Remove every entry."""
        with _sizes_lock:
            _sizes[self.directory] = self._evict(0)

    def _path(self, kind: str, key: str | bytes) -> Path:
        content = key.encode() if isinstance(key, str) else key
        name = hashlib.sha256(kind.encode() + b"\0" + content).hexdigest()
        return self.directory / kind / name[:2] / f"{name}.{self.version}"

    def _miss(self, kind: str, reason: str) -> None:
        self.last_miss = reason
        self._log.add("cache", f"miss: {kind}: {reason}", detail=True)

    def _why_absent(self, path: Path) -> str:
        with contextlib.suppress(OSError):
            for other in os.listdir(path.parent):
                if other.startswith(f"{path.stem}."):
                    return "stored by another version"
        return "absent"

    def _warn(self, problem: OSError) -> None:
        with self._lock:
            first, self._warned = not self._warned, True
        if first:
            reason = problem.strerror or str(problem)
            self._log.add(
                "cache",
                f"the cache directory {self.directory} cannot be written ({reason}); "
                "going on without it. Set TILEWRIGHT_CACHE_DIR to a writable directory",
            )

    def _grow(self, amount: int) -> None:
        with _sizes_lock:
            # The first write measures what earlier processes left; later ones only add.
            known = _sizes.get(self.directory)
            size = self._about() if known is None else known + amount
            if size > self.limit_bytes:
                size = self._evict(int(self.limit_bytes * _EVICT_TO))
            _sizes[self.directory] = size

    def _about(self) -> int:
        """The size by a sample: names are hashes, so the folders of a kind hold about the same. To
        count a hundred thousand files would take longer than to compile a kernel."""
        total = 0.0
        for kind in _folders(self.directory):
            folders = _folders(kind)
            sample = folders[:: max(1, len(folders) // _SAMPLED)]
            sampled = sum(map(_bytes_in, sample))
            total += sampled * len(folders) / max(1, len(sample))
        return int(total)

    def _evict(self, allowed: int) -> int:
        """Remove the least recently used entries until at most `allowed` bytes stay."""
        entries = sorted(self._entries())
        total = sum(size for _, size, _ in entries)
        abandoned = time.time() - _ABANDONED_AFTER_S
        for used, size, path in entries:
            temporary = path.name.startswith(_TEMPORARY)
            if temporary and used > abandoned:
                continue
            if not temporary and total <= allowed:
                continue
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size
        return total

    def _entries(self) -> list[tuple[float, int, Path]]:
        """(last use, size, path) of every file; files that are deleted meanwhile are left out. What
        lies beside the folders of kinds (records, numbers of the machine) was measured, and is no
        entry."""
        found = []
        for folder, _, names in os.walk(self.directory):
            for name in names:
                path = Path(folder, name)
                if path.parent == self.directory and not name.startswith(_TEMPORARY):
                    continue
                with contextlib.suppress(OSError):
                    status = path.stat()
                    found.append((status.st_mtime, status.st_size, path))
        return found


def _folders(path: Path | str) -> list[str]:
    try:
        with os.scandir(path) as found:
            return sorted(x.path for x in found if x.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _bytes_in(folder: str) -> int:
    total = 0
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        for x in found:
            with contextlib.suppress(OSError):
                total += x.stat(follow_symlinks=False).st_size
    return total


def _pack(payload: bytes) -> bytes:
    checksum = hashlib.sha256(payload).hexdigest().encode()
    return b"%s %s %d\n%s" % (_MAGIC, checksum, len(payload), payload)


def _unpack(data: bytes, path: Path) -> bytes:
    header, newline, payload = data.partition(b"\n")
    fields = header.split(b" ")
    if not newline or len(fields) != 3 or fields[0] != _MAGIC:
        raise CorruptCache("the header is not one of ours", where=path)
    if fields[2] != b"%d" % len(payload):
        raise CorruptCache("the entry is cut short or too long", where=path)
    if hashlib.sha256(payload).hexdigest().encode() != fields[1]:
        raise CorruptCache("the checksum does not match", where=path)
    return payload


def write_atomically(path: Path, data: bytes) -> None:
    """A file that others see whole or not at all."""
    handle, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """On disk when this returns, in one write: what another process appends at the same time stands
    before or after. A line that was left half-written is ended first."""
    data = "".join(line + "\n" for line in lines).encode()
    if not data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab+") as file:
        end = file.seek(0, os.SEEK_END)
        if end:
            file.seek(end - 1)
            data = data if file.read(1) == b"\n" else b"\n" + data
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
