"""Signatures of packages: ed25519, over the manifest's bytes, which have the checksum of every
other file."""

from __future__ import annotations

import os

from tilewright_runtime.files import SIGNATURE, Files
from tilewright_runtime.sentences import PackageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def require_signature(files: Files, manifest: bytes, public_key: object) -> None:
    """Refuses a package whose manifest was not signed with the private key of this one."""
    key = public_key_of(public_key)
    from cryptography.exceptions import InvalidSignature

    if not files.has(SIGNATURE):
        raise PackageError("UNSIGNED", files.path)
    with files.open(SIGNATURE) as part:
        signature = part.read() if part.size == 64 else b""
    try:
        key.verify(signature, manifest)
    except InvalidSignature:
        raise PackageError("SIGNATURE", files.path) from None


def public_key_of(given: object) -> Any:
    """A key from PEM, as bytes or in a file, or one of `cryptography`'s."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError:
        raise PackageError(
            "ARGUMENT",
            "signatures need the package cryptography: pip install 'tilewright-runtime[sign]'",
        ) from None
    if isinstance(given, Ed25519PublicKey):
        return given
    if isinstance(given, bytes):
        shown, text = "the public key", given
    elif isinstance(given, (str, os.PathLike)):
        shown = os.fspath(given)
        try:
            with open(given, "rb") as file:
                text = file.read()
        except OSError as problem:
            raise PackageError("FILE", shown, problem.strerror) from None
    else:
        raise PackageError("ARGUMENT", f"a {type(given).__name__} is no public key: give PEM")
    try:
        found = load_pem_public_key(text)
    except (ValueError, UnsupportedAlgorithm):
        found = None
    if not isinstance(found, Ed25519PublicKey):
        raise PackageError("ARGUMENT", f"{shown} is no public key of ed25519 in PEM")
    return found
