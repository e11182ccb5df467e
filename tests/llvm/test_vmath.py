"""Vector math against mpmath: errors in ulp over all finite inputs, and the special values of C99.

float64 is compared with mpmath, float32 (many more points) with the float64 functions so verified.
"""

import ctypes
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import mpmath as mp
import numpy as np
import pytest

from tests.seeds import crossed
from tilewright.base.errors import Invalid
from tilewright.ir.scalar import SCALARS, SERIES, cost_of
from tilewright.llvm import vmath

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()

INF, NAN, PI = float("inf"), float("nan"), float(np.pi)
SEED = 20
TYPES = {"f32": np.float32, "f64": np.float64}
BITS = {"f32": np.uint32, "f64": np.uint64}
LLVM = {"f32": "float", "f64": "double"}
NAMES = sorted(vmath.names())
LENGTHS = (1, 4, 7)

Arguments = tuple[np.ndarray, ...]
Number = Any  # mpmath's numbers have no static type


def mapped(name: str, elem: str, lanes: int) -> str:
    """A function that applies the vector function along arrays."""
    kind = LLVM[elem]
    vector = kind if lanes == 1 else f"<{lanes} x {kind}>"
    loads, passed = [], []
    for array in ("a", "b")[: vmath.arity(name)]:
        loads.append(f"  %at.{array} = getelementptr {kind}, ptr %{array}, i64 %i")
        loads.append(f"  %{array}.v = load {vector}, ptr %at.{array}, align 4")
        passed.append(f"{vector} %{array}.v")
    called = vmath.symbol(name, elem, lanes)
    return "\n".join(
        [
            f'define void @"map.{called}"(ptr %a, ptr %b, ptr %out, i64 %n) {{',
            "entry:\n  br label %loop",
            "loop:\n  %i = phi i64 [ 0, %entry ], [ %next, %loop ]",
            *loads,
            f"  %r = call {vector} @{called}({', '.join(passed)})",
            f"  %at = getelementptr {kind}, ptr %out, i64 %i",
            f"  store {vector} %r, ptr %at, align 4",
            f"  %next = add i64 %i, {lanes}",
            "  %more = icmp ult i64 %next, %n",
            "  br i1 %more, label %loop, label %done",
            "done:\n  ret void\n}",
        ]
    )


class Compiled:
    """Variants of one function, just-in-time compiled; the engine lives as long as this does."""

    def __init__(self, name: str, variants: list[tuple[str, int]], fma: bool) -> None:
        parts: dict[str, str] = {}
        declared: set[str] = set()
        for elem, lanes in variants:
            parts |= vmath.functions(name, elem, lanes, fma)
            declared |= vmath.declarations(name, elem, lanes, fma)
        loops = [mapped(name, elem, lanes) for elem, lanes in variants]
        module = llvm.parse_assembly("\n".join([*sorted(declared), *parts.values(), *loops]))
        module.verify()
        host = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(),
            features=llvm.get_host_cpu_features().flatten(),
            opt=2,
            jit=True,
        )
        optimize(module, host)
        self.engine = llvm.create_mcjit_compiler(module, host)
        self.engine.finalize_object()
        self.name = name

    def __call__(self, elem: str, lanes: int, arguments: Arguments) -> np.ndarray:
        address = self.engine.get_function_address(f"map.{vmath.symbol(self.name, elem, lanes)}")
        signature = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)
        count = len(arguments[0])
        padding = np.ones(-count % lanes)
        arrays = [np.concatenate([a, padding]).astype(TYPES[elem]) for a in arguments]
        out = np.empty_like(arrays[0])
        pointers = [a.ctypes.data for a in (arrays[0], arrays[-1], out)]
        signature(address)(*pointers, len(out))
        return out[:count]


@cache
def compiled(name: str, fma: bool) -> Compiled:
    """The function as most tests want it. They share it: compiling takes longer than they do."""
    lengths = LENGTHS if fma else (4,)
    return Compiled(name, [(elem, lanes) for elem in TYPES for lanes in lengths], fma)


def optimize(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    passes = llvm.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    passes.run(module, builder)


# --- references ---------------------------------------------------------------------------------


def precise(bits: int, f: Callable[..., Number]) -> Callable[..., Number]:
    """f at a working precision that leaves 100 bits after its cancellations."""

    def at_precision(*arguments: Number) -> Number:
        with mp.workprec(bits):
            return f(*arguments)

    return at_precision


def inverse_erf(x: Number) -> Number:
    if abs(x) < mp.mpf(10) ** -8:
        return x * mp.sqrt(mp.pi) / 2 * (1 + mp.pi * x * x / 12)
    target = mp.log(1 - abs(x))
    y = mp.sqrt(-mp.log(1 - x * x)) * mp.mpf("0.9")
    for _ in range(60):
        complement = mp.erfc(y)
        step = (mp.log(complement) - target) * complement * mp.sqrt(mp.pi) / 2 * mp.exp(y * y)
        y += step
        if abs(step) < mp.mpf(10) ** -35:
            break
    return mp.sign(x) * y


def remainder(x: Number, y: Number) -> Number:
    x, y, sign = abs(x), abs(y), mp.sign(x)
    return sign * (x - y * mp.floor(x / y))


# Beyond these the results have long over- or underflowed, or reached their limits.
CUT = 1200
REFERENCES: dict[str, Callable[..., Number]] = {
    "exp": mp.exp,
    "exp2": lambda x: mp.mpf(2) ** x,
    "expm1": mp.expm1,
    "sigmoid": lambda x: mp.exp(x) / (1 + mp.exp(x)) if x < 0 else 1 / (1 + mp.exp(-x)),
    "tanh": lambda x: mp.expm1(2 * x) / (mp.expm1(2 * x) + 2),
    "sinh": mp.sinh,
    "cosh": mp.cosh,
    "log": mp.log,
    "log2": lambda x: mp.log(x) / mp.log(2),
    "log10": mp.log10,
    "log1p": mp.log1p,
    "asinh": lambda x: mp.sign(x) * mp.log1p(abs(x) + x * x / (1 + mp.sqrt(1 + x * x))),
    "acosh": precise(300, mp.acosh),
    "atanh": lambda x: mp.log1p(2 * x / (1 - x)) / 2,
    "pow": lambda x, y: x**y,
    "sin": mp.sin,
    "cos": mp.cos,
    "tan": mp.tan,
    "asin": mp.asin,
    "acos": mp.acos,
    "atan": mp.atan,
    "atan2": mp.atan2,
    "erf": mp.erf,
    "erfc": mp.erfc,
    "erfinv": inverse_erf,
    "lgamma": mp.loggamma,
    "digamma": mp.digamma,
    "rsqrt": lambda x: 1 / mp.sqrt(x),
    "fmod": precise(2400, remainder),
}
CUT_ARGUMENTS = {"exp", "exp2", "expm1", "sigmoid", "tanh", "sinh", "cosh"}

# Where a function does most of its work; arguments of all magnitudes are tried besides.
INTERVALS: dict[str, tuple[float, float]] = {
    "exp": (-750, 720),
    "exp2": (-1080, 1030),
    "expm1": (-40, 712),
    "sigmoid": (-750, 40),
    "tanh": (-22, 22),
    "sinh": (-712, 712),
    "cosh": (-712, 712),
    "log1p": (-1, 10),
    "acosh": (1, 20),
    "sin": (-100, 100),
    "cos": (-100, 100),
    "tan": (-100, 100),
    "erf": (-6.5, 6.5),
    "erfc": (-6.5, 28),
    "lgamma": (0, 20),
    "digamma": (0, 20),
    "fmod": (-100, 100),
}
POSITIVE = {"log", "log2", "log10", "rsqrt", "acosh", "lgamma", "digamma", "pow"}
UNIT = {"asin", "acos", "atanh", "erfinv"}
LOWEST = {"log1p": -1.0, "acosh": 1.0}


def any_bits(rng: np.random.Generator, elem: str, count: int) -> np.ndarray:
    """Finite numbers of all exponents, subnormals too."""
    wide = 1 << (32 if elem == "f32" else 64)
    x = rng.integers(0, wide, count, dtype=BITS[elem]).view(TYPES[elem])
    return np.where(np.isfinite(x), x, TYPES[elem](1.5))


def samples(name: str, elem: str, count: int, rng: np.random.Generator) -> Arguments:
    """Arguments inside the domain: of all exponents, in the interval, around 0 and around 1."""

    def one() -> np.ndarray:
        sign = rng.choice([-1.0, 1.0], count)
        x = np.concatenate(
            [
                any_bits(rng, elem, count),
                rng.uniform(*INTERVALS.get(name, (-10, 10)), 2 * count),
                sign * np.exp2(rng.uniform(-12, 3, count)),
                1 + sign * np.exp2(rng.uniform(-30, 0, count)),
            ]
        )
        x = x.astype(TYPES[elem])
        return np.abs(x) if name in POSITIVE else x

    x = one()
    if vmath.arity(name) == 1:
        keep = x > LOWEST.get(name, -INF)
        if name in UNIT:
            keep &= np.abs(x) < 1
        if name in POSITIVE:
            keep &= x > 0
        return (x[keep],)
    y = one() * rng.choice([-1, 1], len(x)).astype(TYPES[elem])
    if name == "pow":
        # Exponents that keep the result in range, for half of them.
        with np.errstate(all="ignore"):
            limit = {"f32": 150, "f64": 1075}[elem] / np.log2(x.astype(np.float64))
            y = np.where(rng.random(len(x)) < 0.5, limit * rng.uniform(-1, 1, len(x)), y)
            y = y.astype(TYPES[elem])
    keep = np.isfinite(y) & (x != 0) & (y != 0)
    return x[keep], y[keep]


def ulps(got: np.ndarray, exact: list[Number]) -> np.ndarray:
    """Errors in units in the last place of the exact float64 result."""
    errors = []
    for g, e in zip(got, exact, strict=True):
        if not np.isfinite(g):
            overflow = mp.mpf(2) ** 1024 * (1 - mp.mpf(2) ** -54)
            fits = not np.isnan(g) and abs(e) >= overflow and (g > 0) == (e > 0)
            errors.append(0.0 if fits else INF)
            continue
        exponent = -1022 if e == 0 else min(max(mp.frexp(e)[1] - 1, -1022), 1023)
        errors.append(float(abs(mp.mpf(float(g)) - e) / mp.mpf(2) ** (exponent - 52)))
    return np.array(errors)


def reference(name: str, arguments: Arguments) -> list[Number]:
    f, exact = REFERENCES[name], []
    with mp.workprec(160):
        for point in zip(*arguments, strict=True):
            numbers = [mp.mpf(float(v)) for v in point]
            if name in CUT_ARGUMENTS:
                numbers = [max(min(v, mp.mpf(CUT)), mp.mpf(-CUT)) for v in numbers]
            elif name in ("erf", "erfc"):
                numbers = [max(min(v, mp.mpf(30)), mp.mpf(-30)) for v in numbers]
            exact.append(f(*numbers))
    return exact


def assert_within(bound: float, errors: np.ndarray, arguments: Arguments, what: str) -> None:
    worst = int(np.argmax(np.where(np.isnan(errors), INF, errors)))
    at = [repr(a[worst]) for a in arguments]
    print(f"{what}: {errors[worst]:.3f} ulp over {len(errors)} points, at {at}")
    assert errors[worst] <= bound, f"{what}: {errors[worst]} ulp at {at}, seed {SEED}"


@pytest.mark.parametrize(("name", "fma"), crossed(NAMES, [True, False], 2))
def test_accuracy(name: str, fma: bool) -> None:
    rng = np.random.default_rng(SEED)
    f = compiled(name, fma)
    bound = vmath.ERROR_BOUNDS[name] + (0 if fma or name == "fmod" else 1)

    arguments = samples(name, "f64", 150, rng)
    errors = ulps(f("f64", 4, arguments), reference(name, arguments))
    assert_within(bound, errors, arguments, f"{name} f64")

    arguments = samples(name, "f32", 20_000, rng)
    got = f("f32", 4, arguments).astype(np.float64)
    want = f("f64", 4, arguments)
    overflows = np.abs(want) >= 2.0**128 * (1 - 2.0**-25)
    with np.errstate(invalid="ignore"):
        exponent = np.clip(np.frexp(want)[1] - 1, -126, 127)
        errors = np.abs(got - want) / np.exp2(exponent - 23.0)
    errors = np.where(overflows, np.where(got == np.copysign(INF, want), 0, INF), errors)
    assert_within(bound, errors, arguments, f"{name} f32")


@pytest.mark.parametrize("name", NAMES)
def test_every_length_gives_the_same_bits(name: str) -> None:
    rng = np.random.default_rng(SEED)
    f = compiled(name, True)
    for elem in TYPES:
        arguments = tuple(any_bits(rng, elem, 500) for _ in range(vmath.arity(name)))
        arguments = tuple(np.concatenate([a, rng.uniform(-9, 9, 501)]) for a in arguments)
        scalar, *others = (f(elem, lanes, arguments) for lanes in LENGTHS)
        for other in others:
            np.testing.assert_array_equal(scalar, other)


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
@pytest.mark.parametrize("fma", [True, False], ids=["fma", "nofma"])
def test_arguments_nearest_to_multiples_of_half_pi(name: str, fma: bool) -> None:
    """Where the most cancels: best rational approximations of pi/2, and the worst float64 known."""
    f = compiled(name, fma)
    hard = [6381956970095103.0 * 2.0**797, 1e300, 2.0**1023, 1e6, 1000000.5, 999999.5, 1e22]
    with mp.workprec(2400):
        for exponent in range(0, 1023, 3):
            n = mp.floor(mp.mpf(2) ** exponent)
            hard.append(float(n * mp.pi / 2))
            hard.append(float((n + 1) * mp.pi / 2))
    arguments = (np.array(hard),)
    errors = ulps(f("f64", 4, arguments), reference(name, arguments))
    assert_within(vmath.ERROR_BOUNDS[name] + (not fma), errors, arguments, name)


@pytest.mark.parametrize("name", ["lgamma", "digamma"])
def test_negative_arguments_to_the_ulp_of_the_largest_term(name: str) -> None:
    rng = np.random.default_rng(SEED)
    x = -np.concatenate(
        [rng.uniform(0, 20, 200), np.exp2(rng.uniform(-1000, 9, 100)), [0.5, 1.5, 99.5]]
    )
    got = compiled(name, True)("f64", 4, (x,))
    errors = []
    with mp.workprec(300):
        for value, g in zip(x, got, strict=True):
            v = mp.mpf(float(value))
            if name == "lgamma":
                exact = mp.log(abs(mp.gamma(v)))
                terms = [mp.loggamma(-v), mp.log(mp.pi / abs(v * mp.sin(mp.pi * v)))]
            else:
                exact = mp.digamma(v)
                terms = [mp.digamma(-v), 1 / v, mp.pi * mp.cot(mp.pi * v)]
            largest = max(abs(t) for t in (exact, *terms))
            unit = mp.mpf(2) ** (mp.frexp(largest)[1] - 53)
            errors.append(float(abs(mp.mpf(float(g)) - exact) / unit))
    assert_within(vmath.ERROR_BOUNDS[name], np.array(errors), (x,), name)


def test_subnormal_results_of_exp() -> None:
    f = compiled("exp", True)
    arguments = (np.linspace(-746, -708, 301),)
    errors = ulps(f("f64", 4, arguments), reference("exp", arguments))
    assert_within(1.0, errors, arguments, "exp f64")
    x = np.linspace(-104.5, -87, 10_001).astype(np.float32)
    got = f("f32", 4, (x,)).astype(np.float64)
    unit = np.exp2(np.maximum(np.frexp(np.exp(x.astype(np.float64)))[1] - 24, -149))
    assert_within(1.0, np.abs(got - np.exp(x.astype(np.float64))) / unit, (x,), "exp f32")


# --- special values -----------------------------------------------------------------------------

Specials = list[tuple[tuple[float, ...], float]]


def odd(at_infinity: float) -> Specials:
    return [((0.0,), 0.0), ((-0.0,), -0.0), ((INF,), at_infinity), ((-INF,), -at_infinity)]


SPECIALS: dict[str, Specials] = {
    "exp": [((0.0,), 1.0), ((-0.0,), 1.0), ((INF,), INF), ((-INF,), 0.0), ((1e30,), INF)],
    "exp2": [((0.0,), 1.0), ((INF,), INF), ((-INF,), 0.0), ((-3.0,), 0.125), ((10.0,), 1024.0)],
    "expm1": [((0.0,), 0.0), ((-0.0,), -0.0), ((INF,), INF), ((-INF,), -1.0), ((-1e30,), -1.0)],
    "sigmoid": [((0.0,), 0.5), ((-0.0,), 0.5), ((INF,), 1.0), ((-INF,), 0.0)],
    "tanh": odd(1.0),
    "sinh": odd(INF),
    "cosh": [((0.0,), 1.0), ((INF,), INF), ((-INF,), INF)],
    "log": [((0.0,), -INF), ((-0.0,), -INF), ((1.0,), 0.0), ((INF,), INF), ((-1.0,), NAN)],
    "log2": [((0.0,), -INF), ((8.0,), 3.0), ((0.25,), -2.0), ((INF,), INF), ((-INF,), NAN)],
    "log10": [((-0.0,), -INF), ((1.0,), 0.0), ((1000.0,), 3.0), ((INF,), INF), ((-1.0,), NAN)],
    "log1p": [((0.0,), 0.0), ((-0.0,), -0.0), ((-1.0,), -INF), ((INF,), INF), ((-2.0,), NAN)],
    "asinh": odd(INF),
    "acosh": [((1.0,), 0.0), ((INF,), INF), ((0.5,), NAN), ((-1e30,), NAN), ((-INF,), NAN)],
    "atanh": [((0.0,), 0.0), ((-0.0,), -0.0), ((1.0,), INF), ((-1.0,), -INF), ((2.0,), NAN)],
    "sin": [((0.0,), 0.0), ((-0.0,), -0.0), ((INF,), NAN), ((-INF,), NAN)],
    "cos": [((0.0,), 1.0), ((-0.0,), 1.0), ((INF,), NAN), ((-INF,), NAN)],
    "tan": [((0.0,), 0.0), ((-0.0,), -0.0), ((INF,), NAN), ((-INF,), NAN)],
    "asin": [*odd(NAN), ((1.0,), PI / 2), ((-1.0,), -PI / 2), ((1.5,), NAN)],
    "acos": [((1.0,), 0.0), ((-1.0,), PI), ((0.0,), PI / 2), ((-1.5,), NAN), ((INF,), NAN)],
    "atan": odd(PI / 2),
    "atan2": [
        ((0.0, 1.0), 0.0),
        ((-0.0, 1.0), -0.0),
        ((0.0, -1.0), PI),
        ((-0.0, -1.0), -PI),
        ((0.0, 0.0), 0.0),
        ((-0.0, 0.0), -0.0),
        ((0.0, -0.0), PI),
        ((-0.0, -0.0), -PI),
        ((1.0, 0.0), PI / 2),
        ((-1.0, -0.0), -PI / 2),
        ((1.0, INF), 0.0),
        ((-1.0, INF), -0.0),
        ((1.0, -INF), PI),
        ((INF, 1.0), PI / 2),
        ((-INF, -1.0), -PI / 2),
        ((INF, INF), PI / 4),
        ((-INF, -INF), -3 * PI / 4),
        ((1.0, NAN), NAN),
        ((NAN, 0.0), NAN),
    ],
    "erf": odd(1.0),
    "erfc": [((0.0,), 1.0), ((-0.0,), 1.0), ((INF,), 0.0), ((-INF,), 2.0)],
    "erfinv": [((0.0,), 0.0), ((-0.0,), -0.0), ((1.0,), INF), ((-1.0,), -INF), ((2.0,), NAN)],
    "rsqrt": [((0.0,), INF), ((-0.0,), -INF), ((INF,), 0.0), ((-1.0,), NAN), ((4.0,), 0.5)],
    "lgamma": [
        ((0.0,), INF),
        ((-0.0,), INF),
        ((1.0,), 0.0),
        ((2.0,), 0.0),
        ((-3.0,), INF),
        ((-(2.0**52),), INF),
        ((-(2.0**127),), INF),
        ((INF,), INF),
        ((-INF,), INF),
    ],
    "digamma": [((0.0,), -INF), ((-0.0,), INF), ((-3.0,), NAN), ((INF,), INF), ((-INF,), NAN)],
    "fmod": [
        ((5.5, 2.0), 1.5),
        ((-5.5, 2.0), -1.5),
        ((5.5, -2.0), 1.5),
        ((0.0, 3.0), 0.0),
        ((-0.0, 3.0), -0.0),
        ((6.0, 3.0), 0.0),
        ((-6.0, 3.0), -0.0),
        ((1.0, 0.0), NAN),
        ((INF, 1.0), NAN),
        ((1.5, INF), 1.5),
        ((-1.5, -INF), -1.5),
        ((INF, INF), NAN),
        ((1.0, NAN), NAN),
        ((NAN, 1.0), NAN),
    ],
    "pow": [
        ((NAN, 0.0), 1.0),
        ((1.0, NAN), 1.0),
        ((NAN, 1.0), NAN),
        ((2.0, NAN), NAN),
        ((0.0, 3.0), 0.0),
        ((-0.0, 3.0), -0.0),
        ((-0.0, 2.0), 0.0),
        ((-0.0, 0.5), 0.0),
        ((0.0, -1.0), INF),
        ((-0.0, -1.0), -INF),
        ((-0.0, -2.0), INF),
        ((-0.0, -0.5), INF),
        ((-1.0, INF), 1.0),
        ((-1.0, -INF), 1.0),
        ((2.0, INF), INF),
        ((2.0, -INF), 0.0),
        ((0.5, INF), 0.0),
        ((-0.5, -INF), INF),
        ((0.0, -INF), INF),
        ((INF, 2.0), INF),
        ((INF, -2.0), 0.0),
        ((-INF, 3.0), -INF),
        ((-INF, 2.0), INF),
        ((-INF, -3.0), -0.0),
        ((-INF, 0.5), INF),
        ((-INF, -0.5), 0.0),
        ((-2.0, 3.0), -8.0),
        ((-2.0, 2.0), 4.0),
        ((-2.0, 0.5), NAN),
        ((-2.0, 1e300), INF),
        ((2.0, -1e300), 0.0),
        ((-1.0, 1e300), 1.0),
        ((3.0, 4.0), 81.0),
    ],
}


@pytest.mark.parametrize("fma", [True, False], ids=["fma", "nofma"])
@pytest.mark.parametrize("name", NAMES)
def test_special_values(name: str, fma: bool) -> None:
    table = [*SPECIALS[name]]
    if vmath.arity(name) == 1:
        table.append(((NAN,), NAN))
    f = compiled(name, fma)
    for elem, dtype in TYPES.items():
        with np.errstate(over="ignore"):
            columns = tuple(np.array(column, dtype) for column in zip(*[a for a, _ in table]))
            want = np.array([w for _, w in table], dtype)
        got = f(elem, 4, columns)
        for k, (arguments, _) in enumerate(table):
            what = f"{name}{arguments} of {elem}: got {got[k]}, want {want[k]}"
            exact = np.isnan(want[k]) or want[k] in (0, INF, -INF)
            close = abs(got[k] - want[k]) <= 2 * np.spacing(abs(want[k])) if not exact else True
            assert close, what
            if exact:
                np.testing.assert_array_equal(got[k], want[k], what)
            if not np.isnan(want[k]):
                assert np.signbit(got[k]) == np.signbit(want[k]), what


def test_integral_powers_and_logarithms_are_exact() -> None:
    exponents = np.arange(-1074, 1024).astype(np.float64)
    powers = np.ldexp(1.0, exponents.astype(int))
    np.testing.assert_array_equal(compiled("log2", True)("f64", 4, (powers,)), exponents)
    np.testing.assert_array_equal(compiled("exp2", True)("f64", 4, (exponents,)), powers)


# --- the interface ------------------------------------------------------------------------------


def test_symbols_and_text() -> None:
    assert vmath.symbol("exp", "f32", 4) == "tw.exp.f32x4"
    assert vmath.symbol("exp", "f64", 1) == "tw.exp.f64"
    text = vmath.define("exp", "f32", 4)
    assert "define internal <4 x float> @tw.exp.f32x4(<4 x float> %x) alwaysinline" in text
    assert vmath.needs("exp", "f32", 4) == ("tw.exp.f32x4",)
    assert vmath.needs("sin", "f32", 4)[-1] == "tw.sin.f32x4"
    # What sine and cosine share is one symbol with one text.
    sine, cosine = (vmath.functions(n, "f64", 8) for n in ("sin", "cos"))
    shared = sine.keys() & cosine.keys()
    assert shared and all(sine[s] == cosine[s] for s in shared)


@pytest.mark.parametrize("name", NAMES)
def test_only_intrinsics_with_instructions_are_called(name: str) -> None:
    for elem in TYPES:
        for fma in (True, False):
            text = vmath.define(name, elem, 4, fma)
            lines = "\n".join(vmath.declarations(name, elem, 4, fma))
            called = set(re.findall(r"@(llvm\.\w+(?:\.reduce)?)", text))
            allowed = {"llvm.fabs", "llvm.sqrt", "llvm.copysign", "llvm.ctlz", "llvm.fshl"}
            allowed |= {"llvm.minimum", "llvm.maximum"}
            allowed |= {"llvm.vector.reduce"} | ({"llvm.fma"} if fma else set())
            assert called <= allowed
            assert set(re.findall(r"@llvm[\w.]+", text)) == set(re.findall(r"@llvm[\w.]+", lines))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("cbrt", "f32", 4), "no vector function 'cbrt'"),
        (("exp", "bf16", 4), "f32 or f64"),
        (("exp", "f32", 0), "at least one"),
    ],
)
def test_bad_requests_get_a_sentence(arguments: tuple[str, str, int], says: str) -> None:
    with pytest.raises(Invalid, match=says):
        vmath.define(*arguments)


def test_costs_are_those_of_how_functions_are_computed() -> None:
    """A function costs a polynomial if one computes it. Remainders are divisions as well."""
    series = {name for name, s in SCALARS.items() if s.cost >= SERIES}
    assert series == vmath.names() - {"rsqrt", "fmod"} | {"floordiv", "quo", "mod", "rem"}
    assert SCALARS["rsqrt"].cost > SCALARS["sqrt"].cost == SCALARS["div"].cost > cost_of("add")
    assert cost_of("cast") == 1
