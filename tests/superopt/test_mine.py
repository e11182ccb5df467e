"""The command that shows what is found."""

from __future__ import annotations

import pytest

from tests.superopt.mine import main


def test_a_table_and_rules(capsys: pytest.CaptureFixture[str]) -> None:
    main(["matrices", "--operators", "1", "--rules"])
    said = capsys.readouterr().out
    assert "candidates" in said and "152" in said and "seed 0" in said
    assert "relu(p1) = p1" in said and "of the proved ones follow" in said
