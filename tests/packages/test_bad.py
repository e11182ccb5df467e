"""Packages that are refused before any of their code is loaded, with a sentence; signatures."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.export.harness import Failed
from tests.export.harness import Package as OfC
from tests.packages import made
from tilewright.base.errors import Invalid
from tilewright.driver import signing
from tilewright_runtime import PackageError, load, verify
from tilewright_runtime.sentences import SENTENCES

Manifest = dict[str, Any]


def _set(path: str, value: Any) -> Callable[[Manifest], None]:
    """Puts a value at a place of the manifest, such as levels/0/file."""

    def change(manifest: Manifest) -> None:
        *parents, last = [int(k) if k.isdigit() else k for k in path.split("/")]
        at: Any = manifest
        for key in parents:
            at = at[key]
        if value is None:
            del at[last]
        else:
            at[last] = value

    return change


def _everywhere(path: str, value: Any) -> Callable[[Manifest], None]:
    def change(manifest: Manifest) -> None:
        for k in range(len(manifest["levels"])):
            _set(f"levels/{k}/{path}", value)(manifest)

    return change


def _no_sums(m: Manifest) -> None:
    """Levels have two, of which Python compares the first and C the second."""
    for kind in ("blake2b", "blake2bp"):
        _everywhere(kind, "0" * 64)(m)


MANIFESTS = {
    "format": (_set("format", 7), "FORMAT", "of format 7, and this runtime reads formats up to 2"),
    "no format": (_set("format", None), "PACKAGE", "its manifest lacks its format"),
    "no dims": (_set("dims", None), "PACKAGE", "lacks inputs, outputs, dims or checks"),
    "no name": (_set("inputs/0/name", None), "PACKAGE", "lacks a name, dtype or shape"),
    "dtype": (_set("inputs/0/dtype", "f31"), "PACKAGE", "a dtype is unknown"),
    "size": (_set("inputs/0/shape", [-1, 64]), "PACKAGE", "lacks a size"),
    "rank": (_set("outputs/0/shape", [1] * 17), "PACKAGE", "a tensor has too many axes"),
    "bounds": (_set("dims/batch", [1]), "PACKAGE", "lacks the bounds of a dim"),
    "a dim of nothing": (_set("dims/other", [1, 2]), "PACKAGE", "no input has an axis"),
    "no levels": (_set("levels", []), "PACKAGE", "its manifest lacks levels"),
    "machine": (_everywhere("architecture", "pdp11"), "ARCHITECTURE", "has code for pdp11, and"),
    "feature": (
        _everywhere("features", {"teleport": "hwcap:63"}),
        "FEATURE",
        "needs teleport, which this processor lacks or the system does not permit",
    ),
    "question": (_everywhere("features", {"x": "ask:nobody"}), "FEATURE", "needs x, which"),
    "outside": (_everywhere("file", "../code.so"), "OUTSIDE", "file ../code.so, which is outside"),
    "absolute": (_set("weights/file", "/etc/passwd"), "OUTSIDE", "/etc/passwd, which is outside"),
    "missing": (_everywhere("file", "code/none.so"), "FILE", "No such file or directory"),
    "folder": (_everywhere("file", "code"), "FILE", "it is no file"),
    "bytes": (_set("weights/bytes", 12), "SIZE", "and the manifest says 12"),
    "checksum": (_no_sums, "ALTERED", "its checksum differs"),
    "no checksum": (_everywhere("blake2b", None), "PACKAGE", "lacks a file, its bytes or"),
    "65 bits": (_set("weights/table/0/offset", 1 << 64), "PACKAGE", "not JSON: an odd number"),
    "no weights": (_set("weights", None), "PACKAGE", "lacks the weights' file, bytes or"),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests(name: str, tmp_path: Path) -> None:
    change, code, sentence = MANIFESTS[name]
    path = made.altered(tmp_path / "package", change)
    with pytest.raises(PackageError) as problem:
        load(path)
    assert problem.value.code == code and sentence in str(problem.value)
    assert str(path) in str(problem.value)
    if shutil.which("cc"):  # the header says the same, with the same number
        with pytest.raises(Failed) as of_c:
            OfC(path)
        assert str(of_c.value) == str(problem.value)
        assert of_c.value.code == 1 + list(SENTENCES).index(code)


def copied(tmp_path: Path, suffix: str = "") -> Path:
    path = tmp_path / f"package{suffix}"
    if suffix:
        shutil.copy(made.package(suffix), path)
    else:
        shutil.copytree(made.package(suffix), path)
    return path


TEXTS = {
    "empty": (b"", "its manifest is not"),
    "no end": (b"{", "its manifest is not"),
    "a list": (b"[1]", "its manifest is not one JSON object"),
    "text behind": (b'{"format": 1} x', "its manifest is not one JSON object"),
    "deep": (b"[" * 100_000, "its manifest is n"),
    "latin": (b'{"name": "\xe9"}', "its manifest is not UTF-8"),
    "cut": (b'{"name": "\xe2\x82"}', "its manifest is not UTF-8"),
    "too long": (b'{"name": "\xc0\xaf"}', "its manifest is not UTF-8"),
    "half a pair": (b'{"name": "\xed\xa0\x80"}', "its manifest is not UTF-8"),
    "too large": (b'{"name": "\xf4\x90\x80\x80"}', "its manifest is not UTF-8"),
    "half a pair as \\u": (b'{"name": "\\ud800"}', "its manifest is not JSON"),
    "the end of a text": (b'{"na\\u0000me": 1}', "its manifest is not JSON"),
    "a pair": (b'{"name": "\\ud83d\\ude00 \xc3\xa9"}', "its manifest lacks its format"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts_of_manifests(name: str, tmp_path: Path) -> None:
    """Both runtimes refuse them; of what is not JSON each parser has its own words."""
    text, words = TEXTS[name]
    path = copied(tmp_path)
    (path / "manifest.json").write_bytes(text)
    with pytest.raises(PackageError, match=f"is no package: {words}"):
        load(path)
    if shutil.which("cc"):
        with pytest.raises(Failed, match=f"is no package: {words}"):
            OfC(path)


def test_altered_files(tmp_path: Path) -> None:
    path = copied(tmp_path)
    level = json.loads((path / "manifest.json").read_text())["levels"][0]["file"]
    for name, needs_verify in ((level, False), ("weights.bin", True)):
        whole = (path / name).read_bytes()
        damaged = bytearray(whole)
        damaged[len(damaged) // 2] ^= 1
        (path / name).write_bytes(damaged)
        with pytest.raises(PackageError, match="is not the file that was packaged"):
            load(path, verify=needs_verify)
        with pytest.raises(PackageError, match="its checksum differs"):
            verify(path)
        (path / name).write_bytes(whole[:-1])
        with pytest.raises(PackageError, match="truncated or another one"):
            load(path)
        (path / name).unlink()
        (path / name).symlink_to("/etc/hostname")
        with pytest.raises(PackageError, match="cannot be read"):
            load(path)
        (path / name).unlink()
        (path / name).write_bytes(whole)
    load(path, verify=True).close()
    (path / "more").touch()
    with pytest.raises(PackageError, match="it holds more, which its manifest does not list"):
        verify(path)


def test_damaged_zips(tmp_path: Path) -> None:
    whole = made.package(".twp").read_bytes()
    path = tmp_path / "net.twp"
    for size in (0, 3, 100, 5000, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(PackageError, match="is no package: it is neither a folder nor"):
            load(path)
    end = whole.rindex(b"PK\x05\x06")
    (table,) = struct.unpack_from("<I", whole, end + 16)
    for at in range(table, end, 101):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        with suppress(PackageError):
            load(path).close()
    with (
        zipfile.ZipFile(made.package(".twp")) as given,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in given.namelist():
            packed.writestr(name, given.read(name))
    with pytest.raises(PackageError, match="its files are compressed, and have to be stored"):
        load(path)
    with pytest.raises(PackageError, match="No such file or directory"):
        load(tmp_path / "none.twp")


def test_code_that_is_none(tmp_path: Path) -> None:
    def change(manifest: Manifest) -> None:
        for level in manifest["levels"]:
            level["bytes"] = 4
            level["blake2b"] = hashlib.blake2b(b"code", digest_size=32).hexdigest()

    path = made.altered(tmp_path / "package", change)
    for file in (path / "code").iterdir():
        file.write_bytes(b"code")
    with pytest.raises(PackageError) as problem:
        load(path)
    assert problem.value.code == "LOAD" and "cannot be loaded" in str(problem.value)
    again = pickle.loads(pickle.dumps(problem.value))
    assert str(again) == str(problem.value) and again.code == "LOAD"


@pytest.mark.parametrize("suffix", ["", ".twp"])
def test_signatures(suffix: str, tmp_path: Path) -> None:
    private, public = signing.keygen(tmp_path)
    assert private.stat().st_mode & 0o777 == 0o600
    path = copied(tmp_path, suffix)
    with pytest.raises(PackageError, match="is not signed"):
        load(path, public_key=public)
    for _ in range(2):  # a second signature takes the place of the first
        assert "weights.bin" in signing.sign(path, private)
        assert "weights.bin" in verify(path, public)
    for key in (public, str(public), public.read_bytes()):
        with load(path, public_key=key) as net:
            assert net(made.rows(2)).shape == (2, 10)
    load(path).close()
    other = tmp_path / "other"
    other.mkdir()
    _, stranger = signing.keygen(other)
    with pytest.raises(PackageError, match="signed with another key, or altered"):
        load(path, public_key=stranger)
    if not suffix:
        (path / "manifest.json").write_bytes((path / "manifest.json").read_bytes() + b" ")
        with pytest.raises(PackageError, match="signed with another key, or altered"):
            load(path, public_key=public)
        signing.sign(path, private)
        whole = (path / "weights.bin").read_bytes()
        (path / "weights.bin").write_bytes(whole[:-1] + b"?")
        with pytest.raises(PackageError, match=r"weights\.bin is not the file"):
            load(path, public_key=public)
        with pytest.raises(Invalid, match=r"weights\.bin is not the file"):
            signing.sign(path, private)
        (path / "manifest.sig").write_bytes(b"short")
        with pytest.raises(PackageError, match="signed with another key, or altered"):
            load(path, public_key=public)


def test_keys_that_are_none(tmp_path: Path) -> None:
    path = made.package("")
    for key, sentence in (
        (b"no key", "the public key is no public key of ed25519 in PEM"),
        (tmp_path / "none.pem", "cannot be read"),
        (3, "a int is no public key"),
    ):
        with pytest.raises(PackageError, match=sentence):
            load(path, public_key=key)
    private, public = signing.keygen(tmp_path)
    for key in (public, path / "manifest.json"):
        with pytest.raises(Invalid, match="is no private key of ed25519"):
            signing.sign(path, key)
    with pytest.raises(Invalid, match="is there already"):
        signing.keygen(tmp_path)
    with pytest.raises(Invalid, match="there is no folder"):
        signing.keygen(tmp_path / "none")
    with pytest.raises(Invalid, match="cannot be read"):
        signing.sign(path, tmp_path / "none.pem")
    assert private.exists()
