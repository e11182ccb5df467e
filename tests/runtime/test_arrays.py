"""Arrays of other libraries as memory, and memory as arrays of theirs."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from tilewright.base.errors import Invalid
from tilewright.ir.types import DTYPES, bf16, to_memory
from tilewright.runtime import arrays
from tilewright.runtime.arrays import Array, contiguous, in_layout, read, strided, view

torch = pytest.importorskip("torch")
SHARED = ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")


@pytest.mark.parametrize("name", [*SHARED, "complex64", "complex128", "bfloat16"])
def test_torch_and_numpy_agree(name: str) -> None:
    x = (torch.randn(4, 6) * 3).to(getattr(torch, name))[::2, 1:].T
    m = read(x, "x")
    assert m.address == x.data_ptr() and (m.shape, m.strides) == (tuple(x.shape), x.stride())
    codes = x.view(torch.int16).numpy().view(np.uint16) if name == "bfloat16" else x.numpy()
    np.testing.assert_array_equal(view(m), codes)
    if name != "bfloat16":
        other = read(x.numpy(), "x")
        assert (other.dtype, other.paired, other.strides) == (m.dtype, m.paired, m.strides)
        assert other.address == m.address
    copy = in_layout(m, contiguous(m.shape))
    assert copy.address != m.address
    np.testing.assert_array_equal(view(copy), codes)
    assert in_layout(copy, copy.strides) is copy


def test_numpy_arrays_of_any_form() -> None:
    base = np.arange(24, dtype=np.int32).reshape(4, 6)
    odd = np.frombuffer(b"\0" + base.tobytes(), np.uint8)[1:].view(np.int32).reshape(4, 6)
    record = np.zeros(4, np.dtype([("a", np.int8), ("b", np.int32)]))["b"]
    for x in (base[::-1], base[:, ::-2], base.T, odd, record, base.astype(">i4"), base[:0]):
        np.testing.assert_array_equal(view(read(x, "x")), x)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        ([1.0], "x is a list, not an array"),
        (np.array(["a"]), "x is of <U1, which no program takes"),
        (torch.ones(2, requires_grad=True), "x cannot be read"),
        (torch.ones(2, device="meta"), "x cannot be read|not in main memory"),
        (torch.ones(2, dtype=torch.complex64).conj(), "x cannot be read"),
    ],
)
def test_what_is_no_array(x: Any, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        read(x, "x")


def test_an_array_keeps_its_memory() -> None:
    """As long as anybody has it, whoever that is, and no longer."""
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    a = Array(bf16, to_memory(values, bf16))
    gone = weakref.ref(a.codes)
    seen = torch.from_dlpack(a)
    again = read(a, "a")
    unused = a.__dlpack__()
    np.testing.assert_array_equal(np.asarray(a), values)
    assert repr(a) == "Array(bf16, (2, 3))" and a.shape == (2, 3)
    del a
    np.testing.assert_array_equal(view(again), to_memory(values, bf16))
    assert torch.equal(seen.float(), torch.from_numpy(values))
    del again, unused
    gc.collect()
    assert gone() is not None
    del seen
    gc.collect()
    assert gone() is None and not arrays._held


def test_strided_memory() -> None:
    made = strided((3, 4), (1, 5), DTYPES["f32"], False)
    assert made.strides == (4, 20) and made.flags.writeable
    made[...] = np.arange(12).reshape(3, 4)
    np.testing.assert_array_equal(made, np.arange(12).reshape(3, 4))
    assert strided((0, 4), (4, 1), bf16, False).shape == (0, 4)
