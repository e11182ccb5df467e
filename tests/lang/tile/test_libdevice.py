"""libdevice against numpy, Python and torch; directions of rounding against exact fractions."""

import math
from fractions import Fraction

import numpy as np
import pytest

from tests.lang.tile import library
from tests.lang.tile.library import Tile, random_tile, run_eagerly, tile
from tilewright.base.errors import Invalid
from tilewright.lang.tile.front.functions import function
from tilewright.lang.tile.language import core
from tilewright.lang.tile.library import libdevice

INF, NAN = float("inf"), float("nan")
WIDTHS = pytest.mark.parametrize("dtype", [core.float32, core.float64], ids=str)


def numpy_type(dtype):
    return np.float32 if dtype == core.float32 else np.float64


def close(found, exact, dtype, slack=1.0):
    tight = (3e-7 if dtype == core.float32 else 1e-14) * slack
    np.testing.assert_allclose(
        found, np.asarray(exact, np.float64).astype(numpy_type(dtype)), rtol=tight
    )


def run(f, *args):
    """Rows of any length: filled up to a power of two with their last element, and cut again."""
    n = len(args[0].array)
    size = 1 << (n - 1).bit_length()
    filled = [Tile(np.pad(a.array, (0, size - n), mode="edge"), a.dtype) for a in args]
    return [r[:n] for r in library.run(f, *filled)]


# ---- one name after the other

NUMPY = {
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "rint": np.rint,
    "nearbyint": np.rint,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "abs": np.abs,
    "cbrt": np.cbrt,
    "fast_sinf": np.sin,
    "fast_cosf": np.cos,
    "fast_expf": np.exp,
    "fast_tanhf": np.tanh,
    "fast_tanf": np.tan,
    "exp10": lambda x: np.power(10.0, x),
    "fast_exp10f": lambda x: np.power(10.0, x),
    "erf": np.vectorize(math.erf),
    "erfc": np.vectorize(math.erfc),
    "lgamma": np.vectorize(math.lgamma),
}
POSITIVE = {
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "rsqrt_rn": lambda x: 1 / np.sqrt(x),
    "rcbrt": lambda x: 1 / np.cbrt(x),
    "fast_logf": np.log,
    "fast_log2f": np.log2,
    "fast_log10f": np.log10,
}
INSIDE = {"asin": np.arcsin, "acos": np.arccos, "atanh": np.arctanh}
TWO = {
    "atan2": np.arctan2,
    "fmod": np.fmod,
    "copysign": np.copysign,
    "hypot": np.hypot,
    "rhypot": lambda x, y: 1 / np.hypot(x, y),
    "fdim": lambda x, y: np.maximum(x - y, 0),
    "fast_dividef": np.divide,
}


@WIDTHS
@pytest.mark.parametrize("name", [*NUMPY, *POSITIVE, *INSIDE])
def test_functions_of_one_number(name, dtype):
    x = np.random.default_rng(3).normal(size=64).astype(numpy_type(dtype)) * 3 + 0.01
    if name in POSITIVE:
        x = np.abs(x)
    if name in INSIDE:
        x = np.tanh(x)
    exact = (NUMPY | POSITIVE | INSIDE)[name](x.astype(np.float64))
    (found,) = run(getattr(libdevice, name), tile(x, dtype))
    close(found, exact, dtype, slack=10)


@WIDTHS
@pytest.mark.parametrize("name", TWO)
def test_functions_of_two_numbers(name, dtype):
    rng = np.random.default_rng(4)
    x, y = (rng.normal(size=64).astype(numpy_type(dtype)) for _ in range(2))
    exact = TWO[name](x.astype(np.float64), y.astype(np.float64))
    close(run(getattr(libdevice, name), tile(x, dtype), tile(y, dtype))[0], exact, dtype, 10)


@function
def whole_cube(x):
    return libdevice.pow(x, 3)


@function
def real_cube(x):
    return libdevice.pow(x, 3.0)


@WIDTHS
def test_powers(dtype):
    x = tile([0.5, 2.0, 3.0, 10.0], dtype)
    close(
        run(libdevice.pow, x, tile([2.0, 0.5, -1, 3], dtype))[0], [0.25, 2**0.5, 1 / 3, 1000], dtype
    )
    (found,) = run(libdevice.fast_powf, x, tile([2, 3, -1, 0], core.int32))
    close(found, [0.25, 8, 1 / 3, 1], dtype)
    for cubed in (whole_cube, real_cube):
        close(run(cubed, x)[0], [0.125, 8, 27, 1000], dtype)


@WIDTHS
def test_lengths_do_not_overflow_on_the_way(dtype):
    huge = float(np.finfo(numpy_type(dtype)).max) / 4
    x, y, z, w = (tile([a * huge, b], dtype) for a, b in ((1, 1), (2, 2), (2, 4), (0, 10)))
    close(run(libdevice.norm3d, x, y, z)[0], [3 * huge, math.sqrt(21)], dtype)
    close(run(libdevice.norm4d, x, y, z, w)[0], [3 * huge, 11], dtype)
    close(run(libdevice.rnorm4d, x, y, z, w)[0][1:], [1 / 11], dtype)
    close(run(libdevice.rnorm3d, x, y, z)[0][1:], [1 / math.sqrt(21)], dtype)
    (found,) = run(libdevice.hypot, tile([INF, NAN, 0], dtype), tile([NAN, 1, 0], dtype))
    np.testing.assert_array_equal(found, [INF, NAN, 0])


@WIDTHS
def test_kinds_of_numbers(dtype):
    x = tile([1, -1, 0, -0.0, INF, -INF, NAN, 5e-324 if dtype == core.float64 else 1e-45], dtype)
    a = x.array
    np.testing.assert_array_equal(run(libdevice.isnan, x)[0], np.isnan(a))
    np.testing.assert_array_equal(run(libdevice.isinf, x)[0], np.isinf(a))
    np.testing.assert_array_equal(run(libdevice.finitef, x)[0], np.isfinite(a))
    np.testing.assert_array_equal(run(libdevice.isfinited, x)[0], np.isfinite(a))
    np.testing.assert_array_equal(run(libdevice.signbit, x)[0], np.signbit(a))
    (found,) = run(libdevice.saturatef, tile([-1, 0.25, 2, NAN], dtype))
    assert found.tolist() == [0, 0.25, 1, 0]


@WIDTHS
def test_whole_numbers(dtype):
    below = float(np.nextafter(numpy_type(dtype)(0.5), numpy_type(dtype)(0)))
    x = tile([-2.5, -1.5, -0.5, -0.0, 0.5, 1.5, 2.5, below, 1e9 + 0.5], dtype)
    wanted = [
        math.copysign(math.floor(abs(v) + Fraction(1, 2)), v)
        for v in map(Fraction, x.array.tolist())
    ]
    (found,) = run(libdevice.round, x)
    np.testing.assert_array_equal(found, wanted)
    assert run(libdevice.llround, x)[0].tolist() == [int(w) for w in wanted]
    assert run(libdevice.llrint, x)[0].tolist() == np.rint(x.array).astype(int).tolist()


@WIDTHS
def test_remainder(dtype):
    huge = float(np.finfo(numpy_type(dtype)).max)
    x = [5, 7, -7, 6, 2, 1.5, huge, 3, INF, 1, 0.3, 1e-30]
    y = [3, 4, 4, 4, 4, 1, huge * 0.75, INF, 2, 0, -0.1, 1e30]
    x, y = (np.array(v, numpy_type(dtype)) for v in (x, y))
    (found,) = run(libdevice.remainder, tile(x, dtype), tile(y, dtype))
    bad = np.isinf(x) | (y == 0)
    assert np.isnan(found[bad]).all()
    wanted = [math.remainder(a, b) for a, b in zip(x[~bad].tolist(), y[~bad].tolist(), strict=True)]
    np.testing.assert_array_equal(found[~bad], wanted)


@WIDTHS
def test_exponents(dtype):
    tiny = 5e-324 if dtype == core.float64 else 2.0**-149
    x = [1, 0.75, -3, 1024.5, tiny, float(np.finfo(numpy_type(dtype)).max)]
    wanted = [math.frexp(v)[1] - 1 for v in x]
    assert run(libdevice.ilogb, tile(x, dtype))[0].tolist() == wanted
    assert run(libdevice.logb, tile(x, dtype))[0].tolist() == wanted
    assert run(libdevice.ilogb, tile([0, INF, NAN], dtype))[0].tolist() == [
        -(2**31),
        2**31 - 1,
        -(2**31),
    ]
    np.testing.assert_array_equal(
        run(libdevice.logb, tile([0, -INF, NAN], dtype))[0], [-INF, INF, NAN]
    )
    n = tile([3, -3, 140, -140, 0, 5000, -5000, 1], core.int32)
    y = tile([1.5, 1.5, 2.0**-130, 2.0**100, 7, 1, 1, tiny], dtype)
    with np.errstate(all="ignore"):
        wanted = np.ldexp(y.array, n.array)
    for f in (libdevice.ldexp, libdevice.scalbn):
        np.testing.assert_array_equal(run(f, y, n)[0], wanted)


@WIDTHS
def test_nextafter(dtype):
    x, y = tile([1, 0, -1, 5], dtype), tile([2, 1, INF, 5], dtype)
    np.testing.assert_array_equal(run(libdevice.nextafter, x, y)[0], np.nextafter(x.array, y.array))


@WIDTHS
def test_multiples_of_pi(dtype):
    x = np.array([0, 0.5, 1, 1.5, 2, -0.5, 0.25, 1 / 3, 1e6 + 0.5, 3.75], numpy_type(dtype))
    wide = [Fraction(float(v)) % 2 for v in x]
    sines = [math.sin(math.pi * float(v if v <= 1 else v - 2)) for v in wide]
    (found,) = run(libdevice.sinpi, tile(x, dtype))
    np.testing.assert_allclose(found, sines, rtol=1e-6, atol=1e-15)
    assert found[0] == found[2] == found[4] == 0 and found[1] == 1 and found[3] == -1
    (found,) = run(libdevice.cospi, tile(x, dtype))
    cosines = [math.cos(math.pi * float(v if v <= 1 else v - 2)) for v in wide]
    np.testing.assert_allclose(found, cosines, rtol=1e-6, atol=1e-15)
    assert found[0] == 1 and found[2] == -1 and found[1] == found[3] == found[8] == 0


@WIDTHS
def test_around_the_error_function(dtype):
    x = np.array([-3, -0.5, 0, 0.5, 3, 9.9, 10.1, 100], numpy_type(dtype))
    torch = pytest.importorskip("torch")
    exact = torch.special.erfcx(torch.tensor(x, dtype=torch.float64)).numpy()
    close(run(libdevice.erfcx, tile(x, dtype))[0], exact, dtype, slack=30)
    close(
        run(libdevice.normcdf, tile(x, dtype))[0],
        [0.5 * math.erfc(-v / 2**0.5) for v in x],
        dtype,
        4,
    )
    p = np.array([1e-30, 1e-9, 0.01, 0.4, 0.6, 1.0, 1.3, 1.7, 1.99], numpy_type(dtype))
    (found,) = run(libdevice.erfcinv, tile(p, dtype))
    back = np.array([math.erfc(float(v)) for v in found])
    # An inverse can be as far off as its argument's last digit.
    slope = np.abs(2 / math.sqrt(math.pi) * np.exp(-(found.astype(np.float64) ** 2)) * found)
    tight = 4e-7 if dtype == core.float32 else 1e-14
    assert (np.abs(back - p) <= tight * (p + slope)).all()
    (ends,) = run(libdevice.erfcinv, tile([0, 2, -1, 3], dtype))
    np.testing.assert_array_equal(ends, [INF, -INF, NAN, NAN])
    q = np.array([1e-20, 0.025, 0.3, 0.5, 0.8], numpy_type(dtype))
    (found,) = run(libdevice.normcdfinv, tile(q, dtype))
    exact = torch.special.ndtri(torch.tensor(q, dtype=torch.float64)).numpy()
    np.testing.assert_allclose(
        found, exact, rtol=1e-6 if dtype == core.float32 else 1e-12, atol=1e-15
    )


@WIDTHS
def test_tgamma(dtype):
    x = [0.5, 1, 5, 10.5, -0.5, -2.5, 1e-3, 30]
    x = np.array(x, numpy_type(dtype))
    close(run(libdevice.tgamma, tile(x, dtype))[0], [math.gamma(v) for v in x], dtype, slack=30)
    (ends,) = run(libdevice.tgamma, tile([0, -1, -2, INF, 1000], dtype))
    np.testing.assert_array_equal(ends, [INF, NAN, NAN, INF, INF])


@WIDTHS
@pytest.mark.parametrize(
    ("name", "like"),
    [
        ("j0", "bessel_j0"),
        ("j1", "bessel_j1"),
        ("y0", "bessel_y0"),
        ("y1", "bessel_y1"),
        ("cyl_bessel_i0", "i0"),
        ("cyl_bessel_i1", "i1"),
    ],
)
def test_bessel(name, like, dtype):
    torch = pytest.importorskip("torch")
    x = np.array([0, 1e-3, 0.5, 1, 3, 8, 11.9, 12.1, 19.9, 20.1, 50, 80], numpy_type(dtype))
    if not name.startswith("y"):
        x = np.concatenate([x, -x])
    exact = getattr(torch.special, like)(torch.tensor(x, dtype=torch.float64)).numpy()
    (found,) = run(getattr(libdevice, name), tile(x, dtype))
    tight = 1e-6 if dtype == core.float32 else 3e-8  # torch's own are no better
    np.testing.assert_allclose(found, exact.astype(numpy_type(dtype)), rtol=tight, atol=tight)


@pytest.mark.parametrize("order", [0, 1])
def test_bessel_by_its_integral(order):
    x = np.linspace(-40, 40, 64)
    angle = (np.arange(400) + 0.5) * math.pi / 400
    exact = np.cos(order * angle - x[:, None] * np.sin(angle)).mean(1)
    (found,) = run((libdevice.j0, libdevice.j1)[order], tile(x, core.float64))
    np.testing.assert_allclose(found, exact, atol=1e-10)


def test_bessel_of_any_order_is_refused():
    for f in (libdevice.jn, libdevice.yn):
        with pytest.raises(Invalid, match="any order"):
            run_eagerly(f, tile([2], core.int32), tile([1.0]))


def test_functions_of_floats_take_no_integers():
    with pytest.raises(Invalid, match=r"libdevice\.tanh of int32"):
        run_eagerly(libdevice.tanh, tile([1], core.int32))
    with pytest.raises(Invalid, match=r"libdevice\.popc of fp32"):
        run_eagerly(libdevice.popc, tile([1.0]))


# ---- bits


@pytest.mark.parametrize("dtype", [core.int32, core.uint32, core.int64, core.uint64], ids=str)
def test_counts_of_bits(dtype):
    bits = dtype.primitive_bitwidth
    rng = np.random.default_rng(bits)
    raw = [int.from_bytes(rng.bytes(bits // 8), "little") >> k * bits // 12 for k in range(12)]
    raw = [0, 1, 2**bits - 1, 2 ** (bits - 1), *raw]
    x = tile(np.array(raw, np.uint64).astype(f"u{bits // 8}").view(dtype.ir.numpy), dtype)
    assert run(libdevice.popc, x)[0].tolist() == [v.bit_count() for v in raw]
    assert run(libdevice.clz, x)[0].tolist() == [bits - v.bit_length() for v in raw]
    assert run(libdevice.ffs, x)[0].tolist() == [(v & -v).bit_length() for v in raw]
    (found,) = run(libdevice.brev, x)
    assert [v % 2**bits for v in found.tolist()] == [int(f"{v:0{bits}b}"[::-1], 2) for v in raw]
    assert run_eagerly(libdevice.popc, x)[0].dtype == core.int32


@pytest.mark.parametrize("dtype", [core.int32, core.uint32, core.int64, core.uint64], ids=str)
def test_products_and_averages_of_integers(dtype):
    bits = dtype.primitive_bitwidth
    rng = np.random.default_rng(bits + 1)
    x, y = (np.frombuffer(rng.bytes(2 * bits), dtype.ir.numpy).copy() for _ in range(2))
    pairs = list(zip(x.tolist(), y.tolist(), strict=True))
    given = tile(x, dtype), tile(y, dtype)
    assert run(libdevice.mulhi, *given)[0].tolist() == [a * b >> bits for a, b in pairs]
    assert run(libdevice.hadd, *given)[0].tolist() == [(a + b) >> 1 for a, b in pairs]
    assert run(libdevice.rhadd, *given)[0].tolist() == [(a + b + 1) >> 1 for a, b in pairs]


def test_products_of_24_bits_and_sums_of_differences():
    x, y = tile([5, -3, 2**23, 7], core.int32), tile([7, 4, 2, -1], core.int32)
    assert run(libdevice.mul24, x, y)[0].tolist() == [35, -12, -(2**24), -7]
    z = tile([1, 2, 3, 4], core.uint32)
    assert run(libdevice.sad, x, y, z)[0].tolist() == [3, 9, 2**23 - 2 + 3, 12]


def test_byte_perm():
    x, y = tile([0x33221100] * 4, core.int32), tile([0x77665544] * 4, core.int32)
    s = tile([0x3210, 0x7654, 0x0416, 0x0088], core.int32)
    (found,) = run(libdevice.byte_perm, x, y, s)
    assert [v % 2**32 for v in found.tolist()] == [0x33221100, 0x77665544, 0x00441166, 0]
    x, y, s = (tile([v], core.int32) for v in (0x80, 0, 0x1180))
    assert run(libdevice.byte_perm, x, y, s)[0].tolist() == [0x0000FF80]  # digits 1, 1, 8 and 0


def test_numbers_read_as_others():
    f, d = tile([1.5, -0.0]), tile([1.5, -3.25], core.float64)
    i, l = f.array.view(np.int32), d.array.view(np.int64)
    assert run(libdevice.float_as_int, f)[0].tolist() == i.tolist()
    assert run(libdevice.float_as_uint, f)[0].tolist() == i.view(np.uint32).tolist()
    assert run(libdevice.int_as_float, tile(i, core.int32))[0].tolist() == f.array.tolist()
    assert run(libdevice.uint_as_float, tile(i.view(np.uint32), core.uint32))[0][0] == 1.5
    assert run(libdevice.double_as_longlong, d)[0].tolist() == l.tolist()
    assert run(libdevice.longlong_as_double, tile(l, core.int64))[0].tolist() == d.array.tolist()
    low, high = run(libdevice.double2loint, d)[0], run(libdevice.double2hiint, d)[0]
    back = run(libdevice.hiloint2double, tile(high, core.int32), tile(low, core.int32))[0]
    assert back.tolist() == d.array.tolist()
    np.testing.assert_allclose(run(libdevice.rcp64h, d)[0], 1 / d.array, rtol=1e-6)


# ---- directions of rounding


def rounded(exact: Fraction, dtype, mode: str) -> float:
    """A fraction as a float, by looking at the neighbours of the nearest one."""
    kind = numpy_type(dtype)
    huge = Fraction(float(np.finfo(kind).max))
    if abs(exact) > huge:
        toward = {"ru": exact < 0, "rd": exact > 0, "rz": True, "rn": False}[mode]
        return math.copysign(float(huge) if toward else INF, exact)
    near = kind(float(exact))  # or a neighbour of the nearest: two roundings may miss
    spots = [np.nextafter(near, kind(-INF)), near, np.nextafter(near, kind(INF))]
    numbers = [float(s) for s in spots if np.isfinite(s)]
    if mode == "rn":
        odd = {s: int(kind(s).view(f"i{near.itemsize}")) % 2 for s in numbers}
        return min(numbers, key=lambda s: (abs(Fraction(s) - exact), odd[s]))
    if mode == "rz":
        mode = "rd" if exact > 0 else "ru"
    if mode == "rd":
        return max(s for s in numbers if Fraction(s) <= exact)
    return min(s for s in numbers if Fraction(s) >= exact)


MODES = pytest.mark.parametrize("mode", ["rn", "rz", "rd", "ru"])


def operands(dtype, n):
    rng = np.random.default_rng(9)
    scale = 2.0 ** rng.integers(-20, 20, (n, 64))
    return list((rng.normal(size=(n, 64)) * scale).astype(numpy_type(dtype)))


@WIDTHS
@MODES
def test_arithmetic_in_a_direction(dtype, mode):
    a, b = operands(dtype, 2)
    given = tile(a, dtype), tile(b, dtype)
    exact = {
        "add": lambda x, y: x + y,
        "sub": lambda x, y: x - y,
        "mul": lambda x, y: x * y,
        "div": lambda x, y: x / y,
    }
    for name, f in exact.items():
        (found,) = run(getattr(libdevice, f"{name}_{mode}"), *given)
        pairs = zip(map(Fraction, a.tolist()), map(Fraction, b.tolist()), strict=True)
        assert found.tolist() == [rounded(f(x, y), dtype, mode) for x, y in pairs], name
    (found,) = run(getattr(libdevice, f"rcp_{mode}"), given[0])
    assert found.tolist() == [rounded(1 / Fraction(x), dtype, mode) for x in a.tolist()]


@MODES
def test_overflow_in_a_direction(mode):
    x = tile([3e38, -3e38])
    for name, y in (("add", x), ("mul", tile([2.0, 2.0]))):
        (found,) = run(getattr(libdevice, f"{name}_{mode}"), x, y)
        wanted = [rounded(Fraction(v) * 2, core.float32, mode) for v in x.array.tolist()]
        assert found.tolist() == wanted
    (found,) = run(getattr(libdevice, f"add_{mode}"), tile([INF, INF]), tile([1.0, -INF]))
    np.testing.assert_array_equal(found, [INF, NAN])


@WIDTHS
@MODES
def test_roots_in_a_direction(dtype, mode):
    (a,) = operands(dtype, 1)
    a = np.abs(a)
    (found,) = run(getattr(libdevice, f"sqrt_{mode}"), tile(a, dtype))
    for x, s in zip(a.tolist(), found.tolist(), strict=True):
        kind = numpy_type(dtype)
        after = Fraction(float(np.nextafter(kind(s), kind(INF))))
        before = Fraction(float(np.nextafter(kind(s), kind(0))))
        if mode in ("rz", "rd"):
            assert Fraction(s) ** 2 <= x < after**2
        elif mode == "ru":
            assert before**2 < x <= Fraction(s) ** 2
        else:
            assert s == kind(math.sqrt(x))


@MODES
def test_fma_in_a_direction(mode):
    a, b, c = operands(core.float32, 3)
    (found,) = run(getattr(libdevice, f"fma_{mode}"), *(tile(x) for x in (a, b, c)))
    triples = zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    wanted = [Fraction(x) * Fraction(y) + Fraction(z) for x, y, z in triples]
    assert found.tolist() == [rounded(w, core.float32, mode) for w in wanted]


@MODES
def test_integers_and_float64_as_floats_in_a_direction(mode):
    rng = np.random.default_rng(2)
    (d,) = operands(core.float64, 1)
    (found,) = run(getattr(libdevice, f"double2float_{mode}"), tile(d, core.float64))
    assert found.tolist() == [rounded(Fraction(x), core.float32, mode) for x in d.tolist()]
    for name, dtype in (
        ("int", core.int32),
        ("uint", core.uint32),
        ("ll", core.int64),
        ("ull", core.uint64),
    ):
        least, most = dtype.get_int_min_value(), dtype.get_int_max_value()
        kind = np.dtype(dtype.name)
        x = rng.integers(least, most, 28, dtype=kind, endpoint=True)
        x = np.concatenate([x, np.array([least, most, 0, 1], kind)])
        for to, target in (("float", core.float32), ("double", core.float64)):
            if to == "double" and name in ("int", "uint") and mode != "rn":
                continue
            (found,) = run(getattr(libdevice, f"{name}2{to}_{mode}"), tile(x, dtype))
            wanted = [rounded(Fraction(v), target, mode) for v in x.tolist()]
            assert found.tolist() == wanted, (name, to)


@MODES
@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize("to", ["int", "uint", "ll", "ull"])
def test_floats_as_integers_in_a_direction(kind, to, mode):
    source = core.float32 if kind == "float" else core.float64
    target = {"int": core.int32, "uint": core.uint32, "ll": core.int64, "ull": core.uint64}[to]
    x = np.array(
        [0.5, 1.5, 2.5, -0.5, -1.5, 2.25, -2.75, 1e9, 3e9, -3e9, 1e19, 1e30, -1e30, INF, -INF, NAN],
        numpy_type(source),
    )
    (found,) = run(getattr(libdevice, f"{kind}2{to}_{mode}"), tile(x, source))
    direction = {"rn": np.rint, "rz": np.trunc, "rd": np.floor, "ru": np.ceil}[mode]
    least, most = target.get_int_min_value(), target.get_int_max_value()
    for v, got in zip(direction(x).tolist(), found.tolist(), strict=True):
        if math.isnan(v):
            wide = kind == "double" or to in ("ll", "ull")
            half = 1 << (target.primitive_bitwidth - 1)
            assert got == (0 if not wide else -half if least else half)
        elif math.isinf(v):
            assert got == (most if v > 0 else least)
        else:
            assert got == min(max(int(v), least), most)


def test_a_direction_needs_wide_floats():
    with pytest.raises(Invalid, match="add_rz of fp16"):
        run_eagerly(libdevice.add_rz, random_tile(core.float16, 4), random_tile(core.float16, 4))
    with pytest.raises(Invalid, match="float2int_rn of int32"):
        run_eagerly(libdevice.float2int_rn, random_tile(core.int32, 4))


def test_every_name_of_libdevice_is_there():
    assert len(set(dir(libdevice))) == 198
    for name in dir(libdevice):
        assert callable(getattr(libdevice, name))
    with pytest.raises(AttributeError):
        _ = libdevice.no_such_function
