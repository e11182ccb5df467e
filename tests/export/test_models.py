"""The models of the table as packages of this machine, small; `python -m tests.export.table` has
them on all targets."""

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.export.harness import judge_together
from tests.export.models import BENCH, FURTHER, packaged


@pytest.mark.slow
@pytest.mark.parametrize("name", [*BENCH, *FURTHER])
def test_right_and_small(name: str, tmp_path: Path) -> None:
    model = packaged(name, True)
    draws = (model.inputs, *model.further)
    made = tw.export(
        model.module, *model.inputs, path=tmp_path / "p", dynamic=model.dynamic, name=name
    )
    assert len(made.levels[0].code) <= 350_000
    package = tw.load(tmp_path / "p")
    names = [x.name for x in package.inputs]
    got = [package.run(None, dict(zip(names, x, strict=True))) for x in draws]
    judge_together(model.module, draws, [[np.asarray(y) for y in some] for some in got])
