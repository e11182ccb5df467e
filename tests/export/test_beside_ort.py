"""The command that measures packages beside ONNX Runtime, on a small model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.mark.slow
def test_figures_beside_onnxruntime(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    from tests.export.beside_ort import main

    out = tmp_path / "rows.json"
    assert main(["--tiny", "--models", "mlp", "--rounds", "1", "--json", str(out)]) == 0
    rows = json.loads(out.read_text())
    assert [row["by"] for row in rows] == ["C", "Python", "ORT"]
    assert all(row[k] > 0 for row in rows for k in "files runtime start load first peak".split())
    assert "Python and numpy take" in capsys.readouterr().out
