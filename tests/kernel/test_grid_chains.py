"""Attention as one kernel of a GPU: right on the executor of threads and emulated, no conflicts of
banks, nothing spilled; what is left out of it is noticed."""

from __future__ import annotations

import numpy as np

from tests.gpu import emulate
from tests.gpu.attention_groups import Attention
from tilewright import targets
from tilewright.kernel import simt
from tilewright.kernel.banks import Turns
from tilewright.kernel.check import verify
from tilewright.kernel.nest import Nest

GPU = targets.get("cuda:90")
# Weights are rounded to 16 bits before they are multiplied, and the results are.
NEAR = {"atol": 0.02, "rtol": 0.02}


def check(a: Attention, emulated: bool = False) -> Nest:
    nest = a.nest()
    verify(nest)
    given, want = a.arguments(), a.expected()
    banks: dict[str, Turns] = {}
    (got,) = simt.run(nest, given, banks=banks).values()
    np.testing.assert_allclose(got, want, **NEAR)
    assert not any(t.conflicts for t in banks.values()), banks
    if emulated:
        (got,) = emulate.run(nest, given, target=GPU).values()
        np.testing.assert_allclose(got, want, **NEAR)
    return nest


def test_blocks_of_keys() -> None:
    check(Attention(rows=64, keys=192), emulated=True)
