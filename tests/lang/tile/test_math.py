"""`tl.math` against numpy, by element types that it takes."""

import math

import numpy as np
import pytest

from tests.lang.tile.library import NUMBERS, SIGNED, UNSIGNED, random_tile, run, run_eagerly, tile
from tilewright.base.errors import Invalid
from tilewright.lang.tile.language import core
from tilewright.lang.tile.library import math as tile_math

ERF = np.vectorize(math.erf)
FUNCTIONS = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "cos": np.cos,
    "sin": np.sin,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": ERF,
    "floor": np.floor,
    "ceil": np.ceil,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [core.float32, core.float64], ids=str)
def test_functions_of_one_number(name, dtype):
    x = random_tile(dtype, 64)
    if name in ("log", "log2", "sqrt", "rsqrt"):
        x = tile(np.abs(x.array) + 0.5, dtype)
    (found,) = run(getattr(tile_math, name), x)
    exact = FUNCTIONS[name](x.array.astype(np.float64))
    tight = 1e-6 if dtype == core.float32 else 1e-13
    np.testing.assert_allclose(found, exact, rtol=tight, atol=tight)
    assert run_eagerly(getattr(tile_math, name), x)[0].dtype == dtype


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_abs(dtype):
    x = random_tile(dtype, 16)
    (found,) = run(tile_math.abs, x)
    np.testing.assert_array_equal(found, np.abs(x.array))


def test_roots_and_quotients_to_nearest():
    x, y = tile([2.0, 3.0, 10.0, 1e-40]), tile([3.0, 7.0, 0.1, 3.0])
    np.testing.assert_array_equal(run(tile_math.sqrt_rn, x)[0], np.sqrt(x.array))
    np.testing.assert_array_equal(run(tile_math.div_rn, x, y)[0], x.array / y.array)
    np.testing.assert_allclose(run(tile_math.fdiv, x, y)[0], x.array / y.array, rtol=1e-6)


@pytest.mark.parametrize("dtype", [core.float32, core.float64], ids=str)
def test_fma_rounds_once(dtype):
    eps = float(np.finfo(np.float32 if dtype == core.float32 else np.float64).eps)
    one = tile([1 + eps], dtype)
    (found,) = run(tile_math.fma, one, one, tile([-1 - 2 * eps], dtype))
    assert found[0] == eps * eps


@pytest.mark.parametrize(
    "dtype", [d for d in (*SIGNED, *UNSIGNED) if d.primitive_bitwidth >= 32], ids=str
)
def test_umulhi_multiplies_bits_without_sign(dtype):
    bits = dtype.primitive_bitwidth
    rng = np.random.default_rng(bits)
    kind = "i" if dtype.is_int_signed() else "u"
    x, y = (np.frombuffer(rng.bytes(16 * bits // 8), f"{kind}{bits // 8}").copy() for _ in range(2))
    (found,) = run(tile_math.umulhi, tile(x, dtype), tile(y, dtype))
    for a, b, c in zip(x.tolist(), y.tolist(), found.tolist(), strict=True):
        assert c % 2**bits == (a % 2**bits) * (b % 2**bits) >> bits


def test_floats_of_16_bits_are_refused_with_a_hint():
    with pytest.raises(Invalid) as error:
        run_eagerly(tile_math.exp, random_tile(core.float16, 4))
    assert "float32" in str(error.value) + str(error.value.hint)
