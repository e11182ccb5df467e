"""64-bit RISC-V: scalar floats (RV64GC), and vectors (the V extension, version 1.0).

Vectors have 256 bits, in pairs of registers of at least 128: `zvl128b` is what every processor with
V has. Pairs take half as many instructions as single registers there, and fill a whole register
where it has 256 bits, without another program for such machines.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tilewright.ir.product import TileShape
from tilewright.ir.target import Target
from tilewright.targets.family import Family, Host, linux_tests
from tilewright.targets.riscv import intrinsics

_TRIPLE = "riscv64-unknown-linux-gnu"
_GC = ("+m", "+a", "+f", "+d", "+c")
_V = (*_GC, "+v", "+zvl128b")
# Boards so far: short pipelines, and one load and one vector operation of a cycle.
_RATES: dict[str, Any] = {"fma_pipes": 1, "load_ports": 1, "issue": 2, "mhz": 1600}


def _features(features: Collection[str]) -> dict[str, Any]:
    """What features say of vectors. Without any, a register holds one float."""
    common = {"has_fma": True, "converts_f16": "+zfhmin" in features, **_RATES}
    if "+v" not in features:
        tiles = (TileShape(4, 4, 4), TileShape(6, 2, 6))
        return {"vector_bits": 32, "vector_registers": 32, "tiles": tiles, **common}
    tiles = (TileShape(6, 2, 6), TileShape(12, 1, 8))
    vectors = {"vector_bits": 256, "vector_registers": 16, "has_masks": True}
    vectors["masked_bytes"] = 1
    return {**vectors, "tiles": tiles, "products": (intrinsics.FMA,), **common}


def describe(host: Host) -> Target:
    """The host's target."""
    features = host.cpu.features
    return host.target(features, **_features(features))


FAMILY = Family(
    "riscv",
    ("riscv64",),
    (
        Target("riscv64", _TRIPLE, "generic-rv64", _GC, **_features(_GC)),
        Target("riscv64-v", _TRIPLE, "generic-rv64", _V, **_features(_V)),
    ),
    describe,
    # Linux counts letters; zvl128b is part of v.
    tests=linux_tests({"hwcap": "a:0 c:2 d:3 f:5 m:12 v:21 zvl128b:21"}),
)
