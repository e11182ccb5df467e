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


def test_cases_of_every_run(request: pytest.FixtureRequest) -> None:
    """Positions count the cases that are not slow anyway; a mark that names no case is an error."""

    def cases(*positions: int) -> list[pytest.Item]:
        @seeds.every_run(*positions)
        def test() -> None: ...

        made: list[pytest.Item] = [
            pytest.Function.from_parent(request.node.parent, name=f"test[{k}]", callobj=test)
            for k in range(4)
        ]
        made[0].add_marker(pytest.mark.slow)
        seeds.leave_to_slow_runs(made)
        return made

    quick = [x.name for x in cases(0, 2, 7) if x.get_closest_marker("slow") is None]
    assert quick == ["test[1]", "test[3]"]
    with pytest.raises(pytest.UsageError, match="test has 3 cases; every_run"):
        cases(3)
