"""Large values between products, computed in parts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tilewright as tw
from tests.graph.build import arg, build, graph
from tests.seeds import every_run
from tilewright.base.events import Log
from tilewright.graph.decompose import Decompose
from tilewright.graph.in_parts import InParts
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, Node
from tilewright.ir.rewrite import subgraphs
from tilewright.ir.types import TensorType, bf16, i64
from tilewright.ops.control import Scan

SMALL = InParts(least=1, part=1, positions=4)


def logits(rows: int, words: int, width: int = 1) -> tuple[Node, Node, Node]:
    """With operands, of which there are few terms: then the work is worth a loop."""
    x, w = arg("x", rows, width), arg("w", words, width)
    return x, w, build.matmul(x, build.permute(w, (1, 0)))


def in_parts(before: Graph, step: InParts = SMALL) -> Graph:
    """The graph after the pass, which computes the same: numbers are whole, so sums are exact."""
    before = Decompose().apply(before, Log())
    after = step.apply(before, Log())
    drawn = np.random.default_rng(0)
    given = [drawn.integers(-3, 4, _sizes(x)).astype(x.dtype.numpy) for x in before.inputs]
    for a, b in zip(evaluate(before, given), evaluate(after, given), strict=True):
        np.testing.assert_array_equal(a, b)
    return after


def _sizes(n: Node) -> tuple[int, ...]:
    return tuple(d for d in n.shape if isinstance(d, int))


def loops(g: Graph) -> list[Scan]:
    return [n.op for n in g.nodes() if isinstance(n.op, Scan)]


def largest(g: Graph) -> int:
    """Elements of the largest value, in loops too."""
    found = [prod(_sizes(n)) for n in g.nodes() if isinstance(n.type, TensorType)]
    return max([*found, *(largest(x) for n in g.nodes() for x in subgraphs(n.op))])


def generous(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if moving bytes cost nothing: small products are not worth any."""
    monkeypatch.setattr("tilewright.graph.in_parts._WORK", 1e-9)


@pytest.mark.parametrize("rows", [12, 13])
def test_rows_of_a_loss_in_parts_and_what_is_left(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generous(monkeypatch)
    _, _, y = logits(rows, 40)
    at = arg("at", rows, 1, dtype=i64)
    loss = build.sub(build.gather(build.maximum(y, 0.5), at, 1), build.amax(y, (1,), True))
    made = in_parts(graph(loss))
    (loop,) = loops(made)
    assert loop.length == 3 and loop.carried == 0
    assert largest(made) < rows * 40


def test_the_gradient_goes_through_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less is carried and read again than along the rows."""
    generous(monkeypatch)
    x, w, y = logits(24, 64, width=2)
    g = build.where(build.eq(build.iota(64), arg("at", 24, 1, dtype=i64)), build.abs(y), y)
    results = build.matmul(g, w), build.matmul(build.permute(g, (1, 0)), x), build.sum(g, (0,))
    made = in_parts(graph(*results))
    (loop,) = loops(made)
    assert loop.length == 16 and loop.carried == 1
    assert largest(made) < 24 * 64


@pytest.mark.parametrize("words", [1024, 1031])
@pytest.mark.parametrize("kept", [True, False])
def test_words_of_a_loss_with_a_running_maximum(
    kept: bool, words: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operand of all words is read once; what is left over is where the maximum begins."""
    generous(monkeypatch)
    _, _, flat = logits(12, words, width=2)
    y = build.reshape(build.add(build.reshape(flat, (3, 4, words)), 0.5), (12, words))
    most = build.amax(y, (1,), True)
    total = build.sum(build.exp(build.sub(y, most)), (1,), kept)
    one = build.gather(y, arg("at", 12, 1, dtype=i64), 1)
    before = graph(most, build.log(total), one)
    after = InParts(least=1, part=12 * words, positions=4).apply(before, Log())
    (loop,) = loops(after)
    assert loop.length == 4 and loop.carried == 3
    drawn = np.random.default_rng(0)
    given = [drawn.normal(size=_sizes(x)).astype("f4") for x in before.inputs[:2]]
    given.append(drawn.integers(0, words, (12, 1)))
    x, w, _ = given
    x[4:] = [1, 0]
    x[3] = 0  # no number
    w[:300, 0] = -np.inf  # words that are not there, more than a part has
    w[:, 1] = -np.inf
    x[5] = [0.5, 0.5]  # nothing finite
    x[6] = [-1, 0]  # infinite
    with np.errstate(invalid="ignore", over="ignore"):
        for a, b in zip(evaluate(before, given), evaluate(after, given), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)


def test_maxima_of_rows_that_stand_beside_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a square the maximum without its axis is subtracted from the columns."""
    generous(monkeypatch)
    _, _, y = logits(40, 40, width=2)
    for axis in (0, 1):
        total = build.sum(build.exp(build.sub(y, build.amax(y, (axis,)))), (axis,))
        before = graph(build.log(total))
        after = InParts(least=1, part=40 * 40, positions=4).apply(before, Log())
        drawn = np.random.default_rng(0)
        given = [drawn.normal(size=_sizes(x)).astype("f4") for x in before.inputs]
        for a, b in zip(evaluate(before, given), evaluate(after, given), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4)


def test_rows_that_are_several_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    generous(monkeypatch)
    _, _, flat = logits(12, 40)
    y = build.add(build.reshape(flat, (3, 4, 40)), arg("b", 1, 1, 40))
    y = build.sub(y, build.amax(y, (2,), True))
    made = in_parts(graph(build.sum(y, (0, 1), True), build.sum(y, (2,), False)))
    assert [(loop.length, loop.carried) for loop in loops(made)] == [(3, 1)]


def _leaves(y: Node) -> tuple[Node, ...]:
    return build.exp(y), build.sum(y, (1,))


def _along_both(y: Node) -> tuple[Node, ...]:
    return (build.sum(build.sub(build.sub(y, build.amax(y, (0,))), build.amax(y, (1,), True))),)


def _shifted(y: Node) -> tuple[Node, ...]:
    turned = build.flip(build.flip(y, (0,)), (1,))
    return (build.sum(build.mul(turned, build.sub(y, 1.0)), (0, 1)),)


def _narrow(y: Node) -> tuple[Node, ...]:
    one = build.cast(build.amax(y, (0,)), bf16)
    return build.amax(y, (0,)), build.amax(y, (1,)), build.sub(one, one)


@pytest.mark.parametrize("made_of", [_leaves, _along_both, _shifted, _narrow])
def test_what_needs_all_of_it_is_left_alone(
    made_of: Callable[[Node], tuple[Node, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    generous(monkeypatch)
    _, _, y = logits(12, 40)
    assert not loops(in_parts(graph(*made_of(y))))


def test_only_where_it_is_large_and_costs_little() -> None:
    _, _, y = logits(256, 4096, width=64)
    loss = graph(build.sum(build.exp(y), (1,)))
    assert loops(InParts(least=1 << 20, part=1 << 20).apply(loss, Log()))
    assert not loops(InParts(least=1 << 23).apply(loss, Log()))
    _, _, short = logits(256, 256, width=64)  # rows that get little longer
    loss = graph(build.sum(build.exp(short), (1,)))
    assert not loops(InParts(least=1, part=1 << 14).apply(loss, Log()))


class Head(nn.Module):
    def __init__(self, width: int, words: int, **how: Any) -> None:
        super().__init__()
        self.linear, self.how = nn.Linear(width, words), how

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.linear(x).flatten(0, 1), at.flatten(), **self.how).sum()


@pytest.mark.parametrize(
    ("how", "values"),
    [({}, 1), ({"reduction": "sum", "label_smoothing": 0.1}, 2), ({"reduction": "none"}, 1)],
    ids=str,
)
@every_run(1)
def test_a_loss_over_words_never_has_all_of_them(how: dict[str, Any], values: int) -> None:
    """Neither pass has memory for an element of each row and word, of which there would be so many
    values; float64 judges the results."""
    torch.manual_seed(0)
    rows, width, words = 1024, 32, 8000
    module = Head(width, words, **how)
    x, at = torch.randn(2, rows // 2, width), torch.randint(words, (2, rows // 2))
    at[0, :3] = -100

    def step(module: nn.Module, x: torch.Tensor, call: Any = None) -> list[Any]:
        x = x.clone().requires_grad_()
        loss = (call or module)(x, at)
        loss.backward()
        return [loss.detach(), x.grad, *(p.grad for p in module.parameters())]

    right = step(copy.deepcopy(module).double(), x.double())
    eager = step(copy.deepcopy(module), x)
    torch._dynamo.reset()
    call = tw.compile(module, activation_memory=0.1)
    ours = step(module, x, call)
    for a, b, r in zip(ours, eager, right, strict=True):
        allowed = 2 * (b - r).abs().max() + 4 * torch.finfo(torch.float32).eps * r.abs().max()
        assert (a - r).abs().max() <= allowed
    for program in tw.explain(call).programs:
        assert program.arena < values * 0.7 * rows * words * 4, program
