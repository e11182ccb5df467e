"""The runner of random tests: what it finds, what it writes, and that it survives what it finds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import generators, nightly
from tests.running_draws import Campaign, Finding, Limits

# Cases are numbers. Smaller ones are those nearer to 50, so each failure has one minimal case.
FAULTY = """
import os, time
from tests.generators import Failure, Generator, reproduce, skipped

LOADED = os.getpid()

def failure(case):
    if case >= 50 and WHAT == "wrong":
        return Failure("too large", f"expected less than 50, got {case}")
    if case >= 50 and WHAT == "error":
        raise KeyError(f"s{case}")
    if case >= 50 and WHAT == "abort":
        os.abort()
    if case >= 50 and WHAT == "no fork" and os.getpid() == LOADED:
        return Failure("too large", f"expected less than 50, got {case}")
    if case >= 50 and WHAT == "skipped":
        return skipped("eager refuses them")
    if case >= 50 and WHAT == "hang":
        time.sleep(60)
    if case >= 50 and WHAT in ("slow", "slow_once"):
        seen = f"{__file__}.{case}"
        if WHAT == "slow" or not os.path.exists(seen):
            open(seen, "w").close()
            return Failure("slow compile", "compiling took 11 s", "slow")
    return None

def smaller(case):
    return iter([case // 2, case - 1])

def as_code(case):
    return f"from {__name__} import GENERATOR, reproduce\\n\\nreproduce(GENERATOR, {case})\\n"

SECONDS = 0.2 if WHAT == "hang" else 0.5
GENERATOR = Generator("numbers", int, failure, smaller, as_code, seconds=SECONDS)
"""


@pytest.fixture(autouse=True)
def found_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{generators.ROOT}")


def drawn(tmp_path: Path, what: str, first: int, count: int) -> tuple[Campaign, list[Finding]]:
    module = f"faulty_{what.replace(' ', '_')}"
    (tmp_path / f"{module}.py").write_text(f"WHAT = {what!r}\n{FAULTY}")
    out = tmp_path / "findings"
    campaign = Campaign(
        {"numbers": module}, {"numbers": count}, first, Limits(None, None, 4000), out, tmp_path
    )
    campaign.start(1)
    campaign.wait()
    return campaign, campaign.findings


@pytest.mark.parametrize(("what", "left"), [("slow", 1), ("slow_once", 0)])
def test_what_is_slow_only_while_others_run_is_dropped(
    tmp_path: Path, what: str, left: int
) -> None:
    campaign, findings = drawn(tmp_path, what, 50, 1)
    assert (len(findings), campaign.tallies["numbers"].failed["slow"]) == (0, 1)
    assert campaign.measure_slow_again() == 1 - left
    assert len(findings) == campaign.tallies["numbers"].failed["slow"] == left
    assert len(list((tmp_path / "findings").glob("*"))) == left


def rerun(path: Path | None) -> tuple[int, str]:
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_a_wrong_result_becomes_a_small_file(tmp_path: Path) -> None:
    campaign, findings = drawn(tmp_path, "wrong", 45, 30)
    assert campaign.tallies["numbers"].draws == 30
    assert campaign.tallies["numbers"].failed["wrong"] == 25
    (finding,) = findings
    assert (finding.seed, finding.ordinal) == (50, 6)
    status, printed = rerun(finding.path)
    assert status == 1 and "expected less than 50, got 50" in printed


def test_a_mended_fault_makes_its_file_pass(tmp_path: Path) -> None:
    _, (finding,) = drawn(tmp_path, "wrong", 60, 1)
    module = tmp_path / "faulty_wrong.py"
    module.write_text(module.read_text().replace("case >= 50", "case >= 5000"))
    status, printed = rerun(finding.path)
    assert status == 0 and "right" in printed


def test_an_exception_is_a_finding(tmp_path: Path) -> None:
    _, (finding,) = drawn(tmp_path, "error", 60, 2)
    assert finding.failure.what == "error" and "KeyError" in finding.failure.kind
    assert "s50" in finding.failure.text
    assert rerun(finding.path)[0] == 1


def test_a_process_that_aborts_is_a_finding(tmp_path: Path) -> None:
    """It is made small too, and the draws go on in another process."""
    campaign, (finding,) = drawn(tmp_path, "abort", 48, 4)
    assert campaign.tallies["numbers"].draws == 4
    assert finding.failure.what == "abort" and "SIGABRT" in finding.failure.kind
    assert finding.path is not None and "reproduce(GENERATOR, 50)" in finding.path.read_text()
    assert rerun(finding.path)[0] != 0


def test_a_process_that_hangs_is_a_finding(tmp_path: Path) -> None:
    campaign, (finding,) = drawn(tmp_path, "hang", 49, 2)
    assert finding.failure.what == "hang" and finding.seed == 50
    assert campaign.tallies["numbers"].failed["hang"] == 1


def test_what_a_forked_process_does_not_show_is_made_small_too(tmp_path: Path) -> None:
    """Libraries may refuse in a forked process what they do in others."""
    _, (finding,) = drawn(tmp_path, "no fork", 60, 1)
    assert finding.path is not None and "reproduce(GENERATOR, 50)" in finding.path.read_text()
    assert rerun(finding.path)[0] == 1


def test_what_cannot_be_judged_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    campaign, findings = drawn(tmp_path, "skipped", 48, 9)
    assert not findings and not campaign.tallies["numbers"].failed
    skipped = campaign.tallies["numbers"].skipped
    assert {why: sorted(seeds) for why, seeds in skipped.items()} == {
        "eager refuses them": list(range(50, 57))
    }
    monkeypatch.setattr(generators, "names", lambda: {"numbers": "faulty_skipped"})
    assert nightly.main(["--count", "9", "--seed", "48", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "numbers: 7 skipped: eager refuses them (seeds 50, 51, 52, 53, 54, …)" in printed


def test_a_generator_that_cannot_be_loaded_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "missing_name.py").write_text("import nothing_of_this_name\n")
    campaign = Campaign(
        {"a": "missing_name"}, {"a": 3}, 0, Limits(None, None, 4000), tmp_path, tmp_path
    )
    campaign.start(1)
    campaign.wait()
    assert len(campaign.faults) == 1 and "nothing_of_this_name" in campaign.faults[0]


def test_generators_are_found_without_imports(capsys: pytest.CaptureFixture[str]) -> None:
    known = generators.names()
    assert {"kernels", "graphs", "torch", "schedules"} <= set(known)
    assert nightly.main(["--list"]) == 0
    assert "tests.driver.random_torch" in capsys.readouterr().out


def test_an_unknown_generator_is_named() -> None:
    with pytest.raises(SystemExit, match=r"no generator is called nonsense; there are .*torch"):
        nightly.main(["--only", "nonsense"])
    with pytest.raises(SystemExit, match="name=number"):
        nightly.main(["--count", "torch=many"])


def test_a_checked_seed_is_a_generator() -> None:
    def check(seed: int) -> None:
        assert seed < 3, f"seed {seed} is too large"

    made = generators.checked("small", check)
    assert made.failure(made.draw(2)) is None
    found = made.failure(made.draw(3))
    assert found is not None and found.kind.startswith("seed # is too large")


def test_a_checked_seed_may_tell_nothing() -> None:
    def check(seed: int) -> None:
        raise generators.Skipped("eager refuses them")

    found = generators.checked("none", check).failure(3)
    assert found is not None and found.skipped and found.kind == "eager refuses them"
