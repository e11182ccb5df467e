"""The axioms: all are there, each is proved, also with other windows than it is written for."""

from __future__ import annotations

import pytest

from tests.seeds import drawn
from tilewright.driver.cli import main
from tilewright.superopt.axioms import FOLDER, Window, axioms, variants
from tilewright.superopt.records import Record, proved, records

PARTS = 12
WINDOWS: tuple[Window, ...] = (
    ((3, 3), (2, 2), (1, 1), (1, 1)),  # strided
    ((3, 3), (1, 1), (0, 0), (1, 1)),  # valid
    ((2, 3), (2, 1), (1, 0), (2, 1)),
)
OF_IMAGES = (
    "conv-additive-in-kernel",
    "conv-by-kernels-concat",
    "conv-of-channels-side-by-side",
    "conv-of-images-concat",
    "scale-out-of-conv",
)


def test_all_are_there_and_records_fit() -> None:
    count = {p.stem: len(records(p)) for p in FOLDER.glob("*.json")}
    assert count["published"] == 44 and count["transformers"] >= 70
    assert len(axioms()) == sum(count.values()), "each has a name of its own"
    for path in FOLDER.glob("*.json"):
        assert all(r.digest == r.signed() for r in records(path))


@pytest.mark.parametrize("part", drawn(range(PARTS), 2))
def test_each_is_proved_again(part: int) -> None:
    for name, e in list(axioms().items())[part::PARTS]:
        assert isinstance(proved(e), Record), name


@pytest.mark.parametrize("name", drawn(OF_IMAGES, 1))
def test_other_windows(name: str) -> None:
    found = list(variants(axioms()[name], {4}, WINDOWS))
    assert len([e for e in found if "stride=(2, 2)" in str(e)]) >= 1
    assert len([e for e in found if "padding=(0, 0)" in str(e)]) >= 1
    assert len([e for e in found if "[o, c, 2, 3]" in str(e)]) >= 1


def test_other_ranks_and_axes() -> None:
    found = list(map(str, variants(axioms()["relu-over-concat"], {3}, ())))
    assert all(any(f"axis={k}" in text for text in found) for k in range(3))
    assert len(list(variants(axioms()["matmul-associative"], {3}, ()))) == 1


def test_shown_by_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prove", "--axioms", "transpose-*", "exp-of-*"]) == 0
    said = capsys.readouterr().out
    assert "transpose-of-matmul" in said and "exp-of-neg" in said and "10 proved" in said
    assert main(["prove", "--axioms", "softmax-by-exp"]) == 0
    assert "Element [i0, i1] of the left side" in capsys.readouterr().out
    assert main(["prove", "--axioms", "nonsense"]) == 2
