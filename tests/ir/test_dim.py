"""Index functions: what is proved of them holds at every point."""

from __future__ import annotations

import random
from itertools import product

import pytest

from tilewright.ir import dim as D


@pytest.mark.parametrize("lanes", [2, 4, 8])
@pytest.mark.parametrize("wide", [4, 8, 12, 16])
@pytest.mark.parametrize("columns", [64, 100, 254, 255, 256])
def test_tail_of_a_tail(columns: int, wide: int, lanes: int) -> None:
    """Columns in tiles, tiles in vectors: a simplified extent is the same number everywhere, and is
    a number where tiles and their tail are whole vectors."""
    # The names sort before and after min(…): a proof must not depend on that.
    for tile, vector in (("i", "j"), ("y.i.0", "y.i.1.0"), ("i", "y")):
        i = D.var(tile, D.ceildiv(columns, wide))
        tail = D.minimum(wide, columns - i * wide)
        j = D.var(vector, D.ceildiv(tail, lanes))
        lane = D.minimum(lanes, tail - j * lanes)
        if columns % lanes == 0 and wide % lanes == 0:
            assert lane == lanes
        for a in range(-(-columns // wide)):
            here = min(wide, columns - a * wide)
            for b in range(-(-here // lanes)):
                found = D.evaluate(lane, {tile: a, vector: b})
                assert found == min(lanes, here - b * lanes)


def test_multiples() -> None:
    """Of a multiple of 4, more than -4 is at least 0; of anything else it is not."""
    x = D.sym("x", -3, 100)
    assert D.known_le(0, 4 * x + 12)
    assert not D.known_le(0, 4 * x + 11)
    fours = D.sym("n", -3, 100, multiple=4)
    assert D.known_le(0, fours)
    assert not D.known_le(0, D.sym("m", -3, 100, multiple=2))
    assert D.divisor(D.minimum(12, 256 - 12 * D.var("k", 22))) == 4
    assert D.divisor(D.floordiv(D.var("k", 22), 4)) == 1


def test_one_form() -> None:
    """However a function is written, it is one object; constants are plain numbers."""
    i, j = D.var("i", 5), D.var("j", 7)
    assert (i + 3) + (j - 3) is i + j
    assert 2 * (i + j) - 2 * j is 2 * i
    assert 0 - (3 - i) is i - 3
    assert i - i == 0 and i * 0 == 0 and (i + 4) - i == 4
    assert 0 - (-i) is i
    assert (i * 7 + j) // 7 is i and (i * 7 + j) % 7 is j


def test_a_maximum_is_no_less_than_either_argument() -> None:
    line, step = D.var("line", 56), D.var("step", 3)
    first = D.maximum(0, 1 - line)
    assert D.nonneg(line + first + step - 1)
    assert D.known_le(D.minimum(line, step), line)
    assert not D.nonneg(line + first + step - 2)


@pytest.mark.parametrize("sizes", [(3, 5), (2, 3, 4), (2, 4, 3, 5), (4, 6, 2, 2, 3)])
def test_digits_put_together_are_the_number(sizes: tuple[int, ...]) -> None:
    """However many there are: (x//m)//n is x//(m*n), which belongs to the remainder (x//m)%n."""
    count = 1
    for n in sizes:
        count *= n
    x = D.var("x", count)
    rest: D.Dim = x
    total: D.Dim = 0
    step = 1
    for n in reversed(sizes):
        total = total + step * D.mod(rest, n)
        rest, step = D.floordiv(rest, n), step * n
    assert total == x and rest == 0


def test_remainders_of_what_is_brought_to_a_multiple() -> None:
    r, k = D.var("r", 100), D.var("k", 50)
    first = D.mod(-67 * r, 8)
    for n in (2, 4, 8):
        assert D.mod(67 * r + first + 8 * k, n) == 0
        assert D.mod(67 * r + first + 3, n) == 3 % n
    assert not isinstance(D.mod(67 * r + first, 16), int)
    assert not isinstance(D.mod(67 * r + 2 * first, 8), int)


def test_steps_through_remainders() -> None:
    i, n, k = D.var("i", 8), D.sym("n", 1), D.sym("k", 1)
    s = D.the_sym(i)
    assert D.wrapped_coefficient(3 * k + 2 * i, s) == 2
    assert D.wrapped_coefficient(D.mod(k + i, n) * 5 + k, s) == 5
    assert D.wrapped_coefficient(D.mod(D.mod(k + i, n) + i, n + 1) * k, s) == 2 * k
    assert D.wrapped_coefficient(D.mod(k, n), s) == 0
    for hidden in (D.floordiv(k + i, n), D.mod(k, n + i), i * i, D.minimum(i, n)):
        assert D.wrapped_coefficient(hidden, s) is None


def test_the_remainder_of_a_number_by_a_symbol() -> None:
    n = D.sym("n", 1)
    for a in (-1, 0, 3):
        assert [D.evaluate(D.mod(a, n), {"n": k}) for k in (1, 2, 5)] == [a % 1, a % 2, a % 5]


def test_quotients_of_variables_with_open_ends() -> None:
    """Two loops that became one, and panels that a last one fills up."""
    b, n = D.sym("b", 1), D.sym("n", 1)
    both = D.var("both", 12 * b)
    assert D.known_lt(D.floordiv(both, 12), b)
    assert not D.known_lt(D.floordiv(both, 11), b)
    assert D.minimum(b - D.floordiv(both, 12), 1) == 1
    keys = 16 * D.ceildiv(n, 16)
    panels = D.ceildiv(keys, 48)
    column = D.var("column", 48 * panels)
    assert D.known_lt(D.floordiv(column, 48), panels)
    assert not D.known_lt(D.floordiv(column, 47), panels)
    # Both ends of what is divided have the same quotient.
    few = -D.minimum(keys, 48)
    assert D.floordiv(few, 48) == -1 and D.mod(few, 48) == few + 48
    assert D.floordiv(few, 32) != -1


def test_loops_over_sizes_that_may_be_zero_become_one() -> None:
    """Where the size is zero the loop has no iterations, and nothing has to hold."""
    b, h, w = (D.sym(x, 0) for x in "bhw")
    for size in (w, w + 6, D.floordiv(w + 1, 2)):
        both = D.var("both", b * h * size)
        row, column = D.floordiv(both, size), D.mod(both, size)
        assert D.nonneg(row) and D.nonneg(column)
        assert D.known_lt(column, size) and D.known_lt(row, b * h)
        assert not D.known_lt(column, size - 1) and not D.known_lt(row, b * h - 1)
        assert row * size + column == both
        image, line = D.floordiv(row, h), D.mod(row, h)
        assert image * h * size + line * size + column == both
        assert image * h * (size + 1) + line * size + column != both


def test_whole_tiles_of_half_a_size() -> None:
    """What is left of a size that is itself a quotient, before its last tile."""
    half = D.floordiv(D.sym("s", 0) + 1, 2)
    tile = D.var("tile", D.floordiv(half, 14))
    assert D.minimum(half - 14 * tile, 14) == 14
    assert D.minimum(half - 14 * tile, 15) != 15


@pytest.mark.parametrize("seed", range(3))
def test_what_is_proved_of_quotients_holds(seed: int) -> None:
    """Random claims with symbolic divisors, judged by all small values; zero divides nothing."""
    draw = random.Random(seed)
    n, m = D.sym("n", 0), D.sym("m", 0)
    proved = 0
    for _ in range(400):
        by = draw.choice([n, m + draw.randint(0, 3), D.floordiv(n + draw.randint(0, 3), 2)])
        loop = D.var("i", m * by if draw.random() < 0.5 else m * n)
        of = draw.choice([D.floordiv, D.mod])(loop + draw.choice([0, 0, 1, n]), by)
        claim = draw.choice([by, m, n, m * n]) - draw.choice([1, 1, 2]) * of - draw.randint(0, 2)
        if not D.nonneg(claim):
            continue
        proved += 1
        for size, rows in product(range(5), range(5)):
            known = {"n": size, "m": rows}
            if D.evaluate(by, known) == 0:
                continue
            (i,) = D.symbols(loop) - D.symbols(n) - D.symbols(m)
            assert i.hi is not None
            for k in range(D.evaluate(i.hi, known) + 1):
                assert D.evaluate(claim, {**known, "i": k}) >= 0, (str(claim), known, k)
    assert proved > 10
