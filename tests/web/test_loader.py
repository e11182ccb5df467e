"""tilewright.js, by itself: what it computes, and what it says about packages that are wrong."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.web.nets import drawn, export_mixed, mixed
from tilewright.driver.export.sentences import SENTENCES
from tilewright.targets.wasm import FAMILY

LOADER = files("tilewright") / "web" / "tilewright.js"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("loader") / "mixed"
    export_mixed(str(path), ("wasm32",))
    return path


def answers(package: Path, *cases: dict[str, Any]) -> list[dict[str, Any]]:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    program = str(Path(__file__).with_name("run_loader.mjs"))
    given = json.dumps({"package": str(package), "cases": cases})
    done = subprocess.run([node, program, str(LOADER), given], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def tensor(x: torch.Tensor, shaped: bool = True) -> dict[str, Any]:
    kind = {torch.float32: "f32", torch.int64: "i64", torch.int32: "i32"}[x.dtype]
    found = {"dtype": kind, "data": x.flatten().tolist()}
    return found | {"shape": list(x.shape)} if shaped else found


def inputs(rows: int, shaped: bool = True) -> dict[str, Any]:
    x, kind = drawn(rows)
    return {"x": tensor(x, shaped), "kind": tensor(kind, shaped)}


def test_results_for_several_sizes(package: Path) -> None:
    """Sizes come from shapes, or are said."""
    cases = [{"inputs": inputs(n)} for n in (1, 7, 64)]
    cases.append({"inputs": inputs(5, shaped=False), "dims": {"rows": 5}})
    size = json.loads((package / "manifest.json").read_text())["weights"]["bytes"]
    for rows, found in zip((1, 7, 64, 5), answers(package, *cases)):
        with torch.no_grad():
            right = mixed().double()(drawn(rows)[0].double(), drawn(rows)[1])
        assert found["level"] == "wasm32" and found["loaded"] == size, found
        for name, want in right.items():
            got = found["results"][name]
            assert got["shape"] == list(want.shape)
            np.testing.assert_allclose(got["data"], want.flatten(), rtol=1e-5, atol=1e-5)


def test_weights_in_half_the_bits(tmp_path: Path) -> None:
    """They are rounded in the file, and widened when the package is loaded."""
    made = export_mixed(str(tmp_path / "half"), ("wasm32",), weights="f16")
    assert made.manifest["weights"]["unpacked"] > made.manifest["weights"]["bytes"]
    half = mixed().double()
    for p in half.parameters():
        if p.numel() > 1024:
            p.data = p.data.half().double()
    (found,) = answers(tmp_path / "half", {"inputs": inputs(7)})
    with torch.no_grad():
        right = half(drawn(7)[0].double(), drawn(7)[1])["y"]
    np.testing.assert_allclose(found["results"]["y"]["data"], right.flatten(), 1e-3, 1e-3)


def test_a_module_is_run_to_choose_a_level(package: Path) -> None:
    """The first level whose module gives a number other than 0; one that cannot run says no."""
    (level,) = json.loads((package / "manifest.json").read_text())["levels"]

    def module(body: str) -> str:
        """One that exports a function without arguments, of one i32."""
        size = len(body) // 2
        code = f"0a{size + 4:02x}01{size + 2:02x}00{body}0b"
        return f"run:0061736d010000000105016000017f0302010007050101720000{code}"

    tests = {module("4101"): True, module("4100"): False, module("00"): False, "run:00": False}
    own = FAMILY.tests["engine.vectors32"]
    tests[own] = platform.machine() in ("aarch64", "arm64")
    cases = []
    for test in tests:
        levels = [dict(level, target="first", features={"f": test}), level]
        files = {"manifest.json": {"edit": {"levels": levels}}}
        cases.append({"files": files, "inputs": inputs(2)})
    for found, first in zip(answers(package, *cases), tests.values(), strict=True):
        assert found.get("level") == ("first" if first else "wasm32"), found


def test_what_is_wrong_gets_the_sentences_of_other_runtimes(package: Path) -> None:
    x, kind = drawn(3)
    good = inputs(3)
    level = "code/wasm32.wasm"
    edited = json.loads((package / "manifest.json").read_text())
    outside = [dict(edited["levels"][0], file="../x.wasm")]
    lacking = [dict(edited["levels"][0], features={"strange": "unknown:1"})]
    other = [dict(edited["levels"][0], architecture="x86_64")]
    far = kind.clone()
    far[1] = 12
    table: list[tuple[dict[str, Any], str, str]] = [
        ({"files": {"manifest.json": None}}, "FILE", "cannot be read: the server says 404"),
        ({"files": {"manifest.json": "{"}}, "PACKAGE", "its manifest is not JSON"),
        ({"files": {"manifest.json": "{}"}}, "PACKAGE", "its manifest lacks its format"),
        ({"files": {"manifest.json": {"edit": {"format": 9}}}}, "FORMAT", "of format 9, and"),
        ({"files": {"manifest.json": {"edit": {"levels": outside}}}}, "OUTSIDE", "../x.wasm"),
        ({"files": {"manifest.json": {"edit": {"levels": lacking}}}}, "FEATURE", "needs strange,"),
        ({"files": {"manifest.json": {"edit": {"levels": other}}}}, "ARCHITECTURE", "for x86_64"),
        ({"files": {level: -7}}, "SIZE", f"{level} has"),
        ({"files": {level: {"flip": 100}}}, "ALTERED", level),
        ({"files": {"weights.bin": -1}}, "SIZE", "the file is truncated"),
        ({"files": {"weights.bin": 64}}, "SIZE", "weights.bin has"),
        (
            {"files": {"weights.bin": {"flip": 5}}, "options": {"verifyWeights": True}},
            "ALTERED",
            "weights.bin",
        ),
        ({"options": {"threads": 0}}, "ARGUMENT", "between 1 and 64"),
        ({"inputs": {"x": good["x"]}}, "ARGUMENT", "the input kind is missing"),
        ({"inputs": {**good, "z": good["x"]}}, "ARGUMENT", "has no input z: it takes x, kind"),
        ({"inputs": {**good, "kind": tensor(kind.int())}}, "DTYPE", "kind is of dtype i64"),
        ({"inputs": {**good, "x": tensor(x[:, 1:])}}, "SHAPE", "x has the shape [rows, 24], and"),
        ({"inputs": {**good, "kind": tensor(drawn(2)[1])}}, "SHAPE", "[rows], and [2] was given"),
        ({"inputs": inputs(3, False), "dims": {"rows": 4}}, "SHAPE", "an array of 72 was given"),
        ({"inputs": inputs(3, False)}, "ARGUMENT", "the dim rows is not known"),
        ({"inputs": inputs(65)}, "BOUNDS", "the dim rows is 65, and the package is for 1 to 64"),
        ({"inputs": {**good, "kind": tensor(far)}}, "CHECK", "index out of range"),
    ]
    found = answers(package, *(case for case, _, _ in table))
    for (case, code, words), got in zip(table, found, strict=True):
        assert got.get("code") == code and words in got["wrong"], (case, got)


def test_sentences_are_the_same_everywhere() -> None:
    text = LOADER.read_text()
    block = text[text.index("const SENTENCES") :].split("};")[0]
    own = dict(re.findall(r'^  (\w+): "(.*)",$', block, re.M))
    assert len(own) > 10 and own == {name: SENTENCES[name] for name in own}


def test_the_loader_is_small_and_needs_nothing() -> None:
    text = LOADER.read_text()
    assert len(text.encode()) < 20_000
    assert not re.search(r"^\s*import\b(?!\.meta)", text, re.M)
