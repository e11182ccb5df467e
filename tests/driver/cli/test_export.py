"""`tilewright export` and `tilewright info`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tilewright.driver.cli.main import main

FILE = """
import torch
net = torch.nn.Linear(8, 3)
inputs = (torch.randn(2, 8),)
"""


def test_export_and_info(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "model.py", tmp_path / "net"
    file.write_text(FILE)
    words = ["export", f"{file}:net", "--out", str(out), "--target", "host,x86-64-v3"]
    assert main([*words, "--dim", "input.0=batch:1..64", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {x["target"] for x in found["levels"]} == {"host", "x86-64-v3"}
    assert main(["info", str(out), "--verify"]) == 0
    shown = capsys.readouterr().out
    for text in (
        "f32[batch, 8]",
        "64",
        "weights.bin",
        "tw_run",
        "x86-64-v3 needs",
        "checksums are",
    ):
        assert text in shown
    assert main(["info", str(out), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["manifest"]["dims"] == {"batch": [1, 64]}
    assert facts["libraries"]["code/host.so"]["rights"].count("r-x") == 1
    code = bytearray((out / "code/host.so").read_bytes())
    code[-1] ^= 1
    (out / "code/host.so").write_bytes(code)
    assert main(["info", str(out)]) == 0
    assert main(["info", str(out), "--verify"]) == 1
    assert "is not the file that was packaged" in capsys.readouterr().out


def test_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "model.py", tmp_path / "site"
    file.write_text(FILE)
    words = ["export", "--web", f"{file}:net", "--out", str(out), "--title", "Three numbers"]
    assert main([*words, "--target", "wasm32", "--mean", "0.1,0.2,0.3"]) == 0
    assert "http.server" in capsys.readouterr().out
    page = json.loads((out / "page.json").read_text())
    assert page["title"] == "Three numbers" and page["inputs"] == {"input": {"kind": "numbers"}}
    for name in ("index.html", "tilewright.js", "package/manifest.json", "_headers"):
        assert (out / name).is_file()
    assert [x.name for x in (out / "package/code").iterdir()] == ["wasm32.wasm"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--labels", "x"], "--labels is for pages"),
        (["--web", "--target", "x86-64"], "no browser runs code for x86-64"),
        (["--dim", "x.0=batch"], "--dim: net has no input 'x'"),
        (["--dim", "batch"], "--dim batch"),
        (["--dim", "input.0=batch:9"], "'9' is no range of sizes"),
        (["--target", "z80"], "there is no target 'z80'"),
    ],
)
def test_mistakes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    file = tmp_path / "model.py"
    file.write_text(FILE)
    assert main(["export", f"{file}:net", "--out", str(tmp_path / "p"), *words]) == 2
    assert text in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "p").exists()


def test_info_of_what_is_no_package(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, content, text in (
        ("a", b"words", "is neither a folder nor a whole zip"),
        ("b", None, "manifest.json cannot be read"),
        ("c", b'{"format": 7}', "a package of format 7, and this runtime reads formats up to 2"),
    ):
        path = tmp_path / name
        if name == "a":
            path.write_bytes(content or b"")
        else:
            path.mkdir()
            if content:
                (path / "manifest.json").write_bytes(content)
        assert main(["info", str(path)]) == 2
        assert text in " ".join(capsys.readouterr().err.split())
    assert main(["info", str(tmp_path / "none")]) == 2
