"""Signatures of packages: `tilewright keygen`, `sign` and `verify`.

A signature is ed25519's, 64 bytes over the manifest, in the file `manifest.sig` of the package. The
manifest has the checksum of every other file. Runtimes verify it (`tilewright_runtime.signature`).
"""

from __future__ import annotations

import os
import tempfile
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any

from tilewright.base.errors import Invalid, MissingExtra
from tilewright.driver.export.package import write_package
from tilewright_runtime import PackageError
from tilewright_runtime.files import MANIFEST, SIGNATURE, Files
from tilewright_runtime.verify import verify

PRIVATE, PUBLIC = "private.pem", "public.pem"
_KEYS = "cryptography.hazmat.primitives.asymmetric.ed25519"
_PEM = "cryptography.hazmat.primitives.serialization"


def _cryptography(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise MissingExtra("sign", "signing packages") from None


def keygen(folder: str | Path = ".") -> tuple[Path, Path]:
    """Writes a new pair of keys: `private.pem`, which only its owner can read, and `public.pem`."""
    keys, pem = _cryptography(_KEYS), _cryptography(_PEM)
    folder = Path(folder)
    private, public = folder / PRIVATE, folder / PUBLIC
    for path in (private, public):
        if path.exists():
            raise Invalid(f"{path} is there already", hint="give another folder: --out")
    if not folder.is_dir():
        raise Invalid(f"there is no folder {folder}", hint="make it first")
    key = keys.Ed25519PrivateKey.generate()
    secret = key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption())
    handle = os.open(private, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(handle, "wb") as file:
        file.write(secret)
    public.write_bytes(
        key.public_key().public_bytes(pem.Encoding.PEM, pem.PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public


def sign(package: str | Path, key: str | Path) -> list[str]:
    """Signs a package, in place of a signature that it has. All its files are compared with the
    manifest before; gives their names."""
    secret = _private_key(Path(key))
    names = _checked(package)
    files = Files(package)
    try:
        signature = secret.sign(files.manifest())
    finally:
        files.close()
    _add(Path(package), signature)
    return names


def verified(package: str | Path, key: str | Path | None) -> list[str]:
    """The names of a package's files, each as the manifest says, and signed where a public key is
    given."""
    if key is not None:
        _cryptography(_KEYS)
    return _checked(package, key)


def _checked(package: str | Path, key: str | Path | None = None) -> list[str]:
    try:
        return verify(package, key)
    except PackageError as problem:
        raise Invalid(str(problem)) from None


def _private_key(path: Path) -> Any:
    keys, pem = _cryptography(_KEYS), _cryptography(_PEM)
    unsupported = _cryptography("cryptography.exceptions").UnsupportedAlgorithm
    try:
        text = path.read_bytes()
    except OSError as problem:
        raise Invalid(f"{path} cannot be read: {problem.strerror}") from None
    try:
        found = pem.load_pem_private_key(text, None)
    except (ValueError, TypeError, unsupported):  # TypeError: it has a password
        found = None
    if not isinstance(found, keys.Ed25519PrivateKey):
        raise Invalid(
            f"{path} is no private key of ed25519 in PEM, without a password",
            hint="`tilewright keygen` makes one",
        )
    return found


def _add(package: Path, signature: bytes) -> None:
    """Under another name first: the package is always whole."""
    if package.is_dir():
        handle, made = tempfile.mkstemp(dir=package.parent, prefix=".signature.")
        with open(handle, "wb") as file:
            file.write(signature)
        os.chmod(made, 0o644)
        os.replace(made, package / SIGNATURE)
        return
    # A package as one file is written anew, so that its weights stay on pages of memory.
    with tempfile.TemporaryDirectory(dir=package.absolute().parent) as folder:
        with zipfile.ZipFile(package) as archive:
            archive.extractall(folder)
            names = [name for name in archive.namelist() if name not in (MANIFEST, SIGNATURE)]
        content: dict[str, bytes | Path] = {name: Path(folder) / name for name in names}
        content[SIGNATURE] = signature
        content[MANIFEST] = Path(folder) / MANIFEST
        write_package(package, content)
