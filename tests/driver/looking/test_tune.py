"""`tilewright tune` and `tilewright records`: what a user sees, and what is said where something is
wrong."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.tune.fake_measuring import GROUPS, Fake
from tests.tune.test_records import BEST, TRIAL
from tilewright.driver import cli
from tilewright.driver.looking import fleet, tune
from tilewright.driver.looking.curves import best_so_far, page_of, plot
from tilewright.driver.looking.shown import Shown
from tilewright.driver.looking.tables import rendered
from tilewright.driver.program.programs import compile_graph
from tilewright.runtime.program_data import KernelInfo
from tilewright.targets import default
from tilewright.tune.campaign import Campaign, tasks_of
from tilewright.tune.measuring.race import Verdict
from tilewright.tune.models.analytic import Analytic
from tilewright.tune.records import Records, append
from tilewright.tune.reproducers import Reproducer
from tilewright.tune.search import WAYS, search_named


@dataclass
class Interrupted(Fake):
    """As if somebody pressed Ctrl-C in some races."""

    at: tuple[int, ...] = ()
    wrong: bool = False

    def measure(
        self, group: str, traces: Sequence[str], rounds: int | None = None
    ) -> list[Verdict]:
        found = super().measure(group, traces, rounds)
        if len(self.races) in self.at:
            raise KeyboardInterrupt
        if self.wrong:
            found[1] = Verdict(fault="wrong", why="output 0: it differs", difference=0.5)
        return found


def kernels(count: int = 2) -> list[KernelInfo]:
    from tests.tune.test_choose import product

    made = compile_graph(product()).kernels[0]
    return [
        replace(made, group=text, calls=1, name=f"map(a+very+long+name+of+a+kernel+{k})")
        for k, text in enumerate(GROUPS[:count])
    ]


def tuned(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fake: Fake | None = None,
    **options: Any,
) -> tuple[int, str]:
    """What the command returns and tells."""
    fake = fake or Fake(default())
    monkeypatch.setattr(fleet, "Measuring", lambda target, threads: fake)
    out = io.StringIO()
    given: dict[str, Any] = {
        "trials": 16,
        "minutes": 1.0,
        "search": "random",
        "model": "analytic",
    } | options
    shown = Shown(Console(file=out, width=80))
    return tune.tune(kernels(), default(), shown, records=path, **given), out.getvalue()


def test_tuning_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, page = tmp_path / "r.jsonl", tmp_path / "page.html"
    code, said = tuned(path, monkeypatch, page=page)
    assert code == 0 and "32 trials; records are in" in said and "kernels of a call:" in said
    assert "the best time over trials" in said and "16 trials" in said
    assert "<svg" in page.read_text() and "trial 16" in page.read_text()
    code, said = tuned(path, monkeypatch)
    assert code == 0 and "32 trials, 32 of them known from before" in said


def test_ctrl_c_decides_on_what_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.jsonl"
    code, said = tuned(path, monkeypatch, Interrupted(default(), at=(2,)))
    assert code == 130 and "8 trials; records are in" in said
    assert "the same command goes on from here" in said
    assert [r.kind for r in Records.load(path).records] == ["trial"] * 8 + ["best"]
    code, said = tuned(path, monkeypatch)
    assert code == 0 and "32 trials, 8 of them known from before" in said


def test_a_second_ctrl_c_leaves_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.jsonl"
    code, said = tuned(path, monkeypatch, Interrupted(default(), at=(2, 3)))
    assert code == 130 and "8 trials; records are in" in said
    assert [r.kind for r in Records.load(path).records] == ["trial"] * 8


def test_wrong_schedules_are_told_with_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, said = tuned(tmp_path / "r.jsonl", monkeypatch, Interrupted(default(), wrong=True))
    assert "gave other results, such as: output 0: it differs" in said
    assert f"tilewright records rerun {tmp_path}/r.wrong/wrong-" in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"search": "luck"}, "there is no search called 'luck'"),
        ({"model": "oracle"}, "there is no model called 'oracle'"),
        ({"minutes": -1.0}, "-1 minutes are no time"),
        ({"minutes": float("nan")}, "are no time"),
    ],
)
def test_bad_options(
    options: dict[str, object], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake(default())
    with pytest.raises(ValueError, match=words):
        tuned(tmp_path / "r", monkeypatch, fake, **options)
    assert not fake.races


def test_records_that_are_no_use_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.jsonl"
    append(path, [replace(BEST, group=GROUPS[0], target="another")])
    with open(path, "a") as file:
        file.write('{"kind": "tri')
    code, said = tuned(path, monkeypatch)
    assert code == 0 and "passed over: line 2 of r.jsonl: it is no JSON" in said
    assert "1 record of these kernels for another target or number of threads" in said


def test_the_table_fits_80_columns(tmp_path: Path) -> None:
    names = [(GROUPS[k % 4].replace("64", str(64 + k)), 1000, "x" * 70) for k in range(3)]
    by = (Fake(default()), lambda: search_named("random"), Analytic(), 0)
    campaign = Campaign(tasks_of(names, default(), *by), Records(tmp_path / "r"), 8)
    for _ in campaign.run():
        pass
    for t in campaign.tasks:
        t.tuning.seconds = 99.0
    lines = rendered(tune.table_of(campaign.tasks)).splitlines()
    assert max(map(len, lines)) <= 80 and sum("…" in x for x in lines) == 3
    assert "~" in lines[-2] and "not decided yet" in lines[-1]
    for _ in campaign.finish():
        pass
    assert "~" not in rendered(tune.table_of(campaign.tasks))
    assert best_so_far(campaign.tasks[0])[0] == 1.0
    assert page_of(campaign.tasks).count("<svg") == 3


def test_a_plot() -> None:
    assert plot([8.0, 4.0, 4.0, 2.0], "us", height=4).splitlines() == [
        "8 us ┤█",
        "6 us ┤█",
        "4 us ┤███",
        "2 us ┤████",
        "     └0─3 trials",
    ]
    wide = plot([1.0] * 1000, "us", width=60).splitlines()
    assert max(map(len, wide)) <= 80 and wide[-1].endswith("999 trials")


def test_the_help_names_all_searches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["tune", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert all(name in shown for name in WAYS) and "goes on after Ctrl-C" in shown


# ---- tilewright records


def command(capsys: pytest.CaptureFixture[str], *given: object) -> tuple[int, str]:
    code = cli.main(["records", *map(str, given)])
    said = capsys.readouterr()
    return code, said.out + said.err


def test_records_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.jsonl"
    append(path, [TRIAL, replace(TRIAL, seconds=None, fault="hung"), BEST])
    code, said = command(capsys, "list", path)
    assert code == 0 and said.count("1 stage to f32[24, 8]") == 3 and "hung" in said
    code, said = command(capsys, "best", path)
    assert code == 0 and said.count("1 stage") == 1 and "2.00×" in said


@pytest.mark.parametrize("what", ["list", "best", "check"])
def test_no_records(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.jsonl"
    code, said = command(capsys, what, path)
    assert code == 2 and "there are no records in" in said and "`tilewright tune` makes" in said
    path.write_text("")
    assert command(capsys, what, path)[0] == 2
    code, said = command(capsys, what, tmp_path)
    assert code == 2 and "records cannot be read from" in said


def test_records_are_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b, out = (tmp_path / name for name in ("a", "b", "out"))
    append(a, [TRIAL, BEST])
    append(b, [BEST, replace(BEST, threads=1)])
    code, said = command(capsys, "merge", a, b, "--out", out)
    assert code == 0 and "3 records in" in said
    code, said = command(capsys, "merge", a, b, "--out", out)
    assert code == 2 and "is there already" in said
    assert command(capsys, "merge", out, a, "--out", out)[0] == 0
    assert len(Records.load(out).records) == 3
    code, said = command(capsys, "merge", a, tmp_path / "none", "--out", tmp_path / "x")
    assert code == 2 and "there is no file" in said and not (tmp_path / "x").exists()
    code, said = command(capsys, "merge", a)
    assert code == 2 and "--out" in said


def test_records_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.jsonl"
    append(path, [TRIAL, BEST])
    code, said = command(capsys, "check", path)
    assert code == 0 and "2 of 2 records hold" in said
    append(path, [replace(BEST, trace="OldStep()\n")] * 2)
    with open(path, "a") as file:
        file.write("half")
    code, said = command(capsys, "check", path)
    assert code == 1 and "2 of 4 records hold" in said and "OldStep" in said
    assert "(2 times)" in said and "passed over: line 5" in said


def test_a_reproducer_is_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    r = Reproducer(
        BEST.group, default().machine_key(), 1, "", BEST.trace, "wrong", "it differs", 0.5
    )
    path = r.write(tmp_path / "records.jsonl")
    code, said = command(capsys, "rerun", path)
    assert code == 0 and "then: it gave other results: it differs (seed 0)" in said
    assert "now: its results are right" in said and "Split(loop='y.i', factor=4)" in said
    code, said = command(capsys, "rerun")
    assert code == 2 and "which reproducer" in said
    gone = replace(r, trace="OldStep()\n").write(tmp_path / "records.jsonl")
    code, said = command(capsys, "rerun", gone)
    assert code == 1 and "now: it has no code" in said
