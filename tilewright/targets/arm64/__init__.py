"""arm64: NEON, 128-bit vectors in 32 registers, fused multiply-add always."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tilewright.ir.product import TileShape
from tilewright.ir.target import Target
from tilewright.targets.arm64 import intrinsics
from tilewright.targets.family import Family, Host, linux_tests

# LLVM's detection leaves these out; the kernel reports them under other names.
_FLAGS = {
    "asimddp": "+dotprod",
    "asimdfhm": "+fp16fml",
    "asimdhp": "+fullfp16",
    "atomics": "+lse",
    "bf16": "+bf16",
    "i8mm": "+i8mm",
    "lrcpc": "+rcpc",
}
# How a program asks Linux for a feature: bits of its words about the processor.
_BITS = {
    "hwcap": "fp-armv8:0 neon:1 aes:3 sha2:6 crc:7 lse:8 fullfp16:10 rdm:12 jsconv:13 complxnum:14 "
    "rcpc:15 ccpp:16 sha3:17 sm4:19 dotprod:20 sve:22 fp16fml:23 flagm:27 sb:29",
    "hwcap2": "sve2:1 sve2-aes:2 sve2-bitperm:4 sve2-sha3:5 sve2-sm4:6 altnzcv:7 fptoint:8 "
    "i8mm:13 bf16:14 rand:16 bti:17 mte:18 sme:23",
}
# For estimates: two pipes of four cycles and two loads; bytes of a cycle as measured on one.
_RATES: dict[str, Any] = {
    "l2_bandwidth": 24,
    "l3_bandwidth": 10,
    "memory_bandwidth": 7,
    "rated": True,
}


# Short vectors multiply by a lane of a vector of elements, which each row has in a register. Three
# vectors of columns leave registers for that, and for seven rows.
_NEON: dict[str, Any] = {
    "vector_bits": 128,
    "vector_registers": 32,
    "has_fma": True,
    "tiles": (TileShape(6, 3, 8, most=7),),
    "vector_convention": "aarch64_vector_pcs",
}


def _features(features: Collection[str]) -> dict[str, Any]:
    """What features add."""
    dots = (p for p, needs in intrinsics.DOTS if needs in features)
    return {
        "products": (*dots, *intrinsics.FMA),
        "has_f16": "+fullfp16" in features,
        "has_bf16": "+bf16" in features,
        "has_masks": "+sve" in features,
        "masked_bytes": 1,
    }


def describe(host: Host) -> Target:
    """The host's target: NEON, with the extensions the kernel reports."""
    reported = {feature for flag, feature in _FLAGS.items() if flag in host.flags}
    known = {feature[1:]: feature for feature in (*host.cpu.features, *reported)}
    features = tuple(known[name] for name in sorted(known))
    return host.target(features, **_NEON, **_features(features), **_RATES)


FAMILY = Family(
    "arm64",
    ("aarch64", "arm64"),
    (
        Target(
            "arm64",
            "aarch64-unknown-linux-gnu",
            "generic",
            ("+fp-armv8", "+neon"),
            **_NEON,
            **_features(()),
            **_RATES,
        ),
    ),
    describe,
    tests=linux_tests(_BITS),
)
