"""Boxes of arrays behind pointers: what is recognised is the same memory under the same conditions,
and what is no box is refused with the reason."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.seeds import drawn
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Value, const, fn, index, load
from tilewright.ir.types import bf16, i64
from tilewright.kernel.group import pointer_buffer
from tilewright.kernel.views import View, box_behind, misfit, view_of

M, N, S, T = (D.sym(name, 1, 1 << 20) for name in "MNST")
DIMS = tuple(map(D.the_sym, (M, N, S, T)))
PROGRAM = D.var("program", 1000)
OTHER = D.sym("other", 0)  # not known at a launch
I, K = D.var("x.i", 64), D.var("x.k", 64)
LOOPS = (D.the_sym(I), D.the_sym(K))
A = pointer_buffer("a", bf16, "in", 16)


def less(a: Dim, b: Dim) -> Value:
    return fn("lt", index(a), index(b))


def both(*given: Value) -> Value:
    out = given[0]
    for v in given[1:]:
        out = fn("and", out, v)
    return out


@pytest.mark.parametrize("seed", drawn(range(200), 20))
def test_a_view_is_the_same_memory(seed: int) -> None:
    """Of arrays of two to four axes whose last two are walked through, at drawn places; axes that a
    place cannot leave have no condition, as lowering leaves them out."""
    r = random.Random(seed)
    print(f"seed {seed}")
    sizes = r.sample([M, N, 16 * M, 8 * N + 3], r.randint(2, 4))
    strides: list[Dim] = [*r.sample([8 * S, 8 * T, 512, 16 * S * T], len(sizes) - 1), 1]
    begin = r.choice([0, 64, 8 * T])
    places: list[Dim] = []
    given: list[tuple[Dim, Dim]] = []
    starts = r.sample([64 * PROGRAM, 64 * (PROGRAM // 7), PROGRAM % 50 + 3, 0], len(sizes))
    for k, (size, start) in enumerate(zip(sizes, starts, strict=True)):
        walked = k >= len(sizes) - 2
        own: Dim = (I, K)[k - len(sizes) + 2] if walked else 0
        bounded = (walked and r.random() < 0.3) or (start == 0 and not walked)
        places.append(own if bounded else start + own)
        if not bounded:
            given.append((places[-1], size))
    at = begin + sum((p * s for p, s in zip(places, strides, strict=True)), start=0)
    conditions = [both(*(less(p, n) for p, n in given))] if given else []
    found = view_of(load("a", (at,), bf16), conditions, LOOPS, DIMS)
    assert isinstance(found, View), found
    assert misfit(found, A, len(found.shape)) is None
    for _ in range(20):
        env = {x.name: r.randrange(1, 200) for x in DIMS}
        env |= {"program": r.randrange(1000), "x.i": r.randrange(64), "x.k": r.randrange(64)}
        there = [D.evaluate(d, env) for d in found.index]
        steps = [D.evaluate(d, env) for d in found.strides]
        first = D.evaluate(found.first, env)
        assert first + sum(map(int.__mul__, there, steps)) == D.evaluate(at, env)
        inside = all(0 <= x < D.evaluate(n, env) for x, n in zip(there, found.shape, strict=True))
        assert inside == all(D.evaluate(p, env) < D.evaluate(n, env) for p, n in given)


ROW = 8 * S * (64 * PROGRAM + I) + K
INSIDE = both(less(64 * PROGRAM + I, M), less(K, N))


@pytest.mark.parametrize(
    ("at", "given", "says"),
    [
        (ROW, less(I + K, M), "no place along one axis"),
        (ROW, both(INSIDE, less(64 * PROGRAM + I, N)), "two conditions"),
        (ROW, both(INSIDE, less(PROGRAM, N)), "does not move with"),
        (ROW, both(less(64 * PROGRAM + I, OTHER), less(K, N)), "differs between programs"),
        (ROW - 8 * S * 128, both(less(64 * PROGRAM + I - 128, M), less(K, N)), "less than 0"),
        (ROW, fn("eq", index(I), const(3, i64)), "it is read where"),
        (ROW + PROGRAM, INSIDE, "differ between programs"),
        (PROGRAM * I + K, both(less(I, M), less(K, N)), "differ between programs"),
        (ROW + 64 * OTHER, less(64 * PROGRAM + I, M), "is not known"),
    ],
)
def test_what_is_no_box_says_why(at: Dim, given: Value, says: str) -> None:
    found = view_of(load("a", (at,), bf16), [given], LOOPS, DIMS)
    assert isinstance(found, str) and says in found, found


def test_places_before_the_beginning_may_be_asked_for() -> None:
    """Where a condition says so: the copy engine gives zeros there."""
    place = 64 * PROGRAM + I - 128
    given = both(less(place, M), fn("le", const(0, i64), index(place)), less(K, N))
    found = view_of(load("a", (8 * S * place + K,), bf16), [given], LOOPS, DIMS)
    assert isinstance(found, View) and found.index == (place, K)


@pytest.mark.parametrize(
    ("at", "buffer", "says"),
    [
        (S * (64 * PROGRAM + I) + K, A, "multiples of 16 bytes"),
        (ROW + 4, A, "multiples of 16 bytes"),
        (ROW, replace(A, alignment=2), "multiples of 16 bytes"),
        (ROW, replace(A, scope="out"), "may be written"),
        (ROW + K, A, "are 2 apart"),
    ],
)
def test_what_the_engine_does_not_take_says_why(at: Dim, buffer, says: str) -> None:
    found = box_behind(buffer, load("a", (at,), bf16), [INSIDE], LOOPS, DIMS, 2)
    assert isinstance(found, str) and says in found, found


def test_a_box_begins_where_its_loops_do() -> None:
    found = box_behind(A, load("a", (ROW + 16 * T,), bf16), [INSIDE], LOOPS, DIMS, 2)
    assert not isinstance(found, str) and found.view is not None
    assert found.box == (64, 64) and found.first == (64 * PROGRAM, 0)
    assert found.view.first == 16 * T and found.view.shape == (M, N)
    assert isinstance(box_behind(A, load("a", (ROW,), bf16), [INSIDE], LOOPS, DIMS, 3), str)
