"""Choices of a user's own have values, defaults, and sentences about what is no choice."""

import pytest

import tilewright as tw
from tilewright import te, tune
from tilewright.tune.choosing import Choosing, choosing

SIZED = te.compute((te.size_var("n"),), lambda i: 0.0, name="SIZED")


def test_without_tuning_each_choice_has_its_default() -> None:
    assert tune.factors("rows", 64) == 8
    assert tune.factors("rows", 64, least=16, most=32) == 32
    assert tune.factors("rows", 64, default=4) == 4
    assert tune.choice("way", ["wide", "tall"]) == "wide"
    assert tune.choice("way", ["wide", "tall"], default="tall") == "tall"
    assert tune.flag("keep") is False and tune.flag("keep", default=True) is True


def test_without_a_name_they_are_values() -> None:
    assert tune.factors(12).values == (1, 2, 3, 4, 6, 12)
    assert tune.factors(12).ordered and tune.choice([4, 8]).ordered
    assert not tune.choice([8, 4]).ordered and not tune.choice(["a", "b"]).ordered
    assert tune.flag().values == (False, True) and not tune.flag().ordered
    assert str(tune.choice([4, 8]).named("rows")) == "rows = ordered(4, 8, default=4)"


def test_the_factors_of_an_axis_are_those_of_its_extent() -> None:
    assert tune.factors("k", te.reduce_axis((0, 12), name="k")) == 4


def test_a_run_is_decided_by_whoever_runs_it() -> None:
    with choosing(Choosing(lambda d: d.values[-1])) as run:
        assert tune.factors("rows", 64) == 64 and tune.flag("keep") is True
        assert tune.factors("rows", 64) == 64, "asked again, the same"
    assert list(run.asked) == ["rows", "keep"] and tune.factors("rows", 64) == 8


def test_values_can_be_given() -> None:
    with tune.given({"rows": 16}):
        assert tune.factors("rows", 64) == 16 and tune.flag("keep") is False
    with pytest.raises(tw.Invalid, match="none of its values"), tune.given({"rows": 5}):
        tune.factors("rows", 64)
    with pytest.raises(tw.Invalid, match="nothing asked for row"), tune.given({"row": 16}):
        tune.factors("rows", 64)


def test_two_choices_of_one_name_are_told() -> None:
    with (
        pytest.raises(tw.Invalid, match="two choices called rows: one of 1, 2, 4, and one of 1, 3"),
        choosing(Choosing(lambda d: d.default)),
    ):
        tune.factors("rows", 4)
        tune.factors("rows", 3)


@pytest.mark.parametrize(
    "make, said",
    [
        (
            lambda: tune.factors("rows", te.size_var("n")),
            r"rows: factors of #\(n\), which is no number that is known",
        ),
        (lambda: tune.factors("rows", SIZED.op.axis[0]), "factors of n, which is no number"),
        (lambda: tune.factors("rows", 0), "which has none"),
        (lambda: tune.factors("rows", 7, least=2, most=6), "from 2 to 6: there are none"),
        (lambda: tune.factors("rows", 64, default=5), "5 by default, which is none of its values"),
        (lambda: tune.choice("way", []), "way has no values"),
        (lambda: tune.choice("way", "wide"), "no list"),
        (lambda: tune.choice("way", [1.5]), "1.5 cannot be a value"),  # type: ignore[type-var]
        (lambda: tune.choice([4, 4]), "a value twice"),
        (lambda: tune.choice("a way", [4]), "'a way' is not a name"),
        (lambda: tune.choice(4, [4]), r"a choice of \(4, \[4\]\)"),  # type: ignore[call-overload]
    ],
)
def test_what_is_no_choice_is_told(make, said: str) -> None:
    with pytest.raises(tw.Invalid, match=said):
        make()
