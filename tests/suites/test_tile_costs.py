"""The command that measures costs measures kernels that are right."""

import pytest

from tests.suites import tile_costs, tile_speed


@pytest.mark.slow
def test_kernels_of_the_comparison_are_right_and_timed() -> None:
    found = tile_costs.kernels_by(64, 1, "-m", "tilewright.triton", "--device", "cpu")
    assert len(found) == 3 and all(0 < seconds < 60 for seconds in found.values())


def test_a_run_that_fails_says_so() -> None:
    with pytest.raises(SystemExit, match="failed: "):
        tile_costs.kernels_by(64, 1, "-m", "tilewright.triton", "--device", "nowhere")


def test_a_launch_is_timed() -> None:
    assert 0 < tile_costs.launching(1) < 1


def test_kernels_that_are_timed_against_torch_are_right() -> None:
    for name, make in tile_speed.CASES.items():
        case = make()
        tile_speed.check(case)
        ours, peer = tile_speed.timed(case, 1)
        assert min(*ours, *peer) > 0, name
