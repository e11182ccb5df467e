"""A package's files against its manifest, without running or mapping any of them."""

from __future__ import annotations

import os

from tilewright_runtime.checksums import Blake2bp
from tilewright_runtime.files import MANIFEST, SIGNATURE, Files
from tilewright_runtime.manifest import parsed
from tilewright_runtime.package import blake2b
from tilewright_runtime.sentences import PackageError
from tilewright_runtime.signature import require_signature

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any


def verify(path: str | os.PathLike[str], public_key: object = None) -> list[str]:
    """The names of all files, each of which is as the manifest says; with a key, the manifest as
    it was signed. A file that the manifest does not list is refused too."""
    files = Files(path)
    try:
        text = files.manifest()
        if public_key is not None:
            require_signature(files, text, public_key)
        manifest = parsed(files.path, text)
        known = dict(_listed(manifest))
        for name, about in known.items():
            compare(files, name, about)
        for name in files.names():
            if name not in known and name not in (MANIFEST, SIGNATURE):
                why = f"it holds {name}, which its manifest does not list"
                raise PackageError("PACKAGE", files.path, why)
    finally:
        files.close()
    return sorted(known)


def _listed(value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Whatever in a manifest is a file with its checksum."""
    if isinstance(value, dict):
        if isinstance(value.get("file"), str) and isinstance(value.get("blake2b"), str):
            yield value["file"], value
        else:
            for inner in value.values():
                yield from _listed(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _listed(inner)


def compare(files: Files, name: str, about: Mapping[str, Any], sums: bool = True) -> None:
    """Refuses a file that is not what the manifest says about it: its size, and its checksum."""
    with files.open(name) as part:
        if part.size != about.get("bytes"):
            raise PackageError("SIZE", files.path, name, part.size, about.get("bytes") or 0)
        if not sums:
            return
        digests: dict[str, Any] = {"blake2b": blake2b(digest_size=32)}
        if "blake2bp" in about:  # which the C runtime compares, since vectors compute it faster
            digests["blake2bp"] = Blake2bp()
        if "sha256" in about:  # which browsers compare
            from hashlib import sha256  # here only, since it loads OpenSSL

            digests["sha256"] = sha256()
        for piece in part.pieces():
            for digest in digests.values():
                digest.update(piece)
    if any(digest.hexdigest() != about.get(kind) for kind, digest in digests.items()):
        raise PackageError("ALTERED", files.path, name)
