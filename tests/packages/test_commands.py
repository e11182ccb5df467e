"""Commands about packages: serve, sign, verify, keygen, and packages as models of others."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from tests.packages import made
from tilewright.driver.cli import main
from tilewright.serve.command import chosen_rows
from tilewright.serve.tensors import RAW, from_raw, to_raw
from tilewright_runtime import load


def test_keys_and_signatures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.twp"
    shutil.copy(made.package(), path)
    public = str(tmp_path / "public.pem")
    assert main(["keygen", "--out", str(tmp_path)]) == 0
    assert main(["verify", str(path), "--key", public]) == 2
    assert "is not signed" in capsys.readouterr().err
    assert main(["sign", str(path), "--key", str(tmp_path / "private.pem")]) == 0
    capsys.readouterr()
    assert main(["verify", str(path), "--key", public, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["signed"] is True and "weights.bin" in found["files"]
    assert main(["info", str(path), "--verify", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["problems"] == []
    assert main(["sign", str(path), "--key", public]) == 2
    assert "is no private key" in capsys.readouterr().err


def test_a_package_is_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = made.rows(3)
    np.save(tmp_path / "x.npy", x)
    out = tmp_path / "y.npy"
    words = ["run", str(made.package("")), "--input", f"x=@{tmp_path / 'x.npy'}"]
    assert main([*words, "--output", str(out)]) == 0
    assert np.allclose(np.load(out), made.expected(x), atol=1e-5)
    capsys.readouterr()
    for more, sentence in (
        ([], "has symbolic dims: x: f32[batch, 64]"),
        (["--input", "x=f32[65,64]"], "the dim batch is 65, and the package is for 1 to 64"),
        (["--input", "x=f64[2,64]"], "x is of dtype f32, and f64 was given"),
    ):
        assert main(["run", str(made.package()), *more]) == 2
        assert sentence in " ".join(capsys.readouterr().err.split())
    (tmp_path / "empty").mkdir()
    assert main(["run", str(tmp_path / "empty")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_which_requests_run_together() -> None:
    with load(made.package()) as net:
        rows, about = chosen_rows(net, None, 32)
        assert rows is not None and rows.symbol == "batch" and "up to 32 rows" in about
        assert chosen_rows(net, "none", 32)[0] is None and chosen_rows(net, None, 1)[0] is None
    with load(made.table()) as net:
        rows, _ = chosen_rows(net, None, 32)
        assert rows is not None and rows.inputs == {"which": 0, "more": 0}


def test_a_server_of_a_package() -> None:
    words = ["serve", str(made.package()), "--port", "0", "--json"]
    command = [sys.executable, "-m", "tilewright", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        found = ""
        while "http://" not in found:
            line = process.stderr.readline()
            assert line, "the server ended"
            found += line
        at = re.search(r"http://\S+:\d+/", found)
        assert at is not None and "along batch" in found
        x = made.rows(3)
        bodies = {
            RAW: to_raw({"x": x}, {"x": "f32"}),
            "application/json": json.dumps({"inputs": {"x": x.tolist()}}).encode(),
        }
        for kind, body in bodies.items():
            request = urllib.request.Request(f"{at[0]}v1/run", body, {"Content-Type": kind})
            with urllib.request.urlopen(request, timeout=20) as response:
                answer = response.read()
            if kind == RAW:
                y = from_raw(answer, {"output": "f32"})["output"]
            else:
                y = np.array(json.loads(answer)["outputs"]["output"], np.float32)
            assert np.allclose(y, made.expected(x), atol=1e-5)
        process.send_signal(signal.SIGTERM)
        assert "everything that had begun was answered" in process.stderr.read()
        assert json.loads(process.stdout.read())["responses"] == {"200": 2}
        assert process.wait(20) == 0


def test_what_cannot_be_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, sentence in (
        ([str(tmp_path / "none.twp")], "cannot be read: No such file"),
        ([str(made.package()), "--batch-dim", "rows"], "has no dim 'rows'"),
        ([str(made.package()), "--port", "70000"], "65535 is the last one"),
        ([str(made.package()), "--timeout", "0"], "more than 0 seconds"),
        ([str(made.package()), "--host", "203.0.113.1"], "cannot listen at 203.0.113.1"),
    ):
        assert main(["serve", *words]) == 2
        assert sentence in " ".join(capsys.readouterr().err.split())
