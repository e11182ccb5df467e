"""Tables, Markdown and plots, from results made up here."""

from pathlib import Path

import pytest

from tilewright.bench import plots, report
from tilewright.bench.results import FirstCall, Result, Roof, Timing
from tilewright.bench.run import Plan


def result(name: str, ours: float, **more: Timing) -> Result:
    timings = {
        "tilewright": Timing([ours] * 7, error=1e-7),
        "eager": Timing([2.0] * 7, error=1e-7),
        "inductor": Timing([1.0] * 7, error=1e-7),
        "openvino": Timing(problem="openvino is not installed"),
    }
    found = Result(name, f"about {name}", "float32", 2, timings | more)
    found.roof = Roof(flops=10**9, bytes=10**6, peak=4e9, traffic=0.01)
    return found


@pytest.fixture
def results() -> list[Result]:
    one, two = result("one", 0.5), result("two", 2.0)
    one.first_calls = {
        "tilewright": FirstCall(3.0, 2.5, 2**20),
        "inductor": FirstCall(9.0, 4.0, 2**22),
    }
    one.capture = 2.0
    one.weights, one.contended = 100, 1.5
    one.memory = {
        "tilewright": {"activations": 2**20, "weights": 150},
        "eager": {"activations": 2**21, "weights": 100},
    }
    return [one, two]


def test_the_best_peer_and_the_roof(results: list[Result]) -> None:
    one, two = results
    assert one.best_peer == two.best_peer == "inductor"
    assert one.ratios["inductor"][0] == 2.0 and one.ratios["eager"][0] == 4.0
    assert one.of_roof == 0.5 and one.roof is not None and one.roof.bound == "compute"
    assert report.speed_rows(results)[-1][3] == "1.00", "the mean of 2 and 1/2"


def test_products_of_narrow_types_have_no_known_peak() -> None:
    assert Roof(10**9, 10**6, 4e9, 0.01, narrow=True).limit == 0.01


def test_what_is_said(results: list[Result]) -> None:
    text = report.markdown(results, Plan(("eager",), 2), "the load was 3")
    assert "| one | 500.0 | inductor | 2.00 |" in text and "the load was 3" in text
    assert "| one | 3.00 | 2.00 | 1.00 | 0.50 | 1.0 | 9.00 | 4.00 | 4.0 | 3.0 |" in text
    assert "| one | 1.0 | 2.0 | 0.0 | 1.50× | 1.50× slower |" in text
    assert "- one, openvino: openvino is not installed" in text


def test_ours_failing_is_a_failure(results: list[Result]) -> None:
    assert [r.failed for r in results] == [None, None], "a missing peer is none"
    wrong = result("three", 1.0, tilewright=Timing(problem="wrong: error 1"))
    assert wrong.failed == "wrong: error 1" and wrong.ratios == {} and wrong.of_roof is None
    (row,) = report.speed_rows([wrong])
    assert row[:2] == ["three", "–"] and row[2] == "inductor" and set(row[3:6]) == {"–"}
    assert Result("four", "", "float32", 1, problem="eager fails").failed == "eager fails"


def test_plots(results: list[Result], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    lonely = result("alone", 1.0)
    lonely.timings = {"tilewright": lonely.timings["tilewright"]}
    for path in plots.draw([*results, lonely], tmp_path / "new"):
        assert path.read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["roofline.png", "speed.png"]
