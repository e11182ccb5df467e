"""How training steps are timed."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest

from tests.driver import training_steps


@pytest.mark.parametrize("by, each", [(["ours", "frugal"], 2), (["ours", "eager"], 1)])
def test_none_pays_for_pages_that_a_frugal_step_gave_back(
    by: list[str], each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    class Noted:
        parts = ()

        def __init__(self, by: str, *rest: Any, **options: Any) -> None:
            self.by = by

        def __call__(self) -> None:
            made.append(self.by)

    monkeypatch.setattr(training_steps, "made", lambda *given: (None, None))
    monkeypatch.setattr(training_steps, "Step", Noted)
    given = Namespace(small=True, activation_memory=0.5, rounds=3, cpu_time=False)
    found = training_steps.measured("none", by, given)
    timed = made[training_steps.WARM * len(by) :]
    assert len(timed) == 3 * len(by) * each and all(len(f.seconds) == 3 for f in found.values())
    assert all(len(set(timed[k : k + each])) == 1 for k in range(0, len(timed), each))
