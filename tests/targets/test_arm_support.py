"""Functions on integers of 64 bits for 32-bit Arm, run here: LLVM text is the same for all, but for
the registers that arguments are in."""

import ctypes
from fractions import Fraction

import numpy as np
import pytest

from tilewright.llvm.objects import compile_object
from tilewright.runtime.library import Library
from tilewright.targets import host
from tilewright.targets.arm.support import SUPPORT


class Pair(ctypes.Structure):
    _fields_ = [("quotient", ctypes.c_int64), ("rest", ctypes.c_int64)]


@pytest.fixture(scope="module")
def library() -> Library:
    text = SUPPORT.replace("arm_aapcscc ", "").replace("hidden ", "").replace("@__aeabi_", "@own_")
    return Library([compile_object(text, host())])


def integers() -> list[int]:
    draw = np.random.default_rng(0)
    bits = draw.integers(0, 64, 300)
    found = [int(draw.integers(0, 2**63, dtype=np.uint64)) >> int(63 - b) for b in bits]
    ends = [0, 1, 2, 3, 2**24 + 1, 2**31, 2**32 - 1, 2**32, 2**53 + 1, 2**62 + 2**38, 2**63 - 1]
    return [*ends, *found]


@pytest.mark.parametrize("signed", [False, True])
def test_division(library: Library, signed: bool) -> None:
    name, kind = ("own_ldivmod", ctypes.c_int64) if signed else ("own_uldivmod", ctypes.c_uint64)
    divide = library.function(name, kind, kind, result=Pair)
    some = integers()
    for k, n in enumerate(some):
        for d in (some[-k - 1], some[k // 2], 7, 2**33):
            for s, t in ((1, 1), (-1, 1), (1, -1), (-1, -1)) if signed else ((1, 1), (-1, -1)):
                a, b = (s * n, t * d) if signed else (s * n % 2**64, t * d % 2**64)
                if b == 0:
                    continue
                q = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
                got = divide(a, b)
                assert kind(got.quotient).value == kind(q).value, (a, b)
                assert kind(got.rest).value == kind(a - q * b).value, (a, b)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("to", ["f", "d"])
def test_integers_to_floats(library: Library, signed: bool, to: str) -> None:
    source = ctypes.c_int64 if signed else ctypes.c_uint64
    result = ctypes.c_float if to == "f" else ctypes.c_double
    convert = library.function(f"own_{'l' if signed else 'ul'}2{to}", source, result=result)
    some = [x for n in integers() for x in (n, -n if signed else 2**64 - 1 - n)]
    own = np.array(some, np.int64 if signed else np.uint64)
    right = own.astype(np.float32 if to == "f" else np.float64)
    assert [convert(x) for x in some] == right.tolist()


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("of", ["f", "d"])
def test_floats_to_integers(library: Library, signed: bool, of: str) -> None:
    source = ctypes.c_float if of == "f" else ctypes.c_double
    result = ctypes.c_int64 if signed else ctypes.c_uint64
    convert = library.function(f"own_{of}2{'lz' if signed else 'ulz'}", source, result=result)
    some = [np.float32(n) * f for n in integers() for f in (0.75, -0.3) if n < 2**62]
    for x in some:
        value = float(np.float32(x) if of == "f" else np.float64(x))
        if value < 0 and not signed:
            continue
        assert convert(value) == int(Fraction(value)), value
