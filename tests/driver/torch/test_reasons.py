"""Why graphs are cut and programs compiled again, in words, with what to change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tilewright as tw
from tests.seeds import every_run
from tilewright.base import knobs
from tilewright.driver.torch.reasons import _BREAKS, break_reason, fallback_remedy, title_of
from tilewright.driver.torch.recompiled import Frame, change_of

torch = pytest.importorskip("torch")

COMPILERS = [tw.compile, lambda f: torch.compile(f, backend="tilewright")]
SPARE = len("    change: ")


def prints(x: Any) -> Any:
    print("x")
    return x


def prints_between(x: Any) -> Any:
    y = x * 2
    print("y")
    return y


def reads(x: Any) -> Any:
    return x * x.sum().item()


def branches(x: Any) -> Any:
    if x.sum() > 0:
        return x + 1
    return x - 1


def loops(x: Any) -> Any:
    while x.sum() < 10:
        x = x * 2 + 5
    return x


def selects(x: Any) -> Any:
    return x[x > 0] + 1


def asks(x: Any) -> Any:
    torch._dynamo.graph_break()
    return x + 1


def opens(x: Any) -> Any:
    with open("/dev/null") as f:
        return x * len(f.read()) + 1


BROKEN = [
    (prints, "it prints", "print after the call", 0),
    (prints_between, "it prints", "print after the call", 1),
    (reads, "a number is read", "without .item()", 2),
    (branches, "depends on a tensor's data", "torch.where", 2),
    (loops, "depends on a tensor's data", "torch.while_loop", 2),
    (selects, "the size of a result", "torch.where(mask", 2),
    (asks, "asks for a cut", "remove this call", 1),
    (opens, "outside of the program", "before the call", 0),
]


@every_run(0, 3, 4, 7, 8, 11, 12, 15)
@pytest.mark.parametrize("compiler", COMPILERS, ids=["tw", "torch"])
@pytest.mark.parametrize("case", BROKEN, ids=lambda c: c[0].__name__)
def test_every_cut_is_told_with_its_line_and_remedy(
    compiler: Callable[..., Any], case: Any
) -> None:
    """Also where no graph is left before the cut, or none at all, and where code resumes in
    itself."""
    f, what, remedy, programs = case
    torch._dynamo.reset()
    fast = compiler(f)
    with knobs.data_sizes.override(f is not selects):  # such sizes are no cut otherwise
        fast(torch.full((3,), 0.5))
    made = tw.explain(fast)
    found = made.summary
    assert not found.whole and len(made.programs) == programs
    told = next(p for p in found.problems if what in p.what)
    assert told.kind == "graph-break" and remedy in told.remedy
    first = f.__code__.co_firstlineno
    (place,) = told.places
    assert place.startswith(f"{__file__}:") and first < int(place.rpartition(":")[2]) < first + 5
    lines = str(made).splitlines()
    assert len(list(found.lines())) <= 10 and "graph break" in lines[0]
    assert any(told.line in x for x in lines[:10]) and f"    change: {told.remedy}" in lines[:10]


def test_strict_tells_the_same_as_a_report() -> None:
    torch._dynamo.reset()
    made = tw.explain(tw.compile(prints, torch.ones(3)))
    (event,) = made.graph_breaks
    with pytest.raises(tw.TilewrightError) as refused:
        tw.compile(prints, torch.ones(3), strict=True)
    said = refused.value
    assert said.what.endswith(f": {event.message}") and said.where == event.where
    assert said.hint is not None and said.hint.startswith(event.data["remedy"])


def test_nothing_to_compile_is_no_error() -> None:
    made = tw.explain(tw.compile(lambda x: x, torch.ones(3)))
    assert made.summary.whole and "no operator of torch was captured" in str(made)


def test_code_without_a_graph_has_no_session_of_another() -> None:
    """Torch counts compilations from 0 after a reset."""
    kept = torch.compile(branches, backend="tilewright")
    torch._dynamo.reset()
    kept(torch.ones(3))
    known = tw.explain(kept)
    torch._dynamo.reset()
    fast = torch.compile(prints, backend="tilewright")
    fast(torch.ones(3))
    assert known.programs and not tw.explain(fast).programs


def scaled(x: Any, n: Any = 3) -> Any:
    return x * n


FACTOR = 1


def by_global(x: Any) -> Any:
    return x * FACTOR


CHANGES = [
    (scaled, (torch.ones(3, 4),), (torch.ones(5, 4),), "x has another size: axis 0 was 3 and is 5"),
    (scaled, (torch.ones(3),), (torch.ones(3, 1),), "x has another number of axes: it had 1 and"),
    (
        scaled,
        (torch.ones(3),),
        (torch.ones(3).double(),),
        "x has another dtype: it was float32 and is float64",
    ),
    (scaled, (torch.ones(3), 3), (torch.ones(3), 4), "n was 3 and is 4"),
    (scaled, (torch.ones(3), 3), (torch.ones(3), torch.ones(3)), "n was 3 and is a Tensor"),
    (
        scaled,
        (torch.ones(3),),
        (torch.ones(3).requires_grad_(),),
        "x needs a gradient now (requires_grad)",
    ),
    (scaled, (torch.ones(4, 4),), (torch.ones(4, 4).t(),), "axis 0 was 4 and is 1"),
    (by_global, (torch.ones(3),), (torch.ones(3),), "the global FACTOR was 1 and is 2"),
]


@every_run(0, 3, 4, 7, 8, 11, 12, 15)
@pytest.mark.parametrize("compiler", COMPILERS, ids=["tw", "torch"])
@pytest.mark.parametrize("case", CHANGES, ids=lambda c: c[3].replace(" ", "-"))
def test_a_recompile_says_what_changed(
    compiler: Callable[..., Any], case: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    f, first, second, words = case
    torch._dynamo.reset()
    fast = compiler(f)
    fast(*first)
    monkeypatch.setitem(f.__globals__, "FACTOR", 2)
    with tw.record() as log:
        fast(*second)
    (event,) = log.of("recompile")
    assert words in event.message and event.where is not None and event.data["remedy"]
    (problem,) = tw.explain(fast).summary.problems
    assert words in problem.what and problem.kind == "recompile"
    assert tw.explain(fast).summary.whole, "a recompile leaves nothing in eager"


def test_a_recompile_by_a_setting() -> None:
    fast = tw.compile(scaled)
    fast(torch.ones(3))
    with torch.no_grad():
        fast(torch.ones(3))
    (event,) = fast.log.of("recompile")
    assert "torch.no_grad" in event.message


@pytest.mark.parametrize(
    ("guard", "words"),
    [
        ("args[1]['a'] == 1      # x*d['a']", "d['a'] was 1 and is 2"),
        ("kwargs['n'] == 3", "n was 3 and is 4"),
        ("function.flag == 1", "self.flag was 1 and is another"),
        ("args[7] == 1", "argument 7 was 1 and is another"),
        ("___check_type_id(args[0], 123), type=int", "x has another type"),
        ("tensor 'args[0]' requires_grad mismatch. expected requires_grad=1", "x does not need"),
        ("something(else)", "something(else) holds no more"),
    ],
)
def test_guards_in_words(guard: str, words: str) -> None:
    frame = Frame({"args": (1, {"a": 2}), "kwargs": {"n": 4}, "function": len}, {}, ("x", "d"))
    assert words in change_of(guard, frame).words


def test_unknown_cuts_have_torchs_words() -> None:
    text = "Odd thing\n  Explanation: It is odd.\n  Hint: Do not print.\n"
    text += "\n  Developer debug context: Tensor.item("
    assert break_reason(text).what == title_of(text) == "Odd thing"
    assert break_reason(text).remedy == "Do not print."
    assert "take this line out" in break_reason("Odd thing").remedy
    assert "custom operator" in fallback_remedy("mine.twice.default")
    assert "native form" in fallback_remedy("aten.svd.default")


def test_remedies_fit_a_line() -> None:
    assert all(len(r.remedy) + SPARE <= 120 for _, r in _BREAKS)
