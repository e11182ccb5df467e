"""Floats of 8 and 16 bits: every code, every float of 16 bits, and what lies between codes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.ir.narrow_values import FORMS, floats_to_round, nearest
from tilewright.ir.expr import cast, const
from tilewright.ir.interpret import cast as cast_arrays
from tilewright.ir.narrow import BFLOAT, FORMATS, HALF
from tilewright.ir.types import (
    DTYPES,
    TENSOR_DTYPES,
    as_dtype,
    bf16,
    dtype_of_numpy,
    f8e5m2,
    f16,
    f32,
    from_memory,
    i64,
    to_memory,
)

# Those that torch has; the fifth is checked by its definition alone.
TORCH = {
    "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
    "f8e4b8": torch.float8_e4m3fnuz,
    "f8e5b16": torch.float8_e5m2fnuz,
}


@pytest.mark.parametrize("name", TORCH)
def test_every_code_is_what_torch_reads(name: str) -> None:
    codes = np.arange(256, dtype=np.uint8)
    expected = torch.from_numpy(codes).view(TORCH[name]).float().numpy()
    got = from_memory(codes, DTYPES[name])
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(expected[expected == 0]))


@pytest.mark.parametrize("name", FORMS)
def test_every_code_is_what_its_definition_says(name: str) -> None:
    _, fraction_bits, bias, special = FORMS[name]
    for code, got in enumerate(from_memory(np.arange(256, dtype=np.uint8), DTYPES[name])):
        if code in special:
            np.testing.assert_equal(got, np.float32(special[code]))
            continue
        sign = -1 if code & 0x80 else 1
        e = (code & 0x7F) >> fraction_bits
        f = (code & ((1 << fraction_bits) - 1)) / (1 << fraction_bits)
        value = (1 + f) * 2.0 ** (e - bias) if e else f * 2.0 ** (1 - bias)
        assert got == sign * value and np.signbit(got) == (sign < 0)


@pytest.mark.parametrize("name", TORCH)
def test_rounding_within_range_is_torchs(name: str) -> None:
    d = DTYPES[name]
    x = floats_to_round(name)
    x = x[np.abs(x) <= FORMATS[name].maximum]
    expected = torch.from_numpy(x).to(TORCH[name]).view(torch.uint8).numpy()
    np.testing.assert_array_equal(to_memory(x, d), expected)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("rounding", ["rtne", "rtz"])
def test_rounding_finds_the_right_one_of_all_numbers(name: str, rounding: str) -> None:
    x = floats_to_round(name)
    got = FORMATS[name].round(x, rounding)
    np.testing.assert_array_equal(got, nearest(name, x, rounding))


@pytest.mark.parametrize("name", FORMS)
def test_numbers_of_a_format_stay_what_they_are(name: str) -> None:
    d = DTYPES[name]
    values = from_memory(np.arange(256, dtype=np.uint8), d)
    np.testing.assert_array_equal(from_memory(to_memory(values, d), d), values)
    np.testing.assert_array_equal(as_dtype(values, d), values)


def test_a_cast_saturates_and_memory_keeps_infinities() -> None:
    x = np.array([np.inf, -np.inf, np.nan, 1e6, -1e6], np.float32)
    for name, form in FORMATS.items():
        d = DTYPES[name]
        got = cast_arrays(x, f32, d)
        if d.bits == 16:
            np.testing.assert_array_equal(got, as_dtype(x, d))
            continue
        top = 1.75 if name == "f8e4b15" else form.maximum
        np.testing.assert_array_equal(got[[0, 1, 3, 4]], [top, -top, top, -top])
        assert np.isnan(got[2]) == (form.nan is not None)
    np.testing.assert_array_equal(as_dtype(x, f8e5m2)[:3], x[:3])
    assert cast(const(np.inf, f32), f8e5m2) is const(57344.0, f8e5m2)
    assert const(np.inf, f8e5m2).value == np.inf


def test_halves_are_numpys_and_torchs() -> None:
    codes = np.arange(1 << 16, dtype=np.uint16)
    with np.errstate(invalid="ignore"):
        expected = codes.view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(HALF.decode(codes), expected)
    expected = torch.from_numpy(codes).view(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(BFLOAT.decode(codes), expected)
    more = np.array([65519.996, 65520.0, 3.39e38, 1e-41, 6e-8], np.float32)
    x = np.concatenate([floats_to_round("f8e5m2"), more])
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_array_equal(HALF.round(x), x.astype(np.float16).astype(np.float32))
    np.testing.assert_array_equal(BFLOAT.round(x), torch.from_numpy(x).bfloat16().float().numpy())
    np.testing.assert_array_equal(from_memory(to_memory(x, bf16), bf16), as_dtype(x, bf16))


def test_numpy_dtypes_mean_what_they_meant() -> None:
    assert dtype_of_numpy(np.dtype(np.float32)) is f32
    assert dtype_of_numpy(np.dtype(np.float16)) is f16
    assert dtype_of_numpy(np.dtype(np.int64)) is i64
    assert dtype_of_numpy(np.dtype(np.uint16)).name == "u16"
    assert "u16" not in TENSOR_DTYPES and "f8e4m3" not in TENSOR_DTYPES
