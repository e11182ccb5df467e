"""`triton.runtime.cache`: files by key and name, for libraries that store files of their own next
to Triton's. Our kernels are cached elsewhere (base/cache.py)."""

from __future__ import annotations

import base64
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from tilewright.triton import knobs


class CacheManager:
    """Stores files under a key."""

    def __init__(self, key: str, override: bool = False, dump: bool = False):
        self.key = key

    def get_file(self, filename: str) -> str | None:
        raise NotImplementedError

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        raise NotImplementedError

    def get_group(self, filename: str) -> dict[str, str] | None:
        raise NotImplementedError

    def put_group(self, filename: str, group: dict[str, str]) -> str:
        raise NotImplementedError


class FileCacheManager(CacheManager):
    """A folder per key. What one process writes, others see whole or not at all."""

    def __init__(self, key: str, override: bool = False, dump: bool = False):
        super().__init__(key, override, dump)
        part = "triton-override" if override else "triton-dump" if dump else "triton"
        self.cache_dir = os.path.join(knobs.cache.dir, part, key)
        if not override:  # what overrides is there, or nothing does
            os.makedirs(self.cache_dir, exist_ok=True)

    def _path(self, filename: str) -> Path:
        return Path(self.cache_dir, filename)

    def has_file(self, filename: str) -> bool:
        return self._path(filename).exists()

    def get_file(self, filename: str) -> str | None:
        return str(self._path(filename)) if self.has_file(filename) else None

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        path = self._path(filename)
        path.parent.mkdir(parents=True, exist_ok=True)
        content = bytes(data) if isinstance(data, (bytes, bytearray)) else str(data).encode()
        handle, written = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(written, path)
        return str(path)

    def get_group(self, filename: str) -> dict[str, str] | None:
        """The files of a group by name, if all of them are there."""
        try:
            found = json.loads(self._path(_group(filename)).read_text())
        except (OSError, ValueError):
            return None
        return found if all(map(os.path.exists, found.values())) else None

    def put_group(self, filename: str, group: dict[str, str]) -> str:
        return self.put(json.dumps(group), _group(filename), binary=False)


def _group(filename: str) -> str:
    return f"group-{filename}.json"


def get_cache_manager(key: str) -> CacheManager:
    return FileCacheManager(_base32(key))


def get_override_manager(key: str) -> CacheManager:
    return FileCacheManager(_base32(key), override=True)


def get_dump_manager(key: str) -> CacheManager:
    return FileCacheManager(_base32(key), dump=True)


def default_cache_dir() -> str:
    return knobs.cache.dir


def _base32(key: str) -> str:
    """A key in hexadecimal, shorter."""
    return base64.b32encode(bytes.fromhex(key)).decode().rstrip("=")
