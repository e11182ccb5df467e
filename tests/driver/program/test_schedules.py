"""Default schedules are ordinary traces: printed, edited, put back; layouts requested from the
graph."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import tilewright as tw
from tilewright.base.errors import Invalid, Refused


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ w)


def plain(trace: str) -> str:
    """Without instructions, whose operands lie in one way only."""
    return "".join(f"{x}\n" for x in trace.splitlines() if not x.startswith("Tensorize"))


def kernel(report: Any, part: str) -> int:
    return next(k for k, info in enumerate(report.kernels) if part in info.name)


@pytest.fixture
def operands() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(40, 64), torch.randn(64, 48)


def test_a_printed_trace_put_back_changes_nothing(operands: tuple[torch.Tensor, ...]) -> None:
    fast = tw.compile(product)
    want = fast(*operands)
    report = tw.explain(fast)
    same = {info.symbol: report.trace(k) for k, info in enumerate(report.kernels)}
    again = tw.compile(product, schedules=same)
    assert torch.equal(again(*operands), want)
    other = tw.explain(again)
    for k, info in enumerate(report.kernels):
        at = [x.symbol for x in other.kernels].index(info.symbol)
        assert other.llvm(at) == report.llvm(k)


def test_an_edited_trace_is_what_runs(operands: tuple[torch.Tensor, ...]) -> None:
    fast = tw.compile(product)
    fast(*operands)
    report = tw.explain(fast)
    k = kernel(report, "matmul")
    edited = "".join(
        line + "\n" for line in report.trace(k).splitlines() if not line.startswith("Parallel")
    )
    again = tw.compile(product, schedules={report.kernels[k].symbol: edited})
    torch.testing.assert_close(again(*operands), product(*operands))
    new = tw.explain(again)
    assert new.trace(kernel(new, "matmul")) == edited
    assert any("scheduled by the given trace" in str(e) for e in new.of("schedule"))


def test_a_layout_is_requested_from_the_graph(operands: tuple[torch.Tensor, ...]) -> None:
    fast = tw.compile(product)
    fast(*operands)
    report = tw.explain(fast)
    k = kernel(report, "matmul")
    asks = "Relayout('a1', 'i, k -> k, i')\n" + plain(report.trace(k))
    again = tw.compile(product, schedules={report.kernels[k].symbol: asks})
    torch.testing.assert_close(again(*operands), product(*operands))
    new = tw.explain(again)
    at = kernel(new, "matmul")
    assert new.kernels[at].symbol == report.kernels[k].symbol
    assert re.search(r"in a1: f32\[\d+,\d+\] as i, k -> k, i of \[\d+,\d+\]", new.nest(at))
    assert len(new.kernels) == len(report.kernels) + 1


def turned(nest: str) -> str:
    """The other order of a weight's last two axes, in panels or not as the machine has them."""
    panels = re.search(r"in (a\d+): f32\[\d+,\d+,\d+\]", nest)
    if panels is not None:
        return f"Relayout('{panels[1]}', 'p, k, j -> p, j, k')\n"
    return "Relayout('a1', 'i, k -> k, i')\n"


def test_weights_are_laid_out_once() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 48), torch.nn.ReLU(), torch.nn.Linear(48, 24)
    ).eval()
    x = torch.randn(40, 64)
    with torch.no_grad():
        fast = tw.compile(model)
        want = fast(x)
        report = tw.explain(fast)
        asks = {
            info.symbol: turned(report.nest(k)) + plain(report.trace(k))
            for k, info in enumerate(report.kernels)
            if "matmul" in info.name
        }
        again = tw.compile(model, schedules=asks)
        torch.testing.assert_close(again(x), want)
    before, after = report.programs[0], tw.explain(again).programs[0]
    assert after.calls == before.calls == 2
    packed = [sum(k.calls for k in p.kernels[: p.once]) for p in (before, after)]
    assert packed == [2, 4]


def test_what_is_wrong_with_a_schedule_is_said(operands: tuple[torch.Tensor, ...]) -> None:
    fast = tw.compile(product)
    fast(*operands)
    report = tw.explain(fast)
    name = report.kernels[kernel(report, "matmul")].symbol
    with pytest.raises(Refused, match=rf"no loop nope\n  at the schedule for {name}"):
        tw.compile(product, schedules={name: "Split('nope', 3)"})(*operands)
    with pytest.raises(Invalid, match=r"line 1 of the trace is not a step"):
        tw.compile(product, schedules={name: "Spilt('y0.i0', 3)"})(*operands)
    with pytest.raises(Refused, match="takes 3 axes"):
        tw.compile(product, schedules={name: "Relayout('a1', 'i, j, k -> k, j, i')"})(*operands)
    with pytest.raises(Invalid, match="option schedules='x' is not a dict"):
        tw.compile(product, schedules="x")
    unused = tw.compile(product, schedules={"k_0": ""})
    unused(*operands)
    assert any("has no kernel k_0" in str(e) for e in tw.explain(unused).of("schedule"))
