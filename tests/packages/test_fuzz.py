"""Packages with damage at random places: the runtimes in C and in Python say the same of each. Only
of more letters after the test of a feature, Python says more; and a level has a checksum for each
of them, so damage of one of these is told by one of them."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from tests.export.harness import Failed
from tests.export.harness import Package as OfC
from tests.export.test_fuzz import damaged
from tests.packages import made
from tests.seeds import drawn
from tilewright_runtime import PackageError, load

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


def of_c(path: Path) -> str:
    try:
        OfC(path).close()
    except Failed as problem:
        return str(problem)
    return "opened"


def of_python(path: Path) -> str:
    try:
        load(path).close()
    except PackageError as problem:
        return str(problem)
    return "opened"


def agree(python: str, c: str) -> bool:
    """Each parser has its own words about text that is not JSON."""
    if "which this processor lacks" in python:
        return True
    return python == c or all(" its manifest is " in said for said in (python, c))


def checksums(manifest: bytes) -> list[tuple[object, object]]:
    try:
        return [(x.get("blake2b"), x.get("blake2bp")) for x in json.loads(manifest)["levels"]]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []  # both refuse it


def told_by_one(python: str, c: str) -> bool:
    return "opened" in (python, c) and any("its checksum differs" in x for x in (python, c))


@pytest.mark.parametrize("seed", drawn(range(40), quick=2))
def test_both_say_the_same(seed: int, tmp_path: Path) -> None:
    r = random.Random(seed)
    whole = made.package(".twp").read_bytes()
    folder, file = tmp_path / "net", tmp_path / "net.twp"
    shutil.copytree(made.package(""), folder)
    manifest = (folder / "manifest.json").read_bytes()
    table = whole.index(b"PK\x01\x02")
    for _ in range(25):
        changed = damaged(manifest, r, True)
        (folder / "manifest.json").write_bytes(changed)
        file.write_bytes(whole[:table] + damaged(whole[table:], r, False))
        for path in (folder, file):
            python, c = of_python(path), of_c(path)
            of_checksums = path is folder and checksums(changed) != checksums(manifest)
            excused = of_checksums and told_by_one(python, c)
            assert excused or agree(python, c), f"{python}\n{c}"
