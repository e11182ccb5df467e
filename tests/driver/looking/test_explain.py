"""What became of a program, in tables and in full."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import tilewright as tw
from tests.driver.outside import OUTSIDE, outside
from tilewright import ops
from tilewright.base.errors import Invalid
from tilewright.base.events import Event
from tilewright.driver.looking.explain import (
    Explanation,
    bytes_text,
    explain,
    short_place,
    short_trace,
)
from tilewright.driver.program.programs import compile_graph
from tilewright.graph.cluster import CRITERIA
from tilewright.ir import dim as D
from tilewright.ir.node import Graph, Place, input
from tilewright.ir.types import TensorType, f32
from tilewright.kernel.step import parse_trace
from tilewright.kernel.text import parse_group, parse_nest
from tilewright.runtime.program import Program

torch = pytest.importorskip("torch")
build: Any = ops


def two_kernels() -> Program:
    """exp of a product, then the largest value per row: a reduction does not fuse into it."""
    x = input("x", TensorType(f32, (8, 32)))
    w = input("w", TensorType(f32, (32, 16)), "weight")
    product = build.matmul(x, w)
    e = build.exp(product)
    top = build.amax(e, (1,), True)
    places = {n: frozenset({Place("model.py", k)}) for k, n in enumerate((product, e, top), 10)}
    return compile_graph(Graph("main", (x, w), (top,), places))


@pytest.fixture(scope="module")
def program() -> Program:
    return two_kernels()


def test_a_program(program: Program) -> None:
    made = tw.explain(program)
    (report,) = made.programs
    assert (report.name, report.operators) == ("main", 3)
    assert report.clusters >= 2 and len(report.kernels) >= 2
    assert report.seconds > 0 and "kernels" in report.phases
    assert report.calls == sum(k.calls for k in program.kernels), "the prologue does not count"
    assert program.prologue is None or report.once == len(program.prologue.kernels)
    assert made.refusals and {r.criterion for r in made.refusals} <= set(CRITERIA)
    text = str(made)
    assert "main: 3 operators" in text and "distinct kernel" in text
    assert "model.py:10" in text and "not fused because" in text
    assert "no fallbacks" in text


def test_worst_kernels_against_their_roof(program: Program) -> None:
    made = tw.explain(program)
    worst = made.summary.worst
    assert worst and [r.lost for r in worst] == sorted((r.lost for r in worst), reverse=True)
    for r in worst:
        assert r.kernel is made.kernels[r.number] and r.number >= made.programs[0].once
        assert 0 < r.roof <= r.seconds and 0 < r.share <= 1 and r.bound in ("memory", "arithmetic")
    first = str(made).splitlines()[:10]
    assert "nothing broke" in first[0] and f"kernel {worst[0].number} " in first[1]
    assert made.facts()["summary"]["worst_kernels"][0]["number"] == worst[0].number


def test_one_kernel_in_full(program: Program) -> None:
    made = explain(program)
    for k, info in enumerate(made.kernels):
        assert made.trace(k) == info.trace
        assert parse_trace(made.trace(k)), "a schedule has steps"
        assert parse_group(made.group(k)).stages
        assert parse_nest(made.nest(k)).body
        assert made.legal(k).startswith("nest ")
        assert "define void @" in made.llvm(k)
        assert made.assembly(k).strip()
    with pytest.raises(Invalid, match="there is no kernel 99"):
        made.trace(99)


def test_plain_text_without_a_terminal(program: Program) -> None:
    text = str(explain(program))
    assert "\x1b" not in text
    assert all(len(line) <= 120 and line == line.rstrip() for line in text.splitlines())


def test_colours_on_a_terminal(program: Program) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    console.print(explain(program))
    out = console.file
    assert isinstance(out, io.StringIO) and "\x1b[1m" in out.getvalue()


def test_symbolic_dims_and_arena() -> None:
    s = D.sym("s0", 1, 4096)
    x = input("x", TensorType(f32, (s, 8)))
    out = build.amax(build.exp(build.sum(x, (1,), True)), (0,), True)
    made = explain(compile_graph(Graph("rows", (x,), (out,))))
    assert "for any s0" in str(made)


def test_events_are_shown() -> None:
    made = Explanation(
        (),
        (
            Event("fallback", "aten.foo runs in eager: no definition", "model.py:3"),
            Event("graph-break", "data-dependent branch", "model.py:4"),
            Event("specialise", "forward0 for s0 = 7"),
        ),
    )
    text = str(made)
    assert "aten.foo" in text and "model.py:3" in text
    assert "graph break" in text and "data-dependent" in text
    assert "specialisation" in text and "no fallbacks" not in text


def double_then_sine(x: Any) -> Any:
    return torch.sin(x * 2)


def test_compiled_by_tw() -> None:
    fast = tw.compile(double_then_sine, torch.randn(3, 4))
    made = tw.explain(fast)
    assert len(made.kernels) == 1
    assert "test_explain.py" in str(made), "the user's line is shown"


def test_compiled_by_torch() -> None:
    def broken(x: Any) -> Any:
        y = double_then_sine(x)
        torch._dynamo.graph_break()
        return y.cos()

    fast = torch.compile(broken, backend="tilewright")
    fast(torch.randn(3, 4))
    made = tw.explain(fast)
    assert len(made.programs) == 2, "before and after the break"
    (one,) = made.graph_breaks
    assert one.where is not None and "test_explain.py" in one.where


def test_modules_compiled_by_torch() -> None:
    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 6)

        def forward(self, x: Any) -> Any:
            return self.layer(x).exp()

    plain = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    other = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU())
    made = [torch.compile(m, backend="tilewright") for m in (plain, other, Own())]
    with torch.no_grad():
        for fast in made:
            fast(torch.randn(2, 4))
    for fast in made:
        (report,) = tw.explain(fast).programs
        assert report.kernels


def test_a_fallback_is_shown() -> None:
    def with_fallback(x: Any) -> Any:
        return outside(x * 2) + 1

    made = tw.explain(tw.compile(with_fallback, torch.eye(3)))
    assert made.fallbacks[0].data["operator"] == OUTSIDE
    assert "runs in eager" in str(made) and "test_explain.py" in str(made)


@pytest.mark.parametrize("what", [len, 3, torch.nn.Linear(2, 2), double_then_sine])
def test_what_was_not_compiled(what: Any) -> None:
    torch._dynamo.reset()
    with pytest.raises(Invalid, match="nothing that Tilewright compiled"):
        tw.explain(what)


def test_not_called_yet() -> None:
    with pytest.raises(Invalid, match="nothing yet"):
        tw.explain(tw.compile(double_then_sine))


def test_short_forms() -> None:
    trace = "Split(loop='a', factor=4)\nUnroll(loop='c')\nSplit(loop='b', factor=4)\n"
    assert short_trace(f"{trace}Parallel(loop='a.0', grain=8)\n") == (
        "Split×2 Unroll Parallel(grain 8)"
    )
    assert short_trace("") == "as it is"
    assert short_place(None) == "" and short_place("x.py:3") == "x.py:3"
    assert short_place("/a/b/c/d/x.py:3") == "…/d/x.py:3"
    assert short_place(f"{Path.cwd()}/tests/x.py:3") == "tests/x.py:3"
    assert [bytes_text(n) for n in (0, 2048, 3 << 20, 5 << 30)] == [
        "0 bytes",
        "2.0 KiB",
        "3.0 MiB",
        "5.00 GiB",
    ]
    assert bytes_text(D.sym("s0") * 4) == "4*s0 bytes"
