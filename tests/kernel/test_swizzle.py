"""Swizzled shared memory: every element has a place, columns are in different banks, the code puts
elements where they belong."""

from __future__ import annotations

import numpy as np
import pytest

from tests.gpu import emulate
from tests.gpu.te_kernels import transposed
from tilewright.base.errors import Refused, Unsupported
from tilewright.kernel import simt
from tilewright.kernel.banks import Turns, conflicts, request
from tilewright.kernel.legal import legalise
from tilewright.kernel.steps.swizzle import Swizzle
from tilewright.kernel.swizzle import Swizzled
from tilewright.kernel.text import nest_text, parse_nest
from tilewright.llvm.grid import emit_kernels


@pytest.mark.parametrize("by", [Swizzled(3, 2, 3), Swizzled(1, 0, 1), Swizzled(2, 3, 4)], ids=str)
def test_every_element_has_a_place(by: Swizzled) -> None:
    at = np.arange(1 << (by.base + by.bits + 3))
    assert not list(by.faults(len(at)))
    place = by.place(at)
    np.testing.assert_array_equal(np.sort(place), at)
    np.testing.assert_array_equal(by.place(place), at)
    blocks = place.reshape(-1, by.block)
    assert (np.diff(blocks, axis=1) == 1).all()


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (Swizzle("t", 3, 2, 2), "bits 2 further up are among the 3 that are changed"),
        (Swizzle("t", 3, 8, 3), "is not known to be a multiple of 2048"),
        (Swizzle("t", 0, 2, 2), "0 bits from bit 2 on"),
        (Swizzle("x", 3, 2, 3), "x"),
    ],
    ids=str,
)
def test_refusals(step: Swizzle, says: str) -> None:
    with pytest.raises(Refused, match=says):
        step(transposed())
    with pytest.raises(Refused, match="swizzled by 3,2,3 already"):
        Swizzle("t", 3, 2, 3)(Swizzle("t", 3, 2, 3)(transposed()))


def test_banks() -> None:
    """Eight rows of one column are in one bank; swizzled, in eight."""
    plain, better = transposed(), Swizzle("t", 3, 2, 3)(transposed())
    assert parse_nest(nest_text(better)) == better == transposed(" swizzled 3,2,3")
    (found,) = conflicts(plain)
    assert str(found) == ("y reads t[t+8*u,r] in 8 turns of the memory banks, 1 would do"), found
    assert not conflicts(better)
    x = np.arange(1024, dtype="f").reshape(32, 32)
    for nest, worst in ((plain, 8), (better, 1)):
        banks: dict[str, Turns] = {}
        np.testing.assert_array_equal(simt.run(nest, {"x": x}, banks=banks)["y"], x.T)
        assert banks["t: t"] == Turns(32, 32)  # 8 warps, 8 threads at a time
        assert banks["y: t"].taken == worst * banks["y: t"].least


def test_turns() -> None:
    threads = np.arange(32)
    assert request(4 * threads, 4) == Turns(1, 1)
    assert request(8 * threads, 4) == Turns(2, 1)
    assert request(128 * threads, 4) == Turns(32, 1)
    # Of eight threads that come at a time, four touch a row each: two times a turn.
    lanes = np.array([0, 1, 2, 3, 8, 9, 10, 11])
    assert request(np.tile(16 * np.arange(4), 2), 16, lanes) == Turns(2, 2)
    assert request(0 * threads, 4) == Turns(1, 1)  # one word for all
    assert request(16 * threads, 16) == Turns(4, 4)
    assert request(256 * threads, 16) == Turns(32, 4)
    assert request(2 * threads, 2) == Turns(1, 1)


@pytest.mark.parametrize("how", ["", " swizzled 3,2,3", " swizzled 2,2,5"])
def test_the_code(how: str) -> None:
    x = np.arange(1024, dtype="f").reshape(32, 32)
    np.testing.assert_array_equal(emulate.run(transposed(how), {"x": x})["y"], x.T)


def test_lanes_that_a_swizzle_parts() -> None:
    with pytest.raises(Unsupported, match="the lanes e are not adjacent in the swizzled t"):
        emit_kernels(legalise(transposed(" swizzled 3,1,3"), emulate.PLAIN), emulate.PLAIN)
