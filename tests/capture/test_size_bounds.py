"""Guards between sizes bound them, and conditions that guards decide are constants."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import Any

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

import tilewright as tw
from tests.seeds import drawn
from tilewright.capture.torch.size_bounds import guarded_ranges

S: Any = sympy.Symbol("s0", integer=True)
T: Any = sympy.Symbol("s1", integer=True)


def _ranges(*guards: Any, of: tuple[Any, Any] = (ValueRanges(0, int_oo),) * 2) -> Any:
    env = SimpleNamespace(
        guards=[SimpleNamespace(expr=g) for g in guards],
        var_to_range=dict(zip((S, T), of, strict=True)),
    )
    return guarded_ranges(env)


@pytest.mark.parametrize(
    ("guard", "least", "most"),
    [
        (sympy.Eq(sympy.Min(512, S, evaluate=False), S, evaluate=False), 0, 512),
        (sympy.Eq(S, sympy.Max(3, S, evaluate=False), evaluate=False), 3, int_oo),
        (sympy.Lt(4 * S, 63), 0, 15),
        (sympy.Ge(S, sympy.Max(2, T)), 2, int_oo),
        (sympy.Le(S * T, 64), 0, int_oo),  # s1 may be 0
        (sympy.Ne(S, 1), 0, int_oo),
        (sympy.Or(sympy.Le(S, 3), sympy.Le(T, 3)), 0, int_oo),
    ],
)
def test_a_guard_bounds_a_size(guard: Any, least: Any, most: Any) -> None:
    found = _ranges(guard)[S]
    assert (found.lower, found.upper) == (least, most)


def test_bounds_follow_from_each_other() -> None:
    found = _ranges(sympy.Le(S, 4 * T), sympy.Eq(sympy.Min(100, T), T, evaluate=False))
    assert found[S].upper == 400
    product = _ranges(sympy.Lt(S * T, 2**20), sympy.Ge(T, 1024), of=_from(0, 1))
    assert product[S].upper == 1023


def _from(*least: int) -> Any:
    return tuple(ValueRanges(x, int_oo) for x in least)


@pytest.mark.parametrize("part", drawn(range(5), 1))
def test_no_call_that_guards_let_in_is_outside_of_the_bounds(part: int) -> None:
    seed = random.randrange(2**32)
    print("part", part, "seed", seed)
    draw, top = random.Random(seed), 12

    def size(depth: int = 0) -> Any:
        kind = draw.choice(("symbol", "number", "sum", "product", "min", "max")[: 6 - 2 * depth])
        if kind in ("symbol", "number"):
            return draw.choice((S, T)) if kind == "symbol" else sympy.Integer(draw.randint(0, 20))
        a, b = size(depth + 1), size(depth + 1)
        return {
            "sum": a + draw.choice((-2, -1, 1, 3)) * b,
            "product": a * b,
            "min": sympy.Min(a, b, evaluate=False),
            "max": sympy.Max(a, b, evaluate=False),
        }[kind]

    smaller = 0
    for _ in range(60):
        relations = (sympy.Le, sympy.Lt, sympy.Ge, sympy.Gt, sympy.Eq)
        guards = [draw.choice(relations)(size(), size()) for _ in range(draw.randint(1, 3))]
        found = _ranges(*guards, of=(ValueRanges(0, top),) * 2)
        smaller += any(found[x] != ValueRanges(0, top) for x in (S, T))
        lets_in = sympy.lambdify((S, T), guards, "math")
        for s, t in itertools.product(range(top + 1), repeat=2):
            if all(lets_in(s, t)):
                at = {S: s, T: t}
                assert all(found[x].lower <= at[x] <= found[x].upper for x in at), guards
    assert smaller > 10


def _with_positions(x: Tensor, positions: Tensor) -> Tensor:
    return x.relu() + positions[:, : x.shape[1]]


def test_a_size_is_at_most_what_is_sliced() -> None:
    torch._dynamo.reset()
    fast = tw.compile(_with_positions, dynamic=True, strict=True, specialise_after=0)
    table = torch.randn(1, 50, 8)
    torch._dynamo.mark_static(table)
    for shape in ((3, 20, 8), (2, 7, 8), (1, 50, 8), (5, 33, 8)):
        x = torch.randn(shape)
        torch._dynamo.mark_static(x, 2)
        torch.testing.assert_close(fast(x, table), _with_positions(x, table))
    assert fast.log.counts["compile"] == 1


def _attended(x: Tensor, causal: bool) -> Tensor:
    causal = x.shape[2] > 1 and causal
    return F.scaled_dot_product_attention(x, x, x, is_causal=causal)


def test_a_branch_by_a_size_decides_what_operators_are_given() -> None:
    torch._dynamo.reset()
    fast = tw.compile(_attended, dynamic=True, strict=True, specialise_after=0)
    for length in (9, 1, 17, 1, 30):
        x = torch.randn(2, 3, length, 16)
        torch.testing.assert_close(fast(x, True), _attended(x, True))
    assert fast.log.counts["compile"] == 2
