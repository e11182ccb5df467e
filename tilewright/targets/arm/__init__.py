"""32-bit Arm (ARMv7-A) with NEON and floats in registers (hard float).

Vectors of float32 are NEON's, which takes subnormal operands as zero and makes none: results
below 1.2e-38 are 0. Single floats and doubles are VFP's, which follow IEEE 754. Against the largest
value of a result the difference is far below its last place.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tilewright.ir.product import TileShape
from tilewright.ir.target import Target
from tilewright.targets.arm import intrinsics
from tilewright.targets.arm.support import SUPPORT
from tilewright.targets.family import Family, Host, linux_tests

# VFPv4 brings the fused multiply-add and conversions of half precision, integer division its own.
_FEATURES = ("+neon", "+vfp4", "+fp16", "+hwdiv", "+hwdiv-arm")
# Of the 16 registers eight hold sums; the others are for a vector of each row, which is loaded
# along the sum, and two of columns.
_NEON: dict[str, Any] = {
    "vector_bits": 128,
    "vector_registers": 16,
    "pointer_bits": 32,
    "rounds": False,
    "f64_maximum": False,
    "tiles": (TileShape(4, 2, 4), TileShape(6, 1, 8)),
    "fma_pipes": 1,
    "load_ports": 1,
    "issue": 2,
    "mhz": 1500,
}


def _features(features: Collection[str]) -> dict[str, Any]:
    fused = "+vfp4" in features
    return {
        "has_fma": fused,
        "converts_f16": "+fp16" in features,
        "products": intrinsics.FMA if fused else (),
    }


def describe(host: Host) -> Target:
    """The host's target."""
    features = host.cpu.features
    return host.target(features, **_NEON, **_features(features))


FAMILY = Family(
    "arm",
    ("armv7", "armv7l"),
    (
        Target(
            "armv7",
            "armv7-unknown-linux-gnueabihf",
            "cortex-a15",
            _FEATURES,
            l3=1024 * 1024,
            **_NEON,
            **_features(_FEATURES),
        ),
    ),
    describe,
    support=SUPPORT,
    # Linux has no bit for conversions of half precision: VFPv4 has them.
    tests=linux_tests({"hwcap": "neon:12 vfp4:16 fp16:16 hwdiv-arm:17 hwdiv:18"}),
)
