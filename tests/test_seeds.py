"""Which cases a run makes."""

import pytest

from tests import seeds


@pytest.mark.parametrize("slow_too", [True, False])
def test_cases_of_a_run(slow_too: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeds, "slow_too", slow_too)
    few, grid = seeds.drawn(range(5), 2), seeds.crossed("abc", "xy", 2)
    assert (len(few), len(grid)) == ((5, 6) if slow_too else (2, 3))
    quick = [[p.id for p in cases if not p.marks] for cases in (few, grid)]
    assert quick == [["0", "1"], ["a-x", "b-y", "c-x"]]
    # These are deselected; of no case at all pytest would say that it skips one.
    assert len(seeds.drawn([7, 8], 0)) == 2
