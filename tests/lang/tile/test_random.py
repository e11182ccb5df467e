"""Random numbers of the tile language have Philox's bits."""

import numpy as np
import pytest

from tests.lang.tile.library import run, run_eagerly, tile
from tests.seeds import crossed
from tilewright.lang.tile.language import core
from tilewright.lang.tile.library import random

# The published constants: two multipliers and what the two words of a key are raised by.
CONSTANTS = {
    32: (0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85),
    64: (0xD2E7470EE14C6C93, 0xCA5A826395121157, 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B),
}


def philox(counter, key, bits, rounds=10):
    """Python's integers, as the paper says it."""
    a, b, raise_a, raise_b = CONSTANTS[bits]
    mask = (1 << bits) - 1
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        high_a, low_a = divmod(a * c0, mask + 1)
        high_b, low_b = divmod(b * c2, mask + 1)
        c0, c1, c2, c3 = high_b ^ c1 ^ k0, low_b, high_a ^ c3 ^ k1, low_a
        k0, k1 = (k0 + raise_a) & mask, (k1 + raise_b) & mask
    return c0, c1, c2, c3


def test_the_model_knows_the_published_answers():
    """Known answers of the authors' own library for zeros and for ones."""
    assert philox((0, 0, 0, 0), (0, 0), 32) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    ones = 0xFFFFFFFF
    assert philox((ones,) * 4, (ones,) * 2, 32) == (
        0x408F276D,
        0x41C83B0E,
        0xA20BC7C6,
        0x6D5451FD,
    )


def test_words_of_64_bits_are_numpys():
    generator = np.random.Philox(key=[7, 0], counter=[0, 0, 0, 0])
    wanted = generator.random_raw(4)  # numpy counts before it draws
    zero = tile(np.zeros(1), core.uint64)
    found = run(random.philox, 7, tile(np.ones(1), core.uint64), zero, zero, zero)
    assert [int(w[0]) for w in found] == wanted.tolist()


@pytest.mark.parametrize(
    ("seed", "dtype"),
    crossed(
        [0, 42, 0xFFFFFFFF, 0x0000000FCAFEB0BA, -1], [core.int32, core.int64, core.uint32], step=3
    ),
)
def test_randint4x(seed, dtype):
    offsets = np.array([0, 1, 5, 2**31 - 1])
    key = (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF)
    found = run(random.randint4x, seed, tile(offsets, dtype))
    for k, offset in enumerate(offsets.tolist()):
        assert tuple(int(w[k]) for w in found) == philox((offset, 0, 0, 0), key, 32)
    (first,) = run(random.randint, seed, tile(offsets, dtype))
    np.testing.assert_array_equal(first, found[0])
    assert first.dtype == np.uint32


def test_offsets_beyond_32_bits_count_on():
    offsets = np.array([2**32, 2**40 + 3])
    found = run(random.randint4x, 3, tile(offsets, core.int64))
    for k, offset in enumerate(offsets.tolist()):
        words = (offset & 0xFFFFFFFF, offset >> 32, 0, 0)
        assert tuple(int(w[k]) for w in found) == philox(words, (3, 0), 32)


def test_a_seed_may_be_a_tile_and_rounds_may_be_fewer():
    x = tile(np.arange(4), core.int32)
    (a,) = run(random.randint, tile(42, core.int32), x)
    (b,) = run(random.randint, 42, x)
    np.testing.assert_array_equal(a, b)
    (few,) = run(random.randint, 42, x, n_rounds=3)
    assert few.tolist() == [philox((k, 0, 0, 0), (42, 0), 32, 3)[0] for k in range(4)]


def test_the_seed_is_an_integer():
    with pytest.raises(Exception, match="seed"):
        run_eagerly(random.rand, 2.3, tile(np.arange(4), core.int32))


@pytest.mark.parametrize("bits", [32, 64])
def test_uniform_floats_stay_below_one(bits):
    signed = core.get_int_dtype(bits, True)
    least, most = signed.get_int_min_value(), signed.get_int_max_value()
    x = tile(np.array([least, most, 0, -1], f"i{bits // 8}"), signed)
    (found,) = run(random.uint_to_uniform_float, x)
    assert found.dtype == np.float32
    assert found[0] == found[1] and 1 - np.finfo(np.float32).eps <= found[0] < 1
    assert found[2] == found[3] == 0


def test_uniform_numbers_are_uniform():
    x = tile(np.arange(1 << 14), core.int32)
    for u in (*run_eagerly(random.rand, 11, x), *run_eagerly(random.rand4x, 12, x)):
        a = np.sort(u.array)
        assert a[0] >= 0 and a[-1] < 1
        steps = np.arange(1, len(a) + 1) / len(a)
        assert np.abs(a - steps).max() < 1.63 / np.sqrt(len(a))  # Kolmogorov's, at one percent


def test_normal_numbers_are_normal():
    x = tile(np.arange(1 << 14), core.int32)
    several = [t.array for t in run_eagerly(random.randn4x, 5, x)]
    for a in (run_eagerly(random.randn, 4, x)[0].array, *several):
        assert abs(a.mean()) < 0.03 and abs(a.std() - 1) < 0.03
        assert abs((a**3).mean()) < 0.1 and abs((a**4).mean() - 3) < 0.3
    assert abs(np.corrcoef(several)[0, 1]) < 0.03
    (one,) = run_eagerly(random.randn, 5, x)
    np.testing.assert_array_equal(one.array, several[0])


def test_the_least_uniform_number_gives_a_finite_normal_one():
    a, b = run(random.pair_uniform_to_normal, tile(np.zeros(2)), tile([0.0, 0.5]))
    np.testing.assert_allclose(a, [5.6777, -5.6777], rtol=1e-4)
    np.testing.assert_allclose(b, [0, 0], atol=1e-5)
