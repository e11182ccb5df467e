"""16-bit floats are rounded after every operation, in native code as step by step."""

from __future__ import annotations

import numpy as np
import pytest

from tests.lang.tile.random_narrow import chain, check_seed, fused, rounded
from tests.seeds import drawn
from tilewright.ir.narrow import BFLOAT, HALF


@pytest.mark.parametrize("seed", drawn(range(40), quick=7))
def test_random_chains_are_rounded_as_exact_arithmetic_is(seed: int) -> None:
    check_seed(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 2100, 100))
def test_many_random_chains(first: int) -> None:
    for seed in range(first, first + 100):
        check_seed(seed)


def test_a_seed_is_a_chain() -> None:
    assert chain(3).kernel == chain(3).kernel
    assert len({chain(seed).kernel.source() for seed in range(20)}) == 20


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_the_oracle_rounds_as_the_formats_do(name: str) -> None:
    """Halfway between neighbours, a little beside, subnormal, and beyond the largest."""
    format = HALF if name == "float16" else BFLOAT
    codes = np.arange(0, format.largest, 97, dtype=np.uint16)
    low, high = (format.decode(c).astype(np.float64) for c in (codes, codes + np.uint16(1)))
    middle = (low + high) / 2
    even = np.where(codes % 2 == 0, low, high)
    assert np.array_equal(rounded(middle, name), even)
    assert np.array_equal(rounded(np.nextafter(middle, np.inf), name), high)
    assert np.array_equal(rounded(np.nextafter(middle, -np.inf), name), low)
    assert rounded(np.array([1e40]), name)[0] == np.inf
    assert np.array_equal(format.round(np.nextafter(middle, np.inf)), high)


def test_the_oracle_fuses_exactly() -> None:
    """The product lies halfway between two numbers; what is added is far too small for a double."""
    a, b, c = np.array([1 + 2.0**-4]), np.array([1 + 2.0**-4]), np.array([2.0**-100])
    assert rounded(a * b, "bfloat16")[0] == 1.125
    assert fused(a, b, c, "bfloat16")[0] == 1.1328125
    assert fused(a, b, -c, "bfloat16")[0] == 1.125
