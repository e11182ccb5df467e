"""Random numbers of the tile language: Philox 4x32 and 4x64 (Salmon et al., 2011), indexed by
offsets, so that every element has its own number whichever program computes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.lang.tile.front.functions import function
from tilewright.lang.tile.language import core

if TYPE_CHECKING:
    from typing import Any as constexpr  # a constant may be any value of Python's
else:
    from tilewright.lang.tile.language.types import constexpr

__all__ = [
    "pair_uniform_to_normal",
    "philox",
    "philox_impl",
    "rand",
    "rand4x",
    "randint",
    "randint4x",
    "randn",
    "randn4x",
    "uint_to_uniform_float",
]

N_ROUNDS_DEFAULT = core.constexpr(10)  # what the authors of Philox recommend


@function
def philox_impl(c0, c1, c2, c3, k0, k1, n_rounds: constexpr = N_ROUNDS_DEFAULT):
    """That many rounds over a counter of four words and a key of two."""
    if c0.dtype == core.uint32:
        multiply_a: constexpr = 0xD2511F53
        multiply_b: constexpr = 0xCD9E8D57
        raise_a: constexpr = 0x9E3779B9
        raise_b: constexpr = 0xBB67AE85
    else:
        core.static_assert(c0.dtype == core.uint64, "philox counts in uint32 or uint64")
        multiply_a: constexpr = 0xD2E7470EE14C6C93
        multiply_b: constexpr = 0xCA5A826395121157
        raise_a: constexpr = 0x9E3779B97F4A7C15
        raise_b: constexpr = 0xBB67AE8584CAA73B
    for _ in core.static_range(n_rounds):
        high_a = core.umulhi(multiply_a, c0)
        high_b = core.umulhi(multiply_b, c2)
        low_a = core.mul(multiply_a, c0, sanitize_overflow=False)
        low_b = core.mul(multiply_b, c2, sanitize_overflow=False)
        c0 = high_b ^ c1 ^ k0
        c1 = low_b
        c2 = high_a ^ c3 ^ k1
        c3 = low_a
        k0 = core.add(k0, raise_a, sanitize_overflow=False)
        k1 = core.add(k1, raise_b, sanitize_overflow=False)
    return c0, c1, c2, c3


@function
def philox(seed, c0, c1, c2, c3, n_rounds: constexpr = N_ROUNDS_DEFAULT):
    """Four random words for each counter of four words; the seed has up to 64 bits."""
    seed = core.to_tensor(seed)
    core.static_assert(seed.dtype.is_int(), "the seed of random numbers is an integer")
    seed = seed.to(core.uint64)
    c0 = core.to_tensor(c0)
    c1 = core.to_tensor(c1)
    c2 = core.to_tensor(c2)
    c3 = core.to_tensor(c3)
    if c0.dtype.primitive_bitwidth == 32:
        word: constexpr = core.uint32
        key_low = (seed & 0xFFFFFFFF).to(core.uint32)
        key_high = (seed >> 32).to(core.uint32)
    else:
        core.static_assert(c0.dtype.primitive_bitwidth == 64, "philox counts in 32 or 64 bits")
        word: constexpr = core.uint64
        key_low = seed
        key_high = seed ^ seed
    return philox_impl(
        c0.to(word, bitcast=True),
        c1.to(word, bitcast=True),
        c2.to(word, bitcast=True),
        c3.to(word, bitcast=True),
        key_low,
        key_high,
        n_rounds,
    )


@function
def randint4x(seed, offset, n_rounds: constexpr = N_ROUNDS_DEFAULT):
    """Four random uint32 for each offset: one run of the generator gives all four."""
    offset = core.to_tensor(offset)
    low = offset.to(core.uint32)
    zero = low ^ low
    if offset.dtype.primitive_bitwidth > 32:
        high = (offset >> 32).to(core.uint32)
    else:
        high = zero
    return philox(seed, low, high, zero, zero, n_rounds)


@function
def randint(seed, offset, n_rounds: constexpr = N_ROUNDS_DEFAULT):
    """A random uint32 for each offset."""
    first, _, _, _ = randint4x(seed, offset, n_rounds)
    return first


@function
def uint_to_uniform_float(x):
    """Random integers as float32 in [0, 1)."""
    # The greatest float32 factors with which the greatest integer stays below 1.
    if x.dtype.primitive_bitwidth == 32:
        x = x.to(core.int32, bitcast=True)
        scale: constexpr = (1 - 2.0**-24) * 2.0**-31
    else:
        core.static_assert(x.dtype.primitive_bitwidth == 64, "of integers of 32 or 64 bits")
        x = x.to(core.int64, bitcast=True)
        scale: constexpr = (1 - 2.0**-23) * 2.0**-63
    return core.where(x < 0, ~x, x).to(core.float32) * scale


@function
def rand(seed, offset, n_rounds: constexpr = N_ROUNDS_DEFAULT):
    """A random float32 in [0, 1) for each offset."""
    return uint_to_uniform_float(randint(seed, offset, n_rounds))


@function
def rand4x(seed, offsets, n_rounds: constexpr = N_ROUNDS_DEFAULT):
    """Four random float32 in [0, 1) for each offset."""
    a, b, c, d = randint4x(seed, offsets, n_rounds)
    return (
        uint_to_uniform_float(a),
        uint_to_uniform_float(b),
        uint_to_uniform_float(c),
        uint_to_uniform_float(d),
    )


@function
def pair_uniform_to_normal(u1, u2):
    """Two independent normal numbers of two uniform ones (Box and Muller)."""
    radius = core.sqrt(-2.0 * core.log(core.maximum(1.0e-7, u1)))  # the logarithm of 0 is infinite
    angle = 6.283185307179586 * u2
    return radius * core.cos(angle), radius * core.sin(angle)


@function
def randn(seed, offset, n_rounds: constexpr = N_ROUNDS_DEFAULT):
    """A normal float32 (mean 0, deviation 1) for each offset."""
    a, b, _, _ = randint4x(seed, offset, n_rounds)
    first, _ = pair_uniform_to_normal(uint_to_uniform_float(a), uint_to_uniform_float(b))
    return first


@function
def randn4x(seed, offset, n_rounds: constexpr = N_ROUNDS_DEFAULT):
    """Four normal float32 (mean 0, deviation 1) for each offset."""
    a, b, c, d = rand4x(seed, offset, n_rounds)
    n1, n2 = pair_uniform_to_normal(a, b)
    n3, n4 = pair_uniform_to_normal(c, d)
    return n1, n2, n3, n4
